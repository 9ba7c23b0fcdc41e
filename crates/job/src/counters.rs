//! What the runtime counts, each name written once.
//!
//! One list gives the atomics in shared memory ([`Counters`]), their values at a moment
//! ([`Snapshot`], as written by `--json`) and the way from one to the other. Each counter is of one
//! [`Kind`], which says what becomes of it when processes are added up, or when one ends.
//!
//! Known limit: a snapshot is not one instant; counters that belong together may differ by what
//! happened between two loads.

use muninn_policy::kinds::Kinds;
use muninn_types::{Nanos, Spread};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a counter means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As it is now; a process that has ended has none of it.
    Now,
    /// How often or how much, ever.
    Total,
    /// The most there ever was, in one process.
    Peak,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $kind:ident),+ $(,)?) => {
        /// The counters of one process, changed by it and read by everybody.
        #[repr(C)]
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)+
            /// How long faults took, by what was answered: see [`Counters::answered`].
            times: [Times; 3],
        }

        /// The values of [`Counters`] at a moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];
            pub const KINDS: &'static [Kind] = &[$(Kind::$kind),+];

            /// All counters, in the order of [`Counters::NAMES`].
            pub fn all(&self) -> [&AtomicU64; Counters::NAMES.len()] {
                [$(&self.$name),+]
            }

            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }

        impl Snapshot {
            fn values(&self) -> [u64; Counters::NAMES.len()] {
                [$(self.$name),+]
            }
            fn values_mut(&mut self) -> [&mut u64; Counters::NAMES.len()] {
                [$(&mut self.$name),+]
            }
        }
    };
}

counters! {
    /// Private memory of the process that is in its machine's memory, but for what others count.
    resident_bytes: Now,
    /// Private memory that it has together with processes it was forked from or has forked, as far as
    /// they count it.
    shared_bytes: Now,
    /// Memory that was taken over, wherever its pages are.
    managed_bytes: Now,
    /// Pages whose only copy is far.
    far_bytes: Now,
    far_pages_peak: Peak,
    resident_peak_bytes: Peak,
    /// Memory of the runtime itself, a part of the resident memory.
    runtime_bytes: Now,
    /// Pages on their way out.
    staged_pages: Now,
    faults: Total,
    /// First touches, answered with zeros.
    faults_zero: Total,
    /// Pages that were on their way out.
    faults_staged: Total,
    /// Pages that were fetched while the program waited.
    faults_remote: Total,
    /// Pages that a prefetch had fetched already.
    faults_buffered: Total,
    /// Pages that were there when the fault was looked at.
    faults_woken: Total,
    prefetched: Total,
    prefetch_wasted: Total,
    /// Pages that left, of whatever kind.
    evicted: Total,
    /// Left without being sent: all zeros.
    evicted_zero: Total,
    /// Left without being sent: equal to their far copy.
    evicted_clean: Total,
    evicted_written: Total,
    bytes_in: Total,
    bytes_out: Total,
    /// Evictions that somebody had to wait for, at the limit.
    direct_reclaims: Total,
    /// Time spent on answering faults, all of it, and that of first touches, of pages that were on their
    /// way out (or fetched ahead), and of pages that were far.
    fault_ns: Total,
    fault_zero_ns: Total,
    fault_staged_ns: Total,
    fault_far_ns: Total,
    adopted_bytes: Total,
    adoptions: Total,
    unmaps: Total,
    removes: Total,
    remaps: Total,
    forks: Total,
    /// Pages that could not be moved, pinned ones for example.
    busy_pages: Total,
    /// Pages that came back and were compared with their hash.
    hash_checks: Total,
    /// What this process may hold of the job's limit.
    limit_share_bytes: Now,
    /// Above this, pages are evicted.
    threshold_bytes: Now,
    /// Down to this.
    target_bytes: Now,
    slots_used: Now,
    grants: Now,
    /// Extents that have fewer copies than they should.
    extents_degraded: Now,
    /// Extents with a copy that goes elsewhere.
    extents_leaving: Now,
    /// Of both, those for which there was no room elsewhere, or nobody who answers.
    extents_waiting: Now,
    /// Copies that were made anew.
    extents_repaired: Total,
    session_resumes: Total,
    /// Resident memory of each kind (`policy::kinds`), now and at most.
    kind_anonymous_bytes: Now,
    kind_heap_bytes: Now,
    kind_bss_bytes: Now,
    kind_library_bytes: Now,
    kind_stack_bytes: Now,
    kind_read_only_bytes: Now,
    kind_executable_bytes: Now,
    kind_locked_bytes: Now,
    kind_huge_bytes: Now,
    kind_file_bytes: Now,
    kind_shared_bytes: Now,
    kind_runtime_bytes: Now,
    kind_special_bytes: Now,
    kind_anonymous_peak_bytes: Peak,
    kind_heap_peak_bytes: Peak,
    kind_bss_peak_bytes: Peak,
    kind_library_peak_bytes: Peak,
    kind_stack_peak_bytes: Peak,
    kind_read_only_peak_bytes: Peak,
    kind_executable_peak_bytes: Peak,
    kind_locked_peak_bytes: Peak,
    kind_huge_peak_bytes: Peak,
    kind_file_peak_bytes: Peak,
    kind_shared_peak_bytes: Peak,
    kind_runtime_peak_bytes: Peak,
    kind_special_peak_bytes: Peak,
}

