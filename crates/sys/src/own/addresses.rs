//! Addresses for what the runtime maps while the program runs.
//!
//! The kernel would give it addresses that the program has just given back, and what was found out about
//! these a moment before may still be acted upon: memory of a server was taken over as the program's, and the
//! pager, when it unmapped that, waited for himself. So mappings that come and go have a place of their own,
//! which is claimed once and never given back.
//!
//! Invariant: an area is mapped at all times, by what was put there or by nothing that can be touched. Known
//! limit: what is larger than an area, or comes when there is no more room, is where the kernel likes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use muninn_types::{Bytes, PageNo};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::memory::{Reserve, program};
use crate::uffd::PageRange;

/// The grain of an area; a word of its map has 64 of them.
const UNIT: u64 = 4 << 20;
const WORDS: usize = 64;
const AREAS: usize = 16;
/// An area is as large as can be had, in units: a program may have a limit of addresses.
const SIZES: [u64; 3] = [4096, 1024, 256];

struct Area {
    start: AtomicU64,
    units: AtomicU64,
    used: [AtomicU64; WORDS],
}

static ALL: [Area; AREAS] = [const {
    Area {
        start: AtomicU64::new(0),
        units: AtomicU64::new(0),
        used: [const { AtomicU64::new(0) }; WORDS],
    }
}; AREAS];
static LOCKED: AtomicBool = AtomicBool::new(false);

/// Held by threads of the runtime only, for a moment.
struct Lock;

impl Lock {
    fn take() -> Lock {
        while LOCKED.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Lock
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        LOCKED.store(false, Ordering::Release);
    }
}

impl Area {
    fn is_used(&self, unit: u64) -> bool {
        let word = self.used[unit as usize / 64].load(Ordering::Relaxed);
        word >> (unit % 64) & 1 != 0
    }

    fn mark(&self, first: u64, units: u64, used: bool) {
        for unit in first..first + units {
            let (word, bit) = (&self.used[unit as usize / 64], 1 << (unit % 64));
            match used {
                true => word.fetch_or(bit, Ordering::Relaxed),
                false => word.fetch_and(!bit, Ordering::Relaxed),
            };
        }
    }

    /// The first free units that follow each other.
    fn find(&self, units: u64) -> Option<u64> {
        let mut free = 0;
        for unit in 0..self.units.load(Ordering::Relaxed) {
            free = if self.is_used(unit) { 0 } else { free + 1 };
            if free == units {
                return Some(unit + 1 - units);
            }
        }
        None
    }

    /// Sets addresses aside, if that was not done yet and can be.
    fn begin(&self) {
        if self.start.load(Ordering::Relaxed) != 0 {
            return;
        }
        for units in SIZES {
            super::ceiling::give_up(units * UNIT);
            if let Ok(start) = Reserve::addresses(Bytes(units * UNIT)) {
                super::claim(start, units * UNIT);
                keep_from_children(start, units * UNIT);
                self.units.store(units, Ordering::Relaxed);
                self.start.store(start, Ordering::Relaxed);
                return;
            }
        }
    }
}

fn keep_from_children(start: u64, len: u64) {
    if let Some(range) = PageRange::of_bytes(start, len) {
        let _ = program::keep_from_children(range);
    }
}

fn units_of(len: usize) -> u64 {
    (len as u64).div_ceil(UNIT)
}

/// Addresses for a mapping of the runtime's; `None` outside of a companion, and when there are none left.
pub(crate) fn take(len: usize) -> Option<u64> {
    if super::task::program_pid() == 0 {
        return None;
    }
    let units = units_of(len);
    let _lock = Lock::take();
    for area in &ALL {
        area.begin();
        if let Some(first) = area.find(units) {
            area.mark(first, units, true);
            return Some(area.start.load(Ordering::Relaxed) + first * UNIT);
        }
    }
    None
}

/// What was mapped at such addresses is not to be in children.
pub(crate) fn note_mapped(start: u64, len: usize) {
    keep_from_children(start, len as u64);
}

/// Nothing is to be mapped there any more. False where the addresses are not from here.
pub(crate) fn give_back(start: u64, len: usize) -> bool {
    let _lock = Lock::take();
    let found = ALL.iter().find(|area| {
        let from = area.start.load(Ordering::Relaxed);
        let units = area.units.load(Ordering::Relaxed);
        from != 0 && (from..from + units * UNIT).contains(&start)
    });
    let Some(area) = found else { return false };
    let page = PageNo::of_addr(start);
    let pointer = std::ptr::with_exposed_provenance_mut(page.addr() as usize);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: a part of our area, whose mapping its owner gives up.
    let cleared = unsafe { mmap_anonymous(pointer, len, ProtFlags::empty(), flags) };
    if cleared.is_ok() {
        keep_from_children(start, len as u64);
        let first = (start - area.start.load(Ordering::Relaxed)) / UNIT;
        area.mark(first, units_of(len), false);
    }
    true
}

/// A child of a fork has none of it.
pub(super) fn forget() {
    for area in &ALL {
        area.start.store(0, Ordering::Relaxed);
        area.units.store(0, Ordering::Relaxed);
        for word in &area.used {
            word.store(0, Ordering::Relaxed);
        }
    }
    LOCKED.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_found_where_enough_of_them_are_free() {
        let area = Area {
            start: AtomicU64::new(UNIT),
            units: AtomicU64::new(200),
            used: [const { AtomicU64::new(0) }; WORDS],
        };
        assert_eq!(area.find(16), Some(0));
        area.mark(0, 16, true);
        area.mark(20, 100, true);
        assert_eq!(area.find(4), Some(16));
        assert_eq!(area.find(5), Some(120));
        assert_eq!(area.find(81), None);
        area.mark(60, 10, false);
        assert_eq!(area.find(10), Some(60));
        area.mark(0, 200, false);
        assert_eq!(area.find(200), Some(0));
        assert_eq!(area.find(201), None);
    }
}
