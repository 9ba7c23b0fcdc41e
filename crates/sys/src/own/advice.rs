//! What programs tell the kernel of their memory, and forks.

use std::ffi::{c_int, c_void};

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
    // SAFETY: as the caller says.
    unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) as c_int }
}
