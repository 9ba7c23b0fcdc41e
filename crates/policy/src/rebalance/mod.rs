//! Dividing a node's local memory among its jobs: the `rebalance` function of Cluster Far Memory.
//!
//! Called before a job starts and after one ends. A policy gets the jobs of one node and its local
//! memory, and gives each job a ratio r: so much of its memory is local, the rest is far. Far memory
//! is used only when the jobs want more than there is.
//!
//! Invariants, of every policy: Σ memory·r ≤ local memory; lowest ≤ r ≤ 1; r = 1 for every job when
//! they all fit, and for a far-exempt job always. A job set that cannot be divided within these is
//! refused, never squeezed: admission ([`crate::fit`]) must not have let it in.

mod allocate;
mod curve;
mod memory_time;
#[cfg(test)]
mod reference;
mod uniform;
mod variable;

pub use memory_time::{Effort, Guess, MemoryTime, objective};
pub use uniform::uniform;
pub use variable::variable;

use crate::profile::Profile;
use muninn_types::Bytes;
use std::fmt;
use std::str::FromStr;

/// A job on a node, as rebalancing sees it.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    pub profile: &'a Profile,
    pub memory: Bytes,
    /// The ratio that admission planned with.
    pub min_ratio: f64,
    /// Share of the work that is done, from 0 to 1.
    pub progress: f64,
}

/// Local memory is divided to this share of itself, so that rounding never gives out a byte too much.
pub(crate) const USABLE: f64 = 1.0 - 1e-9;

/// The jobs cannot all have their smallest share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the jobs of this node need at least {needed} of local memory, and it has {local}")]
pub struct TooLittle {
    pub needed: Bytes,
    pub local: Bytes,
}

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    Uniform,
    Variable,
    MemoryTime,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::Uniform, Policy::Variable, Policy::MemoryTime];

    pub const fn name(self) -> &'static str {
        match self {
            Policy::Uniform => "uniform",
            Policy::Variable => "variable",
            Policy::MemoryTime => "memory-time",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a policy: use uniform, variable or memory-time")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(text: &str) -> Result<Policy, UnknownPolicy> {
        let mut all = Policy::ALL.into_iter();
        all.find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy(text.to_string()))
    }
}

/// One policy with the room it works in: keep one for each thread, and it allocates nothing.
#[derive(Clone, Debug)]
pub struct Rebalancer {
    policy: Policy,
    memory_time: MemoryTime,
}

impl Rebalancer {
    pub fn new(policy: Policy) -> Rebalancer {
        Rebalancer::with_effort(policy, Effort::THOROUGH)
    }

    pub fn with_effort(policy: Policy, effort: Effort) -> Rebalancer {
        Rebalancer {
            policy,
            memory_time: MemoryTime::new(effort),
        }
    }

    /// Sets `ratios[i]` for each job; `ratios` is emptied first. `guess` is the node's own.
    pub fn divide(
        &mut self,
        jobs: &[Job<'_>],
        local: Bytes,
        guess: &mut Guess,
        ratios: &mut Vec<f64>,
    ) -> Result<(), TooLittle> {
        match self.policy {
            Policy::Uniform => uniform(jobs, local, ratios),
            Policy::Variable => variable(jobs, local, ratios),
            Policy::MemoryTime => self.memory_time.divide(jobs, local, guess, ratios),
        }
    }
}

/// Whether all jobs have all their memory; then `ratios` is set.
fn all_fit(jobs: &[Job<'_>], local: Bytes, ratios: &mut Vec<f64>) -> bool {
    ratios.clear();
    ratios.resize(jobs.len(), 1.0);
    jobs.iter().map(|job| job.memory.0).sum::<u64>() <= local.0
}

#[cfg(test)]
mod tests;
