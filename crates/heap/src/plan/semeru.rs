//! Semeru: throughput, by tracing and evacuating where the objects are (Semeru §4).
//!
//! The write barrier records references from one region into another in a queue of the mutator's
//! own; a *transfer thread* splits them into targets (which objects of a region others refer to) and
//! links (which region refers to which). Between pauses the agents trace region by region from
//! targets and roots, youngest and most evicted first; ⟨dirty, version⟩ tags tell them when pages
//! came in meanwhile, and such a trace is discarded (MSCT). In the pause (CSSC):
//!
//! 1. queues are drained, dirty pages go home, agents learn targets, links, bumps and roots;
//! 2. regions are chosen by their garbage; agents copy the live objects out, in the order of a
//!    traversal, which coalesces regions that refer to each other;
//! 3. new places are told to everybody and references rewritten, here and at all servers;
//! 4. targets of what died are forgotten; roots and a schedule for the next tracing are sent.
//!
//! A full collection, when that is not enough, has the agents trace the whole heap together and works
//! targets out anew, which also finds dead cycles across regions.
//!
//! **Where we differ from the paper.** There, the pause trusts the closure that was computed while
//! the program ran. But a server sees pages as they were when each was evicted: an object whose only
//! reference moved from a page that was evicted late to one that was evicted early is missing from
//! that picture, although it lives. So here the concurrent trace only *estimates* garbage, and the
//! copy in the pause, over pages that are all home, is the trace that counts. It visits what has to
//! be copied anyway, and nothing that was allocated since the last pause needs to be taken for live.
//! Sources are kept by pair of regions ("links"), and looked through by the server that has them.
//! The paper has the compute node itself collect regions that are mostly cached; here agents collect
//! these too, because in the pause all pages are at home anyway.

use crate::error::HeapError;
use crate::heap::Inner;
use crate::phase::Phase;
use crate::plan::local::{rewrite_roots, root_words};
use crate::plan::remote::{Remote, nap};
use crate::regions::Use;
use crate::stats::{Log, PauseKind};
use crate::world::{Context, Stopped};
use muninn_heap_agent::bitmap::Bitmap;
use muninn_heap_agent::bytes::{Reader, Short, Writer};
use muninn_heap_agent::command::Task;
use muninn_heap_agent::evacuate::{EvacuateError, Order};
use muninn_heap_agent::layout::{Geometry, REGION_HEAD};
use muninn_heap_agent::termination::Poller;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Records in a mutator's queue before it is handed over.
const QUEUE: usize = 2048;
/// Queues that wait for the transfer thread; then the mutator does its work.
const QUEUES_MAX: usize = 32;
/// Regions with a larger live share than this are left as they are; in a full collection, where
/// every byte may be needed, only those that are all but full of live objects are.
const LIVE_SHARE_MAX: f64 = 0.5;
const LIVE_SHARE_MAX_FULL: f64 = 0.97;
/// A region with a larger cached share is not traced between pauses: it changes too much.
const CACHED_SHARE: f64 = 0.5;

/// References between regions since the last pause.
#[derive(Debug)]
struct Remset {
    /// By region: objects that others refer to.
    targets: Vec<Option<Bitmap>>,
    /// By region: regions that it refers to.
    links: Vec<Option<Bitmap>>,
    /// Regions that were freed.
    freed: Vec<u32>,
}

#[derive(Debug)]
pub struct State {
    pub remote: Remote,
    queues: Mutex<Vec<Vec<(u64, u64)>>>,
    pub bell: Condvar,
    remset: Mutex<Remset>,
    transferring: Mutex<()>,
    geometry: Geometry,
}

fn unclear(_: Short) -> HeapError {
    HeapError::Agent(
        "a server".to_string(),
        "its result makes no sense".to_string(),
    )
}

