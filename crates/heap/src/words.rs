//! The heap as the collector at the compute node reads it: through the local cache.

use crate::pager::Pager;
use muninn_heap_agent::words::{Gone, Words};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of the cache. A load may bring a page; one that could not be had is [`Gone`].
#[derive(Clone, Copy, Debug)]
pub struct CachedWords<'a>(pub &'a Pager);

/// A word of the heap.
///
/// # Safety
///
/// The address must be a multiple of 8 inside of a heap whose pager lives.
#[inline(always)]
pub unsafe fn word_at<'a>(address: *mut u8) -> &'a AtomicU64 {
    // SAFETY: inside of the heap's mapping and aligned; all words of it are accessed atomically.
    unsafe { AtomicU64::from_ptr(address.cast()) }
}

impl CachedWords<'_> {
    fn checked(&self, at: u64, len: u64) -> Result<*mut u8, Gone> {
        let inside = at
            .checked_add(len)
            .is_some_and(|end| end <= self.0.space_bytes());
        if inside {
            Ok(self.0.address(at))
        } else {
            Err(Gone { at })
        }
    }
    /// A page that could not be fetched shows zeros; the alarm says so.
    fn still_whole<T>(&self, at: u64, value: T) -> Result<T, Gone> {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        match self.0.alarm.has(crate::alarm::LOST) {
            false => Ok(value),
            true => Err(Gone { at }),
        }
    }
}

impl Words for CachedWords<'_> {
    fn load(&self, at: u64) -> Result<u64, Gone> {
        let address = self.checked(at, 8)?;
        self.0.expect_read(address);
        // SAFETY: inside of the heap, and aligned as objects are.
        let word = unsafe { word_at(address) }.load(Relaxed);
        self.still_whole(at, word)
    }
    fn store(&self, at: u64, word: u64) -> Result<(), Gone> {
        let address = self.checked(at, 8)?;
        self.0.expect_write(address);
        // SAFETY: as above.
        unsafe { word_at(address) }.store(word, Relaxed);
        self.still_whole(at, ())
    }
    fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), Gone> {
        let (from, to, at) = (self.checked(from, len)?, self.checked(to, len)?, from);
        for offset in (0..len as usize).step_by(8) {
            // SAFETY: both ranges are inside of the heap. Word by word, because a fault in the
            // middle of a copy by the library would be taken for one of `guarded_copy`.
            unsafe {
                let word = word_at(from.add(offset)).load(Relaxed);
                word_at(to.add(offset)).store(word, Relaxed);
            }
        }
        self.still_whole(at, ())
    }
}
