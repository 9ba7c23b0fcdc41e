//! Files that live in memory only, to be mapped by several processes.
//!
//! Every file is created close-on-exec, not executable and ready to be sealed. Invariant: the
//! length asked of the kernel, never a remembered one, is what [`Memfd::len`] returns, because
//! whoever holds the descriptor may change it until [`Memfd::seal`] forbids that. Known limit:
//! a file of huge pages can be punched and resized in whole huge pages only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use muninn_types::{Bytes, PAGE_SIZE};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::MemoryError;

/// Bytes of a huge page of the only size used here.
const HUGE_PAGE_SIZE: u64 = 2 << 20;

/// What nobody may do with the file any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seals {
    /// Neither shrink nor grow: a mapping of it can never raise SIGBUS by truncation.
    Size,
    /// As `Size`, and no further seals: nobody can forbid writing behind our back.
    SizeForGood,
    /// Never grow, and no further seals: whoever shares it cannot keep its maker from taking it
    /// back by cutting it to nothing.
    Revocable,
}

/// A file in memory.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
}

impl Memfd {
    /// A file of ordinary pages. Memory is taken when pages are first written.
    pub fn create(name: &str, size: Bytes) -> Result<Memfd, MemoryError> {
        Memfd::create_with(name, size, MemfdFlags::empty()).map_err(|source| MemoryError::Create {
            name: name.to_string(),
            size,
            source,
        })
    }

    /// A file of 2 MiB pages from the reserved pool; fails at once where the pool is too small.
    pub fn create_hugetlb(name: &str, size: Bytes) -> Result<Memfd, MemoryError> {
        let failed = |source| MemoryError::CreateHuge {
            name: name.to_string(),
            size,
            source,
        };
        if !size.0.is_multiple_of(HUGE_PAGE_SIZE) {
            return Err(failed(Errno::INVAL));
        }
        let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let memfd = Memfd::create_with(name, size, flags).map_err(failed)?;
        // Without this, a pool that is too small would show only later, as SIGBUS.
        rustix::fs::fallocate(&memfd.fd, FallocateFlags::empty(), 0, size.0).map_err(failed)?;
        Ok(memfd)
    }

