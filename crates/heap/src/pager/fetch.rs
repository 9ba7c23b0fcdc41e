//! Pages come: on first touch, on demand, ahead of demand.

use super::*;
use muninn_policy::evict::Arrival;
use muninn_policy::prefetch::{FarPages, FarSlot, Fault, Source, WINDOW_PAGES_MAX, Window};
use muninn_sys::uffd::{Cause, CopyMode, Wake};
use muninn_types::Class;
use muninn_wire::Seg;

/// Pages filled with zeros at a time.
const FRESH_PAGES: u32 = 32;
static ZEROS: [u8; FRESH_PAGES as usize * PAGE_SIZE] = [0; FRESH_PAGES as usize * PAGE_SIZE];

impl FarPages for Pager {
    fn is_far(&self, page: PageIndex) -> bool {
        let state = self.states.get(page.0 as usize);
        state.is_some_and(|state| state.load(Relaxed) == EVICTED)
    }
    fn slot_of(&self, page: PageIndex) -> Option<FarSlot> {
        Some(FarSlot(u64::from(page.0)))
    }
    fn page_at(&self, slot: FarSlot) -> Option<PageIndex> {
        u32::try_from(slot.0).ok().map(PageIndex)
    }
}

impl Pager {
    /// A thread touched this address and was stopped.
    pub(super) fn fault_at(&self, addr: usize, write: bool) {
        self.fault(
            ((addr as u64 - self.map.addr()) >> PAGE_SHIFT) as u32,
            write,
        );
    }

    /// A thread needs this page.
    pub(super) fn fault(&self, page: u32, write: bool) {
        let wanted = |state| match state {
            INIT | EVICTED => true,
            CLEAN => write,
            _ => false,
        };
        match self.take(page, wanted) {
            // In a lost heap a page may be neither there nor on its way. Whatever the thread finds,
            // it looks at the alarm next; but it must get that far.
            None if self.is_lost() => self.let_through(page),
            // Somebody else was faster.
            None => {}
            Some(CLEAN) => {
                self.counters.write_faults.fetch_add(1, Relaxed);
                self.protect(page, 1, false);
                self.state(page).store(DIRTY | touch::TOUCHED, Release);
            }
            Some(INIT) => {
                self.make_room(1);
                self.fill(page, 1, ZEROS.as_ptr(), false);
                self.arrived(page, Arrival::FirstTouch, DIRTY);
            }
            _ => self.fetch(page, write),
        }
    }

    /// Makes a page of a lost heap one that can be touched.
    #[cold]
    fn let_through(&self, page: u32) {
        let range = self.range(page, 1);
        let mode = CopyMode {
            wake: Wake::Later,
            write_protected: false,
        };
        // What cannot be done has been done already: it is mapped, or writable.
        let _ = self.uffd.write_protect(range, false, Wake::Later);
        // SAFETY: the buffer has more than a page.
        let _ = unsafe { self.uffd.copy(range, ZEROS.as_ptr(), mode) };
    }

    fn fetch(&self, page: u32, write: bool) {
        self.counters.faults.fetch_add(1, Relaxed);
        let mut window = Window::default();
        {
            let fault = Fault {
                page: index(page),
                thread: registry::thread_number(),
                source: Source::Far,
            };
            let mut policies = self.lock_policies();
            policies.prefetch.handle_fault(fault, self, &mut window);
        }
        self.make_room(1);
        let state = if write { DIRTY } else { CLEAN };
        self.fetch_run(page, 1, state, Arrival::Demand);
        self.prefetch(window.pages());
    }

