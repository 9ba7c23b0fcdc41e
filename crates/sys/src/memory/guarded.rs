//! A copy that reports a vanished page instead of dying of it.
//!
//! Whoever shares a memory file with another process can be killed by it: the other truncates the
//! file, and the next touch of the mapping raises SIGBUS. This copy is a few instructions of
//! assembly at known addresses; the process-wide handler of [`crate::sigbus`] recognises them and
//! continues at the landing, where the number of bytes left is the answer. Invariant: the routine
//! touches no stack and keeps the bytes left in RCX, so it can be left at any instruction.
//!
//! Known limit: only SIGBUS is survived. A range that is not mapped at all is SIGSEGV, as ever.

use std::arch::global_asm;
use std::ops::Range;

use crate::sigbus;

/// A page vanished in the middle of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "shared memory vanished after {copied} of {len} bytes: the other process has truncated the file"
)]
pub struct BusFault {
    /// Bytes that certainly arrived; a few more may have.
    pub copied: usize,
    pub len: usize,
}

// `rep movsb` keeps the bytes left in RCX at every moment, and on processors with fast strings is as
// fast as memcpy for a cold page and for 256 KiB (within 2 %: `cargo run --example copy_ratio`);
// loops over vector registers, prefetching or not, were 5 to 20 % slower.
global_asm!(
    ".pushsection .text.muninn_guarded_copy, \"ax\", @progbits",
    ".p2align 6",
    ".globl muninn_sys_guarded_copy",
    ".hidden muninn_sys_guarded_copy",
    ".type muninn_sys_guarded_copy, @function",
    "muninn_sys_guarded_copy:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "rep movsb",
    ".globl muninn_sys_guarded_copy_landing",
    ".hidden muninn_sys_guarded_copy_landing",
    "muninn_sys_guarded_copy_landing:",
    "mov rax, rcx",
    "ret",
    ".cfi_endproc",
    ".size muninn_sys_guarded_copy, . - muninn_sys_guarded_copy",
    ".popsection",
);

unsafe extern "C" {
    /// Returns the bytes left: 0 when all were copied.
    fn muninn_sys_guarded_copy(dst: *mut u8, src: *const u8, len: usize) -> usize;
    /// Not a function: the address at which an interrupted copy goes on.
    fn muninn_sys_guarded_copy_landing();
}

/// Where the routine lies, for the signal handler.
pub(crate) struct Bounds {
    pub(crate) code: Range<usize>,
    pub(crate) landing: usize,
}

pub(crate) fn guarded_copy_bounds() -> Bounds {
    let start = muninn_sys_guarded_copy as *const () as usize;
    let landing = muninn_sys_guarded_copy_landing as *const () as usize;
    Bounds {
        code: start..landing,
        landing,
    }
}

/// Copies `len` bytes, or reports how far it came when a page of either side has vanished.
///
/// # Panics
///
/// If the SIGBUS handler cannot be installed (call [`crate::sigbus::install`] first to find out).
///
/// # Safety
///
/// Both ranges must be mapped with the needed access for the whole copy (the file behind them may
/// shrink) and must not overlap. No references to the destination may exist.
#[inline]
pub unsafe fn guarded_copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), BusFault> {
    if let Err(error) = sigbus::install() {
        panic!("{error}");
    }
    // SAFETY: the caller vouches for the ranges; the handler that catches SIGBUS is installed.
    let left = unsafe { muninn_sys_guarded_copy(dst, src, len) };
    if left == 0 {
        Ok(())
    } else {
        Err(BusFault {
            copied: len - left,
            len,
        })
    }
}
