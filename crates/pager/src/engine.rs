//! The engine: all that is known of a process's pages, and the one who may change it.
//!
//! One thread runs it, so nothing here is locked and no state is ever half changed: a fault is
//! served, a chunk is evicted, or an event is followed, one after the other. (Several handlers with
//! locks were built first; they were slower for one program thread, no faster for two on two CPUs,
//! and most of their code was about each other.) What the program does meanwhile comes as answers of
//! the kernel: EAGAIN, EEXIST, ENOENT.
//!
//! Invariant: `resident + staged` pages are held, and a page is taken out of the allowance before it
//! is filled; only what cannot be moved (pinned, shared) leads above it.
//!
//! The parts: [`fault`](crate::fault) brings pages in, [`evict`](crate::evict) takes them out,
//! [`space`](crate::space) follows the program's changes of its address space.

use crate::below::{CHUNKS_AT_ONCE_MAX, Far, Kernel, Transfer};
use crate::chunk::{ChunkNo, Mask, Page, SlabNo, bit, place_of};
use crate::evict::Evicted;
use crate::fault::Arriving;
use crate::hash::Hasher;
use crate::seal::Sealer;
use crate::slots::{Freed, SlotNo, Slots};
use crate::staging::Staging;
use crate::table::{ChunkIndex, Table};
use muninn_job::{Counters, Waiting};
use muninn_policy::evict::{Arrival, Evict, EvictPolicy, PageIndex};
use muninn_policy::first_touch::FirstTouch;
use muninn_policy::prefetch::{Prefetch, PrefetchPolicy, Window};
use muninn_policy::urgency::Urgency;
use muninn_sys::clock;
use muninn_sys::uffd::PageRange;
use muninn_types::{Bytes, Nanos, PAGE_SIZE, PageNo};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How an engine works.
#[derive(Clone, Debug)]
pub struct Settings {
    pub evict: EvictPolicy,
    pub prefetch: PrefetchPolicy,
    /// The most that may be far.
    pub max_far: Option<Bytes>,
    pub hasher: Hasher,
    /// Pages are sealed before they leave.
    pub seal: bool,
}

/// The process cannot go on: some of its memory is out of reach.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    #[error("a page of the program cannot be had back: {0}")]
    Lost(String),
    #[error("page {0:#x} came back with contents that were never sent: {1}")]
    Changed(u64, String),
    #[error("the program needs more memory than there is: {0}")]
    Full(String),
    #[error("memory at {0:#x} was mapped anew while a page of it was on its way out")]
    Torn(u64),
}

/// How far held pages may pass the allowance when nothing can be moved, before a full pool ends the
/// program.
const OVERDRAFT: u64 = Bytes::mib(8).0 / PAGE_SIZE as u64;
/// How far they may while the address space is changing.
const ADVANCE: u64 = Bytes::mib(2).0 / PAGE_SIZE as u64;
/// How long a full pool is waited for, and how often it is asked.
const FULL_PATIENCE: Nanos = Nanos::millis(12_000);
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// A part of the allowance is for pages on their way out, between these.
const STAGED_SHARE: u64 = 16;
/// A part of those is given back at once when room is needed, between these: each call interrupts the CPUs
/// that run the program, so 32 at a time cost a fifth more for each page of a sequence.
const GIVE_BACK_SHARE: u64 = 4;
const GIVE_BACK_MIN: u64 = 32;
const GIVE_BACK_MAX: u64 = 128;
const STAGED_MIN: u64 = 64;
const STAGED_MAX: u64 = 4096;

/// Whether there is room for pages that are about to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Made,
    /// Only above what is allowed, because nothing can leave.
    None,
    /// Not before the address space has come to rest.
    Later,
}

