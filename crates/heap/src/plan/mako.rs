//! Mako: short pauses, by tracing and evacuating where the objects are while the program runs
//! (Mako §3–§5).
//!
//! A reference in the heap names an entry of the **heap indirection table** (see [`crate::plan::hit`]):
//! when an object moves, its entry changes and nothing else. A cycle has four phases:
//!
//! * **PTP**, a pause: what is dirty goes home, so that servers see the heap as it is; roots are
//!   taken. Most dirty pages went home before the pause, while the program ran (the write-through
//!   buffer of the paper: here it is the set of dirty pages itself).
//! * **CT**: agents trace the whole heap; references that are overwritten meanwhile are sent to them
//!   (SATB). It is over when two polls in a row find all four flags of all servers false.
//! * **PEP**, a pause: the last overwritten references are traced. What is unmarked now is dead.
//! * **CE**: entries of the dead are free again; regions with few live objects are emptied one by
//!   one: write back, invalidate the tablet, wait until every mutator has given up its direct
//!   references into the region, evict region and tablet, let the agent copy, make the tablet
//!   valid. A mutator that wants an object of the region waits for that one region.
//!
//! **Where we differ from the paper.** Mutators hold direct references only between two safepoints,
//! in slots that the handshake can see, so the pause need not move the roots' objects and a mutator
//! never has to copy an object itself. Agents are told roots and overwritten references after the
//! pause, not in it: SATB makes that safe.
//!
//! Invariants: an entry that is allocated leads to an object whose header names the entry; a tablet
//! is invalid exactly while an agent may change it, and then nothing of it or its region is cached.

use crate::alarm::HANDSHAKE;
use crate::error::HeapError;
use crate::heap::Inner;
use crate::pager::Pager;
use crate::phase::Phase;
use crate::plan::hit::{Hit, NONE};
use crate::plan::local::root_words;
use crate::plan::remote::{Remote, nap};
use crate::plan::semeru::trace_from;
use crate::regions::Use;
use crate::slots::Slot;
use crate::stats::{Log, PauseKind};
use crate::world::{Context, OUTSIDE, PARKED};
use muninn_heap_agent::bitmap::Bitmap;
use muninn_heap_agent::bytes::{Reader, Short, Writer};
use muninn_heap_agent::command::Task;
use muninn_heap_agent::layout::Geometry;
use muninn_heap_agent::termination::Poller;
use muninn_policy::pace;
use muninn_sys::clock;
use muninn_types::Nanos;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Overwritten references in a mutator's buffer before it is handed over.
const SATB: usize = 1024;
/// Dirty pages that PTP may leave for the pause.
const PENDING_PAGES: u64 = 64;
/// A cycle starts when more of the heap is in use than this, and this much was allocated since.
const START_SHARE: f64 = 0.50;
const GROWTH_SHARE: f64 = 0.08;
/// Or earlier: if at the rate of late the heap would be all but full (the first share) before a cycle
/// half as long again as the last were over, and at least the second share was allocated since. A
/// mutator that finds no room waits for a cycle, and that is the longest pause there is.
const FULL_SHARE: f64 = 0.90;
const HASTY_GROWTH_SHARE: f64 = 0.04;
const MARGIN: f64 = 1.5;
/// The first cycle starts at this share already: nobody knows yet how long one takes.
const FIRST_SHARE: f64 = 0.25;
/// Regions with a larger live share than this are left as they are.
const LIVE_SHARE_MAX: f64 = 0.75;

#[derive(Debug, Default)]
struct Requests {
    wanted: u64,
    started: u64,
    finished: u64,
    error: Option<HeapError>,
    stopping: bool,
}

#[derive(Debug)]
pub struct State {
    pub remote: Remote,
    pub hit: Hit,
    /// Agents trace: overwritten references matter.
    tracing: AtomicBool,
    satb: Mutex<Vec<u64>>,
    /// Number of the handshake that is wanted, and the region it is about.
    handshake: AtomicU64,
    moving: AtomicU32,
    requests: Mutex<Requests>,
    bell: Condvar,
    used_after: AtomicU64,
    /// When the last cycle ended, and how long it took.
    ended: AtomicU64,
    took_ns: AtomicU64,
    /// When the cycle began that will free memory (0: none), and how long the last took to do so.
    freeing_since: AtomicU64,
    frees_after_ns: AtomicU64,
}

fn unclear(_: Short) -> HeapError {
    HeapError::Agent(
        "a server".to_string(),
        "its result makes no sense".to_string(),
    )
}

