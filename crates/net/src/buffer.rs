//! Memory that an operation carries: owned and page-aligned, or a range that someone vouches for.
//!
//! What is written to several servers is one buffer that is shared by as many operations. Invariant: memory that
//! is shared is only read; whoever wants to write to it finds out.

use muninn_types::PAGE_SIZE;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that is freed with the last buffer in which it is.
struct Owned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is only freed here; who may write to it is for `Buffer` to say.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated in `Buffer::new` with this layout and freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Bytes on their way to or from a server. Belongs to an operation while that is under way.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// None: a range of somebody else's.
    owned: Option<Arc<Owned>>,
}

// SAFETY: an owned buffer is exclusive, or only read; a borrowed one is vouched for by whoever made it.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Zeroed, at the start of a page.
    pub fn new(len: usize) -> Buffer {
        if len == 0 {
            return Buffer::empty();
        }
        let layout = Layout::from_size_align(len, PAGE_SIZE).expect("a length that fits memory");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Buffer {
            start,
            len,
            owned: Some(Arc::new(Owned { start, layout })),
        }
    }

    /// The same memory once more; from now on it can only be read, until one of the two is gone.
    ///
    /// # Panics
    ///
    /// If the memory is somebody else's.
    pub fn share(&self) -> Buffer {
        let owned = self.owned.as_ref().expect("an owned buffer");
        Buffer {
            start: self.start,
            len: self.len,
            owned: Some(Arc::clone(owned)),
        }
    }

    /// Whether it is owned and nobody shares it.
    pub fn is_alone(&self) -> bool {
        self.owned
            .as_ref()
            .is_some_and(|owned| Arc::strong_count(owned) == 1)
    }

    /// For operations without data.
    pub const fn empty() -> Buffer {
        Buffer {
            start: NonNull::dangling(),
            len: 0,
            owned: None,
        }
    }

    /// A range that is not owned.
    ///
    /// # Safety
    ///
    /// Until the buffer is dropped the range must be mapped, writable if it is read into, and
    /// touched by nobody else.
    pub unsafe fn from_raw(start: *mut u8, len: usize) -> Buffer {
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        Buffer {
            start,
            len,
            owned: None,
        }
    }

    pub const fn len(&self) -> usize {
        self.len
    }
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: owned, or vouched for in `from_raw`; dangling only with length 0.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        assert!(
            self.owned.is_none() || self.is_alone(),
            "a buffer that is shared is only read"
        );
        // SAFETY: as in `as_ref`, and `self` is borrowed exclusively; nobody shares it, as was just seen, and
        // whoever could begin to would need `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_one_memory_that_is_only_read() {
        let mut first = Buffer::new(8192);
        first.as_mut()[5] = 7;
        let second = first.share();
        assert_eq!(first.as_ref().as_ptr(), second.as_ref().as_ptr());
        assert!(!first.is_alone() && second.as_ref()[5] == 7);
        let written =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| first.as_mut()[5] = 8));
        assert!(written.is_err() && second.as_ref()[5] == 7);
        drop(second);
        first.as_mut()[5] = 9;
        assert!(first.is_alone() && !Buffer::empty().is_alone());
    }
}
