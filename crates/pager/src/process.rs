//! The kernel below the engine, for real: two userfaultfds and a staging area.

use crate::below::Kernel;
use crate::chunk::CHUNK_PAGES;
use muninn_job::{Counters, Place};
use muninn_sys::memory::{Mapping, MemoryError, program};
use muninn_sys::own;
use muninn_sys::pagemap::{Pagemap, PagemapEntry, PagemapError};
use muninn_sys::uffd::{
    FaultDevice, Features, OpenError, PageRange, RegisterMode, RequestError, Userfaultfd,
};
use muninn_types::{Bytes, PageNo};

/// Frames of the staging area: address space, not memory.
const FRAMES: u64 = 2048 * CHUNK_PAGES as u64;

/// Features that the program's device cannot do without.
pub const REQUIRED: Features =
    Features(Features::EVENT_REMAP.0 | Features::EVENT_REMOVE.0 | Features::EVENT_UNMAP.0);
/// Those that make things faster, or possible.
const WANTED: Features = Features(Features::MOVE.0 | Features::THREAD_ID.0);

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

impl Process {
    pub fn new(program: Userfaultfd, place: Place) -> Result<Process, ProcessError> {
        let frames = Mapping::options()
            .no_reserve()
            .huge(muninn_sys::memory::HugeAdvice::Never)
            .anonymous(Bytes::pages(FRAMES))?;
        own::claim(frames.addr(), frames.len() as u64);
        let range = PageRange::new(PageNo::of_addr(frames.addr()), FRAMES);
        let _ = program::keep_from_children(range);
        // Nobody answers for absent frames, so nobody may wait for them (mlockall would).
        let staging = Userfaultfd::open(Features::SIGBUS, Features::MOVE)?;
        let process = Process {
            program,
            staging,
            frames,
            pagemap: Pagemap::open()?,
            place,
        };
        // SAFETY: the area was just made, and is touched only where pages were moved to.
        unsafe {
            process
                .staging
                .register(process.frames(), RegisterMode::MISSING)
        }?;
        Ok(process)
    }

    pub fn frames(&self) -> PageRange {
        PageRange::new(PageNo::of_addr(self.frames.addr()), FRAMES)
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
    fn staging(&self) -> &Userfaultfd {
        &self.staging
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
    fn unshare(&self, range: PageRange) -> bool {
        program::unshare(range).is_ok()
    }
    fn counters(&self) -> &Counters {
        self.place.counters()
    }
}