#[derive(Debug)]
pub struct Engine<K, F> {
    pub kernel: K,
    pub far: F,
    pub(crate) table: Table,
    pub(crate) slots: Slots,
    pub(crate) staging: Staging,
    /// What the contents of pages are compared by.
    pub(crate) hasher: Hasher,
    /// What seals them, if they are sealed.
    pub(crate) sealer: Option<Sealer>,
    pub(crate) evict: Box<dyn Evict>,
    pub(crate) prefetch: Box<dyn Prefetch>,
    pub(crate) window: Window,
    /// Pages on their way in together, and where they come from; kept so that a fault allocates
    /// nothing.
    pub(crate) batch: Vec<Arriving>,
    pub(crate) transfers: Vec<Transfer>,
    /// Chunks that are leaving.
    pub(crate) leaving: Vec<(ChunkIndex, SlabNo)>,
    /// Chunks of which only pages are there that must stay: the policy does not know of them.
    pub(crate) parked: BTreeSet<ChunkNo>,
    /// Which of them was looked at last.
    pub(crate) parked_at: ChunkNo,
    /// Pages of chunks that are leaving, run by run, where somebody wants to know.
    pub(crate) runs: Vec<PageRange>,
    pub(crate) urgency: Urgency,
    /// Chunks that the eviction policy has room for.
    policy_room: u32,
    pub(crate) resident: u64,
    pub(crate) staged: u64,
    /// Resident pages that have a far copy, too.
    copies: u64,
    /// Pages that may be held.
    allowed: u64,
    background: u64,
    /// Nothing could be evicted lately.
    resting: bool,
    /// Fill rate of the program, for the class of its evictions.
    pub(crate) growth_rate: f64,
    max_far_pages: u64,
    pub(crate) first_touch: FirstTouch,
    /// The chunk of the page that is being served: what comes along with it must not push it out.
    pub(crate) guarded: Option<ChunkIndex>,
    /// The program runs through pages faster than they come.
    pub(crate) hurry: bool,
    /// Pages that are registered, and never to be there: the bell and the mailbox.
    pub(crate) never_there: [PageNo; 2],
    /// Grants that were asked for to move far pages together.
    pub(crate) compaction_grants: u32,
    /// A chunk that left while the address space was changing.
    pub(crate) doubt: Option<PageRange>,
    /// Pages of zeros, to copy from.
    pub(crate) zeros: &'static [Page; crate::fault::BATCH_MAX],
    /// Room for pages on their way in where there is no frame for them.
    pub(crate) scratch: Box<[Page]>,
    /// The pool had no room; looked at again when the allowance changes.
    pub(crate) full: Option<String>,
    /// Since when nothing was to be had, while the program went without.
    pub(crate) full_since: Option<Nanos>,
}

