//! Atomic operations on a word that report a vanished page instead of dying of it.
//!
//! The idea and the invariant are those of [`guarded_copy`](super::guarded_copy): a few
//! instructions at known addresses, which the SIGBUS handler steps out of. Looking at the page
//! first would not do: a process can be stopped between the look and the operation for as long as
//! it takes the other side to truncate the file.

use std::arch::global_asm;

use super::guarded::{Bounds, BusFault};
use crate::sigbus;

global_asm!(
    ".pushsection .text.muninn_guarded_word, \"ax\", @progbits",
    ".p2align 6",
    ".globl muninn_sys_guarded_add",
    ".hidden muninn_sys_guarded_add",
    ".type muninn_sys_guarded_add, @function",
    "muninn_sys_guarded_add:",
    ".cfi_startproc",
    "lock xadd qword ptr [rdi], rsi",
    "mov qword ptr [rdx], rsi",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size muninn_sys_guarded_add, . - muninn_sys_guarded_add",
    ".globl muninn_sys_guarded_load",
    ".hidden muninn_sys_guarded_load",
    ".type muninn_sys_guarded_load, @function",
    "muninn_sys_guarded_load:",
    ".cfi_startproc",
    "mov rax, qword ptr [rdi]",
    "mov qword ptr [rsi], rax",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size muninn_sys_guarded_load, . - muninn_sys_guarded_load",
    ".globl muninn_sys_guarded_store",
    ".hidden muninn_sys_guarded_store",
    ".type muninn_sys_guarded_store, @function",
    "muninn_sys_guarded_store:",
    ".cfi_startproc",
    "mov qword ptr [rdi], rsi",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size muninn_sys_guarded_store, . - muninn_sys_guarded_store",
    ".globl muninn_sys_guarded_swap",
    ".hidden muninn_sys_guarded_swap",
    ".type muninn_sys_guarded_swap, @function",
    "muninn_sys_guarded_swap:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg qword ptr [rdi], rdx",
    "mov qword ptr [rcx], rax",
    "xor eax, eax",
    "ret",
    ".globl muninn_sys_guarded_word_landing",
    ".hidden muninn_sys_guarded_word_landing",
    "muninn_sys_guarded_word_landing:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size muninn_sys_guarded_swap, . - muninn_sys_guarded_swap",
    ".popsection",
);

unsafe extern "C" {
    /// Leaves the old value in `old` and returns 0, or 1 when the page has vanished.
    fn muninn_sys_guarded_add(word: *mut u64, add: u64, old: *mut u64) -> u32;
    /// As above; the word becomes `new` if it was `expect`.
    fn muninn_sys_guarded_swap(word: *mut u64, expect: u64, new: u64, old: *mut u64) -> u32;
    /// Leaves the word in `value` and returns 0, or 1 when the page has vanished.
    fn muninn_sys_guarded_load(word: *const u64, value: *mut u64) -> u32;
    /// Returns 0, or 1 when the page has vanished.
    fn muninn_sys_guarded_store(word: *mut u64, value: u64) -> u32;
    /// Not a function: the address at which an interrupted operation goes on.
    fn muninn_sys_guarded_word_landing();
}

pub(crate) fn guarded_word_bounds() -> Bounds {
    let start = muninn_sys_guarded_add as *const () as usize;
    let landing = muninn_sys_guarded_word_landing as *const () as usize;
    Bounds {
        code: start..landing,
        landing,
    }
}

fn done(vanished: u32, old: u64) -> Result<u64, BusFault> {
    match vanished {
        0 => Ok(old),
        _ => Err(BusFault { copied: 0, len: 8 }),
    }
}

fn be_ready() {
    if let Err(error) = sigbus::install() {
        panic!("{error}");
    }
}

