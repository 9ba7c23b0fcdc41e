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

use crate::below::{CHUNKS_AT_ONCE_MAX, Count, Far, Incoming, Kernel, Wait};
use crate::chunk::{Chunk, ChunkNo, Mask, SlabNo, bit, place_of};
use crate::evict::Evicted;
use crate::print::Print;
use crate::slots::{Freed, SlotNo, Slots};
use crate::staging::Staging;
use crate::table::{ChunkIndex, Table};
use muninn_policy::evict::{Arrival, Evict, EvictPolicy, PageIndex};
use muninn_policy::first_touch::FirstTouch;
use muninn_policy::overdraft::{Overdraft, Verdict};
use muninn_policy::prefetch::{Prefetch, PrefetchPolicy, Window};
use muninn_policy::staging::Staging as StagingPolicy;
use muninn_policy::urgency::Urgency;
use muninn_types::{Bytes, Extent, Nanos, PAGE_SIZE, PageNo, PageRange};
use std::collections::BTreeSet;

/// How an engine works.
#[derive(Clone, Debug)]
pub struct Settings {
    pub evict: EvictPolicy,
    pub prefetch: PrefetchPolicy,
    /// How much of local memory is for pages on their way out.
    pub staging: StagingPolicy,
    /// The most that may be far.
    pub max_far: Option<Bytes>,
    /// Free slots that are kept when grants have become empty.
    pub spare_slots: u64,
    /// Where an eviction policy throws dice.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            evict: EvictPolicy::default(),
            prefetch: PrefetchPolicy::default(),
            staging: StagingPolicy::default(),
            max_far: None,
            spare_slots: 512,
            seed: 1,
        }
    }
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
pub struct Engine<K: Kernel, F> {
    pub kernel: K,
    pub far: F,
    pub(crate) table: Table,
    pub(crate) slots: Slots,
    pub(crate) staging: Staging,
    pub(crate) evict: Box<dyn Evict>,
    pub(crate) prefetch: Box<dyn Prefetch>,
    pub(crate) window: Window,
    /// Pages on their way in together, and where they come from; kept so that a fault allocates
    /// nothing.
    pub(crate) batch: Vec<Incoming>,
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
    staging_policy: StagingPolicy,
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
    pub never_there: [PageNo; 2],
    /// Grants that were asked for to move far pages together.
    pub(crate) compaction_grants: u32,
    /// A chunk that left while the address space was changing.
    pub(crate) doubt: Option<PageRange>,
    /// Room for pages on their way in where there is no frame for them.
    pub(crate) scratch: Box<[K::Page]>,
    /// The pool had no room; looked at again when the allowance changes.
    pub(crate) full: Option<String>,
    pub(crate) overdraft: Overdraft,
    /// The time, as far as it was told.
    now: Nanos,
}

/// What an engine holds, for those who show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    pub staged: u64,
    /// Slots in use, and the grants they are in.
    pub slots: u64,
    pub grants: u64,
    /// Pages whose only copy is far.
    pub far: u64,
    pub allowed: u64,
}

impl<K: Kernel, F: Far<K::Page>> Engine<K, F> {
    /// Over a staging area whose frames are all absent, with room for [`BATCH_MAX`](crate::fault::BATCH_MAX)
    /// pages on their way in.
    pub fn new(
        kernel: K,
        far: F,
        frames: PageRange,
        scratch: Box<[K::Page]>,
        settings: &Settings,
    ) -> Engine<K, F> {
        assert_eq!(scratch.len(), crate::fault::BATCH_MAX);
        let page_bytes = PAGE_SIZE as u64;
        Engine {
            kernel,
            far,
            table: Table::default(),
            slots: Slots::new(settings.spare_slots),
            staging: Staging::new(frames),
            evict: settings.evict.build(0, settings.seed),
            prefetch: settings.prefetch.build(),
            window: Window::default(),
            batch: Vec::with_capacity(crate::fault::BATCH_MAX),
            leaving: Vec::with_capacity(CHUNKS_AT_ONCE_MAX),
            parked: BTreeSet::new(),
            parked_at: ChunkNo(0),
            runs: Vec::new(),
            urgency: Urgency::new(None),
            policy_room: 0,
            staging_policy: settings.staging,
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
            scratch,
            full: None,
            overdraft: Overdraft::default(),
            now: Nanos(0),
        }
    }

