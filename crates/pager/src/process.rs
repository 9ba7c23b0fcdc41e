//! The kernel below the engine, for real: a userfaultfd, a staging area, and a bin.
//!
//! The staging area is registered with the program's own device. So the kernel refuses to move a page
//! out while the program changes its address space, as it refuses to put one in, and holds such a change
//! up until the move is done: what is moved is surely what it is taken for.
//!
//! The price is that frames cannot simply be given back: the kernel would tell that device, and wait
//! until we have heard it. They are moved to a *bin* that nobody listens to, and given back from there
//! when it is full.

use crate::copying::{Carrier, Copying};
use crate::keeper::Keeper;
use crate::vault::Page;
use muninn_job::{Counters, Place, Waiting, Waits};
use muninn_pager_core::staging::FRAMES;
use muninn_pager_core::{
    BATCH_MAX, CHUNKS_AT_ONCE_MAX, ChunkNo, Count, Kernel, Mask, Stillness, Wait,
};
use muninn_sys::clock;
use muninn_sys::memory::{Mapping, MemoryError, program};
use muninn_sys::own::{self, staying::Taking};
use muninn_sys::pagemap::{Pagemap, PagemapEntry};
use muninn_sys::uffd::{
    Cause, CopyMode, Event, FaultDevice, Features, MoveMode, OpenError, PageRange, Partial,
    RegisterMode, RequestError, Userfaultfd, Wake,
};
use muninn_types::{Bytes, Nanos, PAGE_SIZE, PageNo};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pages of the bin, which may all be memory.
const BIN_PAGES: u64 = 128;

/// How often a full pool is asked again.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// Zeros that take no memory until somebody reads them, and then one page.
static ZEROS: [Page; BATCH_MAX] = [[0; PAGE_SIZE]; BATCH_MAX];

/// Features that the program's device cannot do without.
pub const REQUIRED: Features =
    Features(Features::EVENT_REMAP.0 | Features::EVENT_REMOVE.0 | Features::EVENT_UNMAP.0);
/// Those that make things faster, or possible.
const WANTED: Features =
    Features(Features::MOVE.0 | Features::THREAD_ID.0 | Features::PAGEFAULT_FLAG_WP.0);

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Register(#[from] RequestError),
}

/// What the memory of a process is managed with.
#[derive(Debug)]
pub struct Means {
    pub pagemap: Pagemap,
    pub place: Place,
    /// With one pages are copied, as where the kernel cannot move them.
    pub carrier: Option<Arc<Carrier>>,
}

/// The memory of this process.
#[derive(Debug)]
pub struct Process {
    program: Userfaultfd,
    frames: Mapping,
    bin: Bin,
    /// Frames that somebody else touched (`mlockall`), and that bear a mark since.
    marked: RefCell<Vec<PageNo>>,
    /// Frames that could not be given back yet.
    late: RefCell<Vec<PageRange>>,
    pagemap: Pagemap,
    place: Place,
    /// Where pages cannot be moved.
    copying: Option<Copying>,
    chores: Arc<Chores>,
}

/// What is to be done to the program's memory by a thread that may wait for the pager: pages of a parent
/// and its child are made the one's own by writing to them, and one that has gone meanwhile is asked of
/// the pager, who would wait for himself.
#[derive(Debug, Default)]
pub struct Chores {
    unshare: Mutex<Vec<PageRange>>,
}

/// Ranges that wait; those beyond are asked for again.
const CHORES_MAX: usize = 256;

impl Chores {
    fn list(&self) -> MutexGuard<'_, Vec<PageRange>> {
        self.unshare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, range: PageRange) {
        let mut list = self.list();
        if list.len() < CHORES_MAX && !list.contains(&range) {
            list.push(range);
        }
    }

    /// Does what was asked for.
    pub fn work(&self) {
        let list = std::mem::take(&mut *self.list());
        for range in list {
            let _ = program::unshare(range);
        }
    }
}

