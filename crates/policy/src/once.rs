//! What a process holds, each page counted once in its job.
//!
//! A child of fork has all of its parent's pages, which both count as resident although they are there
//! once. The kernel can say how many users a page has, in equal parts for each (`Pss_Anon`), but has to
//! look at every page for it. So it is asked rarely ([`Budget`]), and in between what was measured is
//! carried on: a page becomes a process's own only by a fault of it, so what it holds has grown by no
//! more than its faults or its resident memory since, and is never more than all that is resident.
//!
//! Right after a fork the parent still counts everything, so the child counts nothing of what it got,
//! only its faults, until it asks for the first time ([`FIRST_AFTER`]); the parent asks before that
//! ([`PARENT_AFTER`]), but not at once, since most children execute another program right away.
//!
//! Invariant: what is counted is at most what is resident, and exactly that where nothing is shared.
//! Known limit: when the last other user of pages ends, they become this process's own without a fault,
//! and are counted from the next measurement on. They do not become more by that.

use muninn_types::{Nanos, PAGE_SIZE};

/// When a child of fork asks for the first time: later than its parent.
const FIRST_AFTER: Nanos = Nanos::millis(40);
/// When a process asks after others have come to its job.
const PARENT_AFTER: Nanos = Nanos::millis(10);

/// How often something may be done that costs time. What counts is the time on a CPU: on a busy machine one who
/// waits for a turn has used nothing, and would else be late by a hundred times that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Between two times at least.
    pub apart_min: Nanos,
    /// The time it takes is at most one part of so many.
    pub parts: u64,
}

impl Budget {
    /// At most every 50 ms, and at most 1 % of a CPU for all processes of a job together.
    pub const SHARED_PAGES: Budget = Budget {
        apart_min: Nanos::millis(50),
        parts: 100,
    };
    /// At most every 100 ms, and at most 1 % of a CPU for all processes of a job together.
    pub const KINDS: Budget = Budget {
        apart_min: Nanos::millis(100),
        parts: 100,
    };

    /// At most every second, and at most 0.1 % of a CPU: for what may have changed without a sign.
    pub const KINDS_UNCHANGED: Budget = Budget {
        apart_min: Nanos::millis(1000),
        parts: 1000,
    };

    /// When it may be done again that was begun then and cost this much, by one of so many processes.
    pub fn next(&self, begun: Nanos, cost: Nanos, processes: u64) -> Nanos {
        let parts = self.parts.saturating_mul(processes.max(1));
        let apart = Nanos(cost.0.saturating_mul(parts)).max(self.apart_min);
        begun.saturating_add(apart)
    }
}

/// What is cheap to know of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Private memory that is resident, in bytes.
    pub resident: u64,
    /// Minor faults ever.
    pub faults: u64,
    /// Processes that ever came to the job, and those that are there now.
    pub processes: u64,
    pub living: u64,
}

/// What is carried from one measurement to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Once {
    measured: Option<Measured>,
    /// When to ask, if at all.
    due: Option<Nanos>,
    /// Not before this.
    allowed: Nanos,
    /// Processes that had come when it was last decided to ask.
    processes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    sample: Sample,
    /// What others counted of it.
    shared: u64,
}

impl Once {
    /// A process that has just been made by fork.
    pub fn forked(sample: Sample, now: Nanos) -> Once {
        Once {
            measured: Some(Measured {
                sample,
                shared: sample.resident,
            }),
            due: Some(now.saturating_add(FIRST_AFTER)),
            allowed: Nanos::ZERO,
            processes: sample.processes,
        }
    }

    /// Whether to measure now.
    pub fn is_due(&mut self, sample: &Sample, now: Nanos) -> bool {
        if sample.processes != self.processes {
            self.processes = sample.processes;
            let soon = now.saturating_add(PARENT_AFTER);
            self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
        }
        self.due.is_some_and(|due| due.max(self.allowed) <= now)
    }