    pub(crate) fn count(&self, what: Count, n: u64) {
        self.kernel.count(what, n);
    }

    /// Says what time it is.
    pub fn set_now(&mut self, now: Nanos) {
        self.now = now;
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
        self.staging_policy.wanted(self.allowed)
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
        let (held, allowed) = (self.held(), self.allowed);
        let since = match self.overdraft.handle_full(held, allowed, self.now) {
            Verdict::GoOn => return Ok(()),
            Verdict::End => return Err(Fatal::Full(why.clone())),
            Verdict::Wait(since) => since,
        };
        let waits = self.kernel.waits(Wait::PoolFull, Some(since));
        self.kernel.pause();
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
                self.kernel.count(Count::PrefetchWasted, 1);
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
            self.count(Count::DirectReclaims, 1);
            let evicted = self.evict_some(true)?;
            if self.drop_some(pages) {
                return Ok(Room::Made);
            }
            match evicted {
                Evicted::Nothing => self.resting = true,
                Evicted::NotBefore => return Ok(Room::None),
                // It will be possible in a moment; a little may come in until then.
                _ if !Overdraft::may_advance(self.held() + pages, self.allowed) => {
                    return Ok(Room::Later);
                }
                _ => return Ok(Room::None),
            }
        }
        self.check_overdraft()?;
        Ok(Room::None)
    }

    fn drop_some(&mut self, pages: u64) -> bool {
        let some = self.staging_policy.give_back(self.allowed, pages);
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

    /// The grants with their numbers.
    pub fn grants(&self) -> impl Iterator<Item = (u32, Extent)> {
        self.slots.numbered()
    }

    /// Begins with what a parent had far: its grants under their numbers there, to read from, and what is
    /// in them.
    pub fn inherit(
        &mut self,
        grants: impl Iterator<Item = (u32, Extent)>,
        pages: impl Iterator<Item = (PageNo, SlotNo, Print)>,
    ) {
        for (number, extent) in grants {
            self.slots.inherit(number, extent);
        }
        for (page, slot, print) in pages {
            let index = self.chunk_of(page);
            let chunk = self.table.get_mut(index);
            debug_assert_eq!(chunk.far & bit(place_of(page)), 0);
            chunk.set_far(place_of(page), slot, print);
            self.slots.inherit_slot(slot, page);
        }
    }

    /// A ward may read what is far now: it is not written to until there are fewer of them.
    pub fn pin(&mut self) {
        self.slots.pin();
    }

    /// There are fewer wards: only these slots are read by others.
    pub fn pin_only(&mut self, slots: impl Iterator<Item = SlotNo>) {
        self.slots.pin_only(slots);
    }

    /// Somebody else reads all grants that there are, for good: nothing is written to them any more.
    pub fn freeze(&mut self) {
        while let Some(extent) = self.far.granted() {
            self.slots.add(extent);
        }
        self.slots.freeze();
    }

    /// What others look at.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            staged: self.staged,
            slots: self.slots.live_slots(),
            grants: self.slots.extents() as u64,
            far: self.slots.live_slots() - self.copies - self.staged,
            allowed: self.allowed,
        }
    }

    /// Pages that are in the program, as far as we know.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// All that is known of pages, in the order of their addresses.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.table.chunks()
    }

    /// Whether the program is changing its address space right now.
    pub fn is_changing(&self) -> bool {
        self.kernel.is_changing()
    }
}
