//! `muninn doctor`: what this kernel and this user can do, what is missing, and how to get it.

pub(crate) mod checks;
mod cluster;
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
  muninn doctor --cluster
  muninn doctor --json | jq '.checks[] | select(.ok | not)'

Exit code 5 if something is missing that Muninn needs. What it can do without is marked, with what
that costs, and does not fail.")]
pub struct Args {
    /// Also look for what a node of a cluster needs: an agent, and Slurm with Muninn's plug-in
    #[arg(long)]
    pub cluster: bool,

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
    let mut checks = checks::all(&ThisMachine::default());
    if args.cluster {
        checks.extend(cluster::all());
    }
    let verdict = verdict(&checks);
    if args.json {
        let ok = verdict.is_ok();
        ui::print_json(&Report { ok, checks });
    } else {
        ui::print_out(&describe(&checks));
    }
    verdict
}

pub(crate) fn verdict(checks: &[Check]) -> Outcome {
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

pub(crate) fn describe(checks: &[Check]) -> String {
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
    lines.push(String::new());
    lines.push(summary(checks));
    lines.join("\n")
}

/// What is needed is told from what could be better, and nothing is said to be well that is not.
fn summary(checks: &[Check]) -> String {
    let lacking = |needed: bool| {
        let found = checks
            .iter()
            .filter(|check| !check.ok && check.needed == needed);
        found.count()
    };
    let all = checks.len();
    match (lacking(true), lacking(false)) {
        (0, 0) => "All that Muninn can make use of is here.".to_string(),
        (0, without) => format!("{without} of {all} could be better; none of them is needed."),
        (1, 0) => format!("1 of {all} is MISSING and needed."),
        (missing, 0) => format!("{missing} of {all} are MISSING and needed."),
        (1, without) => {
            format!("1 of {all} is MISSING and needed; {without} more could be better.")
        }
        (missing, without) => {
            format!("{missing} of {all} are MISSING and needed; {without} more could be better.")
        }
    }
}
