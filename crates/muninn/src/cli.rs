//! The definitions that parsing, help, completions and the man page are all made from.

use crate::cmd;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Far memory for ordinary Linux machines.
#[derive(Debug, Parser)]
#[command(
    name = "muninn",
    version,
    max_term_width = 100,
    propagate_version = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Simulate a rack, a network, or a page cache
    #[command(subcommand)]
    Sim(cmd::sim::Sim),
}

pub fn command() -> clap::Command {
    Cli::command()
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Sim(sim) => cmd::sim::run(sim),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("muninn: {failure}");
            ExitCode::from(failure.exit as u8)
        }
    }
}
