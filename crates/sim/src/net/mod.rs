//! Evictions competing in a leaf-spine network (Glitter).
//!
//! Idea: servers run jobs whose local memory is limited; what does not fit is evicted over the
//! network to servers that have memory to spare, and read back when touched. The evictions of all
//! meet in the output queues of the switches. A job that has no free page waits for its own eviction,
//! so that the time in those queues becomes its own. Two decisions are compared, each alone and both
//! together, with the very code that the live system runs: when to begin to evict
//! ([`muninn_policy::threshold`]) and how urgent an eviction is ([`muninn_policy::urgency`]).
//!
//! Invariants: no byte is lost or made, in the network ([`fabric`]) or in a job ([`job`]), checked in
//! release builds; the same seed gives the same events.
//!
//! Known limits: the network is lossless and has no congestion control; acknowledgements and read
//! requests do not queue; headers are not counted; a core is busy or not, without a scheduler.
//!
//! Source: Glitter, § IV; parameters that it does not publish are in [`Config`] and [`Shape`] and in
//! `docs/SIMULATION.md`.

mod calendar;
pub mod charts;
mod config;
mod engine;
mod fabric;
mod job;
mod report;
mod sweep;
#[cfg(test)]
mod tests;
mod topology;
mod trace;

pub use config::{Config, InputError, JobKind, Module};
pub use engine::run;
pub use fabric::TierLoad;
pub use report::Report;
pub use sweep::{Row, Sweep};
pub use topology::{Tier, Topology};
pub use trace::{Segment, Shape, Trace};
