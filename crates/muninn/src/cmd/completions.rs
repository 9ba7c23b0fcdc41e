//! `muninn completions`: scripts with which a shell completes commands and flags.

use crate::cli;
use crate::failure::Outcome;
use clap_complete::Shell;
use std::io::Write;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn completions bash > /etc/bash_completion.d/muninn
  muninn completions zsh > ~/.zfunc/_muninn
  muninn completions fish > ~/.config/fish/completions/muninn.fish")]
pub struct Args {
    /// The shell
    pub shell: Shell,
}

pub fn run(args: &Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "muninn", &mut script);
    // A reader that went away (`| head`) is not an error.
    let _ = std::io::stdout().lock().write_all(&script);
    Ok(())
}
