//! One job: the program, its local memory and the two ways in which pages leave it.
//!
//! The program computes along its trace. Each time it has needed another [`BATCH`] of local memory
//! it is charged; a charge that would pass the limit *blocks* it, and its own core then evicts one
//! batch (an urgent eviction flow), packet by packet, each acknowledged before the next is prepared:
//! that is Fastswap's write, which drains its queue after every page. Beside it an eviction core of
//! the server sends batches (regular eviction flows) while the usage is above the threshold; it need
//! not wait for the acknowledgement of one before it sends the next, up to [`REGULAR_WINDOW`].
//! Memory is free when the acknowledgement is there, not before.
//!
//! Invariant: charged = local + evicted bytes, and local ≤ limit, checked in release builds too.

use super::trace::Trace;
use muninn_policy::threshold::Threshold;
use muninn_policy::urgency::Pressure;
use muninn_types::{Bytes, Class, Nanos, PAGE_SIZE, SplitMix64};
use std::sync::Arc;

/// Pages that are reclaimed, charged and read at a time: Linux's SWAP_CLUSTER_MAX.
pub const BATCH: Bytes = Bytes::pages(32);
/// Of one job's regular evictions, what may be unacknowledged.
pub const REGULAR_WINDOW: Bytes = Bytes::kib(512);
/// The growth rate is a mean over about so many charges.
const GROWTH_CHARGES: f64 = 16.0;

/// An eviction flow: where to, how urgent, and what is left of it.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    pub class: Class,
    pub to: u16,
    pub spine: u16,
    pub began: Nanos,
    pub unsent: Bytes,
}

/// What the program is due for after it has computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Charge,
    End,
}

#[derive(Debug)]
pub struct Job {
    pub server: u16,
    pub intensive: bool,
    pub rng: SplitMix64,
    pub threshold: Threshold,
    limit: Bytes,
    usage: Bytes,
    charged: Bytes,
    evicted: Bytes,
    /// The program's own eviction, when it is blocked.
    pub urgent: Option<Flow>,
    /// The one that an eviction core is sending.
    pub regular: Option<Flow>,
    pub regular_unacknowledged: Bytes,
    /// Waits for an eviction core, or has one.
    pub asked: bool,
    /// Since when the eviction's rate has not been told to the threshold.
    pub evicting_since: Nanos,
    /// The charge that is due is for memory that has to be read.
    pub due_is_miss: bool,
    pub wait_began: Nanos,
    trace: Arc<Trace>,
    segment: usize,
    /// Computing time already spent in the segment.
    spent: Nanos,
    footprint: f64,
    growth_rate: f64,
    charged_at: Nanos,
    pub started: Nanos,
    pub finished: Option<Nanos>,
    /// Waiting for free memory and for pages, until the job was finished.
    pub blocked: Nanos,
    pub reading: Nanos,
}

impl Job {
    pub fn new(
        server: u16,
        intensive: bool,
        limit: Bytes,
        threshold: Threshold,
        trace: Arc<Trace>,
        started: Nanos,
        rng: SplitMix64,
    ) -> Job {
        let (usage, footprint) = if trace.warm {
            let batches = threshold.get().0 / BATCH.0;
            (Bytes(batches * BATCH.0), trace.working_set.0 as f64)
        } else {
            (Bytes::ZERO, 0.0)
        };
        Job {
            server,
            intensive,
            rng,
            threshold,
            limit,
            usage,
            charged: usage,
            evicted: Bytes::ZERO,
            urgent: None,
            regular: None,
            regular_unacknowledged: Bytes::ZERO,
            asked: false,
            evicting_since: Nanos::ZERO,
            due_is_miss: false,
            wait_began: Nanos::ZERO,
            trace,
            segment: 0,
            spent: Nanos::ZERO,
            footprint,
            growth_rate: 0.0,
            charged_at: started,
            started,
            finished: None,
            blocked: Nanos::ZERO,
            reading: Nanos::ZERO,
        }
    }

