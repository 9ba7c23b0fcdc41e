//! Faults: a thread touched a page that is not there, and waits.
//!
//! The page that was touched comes first and alone; the thread goes on as soon as it is there
//! (Fastswap). Then come its neighbours, as `policy::prefetch` says. What comes in is read, compared
//! with what was sent, and copied into new pages of the program; when memory is short, pages that are
//! on their way out are given back first.
//!
//! Invariant: a fault ends with the thread woken, or is tried again after the events of the address
//! space were read; it is never forgotten.

use crate::below::{Count, Far, FarPlace, Incoming, Kernel, Wait};
use crate::chunk::{CHUNK_PAGES, Chunk, ChunkNo, Mask, bit, place_of, places, span};
use crate::engine::{Engine, Fatal, Room};
use crate::slots::SlotNo;
use crate::table::ChunkIndex;
use muninn_policy::evict::{Arrival, PageIndex};
use muninn_policy::prefetch::{self, FarPages, FarSlot, Landing, Source, WINDOW_PAGES_MAX};
use muninn_types::{Cause, Class, PAGE_SIZE, PageNo, PageRange, Partial};

/// Pages that come in together.
pub const BATCH_MAX: usize = WINDOW_PAGES_MAX;

/// Pages of a chunk that came back while it was on its way out before the others do, too. With 1 a
/// program that touches pages at random loses a tenth, with 8 a collector of garbage a quarter.
const RETURNED_MIN: u32 = 4;

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The thread goes on.
    Done,
    /// The address space is changing: read its events, then try again.
    Later,
}

/// A thread touched a page that is not there, and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    pub page: PageNo,
    pub write: bool,
    pub thread: u32,
}

/// The page table as the prefetch policies see it: pages by the lower bits of their numbers.
struct View<'a, K: Kernel, F> {
    engine: &'a Engine<K, F>,
    /// The upper bits, those of the page that was touched.
    upper: u64,
}

impl<K: Kernel, F: Far<K::Page>> View<'_, K, F> {
    fn page(&self, index: PageIndex) -> PageNo {
        PageNo(self.upper << 32 | u64::from(index.0))
    }
    fn chunk(&self, page: PageNo) -> Option<&Chunk> {
        let index = self.engine.table.find(ChunkNo::of(page))?;
        Some(self.engine.table.get(index))
    }
}

impl<K: Kernel, F: Far<K::Page>> FarPages for View<'_, K, F> {
    fn is_far(&self, index: PageIndex) -> bool {
        let page = self.page(index);
        self.chunk(page)
            .is_some_and(|chunk| chunk.remote() & bit(place_of(page)) != 0)
    }
    fn slot_of(&self, index: PageIndex) -> Option<FarSlot> {
        let page = self.page(index);
        let slot = self.chunk(page)?.slot(place_of(page))?;
        Some(FarSlot(u64::from(slot.0)))
    }
    fn page_at(&self, slot: FarSlot) -> Option<PageIndex> {
        let slot = SlotNo(u32::try_from(slot.0).ok()?);
        let index = PageIndex(self.engine.slots.owner(slot)?);
        (self.slot_of(index) == Some(FarSlot(u64::from(slot.0)))).then_some(index)
    }
}

impl<K: Kernel, F: Far<K::Page>> Engine<K, F> {
    /// Serves a touch of an absent page.
    pub fn serve(&mut self, touch: &Touch) -> Result<Served, Fatal> {
        let page = touch.page;
        let place = place_of(page);
        let Some(index) = self.table.find(ChunkNo::of(page)) else {
            return self.fill_zeros(page, touch.write);
        };
        let chunk = self.table.get(index);
        if chunk.staged & bit(place) != 0 {
            return self.unstage(index, place);
        }
        if chunk.resident & bit(place) != 0 {
            return self.serve_present(page);
        }
        if chunk.far & bit(place) != 0 {
            return self.fetch(page, touch.thread);
        }
        self.fill_zeros(page, touch.write)
    }

    /// The page should be there: another fault brought it, or the program is giving it away and we
    /// are about to hear of it.
    fn serve_present(&mut self, page: PageNo) -> Result<Served, Fatal> {
        if self.kernel.present(PageRange::one(page)) == 0 {
            if self.is_changing() {
                return Ok(Served::Later);
            }
            // The kernel drops only what the program gave back: we hear of that before it is done, so
            // that a page may have come in between, and not at all of what was freed lazily before it
            // was registered.
            self.forget(PageRange::one(page));
            return self.fill_zeros(page, true);
        }
        self.count(Count::FaultsWoken, 1);
        self.kernel.wake(PageRange::one(page));
        Ok(Served::Done)
    }

