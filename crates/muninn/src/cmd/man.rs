//! `muninn man`: manual pages, made from the same definitions as the help.

use crate::failure::{Failure, Outcome};
use crate::{cli, ui};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn man | man -l -
  muninn man --out /usr/local/share/man/man1")]
pub struct Args {
    /// Write one page for each command into this folder, instead of the first to standard output
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// With --out: print the files written as one JSON object
    #[arg(long, requires = "out")]
    pub json: bool,
}

#[derive(Serialize)]
struct Report {
    files: Vec<String>,
}

pub fn run(args: &Args) -> Outcome {
    let Some(dir) = &args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(cli::command()).render(&mut page)?;
        // A reader that went away (`| head`) is not an error.
        let _ = std::io::stdout().lock().write_all(&page);
        return Ok(());
    };
    let files = write_all(dir).map_err(|error| {
        Failure::failed(format!(
            "cannot write manual pages to {}: {error}",
            dir.display()
        ))
    })?;
    if args.json {
        ui::print_json(&Report { files });
    } else {
        ui::print_out(&format!(
            "wrote {} manual pages to {}",
            files.len(),
            dir.display()
        ));
    }
    Ok(())
}

fn write_all(dir: &Path) -> std::io::Result<Vec<String>> {
    std::fs::create_dir_all(dir)?;
    let mut command = cli::command().disable_help_subcommand(true);
    command.build();
    let mut files = Vec::new();
    write_page(&command, dir, &mut files)?;
    files.sort();
    Ok(files)
}

/// One page for a command and one for each below it: `muninn.1`, `muninn-serve.1`, …
fn write_page(command: &clap::Command, dir: &Path, files: &mut Vec<String>) -> std::io::Result<()> {
    let man = clap_mangen::Man::new(command.clone());
    let path = dir.join(man.get_filename());
    let mut page = Vec::new();
    man.render(&mut page)?;
    std::fs::write(&path, page)?;
    files.push(path.display().to_string());
    command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| write_page(below, dir, files))
}
