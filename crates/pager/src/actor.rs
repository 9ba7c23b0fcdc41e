//! The pager's thread: waits for the kernel, serves, evicts.
//!
//! It sleeps in a read of the device and nowhere else. Others wake it by *ringing*: giving back a
//! page that is registered there, which the kernel reports as an event like any other, so that the
//! way of a fault needs no second system call to ask who is calling.
//!
//! Order of work: events of the address space before faults (a fault may be about memory that an
//! event explains), faults before eviction, and eviction in steps of one chunk with a look for
//! faults in between.

use crate::candidates::unclaimed;
use crate::fork;
use crate::process::Process;
use crate::shared::Shared;
use crate::snapshot::{self, Snapshot};
use crate::vault::Vault;
use crate::ward::Wards;
use muninn_pager_core::{
    Change, Engine, Evicted, Fatal, Kernel, Order, Ranges, Recently, Served, Touch,
};
use muninn_sys::clock;
use muninn_sys::memory::program;
use muninn_sys::pagemap::{Categories, PageScan, Query, Region};
use muninn_sys::uffd::{
    EVENTS_MAX, Event, EventBuffer, Fault, FaultDevice, FaultKind, PageRange, Userfaultfd, Wake,
};
use muninn_types::{Nanos, PAGE_SIZE, PageNo};
use muninn_volume::Volume;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Faults that wait for events to be read.
const PENDING_MAX: usize = 512;
/// How long to wait for a change of the address space to pass: the program is in the middle of a
/// system call, and a change that was read counts as going on until its thread runs again.
const CHANGE_WAIT: Duration = Duration::from_micros(50);
/// A program that waits for the next page so soon after one was served is faster than we are.
const HURRY: Nanos = Nanos(50_000);
/// How long memory that was given back is left to the kernel, and how many pieces are remembered.
const FREED_PAUSE: Nanos = Nanos::millis(1);
const LAZILY_FREED_MAX: usize = 4096;
/// Chunks evicted before the events are looked at again.
const STEPS_MAX: usize = 4;
/// Regions of present pages that are asked for at a time.
const REGIONS: usize = 64;
const NO_REGION: Region = Region {
    range: PageRange::new(PageNo(0), 0),
    categories: Categories(0),
};

pub struct Actor {
    pub(crate) engine: Engine<Process, Vault<Volume>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) areas: Ranges,
    order: Order,
    /// Kept from one event to the next, so that it is not allocated again.
    changes: Vec<Change>,
    events: EventBuffer<Userfaultfd>,
    pending: Vec<Fault>,
    pub(crate) wards: Wards,
    /// Memory that was given back a moment ago: the kernel may not have dropped its pages yet.
    removed: Recently,
    /// Whether reading the device sleeps. Only one that does not can be waited for with a time limit.
    sleeps: bool,
    /// Memory that was given back, and when.
    lazily_freed: VecDeque<(PageRange, Nanos)>,
    /// There were wards, and what left meanwhile may lie scattered.
    pub(crate) scattered: bool,
    /// A fault was just served.
    served: bool,
    served_at: Nanos,
    /// Eviction met a change of the address space: trying again at once would keep the thread that
    /// makes it from the processor.
    changing: bool,
}

impl std::fmt::Debug for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Actor")
            .field("areas", &self.areas)
            .finish_non_exhaustive()
    }
}

impl Actor {
    pub fn new(engine: Engine<Process, Vault<Volume>>, shared: Arc<Shared>, wards: Wards) -> Actor {
        Actor {
            engine,
            wards,
            removed: Recently::default(),
            shared,
            areas: Ranges::default(),
            order: Order::default(),
            changes: Vec::new(),
            events: EventBuffer::new(),
            pending: Vec::with_capacity(PENDING_MAX),
            sleeps: true,
            lazily_freed: VecDeque::new(),
            scattered: false,
            served: false,
            served_at: Nanos(0),
            changing: false,
        }
    }

