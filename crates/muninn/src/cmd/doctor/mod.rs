//! `muninn doctor`: what this kernel and this user can do, what is missing, and how to get it.

mod checks;
mod machine;
#[cfg(test)]
mod tests;
mod uffd;

use crate::failure::{Exit, Failure, Outcome};
use crate::ui;
use checks::Check;
use machine::ThisMachine;
use serde::Serialize;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn doctor
  muninn doctor --json | jq '.checks[] | select(.ok | not)'

Exit code 5 if something is missing that Muninn needs. What it can do without is marked, with what
that costs, and does not fail.")]
pub struct Args {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    /// Everything that is needed is there.
    ok: bool,
    checks: Vec<Check>,
}

pub fn run(args: &Args) -> Outcome {
    let checks = checks::all(&ThisMachine::default());
    let verdict = verdict(&checks);
    if args.json {
        let ok = verdict.is_ok();
        ui::print_json(&Report { ok, checks });
    } else {
        ui::print_out(&describe(&checks));
    }
    verdict
}

fn verdict(checks: &[Check]) -> Outcome {
    let missing: Vec<&str> = checks
        .iter()
        .filter(|check| check.needed && !check.ok)
        .map(|check| check.name.as_str())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::CheckFailed,
        format!(
            "what Muninn needs is missing here: {}; how to get it is said above",
            missing.join(", ")
        ),
    ))
}

fn describe(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max();
    let width = width.unwrap_or(0);
    let mut lines = Vec::new();
    for check in checks {
        let mark = match (check.ok, check.needed) {
            (true, _) => "ok     ",
            (false, true) => "MISSING",
            (false, false) => "without",
        };
        lines.push(format!("{mark}  {:<width$}  {}", check.name, check.found));
        if !check.advice.is_empty() {
            lines.push(format!("         {:<width$}  → {}", "", check.advice));
        }
    }
    let without = checks
        .iter()
        .filter(|check| !check.ok && !check.needed)
        .count();
    lines.push(String::new());
    lines.push(match without {
        0 => "All that Muninn can make use of is here.".to_string(),
        n => format!(
            "{n} of {} could be better; none of them is needed.",
            checks.len()
        ),
    });
    lines.join("\n")
}
