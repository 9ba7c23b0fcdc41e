//! A rack of machines that runs a list of jobs, with and without far memory (Cluster Far Memory,
//! chapter 4).
//!
//! | file | what |
//! |---|---|
//! | [`spec`] | the rack, and its configurations: NOFAR, NOFAR(+X %), FAR(+X %) |
//! | [`workload`] | mixes of jobs, by m2c or given outright, and their arrival |
//! | [`engine`] | one run: discrete events, integer time, all decisions from `muninn-policy` |
//! | [`study`] | many runs on several threads, the same bytes whatever the number of threads |
//! | [`racks`] | many racks and one stream of jobs |
//! | [`figures`] | the figures of the paper as SVG |
//!
//! Known limit: a profile is measured on a machine of its own, so the network and the memory server
//! never slow a job down here. The published simulator has the same limit and calls its results a
//! best case.

pub mod engine;
pub mod figures;
pub mod racks;
pub mod spec;
pub mod study;
pub mod workload;

pub use engine::{Engine, Run, Setup};
pub use spec::{Config, Order, Rack};
pub use study::{Plan, Row, Study};
pub use workload::{Range, Workload};

use muninn_policy::profile::catalogue::{self, JobKind, Size};

/// The published profiles, as distributed with the Cluster Far Memory simulator.
pub const PUBLISHED: &str = include_str!("../../data/cfm-profiles.toml");

/// The six published kinds of job.
pub fn published(size: Size) -> Vec<JobKind> {
    catalogue::parse(PUBLISHED, size).expect("the embedded file is read by a test")
}

/// Why a simulation was refused. Every message names the flag or field that is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RackError {
    #[error("--machines is 0: a rack needs at least one machine")]
    NoMachines,
    #[error(
        "--machines is 1: with far memory one machine gives way to the memory server, so there must be two"
    )]
    OneMachine,
    #[error("--machines is {0}: at most {1} are simulated")]
    TooManyMachines(u32, u32),
    #[error("--cores is 0: a machine needs at least one core")]
    NoCores,
    #[error("--memory is 0: a machine needs memory")]
    NoMemory,
    #[error("--reclaim-cores is {reclaim}: it must be below --cores, which is {cores}")]
    NoCoresLeft { reclaim: u32, cores: u32 },
    #[error("--far is 0: far memory of no size is NOFAR; leave --far out, or use --configs nofar")]
    NoFar,
    #[error(
        "--far: '{0}' is neither a size nor more memory: write 1536GiB, or +17.5% of the rack's memory"
    )]
    NotFar(String),
    #[error("--jobs is 0: there must be jobs to run, also to use far memory")]
    NoJobs,
    #[error("--jobs is {jobs}: a mix of {kinds} kinds needs at least one job of each")]
    FewJobs { jobs: u32, kinds: usize },
    #[error("--jobs is {0}: at most {1} are simulated")]
    TooManyJobs(u32, u32),
    #[error("--trials is 0: at least one run is needed")]
    NoTrials,
    #[error("--workloads is 0: at least one workload is needed")]
    NoWorkloads,
    #[error("--mix names '{name}', which is not among the profiles: {known}")]
    UnknownKind { name: String, known: String },
    #[error("--mix names '{0}' twice")]
    KindTwice(String),
    #[error("--mix: '{0}' is not a share: write name=number, such as quicksort=67")]
    NotAShare(String),
    #[error("--mix is empty: all shares are 0")]
    EmptyMix,
    #[error("--m2c: '{0}' is not a range: write a value such as 1.2, or two such as 1.15-1.25")]
    NotARange(String),
    #[error(
        "--m2c: no mix of these profiles has an m2c from {from} to {to}; they reach from {lowest:.2} to {highest:.2}"
    )]
    OutOfReach {
        from: f64,
        to: f64,
        lowest: f64,
        highest: f64,
    },
    #[error(
        "--configs: '{0}' is not a configuration: write nofar, nofar+25, far+0, far+17.5 or far=1536GiB"
    )]
    NotAConfig(String),
    #[error("--alpha is {0}: a ratio lies above 0 and is at most 1")]
    Alpha(f64),
    #[error("--racks is {0}: use 1 to {1}")]
    Racks(u32, u32),
    #[error("--exempt names '{name}', which is not among the profiles: {known}")]
    UnknownExempt { name: String, known: String },
    #[error("job '{job}' needs {cores} cores, and a machine has {has} in configuration {config}")]
    TooManyCores {
        job: String,
        cores: u32,
        has: u32,
        config: String,
    },
    #[error("job '{job}' needs {memory} of memory, and cannot have it in configuration {config}")]
    TooMuchMemory {
        job: String,
        memory: String,
        config: String,
    },
}

#[cfg(test)]
mod tests;