/// Zeros that take no memory until somebody reads them, and then one page.
static ZEROS: [Page; crate::fault::BATCH_MAX] = [[0; PAGE_SIZE]; crate::fault::BATCH_MAX];

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl<K: Kernel, F: Far> Engine<K, F> {
    /// Over a staging area whose frames are all absent.
    pub fn new(kernel: K, far: F, frames: PageRange, settings: &Settings) -> Engine<K, F> {
        let page_bytes = PAGE_SIZE as u64;
        Engine {
            kernel,
            far,
            table: Table::default(),
            slots: Slots::default(),
            staging: Staging::new(frames),
            hasher: settings.hasher.clone(),
            sealer: settings
                .seal
                .then(|| Sealer::new(&[]).expect("the first key has a number")),
            evict: settings.evict.build(0, 1),
            prefetch: settings.prefetch.build(),
            window: Window::default(),
            batch: Vec::with_capacity(crate::fault::BATCH_MAX),
            transfers: Vec::with_capacity(crate::fault::BATCH_MAX),
            leaving: Vec::with_capacity(CHUNKS_AT_ONCE_MAX),
            parked: BTreeSet::new(),
            parked_at: ChunkNo(0),
            runs: Vec::new(),
            urgency: Urgency::new(None),
            policy_room: 0,
            resident: 0,
            staged: 0,
            copies: 0,
            allowed: u64::MAX,
            background: u64::MAX,
            resting: false,
            growth_rate: 0.0,
            max_far_pages: settings.max_far.map_or(u64::MAX, |max| max.0 / page_bytes),
            first_touch: FirstTouch::default(),
            guarded: None,
            hurry: false,
            never_there: [PageNo(0); 2],
            compaction_grants: 0,
            doubt: None,
            zeros: &ZEROS,
            scratch: vec![[0; PAGE_SIZE]; crate::fault::BATCH_MAX].into_boxed_slice(),
            full: None,
            full_since: None,
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.kernel.counters()
    }

    /// Pages of the program that are in this machine's memory because of us.
    pub fn held(&self) -> u64 {
        self.resident + self.staged
    }
    pub fn allowed(&self) -> u64 {
        self.allowed
    }
    pub fn set_allowed(&mut self, pages: u64) {
        if self.allowed != pages {
            self.allowed = pages;
            self.full = None;
            self.resting = false;
        }
    }
    pub fn set_growth_rate(&mut self, bytes_per_s: f64) {
        self.growth_rate = bytes_per_s;
    }

    /// Whether the program is waiting again as soon as it was served.
    pub fn set_hurry(&mut self, hurry: bool) {
        self.hurry = hurry;
    }

    /// Pages that should be on their way out while memory is short.
    pub(crate) fn staged_wanted(&self) -> u64 {
        (self.allowed / STAGED_SHARE).clamp(STAGED_MIN, STAGED_MAX)
    }

    /// Whether `pages` more may be held.
    pub(crate) fn has_room(&self, pages: u64) -> bool {
        self.held() + pages <= self.allowed
    }

    /// Pages below which nothing is evicted while nobody waits.
    pub fn set_background(&mut self, pages: u64) {
        self.background = pages;
    }

    /// Memory is short, or will be: a chunk should leave while nobody waits for it. What is on its
    /// way out already counts as free, since its frames can be used at once.
    pub fn wants_background(&self) -> bool {
        if self.resting {
            return false;
        }
        let limit = self.background.min(self.allowed);
        let free = limit.saturating_sub(self.resident);
        free < self.staged_wanted()
    }

    /// Nothing could be evicted: not again before something changes.
    pub fn rest_eviction(&mut self) {
        self.resting = true;
    }

    /// Gives memory back that is above what may be held.
    pub fn shrink(&mut self) {
        self.drop_staged(self.allowed);
    }

    /// What the program does with the next page of memory when there is none: end, or go on a
    /// little above what is allowed.
    pub(crate) fn check_overdraft(&mut self) -> Result<(), Fatal> {
        let Some(why) = &self.full else {
            return Ok(());
        };
        if self.held() <= self.allowed.saturating_add(OVERDRAFT) {
            return Ok(());
        }
        // What others had may be on its way back: they ended, and their leases run out.
        let now = clock::now();
        let since = *self.full_since.get_or_insert(now);
        if now.saturating_sub(since) > FULL_PATIENCE {
            return Err(Fatal::Full(why.clone()));
        }
        let waits = self.kernel.waits(Waiting::PoolFull, since);
        std::thread::sleep(FULL_PAUSE);
        drop(waits);
        self.full = None;
        self.resting = false;
        Ok(())
    }

    /// The chunk of a page, made if there is none, with a place in the eviction policy.
    pub(crate) fn chunk_of(&mut self, page: PageNo) -> ChunkIndex {
        let index = self.table.make(ChunkNo::of(page));
        if index.0 >= self.policy_room {
            self.policy_room = (self.table.capacity() * 2).max(1024);
            self.evict.grow(self.policy_room);
        }
        index
    }

    pub(crate) fn set_resident(&mut self, page: PageNo, arrival: Arrival) {
        let index = self.chunk_of(page);
        self.mark_resident(index, bit(place_of(page)));
        self.evict.handle_resident(PageIndex(index.0), arrival);
    }

    pub(crate) fn mark_resident(&mut self, index: ChunkIndex, mask: Mask) {
        let chunk = self.table.get_mut(index);
        let new = mask & !chunk.resident;
        chunk.resident |= new;
        self.resident += u64::from(new.count_ones());
        self.copies += u64::from((new & chunk.far).count_ones());
    }

    /// A resident page needs its far copy no more.
    pub(crate) fn forget_copy(&mut self, index: ChunkIndex, place: usize) {
        let chunk = self.table.get_mut(index);
        let Some(slot) = chunk.slot(place) else {
            return;
        };
        chunk.far &= !bit(place);
        self.copies -= 1;
        self.free_slot(slot);
    }

    pub(crate) fn clear_resident(&mut self, index: ChunkIndex, mask: Mask) {
        let chunk = self.table.get_mut(index);
        let gone = mask & chunk.resident;
        chunk.resident &= !gone;
        self.resident -= u64::from(gone.count_ones());
        self.copies -= u64::from((gone & chunk.far).count_ones());
    }

    /// Lets the page go that was on its way out longest: it is remote from now on. Its frame.
    fn let_oldest_go(&mut self) -> Option<PageNo> {
        while let Some((slab, index)) = self.staging.oldest() {
            let chunk = self.table.get_mut(index);
            let place = chunk.staged.trailing_zeros() as usize;
            if chunk.staged == 0 {
                chunk.slab = None;
                if chunk.resident == 0 {
                    self.evict.handle_evicted(PageIndex(index.0));
                }
                self.staging.retire_oldest();
                continue;
            }
            chunk.staged &= !bit(place);
            if chunk.buffered & bit(place) != 0 {
                chunk.buffered &= !bit(place);
                let page = chunk.number.page(place);
                add(&self.kernel.counters().prefetch_wasted, 1);
                self.prefetch.handle_wasted(PageIndex(page.0 as u32));
            }
            self.staged -= 1;
            return Some(self.staging.frame(slab, place));
        }
        None
    }

    /// Gives back the memory of pages on their way out, oldest first, until no more than `pages`
    /// are held; false when there are none left.
    pub fn drop_staged(&mut self, pages: u64) -> bool {
        let mut run: Option<PageRange> = None;
        while self.held() > pages {
            let Some(frame) = self.let_oldest_go() else {
                break;
            };
            // Neighbours go with one call.
            run = match run {
                Some(run) if run.end() == frame => {
                    Some(PageRange::new(run.first(), run.pages() + 1))
                }
                before => {
                    before.inspect(|run| self.kernel.discard(*run));
                    Some(PageRange::one(frame))
                }
            };
        }
        run.inspect(|run| self.kernel.discard(*run));
        self.held() <= pages
    }

    /// Makes room for pages that are about to come, if memory is short.
    pub(crate) fn make_room(&mut self, pages: u64) -> Result<Room, Fatal> {
        if self.has_room(pages) || self.drop_some(pages) {
            return Ok(Room::Made);
        }
        if !self.resting {
            add(&self.counters().direct_reclaims, 1);
            let evicted = self.evict_some(true)?;
            if self.drop_some(pages) {
                return Ok(Room::Made);
            }
            match evicted {
                Evicted::Nothing => self.resting = true,
                Evicted::NotBefore => return Ok(Room::None),
                // It will be possible in a moment; a little may come in until then.
                _ if self.held() + pages > self.allowed.saturating_add(ADVANCE) => {
                    return Ok(Room::Later);
                }
                _ => return Ok(Room::None),
            }
        }
        self.check_overdraft()?;
        Ok(Room::None)
    }

    fn drop_some(&mut self, pages: u64) -> bool {
        let share = self.staged_wanted() / GIVE_BACK_SHARE;
        let some = pages.max(share.clamp(GIVE_BACK_MIN, GIVE_BACK_MAX));
        self.drop_staged(self.allowed.saturating_sub(some));
        self.has_room(pages)
    }

    pub(crate) fn free_slot(&mut self, slot: SlotNo) {
        if let Freed::Extent(extent) = self.slots.free(slot) {
            self.far.release(extent);
        }
    }

    /// Follows what has become of servers. An extent of which no copy is left is the end, unless there
    /// was nothing in it.
    pub fn attend_far(&mut self) -> Result<(), Fatal> {
        while let Some((extent, why)) = self.far.attend() {
            if !self.slots.forget(extent) {
                return Err(Fatal::Lost(why));
            }
            self.far.release(extent);
        }
        Ok(())
    }

    /// Pages that may still become far.
    pub(crate) fn max_far_left(&self) -> u64 {
        self.max_far_pages.saturating_sub(self.slots.live_slots())
    }

    /// Publishes what others look at.
    pub fn publish(&self) {
        let counters = self.counters();
        let bytes = |pages: u64| pages * PAGE_SIZE as u64;
        counters.staged_pages.store(self.staged, Relaxed);
        counters.slots_used.store(self.slots.live_slots(), Relaxed);
        counters.grants.store(self.slots.extents() as u64, Relaxed);
        let census = self.far.census();
        for (counter, extents) in [
            (&counters.extents_degraded, census.degraded),
            (&counters.extents_leaving, census.leaving),
            (&counters.extents_waiting, census.waiting),
            (&counters.extents_repaired, census.repaired),
        ] {
            counter.store(extents, Relaxed);
        }
        let far = self.slots.live_slots() - self.copies - self.staged;
        counters.far_bytes.store(bytes(far), Relaxed);
        counters.far_pages_peak.fetch_max(far, Relaxed);
        counters
            .target_bytes
            .store(bytes(self.allowed.min(1 << 40)), Relaxed);
    }

    /// Whether the program is changing its address space right now.
    pub(crate) fn is_changing(&self) -> bool {
        self.kernel.is_changing()
    }
}
