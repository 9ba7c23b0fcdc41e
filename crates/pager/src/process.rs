//! The kernel below the engine, for real: two userfaultfds and a staging area.

use crate::below::{CHUNKS_AT_ONCE_MAX, Kernel, Stillness};
use crate::chunk::{CHUNK_PAGES, Page};
use crate::copying::{Carrier, Copying};
use crate::keeper::Keeper;
use muninn_job::{Counters, Place};
use muninn_sys::memory::{Mapping, MemoryError, program};
use muninn_sys::own;
use muninn_sys::pagemap::{Pagemap, PagemapEntry, PagemapError};
use muninn_sys::uffd::{
    CopyMode, Event, FaultDevice, Features, MoveMode, OpenError, PageRange, Partial, RegisterMode,
    RequestError, Userfaultfd, Wake,
};
use muninn_types::{Bytes, PageNo};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Frames of the staging area: address space, not memory.
const FRAMES: u64 = 2048 * CHUNK_PAGES as u64;

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
    #[error(transparent)]
    Pagemap(#[from] PagemapError),
}

/// The memory of this process.
#[derive(Debug)]
pub struct Process {
    program: Userfaultfd,
    staging: Userfaultfd,
    frames: Mapping,
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
    /// With a carrier pages are copied, as where the kernel cannot move them.
    pub fn new(
        program: Userfaultfd,
        place: Place,
        carrier: Option<Arc<Carrier>>,
        chores: Arc<Chores>,
        keeper: Arc<Keeper>,
    ) -> Result<Process, ProcessError> {
        let frames = Mapping::options()
            .no_reserve()
            .huge(muninn_sys::memory::HugeAdvice::Never)
            .anonymous(Bytes::pages(FRAMES))?;
        own::claim(frames.addr(), frames.len() as u64);
        let range = PageRange::new(PageNo::of_addr(frames.addr()), FRAMES);
        let _ = program::keep_from_children(range);
        // Nobody answers for absent frames, so nobody may wait for them (mlockall would).
        let staging = Userfaultfd::open(Features::SIGBUS, Features::MOVE).or_else(|error| {
            // Only we touch them, so this needs no permission.
            Userfaultfd::open_user_mode_only(Features::SIGBUS, Features::MOVE).map_err(|_| error)
        })?;
        let process = Process {
            program,
            staging,
            frames,
            pagemap: Pagemap::open()?,
            place,
            copying: carrier.map(|carrier| Copying::new(carrier, keeper)),
            chores,
        };
        if process.copying.is_none() {
            // SAFETY: the area was just made, and is touched only where pages were moved to.
            unsafe {
                process
                    .staging
                    .register(process.frames(), RegisterMode::MISSING)
            }?;
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

impl Kernel for Process {
    type Device = Userfaultfd;

    fn program(&self) -> &Userfaultfd {
        &self.program
    }
    fn chunks_at_once(&self) -> usize {
        match self.copying {
            Some(_) => CHUNKS_AT_ONCE_MAX,
            None => 1,
        }
    }
    fn hold_still(&self) -> Stillness {
        match &self.copying {
            Some(copying) => copying.hold_still(&self.program),
            None => Stillness::Reached,
        }
    }
    fn is_sure(&self, taken: PageRange) -> bool {
        match &self.copying {
            Some(copying) => copying.is_sure(&self.program, taken),
            None => !self.program.is_changing(),
        }
    }
    fn let_go(&self) {
        if let Some(copying) = &self.copying {
            copying.let_go();
        }
    }
    unsafe fn take_out(&self, to: PageNo, from: PageRange) -> Result<(), Partial> {
        if let Some(copying) = &self.copying {
            return copying.take_out(&self.program, from, to, |range| self.present(range));
        }
        let mode = MoveMode {
            wake: Wake::Later,
            allow_holes: true,
        };
        // SAFETY: as the caller says.
        unsafe { self.staging.move_pages(to, from, mode) }
    }
    unsafe fn put_in(&self, to: PageNo, from: PageRange) -> Result<(), Partial> {
        if let Some(copying) = &self.copying {
            return copying.put_in(&self.program, to, from);
        }
        // SAFETY: as the caller says.
        unsafe { self.program.move_pages(to, from, MoveMode::default()) }
    }
    fn fill_frame(&self, frame: PageNo, page: &Page) -> Result<(), Partial> {
        if self.copying.is_some() {
            // SAFETY: frames are ours, and this one is not in use.
            *unsafe { self.frame(frame) } = *page;
            return Ok(());
        }
        let range = PageRange::one(frame);
        // SAFETY: a page is readable.
        unsafe { self.staging.copy(range, page.as_ptr(), CopyMode::default()) }
    }
    fn is_changing(&self) -> bool {
        self.has_unfollowed_change() || self.program.is_changing()
    }
    fn has_unfollowed_change(&self) -> bool {
        self.copying.as_ref().is_some_and(Copying::is_changing)
    }
    fn discard(&self, frames: PageRange) {
        // SAFETY: frames are ours, and the engine gives back only what it does not need.
        let _ = unsafe { program::discard(frames) };
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
    fn counters(&self) -> &Counters {
        self.place.counters()
    }
}
