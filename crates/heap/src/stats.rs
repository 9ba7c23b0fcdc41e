//! What a heap has done: counters, pauses, footprint.

use muninn_sys::clock;
use muninn_types::{Bytes, Nanos};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The most pauses and samples that are kept; later ones only count.
const LOG_MAX: usize = 1 << 18;

/// Why mutators did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PauseKind {
    /// A stop-the-world collection of plan `local`.
    Collection,
    /// Semeru's CSSC.
    Cssc,
    /// A full collection.
    Full,
    /// Mako's pre-tracing pause.
    PreTracing,
    /// Mako's pre-evacuation pause.
    PreEvacuation,
    /// A mutator waited for the region that is being evacuated.
    RegionWait,
    /// A mutator waited for memory.
    Stall,
}

impl PauseKind {
    pub const fn name(self) -> &'static str {
        match self {
            PauseKind::Collection => "collection",
            PauseKind::Cssc => "cssc",
            PauseKind::Full => "full",
            PauseKind::PreTracing => "pre-tracing",
            PauseKind::PreEvacuation => "pre-evacuation",
            PauseKind::RegionWait => "region-wait",
            PauseKind::Stall => "stall",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Pause {
    pub kind: PauseKind,
    pub start: Nanos,
    pub length: Nanos,
}

/// Bytes in use before and after a collection.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    pub at: Nanos,
    pub before: Bytes,
    pub after: Bytes,
}

#[derive(Debug, Default)]
pub struct Log {
    pauses: Mutex<Vec<Pause>>,
    footprints: Mutex<Vec<Footprint>>,
    pub collections: AtomicU64,
    pub full_collections: AtomicU64,
    pub collector_ns: AtomicU64,
    pub moved_bytes: AtomicU64,
    pub freed_regions: AtomicU64,
    pub collector_faults: AtomicU64,
}

impl Log {
    pub fn pause(&self, kind: PauseKind, start: Nanos) {
        let length = clock::now().saturating_sub(start);
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        if pauses.len() < LOG_MAX {
            pauses.push(Pause {
                kind,
                start,
                length,
            });
        }
    }
    pub fn footprint(&self, before: Bytes, after: Bytes) {
        let mut footprints = self
            .footprints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if footprints.len() < LOG_MAX {
            footprints.push(Footprint {
                at: clock::now(),
                before,
                after,
            });
        }
    }
    pub fn pauses(&self) -> Vec<Pause> {
        self.pauses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    pub fn footprints(&self) -> Vec<Footprint> {
        self.footprints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }
}

/// A picture of a heap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub regions: u32,
    pub free_regions: u32,
    pub used: Bytes,
    pub cached: Bytes,
    /// Memory of the heap at this node outside of the cache.
    pub metadata: Bytes,
    /// Of a heap that is kept in copies: extents with fewer than the layout wants, and copies that were
    /// made anew.
    pub degraded: u64,
    pub repaired: u64,
    pub collections: u64,
    pub full_collections: u64,
    pub collector_seconds: f64,
    /// Bytes of objects that collections moved.
    pub moved: Bytes,
    pub faults: u64,
    pub collector_faults: u64,
    pub write_faults: u64,
    pub fetched_pages: u64,
    pub prefetched_pages: u64,
    pub written_pages: u64,
    pub refreshed_pages: u64,
    pub agents: Vec<AgentStats>,
}

/// One server's agent, as it reports itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentStats {
    pub server: String,
    pub metadata: Bytes,
    pub metadata_peak: Bytes,
    pub served: Bytes,
    pub cpu_seconds: f64,
    pub traced_objects: u64,
    pub moved: Bytes,
    /// Semeru: traces that raced with pages coming in.
    pub discarded_traces: u64,
}
