//! What programs tell the kernel of their memory: forks and guards.
//!
//! **Guards** (MADV_GUARD_INSTALL, Linux 6.13) are marks in the page table, which the kernel keeps to itself. Two
//! things must not happen. Far pages that guards cover must not come back: so a range is given up after its guards
//! were installed, which the pager is told of. And UFFDIO_COPY takes a guard for an absent page and fills it
//! (`sys/tests/kernel_faults.rs`), so pages that nobody has touched must not come along with others in a program
//! that has guards: [`guards_begin`] says so for good, before the first of them. What was on its way meanwhile may
//! have filled one: so guards are installed a second time, when nothing of the range is known to be far any more.

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
    let call = |advice: c_int| {
        // SAFETY: as the caller says; pages under guards hold nothing that could be given back.
        unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) as c_int }
    };
    let outcome = call(advice);
    if advice == GUARD_INSTALL && outcome == 0 {
        // The kernel drops what was there and tells nobody. Of this it tells.
        call(libc::MADV_DONTNEED);
        return call(advice);
    }
    outcome
}
