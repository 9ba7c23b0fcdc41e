//! `muninn workload`: programs for the benches to run. Hidden: nobody else needs them.

pub mod paging;

use crate::failure::Outcome;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Workload {
    /// Fill memory and touch its pages in one pattern
    Paging(paging::Args),
}

pub fn run(workload: &Workload) -> Outcome {
    match workload {
        Workload::Paging(args) => paging::run(args),
    }
}
