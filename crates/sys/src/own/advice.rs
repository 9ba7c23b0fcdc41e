//! What programs tell the kernel of their memory: forks and guards.
//!
//! **Guards** (MADV_GUARD_INSTALL, Linux 6.13) are marks in the page table, which the kernel keeps to itself. Two
//! things must not happen. Far pages that guards cover must not come back: so a range is given up after its guards
//! were installed, which the pager is told of. And UFFDIO_COPY takes a guard for an absent page and fills it
//! (`sys/tests/kernel_faults.rs`), so pages that nobody has touched must not come along with others in a program
//! that has guards: [`guards_begin`] says so for good, before the first of them. What was on its way meanwhile may
//! have filled one: so guards are installed a second time, when nothing of the range is known to be far any more.

use super::calls;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// MADV_GUARD_INSTALL, which the C library's headers do not have yet.
const GUARD_INSTALL: c_int = 102;

/// There are guards, or will be in a moment. A child has its parent's, and this with them.
static GUARDS: AtomicBool = AtomicBool::new(false);
/// Whatever was begun before that is over.
static GUARDS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Whether an advice changes what children get of a range.
pub fn tells_of_forks(advice: c_int) -> bool {
    use libc::{MADV_DOFORK, MADV_DONTFORK, MADV_KEEPONFORK, MADV_WIPEONFORK};
    matches!(
        advice,
        MADV_DOFORK | MADV_DONTFORK | MADV_KEEPONFORK | MADV_WIPEONFORK
    )
}

/// Before an advice: if it is the first that makes guards, says so and calls `settle`, which waits until the pager is
/// done with what it has begun.
pub fn guards_begin(advice: c_int, settle: impl FnOnce()) {
    if advice == GUARD_INSTALL && !GUARDS_KNOWN.load(SeqCst) {
        GUARDS.store(true, SeqCst);
        settle();
        GUARDS_KNOWN.store(true, SeqCst);
    }
}

/// Whether an absent page may be a guard, so that only pages that were touched may be filled.
pub fn has_guards() -> bool {
    GUARDS.load(SeqCst)
}

/// What the C library's `madvise` does, `errno` included.
///
/// # Safety
///
/// As the kernel says of `madvise`.
pub unsafe fn advise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    // Not by the C library's `syscall`, in whose place is what calls this.
    let call = |advice: c_int| {
        let arguments = [start.expose_provenance(), len, advice as usize, 0, 0, 0];
        match calls::call(libc::SYS_madvise, &arguments) {
            0 => 0,
            refused => calls::fail(refused as c_int) as c_int,
        }
    };
    let outcome = call(advice);
    if advice == GUARD_INSTALL && outcome == 0 {
        // The kernel drops what was there and tells nobody. Of this it tells.
        call(libc::MADV_DONTNEED);
        return call(advice);
    }
    outcome
}

/// What the kernel does for `process_madvise`, its own answer: how many bytes, or an error below zero. Of guards it is
/// told as in [`advise`]; they can only be put into memory of the caller's own.
///
/// # Safety
///
/// As the kernel says.
pub unsafe fn advise_ranges(arguments: &[usize; 6]) -> isize {
    if arguments[3] as c_int == GUARD_INSTALL {
        GUARDS.store(true, SeqCst);
    }
    let done = calls::call(libc::SYS_process_madvise, arguments);
    if arguments[3] as c_int != GUARD_INSTALL {
        return done;
    }
    let mut left = usize::try_from(done).unwrap_or(0);
    let mut range: *const libc::iovec = std::ptr::with_exposed_provenance(arguments[1]);
    while left > 0 {
        // SAFETY: as many were given as have that many bytes.
        let (start, len) = unsafe { ((*range).iov_base, (*range).iov_len.min(left)) };
        // SAFETY: guards were just installed there for the caller.
        unsafe { advise(start, len, GUARD_INSTALL) };
        left -= len;
        // SAFETY: there are more, as bytes are left.
        range = unsafe { range.add(1) };
    }
    done
}
