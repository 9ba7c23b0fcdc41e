//! Memory for the length of a call: taken from the end of the heap, which begins anew with the next call.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ptr;

const PAGE: usize = 64 << 10;

struct Heap {
    /// Where the next allocation goes; 0: nothing was taken yet. The host puts it back after each call.
    next: Cell<usize>,
}

// SAFETY: a module has one thread.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { next: Cell::new(0) };

unsafe extern "C" {
    static __heap_base: u8;
}

// SAFETY: each allocation is a part of the memory behind `__heap_base` that no other one has, aligned as
// asked for, in a memory that was made large enough.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = match self.next.get() {
            0 => &raw const __heap_base as usize,
            next => next,
        };
        let Some(at) = start.checked_next_multiple_of(layout.align()) else {
            return ptr::null_mut();
        };
        let Some(end) = at.checked_add(layout.size()) else {
            return ptr::null_mut();
        };
        let pages = core::arch::wasm32::memory_size::<0>();
        let wanted = end.div_ceil(PAGE);
        if wanted > pages && core::arch::wasm32::memory_grow::<0>(wanted - pages) == usize::MAX {
            return ptr::null_mut();
        }
        self.next.set(end);
        at as *mut u8
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if start as usize + layout.size() == self.next.get() {
            self.next.set(start as usize);
        }
    }
}
