//! The phases of a collection, for whoever wants to watch one, or to disturb it at a chosen moment.
//!
//! An observer is called by the thread that collects, before it begins the phase; in most of them
//! the world is stopped. It must not use the heap.

use crate::plan::Plan;
use std::sync::Arc;

/// What a collection is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// `local`: mark what lives, through the cache.
    Mark,
    /// `local`: copy live objects out of sparse regions.
    Compact,
    /// `semeru`: pages go home, agents learn what has changed.
    Prepare,
    /// `semeru`: agents trace the whole heap (full collections only).
    FullTrace,
    /// `semeru`: ask agents for garbage, choose regions.
    Choose,
    /// `semeru`: agents copy.
    Evacuate,
    /// `semeru`: references are rewritten everywhere.
    Update,
    /// `semeru`: agents are told what to trace until the next pause.
    Schedule,
    /// `mako`: PTP.
    PreTracing,
    /// `mako`: CT.
    Tracing,
    /// `mako`: PEP.
    PreEvacuation,
    /// `mako`: marks are fetched, entries of the dead freed.
    Reclaim,
    /// `mako`: CE of one region, before its tablet is made invalid.
    RegionBegins,
    /// `mako`: CE of one region, when nobody can reach it and the agent is about to copy.
    RegionMoves,
}

impl Phase {
    /// The phases of a plan, in their order.
    pub const fn of(plan: Plan) -> &'static [Phase] {
        match plan {
            Plan::Local => &[Phase::Mark, Phase::Compact],
            Plan::Semeru => &[
                Phase::Prepare,
                Phase::FullTrace,
                Phase::Choose,
                Phase::Evacuate,
                Phase::Update,
                Phase::Schedule,
            ],
            Plan::Mako => &[
                Phase::PreTracing,
                Phase::Tracing,
                Phase::PreEvacuation,
                Phase::Reclaim,
                Phase::RegionBegins,
                Phase::RegionMoves,
            ],
        }
    }
}

/// Whoever is told of phases.
#[derive(Clone, Default)]
pub(crate) struct Observer(pub Option<Arc<dyn Fn(Phase) + Send + Sync>>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_there = if self.0.is_some() { "some" } else { "none" };
        write!(f, "Observer({is_there})")
    }
}
