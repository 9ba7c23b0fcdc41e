//! One module for each command: `Args` (what clap reads) and `run`.

pub mod sim;