    /// Takes over what a parent had far, in its child. Nobody else answers for it any more, so what
    /// is here now is all that is here.
    pub fn inherit(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        snapshot::inherit(&mut self.engine, snapshot)?;
        self.areas = snapshot.areas.clone();
        for area in snapshot.areas.iter() {
            self.note_present(area);
        }
        Ok(())
    }

    /// Runs until the process cannot go on. Its wards cannot either, then.
    pub fn run(&mut self) -> Fatal {
        loop {
            if let Err(fatal) = self.turn() {
                self.abandon_wards();
                return fatal;
            }
        }
    }

    fn turn(&mut self) -> Result<(), Fatal> {
        self.read_events()?;
        self.engine.attend_far()?;
        self.settle_changes()?;
        if self.shared.may_evict() {
            self.engine.set_allowed(self.shared.allowed_pages());
        }
        self.engine.set_background(self.shared.background_pages());
        self.engine.set_growth_rate(self.shared.growth_rate());
        self.prepare()?;
        self.serve_pending()?;
        self.adopt_offered()?;
        self.attend_wards()?;
        self.shared.set_wards(self.wards.len());
        self.fetch_for_fork()?;
        self.reclaim()?;
        self.press_out_freed();
        if self.scattered && self.pending.is_empty() && self.wards.is_empty() {
            self.scattered = self.engine.compact_some()?;
        }
        self.shared.held.store(self.engine.held(), Relaxed);
        self.publish();
        Ok(())
    }

    /// Publishes what others look at.
    fn publish(&self) {
        let counters = self.engine.kernel.counters();
        let gauges = self.engine.gauges();
        let bytes = |pages: u64| pages * PAGE_SIZE as u64;
        counters.staged_pages.store(gauges.staged, Relaxed);
        counters.slots_used.store(gauges.slots, Relaxed);
        counters.grants.store(gauges.grants, Relaxed);
        let census = self.engine.far.store.census();
        for (counter, extents) in [
            (&counters.extents_degraded, census.degraded),
            (&counters.extents_leaving, census.leaving),
            (&counters.extents_waiting, census.waiting),
            (&counters.extents_repaired, census.repaired),
        ] {
            counter.store(extents, Relaxed);
        }
        counters.far_bytes.store(bytes(gauges.far), Relaxed);
        counters.far_pages_peak.fetch_max(gauges.far, Relaxed);
        let target = bytes(gauges.allowed.min(1 << 40));
        counters.target_bytes.store(target, Relaxed);
    }

    fn device(&self) -> &Userfaultfd {
        self.engine.kernel.program()
    }

    /// How long to wait for events; `None` where reading them may sleep.
    fn patience(&mut self) -> Option<Duration> {
        let changing = std::mem::take(&mut self.changing);
        if self.engine.kernel.has_events() {
            return Some(Duration::ZERO);
        }
        if self.scattered && self.wards.is_empty() {
            return Some(Duration::ZERO);
        }
        let freed = !self.lazily_freed.is_empty();
        let waiting = freed || changing || self.shared.has_offers() || self.order.is_waiting();
        if waiting || !self.pending.is_empty() {
            return Some(CHANGE_WAIT);
        }
        if !self.wards.is_empty() {
            self.set_sleeps(false);
            self.wards.wait(self.engine.kernel.program());
            return Some(Duration::ZERO);
        }
        self.wants_work().then_some(Duration::ZERO)
    }

    fn wants_work(&self) -> bool {
        self.shared.may_evict() && self.engine.wants_background()
    }

    fn read_events(&mut self) -> Result<(), Fatal> {
        let mut patience = self.patience();
        loop {
            self.read_some(patience);
            // A change must not be overtaken by what follows from it, and the kernel hands faults
            // out before changes.
            let mut changed = false;
            while let Some(event) = self.next_event() {
                changed |= !matches!(event, Event::Fault(_));
                self.follow_event(event)?;
            }
            if !changed || PENDING_MAX - self.pending.len() < EVENTS_MAX {
                return Ok(());
            }
            patience = Some(Duration::ZERO);
        }
    }