    /// A page that was on its way out goes back, and once some of a chunk's pages have, its
    /// neighbours with it: each would cost a fault of its own.
    fn unstage(&mut self, index: ChunkIndex, place: usize) -> Result<Served, Fatal> {
        let chunk = self.table.get(index);
        let was_buffered = chunk.buffered & bit(place) != 0;
        let wanted = !was_buffered && chunk.resident.count_ones() >= RETURNED_MIN;
        let company = match wanted {
            true => chunk.staged & !chunk.buffered,
            false => 0,
        };
        let run = run_around(company | bit(place), place);
        let page = chunk.number.page(place);
        let first = chunk.number.page(run.trailing_zeros() as usize);
        if self.unstage_run(index, run).served(first, page) == Served::Later {
            return Ok(Served::Later);
        }
        if self.table.get(index).resident & bit(place) == 0 {
            // Unmapped: the event will say so.
            return Ok(Served::Done);
        }
        if was_buffered {
            self.count(Count::FaultsBuffered, 1);
            self.evict
                .handle_resident(PageIndex(index.0), Arrival::Demand);
        } else {
            self.count(Count::FaultsStaged, 1);
            self.evict.handle_staged_hit(PageIndex(index.0));
        }
        Ok(Served::Done)
    }

    /// Moves neighbouring staged pages back.
    fn unstage_run(&mut self, index: ChunkIndex, run: Mask) -> Landed {
        let chunk = self.table.get(index);
        let first = run.trailing_zeros() as usize;
        let pages = run.count_ones() as usize;
        let page = chunk.number.page(first);
        let slab = chunk.slab.expect("a staged page has a slab");
        let frame = self.staging.frame(slab, first);
        let landed = self.land(page, frame, pages);
        let there = span(first, first + landed.pages);
        // Unmapped, if it is not to be tried again: the event will say so.
        let gone = match landed.again {
            true => 0,
            false => run & !there,
        };
        let chunk = self.table.get_mut(index);
        chunk.staged &= !(there | gone);
        chunk.buffered &= !(there | gone);
        self.staged -= u64::from((there | gone).count_ones());
        self.discard_frames(slab, gone);
        self.mark_resident(index, there);
        landed
    }

    /// The far page, then those that will be wanted next. A program that runs through pages faster
    /// than they come would wait for the next at once: then they all come together.
    fn fetch(&mut self, page: PageNo, thread: u32) -> Result<Served, Fatal> {
        let upper = page.0 >> 32;
        let mut window = std::mem::take(&mut self.window);
        self.guarded = self.table.find(ChunkNo::of(page));
        let served = if self.hurry {
            self.plan_window(page, thread, &mut window);
            let together = window.landing == Landing::Mapped;
            match self.fetch_together(page, together.then_some(&window)) {
                Ok(Served::Done) if !together => {
                    self.fetch_window(&window, upper).map(|()| Served::Done)
                }
                other => other,
            }
        } else {
            match self.fetch_together(page, None) {
                Ok(Served::Done) => {
                    self.plan_window(page, thread, &mut window);
                    self.fetch_window(&window, upper).map(|()| Served::Done)
                }
                other => other,
            }
        };
        self.guarded = None;
        self.window = window;
        if matches!(served, Ok(Served::Done)) {
            self.count(Count::FaultsRemote, 1);
        }
        served
    }

    /// Brings in a page that somebody waits for, with others if there are any.
    fn fetch_together(
        &mut self,
        page: PageNo,
        window: Option<&prefetch::Window>,
    ) -> Result<Served, Fatal> {
        if self.make_room(1)? == Room::Later {
            return Ok(Served::Later);
        }
        let one = self.arriving(page);
        let Some(window) = window else {
            return self.bring_in(&[one], Some(page));
        };
        let mut batch = self.take_batch();
        batch.push(one);
        self.gather(window, page.0 >> 32, &mut batch)?;
        self.count(Count::Prefetched, batch.len() as u64 - 1);
        batch.sort_unstable_by_key(|arriving| arriving.page);
        let served = self.bring_in(&batch, Some(page));
        self.batch = batch;
        served
    }

