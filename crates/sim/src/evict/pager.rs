//! The live pager's mechanism, without a kernel: what is resident, staged, buffered and far.
//!
//! Local memory is shared by three: resident pages, the staging area and the read buffer; their sum
//! never exceeds it, which is asserted. A fault fetches its page first, then the window that the
//! prefetch policy asks for. When room is short, runs of victims go into the staging area; what has
//! waited there longest leaves, written if it changed and dropped if the far copy is still good. A
//! touch of a staged page brings it back. Victims that are written get slots in the order they leave,
//! so pages evicted together lie together.
//!
//! Known limit: one event at a time; a reclaimer that falls behind is the network simulator's matter.

use super::cost::Transport;
use super::trace::Access;
use muninn_policy::evict::{Arrival, Evict, PageIndex, RUN_PAGES_MAX};
use muninn_policy::prefetch::{FarPages, FarSlot, Fault, Landing, Prefetch, Source, Window};
use muninn_types::Percent;
use std::collections::VecDeque;

const NO_SLOT: u32 = u32::MAX;

/// How local memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    pub local_pages: u32,
    pub staging_pages: u32,
    pub buffer_pages: u32,
}

/// The largest staging area and read buffer (COMEX's size for the latter).
const STAGING_PAGES_MAX: u32 = 4_096;
const BUFFER_PAGES_MAX: u32 = 4_096;

impl Division {
    /// The staging area takes its share of local memory (up to a bound), the read buffer at most a sixteenth.
    pub fn of(local_pages: u32, staging: Percent) -> Division {
        let share_pages = (f64::from(local_pages) * staging.ratio()) as u32;
        Division {
            local_pages,
            staging_pages: share_pages.min(STAGING_PAGES_MAX),
            buffer_pages: (local_pages / 16).min(BUFFER_PAGES_MAX),
        }
    }

    /// Runs are no longer than half of the staging area, or a run would push out its own beginning.
    fn run_pages_max(&self) -> u32 {
        (self.staging_pages / 2).clamp(1, RUN_PAGES_MAX)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untouched,
    Resident,
    Staged,
    Buffered,
    Far,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    state: State,
    /// Changed since the far copy was made; a page without a far copy counts as changed.
    dirty: bool,
    /// Fetched ahead and not used since.
    ahead: bool,
    slot: u32,
    /// Tells a live entry of the staging area or read buffer from one that was left behind.
    ticket: u32,
    /// How it came, and the accesses at which it came and was staged.
    came: Came,
    came_at: u32,
    staged_at: u32,
}

/// How a page came to be resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    FirstTouch,
    Demand,
    Prefetch,
    StagedHit,
}

impl Came {
    pub const ALL: [Came; 4] = [
        Came::FirstTouch,
        Came::Demand,
        Came::Prefetch,
        Came::StagedHit,
    ];

    fn of(arrival: Arrival) -> Came {
        match arrival {
            Arrival::FirstTouch => Came::FirstTouch,
            Arrival::Demand | Arrival::Kept => Came::Demand,
            Arrival::Prefetch => Came::Prefetch,
        }
    }
}

/// Which pages the staged hits are.
#[derive(Clone, Debug, PartialEq)]
pub struct StagedHits {
    /// By how the page had come before it was staged.
    pub by_arrival: [u64; Came::ALL.len()],
    pub writes: u64,
    /// Accesses since the page was staged, and from its arrival until then: how many of them have how
    /// many binary digits.
    pub waited: [u64; AGES],
    pub stayed: [u64; AGES],
}

/// Ages are kept by their binary digits; no trace has more accesses.
const AGES: usize = 33;

impl Default for StagedHits {
    fn default() -> StagedHits {
        StagedHits {
            by_arrival: [0; Came::ALL.len()],
            writes: 0,
            waited: [0; AGES],
            stayed: [0; AGES],
        }
    }
}

impl StagedHits {
    fn count(&mut self, page: &Page, now: u32, write: bool) {
        let digits = |age: u32| (u32::BITS - age.leading_zeros()) as usize;
        self.by_arrival[page.came as usize] += 1;
        self.writes += u64::from(write);
        self.waited[digits(now.wrapping_sub(page.staged_at))] += 1;
        self.stayed[digits(page.staged_at.wrapping_sub(page.came_at))] += 1;
    }

    /// The age that half of them do not exceed, as the largest number of so many digits.
    pub fn median(ages: &[u64; AGES]) -> Option<u64> {
        let all: u64 = ages.iter().sum();
        let mut seen = 0;
        ages.iter().zip(0u32..).find_map(|(count, digits)| {
            seen += count;
            (all > 0 && seen * 2 >= all).then(|| (1u64 << digits) - 1)
        })
    }
}

/// What happened, and what it cost through either transport.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    pub accesses: u64,
    /// Accesses that found their page far.
    pub misses: u64,
    pub staged_hits: u64,
    pub staged: StagedHits,
    pub buffer_hits: u64,
    pub first_touches: u64,
    pub prefetched: u64,
    pub prefetch_used: u64,
    pub pages_staged: u64,
    pub runs: u64,
    pub pages_written: u64,
    pub pages_dropped: u64,
    pub shm_ns: f64,
    pub tcp_ns: f64,
}