/// Where frames go that nobody needs any more.
#[derive(Debug)]
struct Bin {
    device: Userfaultfd,
    room: Mapping,
    used: Cell<u64>,
}

impl Bin {
    fn new() -> Result<Bin, ProcessError> {
        let room = own_memory(BIN_PAGES)?;
        // Nobody answers for absent pages, so nobody may wait for them (mlockall would).
        let device = Userfaultfd::open(Features::SIGBUS, Features::MOVE).or_else(|error| {
            // Only we touch them, so this needs no permission.
            Userfaultfd::open_user_mode_only(Features::SIGBUS, Features::MOVE).map_err(|_| error)
        })?;
        let bin = Bin {
            device,
            room,
            used: Cell::new(0),
        };
        Ok(bin)
    }

    fn register(&self) -> Result<(), RequestError> {
        let range = self.part(0, BIN_PAGES);
        // SAFETY: it was just made, and is never touched.
        unsafe { self.device.register(range, RegisterMode::MISSING) }.map(|_| ())
    }

    fn part(&self, first: u64, pages: u64) -> PageRange {
        let start = PageNo::of_addr(self.room.addr());
        PageRange::new(PageNo(start.0 + first), pages)
    }

    fn empty(&self) {
        // SAFETY: nobody needs what is thrown away.
        if unsafe { program::discard_own(self.part(0, self.used.get())) }.is_ok() {
            self.used.set(0);
        }
    }

    /// The place for so many pages or fewer, perhaps none.
    fn place(&self, pages: u64) -> PageRange {
        if self.used.get() == BIN_PAGES {
            self.empty();
        }
        let used = self.used.get();
        self.part(used, pages.min(BIN_PAGES - used))
    }
}

fn meets(one: PageRange, other: PageRange) -> bool {
    one.first() < other.end() && other.first() < one.end()
}

/// Memory of ours, which children do not get.
fn own_memory(pages: u64) -> Result<Mapping, MemoryError> {
    let memory = Mapping::options()
        .no_reserve()
        .huge(muninn_sys::memory::HugeAdvice::Never)
        .anonymous(Bytes::pages(pages))?;
    own::claim(memory.addr(), memory.len() as u64);
    let range = PageRange::new(PageNo::of_addr(memory.addr()), pages);
    let _ = program::keep_from_children(range);
    Ok(memory)
}

/// Opens a device for the program's memory; whether it tells of forks.
pub fn open_program_device() -> Result<(Userfaultfd, bool), OpenError> {
    let with_forks = Features(REQUIRED.0 | Features::EVENT_FORK.0);
    match Userfaultfd::open(with_forks, WANTED) {
        Ok(device) => Ok((device, true)),
        Err(OpenError::ForkNotPermitted) => {
            Userfaultfd::open(REQUIRED, WANTED).map(|device| (device, false))
        }
        Err(error) => Err(error),
    }
}

/// Whether the kernel can move pages; an error if it cannot protect them from writes either.
pub fn can_move() -> Result<bool, OpenError> {
    let device = Userfaultfd::open_user_mode_only(Features::NONE, Features::MOVE)?;
    if device.features().contains(Features::MOVE) {
        return Ok(true);
    }
    Userfaultfd::open_user_mode_only(Features::PAGEFAULT_FLAG_WP, Features::NONE).map(|_| false)
}

impl Process {
    /// # Safety
    ///
    /// Only an engine may use it as its [`Kernel`]: one that takes a frame for what it was moved there for,
    /// and moves or gives back none while it looks at it.
    pub unsafe fn new(
        program: Userfaultfd,
        means: Means,
        chores: Arc<Chores>,
        keeper: Arc<Keeper>,
    ) -> Result<Process, ProcessError> {
        let process = Process {
            program,
            frames: own_memory(FRAMES)?,
            bin: Bin::new()?,
            marked: RefCell::default(),
            late: RefCell::default(),
            pagemap: means.pagemap,
            place: means.place,
            copying: means.carrier.map(|carrier| Copying::new(carrier, keeper)),
            chores,
        };
        if process.copying.is_none() {
            process.bin.register()?;
            let frames = process.frames();
            // SAFETY: the area was just made, and is touched only where pages were moved to.
            unsafe { process.program.register(frames, RegisterMode::MISSING) }?;
        }
        Ok(process)
    }

