//! How to map: the choices before a [`Mapping`] exists.
//!
//! Starts as private, read-write, filled on first touch; each call changes one of these. Invariant:
//! advice about huge pages is given before pages are filled, or it would come too late.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use muninn_types::{Bytes, PAGE_SIZE};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Mapping, MemoryError};
use crate::own::addresses;

/// What may be done with the bytes of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    ReadWrite,
    ReadOnly,
    /// Address space only: every touch is a SIGSEGV until something is mapped there.
    None,
}

/// What the kernel should do about huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugeAdvice {
    /// What the machine is set to.
    #[default]
    System,
    /// Huge pages where possible.
    Wanted,
    /// Never: needed where single pages are moved by userfaultfd.
    Never,
}

/// How to map. Starts as private, read-write, filled on first touch.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct MapOptions {
    access: Access,
    huge: HugeAdvice,
    shared: bool,
    populate: bool,
    locked: bool,
    no_reserve: bool,
    ours: bool,
}

impl MapOptions {
    pub fn access(mut self, access: Access) -> MapOptions {
        self.access = access;
        self
    }
    /// Writes reach the file and everybody who maps it.
    pub fn shared(mut self) -> MapOptions {
        self.shared = true;
        self
    }
    /// Fill all pages now instead of one fault at a time.
    pub fn populate(mut self) -> MapOptions {
        self.populate = true;
        self
    }
    /// Keep all pages in memory; needs a limit of locked memory that allows it.
    pub fn locked(mut self) -> MapOptions {
        self.locked = true;
        self
    }
    /// Do not count the range against the commit limit: for large tables that stay sparse.
    pub fn no_reserve(mut self) -> MapOptions {
        self.no_reserve = true;
        self
    }
    /// In a program's companion: at addresses that the program never had, and not in its children.
    pub fn ours(mut self) -> MapOptions {
        self.ours = true;
        self
    }
    pub fn huge(mut self, huge: HugeAdvice) -> MapOptions {
        self.huge = huge;
        self
    }

    fn prot(&self) -> ProtFlags {
        match self.access {
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Access::ReadOnly => ProtFlags::READ,
            Access::None => ProtFlags::empty(),
        }
    }

    fn flags(&self) -> MapFlags {
        let mut flags = if self.shared {
            MapFlags::SHARED
        } else {
            MapFlags::PRIVATE
        };
        flags.set(MapFlags::NORESERVE, self.no_reserve);
        // With advice about huge pages, filling has to come after the advice.
        flags.set(
            MapFlags::POPULATE,
            self.populate && self.huge == HugeAdvice::System,
        );
        flags
    }

    /// Fresh zero pages.
    pub fn anonymous(self, len: Bytes) -> Result<Mapping, MemoryError> {
        let size = size_of_mapping(len, "anonymous memory")?;
        // SAFETY: the kernel chooses an unused range, so no memory of anybody else is replaced.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, self.prot(), self.flags())
        };
        self.finish(mapped, size, "anonymous memory")
    }

    /// `len` bytes of a file from `offset` (a multiple of the page size).
    pub fn file(self, file: impl AsFd, offset: u64, len: Bytes) -> Result<Mapping, MemoryError> {
        let size = size_of_mapping(len, "a file")?;
        let place = self.ours.then(|| addresses::take(size)).flatten();
        let at = std::ptr::with_exposed_provenance_mut(place.unwrap_or(0) as usize);
        let mut flags = self.flags();
        flags.set(MapFlags::FIXED, place.is_some());
        // SAFETY: the kernel chooses an unused range, or we have one where nothing is.
        let mapped = unsafe { rustix::mm::mmap(at, size, self.prot(), flags, file, offset) };
        match (place, &mapped) {
            (Some(start), Ok(_)) => addresses::note_mapped(start, size),
            (Some(start), Err(_)) => drop(addresses::give_back(start, size)),
            (None, _) => {}
        }
        self.finish(mapped, size, "a file")
    }

    fn finish(
        self,
        mapped: Result<*mut std::ffi::c_void, Errno>,
        size: usize,
        what: &'static str,
    ) -> Result<Mapping, MemoryError> {
        let failed = |source| MemoryError::Map {
            what,
            len: Bytes(size as u64),
            source,
        };
        let start = NonNull::new(mapped.map_err(failed)?.cast::<u8>())
            .ok_or_else(|| failed(Errno::FAULT))?;
        let mapping = Mapping::from_parts(start, size, self.access);
        match self.huge {
            HugeAdvice::System => {}
            // Kernels without huge pages answer EINVAL; then the advice holds by itself.
            advice => match mapping.advise_huge(advice) {
                Err(MemoryError::Range {
                    source: Errno::INVAL,
                    ..
                }) => {}
                other => other?,
            },
        }
        if self.populate && self.huge != HugeAdvice::System {
            mapping.populate()?;
        }
        if self.locked {
            mapping.lock()?;
        }
        Ok(mapping)
    }
}

fn size_of_mapping(len: Bytes, what: &'static str) -> Result<usize, MemoryError> {
    usize::try_from(len.0)
        .ok()
        .and_then(|n| n.checked_next_multiple_of(PAGE_SIZE))
        .filter(|&n| n > 0)
        .ok_or(MemoryError::Map {
            what,
            len,
            source: Errno::INVAL,
        })
}
