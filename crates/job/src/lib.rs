//! The page of memory that a launcher, the runtimes in its programs, and `muninn status` share.
//!
//! A job is everything that one `muninn run` started. Its [`Job`] is a file in a private directory,
//! mapped by all of them: what the launcher wants ([`Config`], the limit), what each process counts
//! ([`Counters`], one [`Place`] each) and may hold (worked out by the launcher's [`Looker`]), and the
//! last words of a runtime that had to give up.
//! Invariant: everything in it is atomics, so nobody ever waits for anybody; a process may die at
//! any instruction and the others go on. A file that makes no sense is an error, never a panic.
//!
//! The launcher names the file to its children in `MUNINN_JOB` ([`VARIABLE`]).
#![warn(unreachable_pub)]

mod config;
mod counters;
mod directory;
mod door;
mod job;
mod kinds;
mod layout;
mod look;
mod place;
mod pool;
mod tally;
mod waiting;

pub use config::{Config, ConfigError};
pub use counters::{Counters, Kind, Snapshot};
pub use directory::{Found, PREFIX, find_all, find_by_pid, own_directory};
pub use door::{
    Porter, Visit, ask_late_writes, leave as leave_device, leave_ward, new_name as new_door_name,
    take_back, take_back_ward,
};
pub use job::{Job, JobError, Message, Peaks};
pub use look::{Looked, Looker};
pub use place::Place;
pub use pool::PoolServer;
pub use tally::Tally;
pub use waiting::{Waiting, Waits};

/// The variable that names a job's file to its processes.
pub const VARIABLE: &str = "MUNINN_JOB";
/// Processes of a job that can be told apart at one time.
pub const PLACES_MAX: usize = 4096;
/// Places whose memory is taken when a job starts; that of others when they are.
pub const PLACES_READY: usize = 64;

/// A second variable, beside [`VARIABLE`]: the name of the launcher's door.
pub const DOOR_VARIABLE: &str = "MUNINN_DOOR";
