//! The runtime's own heap.
//!
//! Nothing of ours may come from the program's malloc: a program thread may hold its lock while it
//! waits for a page from us. So everything is allocated from one reserved range of addresses, which
//! is never taken over and is left out of children: a child's runtime begins with a heap of its own.
//! `dlmalloc` manages it; memory is made usable piece by piece at its end.

use dlmalloc::{Allocator, Dlmalloc};
use muninn_sys::memory::{Reserve, program};
use muninn_sys::own;
use muninn_sys::uffd::PageRange;
use muninn_types::Bytes;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Address space for the heap; memory is taken as it is needed. Less where that is refused.
const RESERVES: [Bytes; 3] = [Bytes::gib(64), Bytes::gib(8), Bytes::gib(1)];
/// Usable memory grows in such steps.
const STEP: usize = 1 << 20;

static START: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
static USED: AtomicU64 = AtomicU64::new(0);

/// Where dlmalloc gets its memory.
struct Arena;

// SAFETY: each piece is given out once, is readable and writable, and stays; it is new memory of the
// kernel, so it holds zeros.
unsafe impl Allocator for Arena {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let refused = (std::ptr::null_mut(), 0, 0);
        if START.load(Ordering::Relaxed) == 0 && !reserve() {
            return refused;
        }
        let size = size.next_multiple_of(STEP);
        let at = USED.fetch_add(size as u64, Ordering::Relaxed);
        let start = START.load(Ordering::Relaxed) + at;
        if start + size as u64 > END.load(Ordering::Relaxed) {
            return refused;
        }
        match Reserve::commit(start, size) {
            Ok(pointer) => (pointer, size, 0),
            Err(_) => refused,
        }
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }
    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }
    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }
    fn can_release_part(&self, _: u32) -> bool {
        false
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        muninn_types::PAGE_SIZE
    }
}

fn reserve() -> bool {
    for bytes in RESERVES {
        if let Ok(start) = Reserve::addresses(bytes) {
            own::claim(start, bytes.0);
            if let Some(range) = PageRange::of_bytes(start, bytes.0) {
                let _ = program::keep_from_children(range);
            }
            END.store(start + bytes.0, Ordering::Relaxed);
            START.store(start, Ordering::Relaxed);
            return true;
        }
    }
    false
}

/// Memory of the heap that may be in use.
pub fn bytes() -> u64 {
    USED.load(Ordering::Relaxed)
}

/// A piece of the heap for a stack, aligned to pages, never freed.
pub fn stack(len: usize) -> Option<*mut u8> {
    // Not in the heap's own range: the C library looks at all stacks once in a child.
    let start = Reserve::addresses(Bytes(len as u64)).ok()?;
    own::claim(start, len as u64);
    let stack = Reserve::commit(start, len).ok()?;
    if let Some(range) = PageRange::of_bytes(start, len as u64) {
        program::keep_from_dumps(range);
    }
    Some(stack)
}

/// The allocator behind a lock. Held for the length of one allocation, by threads of ours only
/// (and by the program's main thread while the library starts).
pub struct Heap {
    locked: AtomicBool,
    inner: UnsafeCell<Dlmalloc<Arena>>,
}

// SAFETY: `inner` is used only with the lock held.
unsafe impl Sync for Heap {}

impl Heap {
    pub const fn new() -> Heap {
        Heap {
            locked: AtomicBool::new(false),
            inner: UnsafeCell::new(Dlmalloc::new_with_allocator(Arena)),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Dlmalloc<Arena>) -> T) -> T {
        while self.locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: the lock is held.
        let result = work(unsafe { &mut *self.inner.get() });
        self.locked.store(false, Ordering::Release);
        result
    }

    /// Begins anew, in a child, where the memory of the heap before is not mapped.
    ///
    /// # Safety
    ///
    /// Nothing that was allocated before may be used or freed any more, and no other thread may use
    /// the heap.
    pub unsafe fn begin_anew(&self) {
        START.store(0, Ordering::Relaxed);
        END.store(0, Ordering::Relaxed);
        USED.store(0, Ordering::Relaxed);
        // SAFETY: no other thread; what was there owns nothing that needs dropping.
        unsafe { self.inner.get().write(Dlmalloc::new_with_allocator(Arena)) };
        self.locked.store(false, Ordering::Release);
    }
}

// SAFETY: dlmalloc is an allocator, and every call to it holds the lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is the caller's promise.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: allocated here with this layout.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), size) })
    }
}
