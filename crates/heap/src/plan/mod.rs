//! The collectors, one file each.
//!
//! [`local`] is what a stock collector does on far memory: it stops the world and goes through the
//! cache. [`semeru`] collects regions on their servers during a pause, [`mako`] while the program
//! runs. What they need of an agent is in [`remote`].

pub(crate) mod hit;
pub(crate) mod local;
pub(crate) mod mako;
pub(crate) mod remote;
pub(crate) mod semeru;

use crate::error::HeapError;
use crate::heap::{Builder, Inner};
use crate::regions::Use;
use crate::stats::{AgentStats, PauseKind};
use crate::world::{Context, Stopped};
use muninn_heap_agent::layout::{Geometry, TypeDescriptor};
use muninn_net::{Grant, Pool};
use std::panic::AssertUnwindSafe;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// How often an allocation asks for a collection before it is an error.
pub(crate) const ATTEMPTS: u32 = 6;

/// How often the servers of a heap that is kept in copies are looked after, at least.
const ATTEND: std::time::Duration = std::time::Duration::from_millis(20);

/// Which collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Plan {
    /// Stop the world and collect through the cache: the baseline.
    #[default]
    Local,
    /// Throughput: trace beside the data, evacuate there during a pause.
    Semeru,
    /// Short pauses: trace and evacuate beside the data while the program runs.
    Mako,
}

impl Plan {
    pub const ALL: [Plan; 3] = [Plan::Local, Plan::Semeru, Plan::Mako];

    pub const fn name(self) -> &'static str {
        match self {
            Plan::Local => "local",
            Plan::Semeru => "semeru",
            Plan::Mako => "mako",
        }
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no plan has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a plan: use local, semeru or mako")]
pub struct UnknownPlan(String);

impl FromStr for Plan {
    type Err = UnknownPlan;
    fn from_str(text: &str) -> Result<Plan, UnknownPlan> {
        Plan::ALL
            .into_iter()
            .find(|plan| plan.name() == text.trim())
            .ok_or_else(|| UnknownPlan(text.to_string()))
    }
}

/// The state of a heap's plan, and what the rest of the heap asks of it.
#[derive(Debug)]
pub(crate) struct PlanState {
    plan: Plan,
    semeru: Option<Box<semeru::State>>,
    mako: Option<Box<mako::State>>,
}

impl PlanState {
    pub fn new(
        config: &Builder,
        pool: Option<&Arc<Pool>>,
        geometry: &Geometry,
        grants: &[Grant],
    ) -> Result<PlanState, HeapError> {
        let mut state = PlanState {
            plan: config.plan,
            semeru: None,
            mako: None,
        };
        let attach = || {
            let pool = pool.ok_or(muninn_net::NetError::NoServers)?;
            remote::Remote::attach(pool, geometry, grants)
        };
        match config.plan {
            Plan::Local => {}
            Plan::Semeru => {
                state.semeru = Some(Box::new(semeru::State::new(attach()?, *geometry)));
            }
            Plan::Mako => state.mako = Some(Box::new(mako::State::new(attach()?, *geometry))),
        }
        Ok(state)
    }

    fn remote(&self) -> Option<&remote::Remote> {
        let semeru = self.semeru.as_ref().map(|semeru| &semeru.remote);
        semeru.or(self.mako.as_ref().map(|mako| &mako.remote))
    }

    pub fn is_concurrent(&self) -> bool {
        self.plan == Plan::Mako
    }
    pub fn add_type(&self, descriptor: &TypeDescriptor) -> Result<(), HeapError> {
        match self.remote() {
            Some(remote) => remote.add_type(descriptor),
            None => Ok(()),
        }
    }

    /// A region to allocate in; none when it is time to collect.
    pub fn take_region(&self, inner: &Inner, context: &Context, size: u64) -> Option<u32> {
        if let Some(mako) = &self.mako {
            return mako.take_region(inner, context, size);
        }
        let mut regions = inner.regions();
        // Half-filled regions first, where what is left is worth it.
        let worth = size.max(inner.geometry.region_bytes() / 4);
        if let Some(region) = regions.take_partial(&inner.bumps, worth) {
            return Some(region);
        }
        if regions.free_regions() <= reserve(&inner.geometry) {
            return None;
        }
        regions.take(None, Use::Allocating)
    }

    /// A mutator is about to take a region.
    pub fn pace(&self, inner: &Inner, context: &Context) {
        if let Some(mako) = &self.mako {
            mako.pace(inner, context);
        }
    }

    pub fn take_run(&self, inner: &Inner, count: u32) -> Option<u32> {
        if let Some(mako) = &self.mako {
            return mako.take_run(inner, count);
        }
        let mut regions = inner.regions();
        if regions.free_regions() < count + reserve(&inner.geometry) {
            return None;
        }
        regions.take_run(count)
    }

    /// The mutator leaves its region.
    pub fn retire(&self, context: &Context) {
        if let Some(mako) = &self.mako {
            mako.retire(context);
        }
    }
    /// The mutator ends.
    pub fn leave(&self, context: &Context) {
        if let Some(semeru) = &self.semeru {
            semeru.leave(context);
        }
        if let Some(mako) = &self.mako {
            mako.leave(context);
        }
    }

