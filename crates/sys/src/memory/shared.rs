//! One value in a file that several processes map and change at once.
//!
//! The idea: a type that is atomics all the way down may be looked at through a plain reference by
//! anybody, in any process, whatever the others do to it. Invariant: [`Shared`] hands out `&T` only,
//! of a file that is at least as long as `T`, and [`Plain`] says that every bit pattern is a `T`.
//!
//! Known limit: whoever may write the file may also cut it, and the next touch is then SIGBUS. Keep
//! such files in a directory nobody else can reach.

use std::fs::File;
use std::ops::Deref;

use muninn_types::Bytes;

use super::{Mapping, MemoryError};

/// Types that may lie in shared memory.
///
/// # Safety
///
/// The type must be `repr(C)`, made of atomics (and arrays and structs of them) only, so that
/// others may change it at any time; and every bit pattern, all zeros among them, must be a value
/// of it. It needs no more alignment than a page.
pub unsafe trait Plain: Sync {}

/// A `T` in a file, mapped. Dropping it unmaps.
#[derive(Debug)]
pub struct Shared<T> {
    map: Mapping,
    kind: std::marker::PhantomData<fn() -> T>,
}

impl<T: Plain> Shared<T> {
    /// Bytes of file that a `T` takes.
    pub const LEN: Bytes = Bytes(size_of::<T>() as u64);

    /// Maps the beginning of a file, opened for reading and writing; `None` when it is too short.
    pub fn map(file: &File) -> Result<Option<Shared<T>>, MemoryError> {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0) };
        let len = file.metadata().map_or(0, |metadata| metadata.len());
        if len < Self::LEN.0 {
            return Ok(None);
        }
        let map = Mapping::options().shared().file(file, 0, Self::LEN)?;
        Ok(Some(Shared {
            map,
            kind: std::marker::PhantomData,
        }))
    }

    /// What a parent had mapped when it forked, in its child.
    ///
    /// # Safety
    ///
    /// A `T` of a file must be mapped at this address, and belong to nobody else in this process.
    pub unsafe fn inherited(addr: u64) -> Option<Shared<T>> {
        let start = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(addr as usize))?;
        let len = size_of::<T>().next_multiple_of(muninn_types::PAGE_SIZE);
        Some(Shared {
            map: Mapping::from_parts(start, len, super::Access::ReadWrite),
            kind: std::marker::PhantomData,
        })
    }

    /// Where it lies, for those who must leave these pages alone.
    pub fn mapping(&self) -> &Mapping {
        &self.map
    }
}

impl<T: Plain> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping is readable, writable, page-aligned and holds at least `size_of::<T>()`
        // bytes; by `Plain`, whatever they are is a `T`, and others change them atomically only.
        unsafe { &*self.map.as_ptr().cast::<T>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[repr(C)]
    struct Two([AtomicU64; 2]);
    // SAFETY: an array of atomics.
    unsafe impl Plain for Two {}

    #[test]
    fn two_mappings_of_a_file_show_one_value() {
        let file = tempfile::tempfile().unwrap();
        assert!(Shared::<Two>::map(&file).unwrap().is_none(), "too short");
        file.set_len(Shared::<Two>::LEN.0).unwrap();
        let first = Shared::<Two>::map(&file).unwrap().unwrap();
        let second = Shared::<Two>::map(&file).unwrap().unwrap();
        first.0[1].store(7, Ordering::Relaxed);
        assert_eq!(second.0[1].load(Ordering::Relaxed), 7);
    }
}
