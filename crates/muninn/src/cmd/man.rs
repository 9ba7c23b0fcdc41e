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
        let mut command = cli::command().disable_help_subcommand(true);
        command.build();
        render(&command, &mut page)?;
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

/// All of a page. Examples stand as they are typed, line by line, and not as a paragraph.
fn render(command: &clap::Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(page)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(page)?;
    }
    if let Some(after) = command.get_after_help() {
        page.extend_from_slice(after_help(&after.to_string()).as_bytes());
    }
    if command.get_version().is_some() {
        man.render_version_section(page)?;
    }
    Ok(())
}

/// What stands below the options: examples first, then sentences.
fn after_help(text: &str) -> String {
    let is_head = |line: &str| line.starts_with("Example");
    let (examples, prose) = match text.split_once("\n\n") {
        Some((first, rest)) if is_head(first) => (first, rest),
        None if is_head(text) => (text, ""),
        _ => ("", text),
    };
    let mut roff = String::new();
    if !examples.is_empty() {
        roff += ".SH EXAMPLES\n.nf\n";
        for line in examples.lines().skip(1) {
            roff += &format!("{}\n", escaped(line.strip_prefix("  ").unwrap_or(line)));
        }
        roff += ".fi\n";
    }
    if !prose.trim().is_empty() {
        roff += ".SH NOTES\n";
        for paragraph in prose.trim().split("\n\n") {
            roff += ".PP\n";
            for line in paragraph.lines() {
                roff += &format!("{}\n", escaped(line));
            }
        }
    }
    roff
}

/// Text that means nothing but itself.
fn escaped(line: &str) -> String {
    let plain = line.replace('\\', "\\e").replace('-', "\\-");
    match plain.starts_with(['.', '\'']) {
        true => format!("\\&{plain}"),
        false => plain,
    }
}

/// One page for a command and one for each below it: `muninn.1`, `muninn-serve.1`, …
fn write_page(command: &clap::Command, dir: &Path, files: &mut Vec<String>) -> std::io::Result<()> {
    let path = dir.join(clap_mangen::Man::new(command.clone()).get_filename());
    let mut page = Vec::new();
    render(command, &mut page)?;
    std::fs::write(&path, page)?;
    files.push(path.display().to_string());
    command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| write_page(below, dir, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stay_as_they_are_typed() {
        let text =
            "Examples:\n  muninn run -- a \\\n      b\n  .x\n\nSome words\nand more.\n\nAgain.";
        assert_eq!(
            after_help(text),
            ".SH EXAMPLES\n.nf\nmuninn run \\-\\- a \\e\n    b\n\\&.x\n.fi\n\
             .SH NOTES\n.PP\nSome words\nand more.\n.PP\nAgain.\n"
        );
        assert_eq!(after_help("Only words."), ".SH NOTES\n.PP\nOnly words.\n");
        assert_eq!(
            after_help("Example:\n  muninn x"),
            ".SH EXAMPLES\n.nf\nmuninn x\n.fi\n"
        );
    }

    #[test]
    fn every_page_shows_the_values_of_its_options_and_its_examples() {
        let mut command = cli::command().disable_help_subcommand(true);
        command.build();
        let mut commands = vec![command];
        while let Some(command) = commands.pop() {
            let mut page = Vec::new();
            render(&command, &mut page).unwrap();
            let page = String::from_utf8(page).unwrap();
            let valued = command.get_arguments().filter(|arg| {
                arg.get_action().takes_values() && !arg.is_hide_set() && arg.get_long().is_some()
            });
            for arg in valued {
                for name in arg.get_value_names().into_iter().flatten() {
                    assert!(
                        page.contains(&name.replace('-', "\\-")),
                        "{} does not show {name}",
                        command.get_name()
                    );
                }
            }
            if command.get_after_help().is_some() {
                assert!(page.contains(".SH EXAMPLES"), "{}", command.get_name());
            }
            let below = command.get_subcommands().filter(|one| !one.is_hide_set());
            commands.extend(below.cloned());
        }
    }
}
