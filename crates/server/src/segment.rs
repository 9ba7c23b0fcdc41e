//! Segments of real memory: a memory file each, mapped by the server and, for sessions that map
//! memory, by their client.
//!
//! The server touches a segment's memory only for sessions over tcp, whose segments no client has,
//! and for services, whose segments nobody can cut; what else a client can map is wiped and revoked
//! through its descriptor alone, so a client that cuts the file short hurts nobody but itself.

use muninn_proto::server::{Backing, SegmentMemory};
use muninn_sys::memory::{HugeAdvice, Mapping, Memfd, MemoryError, Seals};
use muninn_types::{Bytes, SegmentId};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where segments get their pages from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Transparent huge pages where the kernel gives them, else ordinary ones.
    #[default]
    Auto,
    Off,
    /// Reserved 2 MiB pages, or no start.
    Required,
}

/// Makes memory-file segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemfdBacking {
    /// Real memory from the start, and again after each wipe.
    pub prealloc: bool,
    pub huge: HugePages,
}

/// Cache lines of a page that [`MemfdSegment::prefetch`] starts to load.
const PREFETCH_LINES: usize = 8;

#[derive(Debug)]
pub struct MemfdSegment {
    file: Memfd,
    map: Mapping,
    bytes: Bytes,
    prealloc: bool,
    /// Cannot be cut: whoever has it mapped keeps what was there, and nothing new comes to it.
    lasting: bool,
}

fn to_io(error: MemoryError) -> io::Error {
    io::Error::other(error.to_string())
}

impl Backing for MemfdBacking {
    type Segment = MemfdSegment;

    fn create(&self, id: SegmentId, bytes: Bytes) -> io::Result<MemfdSegment> {
        self.make(id, bytes, Seals::Revocable)
    }

    fn create_lasting(&self, id: SegmentId, bytes: Bytes) -> io::Result<MemfdSegment> {
        self.make(id, bytes, Seals::SizeForGood)
    }
}

impl MemfdBacking {
    fn make(&self, id: SegmentId, bytes: Bytes, seals: Seals) -> io::Result<MemfdSegment> {
        let name = format!("muninn-{id}");
        let file = match self.huge {
            HugePages::Required => Memfd::create_hugetlb(&name, bytes),
            _ => Memfd::create(&name, bytes),
        }
        .map_err(to_io)?;
        file.seal(seals).map_err(to_io)?;
        if self.prealloc {
            file.reserve(0, bytes).map_err(to_io)?;
        }
        self.map(file, bytes, seals != Seals::Revocable, self.prealloc)
    }

    /// A segment of the process before. Whoever has it mapped keeps it.
    pub(crate) fn adopt(
        &self,
        fd: OwnedFd,
        bytes: Bytes,
        lasting: bool,
    ) -> io::Result<MemfdSegment> {
        let file = Memfd::from_fd(fd).map_err(to_io)?;
        // Others wait meanwhile, and its memory is there already.
        self.map(file, bytes, lasting, false)
    }

    /// With all of its memory in place `now`, or on first use.
    fn map(&self, file: Memfd, bytes: Bytes, lasting: bool, now: bool) -> io::Result<MemfdSegment> {
        let advice = match self.huge {
            HugePages::Auto => HugeAdvice::Wanted,
            _ => HugeAdvice::Never,
        };
        let options = Mapping::options().shared().no_reserve();
        let options = if self.huge == HugePages::Required {
            options
        } else {
            options.huge(advice)
        };
        let options = if now {
            options.populate().locked()
        } else {
            options
        };
        let map = options.file(file.as_fd(), 0, bytes).map_err(to_io)?;
        Ok(MemfdSegment {
            file,
            map,
            bytes,
            prealloc: self.prealloc,
            lasting,
        })
    }
}

impl MemfdSegment {
    /// Locks what was adopted, where all memory is to be real from the start. One that its client has cut
    /// cannot be, and need not.
    pub(crate) fn settle(&self) {
        if self.prealloc {
            let _ = self.map.lock();
        }
    }

    /// The length of its file, which a client that maps it may have cut.
    pub(crate) fn file_bytes(&self) -> io::Result<Bytes> {
        self.file.len().map_err(to_io)
    }

    /// The memory file, to be handed to the session that owns the segment.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Address of a range that lies inside.
    pub fn at(&self, at: u64, len: u64) -> *mut u8 {
        let end = at
            .checked_add(len)
            .expect("a range of a segment does not wrap");
        assert!(end <= self.bytes.0, "a range lies outside of its segment");
        // SAFETY: `at` is inside of the mapping, which is `bytes` long, as was just checked.
        unsafe { self.map.as_ptr().add(at as usize) }
    }

    /// Starts loading the first lines of a range, so that a copy that comes to it soon does not
    /// wait for them: the hardware finds the rest by itself, but not the start of a page.
    pub fn prefetch(&self, at: u64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = self.at(at, 1);
        for line in 0..PREFETCH_LINES {
            // SAFETY: a prefetch has no effect that a program could see, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line * 64).cast()) };
        }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "a word lies at a multiple of 8");
        // SAFETY: inside of the mapping (checked by `at`), aligned (mappings start at a page), and
        // mapped as long as `self` lives; other accesses to the bytes race with it as the protocol
        // allows, and none of them is a Rust reference.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }
}

impl SegmentMemory for MemfdSegment {
    fn read(&self, at: u64, to: &mut [u8]) {
        let from = self.at(at, to.len() as u64);
        // SAFETY: the range is inside of the mapping and cannot overlap a Rust slice. Another
        // thread may write at the same time; then the client gets a mix of both, as with any
        // one-sided access.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    fn write(&self, at: u64, from: &[u8]) {
        let to = self.at(at, from.len() as u64);
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    fn compare_swap(&self, at: u64, expect: u64, new: u64) -> u64 {
        let order = Ordering::SeqCst;
        match self.word(at).compare_exchange(expect, new, order, order) {
            Ok(old) | Err(old) => old,
        }
    }

    fn fetch_add(&self, at: u64, add: u64) -> u64 {
        self.word(at).fetch_add(add, Ordering::SeqCst)
    }

    fn wipe(&self, at: u64, len: u64) {
        // A hole reads as zeros and costs nothing. Without it the old bytes would stay: that must
        // not be passed over.
        self.file
            .punch_hole(at, Bytes(len))
            .expect("a hole can be punched into our own file");
        if self.prealloc {
            // Failing here only means that the pages come on first use again.
            let _ = self.file.reserve(at, Bytes(len));
        }
    }

    fn revoke(&self) {
        if self.lasting {
            return;
        }
        // Whoever still has it mapped gets an error instead of zeros or someone else's bytes.
        self.file
            .resize(Bytes::ZERO)
            .expect("our own file can be cut");
    }
}
