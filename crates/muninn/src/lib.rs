//! The command line of Muninn. One file for each command, in [`cmd`].

pub mod cli;
pub mod client;
pub mod cmd;
pub mod config;
pub mod embedded;
pub mod failure;
pub mod hosting;
pub mod key_file;
pub mod launched;
pub mod metrics;
pub mod observe;
pub mod pool_list;
pub mod server;
pub mod slurm_rack;
pub mod ui;

/// Counts what functions take from the heap, so that one that takes too much can be ended.
#[global_allocator]
static ALLOCATOR: muninn_wic::alloc::Metered = muninn_wic::alloc::Metered;
