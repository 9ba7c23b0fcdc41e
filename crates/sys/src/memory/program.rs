//! Memory of the program around us, by address.
//!
//! Invariant: nothing here reads or writes what it names; all of it is asked of the kernel, which
//! answers for memory that is not there too.

use crate::uffd::PageRange;
use muninn_types::{PAGE_SIZE, PageNo};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use std::os::fd::OwnedFd;

fn pointer(page: PageNo) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(page.addr() as usize)
}

/// Gives pages of ours back to the kernel: they are absent afterwards.
///
/// # Safety
///
/// Nobody may rely on what is there.
pub unsafe fn discard(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller vouches that the contents are not needed.
    unsafe {
        madvise(
            pointer(range.first()),
            range.len_bytes() as usize,
            Advice::LinuxDontNeed,
        )
    }
}

/// The same for memory that `mlockall` may have locked along with the program's.
///
/// # Safety
///
/// As for [`discard`].
pub unsafe fn discard_own(range: PageRange) -> Result<(), Errno> {
    let (at, len) = (pointer(range.first()), range.len_bytes() as usize);
    // SAFETY: the caller vouches that the contents are not needed.
    match unsafe { madvise(at, len, Advice::LinuxDontneedLocked) } {
        // Not before Linux 5.18.
        // SAFETY: as above.
        Err(Errno::INVAL) => unsafe { discard(range) },
        done => done,
    }
}

/// The memory of this process as a file: what is not mapped is an error there, not a crash, and what
/// the program itself may not read at the moment can be read all the same.
#[derive(Debug)]
pub struct Reader(OwnedFd);

impl Reader {
    pub fn open() -> Result<Reader, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(crate::own::rooted("/proc/self/mem"), flags, Mode::empty()).map(Reader)
    }

    /// One that somebody else has opened.
    pub fn handed(file: OwnedFd) -> Reader {
        Reader(file)
    }

    /// Copies pages to others. An absent page that somebody answers for is waited for.
    ///
    /// # Safety
    ///
    /// The target must be memory of the caller's that nobody else uses.
    pub unsafe fn read(&self, from: PageRange, to: PageNo) -> Result<(), Errno> {
        let len = from.len_bytes() as usize;
        // SAFETY: the caller's memory.
        let target = unsafe { std::slice::from_raw_parts_mut(pointer(to).cast::<u8>(), len) };
        match rustix::io::pread(&self.0, target, from.addr())? {
            n if n == len => Ok(()),
            // A part of it is not there.
            _ => Err(Errno::FAULT),
        }
    }
}

/// Makes pages that are shared with another process after a fork this one's own, as a write would.
pub fn unshare(range: PageRange) -> Result<(), Errno> {
    let len = range.len_bytes() as usize;
    // SAFETY: contents stay as they are.
    unsafe { madvise(pointer(range.first()), len, Advice::LinuxPopulateWrite) }
}

/// Asks the kernel to take pages now that it may take at any time.
pub fn press_out(range: PageRange) {
    let len = range.len_bytes() as usize;
    // SAFETY: contents stay as they are, but for those that the program gave up.
    let _ = unsafe { madvise(pointer(range.first()), len, Advice::LinuxPageOut) };
}

/// Keeps a range of the runtime's own memory out of dumps of the program.
pub fn keep_from_dumps(range: PageRange) {
    let len = range.len_bytes() as usize;
    // SAFETY: this process's memory stays as it is.
    let _ = unsafe { madvise(pointer(range.first()), len, Advice::LinuxDontDump) };
}

/// Keeps a range of the runtime's own memory out of children, and out of dumps of the program: in it are keys of
/// connections and those that pages are sealed with.
pub fn keep_from_children(range: PageRange) -> Result<(), Errno> {
    let len = range.len_bytes() as usize;
    keep_from_dumps(range);
    // SAFETY: this process's memory stays as it is.
    unsafe { madvise(pointer(range.first()), len, Advice::LinuxDontFork) }
}

/// Keeps pages of ours out of dumps and of swap; the latter is refused where the limit of locked memory does not
/// allow it.
pub fn lock(range: PageRange) -> Result<(), Errno> {
    keep_from_dumps(range);
    // SAFETY: locking changes no bytes.
    unsafe { rustix::mm::mlock(pointer(range.first()), range.len_bytes() as usize) }
}

/// Ends [`lock`].
pub fn unlock(range: PageRange) -> Result<(), Errno> {
    // SAFETY: unlocking changes no bytes.
    unsafe { rustix::mm::munlock(pointer(range.first()), range.len_bytes() as usize) }
}

/// Whether something is mapped at a page.
pub fn is_mapped(page: PageNo) -> bool {
    let mut state = 0u8;
    // SAFETY: the kernel writes one byte for one page and reads nothing of it.
    let failed = unsafe { libc::mincore(pointer(page), PAGE_SIZE, &raw mut state) };
    failed == 0
}