    /// The next event, those first that were read while pages were carried out.
    fn next_event(&mut self) -> Option<Event<Userfaultfd>> {
        let aside = self.engine.kernel.next_event();
        aside.or_else(|| {
            let event = self.events.pop()?;
            if let Event::Fork(device) = &event {
                self.shared.keeper.leave_ward(device);
            }
            Some(event)
        })
    }

    /// Reads events, waiting as long as `patience` says. The device sleeps in a read, which saves
    /// asking first.
    fn read_some(&mut self, patience: Option<Duration>) {
        if patience != Some(Duration::ZERO) {
            self.set_sleeps(patience.is_none());
        }
        let device = self.engine.kernel.program();
        let _ = match patience {
            None => device.await_events(&mut self.events),
            Some(Duration::ZERO) => device.read_events(&mut self.events),
            Some(patience) => match device.wait(Some(patience)) {
                Ok(true) => device.read_events(&mut self.events),
                _ => return,
            },
        };
    }

    fn set_sleeps(&mut self, sleeps: bool) {
        if self.sleeps != sleeps {
            self.sleeps = sleeps;
            let _ = self.device().set_blocking(sleeps);
        }
    }

    fn follow_event(&mut self, event: Event<Userfaultfd>) -> Result<(), Fatal> {
        match event {
            Event::Fault(fault) => {
                self.shared.note_fault_of(fault.thread);
                // In the middle of a system call, and with a signal to come, a thread asks again and
                // again.
                if !self.pending.contains(&fault) {
                    self.engine.kernel.note_waiting(fault.thread, true);
                    self.pending.push(fault);
                }
            }
            Event::Remove(range) if self.shared.is_bell(range) => {}
            Event::Remove(range) => {
                let now = clock::now();
                self.removed.insert(range, now);
                if self.lazily_freed.len() < LAZILY_FREED_MAX {
                    self.lazily_freed.push_back((range, now));
                }
                self.engine.handle_remove(range);
            }
            Event::Unmap(range) => self.follow_change(Change::Unmap(range))?,
            Event::Remap { from, to } => self.follow_change(Change::Remap { from, to })?,
            Event::Fork(device) => self.handle_fork(device)?,
        }
        Ok(())
    }

    fn follow_change(&mut self, change: Change) -> Result<(), Fatal> {
        let mut changes = std::mem::take(&mut self.changes);
        self.order.handle(change, &mut self.areas, &mut changes);
        self.apply_changes(changes)
    }

    /// Once no change is under way, none is waited for either.
    fn settle_changes(&mut self) -> Result<(), Fatal> {
        if !self.order.is_waiting() || self.engine.is_changing() {
            return Ok(());
        }
        let mut changes = std::mem::take(&mut self.changes);
        self.order.handle_calm(&mut self.areas, &mut changes);
        self.apply_changes(changes)
    }

    fn apply_changes(&mut self, mut changes: Vec<Change>) -> Result<(), Fatal> {
        for change in changes.drain(..) {
            match change {
                Change::Unmap(range) => self.engine.handle_unmap(range)?,
                Change::Remap { from, to } => self.engine.handle_remap(from, to)?,
            }
        }
        self.changes = changes;
        Ok(())
    }

    /// Somebody waits, and memory is short: a chunk leaves first, while the thread that waits cannot
    /// run. Moving pages of a running thread costs an interrupt of its processor for each of them.
    fn prepare(&mut self) -> Result<(), Fatal> {
        if !self.pending.is_empty() && self.wants_work() {
            self.reclaim_step()?;
        }
        Ok(())
    }

