//! One module for each command: `Args` (what clap reads) and `run`.

pub mod agent;
pub mod bench;
pub mod cluster;
pub mod completions;
pub mod coordinator;
pub mod ctl;
pub mod dashboard;
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
pub mod setup;
pub mod sim;
pub mod status;
pub mod top;
pub mod trace;
pub mod wics;
pub mod workload;
