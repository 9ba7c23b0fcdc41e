//! Agents, a coordinator and jobs with real far memory, and a whole Slurm with them.
//!
//! All that is started here is ended by its number, also when a test fails: whoever starts something has a
//! handle that ends it when it is dropped.

#[allow(dead_code)]
#[path = "../cli/common.rs"]
mod common;

mod agents;
mod bench;
mod rack;
mod slurm;
