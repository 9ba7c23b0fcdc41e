//! What programs tell the kernel of their memory, and forks.

use std::ffi::{c_int, c_void};

/// MADV_GUARD_INSTALL, which the C library's headers do not have yet (Linux 6.13).
const GUARD_INSTALL: c_int = 102;

/// Whether an advice changes what children get of a range.
pub fn tells_of_forks(advice: c_int) -> bool {
    use libc::{MADV_DOFORK, MADV_DONTFORK, MADV_KEEPONFORK, MADV_WIPEONFORK};
    matches!(
        advice,
        MADV_DOFORK | MADV_DONTFORK | MADV_KEEPONFORK | MADV_WIPEONFORK
    )
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
        // The kernel drops what was there and tells nobody, so once the guards were gone far pages would come
        // back. Of this it tells, and all pages of the range are guards by now.
        call(libc::MADV_DONTNEED);
    }
    outcome
}
