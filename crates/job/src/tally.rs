//! What a process publishes about its memory, by its own measurements.
//!
//! The steward of each runtime looks every few milliseconds; what it finds goes through here into the
//! process's place. Invariant: cheap things are done at every look (two system calls), dear ones rarely
//! and within a budget (`policy::once`). Known limit: made for the process it runs in; a child begins
//! with one of its own.

use crate::Place;
use crate::kinds::Measure;
use muninn_policy::once::{Budget, Once, Sample};
use muninn_sys::clock;
use muninn_sys::proc::{self, RealProc, Statm};
use muninn_types::{Bytes, Nanos};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Kinds of memory are first measured this long after the start: most processes have ended by then.
const KINDS_AFTER: Nanos = Nanos::millis(20);
/// They are measured again when memory has changed by this part, and by this much.
const KINDS_CHANGE_PART: u64 = 16;
const KINDS_CHANGE_MIN: Bytes = Bytes::kib(256);

/// Publishes the memory of this process.
#[derive(Debug)]
pub struct Tally {
    place: Place,
    once: Once,
    /// Made by fork just now, with all of its parent's pages.
    forked: bool,
    shared: Bytes,
    kinds: Measure,
    /// When kinds may be measured again, and what was resident the last time: private, and not.
    kinds_allowed: Nanos,
    kinds_at: Option<(u64, u64)>,
    /// When they are measured although nothing seems to have changed: memory that was there may be locked since.
    kinds_old: Nanos,
    /// Much has changed since they were measured, and it was too early to do so again.
    kinds_owed: bool,
}

/// The process that last made one. A child of fork finds its parent here; a program that was executed
/// finds nobody.
static MAKER: AtomicU32 = AtomicU32::new(0);

impl Tally {
    pub fn new(place: &Place) -> Tally {
        let maker = MAKER.swap(place.pid(), Relaxed);
        Tally {
            place: place.clone(),
            once: Once::default(),
            forked: maker != 0 && maker != place.pid(),
            shared: Bytes::ZERO,
            kinds: Measure::default(),
            kinds_allowed: clock::now().saturating_add(KINDS_AFTER),
            kinds_at: None,
            kinds_old: Nanos::ZERO,
            kinds_owed: true,
        }
    }

    /// In how long there is something to measure, even if nothing happens.
    pub fn owes_in(&self, now: Nanos) -> Option<Nanos> {
        self.kinds_owed
            .then(|| self.kinds_allowed.saturating_sub(now))
    }

    /// Pages of this process that others count: resident here, and no part of what it holds.
    pub fn shared(&self) -> Bytes {
        self.shared
    }

    /// Publishes what this process holds, each page once in the job.
    pub fn note(&mut self, statm: &Statm, now: Nanos) {
        let sample = Sample {
            resident: statm.private_resident().0,
            faults: proc::minor_faults(),
            processes: self.place.attached(),
            living: self.place.living(),
        };
        if std::mem::take(&mut self.forked) {
            self.once = Once::forked(sample, now);
        }
        if sample.processes > 1 && self.once.is_due(&sample, now) {
            // Without an answer nothing is shared, as far as is known.
            let (rollup, cost) = timed(|| proc::smaps_rollup(&RealProc, 0).unwrap_or_default());
            let shared = rollup.anonymous.0.saturating_sub(rollup.pss_anonymous.0);
            self.once.handle_measured(sample, shared, now, cost);
        }
        let (counted, shared) = self.once.counted(&sample);
        self.shared = Bytes(shared);
        let counters = self.place.counters();
        counters.resident_bytes.store(counted, Relaxed);
        counters.resident_peak_bytes.fetch_max(counted, Relaxed);
        counters.shared_bytes.store(shared, Relaxed);
        self.place.note_footprint();
        self.note_kinds(statm, now);
    }

    /// Publishes the kinds of memory, when much has changed and it may cost something again.
    fn note_kinds(&mut self, statm: &Statm, now: Nanos) {
        let held = (
            statm.private_resident().0,
            Bytes::pages(statm.shared_pages).0,
        );
        let much = |before: u64, now: u64| {
            before.abs_diff(now) > (before / KINDS_CHANGE_PART).max(KINDS_CHANGE_MIN.0)
        };
        let changed = self
            .kinds_at
            .is_none_or(|at| much(at.0, held.0) || much(at.1, held.1))
            || now >= self.kinds_old;
        self.kinds_owed = changed && now < self.kinds_allowed;
        if !changed || self.kinds_owed {
            return;
        }
        self.kinds_at = Some(held);
        let (measured, cost) = timed(|| self.kinds.measure());
        if let Ok(kinds) = measured {
            self.place.counters().note_kinds(&kinds);
        }
        let living = self.place.living();
        self.kinds_allowed = Budget::KINDS.next(now, cost, living);
        self.kinds_old = Budget::KINDS_UNCHANGED.next(now, cost, living);
    }
}

/// Does it; how long it took on a CPU.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Nanos) {
    let begun = clock::thread_cpu();
    let done = work();
    (done, clock::thread_cpu().saturating_sub(begun))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Job};
    use muninn_sys::memory::Mapping;
    use muninn_sys::proc::StatmReader;

    #[test]
    fn what_a_process_holds_is_published() {
        let job = Job::create(&Config::default(), Bytes::gib(1)).unwrap();
        let place = job.take_place(std::process::id()).unwrap();
        let memory = Mapping::options()
            .populate()
            .anonymous(Bytes::mib(32))
            .unwrap();
        let statm = StatmReader::open().unwrap().read().unwrap();
        let mut tally = Tally::new(&place);
        tally.note(&statm, clock::now());
        let seen = place.counters().snapshot();
        assert_eq!(seen.resident_bytes, statm.private_resident().0);
        assert_eq!(seen.shared_bytes, 0);
        assert!(job.peaks().local >= Bytes::mib(32));
        // As a child would: all of it is the parent's, but for what it has written to since.
        MAKER.store(1, Relaxed);
        let mut tally = Tally::new(&place);
        tally.note(&statm, clock::now());
        let seen = place.counters().snapshot();
        assert_eq!(seen.shared_bytes, tally.shared().0);
        assert_eq!(
            seen.resident_bytes + seen.shared_bytes,
            statm.private_resident().0
        );
        assert!(seen.resident_bytes < Bytes::mib(32).0, "{seen:?}");
        drop(memory);
        place.release();
        job.remove();
    }
}