    pub fn collect(
        &self,
        inner: &Inner,
        stopped: &Stopped<'_>,
        full: bool,
    ) -> Result<PauseKind, HeapError> {
        if let Some(semeru) = &self.semeru {
            return semeru.collect(inner, stopped, full);
        }
        local::collect(inner, stopped)?;
        Ok(PauseKind::Collection)
    }

    pub fn wait_for_cycle(&self, inner: &Inner, epoch: u64) -> Result<(), HeapError> {
        match &self.mako {
            Some(mako) => mako.wait_for_cycle(inner, epoch),
            None => Ok(()),
        }
    }
    pub fn full_cycle(&self, inner: &Inner) -> Result<(), HeapError> {
        match &self.mako {
            Some(mako) => mako.full_cycle(inner),
            None => Ok(()),
        }
    }
    /// A handshake, if one is wanted.
    pub fn answer(&self, inner: &Inner, context: &Context) {
        if let Some(mako) = &self.mako {
            mako.answer(inner, context);
        }
    }
    pub fn wait_for_region(&self, inner: &Inner, context: &Context, word: u64) {
        if let Some(mako) = &self.mako {
            mako.wait_for_region(inner, context, word);
        }
    }
    pub fn new_entry(&self, inner: &Inner, context: &Context, at: u64) -> u64 {
        match &self.mako {
            Some(mako) => mako.new_entry(inner, context, at),
            None => at,
        }
    }
    #[inline(always)]
    pub fn resolve(&self, inner: &Inner, word: u64) -> *mut u8 {
        match &self.mako {
            Some(mako) => mako.hit.resolve(inner, word),
            None => inner.pager.address(word),
        }
    }
    #[inline(always)]
    pub fn is_tracing(&self) -> bool {
        self.mako.as_ref().is_some_and(|mako| mako.is_tracing())
    }
    pub fn overwritten(&self, context: &Context, old: u64) {
        if let Some(mako) = &self.mako {
            mako.overwritten(context, old);
        }
    }
    #[inline(always)]
    pub fn crossing(&self, context: &Context, at: u64, word: u64) {
        if let Some(semeru) = &self.semeru {
            semeru.crossing(context, at, word);
        }
    }
    pub fn memory_bytes(&self) -> u64 {
        let semeru = self
            .semeru
            .as_ref()
            .map_or(0, |semeru| semeru.memory_bytes());
        semeru + self.mako.as_ref().map_or(0, |mako| mako.hit.memory_bytes())
    }
    pub fn agent_stats(&self) -> Vec<AgentStats> {
        self.remote().map_or_else(Vec::new, remote::Remote::stats)
    }
    /// One round of the plan's own thread.
    fn daemon_turn(&self, inner: &Inner) {
        if let Some(mako) = &self.mako {
            mako.turn(inner);
        }
        if inner.pager.keeps_copies() {
            // Copies that were lost are made anew also while nobody reads or writes.
            inner.pager.attend();
            std::thread::sleep(ATTEND);
        }
        if let Some(semeru) = &self.semeru
            && !semeru.transfer()
        {
            semeru.wait_for_queue();
        }
    }
    fn wake_daemon(&self) {
        if let Some(semeru) = &self.semeru {
            semeru.bell.notify_all();
        }
        if let Some(mako) = &self.mako {
            mako.wake();
        }
    }
    pub fn detach(&self) {
        if let Some(remote) = self.remote() {
            remote.detach();
        }
    }
}

/// Regions that stay free for collections to copy into.
pub(crate) fn reserve(geometry: &Geometry) -> u32 {
    (geometry.regions / 8).max(1)
}

/// The thread that a plan needs beside the mutators: Semeru's transfer thread, Mako's collector.
#[derive(Debug)]
pub(crate) struct Daemon {
    stop: Arc<AtomicBool>,
    inner: Weak<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub fn start(inner: &Arc<Inner>) -> Result<Daemon, HeapError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut daemon = Daemon {
            stop: Arc::clone(&stop),
            inner: Arc::downgrade(inner),
            thread: None,
        };
        if inner.state.plan == Plan::Local && !inner.pager.keeps_copies() {
            return Ok(daemon);
        }
        let inner = Arc::clone(inner);
        let work = move || {
            while !stop.load(Relaxed) {
                let turn = AssertUnwindSafe(|| inner.state.daemon_turn(&inner));
                if std::panic::catch_unwind(turn).is_err() {
                    // Whoever waits for a collection looks at the alarm too.
                    inner.alarm.lose(|| "the collector panicked".to_string());
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("muninn-heap".to_string())
            .spawn(work)
            .map_err(|e| HeapError::Machine(e.to_string()))?;
        daemon.thread = Some(thread);
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(inner) = self.inner.upgrade() {
            inner.state.wake_daemon();
        }
        let is_self = |t: &JoinHandle<()>| t.thread().id() == std::thread::current().id();
        // An observer may have had the last handle.
        if let Some(thread) = self.thread.take_if(|thread| !is_self(thread)) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
