//! What programs tell the kernel of their memory, and forks.

use super::calls;
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
        // The kernel drops what was there and tells nobody, so once the guards were gone far pages would come
        // back. Of this it tells, and all pages of the range are guards by now.
        call(libc::MADV_DONTNEED);
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
    let done = calls::call(libc::SYS_process_madvise, arguments);
    if arguments[3] as c_int != GUARD_INSTALL {
        return done;
    }
    let mut left = usize::try_from(done).unwrap_or(0);
    let mut range: *const libc::iovec = std::ptr::with_exposed_provenance(arguments[1]);
    while left > 0 {
        // SAFETY: as many were given as have that many bytes.
        let (start, len) = unsafe { ((*range).iov_base, (*range).iov_len.min(left)) };
        let drop = [
            start.expose_provenance(),
            len,
            libc::MADV_DONTNEED as usize,
            0,
            0,
            0,
        ];
        calls::call(libc::SYS_madvise, &drop);
        left -= len;
        // SAFETY: there are more, as bytes are left.
        range = unsafe { range.add(1) };
    }
    done
}