impl State {
    pub fn new(remote: Remote, geometry: Geometry) -> State {
        let regions = geometry.regions as usize;
        State {
            remote,
            queues: Mutex::default(),
            bell: Condvar::new(),
            remset: Mutex::new(Remset {
                targets: vec![None; regions],
                links: vec![None; regions],
                freed: Vec::new(),
            }),
            transferring: Mutex::default(),
            geometry,
        }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Vec<(u64, u64)>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn remset(&self) -> MutexGuard<'_, Remset> {
        self.remset.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The write barrier: a reference into another region is being stored.
    #[inline]
    pub fn crossing(&self, context: &Context, at: u64, word: u64) {
        // SAFETY: called by the mutator itself, between safepoints.
        let buffers = unsafe { context.buffers() };
        // Regions are all that is kept of the place, so once is enough until the next pause.
        if buffers.seen.knows(self.geometry.region_of(at), word) {
            return;
        }
        buffers.cross.push((at, word));
        if buffers.cross.len() >= QUEUE {
            self.hand_over(context);
        }
    }

    #[cold]
    fn hand_over(&self, context: &Context) {
        // SAFETY: as in `crossing`; or the mutator is stopped or ends.
        let queue = unsafe { std::mem::take(&mut context.buffers().cross) };
        let mut queues = self.queues();
        if queues.len() < QUEUES_MAX {
            queues.push(queue);
            self.bell.notify_one();
        } else {
            drop(queues);
            self.absorb(&queue);
        }
    }

    /// Splits records into targets and links, each once.
    fn absorb(&self, records: &[(u64, u64)]) {
        let geometry = &self.geometry;
        let mut remset = self.remset();
        for (at, word) in records {
            let Some((to, granule)) = geometry.split(*word) else {
                continue;
            };
            remset.targets[to as usize]
                .get_or_insert_with(|| Bitmap::new(geometry.granules()))
                .set(granule);
            remset.links[geometry.region_of(*at) as usize]
                .get_or_insert_with(|| Bitmap::new(geometry.regions))
                .set(to);
        }
    }

    /// The transfer thread's work; false when there was none.
    pub fn transfer(&self) -> bool {
        // Held until the records are in the remembered set: a pause that finds no queues must not
        // miss the one that is being worked on.
        let _one = self.transferring.lock();
        let queue = self.queues().pop();
        match queue {
            Some(queue) => {
                self.absorb(&queue);
                true
            }
            None => false,
        }
    }

    /// Waits for a queue, or a moment.
    pub fn wait_for_queue(&self) {
        let queues = self.queues();
        if queues.is_empty() {
            let _ = self
                .bell
                .wait_timeout(queues, std::time::Duration::from_millis(50));
        }
    }

    /// The mutator ends.
    pub fn leave(&self, context: &Context) {
        self.hand_over(context);
    }

    pub fn memory_bytes(&self) -> u64 {
        let remset = self.remset();
        let maps = remset.targets.iter().chain(&remset.links).flatten();
        maps.map(Bitmap::bytes).sum::<u64>() + remset.targets.len() as u64 * 48
    }

    pub fn collect(
        &self,
        inner: &Inner,
        stopped: &Stopped<'_>,
        full: bool,
    ) -> Result<PauseKind, HeapError> {
        Pause {
            state: self,
            inner,
            stopped,
        }
        .run(full)
    }

    /// The world has been started again: agents trace what they have.
    fn schedule(&self, inner: &Inner, roots: &[u64]) -> Result<(), HeapError> {
        let mut order: Vec<(u32, u64, u32)> = Vec::new();
        {
            let regions = inner.regions();
            for (region, info) in regions.iter().filter(|(_, info)| info.use_ == Use::Used) {
                let start = self.geometry.region_start(region);
                let used = inner.bumps[region as usize].load(Acquire);
                let pages = used.div_ceil(4096).max(1);
                let cached = inner.pager.cached_in(start..start + used);
                if (cached as f64) < pages as f64 * CACHED_SHARE {
                    order.push((info.survivals, cached * 1000 / pages, region));
                }
            }
        }
        order.sort_unstable();
        for server in 0..self.remote.servers() {
            let mut input = Writer::default();
            let mine: Vec<u32> = order
                .iter()
                .map(|(_, _, region)| *region)
                .filter(|region| self.geometry.server_of(*region) == server)
                .collect();
            input.u32(mine.len() as u32);
            mine.iter().for_each(|region| input.u32(*region));
            input.words(&roots_at(&self.geometry, roots, server));
            self.remote.start(server, Task::Schedule, &input.0)?;
        }
        Ok(())
    }
}

fn roots_at(geometry: &Geometry, roots: &[u64], server: u32) -> Vec<u64> {
    let there = |word: &&u64| geometry.server_of(geometry.region_of(**word)) == server;
    roots.iter().filter(there).copied().collect()
}

/// A stop-the-world collection (CSSC).
struct Pause<'a> {
    state: &'a State,
    inner: &'a Inner,
    stopped: &'a Stopped<'a>,
}

