//! Linked-list traversal: the smallest function that depends on what it read.
//!
//! Nodes are a cache line each and linked in a random ring, so that every hop is a miss wherever the
//! list is larger than the cache.

use crate::client::Service;
use crate::error::CallError;
use crate::memory::Addr;
use muninn_types::SplitMix64;
use zerocopy::IntoBytes;

pub use super::nodes::{Node, traverse};

/// Bytes from one node to the next.
pub const STRIDE: u64 = 64;

/// A ring of `count` nodes in random order, known to its maker.
#[derive(Clone, Debug)]
pub struct Ring {
    base: Addr,
    /// The node after each.
    next: Vec<u32>,
}

/// What a node holds.
fn value_of(node: u32) -> u64 {
    u64::from(node).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Ring {
    pub fn new(base: Addr, count: u32, seed: u64) -> Ring {
        let mut rng = SplitMix64::new(seed);
        let mut order: Vec<u32> = (0..count).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let mut next = vec![0; count as usize];
        for (i, node) in order.iter().enumerate() {
            next[*node as usize] = order[(i + 1) % order.len()];
        }
        Ring { base, next }
    }

    pub fn count(&self) -> u32 {
        self.next.len() as u32
    }
    pub fn address(&self, node: u32) -> Addr {
        self.base.plus(u64::from(node) * STRIDE)
    }

    /// Bytes of nodes `from..to`, as they lie in memory.
    fn image(&self, from: u32, to: u32) -> Vec<u8> {
        let mut image = vec![0; (to - from) as usize * STRIDE as usize];
        for (i, place) in image.chunks_mut(STRIDE as usize).enumerate() {
            let node = from + i as u32;
            let node = Node {
                value: value_of(node),
                next: self.address(self.next[node as usize]),
            };
            place[..size_of::<Node>()].copy_from_slice(node.as_bytes());
        }
        image
    }

    /// Writes all nodes into the service.
    pub fn build(&self, service: &Service) -> Result<(), CallError> {
        self.fill(|at, image| service.write_bulk(at, image))
    }

    /// Hands out all nodes, many at a time.
    pub fn fill<E>(&self, mut write: impl FnMut(Addr, &[u8]) -> Result<(), E>) -> Result<(), E> {
        const AT_ONCE: u32 = 4096;
        let mut from = 0;
        while from < self.count() {
            let to = (from + AT_ONCE).min(self.count());
            write(self.address(from), &self.image(from, to))?;
            from = to;
        }
        Ok(())
    }

    /// What [`traverse`] finds.
    pub fn walk(&self, start: u32, hops: u32) -> u64 {
        let mut node = start;
        let mut value = 0;
        for _ in 0..hops {
            value = value_of(node);
            node = self.next[node as usize];
        }
        value
    }
}