impl State {
    pub fn new(remote: Remote, geometry: Geometry) -> State {
        State {
            remote,
            hit: Hit::new(geometry),
            tracing: AtomicBool::new(false),
            satb: Mutex::default(),
            handshake: AtomicU64::new(0),
            moving: AtomicU32::new(NONE),
            requests: Mutex::default(),
            bell: Condvar::new(),
            used_after: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
            freeing_since: AtomicU64::new(0),
            frees_after_ns: AtomicU64::new(0),
        }
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn satb(&self) -> MutexGuard<'_, Vec<u64>> {
        self.satb.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // --- barriers

    #[inline(always)]
    pub fn is_tracing(&self) -> bool {
        self.tracing.load(Relaxed)
    }

    /// The store barrier, while agents trace.
    #[inline]
    pub fn overwritten(&self, context: &Context, old: u64) {
        // SAFETY: called by the mutator itself, between safepoints.
        let buffer = unsafe { &mut context.buffers().satb };
        buffer.push(old);
        if buffer.len() >= SATB {
            self.satb().append(buffer);
        }
    }

    /// The handshake: gives up direct references into the region that is about to be moved.
    pub fn answer(&self, inner: &Inner, context: &Context) {
        let wanted = self.handshake.load(SeqCst);
        if context.answered.load(SeqCst) < wanted {
            self.give_up(inner, context);
            context.answered.store(wanted, SeqCst);
            inner.world.ring();
        }
    }

    fn give_up(&self, inner: &Inner, context: &Context) {
        let region = self.moving.load(SeqCst);
        if region == NONE {
            return;
        }
        let size = inner.geometry.region_bytes() as usize;
        let start = inner
            .pager
            .address(inner.geometry.region_start(region))
            .addr();
        let inside = |slot: &Slot| slot.address.get().addr().wrapping_sub(start) < size;
        // SAFETY: the mutator itself, or held by the collector.
        unsafe {
            context.slots.each(|slot| {
                if inside(slot) {
                    slot.address.set(std::ptr::null_mut());
                }
            });
        }
    }

    /// A mutator waits until the region of a reference has been moved.
    pub fn wait_for_region(&self, inner: &Inner, context: &Context, word: u64) {
        let start = clock::now();
        inner.world.leave(context, PARKED);
        while self.hit.is_moving(word) && inner.lost().is_ok() {
            inner.world.nap();
        }
        inner.world.enter(context, PARKED);
        inner.log.pause(PauseKind::RegionWait, start);
        inner.poll_slow(context);
    }

    // --- regions

    pub fn take_region(&self, inner: &Inner, context: &Context, size: u64) -> Option<u32> {
        let mut regions = inner.regions();
        let worth = size.max(inner.geometry.region_bytes() / 16);
        let region = match regions.take_partial(&inner.bumps, worth) {
            Some(region) => region,
            None => {
                let region = self.take_fresh(inner, &mut regions)?;
                let server = inner.geometry.server_of(region);
                let tablet = regions.take_tablet(server)?;
                regions.get_mut(region).tablet = tablet;
                self.hit.assign(tablet, region);
                region
            }
        };
        // SAFETY: called by the mutator itself.
        let buffers = unsafe { context.buffers() };
        buffers.tablet = regions.get(region).tablet;
        buffers.entries.clear();
        Some(region)
    }

    /// A free region of a server that keeps one to evacuate into.
    fn take_fresh(&self, inner: &Inner, regions: &mut crate::regions::Regions) -> Option<u32> {
        let servers = self.remote.servers();
        let best = (0..servers).max_by_key(|server| regions.free_at(*server))?;
        if regions.free_at(best) <= keep_free(&inner.geometry) {
            return None;
        }
        regions.take(Some(best), Use::Allocating)
    }

    pub fn take_run(&self, inner: &Inner, count: u32) -> Option<u32> {
        let mut regions = inner.regions();
        let first = regions.take_run(count)?;
        let server = inner.geometry.server_of(first);
        let tablet = regions.take_tablet(server)?;
        regions.get_mut(first).tablet = tablet;
        self.hit.assign(tablet, first);
        Some(first)
    }

    /// The mutator leaves its region: entries it did not use are free again.
    pub fn retire(&self, context: &Context) {
        // SAFETY: the mutator itself, or it is stopped.
        let buffers = unsafe { context.buffers() };
        self.hit.give_back(buffers.tablet, &mut buffers.entries);
    }

    pub fn leave(&self, context: &Context) {
        // SAFETY: the mutator ends, and this is its thread.
        let buffers = unsafe { context.buffers() };
        self.satb().append(&mut buffers.satb);
    }

    /// An entry for the new object at a place; its reference.
    #[inline]
    pub fn new_entry(&self, inner: &Inner, context: &Context, at: u64) -> u64 {
        let region = inner.geometry.region_of(at);
        if region != context.bump.get().region || context.bump.get().at == 0 {
            // A humongous object: the only one of its tablet.
            let tablet = inner.regions().get(region).tablet;
            self.hit.take_entry(tablet, 1);
            return self.hit.set(inner, tablet, 1, at);
        }
        // SAFETY: called by the mutator itself.
        let buffers = unsafe { context.buffers() };
        let entry = match buffers.entries.pop() {
            Some(entry) => entry,
            None => self.hit.refill(inner, buffers.tablet, &mut buffers.entries),
        };
        self.hit.set(inner, buffers.tablet, entry, at)
    }

    /// A mutator is about to take a region: waits if it takes them faster than the cycle that runs
    /// can replace them. Many short waits instead of a long one when nothing is left.
    pub fn pace(&self, inner: &Inner, context: &Context) {
        let began = self.freeing_since.load(Relaxed);
        let start = clock::now();
        // SAFETY: called by the mutator itself.
        let last = std::mem::replace(unsafe { &mut context.buffers().refilled }, start);
        if began == 0 {
            return;
        }
        let free: u32 = {
            let regions = inner.regions();
            let at = |server| {
                regions
                    .free_at(server)
                    .saturating_sub(keep_free(&inner.geometry))
            };
            (0..self.remote.servers()).map(at).sum()
        };
        let wait = pace::wait(
            free,
            inner.geometry.regions,
            start.saturating_sub(Nanos(began)),
            Nanos(self.frees_after_ns.load(Relaxed)),
            start.saturating_sub(last),
        );
        if wait == Nanos::ZERO {
            return;
        }
        inner.world.leave(context, PARKED);
        while clock::now() < start + wait
            && self.freeing_since.load(Relaxed) == began
            && inner.lost().is_ok()
        {
            inner.world.nap();
        }
        inner.world.enter(context, PARKED);
        inner.log.pause(PauseKind::Stall, start);
        inner.poll_slow(context);
        // SAFETY: as above.
        unsafe { context.buffers() }.refilled = clock::now();
    }

    // --- cycles

    /// Waits for memory: for a cycle, or for what it frees on its way.
    pub fn wait_for_cycle(&self, inner: &Inner, epoch: u64) -> Result<(), HeapError> {
        let finished = {
            let mut requests = self.requests();
            requests.wanted = requests.started + 1;
            self.bell.notify_all();
            requests.finished
        };
        loop {
            inner.world.nap();
            inner.lost()?;
            let requests = self.requests();
            if let Some(error) = &requests.error {
                return Err(error.clone());
            }
            // Two cycles: the first may have begun before the garbage was garbage.
            if requests.finished > finished + 1 || inner.epoch.load(Acquire) > epoch + 1 {
                return Ok(());
            }
            drop(requests);
            if self.has_room(inner) {
                return Ok(());
            }
        }
    }

    fn has_room(&self, inner: &Inner) -> bool {
        let regions = inner.regions();
        let free = (0..self.remote.servers())
            .any(|server| regions.free_at(server) > keep_free(&inner.geometry));
        let room = inner.geometry.region_bytes() / 2;
        free || regions.iter().any(|(region, info)| {
            let bump = inner.bumps[region as usize].load(Relaxed);
            info.use_ == Use::Used && !info.closed && inner.geometry.region_bytes() - bump > room
        })
    }

    /// Waits for a whole cycle that begins after this call.
    pub fn full_cycle(&self, inner: &Inner) -> Result<(), HeapError> {
        let mut requests = self.requests();
        let want = requests.started + 1;
        requests.wanted = requests.wanted.max(want);
        self.bell.notify_all();
        while requests.finished < want {
            if let Some(error) = &requests.error {
                return Err(error.clone());
            }
            inner.lost()?;
            let waited = self.bell.wait_timeout(requests, Duration::from_millis(10));
            requests = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// One round of the collector's thread: a cycle if it is time for one, else a nap.
    pub fn turn(&self, inner: &Inner) {
        if !self.is_time(inner) {
            let requests = self.requests();
            // In a lost heap a cycle may be wanted that is never time for.
            let is_wanted = requests.wanted > requests.finished && inner.lost().is_ok();
            if !is_wanted && !requests.stopping {
                let nap = Duration::from_millis(2);
                let _ = self.bell.wait_timeout(requests, nap);
            }
            return;
        }
        let number = {
            let mut requests = self.requests();
            requests.started += 1;
            requests.started
        };
        let result = Pager::prepare_thread().and_then(|()| self.cycle(inner));
        let mut requests = self.requests();
        if let Err(error) = result {
            // Half a cycle leaves tablets invalid: nobody may go on.
            inner.alarm.lose(|| error.to_string());
            requests.error = Some(error);
        }
        requests.finished = number;
        inner.epoch.fetch_add(1, Release);
        self.bell.notify_all();
        inner.world.ring();
    }

    pub fn wake(&self) {
        self.requests().stopping = true;
        self.bell.notify_all();
    }

    fn is_time(&self, inner: &Inner) -> bool {
        let requests = self.requests();
        if requests.error.is_some() || requests.stopping || inner.lost().is_err() {
            return false;
        }
        if requests.wanted > requests.finished {
            return true;
        }
        drop(requests);
        let used = inner.regions().used(&inner.bumps).0 as f64;
        let heap = inner.geometry.heap_bytes() as f64;
        let after = self.used_after.load(Relaxed) as f64;
        if !inner.config.barriers || used < after + heap * HASTY_GROWTH_SHARE {
            return false;
        }
        let took = self.took_ns.load(Relaxed);
        if took == 0 && used > heap * FIRST_SHARE {
            return true;
        }
        let enough = used > heap * START_SHARE && used > after + heap * GROWTH_SHARE;
        let since = clock::now()
            .0
            .saturating_sub(self.ended.load(Relaxed))
            .max(1);
        let comes = (used - after) / since as f64 * took as f64 * MARGIN;
        enough || used + comes > heap * FULL_SHARE
    }

    fn cycle(&self, inner: &Inner) -> Result<(), HeapError> {
        let _one = inner.lock_collecting();
        let start = clock::now();
        let faults = inner.pager.counters.faults.load(Relaxed);
        let before = inner.regions().used(&inner.bumps);
        self.freeing_since.store(start.0, Relaxed);
        inner.begin(Phase::PreTracing);
        let roots = self.pre_tracing_pause(inner)?;
        inner.begin(Phase::Tracing);
        self.concurrent_tracing(inner, &roots)?;
        inner.begin(Phase::PreEvacuation);
        self.pre_evacuation_pause(inner)?;
        inner.begin(Phase::Reclaim);
        let chosen = self.reclaim(inner)?;
        self.freeing_since.store(0, Relaxed);
        self.frees_after_ns
            .store(clock::now().saturating_sub(start).0, Relaxed);
        for (live, region) in chosen {
            self.evacuate(inner, region, live)?;
        }
        self.hit.end_cycle();
        let after = inner.regions().used(&inner.bumps);
        self.used_after.store(after.0, Relaxed);
        inner.log.footprint(before, after);
        Log::add(&inner.log.collections, 1);
        let now = clock::now();
        let spent = now.saturating_sub(start).0;
        self.ended.store(now.0, Relaxed);
        self.took_ns.store(spent, Relaxed);
        Log::add(&inner.log.collector_ns, spent);
        let faults = inner
            .pager
            .counters
            .faults
            .load(Relaxed)
            .saturating_sub(faults);
        Log::add(
            &inner.log.collector_faults,
            if inner.config.verify { faults } else { 0 },
        );
        if inner.config.verify {
            let stopped = inner.world.stop();
            crate::verify::audit(inner, &stopped)?;
        }
        inner.lost()
    }

    /// PTP. Most pages go home before the world is stopped; in the pause only what is pending.
    fn pre_tracing_pause(&self, inner: &Inner) -> Result<Vec<u64>, HeapError> {
        for _ in 0..8 {
            if inner.pager.write_back(inner.pager.all_pages()) < PENDING_PAGES {
                break;
            }
        }
        let start = clock::now();
        let stopped = inner.world.stop();
        inner.retire_all(&stopped);
        inner.pager.write_back(inner.pager.all_pages());
        inner.lost()?;
        let roots = root_words(inner, &stopped);
        self.satb().clear();
        self.hit.begin_cycle();
        self.tracing.store(true, SeqCst);
        drop(stopped);
        inner.log.pause(PauseKind::PreTracing, start);
        Ok(roots)
    }

    /// CT. Agents trace from the roots; what is overwritten meanwhile is sent to them.
    fn concurrent_tracing(&self, inner: &Inner, roots: &[u64]) -> Result<(), HeapError> {
        let mut tablets = Writer::default();
        (0..inner.geometry.regions).for_each(|tablet| tablets.u32(self.hit.region_of(tablet)));
        let servers = self.remote.servers();
        self.remote
            .all(Task::Tablets, &vec![tablets.0; servers as usize])?;
        trace_from(&self.remote, |server| self.at(inner, roots, server))?;
        self.trace_out(inner, true)
    }

    fn at(&self, inner: &Inner, words: &[u64], server: u32) -> Vec<u64> {
        let there = |word: &&u64| inner.geometry.server_of((**word >> 32) as u32) == server;
        words.iter().filter(there).copied().collect()
    }

    /// Polls, and sends overwritten references on, until nobody has anything to trace.
    fn trace_out(&self, inner: &Inner, patient: bool) -> Result<(), HeapError> {
        let mut poller = Poller::default();
        let mut spins = 0;
        loop {
            let mut overwritten = std::mem::take(&mut *self.satb());
            if !overwritten.is_empty() {
                overwritten.sort_unstable();
                overwritten.dedup();
                for server in 0..self.remote.servers() {
                    let words = self.at(inner, &overwritten, server);
                    if !words.is_empty() {
                        self.remote.roots(server, &words)?;
                    }
                }
            }
            for server in 0..self.remote.servers() {
                poller.heard(self.remote.poll(server)?.flags);
            }
            if poller.end_round() && self.satb().is_empty() {
                return Ok(());
            }
            match patient {
                true => nap(&mut spins),
                // The world waits.
                false => std::thread::yield_now(),
            }
        }
    }

    /// PEP. The last overwritten references are traced; then the marks are complete.
    fn pre_evacuation_pause(&self, inner: &Inner) -> Result<(), HeapError> {
        let start = clock::now();
        let stopped = inner.world.stop();
        for context in stopped.mutators.iter() {
            // SAFETY: the world is stopped.
            let buffers = unsafe { context.buffers() };
            self.satb().append(&mut buffers.satb);
        }
        let traced = self.trace_out(inner, false);
        self.tracing.store(false, SeqCst);
        drop(stopped);
        inner.log.pause(PauseKind::PreEvacuation, start);
        traced
    }

    /// Entries of the dead are free again, and so are regions where nothing lives. The regions
    /// worth emptying, those with the least to copy first.
    fn reclaim(&self, inner: &Inner) -> Result<Vec<(u64, u32)>, HeapError> {
        let nothing = vec![Vec::new(); self.remote.servers() as usize];
        let mut live_bytes = vec![0; inner.geometry.regions as usize];
        for result in self.remote.all(Task::TraceEnd, &nothing)? {
            let mut r = Reader::new(&result);
            r.u64().map_err(unclear)?;
            while !r.is_empty() {
                let (tablet, live) = (r.u32().map_err(unclear)?, r.u64().map_err(unclear)?);
                if let Some(place) = live_bytes.get_mut(tablet as usize) {
                    *place = live;
                }
            }
        }
        // Nobody begins to allocate in them while their entries are being sorted out.
        let mut closed: Vec<Vec<(u32, u32, Use)>> =
            vec![Vec::new(); self.remote.servers() as usize];
        {
            let mut regions = inner.regions();
            for region in 0..inner.geometry.regions {
                let info = regions.get_mut(region);
                if matches!(info.use_, Use::Used | Use::Humongous(_)) {
                    info.closed = true;
                    let server = inner.geometry.server_of(region) as usize;
                    closed[server].push((region, info.tablet, info.use_));
                }
            }
        }
        let inputs: Vec<Vec<u8>> = closed
            .iter()
            .map(|list| {
                let mut w = Writer::default();
                list.iter().for_each(|(_, tablet, _)| w.u32(*tablet));
                w.0
            })
            .collect();
        let results = self.remote.all(Task::Marks, &inputs)?;
        let mut chosen = Vec::new();
        for (list, result) in closed.iter().zip(&results) {
            let mut r = Reader::new(result);
            for (region, tablet, use_) in list {
                let marks = Bitmap::from_words(r.words().map_err(unclear)?);
                let (live, fresh) = self.hit.reclaim(*tablet, &marks);
                let bytes = live_bytes[*tablet as usize];
                let used = inner.bumps[*region as usize].load(Acquire);
                let sparse = (bytes as f64) < used as f64 * LIVE_SHARE_MAX;
                if live == 0 {
                    self.release(inner, *region);
                } else if *use_ == Use::Used && fresh == 0 && sparse {
                    // Stays closed until it has been emptied.
                    chosen.push((bytes, *region));
                } else {
                    inner.regions().get_mut(*region).closed = false;
                }
            }
        }
        chosen.sort_unstable();
        Ok(chosen)
    }

    /// Gives a region and its tablet back.
    fn release(&self, inner: &Inner, region: u32) {
        let tablet = inner.regions().get(region).tablet;
        self.hit.clear(tablet);
        let start = inner.geometry.tablet_start(tablet);
        inner
            .pager
            .forget(start..start + inner.geometry.tablet_bytes());
        inner.release_region(region);
        inner.regions().give_back_tablet(tablet);
        inner.world.ring();
    }

    /// CE of one region.
    fn evacuate(&self, inner: &Inner, from: u32, live: u64) -> Result<(), HeapError> {
        let geometry = &inner.geometry;
        let server = geometry.server_of(from);
        let (to, tablet) = {
            let mut regions = inner.regions();
            let tablet = regions.get(from).tablet;
            let Some(to) = regions.take(Some(server), Use::Used) else {
                regions.get_mut(from).closed = false;
                return Ok(());
            };
            regions.get_mut(to).closed = true;
            (to, tablet)
        };
        let region = geometry.region_start(from)..geometry.region_start(from + 1);
        let entries = geometry.tablet_start(tablet)..geometry.tablet_start(tablet + 1);
        inner.begin(Phase::RegionBegins);
        // Write back while everybody goes on.
        inner.pager.write_back(inner.pager.pages_of(region.clone()));
        inner
            .pager
            .write_back(inner.pager.pages_of(entries.clone()));
        // From here on nobody comes in, and when all have answered nobody is inside.
        self.hit.invalidate(tablet);
        self.shake_hands(inner, from);
        inner.pager.seize(region.clone());
        inner.pager.seize(entries.clone());
        inner.begin(Phase::RegionMoves);
        let copied = self.copy_at_server(inner, tablet, (from, to));
        // Let go whatever came of it: a mutator that waits for a page must not wait for ever. If it
        // failed the tablet stays invalid, so nobody comes in.
        inner.pager.let_go(entries);
        inner.pager.let_go(region);
        let bump = copied?;
        let start = geometry.region_start(to);
        inner.pager.adopt(start..start + bump);
        inner.bumps[to as usize].store(bump, Release);
        {
            let mut regions = inner.regions();
            let survivals = regions.get(from).survivals + 1;
            let info = regions.get_mut(to);
            (info.tablet, info.survivals, info.closed) = (tablet, survivals, false);
        }
        self.hit.assign(tablet, to);
        inner.world.ring();
        inner.release_region(from);
        Log::add(&inner.log.moved_bytes, live);
        Ok(())
    }

    /// The agent moves what lives and sets the entries; the new region's bump.
    fn copy_at_server(
        &self,
        inner: &Inner,
        tablet: u32,
        (from, to): (u32, u32),
    ) -> Result<u64, HeapError> {
        inner.lost()?;
        let server = inner.geometry.server_of(from);
        let mut input = Writer::default();
        input.u32(tablet);
        input.u32(from);
        input.u32(to);
        input.words(self.hit.allocated(tablet).words());
        let result = self.remote.one(server, Task::EvacuateTablet, &input.0)?;
        Reader::new(&result).u64().map_err(unclear)
    }

    /// Waits until no mutator holds a direct reference into a region.
    fn shake_hands(&self, inner: &Inner, region: u32) {
        self.moving.store(region, SeqCst);
        let wanted = self.handshake.fetch_add(1, SeqCst) + 1;
        inner.alarm.raise(HANDSHAKE);
        let mutators = inner.world.lock();
        for context in mutators.iter() {
            loop {
                if context.answered.load(SeqCst) >= wanted {
                    break;
                }
                match context.state.load(SeqCst) {
                    // It holds none, and will find the tablet invalid when it comes in.
                    OUTSIDE => break,
                    PARKED => {
                        if inner.world.hold(context, || self.give_up(inner, context)) {
                            break;
                        }
                    }
                    _ => inner.world.nap(),
                }
            }
        }
        inner.alarm.lower(HANDSHAKE);
        drop(mutators);
    }
}

/// Regions of each server that stay free for evacuation.
fn keep_free(geometry: &Geometry) -> u32 {
    (geometry.regions_per_server / 16).max(1)
}