/// Adds to a word, in one step as all others see it; the word found.
///
/// # Panics
///
/// If the SIGBUS handler cannot be installed (call [`crate::sigbus::install`] first to find out).
///
/// # Safety
///
/// The word must lie at a multiple of 8 in a writable mapping (the file behind it may shrink), and
/// nobody may hold a reference to it except as an atomic.
#[inline]
pub unsafe fn guarded_fetch_add(word: *mut u64, add: u64) -> Result<u64, BusFault> {
    be_ready();
    let mut old = 0;
    // SAFETY: the caller vouches for the word, `old` is our own, and the handler that catches
    // SIGBUS is installed.
    let vanished = unsafe { muninn_sys_guarded_add(word, add, &mut old) };
    done(vanished, old)
}

/// Replaces a word if it is `expect`, in one step as all others see it; the word found.
///
/// # Panics
///
/// As [`guarded_fetch_add`].
///
/// # Safety
///
/// As [`guarded_fetch_add`].
#[inline]
pub unsafe fn guarded_compare_swap(word: *mut u64, expect: u64, new: u64) -> Result<u64, BusFault> {
    be_ready();
    let mut old = 0;
    // SAFETY: as in `guarded_fetch_add`.
    let vanished = unsafe { muninn_sys_guarded_swap(word, expect, new, &mut old) };
    done(vanished, old)
}

/// Loads a word. Call [`crate::sigbus::install`] once before: this is too often called to ask.
///
/// # Safety
///
/// The word must lie at a multiple of 8 in a readable mapping (the file behind it may shrink), the
/// SIGBUS handler must be installed, and nobody may hold a reference to it except as an atomic.
#[inline]
pub unsafe fn guarded_load(word: *const u64) -> Result<u64, BusFault> {
    let mut value = 0;
    // SAFETY: the caller vouches for the word and the handler; `value` is our own.
    let vanished = unsafe { muninn_sys_guarded_load(word, &mut value) };
    done(vanished, value)
}

/// Stores a word; see [`guarded_load`].
///
/// # Safety
///
/// As [`guarded_load`], and the mapping must be writable.
#[inline]
pub unsafe fn guarded_store(word: *mut u64, value: u64) -> Result<(), BusFault> {
    // SAFETY: as in `guarded_load`.
    let vanished = unsafe { muninn_sys_guarded_store(word, value) };
    done(vanished, 0).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, Memfd};
    use muninn_types::Bytes;

    #[test]
    fn words_change_in_one_step_and_a_vanished_page_is_an_error() {
        let memfd = Memfd::create("words", Bytes::PAGE).unwrap();
        let map = Mapping::options().shared().file(&memfd, 0, Bytes::PAGE);
        let map = map.unwrap();
        let word = map.as_ptr().cast::<u64>();
        // SAFETY: the first word of a mapping of our own, which no reference points to.
        let (add, swap) = unsafe {
            (
                |n| guarded_fetch_add(word, n),
                |expect, new| guarded_compare_swap(word, expect, new),
            )
        };
        assert_eq!(add(5), Ok(0));
        assert_eq!(add(u64::MAX), Ok(5));
        assert_eq!(swap(9, 1), Ok(4), "not expected, not replaced");
        assert_eq!(swap(4, 1), Ok(4));
        assert_eq!(add(0), Ok(1));
        // SAFETY: as above; the handler is installed by the calls before.
        let (load, store) = unsafe { (|| guarded_load(word), |n| guarded_store(word, n)) };
        assert_eq!((load(), store(77), load()), (Ok(1), Ok(()), Ok(77)));
        memfd.resize(Bytes::ZERO).unwrap();
        let gone = Err(BusFault { copied: 0, len: 8 });
        assert_eq!(add(1), gone);
        assert_eq!(swap(0, 1), gone);
        assert_eq!((load(), store(1)), (gone, gone.map(|_| ())));
        memfd.resize(Bytes::PAGE).unwrap();
        assert_eq!(add(1), Ok(0), "a page that is back is used again");
    }
}