    /// Brings every far page in, chunk by chunk, and says so each time; false if the address space changed
    /// meanwhile.
    pub fn fetch_all(&mut self, came_near: impl Fn()) -> Result<bool, Fatal> {
        let mut from = ChunkNo(0);
        while let Some((index, next)) = self.table.next_in(from..ChunkNo(u64::MAX)) {
            from = next;
            let chunk = self.table.get(index);
            let (number, staged) = (chunk.number, chunk.staged);
            came_near();
            for place in places(staged) {
                // It may have come along with another.
                let is_staged = self.table.get(index).staged & bit(place) != 0;
                if is_staged && self.unstage(index, place)? == Served::Later {
                    return Ok(false);
                }
            }
            for place in places(self.table.get(index).remote()) {
                let page = number.page(place);
                if self.bring_in(&[self.arriving(page)], Some(page))? == Served::Later {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn arriving(&self, page: PageNo) -> Incoming {
        let index = self
            .table
            .find(ChunkNo::of(page))
            .expect("a remote page is known");
        let chunk = self.table.get(index);
        let place = place_of(page);
        let slot = chunk.slot(place).expect("a remote page has a slot");
        Incoming {
            page,
            from: self.far_place(slot),
            print: chunk.print(place),
        }
    }

    /// What will be wanted after a page.
    fn plan_window(&mut self, page: PageNo, thread: u32, window: &mut prefetch::Window) {
        let mut policy = std::mem::replace(&mut self.prefetch, Box::new(prefetch::NoPrefetch));
        let fault = prefetch::Fault {
            page: PageIndex(page.0 as u32),
            thread,
            source: Source::Far,
        };
        let view = View {
            engine: self,
            upper: page.0 >> 32,
        };
        policy.handle_fault(fault, &view, window);
        self.prefetch = policy;
    }

    fn fetch_window(&mut self, window: &prefetch::Window, upper: u64) -> Result<(), Fatal> {
        if window.pages().is_empty() {
            return Ok(());
        }
        let mut batch = self.take_batch();
        self.gather(window, upper, &mut batch)?;
        self.count(Count::Prefetched, batch.len() as u64);
        batch.sort_unstable_by_key(|arriving| arriving.page);
        if window.landing == Landing::Mapped {
            self.bring_in(&batch, None)?;
        } else {
            self.buffer(&batch)?;
        }
        self.batch = batch;
        Ok(())
    }

    /// The list that pages are gathered in, empty; it is put back afterwards.
    fn take_batch(&mut self) -> Vec<Incoming> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch
    }

    /// Adds the pages of a window, as far as there is room for them.
    fn gather(
        &mut self,
        window: &prefetch::Window,
        upper: u64,
        batch: &mut Vec<Incoming>,
    ) -> Result<(), Fatal> {
        for index in window.pages() {
            if batch.len() == BATCH_MAX {
                break;
            }
            let page = PageNo(upper << 32 | u64::from(index.0));
            // Evicting for one neighbour may bring another's chunk into motion, never a remote page.
            let wanted = batch.len() as u64 + 1;
            if window.landing == Landing::Mapped && self.make_room(wanted)? != Room::Made {
                break;
            }
            batch.push(self.arriving(page));
        }
        Ok(())
    }

    /// Reads pages, checks them, and puts them into the program, the lowest last: that is the one
    /// somebody waits for when memory is read from front to back. `Later` if the page `wanted` could
    /// not be put there; others that could not are simply still far.
    fn bring_in(&mut self, arriving: &[Incoming], wanted: Option<PageNo>) -> Result<Served, Fatal> {
        let class = match wanted {
            Some(_) => Class::Demand,
            None => Class::Prefetch,
        };
        self.read_far(arriving, class)?;
        let mut served = Served::Done;
        let mut end = arriving.len();
        while end > 0 {
            let run = run_length(&arriving[..end]);
            let at = end - run;
            let landed = self.copy_in(arriving[at].page, &self.scratch[at..end]);
            for (offset, one) in arriving[at..end].iter().enumerate() {
                let is_wanted = wanted == Some(one.page);
                if offset < landed.pages {
                    let arrival = match is_wanted {
                        true => Arrival::Demand,
                        false => Arrival::Prefetch,
                    };
                    self.set_resident(one.page, arrival);
                } else if is_wanted && (landed.again || offset > landed.pages) {
                    served = Served::Later;
                }
            }
            end = at;
        }
        Ok(served)
    }

    /// Reads far pages into scratch memory; each is what was sent.
    fn read_far(&mut self, arriving: &[Incoming], class: Class) -> Result<(), Fatal> {
        let waits = self.kernel.waits(Wait::Server, None);
        self.far.read(arriving, &mut self.scratch, class)?;
        drop(waits);
        let bytes = (arriving.len() * PAGE_SIZE) as u64;
        self.count(Count::HashChecks, arriving.len() as u64);
        self.count(Count::BytesIn, bytes);
        Ok(())
    }

    pub(crate) fn far_place(&self, slot: SlotNo) -> FarPlace {
        let extent = self.slots.extent_of(slot);
        FarPlace {
            extent: extent.expect("a slot in use is in an extent"),
            place: slot.place(),
        }
    }

    /// Prefetched pages wait in the staging area, where a fault will find them.
    fn buffer(&mut self, arriving: &[Incoming]) -> Result<(), Fatal> {
        self.read_far(arriving, Class::Prefetch)?;
        for (at, one) in arriving.iter().enumerate() {
            if !self.has_room(1) && !self.drop_staged(self.allowed().saturating_sub(1)) {
                return Ok(());
            }
            let index = self.chunk_of(one.page);
            let place = place_of(one.page);
            // Dropping may have taken the very slab this chunk had.
            let Some(slab) = self.slab_for(index) else {
                return Ok(());
            };
            let frame = self.staging.frame(slab, place);
            if self.kernel.fill_frame(frame, &self.scratch[at]).is_ok() {
                let chunk = self.table.get_mut(index);
                chunk.staged |= bit(place);
                chunk.buffered |= bit(place);
                self.staged += 1;
            }
        }
        Ok(())
    }

    /// Puts frames into the program: by a move, or where the memory there does not allow that (it
    /// is read-only or executable, or the frame is shared after a fork) by a copy.
    pub(crate) fn land(&self, page: PageNo, frame: PageNo, pages: usize) -> Landed {
        let mut done = 0;
        let mut at_once = pages;
        while done < pages {
            let len = at_once.min(pages - done) as u64;
            let to = PageNo(page.0 + done as u64);
            let from = PageRange::new(PageNo(frame.0 + done as u64), len);
            if self.kernel.has_unfollowed_change() {
                return self.not_landed(to, done, Cause::Again);
            }
            match self.kernel.put_in(to, from) {
                Ok(()) => done += len as usize,
                Err(Partial { done_pages, .. }) if done_pages > 0 => done += done_pages as usize,
                Err(Partial { cause, .. }) if len > 1 && refuses_all(cause) => at_once = 1,
                Err(Partial {
                    cause: Cause::Invalid | Cause::Busy,
                    ..
                }) => {
                    // The frame is present, since it was refused for another reason.
                    let frame = self.kernel.frame(from.first());
                    let copied = self.copy_in(to, std::slice::from_ref(frame));
                    if copied.pages == 0 {
                        return Landed {
                            pages: done,
                            ..copied
                        };
                    }
                    self.kernel.discard(PageRange::one(from.first()));
                    done += 1;
                }
                Err(Partial { cause, .. }) => return self.not_landed(to, done, cause),
            }
        }
        Landed::all(pages)
    }

    /// Fills absent pages of the program with these.
    pub(crate) fn copy_in(&self, page: PageNo, from: &[K::Page]) -> Landed {
        self.fill(page, from.len(), |kernel, to, done| {
            let part = &from[done..done + to.pages() as usize];
            kernel.copy_in(to.first(), part)
        })
    }

    /// Fills absent pages by as many requests as it takes. A request that reaches beyond the end of
    /// a mapping is refused as a whole, so after a refusal they come one by one.
    fn fill(
        &self,
        page: PageNo,
        pages: usize,
        request: impl Fn(&K, PageRange, usize) -> Result<(), Partial>,
    ) -> Landed {
        let mut done = 0;
        let mut at_once = pages;
        while done < pages {
            let len = at_once.min(pages - done) as u64;
            let to = PageRange::new(PageNo(page.0 + done as u64), len);
            if self.kernel.has_unfollowed_change() {
                return self.not_landed(to.first(), done, Cause::Again);
            }
            match request(&self.kernel, to, done) {
                Ok(()) => done += len as usize,
                Err(Partial { done_pages, .. }) if done_pages > 0 => done += done_pages as usize,
                Err(Partial { cause, .. }) if len > 1 && refuses_all(cause) => at_once = 1,
                Err(Partial { cause, .. }) => return self.not_landed(to.first(), done, cause),
            }
        }
        Landed::all(pages)
    }

    /// Pages from this one on did not get into the program; what that means.
    fn not_landed(&self, page: PageNo, pages: usize, cause: Cause) -> Landed {
        match cause {
            // The address space is changing, or there is no memory at this moment.
            Cause::Again | Cause::NoMemory => Landed { pages, again: true },
            Cause::Exists => {
                // It is there; whoever waits for it was not woken.
                self.kernel.wake(PageRange::one(page));
                Landed {
                    pages,
                    again: false,
                }
            }
            // Unmapped, or mapped anew: whoever waited finds that out when woken.
            _ => {
                self.kernel.wake(PageRange::one(page));
                Landed {
                    pages,
                    again: false,
                }
            }
        }
    }

    /// First touches: zeros, in batches that grow while they follow each other.
    fn fill_zeros(&mut self, page: PageNo, write: bool) -> Result<Served, Fatal> {
        let mut touch = std::mem::take(&mut self.first_touch);
        let is_untouched = |other| self.is_untouched(PageNo(other));
        let most = match self.kernel.may_fill_untouched() {
            true => BATCH_MAX as u64,
            false => 1,
        };
        let fill = touch.handle_touch(page.0, most, is_untouched);
        self.first_touch = touch;
        let range = match self.make_room(fill.pages)? {
            Room::Made => PageRange::new(PageNo(fill.first), fill.pages),
            // Above what is allowed: no more than must be.
            Room::None => PageRange::one(page),
            Room::Later => return Ok(Served::Later),
        };
        let served = self.fill_new(range, page, write);
        if served == Served::Done {
            self.count(Count::FaultsZero, 1);
        }
        Ok(served)
    }

    fn is_untouched(&self, page: PageNo) -> bool {
        if self.never_there.contains(&page) {
            return false;
        }
        self.table.find(ChunkNo::of(page)).is_none_or(|index| {
            let chunk = self.table.get(index);
            (chunk.resident | chunk.staged | chunk.far) & bit(place_of(page)) == 0
        })
    }

    /// Zeros in new memory. For reads the kernel's one page of zeros does; a write would only fault
    /// again on that.
    fn fill_new(&mut self, range: PageRange, touched: PageNo, write: bool) -> Served {
        let (page, pages) = (range.first(), range.pages() as usize);
        let landed = match write {
            true => self.fill(page, pages, |kernel, range, _| kernel.fill_new(range)),
            false => self.fill(page, pages, |kernel, range, _| kernel.fill_zero(range)),
        };
        for offset in 0..landed.pages as u64 {
            self.set_resident(PageNo(page.0 + offset), Arrival::FirstTouch);
        }
        landed.served(page, touched)
    }
}

/// The neighbouring places of a set that one of them is among.
fn run_around(mask: Mask, place: usize) -> Mask {
    let before = (mask << (CHUNK_PAGES - 1 - place)).leading_ones() as usize;
    let from = (mask >> place).trailing_ones() as usize;
    span(place + 1 - before, place + from)
}

/// How many of the last pages follow each other.
fn run_length(arriving: &[Incoming]) -> usize {
    let follows = |pair: &&[Incoming]| pair[0].page.0 + 1 == pair[1].page.0;
    1 + arriving.windows(2).rev().take_while(follows).count()
}

/// The kernel refuses a request as a whole when not all of it is in one mapping.
fn refuses_all(cause: Cause) -> bool {
    matches!(cause, Cause::Absent | Cause::Invalid)
}

/// How many pages got into the program, and whether to try the others again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub pages: usize,
    pub again: bool,
}

impl Landed {
    /// Whether a thread that waits for the page `touched` goes on, when these are pages from `first`
    /// on. The page at which it ended was seen to; those after it were not tried.
    fn served(self, first: PageNo, touched: PageNo) -> Served {
        let at = (touched.0 - first.0) as usize;
        match at < self.pages || (at == self.pages && !self.again) {
            true => Served::Done,
            false => Served::Later,
        }
    }

    fn all(pages: usize) -> Landed {
        Landed {
            pages,
            again: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_where_a_place_is_missing() {
        assert_eq!(run_around(0b1, 0), 0b1);
        assert_eq!(run_around(0b0110_1110, 2), 0b0000_1110);
        assert_eq!(run_around(Mask::MAX, 7), Mask::MAX);
        assert_eq!(run_around(1 << 15, 15), 1 << 15);
    }
}