    /// Computes until something is due, and says how long that takes.
    pub fn compute(&mut self) -> (Nanos, Due) {
        let mut need = self.rng.exponential(BATCH.0 as f64);
        let mut elapsed_ns = 0.0;
        let mut touched_bytes = 0.0;
        let complete = self.trace.working_set.0 as f64;
        while let Some(segment) = self.trace.segments.get(self.segment) {
            let length_ns = segment.compute.0 as f64;
            let left_ns = length_ns - self.spent.0 as f64;
            let remote = self.remote_share();
            let grown = segment.grown.0 as f64 / length_ns;
            let touched = segment.touched.0 as f64 / length_ns;
            let grown_need = if self.footprint < complete {
                grown
            } else {
                grown * remote
            };
            let rate = grown_need + touched * remote.powf(self.trace.locality);
            let step_ns = if rate > 0.0 {
                (need / rate).min(left_ns)
            } else {
                left_ns
            };
            self.footprint = (self.footprint + grown * step_ns).min(complete);
            touched_bytes += touched * step_ns;
            elapsed_ns += step_ns;
            if step_ns < left_ns {
                self.spent += Nanos(step_ns as u64);
                self.due_is_miss = self.rng.unit() * rate >= grown_need;
                self.count_accesses(touched_bytes);
                return (Nanos(elapsed_ns as u64), Due::Charge);
            }
            need -= rate * step_ns;
            self.segment += 1;
            self.spent = Nanos::ZERO;
        }
        (Nanos(elapsed_ns as u64), Due::End)
    }

    fn remote_share(&self) -> f64 {
        if self.footprint > 0.0 {
            1.0 - (self.usage.0 as f64).min(self.footprint) / self.footprint
        } else {
            0.0
        }
    }

    fn count_accesses(&mut self, touched_bytes: f64) {
        let misses = if self.due_is_miss {
            BATCH.whole_pages()
        } else {
            0
        };
        let accesses = (touched_bytes / PAGE_SIZE as f64) as u64;
        self.threshold.handle_accesses(accesses.max(misses), misses);
    }

    /// The job is done, and begins again (without its load phase) as a load for the rest.
    pub fn restart(&mut self) {
        let first = usize::from(!self.trace.warm);
        self.segment = first.min(self.trace.segments.len() - 1);
        self.spent = Nanos::ZERO;
    }

    pub fn has_room(&self) -> bool {
        self.usage + BATCH <= self.limit
    }

    pub fn charge(&mut self, now: Nanos) {
        self.usage += BATCH;
        self.charged += BATCH;
        assert!(self.usage <= self.limit, "more is local than may be");
        let gap_s = (now.saturating_sub(self.charged_at).0.max(1)) as f64 / 1e9;
        self.charged_at = now;
        let window_bytes = GROWTH_CHARGES * BATCH.0 as f64;
        let window_s = if self.growth_rate > 0.0 {
            window_bytes / self.growth_rate
        } else {
            GROWTH_CHARGES * gap_s
        };
        self.growth_rate = window_bytes / (window_s * (1.0 - 1.0 / GROWTH_CHARGES) + gap_s);
        self.threshold.handle_charge(BATCH, now);
    }

    /// Above the threshold even when all that is under way has arrived.
    pub fn wants_eviction(&self) -> bool {
        self.usage.saturating_sub(self.regular_unacknowledged) > self.threshold.get()
            && self.regular_unacknowledged + BATCH <= REGULAR_WINDOW
    }

    pub fn pressure(&self, blocked: bool) -> Pressure {
        Pressure {
            blocked,
            remaining: self.limit.saturating_sub(self.usage),
            total: self.limit,
            growth_rate: self.growth_rate,
        }
    }

    pub fn acknowledged(&mut self, bytes: Bytes) {
        assert!(self.usage >= bytes, "more was evicted than was local");
        self.usage -= bytes;
        self.evicted += bytes;
        assert_eq!(
            self.charged,
            self.usage + self.evicted,
            "a job's bytes do not add up"
        );
    }

    /// What the job would take with all its memory local.
    pub fn compute_total(&self) -> Nanos {
        self.trace.compute()
    }

    pub fn jct(&self) -> Option<Nanos> {
        self.finished.map(|at| at - self.started)
    }
}