/// The page table, apart from the policies so that they can look into it.
#[derive(Debug)]
struct Table {
    pages: Vec<Page>,
    /// The page in each slot.
    slots: Vec<u32>,
    cursor: usize,
}

impl FarPages for Table {
    fn is_far(&self, page: PageIndex) -> bool {
        let page = self.pages.get(page.0 as usize);
        page.is_some_and(|p| p.state == State::Far)
    }
    fn slot_of(&self, page: PageIndex) -> Option<FarSlot> {
        let page = self.pages.get(page.0 as usize);
        page.filter(|p| p.slot != NO_SLOT)
            .map(|p| FarSlot(u64::from(p.slot)))
    }
    fn page_at(&self, slot: FarSlot) -> Option<PageIndex> {
        let page = *self.slots.get(usize::try_from(slot.0).ok()?)?;
        (page != NO_SLOT).then_some(PageIndex(page))
    }
}

impl Table {
    /// Gives a page the next free slot; the old one is free again.
    fn write(&mut self, page: u32) {
        let old = self.pages[page as usize].slot;
        if old != NO_SLOT {
            self.slots[old as usize] = NO_SLOT;
        }
        // There are twice as many slots as pages, so one is free.
        while self.slots[self.cursor] != NO_SLOT {
            self.cursor = (self.cursor + 1) % self.slots.len();
        }
        self.slots[self.cursor] = page;
        self.pages[page as usize].slot = self.cursor as u32;
        self.pages[page as usize].dirty = false;
    }
}

#[derive(Debug)]
pub struct Pager {
    division: Division,
    table: Table,
    evict: Box<dyn Evict>,
    prefetch: Box<dyn Prefetch>,
    window: Window,
    staging: VecDeque<(u32, u32)>,
    buffer: VecDeque<(u32, u32)>,
    staged: u32,
    buffered: u32,
    counts: Counts,
    /// Accesses so far, before the counts were reset as well.
    now: u32,
}