impl Counters {
    /// Writes down what is resident of each kind.
    pub(crate) fn note_kinds(&self, kinds: &Kinds) {
        let now = [
            &self.kind_anonymous_bytes,
            &self.kind_heap_bytes,
            &self.kind_bss_bytes,
            &self.kind_library_bytes,
            &self.kind_stack_bytes,
            &self.kind_read_only_bytes,
            &self.kind_executable_bytes,
            &self.kind_locked_bytes,
            &self.kind_huge_bytes,
            &self.kind_file_bytes,
            &self.kind_shared_bytes,
            &self.kind_runtime_bytes,
            &self.kind_special_bytes,
        ];
        let peaks = [
            &self.kind_anonymous_peak_bytes,
            &self.kind_heap_peak_bytes,
            &self.kind_bss_peak_bytes,
            &self.kind_library_peak_bytes,
            &self.kind_stack_peak_bytes,
            &self.kind_read_only_peak_bytes,
            &self.kind_executable_peak_bytes,
            &self.kind_locked_peak_bytes,
            &self.kind_huge_peak_bytes,
            &self.kind_file_peak_bytes,
            &self.kind_shared_peak_bytes,
            &self.kind_runtime_peak_bytes,
            &self.kind_special_peak_bytes,
        ];
        for ((now, peak), bytes) in now.into_iter().zip(peaks).zip(kinds.0) {
            now.store(bytes, Ordering::Relaxed);
            peak.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// How many faults of each kind were answered: first touches, on their way out, far.
    pub fn answered(&self) -> [u64; 3] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            of(&self.faults_zero),
            of(&self.faults_staged) + of(&self.faults_buffered),
            of(&self.faults_remote),
        ]
    }

    /// Adds the time that a fault took to those of its kind: the kind that was counted since `before`.
    pub fn note_time(&self, before: [u64; 3], took_ns: u64) {
        let times = [
            &self.fault_zero_ns,
            &self.fault_staged_ns,
            &self.fault_far_ns,
        ];
        let now = self.answered();
        for (kind, ((before, now), time)) in before.into_iter().zip(now).zip(times).enumerate() {
            if now != before {
                time.fetch_add(took_ns, Ordering::Relaxed);
                self.times[kind].note(Nanos(took_ns));
                return;
            }
        }
    }

    /// How long faults took, by kind, ever.
    pub fn times(&self) -> [Spread; 3] {
        self.times.each_ref().map(Times::load)
    }

    /// What is resident of each kind now.
    pub fn kinds(&self) -> Kinds {
        let now = [
            &self.kind_anonymous_bytes,
            &self.kind_heap_bytes,
            &self.kind_bss_bytes,
            &self.kind_library_bytes,
            &self.kind_stack_bytes,
            &self.kind_read_only_bytes,
            &self.kind_executable_bytes,
            &self.kind_locked_bytes,
            &self.kind_huge_bytes,
            &self.kind_file_bytes,
            &self.kind_shared_bytes,
            &self.kind_runtime_bytes,
            &self.kind_special_bytes,
        ];
        Kinds(now.map(|counter| counter.load(Ordering::Relaxed)))
    }

