//! The kernel below the engine, where pages are numbers.
//!
//! A page's contents is the version of it that there is: 0 are zeros, each write makes a new one. Nothing is
//! refused and nothing happens in between; what the engine asks for is done, counted, and paid for
//! ([`Transport`]).
//!
//! Invariant: a page is in one place, the program or a frame; whoever takes one from where it is not ends the
//! replay with a panic.

use super::cost::Transport;
use muninn_pager_core::staging::FRAMES;
use muninn_pager_core::{ChunkNo, Count, Kernel, Mask, Wait};
use muninn_types::{Cause, Nanos, PageNo, PageRange, Partial};
use std::cell::{Cell, RefCell};

/// Contents of a page.
pub type Version = u64;
const ABSENT: Version = Version::MAX;
pub const ZEROS: Version = 0;

/// Where the trace's pages begin: at the begin of a chunk.
const FIRST: u64 = 1 << 12;
/// Where the frames are.
const FRAMES_AT: u64 = 1 << 40;

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
}

/// What is remembered of a page beside its contents.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// How it came, and the accesses at which it came and was staged.
    came: Came,
    came_at: u32,
    staged_at: u32,
    /// Fetched ahead and not used since.
    ahead: bool,
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
    fn count(&mut self, note: &Note, now: u32, write: bool) {
        let digits = |age: u32| (u32::BITS - age.leading_zeros()) as usize;
        self.by_arrival[note.came as usize] += 1;
        self.writes += u64::from(write);
        self.waited[digits(now.wrapping_sub(note.staged_at))] += 1;
        self.stayed[digits(note.staged_at.wrapping_sub(note.came_at))] += 1;
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

/// What happened below the engine, and what it cost through either transport.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub counts: [u64; Count::NUMBER],
    pub staged: StagedHits,
    pub prefetch_used: u64,
    pub pages_staged: u64,
    pub runs: u64,
    /// Frames given back, and in how many calls.
    pub pages_discarded: u64,
    pub discards: u64,
    pub shm_ns: f64,
    pub tcp_ns: f64,
}

impl Tally {
    pub fn of(&self, what: Count) -> u64 {
        self.counts[what as usize]
    }

    fn charge(&mut self, cost: impl Fn(Transport) -> f64) {
        self.shm_ns += cost(Transport::Shm);
        self.tcp_ns += cost(Transport::Tcp);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    page: u32,
    write: bool,
}

#[derive(Debug)]
pub struct Near {
    program: Box<[Cell<Version>]>,
    /// Pages that the trace names: nothing else is mapped.
    mapped: Box<[bool]>,
    notes: RefCell<Box<[Note]>>,
    frames: Box<[Cell<Version>]>,
    /// Frames into which pages were fetched ahead.
    buffered: Box<[Cell<bool>]>,
    tally: RefCell<Tally>,
    /// Accesses so far, and the one that goes on now.
    now: Cell<u32>,
    touched: Cell<Touched>,
    /// The version that the next write makes.
    next: Cell<Version>,
}

impl Near {
    pub fn new(mapped: Box<[bool]>) -> Near {
        let note = Note {
            came: Came::FirstTouch,
            came_at: 0,
            staged_at: 0,
            ahead: false,
        };
        Near {
            program: vec![Cell::new(ABSENT); mapped.len()].into(),
            notes: RefCell::new(vec![note; mapped.len()].into()),
            mapped,
            frames: vec![Cell::new(ABSENT); FRAMES as usize].into(),
            buffered: vec![Cell::new(false); FRAMES as usize].into(),
            tally: RefCell::default(),
            now: Cell::new(0),
            touched: Cell::default(),
            next: Cell::new(ZEROS + 1),
        }
    }

    pub fn frames() -> PageRange {
        PageRange::new(PageNo(FRAMES_AT), FRAMES)
    }
    pub fn page(index: u32) -> PageNo {
        PageNo(FIRST + u64::from(index))
    }

    /// The program touches a page; whether it is there.
    pub fn begin_access(&self, index: u32, write: bool) -> bool {
        self.now.set(self.now.get() + 1);
        self.touched.set(Touched { page: index, write });
        let note = &mut self.notes.borrow_mut()[index as usize];
        if std::mem::take(&mut note.ahead) {
            self.tally.borrow_mut().prefetch_used += 1;
        }
        self.is_there(index)
    }