    /// `shared` bytes of what is resident are counted by others. It was begun then and cost this much.
    pub fn handle_measured(&mut self, sample: Sample, shared: u64, begun: Nanos, cost: Nanos) {
        self.allowed = Budget::SHARED_PAGES.next(begun, cost, sample.living);
        // Who shares nothing begins to only by forking, and then somebody comes.
        self.due = (shared > 0).then_some(self.allowed);
        self.measured = (shared > 0).then_some(Measured { sample, shared });
    }

    /// What the process holds, and how much of what is resident is counted by others.
    pub fn counted(&self, now: &Sample) -> (u64, u64) {
        let Some(Measured { sample, shared }) = self.measured else {
            return (now.resident, 0);
        };
        let own = sample.resident.saturating_sub(shared);
        let faults = now.faults.saturating_sub(sample.faults);
        let grown = now.resident.saturating_sub(sample.resident);
        let grown = grown.max(faults.saturating_mul(PAGE_SIZE as u64));
        let counted = own.saturating_add(grown).min(now.resident);
        (counted, now.resident - counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn sample(resident: u64, faults: u64, processes: u64) -> Sample {
        Sample {
            resident,
            faults,
            processes,
            living: 1,
        }
    }

    #[test]
    fn parent_and_child_count_a_page_once() {
        let ms = Nanos::millis;
        let mut parent = Once::default();
        assert_eq!(parent.counted(&sample(100 * MIB, 7, 1)), (100 * MIB, 0));
        assert!(!parent.is_due(&sample(100 * MIB, 7, 0), ms(0)), "alone");
        let mut child = Once::forked(sample(100 * MIB, 0, 2), ms(0));
        assert_eq!(child.counted(&sample(100 * MIB, 0, 2)), (0, 100 * MIB));
        // It writes to 256 pages, and takes 2 MiB of new ones.
        assert_eq!(child.counted(&sample(100 * MIB, 256, 2)).0, MIB);
        assert_eq!(child.counted(&sample(102 * MIB, 512, 2)).0, 2 * MIB);
        let now = sample(100 * MIB, 7, 2);
        assert!(!parent.is_due(&now, ms(0)) && parent.is_due(&now, ms(10)));
        parent.handle_measured(now, 50 * MIB, ms(10), ms(1));
        assert!(!child.is_due(&sample(100 * MIB, 0, 2), ms(39)));
        assert!(child.is_due(&sample(100 * MIB, 0, 2), ms(40)));
        child.handle_measured(sample(100 * MIB, 0, 2), 50 * MIB, ms(40), ms(1));
        let both = parent.counted(&now).0 + child.counted(&sample(100 * MIB, 0, 2)).0;
        assert_eq!(both, 100 * MIB);
        // The child ends: its parent asks again, and what it shares is nobody else's any more.
        let later = sample(100 * MIB, 7, 2);
        assert!(
            !parent.is_due(&later, ms(109)),
            "it took a hundredth of that"
        );
        assert!(parent.is_due(&later, ms(110)));
        parent.handle_measured(later, 0, ms(110), ms(1));
        assert_eq!(parent.counted(&later), (100 * MIB, 0));
        assert!(!parent.is_due(&later, ms(10_000)), "nobody came since");
    }

    proptest! {
        #[test]
        fn never_more_than_is_resident_and_never_less_than_what_was_its_own(
            resident in 0u64..1 << 40,
            part in 0.0f64..=1.0,
            now in 0u64..1 << 40,
            faults in 0u64..1 << 30,
        ) {
            let shared = (resident as f64 * part) as u64;
            let mut once = Once::default();
            once.handle_measured(sample(resident, 0, 1), shared, Nanos(1), Nanos(1));
            let (counted, others) = once.counted(&sample(now, faults, 1));
            prop_assert_eq!(counted + others, now);
            prop_assert!(counted >= (resident - shared).min(now));
            if now >= resident {
                prop_assert!(counted >= now - resident);
            }
        }

        #[test]
        fn a_budget_is_kept(begun in 0u64..1 << 40, cost in 0u64..1 << 30) {
            let next = Budget::SHARED_PAGES.next(Nanos(begun), Nanos(cost), 1);
            prop_assert!(next.0 - begun >= cost * 100 && next.0 - begun >= 50_000_000);
        }
    }
}
