//! Addresses first, memory later.

use crate::memory::MemoryError;
use muninn_types::Bytes;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

/// Address space that is set aside for good.
#[derive(Clone, Copy, Debug)]
pub struct Reserve;

impl Reserve {
    /// A range of addresses that nobody else will be given, without memory. Never given back.
    pub fn addresses(bytes: Bytes) -> Result<u64, MemoryError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let nothing = std::ptr::null_mut();
        // SAFETY: a new mapping that nobody knows of yet.
        let start = unsafe { mmap_anonymous(nothing, bytes.0 as usize, ProtFlags::empty(), flags) }
            .map_err(|source| MemoryError::Map {
                what: "addresses",
                len: bytes,
                source,
            })?;
        Ok(start.expose_provenance() as u64)
    }

    /// Makes a part of reserved addresses usable; it holds zeros.
    pub fn commit(start: u64, len: usize) -> Result<*mut u8, MemoryError> {
        let pointer = std::ptr::with_exposed_provenance_mut::<u8>(start as usize);
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: reserved by us, and not in use yet.
        unsafe { mprotect(pointer.cast(), len, flags) }.map_err(|source| MemoryError::Map {
            what: "reserved memory",
            len: Bytes(len as u64),
            source,
        })?;
        Ok(pointer)
    }
}