    fn serve_pending(&mut self) -> Result<(), Fatal> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let began = clock::now();
        let pause = began.saturating_sub(self.served_at);
        self.engine.set_hurry(pause < HURRY);
        let mut faults = std::mem::take(&mut self.pending);
        let served = self.serve_all(&mut faults);
        self.pending = faults;
        let counters = self.engine.kernel.counters();
        self.served_at = clock::now();
        let took = self.served_at.saturating_sub(began);
        counters.fault_ns.fetch_add(took.0, Relaxed);
        served
    }

    fn serve_all(&mut self, faults: &mut Vec<Fault>) -> Result<(), Fatal> {
        let mut later = 0;
        let mut began = clock::now();
        for at in 0..faults.len() {
            self.engine.set_now(began);
            let fault = faults[at];
            let before = self.engine.kernel.counters().answered();
            let served = match fault.kind {
                FaultKind::WriteProtected => self.let_write(fault.page()),
                _ if self.engine.kernel.refuse_frame(fault.page()) => Served::Done,
                _ if self.shared.is_bell(PageRange::one(fault.page())) => self.answer_bell(),
                _ => self.engine.serve(&Touch {
                    page: fault.page(),
                    write: fault.write,
                    thread: fault.thread,
                })?,
            };
            match served {
                Served::Done => {
                    self.served = true;
                    self.engine.kernel.note_waiting(fault.thread, false);
                    let counters = self.engine.kernel.counters();
                    counters.faults.fetch_add(1, Relaxed);
                    let now = clock::now();
                    counters.note_time(before, now.saturating_sub(began).0);
                    began = now;
                }
                Served::Later => {
                    faults[later] = fault;
                    later += 1;
                }
            }
        }
        faults.truncate(later);
        Ok(())
    }

    /// Somebody waits until all that he did before was followed ([`fork::settle`]). It was.
    fn answer_bell(&self) -> Served {
        let bell = self.shared.bell();
        let filled = self.device().zero(bell, Wake::Now);
        if filled.is_err() && self.engine.is_changing() {
            return Served::Later;
        }
        let _ = self.device().wake(bell);
        Served::Done
    }

    /// A thread wants to write to a page that was about to leave. It is here still, or it is gone
    /// and will be asked for.
    fn let_write(&self, page: PageNo) -> Served {
        let range = PageRange::one(page);
        let allowed = self.device().write_protect(range, false, Wake::Now);
        if allowed.is_err() && self.engine.is_changing() {
            return Served::Later;
        }
        let _ = self.device().wake(range);
        Served::Done
    }

    /// A fork that we will not hear of: everything comes near first, and stays until it is over.
    fn fetch_for_fork(&mut self) -> Result<(), Fatal> {
        let wanted = fork::wants_near();
        self.shared.hold_still(wanted);
        if !wanted {
            fork::set_near(false);
        } else if !fork::is_near() {
            self.engine.set_allowed(u64::MAX);
            if self.engine.fetch_all(|| fork::count_near(1))? {
                fork::set_near(true);
            }
        }
        Ok(())
    }

    /// Takes over memory that the steward found.
    fn adopt_offered(&mut self) -> Result<(), Fatal> {
        if !self.shared.has_offers() || self.engine.is_changing() {
            return Ok(());
        }
        let now = clock::now();
        self.removed.forget_old(now);
        let mut offers = self.shared.take_offers();
        if !self.shared.are_offers_fresh(now) {
            offers.clear();
        }
        for offer in offers.drain(..) {
            let mut rest = offer;
            while let Some(gap) = self.areas.first_gap(rest) {
                // The runtime may have made memory of its own after the steward looked.
                for part in unclaimed(gap.addr(), gap.end().addr()) {
                    self.adopt(part);
                }
                let done = gap.end().0 - rest.first().0;
                rest = rest.skip(done);
            }
        }
        self.shared.give_back_offers(offers);
        let managed = self.areas.pages() * PAGE_SIZE as u64;
        self.engine
            .kernel
            .counters()
            .managed_bytes
            .store(managed, Relaxed);
        Ok(())
    }

    /// Registers a range and notes which of its pages are there. What cannot be registered as a
    /// whole (a part was unmapped meanwhile, or belongs to somebody else's device) is left for the
    /// next look.
    pub(crate) fn adopt(&mut self, range: PageRange) {
        let mode = self.engine.kernel.register_mode();
        // SAFETY: the program's memory is what it was; absent pages are asked of us from now on,
        // and we answer with what the kernel would have given.
        let registered = unsafe { self.device().register(range, mode) };
        if registered.is_err() {
            return;
        }
        if self.engine.is_changing() || self.removed.meets(range) {
            // Is it still the memory that was looked at, and are its pages to stay? The next look
            // will tell. It stays registered: what is asked of us about it we can answer.
            return;
        }
        self.areas.insert(range);
        let counters = self.engine.kernel.counters();
        counters.adoptions.fetch_add(1, Relaxed);
        counters.adopted_bytes.fetch_add(range.len_bytes(), Relaxed);
        self.note_present(range);
    }

    /// Pages of a range that are there are ours to move.
    pub(crate) fn note_present(&mut self, range: PageRange) {
        if !self.engine.kernel.can_scan() {
            return self.note_present_singly(range);
        }
        let query = Query::PRESENT;
        let mut rest = range;
        while !rest.is_empty() {
            let mut regions = [NO_REGION; REGIONS];
            let Ok(scanned) = self
                .engine
                .kernel
                .pagemap()
                .scan(rest, &query, &mut regions)
            else {
                return;
            };
            for region in &regions[..scanned.regions] {
                self.engine.adopt_present(region.range);
            }
            rest = rest.skip(scanned.next.0.saturating_sub(rest.first().0).max(1));
        }
    }

    /// The same where the kernel has no PAGEMAP_SCAN.
    fn note_present_singly(&mut self, range: PageRange) {
        let mut rest = range;
        while !rest.is_empty() {
            let mut present = self.engine.kernel.present(rest);
            while present != 0 {
                let at = u64::from(present.trailing_zeros());
                let pages = u64::from((present >> at).trailing_ones());
                let first = PageNo(rest.first().0 + at);
                self.engine.adopt_present(PageRange::new(first, pages));
                present &= !(u64::MAX >> (64 - pages) << at);
            }
            rest = rest.skip(u64::from(u64::BITS).min(rest.pages()));
        }
    }

    /// What the program gave back for the kernel to take when it likes (MADV_FREE) is still there, and
    /// is not ours to move. When memory is short the kernel is asked to like it now: it takes only what
    /// was not written to since.
    fn press_out_freed(&mut self) {
        let now = clock::now();
        while let Some(&(range, since)) = self.lazily_freed.front() {
            if now.saturating_sub(since) < FREED_PAUSE {
                return;
            }
            self.lazily_freed.pop_front();
            program::press_out(range);
        }
    }

    /// Evicts a little when memory is short and nobody waits.
    fn reclaim(&mut self) -> Result<(), Fatal> {
        if self.served {
            // The next fault is on its way.
            self.served = false;
        } else {
            for _ in 0..STEPS_MAX {
                if !self.wants_work() || !self.reclaim_step()? {
                    break;
                }
            }
        }
        if self.shared.may_evict() {
            self.engine.shrink();
        }
        if self.engine.is_in_doubt() && !self.engine.is_changing() {
            self.engine.clear_doubt();
        }
        Ok(())
    }

    /// Evicts a chunk; whether it is worth going on.
    fn reclaim_step(&mut self) -> Result<bool, Fatal> {
        let began = clock::now();
        let evicted = self.engine.evict_some(false)?;
        let took = clock::now().saturating_sub(began);
        match evicted {
            Evicted::Pages(pages) => self.shared.note_evicted(pages, took),
            Evicted::Nothing => self.engine.rest_eviction(),
            Evicted::Changing | Evicted::NotBefore => self.changing = true,
        }
        Ok(matches!(evicted, Evicted::Pages(_)))
    }
}
