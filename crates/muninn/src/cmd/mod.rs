//! One module for each command: `Args` (what clap reads) and `run`.

pub mod bench;
pub mod completions;
pub mod ctl;
pub mod demo;
mod demo_functions;
pub mod doctor;
pub mod drain;
pub mod keygen;
pub mod man;
pub mod nic;
pub mod profile;
pub mod run;
pub mod serve;
pub mod sim;
pub mod status;
pub mod workload;
