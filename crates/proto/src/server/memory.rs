//! The memory behind a segment: a trait, and a fake of plain bytes for tests and simulation.

use muninn_types::{Bytes, SegmentId};
use std::fmt;
use std::io;
use std::sync::Mutex;

/// One segment of the pool's memory. Accesses race as they do in hardware: the protocol says that
/// a client waits for the acknowledgement of a write before it depends on it.
pub trait SegmentMemory: fmt::Debug + Send + Sync + 'static {
    fn read(&self, at: u64, to: &mut [u8]);
    fn write(&self, at: u64, from: &[u8]);
    /// The value found; it was replaced if it was the expected one. `at` is a multiple of 8.
    fn compare_swap(&self, at: u64, expect: u64, new: u64) -> u64;
    /// The value found, before the addition. `at` is a multiple of 8.
    fn fetch_add(&self, at: u64, add: u64) -> u64;
    /// Makes a range read as zeros and, where it can, gives its memory back.
    fn wipe(&self, at: u64, len: u64);
    /// Takes the memory away from whoever else has it mapped. The segment is not used after this;
    /// it may be revoked again when the memory that is to replace it could not be had.
    fn revoke(&self);
}

/// Makes segments.
pub trait Backing: fmt::Debug + Send + Sync + 'static {
    type Segment: SegmentMemory;
    fn create(&self, id: SegmentId, bytes: Bytes) -> io::Result<Self::Segment>;
    /// A segment that nobody can cut short, not even its maker: for memory that the server works on
    /// while others have it mapped. Revoking it does nothing.
    fn create_lasting(&self, id: SegmentId, bytes: Bytes) -> io::Result<Self::Segment> {
        self.create(id, bytes)
    }
}

/// Segments of plain bytes.
#[derive(Debug, Default)]
pub struct FakeBacking;

pub struct FakeSegment(Mutex<Vec<u8>>);

impl fmt::Debug for FakeSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeSegment")
    }
}

impl FakeSegment {
    fn with<R>(&self, f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        f(&mut self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }
    fn update(&self, at: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        self.with(|bytes| {
            let word = &mut bytes[at as usize..at as usize + 8];
            let old = u64::from_le_bytes(word.try_into().unwrap_or_default());
            word.copy_from_slice(&change(old).to_le_bytes());
            old
        })
    }
}

impl SegmentMemory for FakeSegment {
    fn read(&self, at: u64, to: &mut [u8]) {
        self.with(|bytes| to.copy_from_slice(&bytes[at as usize..at as usize + to.len()]));
    }
    fn write(&self, at: u64, from: &[u8]) {
        self.with(|bytes| bytes[at as usize..at as usize + from.len()].copy_from_slice(from));
    }
    fn compare_swap(&self, at: u64, expect: u64, new: u64) -> u64 {
        self.update(at, |old| if old == expect { new } else { old })
    }
    fn fetch_add(&self, at: u64, add: u64) -> u64 {
        self.update(at, |old| old.wrapping_add(add))
    }
    fn wipe(&self, at: u64, len: u64) {
        self.with(|bytes| bytes[at as usize..(at + len) as usize].fill(0));
    }
    fn revoke(&self) {}
}

impl Backing for FakeBacking {
    type Segment = FakeSegment;
    fn create(&self, _id: SegmentId, bytes: Bytes) -> io::Result<FakeSegment> {
        Ok(FakeSegment(Mutex::new(vec![0; bytes.0 as usize])))
    }
}