impl Pager {
    pub fn new(
        table_pages: u32,
        division: Division,
        evict: Box<dyn Evict>,
        prefetch: Box<dyn Prefetch>,
    ) -> Pager {
        let untouched = Page {
            state: State::Untouched,
            dirty: true,
            ahead: false,
            slot: NO_SLOT,
            ticket: 0,
            came: Came::FirstTouch,
            came_at: 0,
            staged_at: 0,
        };
        Pager {
            division,
            table: Table {
                pages: vec![untouched; table_pages as usize],
                slots: vec![NO_SLOT; 2 * table_pages as usize],
                cursor: 0,
            },
            evict,
            prefetch,
            window: Window::default(),
            staging: VecDeque::new(),
            buffer: VecDeque::new(),
            staged: 0,
            buffered: 0,
            counts: Counts::default(),
            now: 0,
        }
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Starts counting anew; memory stays as it is.
    pub fn reset_counts(&mut self) {
        self.counts = Counts::default();
        // Used or not, what was fetched before is not of this count.
        for page in &mut self.table.pages {
            page.ahead = false;
        }
    }

    pub fn access(&mut self, access: Access) {
        self.counts.accesses += 1;
        self.now += 1;
        let index = access.page;
        let page = &mut self.table.pages[index as usize];
        if std::mem::take(&mut page.ahead) {
            self.counts.prefetch_used += 1;
        }
        match page.state {
            State::Resident => {}
            State::Staged => self.staged_hit(index, access.write),
            State::Untouched => {
                self.counts.first_touches += 1;
                self.make_room(1);
                self.land(index, Arrival::FirstTouch);
            }
            State::Buffered => {
                page.state = State::Far;
                self.buffered -= 1;
                self.counts.buffer_hits += 1;
                self.charge(Transport::buffer_hit_ns);
                self.fault(access, Source::Buffer);
            }
            State::Far => {
                self.counts.misses += 1;
                self.charge(Transport::demand_ns);
                self.fault(access, Source::Far);
            }
        }
        self.table.pages[index as usize].dirty |= access.write;
        let used = self.evict.resident_pages() + self.staged + self.buffered;
        assert!(
            used <= self.division.local_pages,
            "{used} local pages are used"
        );
    }

    fn staged_hit(&mut self, index: u32, write: bool) {
        self.counts.staged_hits += 1;
        let now = self.now;
        self.charge(Transport::staged_hit_ns);
        self.staged -= 1;
        let page = &mut self.table.pages[index as usize];
        self.counts.staged.count(page, now, write);
        (page.came, page.came_at) = (Came::StagedHit, now);
        page.state = State::Resident;
        page.ticket = page.ticket.wrapping_add(1);
        self.evict.handle_staged_hit(PageIndex(index));
    }

    /// The faulted page first, then its window.
    fn fault(&mut self, access: Access, source: Source) {
        self.make_room(1);
        self.land(access.page, Arrival::Demand);
        let fault = Fault {
            page: PageIndex(access.page),
            thread: u32::from(access.thread),
            source,
        };
        let mut window = std::mem::take(&mut self.window);
        self.prefetch.handle_fault(fault, &self.table, &mut window);
        match window.landing {
            Landing::Mapped => self.prefetch_mapped(access.page, &window),
            Landing::Buffered => self.prefetch_buffered(&window),
        }
        self.window = window;
    }

    fn prefetch_mapped(&mut self, faulted: u32, window: &Window) {
        // A window never takes more than a quarter of local memory, or it would push itself out.
        let pages_max = (self.division.local_pages / 4) as usize;
        let pages = &window.pages()[..window.pages().len().min(pages_max)];
        if pages.is_empty() {
            return;
        }
        self.make_room(pages.len() as u32);
        for page in pages {
            self.land(page.0, Arrival::Prefetch);
            self.table.pages[page.0 as usize].ahead = true;
        }
        self.counts.prefetched += pages.len() as u64;
        self.charge(|transport| transport.prefetch_mapped_ns(pages.len() as u32));
        // Making room may have staged the faulted page itself where memory is tiny.
        if self.table.pages[faulted as usize].state == State::Staged {
            self.staged_hit(faulted, false);
        }
    }

    fn prefetch_buffered(&mut self, window: &Window) {
        let pages_max = self.division.buffer_pages as usize;
        let pages = &window.pages()[..window.pages().len().min(pages_max)];
        if pages.is_empty() {
            return;
        }
        while self.buffered + pages.len() as u32 > self.division.buffer_pages {
            self.drop_oldest_buffered();
        }
        self.make_room(pages.len() as u32);
        for page in pages {
            let record = &mut self.table.pages[page.0 as usize];
            record.state = State::Buffered;
            record.ahead = true;
            record.ticket = record.ticket.wrapping_add(1);
            self.buffer.push_back((page.0, record.ticket));
            self.buffered += 1;
        }
        self.counts.prefetched += pages.len() as u64;
        self.charge(|transport| transport.prefetch_buffered_ns(pages.len() as u32));
    }

    fn drop_oldest_buffered(&mut self) {
        while let Some((index, ticket)) = self.buffer.pop_front() {
            let page = &mut self.table.pages[index as usize];
            if page.state == State::Buffered && page.ticket == ticket {
                page.state = State::Far;
                page.ahead = false;
                self.buffered -= 1;
                self.prefetch.handle_wasted(PageIndex(index));
                return;
            }
        }
    }

    fn land(&mut self, index: u32, arrival: Arrival) {
        let page = &mut self.table.pages[index as usize];
        page.state = State::Resident;
        page.ticket = page.ticket.wrapping_add(1);
        (page.came, page.came_at) = (Came::of(arrival), self.now);
        self.evict.handle_resident(PageIndex(index), arrival);
    }

    /// Stages victims until the staging area has its full share, then lets the oldest staged pages
    /// leave until there is room.
    fn make_room(&mut self, wanted: u32) {
        let Division {
            local_pages,
            staging_pages,
            ..
        } = self.division;
        let resident_max = local_pages.saturating_sub(staging_pages + self.buffered + wanted);
        while self.evict.resident_pages() > resident_max {
            self.stage_run();
        }
        while self.evict.resident_pages() + self.staged + self.buffered + wanted > local_pages {
            if !self.leave_oldest_staged() {
                // Nothing is staged: the read buffer is what is left.
                self.drop_oldest_buffered();
            }
        }
    }

    fn stage_run(&mut self) {
        let run = self.evict.next_run(self.division.run_pages_max());
        let run = run.expect("a policy gives out a run while pages are resident");
        for index in run.iter() {
            let page = &mut self.table.pages[index.0 as usize];
            assert_eq!(page.state, State::Resident, "victim {index:?}");
            page.state = State::Staged;
            page.ticket = page.ticket.wrapping_add(1);
            page.staged_at = self.now;
            self.staging.push_back((index.0, page.ticket));
        }
        self.staged += run.pages;
        self.counts.runs += 1;
        self.counts.pages_staged += u64::from(run.pages);
        self.charge(|transport| transport.stage_ns(run.pages));
    }

    /// False when nothing is staged.
    fn leave_oldest_staged(&mut self) -> bool {
        while let Some((index, ticket)) = self.staging.pop_front() {
            let page = &mut self.table.pages[index as usize];
            if page.state != State::Staged || page.ticket != ticket {
                continue;
            }
            page.state = State::Far;
            page.ahead = false;
            let written = page.dirty;
            if written {
                self.table.write(index);
                self.counts.pages_written += 1;
            } else {
                self.counts.pages_dropped += 1;
            }
            self.staged -= 1;
            self.charge(|transport| transport.leave_ns(written));
            self.evict.handle_evicted(PageIndex(index));
            return true;
        }
        false
    }

    fn charge(&mut self, cost: impl Fn(Transport) -> f64) {
        self.counts.shm_ns += cost(Transport::Shm);
        self.counts.tcp_ns += cost(Transport::Tcp);
    }
}
