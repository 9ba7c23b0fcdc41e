//! `muninn sim evict`.

use crate::failure::{Failure, Outcome};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

pub fn run(_args: &Args) -> Outcome {
    Err(Failure::failed("not built yet"))
}
