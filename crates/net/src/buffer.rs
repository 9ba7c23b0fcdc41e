//! Memory that an operation carries: owned and page-aligned, or a range that someone vouches for.

use muninn_types::PAGE_SIZE;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

/// Bytes on their way to or from a server. Belongs to an operation while that is under way.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// None: a range of somebody else's.
    owned: Option<Layout>,
}

// SAFETY: an owned buffer is exclusive; a borrowed one is vouched for by whoever made it.
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
            owned: Some(layout),
        }
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

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(layout) = self.owned {
            // SAFETY: allocated in `new` with this layout and freed only here.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
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
        // SAFETY: as in `as_ref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}
