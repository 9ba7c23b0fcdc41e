//! Which waiting job is tried first when room comes free.
//!
//! *Eager*, the published admission, tries jobs in the order of their arrival and lets in every one
//! that fits ([`crate::fit`]). Its authors saw it do worse with more far memory than with less, and
//! left a better one as future work (§4.5.2).
//!
//! What costs eager its time is the tail. Small jobs slip in beside a large one that does not fit, so
//! the large and long jobs fall behind and the last of them starts when the queue is already empty:
//! then most machines stand idle for its whole run. *Head start*, ours, lets a job count as if it had
//! come earlier by [`HEAD_START`] times its own run time, measured on the time that the queue takes to
//! drain. Long jobs go first by that much and no more, so the mix on the machines stays as it was, no
//! job waits for ever, and what is left for the end is short.
//!
//! Invariant: both are orders only; what may run beside what is still decided by [`crate::fit`]. Jobs
//! of equal run time keep their order of arrival, and a job is overtaken only by jobs that came within
//! `HEAD_START` × their run time of queue after it.
//!
//! Known limit: it needs the run time of a job, which its profile has, and an estimate of the queue's
//! drain time, which is taken from the work in it and is too short when the rack packs badly.

use crate::profile::catalogue::JobKind;
use muninn_types::Bytes;
use std::fmt;
use std::str::FromStr;

/// How many of its own run times a job is moved ahead. Found by simulation: from 3 on the tail is
/// gone, from 10 on jobs that want memory crowd at the beginning.
pub const HEAD_START: f64 = 6.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Admission {
    Eager,
    HeadStart,
}

/// The work that has arrived and not ended, and the rack that does it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Backlog {
    core_s: f64,
    byte_s: f64,
    cores: f64,
    bytes: f64,
}

impl Backlog {
    /// For a rack with so many cores for jobs and so much memory, near and far.
    pub fn new(cores: u32, memory: Bytes) -> Backlog {
        Backlog {
            core_s: 0.0,
            byte_s: 0.0,
            cores: f64::from(cores),
            bytes: memory.0 as f64,
        }
    }

    pub fn arrived(&mut self, kind: &JobKind) {
        self.core_s += f64::from(kind.cores) * kind.profile.full_s();
        self.byte_s += kind.memory.0 as f64 * kind.profile.full_s();
    }

    pub fn ended(&mut self, kind: &JobKind) {
        self.core_s -= f64::from(kind.cores) * kind.profile.full_s();
        self.byte_s -= kind.memory.0 as f64 * kind.profile.full_s();
    }

    /// The time that the work takes at least, by the resource that is scarcer.
    pub fn drain_s(&self) -> f64 {
        (self.core_s / self.cores)
            .max(self.byte_s / self.bytes)
            .max(0.0)
    }
}

impl Admission {
    pub const ALL: [Admission; 2] = [Admission::Eager, Admission::HeadStart];

    pub const fn name(self) -> &'static str {
        match self {
            Admission::Eager => "eager",
            Admission::HeadStart => "head-start",
        }
    }

    /// When a waiting job's turn comes, in seconds from now; the job with the earliest turn is tried
    /// first. `ahead` of the `waiting` jobs came before it, all of them take `drain_s`.
    #[inline]
    pub fn turn_s(self, ahead: u32, waiting: u32, drain_s: f64, run_s: f64) -> f64 {
        let queue_s = f64::from(ahead) * drain_s / f64::from(waiting.max(1));
        match self {
            // The number, not the time: the order holds also when the queue takes no time at all.
            Admission::Eager => f64::from(ahead),
            Admission::HeadStart => queue_s - HEAD_START * run_s,
        }
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an admission policy: use eager or head-start")]
pub struct UnknownAdmission(String);

impl FromStr for Admission {
    type Err = UnknownAdmission;
    fn from_str(text: &str) -> Result<Admission, UnknownAdmission> {
        let mut all = Admission::ALL.into_iter();
        all.find(|admission| admission.name() == text)
            .ok_or_else(|| UnknownAdmission(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use proptest::prelude::*;

    #[test]
    fn admissions_have_names() {
        for admission in Admission::ALL {
            assert_eq!(
                admission.to_string().parse::<Admission>().unwrap(),
                admission
            );
        }
        assert_eq!(
            "late".parse::<Admission>().unwrap_err().to_string(),
            "'late' is not an admission policy: use eager or head-start"
        );
    }

    #[test]
    fn the_scarcer_resource_says_how_long_the_queue_takes() {
        let kind = |cores, gib| JobKind {
            name: String::new(),
            memory: Bytes::gib(gib),
            cores,
            min_ratio: 1.0,
            profile: Profile::constant(10.0).unwrap(),
        };
        let mut backlog = Backlog::new(8, Bytes::gib(32));
        assert_eq!(backlog.drain_s(), 0.0);
        backlog.arrived(&kind(4, 8));
        assert_eq!(backlog.drain_s(), 5.0);
        backlog.arrived(&kind(1, 32));
        assert_eq!(backlog.drain_s(), 12.5);
        backlog.ended(&kind(1, 32));
        backlog.ended(&kind(4, 8));
        assert_eq!(backlog.drain_s(), 0.0);
    }

    proptest! {
        #[test]
        fn eager_is_the_order_of_arrival(a in 0u32..1000, b in 0u32..1000, s in 0.0..1e4f64) {
            let turn = |ahead| Admission::Eager.turn_s(ahead, 1000, s, 5.0 * f64::from(ahead % 7));
            prop_assert_eq!(a < b, turn(a) < turn(b));
        }

        #[test]
        fn equal_jobs_keep_their_order(a in 0u32..1000, b in 0u32..1000, s in 1.0..1e4f64, run in 0.1..1e3f64) {
            let turn = |ahead| Admission::HeadStart.turn_s(ahead, 1000, s, run);
            prop_assert_eq!(a < b, turn(a) < turn(b));
        }

        #[test]
        fn a_job_is_overtaken_by_no_more_than_the_head_start(
            first in 0u32..1000, behind in 1u32..1000, s in 1.0..1e4f64,
            run in 0.1..1e3f64, longer in 0.1..1e3f64,
        ) {
            let turn = |ahead, run| Admission::HeadStart.turn_s(ahead, 2000, s, run);
            if turn(first + behind, longer) < turn(first, run) {
                prop_assert!(f64::from(behind) * s / 2000.0 < HEAD_START * longer);
            }
        }
    }
}