/// What evacuations brought.
#[derive(Default)]
struct Moved {
    forwards: HashMap<u64, u64>,
    foreign: Vec<u64>,
    /// Regions to be emptied that could not be.
    kept: Vec<u32>,
    bytes: u64,
}

impl Pause<'_> {
    fn run(&self, full: bool) -> Result<PauseKind, HeapError> {
        self.inner.begin(Phase::Prepare);
        self.prepare()?;
        if full {
            self.inner.begin(Phase::FullTrace);
            self.trace_everything()?;
        }
        let live_share_max = if full {
            LIVE_SHARE_MAX_FULL
        } else {
            LIVE_SHARE_MAX
        };
        self.inner.begin(Phase::Choose);
        let from = self.choose(live_share_max)?;
        if !from.is_empty() {
            self.inner.begin(Phase::Evacuate);
            self.evacuate(&from)?;
        }
        self.inner.begin(Phase::Schedule);
        let roots = root_words(self.inner, self.stopped);
        self.state.schedule(self.inner, &roots)?;
        Ok(if full {
            PauseKind::Full
        } else {
            PauseKind::Cssc
        })
    }

    /// Task 1: queues are drained, dirty pages go home, agents learn what has changed.
    fn prepare(&self) -> Result<(), HeapError> {
        for context in self.stopped.mutators.iter() {
            // SAFETY: the world is stopped.
            unsafe { context.buffers() }.seen.clear();
            self.state.hand_over(context);
        }
        while self.state.transfer() {}
        self.inner.pager.write_back(self.inner.pager.all_pages());
        self.inner.lost()?;
        self.tell_changes()
    }

    fn tell_changes(&self) -> Result<(), HeapError> {
        let geometry = &self.inner.geometry;
        let roots = root_words(self.inner, self.stopped);
        let mut remset = self.state.remset();
        let inputs: Vec<Vec<u8>> = (0..self.state.remote.servers())
            .map(|server| {
                let there = |region: &u32| geometry.server_of(*region) == server;
                let mut w = Writer::default();
                let freed: Vec<u32> = remset.freed.iter().copied().filter(there).collect();
                w.u32(freed.len() as u32);
                freed.iter().for_each(|region| w.u32(*region));
                let used: Vec<(u32, u64)> = self
                    .inner
                    .regions()
                    .iter()
                    .filter(|(region, info)| {
                        there(region) && matches!(info.use_, Use::Used | Use::Humongous(_))
                    })
                    .map(|(region, _)| (region, self.inner.bumps[region as usize].load(Acquire)))
                    .collect();
                w.u32(used.len() as u32);
                for (region, bump) in used {
                    w.u32(region);
                    w.u64(bump);
                }
                let (mut links, mut targets) = (Vec::new(), Vec::new());
                for region in (0..geometry.regions).filter(there) {
                    let to = remset.links[region as usize].iter().flat_map(Bitmap::iter);
                    links.extend(to.map(|to| (region, to)));
                    let start = geometry.region_start(region);
                    let map = remset.targets[region as usize]
                        .iter()
                        .flat_map(Bitmap::iter);
                    targets.extend(map.map(|granule| start + u64::from(granule) * 16));
                }
                w.u32(links.len() as u32);
                for (from, to) in links {
                    w.u32(from);
                    w.u32(to);
                }
                w.words(&targets);
                w.words(&roots_at(geometry, &roots, server));
                w.0
            })
            .collect();
        self.state.remote.all(Task::Changes, &inputs)?;
        remset.targets.fill(None);
        remset.links.fill(None);
        remset.freed.clear();
        Ok(())
    }

    /// The agents trace the whole heap together; targets are worked out anew, and regions without
    /// a live object are free.
    fn trace_everything(&self) -> Result<(), HeapError> {
        let remote = &self.state.remote;
        let geometry = &self.inner.geometry;
        let roots = root_words(self.inner, self.stopped);
        trace_from(remote, |server| roots_at(geometry, &roots, server))?;
        wait_for_trace(remote)?;
        let nothing = vec![Vec::new(); remote.servers() as usize];
        let mut dead = Vec::new();
        for result in remote.all(Task::TraceEnd, &nothing)? {
            let mut r = Reader::new(&result);
            let strange = r.u64().map_err(unclear)?;
            if strange > 0 {
                let what = format!("{strange} references of a stopped heap lead to no object");
                return Err(HeapError::Lost(what));
            }
            while !r.is_empty() {
                let (region, live) = (r.u32().map_err(unclear)?, r.u64().map_err(unclear)?);
                let use_ = self.inner.regions().get(region).use_;
                if live == 0 && matches!(use_, Use::Used | Use::Humongous(_)) {
                    dead.push(region);
                }
            }
        }
        let mut foreign = Vec::new();
        for result in remote.all(Task::Rebuild, &nothing)? {
            foreign.extend(Reader::new(&result).words().map_err(unclear)?);
        }
        self.free(&dead);
        for word in foreign {
            let mut remset = self.state.remset();
            if let Some((region, granule)) = geometry.split(word) {
                remset.targets[region as usize]
                    .get_or_insert_with(|| Bitmap::new(geometry.granules()))
                    .set(granule);
            }
        }
        self.tell_changes()
    }

    fn free(&self, regions: &[u32]) {
        let mut remset = self.state.remset();
        for region in regions {
            self.inner.release_region(*region);
            remset.freed.push(*region);
        }
    }

    /// The regions worth emptying, by what the agents know of their garbage.
    fn choose(&self, live_share_max: f64) -> Result<Vec<u32>, HeapError> {
        let geometry = &self.inner.geometry;
        let servers = self.state.remote.servers();
        let mut asked: Vec<Vec<u32>> = vec![Vec::new(); servers as usize];
        for (region, info) in self.inner.regions().iter() {
            if matches!(info.use_, Use::Used | Use::Humongous(_)) {
                asked[geometry.server_of(region) as usize].push(region);
            }
        }
        let inputs: Vec<Vec<u8>> = asked
            .iter()
            .map(|regions| {
                let mut w = Writer::default();
                regions.iter().for_each(|region| w.u32(*region));
                w.0
            })
            .collect();
        let results = self.state.remote.all(Task::Estimates, &inputs)?;
        let (mut chosen, mut dead) = (Vec::new(), Vec::new());
        for (regions, result) in asked.iter().zip(&results) {
            let mut r = Reader::new(result);
            let mut worth = Vec::new();
            for region in regions {
                let live = r.u64().map_err(unclear)?;
                let used = self.inner.bumps[*region as usize].load(Acquire);
                if live == 0 {
                    dead.push(*region);
                } else if self.inner.regions().get(*region).use_ == Use::Used
                    && (live as f64) < used as f64 * live_share_max
                {
                    worth.push((live, *region));
                }
            }
            worth.sort_unstable();
            let Some(first) = regions.first() else {
                continue;
            };
            let free = self.inner.regions().free_at(geometry.server_of(*first));
            let mut room = u64::from(free) * geometry.region_bytes();
            for (live, region) in worth {
                if live + REGION_HEAD > room {
                    break;
                }
                room -= live;
                chosen.push((live, region));
            }
        }
        // Nothing leads into them, not even from themselves: free without a copy.
        self.free(&dead);
        if !dead.is_empty() {
            self.tell_changes()?;
        }
        Ok(chosen.into_iter().map(|(_, region)| region).collect())
    }

    /// Tasks 2 to 4.
    fn evacuate(&self, from: &[u32]) -> Result<(), HeapError> {
        let inner = self.inner;
        let geometry = &inner.geometry;
        let remote = &self.state.remote;
        for region in from {
            let start = geometry.region_start(*region);
            inner.pager.evict(start..start + geometry.region_bytes());
        }
        inner.lost()?;
        let roots = root_words(inner, self.stopped);
        let mut to_spaces = Vec::new();
        let inputs: Vec<Vec<u8>> = (0..remote.servers())
            .map(|server| {
                let there = |region: &&u32| geometry.server_of(**region) == server;
                let mine: Vec<u32> = from.iter().filter(there).copied().collect();
                let mut w = Writer::default();
                w.u8(u8::from(inner.config.order == Order::Breadth));
                w.u32(mine.len() as u32);
                mine.iter().for_each(|region| w.u32(*region));
                // At most as many as are emptied; what is not needed goes back.
                let mut regions = inner.regions();
                let to: Vec<u32> = (0..mine.len())
                    .map_while(|_| regions.take(Some(server), Use::Used))
                    .collect();
                w.u32(to.len() as u32);
                for region in &to {
                    w.u32(*region);
                    w.u64(REGION_HEAD);
                }
                to_spaces.extend(to);
                w.u32(from.len() as u32);
                from.iter().for_each(|region| w.u32(*region));
                w.words(&roots_at(geometry, &roots, server));
                w.0
            })
            .collect();
        let mut moved = Moved::default();
        for result in remote.all(Task::Evacuate, &inputs)? {
            self.take_result(&mut Reader::new(&result), &mut moved)
                .map_err(unclear)?;
        }
        inner.begin(Phase::Update);
        self.update(from, &moved)?;
        // References of mutators and roots.
        rewrite_roots(inner, self.stopped, |word| {
            Ok::<u64, EvacuateError>(moved.forwards.get(&word).copied().unwrap_or(word))
        })
        .map_err(|e| HeapError::Lost(e.to_string()))?;
        for region in from.iter().filter(|region| !moved.kept.contains(region)) {
            inner.release_region(*region);
        }
        for region in to_spaces {
            let bump = inner.bumps[region as usize].load(Acquire);
            if bump == REGION_HEAD {
                inner.release_region(region);
            } else {
                let start = geometry.region_start(region);
                inner.pager.adopt(start..start + bump);
                inner.regions().get_mut(region).survivals = 1;
            }
        }
        Log::add(&inner.log.moved_bytes, moved.bytes);
        Ok(())
    }

    fn take_result(&self, r: &mut Reader<'_>, moved: &mut Moved) -> Result<(), Short> {
        for _ in 0..r.u32()? {
            let (region, bump) = (r.u32()?, r.u64()?);
            let place = self.inner.bumps.get(region as usize).ok_or(Short)?;
            place.store(bump, Release);
            moved.bytes += bump.saturating_sub(REGION_HEAD);
        }
        for _ in 0..r.u32()? {
            moved.kept.push(r.u32()?);
        }
        for _ in 0..r.u32()? {
            moved.forwards.insert(r.u64()?, r.u64()?);
        }
        moved.foreign.extend(r.words()?);
        Ok(())
    }

    /// Everybody rewrites references to what was moved; pages that changed at a server and are
    /// cached here are read again.
    fn update(&self, from: &[u32], moved: &Moved) -> Result<(), HeapError> {
        let geometry = &self.inner.geometry;
        let inputs: Vec<Vec<u8>> = (0..self.state.remote.servers())
            .map(|server| {
                let mut w = Writer::default();
                w.u32(from.len() as u32);
                from.iter().for_each(|region| w.u32(*region));
                w.u32(moved.forwards.len() as u32);
                for (old, new) in &moved.forwards {
                    w.u64(*old);
                    w.u64(*new);
                }
                w.words(&roots_at(geometry, &moved.foreign, server));
                w.0
            })
            .collect();
        for result in self.state.remote.all(Task::Update, &inputs)? {
            let mut r = Reader::new(&result);
            for _ in 0..r.u32().map_err(unclear)? {
                let page = r.u32().map_err(unclear)?;
                if self.inner.pager.all_pages().contains(&page) {
                    self.inner.pager.refresh(page);
                }
            }
        }
        self.inner.lost()
    }
}

/// Starts a trace everywhere. All agents are ready before the first gets a root: what one finds for
/// another must not come too early.
pub fn trace_from(remote: &Remote, roots: impl Fn(u32) -> Vec<u64>) -> Result<(), HeapError> {
    let mut none = Writer::default();
    none.words(&[]);
    remote.all(Task::TraceStart, &vec![none.0; remote.servers() as usize])?;
    for server in 0..remote.servers() {
        remote.roots(server, &roots(server))?;
    }
    Ok(())
}

/// Polls all agents until the trace is over.
pub fn wait_for_trace(remote: &Remote) -> Result<(), HeapError> {
    let mut poller = Poller::default();
    let mut spins = 0;
    loop {
        for server in 0..remote.servers() {
            let polled = remote.poll(server)?;
            let mut flags = polled.flags;
            flags.tracing |= polled.pending > 0;
            poller.heard(flags);
        }
        if poller.end_round() {
            return Ok(());
        }
        nap(&mut spins);
    }
}
