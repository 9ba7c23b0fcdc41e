//! An allocator that counts, so that a function can be ended that takes too much memory.
//!
//! Counting is by thread: what a thread takes minus what it gives back. The executor notes the count
//! before it resumes a call and sets how far it may go; the call is ended at its next step or access
//! beyond that. Known limit: what is taken in one piece, without a step in between, is had first and
//! noticed after; a process of its own (`muninn nic`) is what bounds that for good.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Of one thread: what it holds, and may hold.
struct Meter {
    held: Cell<i64>,
    limit: Cell<i64>,
}

thread_local! {
    static METER: Meter = const {
        Meter {
            held: Cell::new(0),
            limit: Cell::new(i64::MAX),
        }
    };
}

/// The system's allocator, counted. Name it as the program's `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metered;

#[inline]
fn count(change: i64) {
    // A thread that is ending has no counter any more, and runs no calls either.
    let _ = METER.try_with(|meter| meter.held.set(meter.held.get().wrapping_add(change)));
}

// SAFETY: every request goes to the system's allocator unchanged; counting touches only a cell of the
// thread that needs neither allocation nor destruction.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(start, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(start, layout, size) }
    }
}

/// What this thread holds more than it has given back.
#[inline]
pub(crate) fn held() -> i64 {
    METER.with(|meter| meter.held.get())
}
/// From now on this thread may take `more` bytes.
#[inline]
pub(crate) fn allow(more: i64) {
    METER.with(|meter| meter.limit.set(meter.held.get().saturating_add(more)));
}
/// This thread may take what it likes.
#[inline]
pub(crate) fn allow_all() {
    METER.with(|meter| meter.limit.set(i64::MAX));
}
#[inline]
pub(crate) fn is_over() -> bool {
    METER.with(|meter| meter.held.get() > meter.limit.get())
}
