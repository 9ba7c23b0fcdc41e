//! Which heap an address belongs to, for the SIGBUS handler.
//!
//! Known limit: 64 heaps in a process.

use super::Pager;
use crate::error::HeapError;
use muninn_sys::sigbus;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

const HEAPS: usize = 64;

struct Place {
    start: AtomicUsize,
    len: AtomicUsize,
    pager: AtomicPtr<Pager>,
}

static PLACES: [Place; HEAPS] = [const {
    Place {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        pager: AtomicPtr::new(std::ptr::null_mut()),
    }
}; HEAPS];

static NEXT_THREAD: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static NUMBER: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A small number of the calling thread.
pub(super) fn thread_number() -> u32 {
    NUMBER.get().unwrap_or_else(|| {
        let number = NEXT_THREAD.fetch_add(1, Relaxed);
        NUMBER.set(Some(number));
        number
    })
}

pub(super) fn add(pager: &Arc<Pager>) -> Result<(), HeapError> {
    for place in &PLACES {
        let claimed = place
            .len
            .compare_exchange(0, pager.map.len(), AcqRel, Acquire);
        if claimed.is_ok() {
            place.start.store(pager.map.addr() as usize, Release);
            place.pager.store(Arc::as_ptr(pager).cast_mut(), Release);
            return Ok(());
        }
    }
    Err(HeapError::Machine(format!(
        "a process can have {HEAPS} heaps at a time; drop one first"
    )))
}

pub(super) fn remove(pager: &Pager) {
    for place in &PLACES {
        if std::ptr::eq(place.pager.load(Acquire), pager) {
            place.pager.store(std::ptr::null_mut(), Release);
            place.start.store(0, Release);
            place.len.store(0, Release);
        }
    }
}

/// Answers a touch of an absent or protected page, on the thread that touched it. The thread was in
/// an accessor of a heap, so it holds no lock and is not inside of an allocator.
pub(super) fn resolve(addr: usize) -> bool {
    for place in &PLACES {
        let start = place.start.load(Acquire);
        if start != 0 && addr.wrapping_sub(start) < place.len.load(Acquire) {
            let pager = place.pager.load(Acquire);
            // Another heap may have come here meanwhile, with a length that does not go with `start`.
            if pager.is_null() || place.start.load(Acquire) != start {
                continue;
            }
            // SAFETY: whoever touches a heap keeps it, and so its pager, alive; it is removed from
            // here before it is freed.
            unsafe { (*pager).fault_at(addr, sigbus::touch_is_write()) };
            return true;
        }
    }
    false
}
