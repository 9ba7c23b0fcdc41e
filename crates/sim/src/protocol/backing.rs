//! Memory of simulated servers: plain bytes that notice when they are used after they were revoked.

use muninn_proto::server::{Backing, FakeBacking, FakeSegment, SegmentMemory};
use muninn_types::{Bytes, SegmentId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[derive(Debug)]
pub struct SimBacking {
    pub skip_wipe: bool,
}

#[derive(Debug)]
pub struct SimSegment {
    bytes: FakeSegment,
    revoked: AtomicBool,
    skip_wipe: bool,
}

/// Memory files that travel beside the bytes of a connection.
pub type Files = Vec<Arc<SimSegment>>;

impl SimSegment {
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Relaxed)
    }
}

impl SegmentMemory for SimSegment {
    fn read(&self, at: u64, to: &mut [u8]) {
        self.bytes.read(at, to);
    }
    fn write(&self, at: u64, from: &[u8]) {
        self.bytes.write(at, from);
    }
    fn compare_swap(&self, at: u64, expect: u64, new: u64) -> u64 {
        self.bytes.compare_swap(at, expect, new)
    }
    fn fetch_add(&self, at: u64, add: u64) -> u64 {
        self.bytes.fetch_add(at, add)
    }
    fn wipe(&self, at: u64, len: u64) {
        if !self.skip_wipe {
            self.bytes.wipe(at, len);
        }
    }
    fn revoke(&self) {
        self.revoked.store(true, Relaxed);
    }
}

impl Backing for SimBacking {
    type Segment = SimSegment;
    fn create(&self, id: SegmentId, bytes: Bytes) -> io::Result<SimSegment> {
        Ok(SimSegment {
            bytes: FakeBacking.create(id, bytes)?,
            revoked: AtomicBool::new(false),
            skip_wipe: self.skip_wipe,
        })
    }
}
