//! One job: the program, its local memory and the two ways in which pages leave it.
//!
//! The program computes along its trace. Each time it has needed another [`BATCH`] of local memory
//! it is charged; a charge that would pass the limit *blocks* it, and its own core then evicts one
//! batch (an urgent eviction flow), page by page, each acknowledged before the next is prepared:
//! that is Fastswap's write, which drains its queue after every page. Beside it an eviction core of
//! the server prepares a batch, sends it at once (a regular eviction flow) and waits until all of it
//! is acknowledged, while the usage is above the threshold. Memory is free when the acknowledgement
//! is there, not before. So what a server may have in the network is bounded by its cores.
//!
//! Invariant: charged = local + evicted bytes, and local ≤ limit, checked in release builds too.

use super::trace::Trace;
use muninn_policy::threshold::Threshold;
use muninn_policy::urgency::Pressure;
use muninn_types::{Bytes, Class, Nanos, PAGE_SIZE, SplitMix64};
use std::sync::Arc;

/// Pages that are reclaimed, charged and read at a time: Linux's SWAP_CLUSTER_MAX.
pub const BATCH: Bytes = Bytes::pages(32);
/// A scaled job keeps at least this distance of its threshold from its limit, so that what is under
/// way, which is not scaled, finds room.
pub const HEADROOM_MIN: Bytes = Bytes(4 * BATCH.0);
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
    /// Since when it waits for an eviction core, or has one.
    pub asked_at: Option<Nanos>,
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
            asked_at: None,
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
            let rate = grown_need + touched * self.trace.miss_share(remote);
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

    pub fn wants_eviction(&self) -> bool {
        self.usage > self.threshold.get()
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

    /// How long the memory above the threshold lasts at the trace's mean rate: the job's entry in
    /// the history from which urgencies are made. (The paper takes completion times. With a fixed
    /// threshold 8 MB below the limit every time to exhaustion is far below all of those, and every
    /// regular eviction would be of one class.)
    pub fn exhaustion_mean(&self) -> Nanos {
        let headroom = self.limit.saturating_sub(self.threshold.get());
        let ratio = (self.limit.0 as f64 / self.trace.working_set.0 as f64).min(1.0);
        Nanos((headroom.0 as f64 / self.trace.need_rate(1.0 - ratio)) as u64)
    }

    pub fn jct(&self) -> Option<Nanos> {
        self.finished.map(|at| at - self.started)
    }
}
