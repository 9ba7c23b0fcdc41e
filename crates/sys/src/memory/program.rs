//! Memory of the program around us, by address.
//!
//! Invariant: nothing here reads or writes what it names; all of it is asked of the kernel, which
//! answers for memory that is not there too.

use crate::uffd::PageRange;
use muninn_types::{PAGE_SIZE, PageNo};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

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

/// Makes pages that are shared with another process after a fork this one's own, as a write would.
pub fn unshare(range: PageRange) -> Result<(), Errno> {
    let len = range.len_bytes() as usize;
    // SAFETY: contents stay as they are.
    unsafe { madvise(pointer(range.first()), len, Advice::LinuxPopulateWrite) }
}

/// Keeps a range out of children.
pub fn keep_from_children(range: PageRange) -> Result<(), Errno> {
    let len = range.len_bytes() as usize;
    // SAFETY: this process's memory stays as it is.
    unsafe { madvise(pointer(range.first()), len, Advice::LinuxDontFork) }
}

/// Whether something is mapped at a page.
pub fn is_mapped(page: PageNo) -> bool {
    let mut state = 0u8;
    // SAFETY: the kernel writes one byte for one page and reads nothing of it.
    let failed = unsafe { libc::mincore(pointer(page), PAGE_SIZE, &raw mut state) };
    failed == 0
}