    pub fn frames(&self) -> PageRange {
        PageRange::new(PageNo::of_addr(self.frames.addr()), FRAMES)
    }
    /// What the program's memory is to be registered for.
    pub fn register_mode(&self) -> RegisterMode {
        match self.copying {
            Some(_) => RegisterMode::MISSING_AND_WRITE_PROTECT,
            None => RegisterMode::MISSING,
        }
    }
    /// Frames go to the bin, from the first on; those that would not.
    fn throw_away(&self, frames: PageRange) -> PageRange {
        let mode = MoveMode {
            wake: Wake::Later,
            allow_holes: false,
        };
        let mut rest = frames;
        while !rest.is_empty() {
            let place = self.bin.place(rest.pages());
            if place.is_empty() {
                break;
            }
            let some = PageRange::new(rest.first(), place.pages());
            // SAFETY: the frames are given up.
            let moved = unsafe { self.bin.device.move_pages(place.first(), some, mode) };
            let done = match self.count_untold(moved, place.first(), some) {
                Ok(()) => some.pages(),
                Err(partial) => partial.done_pages,
            };
            self.bin.used.set(self.bin.used.get() + done);
            rest = rest.skip(done);
            if let Err(Partial {
                done_pages: 0,
                cause,
            }) = moved
            {
                match cause {
                    // Not there.
                    Cause::Absent => rest = rest.skip(1),
                    Cause::Exists if done > 0 => {}
                    _ => break,
                }
            }
        }
        rest
    }

    /// Frames that would not go before are tried again.
    fn throw_late_away(&self) {
        self.late.borrow_mut().retain_mut(|frames| {
            *frames = self.throw_away(*frames);
            !frames.is_empty()
        });
    }

    /// Somebody touched a frame that is not there: he is refused, as who locks all memory does not mind.
    pub fn refuse_frame(&self, page: PageNo) -> bool {
        if !self.frames().contains(page) {
            return false;
        }
        let frame = PageRange::one(page);
        if self.program.poison(frame, Wake::Now).is_ok() {
            self.marked.borrow_mut().push(page);
        }
        let _ = self.program.wake(frame);
        true
    }

    /// A marked frame is not absent. Only a copy can take its place.
    fn clear_marks(&self) {
        if self.marked.borrow().is_empty() {
            return;
        }
        let zeros: Page = [0; PAGE_SIZE];
        self.marked.borrow_mut().retain(|&page| {
            let frame = PageRange::one(page);
            // SAFETY: a page is readable.
            let copied = unsafe {
                self.program
                    .copy(frame, zeros.as_ptr(), CopyMode::default())
            };
            match copied {
                Ok(()) => self.discard(frame),
                // The program changes its address space; nothing is moved either then.
                Err(Partial {
                    cause: Cause::Again,
                    ..
                }) => return true,
                Err(_) => {}
            }
            false
        });
    }

    /// A thread waits for a page, or no longer.
    pub fn note_waiting(&self, thread: u32, waits: bool) {
        if let Some(copying) = &self.copying {
            copying.note_waiting(thread, waits);
        }
    }
    /// An event that was read while pages were carried out.
    pub fn next_event(&self) -> Option<Event<Userfaultfd>> {
        self.copying.as_ref()?.next_event()
    }
    pub fn has_events(&self) -> bool {
        self.copying.as_ref().is_some_and(Copying::has_events)
    }
    /// Whether PAGEMAP_SCAN can be used. It came with one version before moves, and nobody would
    /// notice if what is done without it did not work.
    pub fn can_scan(&self) -> bool {
        self.copying.is_none()
    }
    pub fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }
}