    /// Brings pages that will be touched soon.
    fn prefetch(&self, pages: &[PageIndex]) {
        let mut taken = [0u32; WINDOW_PAGES_MAX];
        let mut count = 0;
        for page in pages.iter().take(self.limit_pages() as usize / 8) {
            if self.try_take(page.0, |state| state == EVICTED).is_some() {
                taken[count] = page.0;
                count += 1;
            }
        }
        let taken = &mut taken[..count];
        taken.sort_unstable();
        self.make_room(count as u64);
        for run in taken.chunk_by(|a, b| a + 1 == *b && self.same_home(*a, *b)) {
            self.fetch_run(run[0], run.len() as u32, CLEAN, Arrival::Prefetch);
        }
        let prefetched = &self.counters.prefetched_pages;
        prefetched.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn same_home(&self, a: u32, b: u32) -> bool {
        self.copies.is_some() || std::ptr::eq(self.home(a).0, self.home(b).0)
    }

    /// Reads a run of pages, all taken and of one home, and lets them be used.
    fn fetch_run(&self, first: u32, pages: u32, state: u8, arrival: Arrival) {
        let class = match arrival {
            Arrival::Prefetch => Class::Prefetch,
            _ => Class::Demand,
        };
        let mut done = first;
        let read = self.read_home((first, pages), class, |first, pages, bytes| {
            self.fill(first, pages, bytes, state == CLEAN);
            done = first + pages;
        });
        self.counters
            .fetched_pages
            .fetch_add(u64::from(done - first), Relaxed);
        for page in first..done {
            self.arrived(page, arrival, state);
        }
        if read.is_err() {
            let left = first + pages - done;
            self.fill(done, left, ZEROS.as_ptr(), false);
            for page in done..first + pages {
                self.state(page).store(LOST, Release);
            }
        }
    }

    /// Reads a run of pages of one home and shows them, in order: the first, how many, and their
    /// bytes. If that fails the heap is lost.
    fn read_home(
        &self,
        (first, pages): (u32, u32),
        class: Class,
        mut show: impl FnMut(u32, u32, *const u8),
    ) -> Result<(), ()> {
        // Once lost is lost: another server that is gone would be waited for as long again.
        if self.is_lost() {
            return Err(());
        }
        if let Some(copies) = &self.copies {
            let read = copies.read(first, pages, class, show);
            return read.map_err(|e| self.lose(first, &e));
        }
        let (grant, offset) = self.home(first);
        let len = pages << PAGE_SHIFT;
        let mut slot = self.lane(grant.server);
        let LaneSlot { lane, buffer } = &mut *slot;
        let into = &mut buffer[..len as usize];
        lane.read_v(class, &[Seg::new(grant.id, offset, len)], into)
            .map_err(|e| self.lose(first, &e))?;
        show(first, pages, buffer.as_ptr());
        Ok(())
    }

    /// Maps bytes where nothing is mapped. `from` has that many pages; zeros come in pieces.
    fn fill(&self, first: u32, pages: u32, from: *const u8, write_protected: bool) {
        let is_zeros = std::ptr::eq(from, ZEROS.as_ptr());
        let mut done = 0;
        while done < pages {
            let most = if is_zeros { FRESH_PAGES } else { pages };
            let now = (pages - done).min(most);
            let range = self.range(first + done, now);
            let at = if is_zeros {
                from
            } else {
                from.wrapping_add((done as usize) << PAGE_SHIFT)
            };
            let mode = CopyMode {
                wake: Wake::Later,
                write_protected,
            };
            // SAFETY: `from` is a buffer of at least this many pages (or the page of zeros, of
            // which no more than it has are taken at a time).
            match unsafe { self.uffd.copy(range, at, mode) } {
                Ok(()) => done += now,
                Err(partial) if partial.cause == Cause::Again => {
                    done += partial.done_pages as u32;
                }
                Err(partial) => {
                    done += partial.done_pages as u32;
                    let page = first + done;
                    self.lose(page, &partial.cause);
                    return;
                }
            }
        }
    }

    pub(super) fn protect(&self, first: u32, pages: u32, protect: bool) {
        let range = self.range(first, pages);
        if let Err(error) = self.uffd.write_protect(range, protect, Wake::Later) {
            self.lose(first, &error);
        }
    }

    fn arrived(&self, page: u32, arrival: Arrival, state: u8) {
        self.cached_pages.fetch_add(1, Relaxed);
        let mut policies = self.lock_policies();
        policies.evict.handle_resident(index(page), arrival);
        let settled = policies.recent.push(page);
        drop(policies);
        self.take_touched(settled);
        self.state(page).store(state, Release);
    }

    /// Maps fresh zeros over a range that is about to be allocated in, without a fault for each page.
    pub fn populate(&self, places: Range<u64>) {
        let pages = self.pages_of(places);
        let mut run = pages.start..pages.start;
        for page in pages.clone() {
            if self.try_take(page, |state| state == INIT).is_some() {
                if run.end != page || run.len() as u32 == FRESH_PAGES {
                    self.fresh(run);
                    run = page..page;
                }
                run.end = page + 1;
            }
        }
        self.fresh(run);
    }

    fn fresh(&self, run: Range<u32>) {
        if run.is_empty() {
            return;
        }
        self.make_room(run.len() as u64);
        self.fill(run.start, run.len() as u32, ZEROS.as_ptr(), false);
        for page in run {
            self.arrived(page, Arrival::FirstTouch, DIRTY);
        }
    }

    /// Brings the far pages of a range, without waiting for those that are being changed.
    pub fn preload(&self, places: Range<u64>) {
        let pages: Vec<PageIndex> = self.pages_of(places).map(PageIndex).collect();
        for some in pages.chunks(WINDOW_PAGES_MAX) {
            self.prefetch(some);
        }
    }

    /// An agent has written these pages: what was cached of them is brought up to date, the rest
    /// is at its home.
    pub fn refresh(&self, page: u32) {
        let Some(state) = self.take(page, |state| matches!(state, CLEAN | INIT)) else {
            return;
        };
        if state == INIT {
            self.state(page).store(EVICTED, Release);
            return;
        }
        let (grant, offset) = self.home(page);
        let mut slot = self.lane(grant.server);
        let LaneSlot { lane, buffer } = &mut *slot;
        let into = &mut buffer[..PAGE_SIZE];
        let seg = Seg::new(grant.id, offset, PAGE_SIZE as u32);
        if let Err(error) = lane.read_v(Class::Demand, &[seg], into) {
            self.lose(page, &error);
        } else {
            self.protect(page, 1, false);
            // SAFETY: the page is mapped (it was Clean) and writable now, and Busy: no other thread
            // changes it. Mutators are stopped, so nobody reads it either.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    into.as_ptr(),
                    self.address(u64::from(page) << PAGE_SHIFT),
                    PAGE_SIZE,
                );
            }
            self.protect(page, 1, true);
        }
        self.counters.refreshed_pages.fetch_add(1, Relaxed);
        self.state(page).store(CLEAN, Release);
    }

    /// An agent has filled these pages, of which none is cached.
    pub fn adopt(&self, places: Range<u64>) {
        for page in self.pages_of(places) {
            if self.take(page, |state| state == INIT).is_some() {
                self.state(page).store(EVICTED, Release);
            }
        }
    }
}
