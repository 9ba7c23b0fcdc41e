//! `muninn bench volume`: what copies and parity cost, and what a program feels when a server goes.
//!
//! Servers are processes of this machine. All layouts are measured in turn, round by round, so that what
//! else the machine does meets all of them.

mod costs;
mod outage;
mod rig;

use super::Measurement;
use super::net::print_table;
use crate::failure::{Exit, Failure, Outcome};
use crate::ui::{print_json, print_out, progress};
use muninn_types::Bytes;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  muninn bench volume\n  muninn bench volume --only outage --chart outage.svg --json"
)]
pub struct Args {
    /// Far memory of each layout
    #[arg(long, default_value = "64MiB")]
    pub memory: Bytes,
    /// Rounds of each measurement; the median is reported
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Only measurements whose name contains this: code, shm, tcp, degraded, outage
    #[arg(long)]
    pub only: Option<String>,
    /// Draw demand reads through a server's death, the repair and a drain into this file
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// Fail (exit code 5) if a target is missed
    #[arg(long)]
    pub check: bool,
    /// Print JSON: one object per measurement
    #[arg(long)]
    pub json: bool,
}

type Step = fn(&Args) -> Result<Vec<Measurement>, Failure>;

const STEPS: &[(&str, Step)] = &[
    ("code", costs::code),
    ("shm", costs::shm),
    ("tcp", costs::tcp),
    ("degraded", costs::degraded),
    ("outage", outage::measure),
];

pub fn run(args: &Args) -> Outcome {
    if args.memory < Bytes::mib(16) {
        return Err(Failure::usage(format!(
            "--memory {} is too little to measure with: use 16MiB or more",
            args.memory
        )));
    }
    let wanted = |name: &str| {
        let only = args.only.as_ref();
        only.is_none_or(|only| name.contains(only.as_str()))
    };
    let steps: Vec<_> = STEPS.iter().filter(|(name, _)| wanted(name)).collect();
    if steps.is_empty() {
        let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
        return Err(Failure::usage(format!(
            "--only matches none of: {}",
            names.join(", ")
        )));
    }
    let bar = progress(steps.len() as u64, "bench volume");
    let mut all = Vec::new();
    for (name, step) in steps {
        bar.set_message(format!("bench volume: {name}"));
        all.extend(step(args)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    match args.json {
        true => print_json(&all),
        false => print_table(&all),
    }
    if let Some(path) = args.chart.as_ref().filter(|path| path.is_file())
        && !args.json
    {
        print_out(&format!("\nchart: {}", path.display()));
    }
    let missed = all.iter().filter(|m| m.met == Some(false));
    let missed: Vec<&str> = missed.map(|m| m.name).collect();
    if args.check && !missed.is_empty() {
        let message = format!("targets missed: {}", missed.join(", "));
        return Err(Failure::new(Exit::CheckFailed, message));
    }
    Ok(())
}