impl Process {
    /// The device that the program's memory is registered with.
    pub fn program(&self) -> &Userfaultfd {
        &self.program
    }
    pub fn counters(&self) -> &Counters {
        self.place.counters()
    }
    fn assert_frames(&self, range: PageRange) {
        let frames = self.frames();
        assert!(frames.first() <= range.first() && range.end() <= frames.end());
    }
}

impl Kernel for Process {
    type Page = Page;
    type Taking = Taking;
    type Waits<'a> = Waits<'a>;

    fn chunks_at_once(&self) -> usize {
        match self.copying {
            Some(_) => CHUNKS_AT_ONCE_MAX,
            None => 1,
        }
    }
    fn begin_taking(&self) -> Taking {
        Taking::begin()
    }
    fn staying(&self, taking: &Taking, chunk: ChunkNo) -> Mask {
        taking.staying(chunk.page(0))
    }
    fn may_fill_untouched(&self) -> bool {
        !own::has_guards()
    }
    fn hold_still(&self, leaving: &[PageRange]) -> Stillness {
        match &self.copying {
            Some(copying) => copying.hold_still(&self.program, leaving),
            None => Stillness::Reached,
        }
    }
    fn is_sure(&self, taken: PageRange) -> bool {
        match &self.copying {
            Some(copying) => copying.is_sure(&self.program, taken),
            // The kernel would have refused.
            None => true,
        }
    }
    fn let_go(&self) {
        if let Some(copying) = &self.copying {
            copying.let_go(&self.program);
        }
    }
    fn take_out(&self, to: PageNo, from: PageRange) -> Result<(), Partial> {
        self.assert_frames(PageRange::new(to, from.pages()));
        if let Some(copying) = &self.copying {
            return copying.take_out(&self.program, from, to, |range| self.present(range));
        }
        self.clear_marks();
        self.throw_late_away();
        let taken = PageRange::new(to, from.pages());
        if self.late.borrow().iter().any(|late| meets(*late, taken)) {
            // What is there still would be taken for what should have come. The program changes its
            // address space, so nothing can be moved anyway.
            return Err(Partial::new(0, Cause::Again));
        }
        let mode = MoveMode {
            wake: Wake::Later,
            allow_holes: false,
        };
        // SAFETY: the pages are the program's, which asks us for them when it touches them again.
        let moved = unsafe { self.program.move_pages(to, from, mode) };
        self.count_untold(moved, to, from)
    }
    fn put_in(&self, to: PageNo, from: PageRange) -> Result<(), Partial> {
        self.assert_frames(from);
        if let Some(copying) = &self.copying {
            return copying.put_in(&self.program, to, from);
        }
        // SAFETY: frames are ours, and the engine looks at none that it has put in.
        let moved = unsafe { self.program.move_pages(to, from, MoveMode::default()) };
        self.count_untold(moved, to, from)
    }
    fn copy_in(&self, to: PageNo, from: &[Page]) -> Result<(), Partial> {
        let range = PageRange::new(to, from.len() as u64);
        let from = from.as_ptr().cast();
        // SAFETY: there are as many pages as are filled.
        unsafe { self.program.copy(range, from, CopyMode::default()) }
    }
    fn fill_new(&self, range: PageRange) -> Result<(), Partial> {
        self.copy_in(range.first(), &ZEROS[..range.pages() as usize])
    }
    fn fill_zero(&self, range: PageRange) -> Result<(), Partial> {
        self.program.zero(range, Wake::Now)
    }
    fn wake(&self, range: PageRange) {
        let _ = self.program.wake(range);
    }
    fn fill_frame(&self, frame: PageNo, page: &Page) -> Result<(), Partial> {
        if self.copying.is_some() {
            self.assert_frames(PageRange::one(frame));
            let to: *mut Page = std::ptr::with_exposed_provenance_mut(frame.addr() as usize);
            // SAFETY: frames are ours, and this one is not in use.
            unsafe { *to = *page };
            return Ok(());
        }
        let range = PageRange::one(frame);
        self.assert_frames(range);
        // SAFETY: a page is readable.
        unsafe { self.program.copy(range, page.as_ptr(), CopyMode::default()) }
    }
    fn frame(&self, frame: PageNo) -> &Page {
        self.assert_frames(PageRange::one(frame));
        let page: *const Page = std::ptr::with_exposed_provenance(frame.addr() as usize);
        // SAFETY: present, and left alone meanwhile: only the engine may use this. Pages are aligned.
        unsafe { &*page }
    }
    fn is_changing(&self) -> bool {
        self.has_unfollowed_change() || self.program.is_changing()
    }
    fn has_unfollowed_change(&self) -> bool {
        self.copying.as_ref().is_some_and(Copying::is_changing)
    }
    fn discard(&self, frames: PageRange) {
        self.assert_frames(frames);
        if self.copying.is_some() {
            // SAFETY: frames are ours, and the engine gives back only what it does not need.
            let _ = unsafe { program::discard(frames) };
            return;
        }
        self.late.borrow_mut().push(frames);
        self.throw_late_away();
    }
    fn present(&self, range: PageRange) -> u64 {
        let mut entries = [PagemapEntry::default(); 64];
        let len = (range.pages() as usize).min(entries.len());
        let Ok(known) = self
            .pagemap
            .read_entries(range.first(), &mut entries[..len])
        else {
            return 0;
        };
        let there = |entry: &PagemapEntry| entry.is_present() || entry.is_swapped();
        (entries[..known].iter().enumerate())
            .filter(|(_, entry)| there(entry))
            .fold(0, |mask, (at, _)| mask | 1 << at)
    }
    fn is_mapped(&self, page: PageNo) -> bool {
        program::is_mapped(page)
    }
    fn unshare(&self, range: PageRange) {
        // A copy can be made of pages that are shared.
        if self.copying.is_none() {
            self.chores.ask(range);
        }
    }
    fn count(&self, what: Count, n: u64) {
        let counters = self.counters();
        let counter = match what {
            Count::FaultsZero => &counters.faults_zero,
            Count::FaultsStaged => &counters.faults_staged,
            Count::FaultsRemote => &counters.faults_remote,
            Count::FaultsBuffered => &counters.faults_buffered,
            Count::FaultsWoken => &counters.faults_woken,
            Count::Prefetched => &counters.prefetched,
            Count::PrefetchWasted => &counters.prefetch_wasted,
            Count::Evicted => &counters.evicted,
            Count::EvictedZero => &counters.evicted_zero,
            Count::EvictedClean => &counters.evicted_clean,
            Count::EvictedWritten => &counters.evicted_written,
            Count::BytesIn => &counters.bytes_in,
            Count::BytesOut => &counters.bytes_out,
            Count::DirectReclaims => &counters.direct_reclaims,
            Count::Unmaps => &counters.unmaps,
            Count::Removes => &counters.removes,
            Count::Remaps => &counters.remaps,
            Count::BusyPages => &counters.busy_pages,
            Count::HashChecks => &counters.hash_checks,
        };
        counter.fetch_add(n, Relaxed);
    }
    fn waits(&self, why: Wait, since: Option<Nanos>) -> Waits<'_> {
        let why = match why {
            Wait::Server => Waiting::Server,
            Wait::Grant => Waiting::Grant,
            Wait::PoolFull => Waiting::PoolFull,
        };
        let since = since.unwrap_or_else(clock::coarse);
        self.place.waits_since(why, since)
    }
    fn pause(&self) {
        std::thread::sleep(FULL_PAUSE);
    }
}