    pub fn is_there(&self, index: u32) -> bool {
        self.program[index as usize].get() != ABSENT
    }

    /// It does what it wanted. What is read must have been written before it is recorded, or after: in a
    /// trace only the first touch of a page in a while is seen, so a page that is used is not zeros.
    pub fn end_access(&self, index: u32, write: bool) {
        let cell = &self.program[index as usize];
        assert_ne!(cell.get(), ABSENT, "page {index} is used and not there");
        if write || cell.get() == ZEROS {
            cell.set(self.next.get());
            self.next.set(self.next.get() + 1);
        }
    }

    #[cfg(test)]
    pub fn frames_used(&self) -> u64 {
        let used = self.frames.iter().filter(|frame| frame.get() != ABSENT);
        used.count() as u64
    }

    pub fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    /// Starts counting anew; memory stays as it is.
    pub fn reset_tally(&self) {
        *self.tally.borrow_mut() = Tally::default();
        // Used or not, what was fetched before is not of this count.
        for note in &mut *self.notes.borrow_mut() {
            note.ahead = false;
        }
    }

    pub fn charge(&self, cost: impl Fn(Transport) -> f64) {
        self.tally.borrow_mut().charge(cost);
    }

    fn place(&self, page: PageNo) -> Option<&Cell<Version>> {
        match page.0.checked_sub(FRAMES_AT) {
            Some(frame) => self.frames.get(frame as usize),
            None => self.program.get(page.0.checked_sub(FIRST)? as usize),
        }
    }

    fn is_mapped_at(&self, page: PageNo) -> bool {
        let index = page.0.checked_sub(FIRST);
        index.is_some_and(|at| self.mapped.get(at as usize) == Some(&true))
    }

    /// Puts a version where there is none.
    fn fill(&self, page: PageNo, version: Version) -> Result<(), Cause> {
        if !self.is_mapped_at(page) && page.0 < FRAMES_AT {
            return Err(Cause::Absent);
        }
        let place = self.place(page).ok_or(Cause::Absent)?;
        if place.get() != ABSENT {
            return Err(Cause::Exists);
        }
        place.set(version);
        Ok(())
    }

    /// Fills pages of the program, up to the first that cannot be.
    fn fill_all(
        &self,
        range: PageRange,
        version: impl Fn(usize) -> Version,
        came: impl Fn(bool) -> Came,
    ) -> Result<(), Partial> {
        for (at, page) in range.iter().enumerate() {
            self.fill(page, version(at))
                .map_err(|cause| Partial::new(at as u64, cause))?;
            self.note_arrival(page, &came);
        }
        Ok(())
    }

    /// Moves pages, all of which must be there.
    fn move_pages(&self, to: PageNo, from: PageRange) {
        for (at, page) in from.iter().enumerate() {
            let place = self.place(page).expect("a page of ours");
            let version = place.replace(ABSENT);
            assert_ne!(version, ABSENT, "{page:?} is taken and not there");
            self.fill(PageNo(to.0 + at as u64), version)
                .expect("there is room where it goes");
        }
    }

    fn note_arrival(&self, page: PageNo, came: impl Fn(bool) -> Came) {
        let index = (page.0 - FIRST) as u32;
        let is_touched = self.touched.get().page == index;
        let note = &mut self.notes.borrow_mut()[index as usize];
        note.came = came(is_touched);
        note.came_at = self.now.get();
        note.ahead = note.came == Came::Prefetch;
    }
}

impl Kernel for Near {
    type Page = Cell<Version>;
    type Taking = ();
    type Waits<'a> = ();