    /// A file of code, that programs map and nobody can change any more.
    pub fn of_code(name: &str, code: &[u8]) -> Result<Memfd, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC) {
            // Kernels before 6.3 do not know the flag, and need none.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            other => other?,
        };
        let mut rest = code;
        while !rest.is_empty() {
            let written = rustix::io::write(&fd, rest)?;
            rest = &rest[written..];
        }
        let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&fd, all)?;
        Ok(Memfd { fd })
    }

    fn create_with(name: &str, size: Bytes, flags: MemfdFlags) -> Result<Memfd, Errno> {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            other => other?,
        };
        rustix::fs::ftruncate(&fd, size.0)?;
        Ok(Memfd { fd })
    }

    /// Takes a descriptor received from somebody else. Refuses anything but a memory file.
    pub fn from_fd(fd: OwnedFd) -> Result<Memfd, MemoryError> {
        rustix::fs::fcntl_get_seals(&fd).map_err(|source| MemoryError::NotMemfd { source })?;
        Ok(Memfd { fd })
    }

    /// A second descriptor of the same file.
    pub fn try_clone(&self) -> Result<Memfd, MemoryError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(failed("duplicate"))?;
        Ok(Memfd { fd })
    }

    /// The length as it is now.
    pub fn len(&self) -> Result<Bytes, MemoryError> {
        let stat = rustix::fs::fstat(&self.fd).map_err(failed("ask the length of"))?;
        Ok(Bytes(stat.st_size as u64))
    }

    pub fn is_empty(&self) -> Result<bool, MemoryError> {
        Ok(self.len()? == Bytes::ZERO)
    }

    /// Memory the file really takes: holes do not count.
    pub fn allocated(&self) -> Result<Bytes, MemoryError> {
        let stat = rustix::fs::fstat(&self.fd).map_err(failed("ask the use of"))?;
        Ok(Bytes(stat.st_blocks as u64 * 512))
    }

    /// Grows or shrinks. Mappings past the new end raise SIGBUS when touched.
    pub fn resize(&self, size: Bytes) -> Result<(), MemoryError> {
        rustix::fs::ftruncate(&self.fd, size.0).map_err(failed("resize"))
    }

    /// Takes the memory of a range now, so that later writes cannot run out of it.
    pub fn reserve(&self, offset: u64, len: Bytes) -> Result<(), MemoryError> {
        rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset, len.0)
            .map_err(failed("reserve memory for"))
    }

    /// Gives the memory of a range back; it reads as zeros afterwards, in every mapping.
    pub fn punch_hole(&self, offset: u64, len: Bytes) -> Result<(), MemoryError> {
        if !offset.is_multiple_of(PAGE_SIZE as u64) || !len.0.is_multiple_of(PAGE_SIZE as u64) {
            return Err(MemoryError::NotAligned { offset, len });
        }
        if len == Bytes::ZERO {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, flags, offset, len.0).map_err(failed("punch a hole into"))
    }

    pub fn seal(&self, seals: Seals) -> Result<(), MemoryError> {
        let flags = match seals {
            Seals::Size => SealFlags::SHRINK | SealFlags::GROW,
            Seals::SizeForGood => SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
            Seals::Revocable => SealFlags::GROW | SealFlags::SEAL,
        };
        rustix::fs::fcntl_add_seals(&self.fd, flags).map_err(failed("seal"))
    }

    /// Whether the length can no longer change: then a mapping needs no guard.
    pub fn is_size_sealed(&self) -> Result<bool, MemoryError> {
        let seals = rustix::fs::fcntl_get_seals(&self.fd).map_err(failed("ask the seals of"))?;
        Ok(seals.contains(SealFlags::SHRINK | SealFlags::GROW))
    }

    /// Writes bytes from the start on.
    pub fn write_all(&self, bytes: &[u8]) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < bytes.len() {
            done += rustix::io::retry_on_intr(|| {
                rustix::io::pwrite(&self.fd, &bytes[done..], done as u64)
            })
            .map_err(|source| MemoryError::Map {
                what: "a memory file to write to",
                len: Bytes(bytes.len() as u64),
                source,
            })?;
        }
        Ok(())
    }

    /// All bytes of it.
    pub fn read_all(&self) -> Result<Vec<u8>, MemoryError> {
        let len = self.len()?;
        let mut bytes = vec![0; len.0 as usize];
        let mut done = 0;
        while done < bytes.len() {
            let n = rustix::io::retry_on_intr(|| {
                rustix::io::pread(&self.fd, &mut bytes[done..], done as u64)
            })
            .map_err(|source| MemoryError::Map {
                what: "a memory file to read from",
                len,
                source,
            })?;
            if n == 0 {
                bytes.truncate(done);
            }
            done += n;
        }
        Ok(bytes)
    }

    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn failed(action: &'static str) -> impl Fn(Errno) -> MemoryError {
    move |source| MemoryError::File { action, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;

    #[test]
    fn holes_give_memory_back_and_read_as_zeros() {
        let memfd = Memfd::create("holes", Bytes::pages(8)).unwrap();
        let map = Mapping::options()
            .shared()
            .file(&memfd, 0, Bytes::pages(8))
            .unwrap();
        map.write_at(0, &[7; 8 * PAGE_SIZE]).unwrap();
        assert_eq!(memfd.allocated().unwrap(), Bytes::pages(8));
        memfd.punch_hole(PAGE_SIZE as u64, Bytes::pages(3)).unwrap();
        assert_eq!(memfd.allocated().unwrap(), Bytes::pages(5));
        let mut page = [1u8; PAGE_SIZE];
        map.read_at(PAGE_SIZE as u64, &mut page).unwrap();
        assert_eq!(page, [0; PAGE_SIZE]);
        map.read_at(0, &mut page).unwrap();
        assert_eq!(page, [7; PAGE_SIZE]);
        assert!(matches!(
            memfd.punch_hole(1, Bytes::PAGE),
            Err(MemoryError::NotAligned { .. })
        ));
        memfd.punch_hole(0, Bytes::ZERO).unwrap();
    }

    #[test]
    fn a_sealed_file_keeps_its_length() {
        let memfd = Memfd::create("sealed", Bytes::pages(2)).unwrap();
        memfd.resize(Bytes::pages(4)).unwrap();
        assert_eq!(memfd.len().unwrap(), Bytes::pages(4));
        assert!(!memfd.is_size_sealed().unwrap());
        memfd.seal(Seals::SizeForGood).unwrap();
        assert!(memfd.is_size_sealed().unwrap());
        let refused = memfd.resize(Bytes::pages(1)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "cannot resize the memory file: Operation not permitted (os error 1); \
             the file is sealed or opened read-only, or CAP_IPC_LOCK is missing"
        );
    }

    #[test]
    fn only_memory_files_are_taken() {
        let (read_end, _write_end) = rustix::pipe::pipe().unwrap();
        assert!(matches!(
            Memfd::from_fd(read_end),
            Err(MemoryError::NotMemfd { .. })
        ));
        let memfd = Memfd::create("given", Bytes::PAGE).unwrap();
        let again = Memfd::from_fd(memfd.try_clone().unwrap().into_fd()).unwrap();
        assert_eq!(again.len().unwrap(), Bytes::PAGE);
    }

    #[test]
    fn huge_pages_are_there_or_the_error_says_how_to_get_them() {
        match Memfd::create_hugetlb("huge", Bytes::mib(2)) {
            Ok(memfd) => assert_eq!(memfd.len().unwrap(), Bytes::mib(2)),
            Err(error) => assert!(error.to_string().contains("vm.nr_hugepages=1"), "{error}"),
        }
    }
}
