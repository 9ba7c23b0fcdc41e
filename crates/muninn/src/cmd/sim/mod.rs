//! `muninn sim`: the simulators.

pub mod evict;
pub mod net;
pub mod rack;

use crate::failure::Outcome;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Pack jobs into a rack with and without far memory (Cluster Far Memory)
    Rack(rack::Args),
    /// Evictions competing in a leaf-spine network (Glitter)
    Net(net::Args),
    /// Replay a page trace through every eviction and prefetch policy
    Evict(evict::Args),
}

pub fn run(sim: &Sim) -> Outcome {
    match sim {
        Sim::Rack(args) => rack::run(args),
        Sim::Net(args) => net::run(args),
        Sim::Evict(args) => evict::run(args),
    }
}