    fn begin_taking(&self) {}
    fn staying(&self, (): &(), _: ChunkNo) -> Mask {
        0
    }
    fn take_out(&self, to: PageNo, from: PageRange) -> Result<(), Partial> {
        self.move_pages(to, from);
        let now = self.now.get();
        for page in from.iter() {
            self.notes.borrow_mut()[(page.0 - FIRST) as usize].staged_at = now;
        }
        let mut tally = self.tally.borrow_mut();
        tally.runs += 1;
        tally.pages_staged += from.pages();
        tally.charge(|transport| transport.stage_ns(from.pages() as u32));
        Ok(())
    }
    fn put_in(&self, to: PageNo, from: PageRange) -> Result<(), Partial> {
        self.move_pages(to, from);
        let touched = self.touched.get();
        for (page, frame) in PageRange::new(to, from.pages()).iter().zip(from.iter()) {
            let buffered = self.buffered[(frame.0 - FRAMES_AT) as usize].take();
            let index = (page.0 - FIRST) as u32;
            let note = self.notes.borrow()[index as usize];
            let mut tally = self.tally.borrow_mut();
            match buffered {
                true => tally.prefetch_used += 1,
                false if index == touched.page => {
                    tally.staged.count(&note, self.now.get(), touched.write);
                }
                false => {}
            }
            drop(tally);
            self.note_arrival(page, |_| match buffered {
                true => Came::Demand,
                false => Came::StagedHit,
            });
        }
        Ok(())
    }
    fn copy_in(&self, to: PageNo, from: &[Cell<Version>]) -> Result<(), Partial> {
        let range = PageRange::new(to, from.len() as u64);
        let touched = Near::page(self.touched.get().page);
        let ahead = range.pages() - u64::from(range.contains(touched));
        if ahead > 0 {
            self.charge(|transport| transport.prefetch_mapped_ns(ahead as u32));
        }
        let came = |touched| match touched {
            true => Came::Demand,
            false => Came::Prefetch,
        };
        self.fill_all(range, |at| from[at].get(), came)
    }
    fn fill_new(&self, range: PageRange) -> Result<(), Partial> {
        self.fill_all(range, |_| ZEROS, |_| Came::FirstTouch)
    }
    fn fill_zero(&self, range: PageRange) -> Result<(), Partial> {
        self.fill_new(range)
    }
    fn wake(&self, _: PageRange) {}
    fn fill_frame(&self, frame: PageNo, page: &Cell<Version>) -> Result<(), Partial> {
        self.fill(frame, page.get())
            .map_err(|cause| Partial::new(0, cause))?;
        self.buffered[(frame.0 - FRAMES_AT) as usize].set(true);
        self.charge(|transport| transport.prefetch_buffered_ns(1));
        Ok(())
    }
    fn frame(&self, frame: PageNo) -> &Cell<Version> {
        let frame = self.place(frame).expect("a frame of ours");
        assert_ne!(frame.get(), ABSENT, "an absent frame is looked at");
        frame
    }
    fn is_changing(&self) -> bool {
        false
    }
    fn discard(&self, frames: PageRange) {
        for frame in frames.iter() {
            self.place(frame).expect("a frame of ours").set(ABSENT);
            self.buffered[(frame.0 - FRAMES_AT) as usize].set(false);
        }
        let mut tally = self.tally.borrow_mut();
        tally.discards += 1;
        tally.pages_discarded += frames.pages();
    }
    fn present(&self, range: PageRange) -> u64 {
        let there = |page| self.place(page).is_some_and(|place| place.get() != ABSENT);
        (range.iter().enumerate())
            .filter(|(_, page)| there(*page))
            .fold(0, |mask, (at, _)| mask | 1 << at)
    }
    fn is_mapped(&self, page: PageNo) -> bool {
        self.is_mapped_at(page)
    }
    fn unshare(&self, _: PageRange) {}
    fn count(&self, what: Count, n: u64) {
        let mut tally = self.tally.borrow_mut();
        tally.counts[what as usize] += n;
        let times = |cost: f64| cost * n as f64;
        match what {
            Count::FaultsStaged => tally.charge(|to| times(to.staged_hit_ns())),
            Count::FaultsBuffered => tally.charge(|to| times(to.buffer_hit_ns())),
            Count::FaultsRemote => tally.charge(|to| times(to.demand_ns())),
            Count::EvictedWritten => tally.charge(|to| times(to.leave_ns(true))),
            Count::EvictedClean | Count::EvictedZero => {
                tally.charge(|to| times(to.leave_ns(false)));
            }
            _ => {}
        }
    }
    fn waits(&self, _: Wait, _: Option<Nanos>) {}
}