    /// Each name with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let values = self.all().map(|counter| counter.load(Ordering::Relaxed));
        Counters::NAMES.iter().copied().zip(values)
    }

    /// Sets those counters to 0 that say how things are now.
    pub(crate) fn forget_now(&self) {
        for (counter, kind) in self.all().into_iter().zip(Counters::KINDS) {
            if *kind == Kind::Now {
                counter.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Hands everything that outlives a process to `sum` and is empty afterwards. What is handed
    /// over is taken in one step, so nothing counts twice even if this is interrupted for ever.
    pub fn hand_over(&self, sum: &Counters) {
        for ((own, sum), kind) in self.all().into_iter().zip(sum.all()).zip(Counters::KINDS) {
            let value = own.swap(0, Ordering::Relaxed);
            match kind {
                Kind::Now => {}
                Kind::Total => _ = sum.fetch_add(value, Ordering::Relaxed),
                Kind::Peak => _ = sum.fetch_max(value, Ordering::Relaxed),
            }
        }
        for (own, sum) in self.times.iter().zip(&sum.times) {
            own.hand_over(sum);
        }
    }
}

/// A [`Spread`] in shared memory.
#[repr(C)]
#[derive(Debug, Default)]
struct Times {
    counts: [AtomicU64; Spread::BUCKETS],
}

impl Times {
    fn note(&self, took: Nanos) {
        self.counts[Spread::bucket(took)].fetch_add(1, Ordering::Relaxed);
    }

    /// Without the sum, which is a counter by itself.
    fn load(&self) -> Spread {
        Spread {
            counts: (self.counts.each_ref()).map(|count| count.load(Ordering::Relaxed)),
            sum_ns: 0,
        }
    }

    fn hand_over(&self, sum: &Times) {
        for (own, sum) in self.counts.iter().zip(&sum.counts) {
            sum.fetch_add(own.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Snapshot {
    /// The most that was resident of each kind in one process.
    pub fn kinds_peak(&self) -> Kinds {
        Kinds([
            self.kind_anonymous_peak_bytes,
            self.kind_heap_peak_bytes,
            self.kind_bss_peak_bytes,
            self.kind_library_peak_bytes,
            self.kind_stack_peak_bytes,
            self.kind_read_only_peak_bytes,
            self.kind_executable_peak_bytes,
            self.kind_locked_peak_bytes,
            self.kind_huge_peak_bytes,
            self.kind_file_peak_bytes,
            self.kind_shared_peak_bytes,
            self.kind_runtime_peak_bytes,
            self.kind_special_peak_bytes,
        ])
    }

    /// Each name with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counters::NAMES.iter().copied().zip(self.values())
    }

    /// What remains of these when the process has ended.
    pub(crate) fn of_the_dead(mut self) -> Snapshot {
        for (value, kind) in self.values_mut().into_iter().zip(Counters::KINDS) {
            if *kind == Kind::Now {
                *value = 0;
            }
        }
        self
    }

    /// Adds another process.
    pub fn add(&mut self, other: &Snapshot) {
        let pairs = self.values_mut().into_iter().zip(other.values());
        for ((own, other), kind) in pairs.zip(Counters::KINDS) {
            *own = match kind {
                Kind::Now | Kind::Total => own.saturating_add(other),
                Kind::Peak => other.max(*own),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(from: u64) -> Counters {
        let counters = Counters::default();
        for (counter, value) in counters.all().into_iter().zip(from..) {
            counter.store(value, Ordering::Relaxed);
        }
        counters
    }

    #[test]
    fn names_and_values_belong_together() {
        let snapshot = numbered(1).snapshot();
        assert_eq!(snapshot.iter().next(), Some(("resident_bytes", 1)));
        let json = serde_json::to_value(snapshot).unwrap();
        for (name, value) in snapshot.iter() {
            assert_eq!(json[name], value, "{name}");
        }
        assert_eq!(json.as_object().unwrap().len(), Counters::NAMES.len());
        assert!(numbered(1).iter().eq(snapshot.iter()));
        assert_eq!(
            serde_json::from_value::<Snapshot>(json).unwrap(),
            snapshot,
            "read back"
        );
    }

    #[test]
    fn time_goes_to_the_kind_that_was_answered() {
        let counters = Counters::default();
        let kinds = [
            &counters.faults_zero,
            &counters.faults_buffered,
            &counters.faults_remote,
        ];
        for (kind, took) in kinds.into_iter().zip([5, 70, 900]) {
            let before = counters.answered();
            kind.fetch_add(1, Ordering::Relaxed);
            counters.note_time(before, took);
            // One that found its page there is of no kind.
            counters.note_time(counters.answered(), 1);
        }
        let seen = counters.snapshot();
        let times = [seen.fault_zero_ns, seen.fault_staged_ns, seen.fault_far_ns];
        assert_eq!(times, [5, 70, 900]);
        counters.faults_remote.fetch_add(1, Ordering::Relaxed);
        let before = counters.answered();
        counters.faults_remote.fetch_add(1, Ordering::Relaxed);
        counters.note_time(before, 5_000);
        let counts = counters.times().map(|spread| spread.count());
        assert_eq!((counts, counters.times()[2].counts[3]), ([1, 1, 2], 1));
        // One that ends leaves them to the job.
        let sum = Counters::default();
        counters.hand_over(&sum);
        assert_eq!(sum.times().map(|spread| spread.count()), [1, 1, 2]);
        assert_eq!(counters.times(), <[Spread; 3]>::default());
    }

    #[test]
    fn what_a_process_leaves_behind_depends_on_the_kind() {
        let (ended, sum) = (numbered(1), numbered(100));
        ended.hand_over(&sum);
        assert_eq!(ended.snapshot(), Snapshot::default());
        let (before, after) = (numbered(100).snapshot(), sum.snapshot());
        assert_eq!(after.resident_bytes, before.resident_bytes);
        assert_eq!(after.faults, before.faults + numbered(1).snapshot().faults);
        assert_eq!(after.far_pages_peak, before.far_pages_peak);
        let mut added = numbered(1).snapshot();
        added.add(&numbered(1).snapshot());
        let peak = numbered(1).snapshot().far_pages_peak;
        assert_eq!((added.resident_bytes, added.far_pages_peak), (2, peak));
    }
}
