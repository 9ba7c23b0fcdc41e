//! A piece of address space that is given back when its owner is dropped.
//!
//! Built with [`Mapping::options`]: anonymous or of a file, shared or private, filled at once or on
//! first touch, with or without huge pages. Invariant: the range `addr .. addr + len` stays mapped
//! by this value alone until it is dropped; no reference into it leaves through a safe function.
//! Known limit: two threads that copy into the same bytes at once mix their bytes; nothing worse.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

use muninn_types::{Bytes, PAGE_SIZE};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::{Access, HugeAdvice, MapOptions, MemoryError, guarded_copy};

/// Ranges that are discarded with one system call.
const RANGES_MAX: usize = 64;

/// A mapped range. Dropping it unmaps.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: the value only owns address space; all safe access to its bytes is by `guarded_copy`,
// which is assembly and, like a system call, may run in any thread and several at once.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; no safe function hands out a reference into the range.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes over a range that was just mapped.
    pub(super) fn from_parts(start: NonNull<u8>, len: usize, access: Access) -> Mapping {
        Mapping { start, len, access }
    }

    pub fn options() -> MapOptions {
        MapOptions::default()
    }

    /// Private zero pages, read-write, filled on first touch.
    pub fn anonymous(len: Bytes) -> Result<Mapping, MemoryError> {
        Mapping::options().anonymous(len)
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Bytes mapped: the length asked for, rounded up to whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.addr()) < self.len as u64
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    ///
    /// While the slice lives nobody may write the range (no other thread, no other process), the
    /// file behind it may not shrink, and the mapping must be readable.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as `self` lives; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Copies bytes out; an error, not a signal, where the file behind has shrunk.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.span(offset, into.len())?;
        // SAFETY: `span` checked that the source lies inside of the mapping; the destination is an
        // exclusive slice, which cannot overlap a mapping of which no references exist.
        unsafe { guarded_copy(into.as_mut_ptr(), from, into.len()) }?;
        Ok(())
    }

    /// Copies bytes in; an error, not a signal, where the file behind has shrunk.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        if self.access != Access::ReadWrite {
            return Err(MemoryError::ReadOnly);
        }
        let into = self.span(offset, from.len())?;
        // SAFETY: `span` checked that the destination lies inside of the mapping, which is
        // writable; the source is a slice and cannot overlap it.
        unsafe { guarded_copy(into, from.as_ptr(), from.len()) }?;
        Ok(())
    }

    fn span(&self, offset: u64, len: usize) -> Result<*mut u8, MemoryError> {
        let inside = offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.len as u64);
        if !inside || self.access == Access::None {
            return Err(MemoryError::OutOfRange {
                offset,
                len: Bytes(len as u64),
                mapped: Bytes(self.len as u64),
            });
        }
        // SAFETY: `offset + len <= self.len`, so the pointer stays inside of the mapped range.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    pub(super) fn advise_huge(&self, advice: HugeAdvice) -> Result<(), MemoryError> {
        let (advice, action) = match advice {
            HugeAdvice::Wanted => (Advice::LinuxHugepage, "ask for huge pages in"),
            _ => (Advice::LinuxNoHugepage, "forbid huge pages in"),
        };
        self.advise(0, self.len, advice, action)
    }

    /// Gives the pages of a range back. Private memory reads as zeros afterwards, a file mapping
    /// shows the file again.
    pub fn discard(&self, offset: u64, len: Bytes) -> Result<(), MemoryError> {
        let size = self.whole_pages(offset, len)?;
        self.advise(offset, size, Advice::LinuxDontNeed, "discard")
    }

    /// Gives the pages of several ranges back, as [`Mapping::discard`] does with one: with a single
    /// system call, and so a single flush of the processors' page tables, where the kernel has it
    /// (Linux 6.13).
    pub fn discard_ranges(&self, ranges: &[(u64, Bytes)]) -> Result<(), MemoryError> {
        if ranges.len() > 1 && self.discard_at_once(ranges)? {
            return Ok(());
        }
        ranges
            .iter()
            .try_for_each(|(offset, len)| self.discard(*offset, *len))
    }

    /// False if the kernel did not do all of it; to do some of it again changes nothing.
    fn discard_at_once(&self, ranges: &[(u64, Bytes)]) -> Result<bool, MemoryError> {
        static OURSELVES: OnceLock<Option<OwnedFd>> = OnceLock::new();
        // Of a parent if we were forked since: the kernel discards nothing of other processes.
        let ourselves = OURSELVES.get_or_init(|| {
            let flags = rustix::process::PidfdFlags::empty();
            rustix::process::pidfd_open(rustix::process::getpid(), flags).ok()
        });
        let Some(ourselves) = ourselves else {
            return Ok(false);
        };
        for some in ranges.chunks(RANGES_MAX) {
            let nothing = libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            };
            let mut list = [nothing; RANGES_MAX];
            let mut total = 0;
            for (place, (offset, len)) in list.iter_mut().zip(some) {
                let size = self.whole_pages(*offset, *len)?;
                place.iov_base = self.as_ptr().wrapping_add(*offset as usize).cast();
                place.iov_len = size;
                total += size;
            }
            // SAFETY: the list names ranges inside of the mapping, to which no references exist;
            // their contents may be replaced as any writer may do.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    ourselves.as_raw_fd(),
                    list.as_ptr(),
                    some.len(),
                    libc::MADV_DONTNEED,
                    0,
                )
            };
            if done != total as i64 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fills all pages of the mapping, readable ones of a read-only mapping.
    pub fn populate(&self) -> Result<(), MemoryError> {
        let advice = match self.access {
            Access::ReadWrite => Advice::LinuxPopulateWrite,
            _ => Advice::LinuxPopulateRead,
        };
        self.advise(0, self.len, advice, "populate")
    }

    /// Takes the memory for a part of a writable mapping, in whole pages: an error here is no signal
    /// later. Where the kernel cannot (before Linux 5.14), nothing happens.
    pub fn take(&self, offset: u64, len: Bytes) -> Result<(), MemoryError> {
        let page = PAGE_SIZE as u64;
        let start = offset / page * page;
        let end = offset.saturating_add(len.0).next_multiple_of(page);
        let size = self.whole_pages(start, Bytes(end.min(self.len as u64) - start))?;
        match self.advise(start, size, Advice::LinuxPopulateWrite, "populate") {
            Err(MemoryError::Range {
                source: Errno::INVAL,
                ..
            }) => Ok(()),
            other => other,
        }
    }

    /// Keeps all pages in memory until the mapping is dropped.
    pub fn lock(&self) -> Result<(), MemoryError> {
        // SAFETY: the range is ours; locking changes no bytes.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.len) }
            .map_err(|source| self.failed("lock", 0, self.len, source))
    }

    fn whole_pages(&self, offset: u64, len: Bytes) -> Result<usize, MemoryError> {
        if !offset.is_multiple_of(PAGE_SIZE as u64) || !len.0.is_multiple_of(PAGE_SIZE as u64) {
            return Err(MemoryError::NotAligned { offset, len });
        }
        let size = usize::try_from(len.0).unwrap_or(usize::MAX);
        match offset.checked_add(len.0) {
            Some(end) if end <= self.len as u64 => Ok(size),
            _ => Err(MemoryError::OutOfRange {
                offset,
                len,
                mapped: Bytes(self.len as u64),
            }),
        }
    }

    fn advise(
        &self,
        offset: u64,
        len: usize,
        advice: Advice,
        action: &'static str,
    ) -> Result<(), MemoryError> {
        // SAFETY: callers pass a range inside of the mapping, to which no references exist; the
        // advices used here at most replace its contents, which any writer may do as well.
        unsafe {
            let start = self.start.as_ptr().add(offset as usize);
            rustix::mm::madvise(start.cast(), len, advice)
        }
        .map_err(|source| self.failed(action, offset, len, source))
    }

    fn failed(&self, action: &'static str, offset: u64, len: usize, source: Errno) -> MemoryError {
        MemoryError::Range {
            action,
            addr: self.addr() + offset,
            len: Bytes(len as u64),
            source,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if crate::own::addresses::give_back(self.addr(), self.len) {
            return;
        }
        // SAFETY: the range was mapped by us, nobody else unmaps it, and `self` is gone after this.
        // It cannot fail for a range that is mapped, except at the limit of mappings: a leak then.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memfd;

    #[test]
    fn shared_mappings_of_a_file_see_each_other() {
        let memfd = Memfd::create("twice", Bytes::pages(4)).unwrap();
        let whole = Mapping::options()
            .shared()
            .populate()
            .file(&memfd, 0, Bytes::pages(4))
            .unwrap();
        let tail = Mapping::options()
            .shared()
            .access(Access::ReadOnly)
            .file(&memfd, 2 * PAGE_SIZE as u64, Bytes::pages(2))
            .unwrap();
        whole.write_at(2 * PAGE_SIZE as u64 + 5, b"here").unwrap();
        let mut seen = [0; 4];
        tail.read_at(5, &mut seen).unwrap();
        assert_eq!(&seen, b"here");
        assert!(matches!(tail.write_at(0, b"x"), Err(MemoryError::ReadOnly)));
        assert!(whole.contains(whole.addr()) && !whole.contains(whole.addr() - 1));
    }

    #[test]
    fn ranges_are_checked() {
        let map = Mapping::anonymous(Bytes(10)).unwrap();
        assert_eq!(map.len(), PAGE_SIZE);
        let mut byte = [0];
        map.read_at(PAGE_SIZE as u64 - 1, &mut byte).unwrap();
        for offset in [PAGE_SIZE as u64, u64::MAX] {
            assert!(map.read_at(offset, &mut byte).is_err());
        }
        assert!(Mapping::anonymous(Bytes::ZERO).is_err());
        assert!(map.discard(0, Bytes::pages(2)).is_err());
        assert!(map.discard(1, Bytes::PAGE).is_err());
    }

    #[test]
    fn many_ranges_are_discarded_and_nothing_else() {
        let pages = 300;
        let map = Mapping::anonymous(Bytes::pages(pages)).unwrap();
        let place = |page: u64| page * PAGE_SIZE as u64;
        (0..pages).for_each(|page| map.write_at(place(page), &[7]).unwrap());
        let even: Vec<_> = (0..pages / 2)
            .map(|n| (place(2 * n), Bytes::PAGE))
            .collect();
        map.discard_ranges(&even).unwrap();
        for page in 0..pages {
            let mut byte = [1];
            map.read_at(place(page), &mut byte).unwrap();
            assert_eq!(byte[0], if page % 2 == 0 { 0 } else { 7 });
        }
        let outside = [(0, Bytes::PAGE), (place(pages), Bytes::PAGE)];
        assert!(map.discard_ranges(&outside).is_err());
    }

    #[test]
    fn options_are_accepted_and_discard_clears() {
        for huge in [HugeAdvice::Wanted, HugeAdvice::Never] {
            let map = Mapping::options()
                .huge(huge)
                .populate()
                .no_reserve()
                .anonymous(Bytes::mib(4))
                .unwrap();
            map.write_at(0, &[9; 100]).unwrap();
            map.discard(0, Bytes::PAGE).unwrap();
            let mut start = [1; 100];
            map.read_at(0, &mut start).unwrap();
            assert_eq!(start, [0; 100]);
        }
        Mapping::options().locked().anonymous(Bytes::PAGE).unwrap();
    }
}
