//! The limit of a program's addresses (RLIMIT_AS, `ulimit -v`), without the runtime's own.
//!
//! The runtime sets aside much address space, tens of gibibytes of it, nearly all of which is never used. The kernel
//! counts that as the program's, so a program that limits itself to a gibibyte could map nothing any more. So
//! the C library's functions about limits are led through here: the kernel is told a limit that is larger by
//! [`ALLOWANCE`], and the program is told what it said. What of the allowance the runtime has not taken is filled
//! with *ballast*, addresses of nobody, so that the limit holds for the program.
//!
//! That a limit is one of these is seen by its lowest bits: the kernel counts pages. So a program that is executed
//! under it knows, too.
//!
//! Known limits: a limit that was there before the job began is left as it is; one of another process, or set by a
//! system call of the program's own, counts the runtime. The program may have up to [`SLACK`] more than it said.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::*};

use super::calls;
use crate::memory::Reserve;
use crate::memory::program;
use crate::uffd::PageRange;
use muninn_types::{Bytes, PAGE_SIZE};

/// More than the runtime ever sets aside.
const ALLOWANCE: u64 = 96 << 30;
/// What the runtime may need more of without anything of the ballast being given up.
const SLACK: u64 = 64 << 20;
/// In the bits that the kernel does not look at.
const MARK: u64 = 0x6d5;
const MARK_BITS: u64 = PAGE_SIZE as u64 - 1;
/// A limit from here on limits nobody.
const MUCH: u64 = 1 << 46;

/// A limit as programs and the kernel say it to each other.
pub type Limit = libc::rlimit64;

/// Addresses of nobody: where they begin (0 where there are none), and how many there still are.
static START: AtomicU64 = AtomicU64::new(0);
static LEN: AtomicU64 = AtomicU64::new(0);

/// As the program says it, and as the kernel is told.
fn inside(value: u64) -> u64 {
    match value < MUCH {
        true => (value & !MARK_BITS) + ALLOWANCE + MARK,
        false => value,
    }
}

fn is_marked(value: u64) -> bool {
    value & MARK_BITS == MARK && (ALLOWANCE..MUCH + ALLOWANCE + MARK).contains(&value)
}

/// As the kernel has it, and as the program is told.
fn outside(value: u64) -> u64 {
    match is_marked(value) {
        true => value - ALLOWANCE - MARK,
        false => value,
    }
}

fn kernel(resource: c_int, new: *const Limit, old: *mut Limit) -> isize {
    let (new, old) = (new.expose_provenance(), old.expose_provenance());
    calls::call(libc::SYS_prlimit64, &[0, resource as usize, new, old, 0, 0])
}

/// What holds for this process's addresses, as the kernel has it.
fn current() -> Option<Limit> {
    let mut now = Limit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let got = kernel(libc::RLIMIT_AS as c_int, std::ptr::null(), &raw mut now);
    (got == 0).then_some(now)
}

/// In place of `prlimit`, and what else there is about limits is made of it. The kernel's own answer, an error below
/// zero. `is_on`: this process has a pager.
///
/// # Safety
///
/// As the C library says of `prlimit`.
pub unsafe fn limit(
    pid: c_int,
    resource: c_int,
    new: *const Limit,
    old: *mut Limit,
    is_on: bool,
) -> isize {
    let of_us = pid == 0 || pid as u32 == std::process::id();
    if !is_on || !of_us || resource != libc::RLIMIT_AS as c_int {
        let (new, old) = (new.expose_provenance(), old.expose_provenance());
        let (pid, resource) = (pid as usize, resource as usize);
        return calls::call(libc::SYS_prlimit64, &[pid, resource, new, old, 0, 0]);
    }
    let Some(before) = current() else {
        return -(libc::EINVAL as isize);
    };
    if !new.is_null() {
        // SAFETY: as the caller says.
        let mut wanted = unsafe { *new };
        // One from outside may not be passed, and was not made with us in mind.
        if is_marked(before.rlim_max) || before.rlim_max >= MUCH {
            wanted.rlim_cur = inside(wanted.rlim_cur);
            wanted.rlim_max = inside(wanted.rlim_max);
        }
        let set = kernel(resource, &raw const wanted, std::ptr::null_mut());
        if set != 0 {
            return set;
        }
        balance();
    }
    if !old.is_null() {
        // SAFETY: as the caller says.
        unsafe {
            (*old).rlim_cur = outside(before.rlim_cur);
            (*old).rlim_max = outside(before.rlim_max);
        }
    }
    0
}

/// Fills what the runtime has not taken of its allowance, if there is a limit that was made larger by it.
pub fn balance() {
    if START.load(Acquire) != 0 || !current().is_some_and(|now| is_marked(now.rlim_cur)) {
        return;
    }
    let taken = super::claimed_bytes() + SLACK;
    let Some(len) = ALLOWANCE.checked_sub(taken).filter(|len| *len > 0) else {
        return;
    };
    let len = len & !MARK_BITS;
    let Ok(start) = Reserve::addresses(Bytes(len)) else {
        return;
    };
    super::claim(start, len);
    if let Some(range) = PageRange::of_bytes(start, len) {
        let _ = program::keep_from_children(range);
    }
    LEN.store(len, Release);
    START.store(start, Release);
}

/// The runtime is about to set so much aside: there is as much less of the ballast from now on.
pub(super) fn give_up(bytes: u64) {
    let start = START.load(Acquire);
    if start == 0 {
        return;
    }
    let less = |len: u64| Some(len.saturating_sub(bytes) & !MARK_BITS);
    if let Ok(before) = LEN.fetch_update(AcqRel, Acquire, less) {
        let left = less(before).unwrap_or(0);
        let range = [
            (start + left) as usize,
            (before - left) as usize,
            0,
            0,
            0,
            0,
        ];
        calls::call(libc::SYS_munmap, &range);
    }
}

/// A child of a fork has none of it.
pub(super) fn forget() {
    START.store(0, Release);
    LEN.store(0, Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_what_it_said() {
        for value in [0, 4096, 1 << 30, (1 << 46) - 4096] {
            assert!(is_marked(inside(value)));
            assert_eq!(outside(inside(value)), value);
        }
        for value in [libc::RLIM64_INFINITY, 1 << 46] {
            assert_eq!(inside(value), value);
            assert_eq!(outside(value), value);
        }
        assert_eq!(outside(ALLOWANCE), ALLOWANCE, "somebody else's");
        assert_eq!(outside(inside(1_000_000)), 1_000_000 / 4096 * 4096);
    }
}
