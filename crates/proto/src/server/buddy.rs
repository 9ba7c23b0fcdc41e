//! A buddy allocator over the frames of one segment.
//!
//! A chunk is 2^k frames at a multiple of 2^k. A free chunk is split until it fits; a freed chunk
//! joins its buddy while that is free too. The lowest chunk is taken, so that what is in use stays
//! together and whole segments come free. Only frame numbers are kept here, no memory.
//!
//! Known limit: a request is rounded up to a power of two by the caller; the rest of the chunk is
//! then the client's to use or to lose.

use std::collections::BTreeSet;

/// log2 of a number of frames.
pub type Order = u8;

/// The largest chunk: 2^18 frames, 1 GiB.
pub const MAX_ORDER: Order = 18;

#[derive(Clone, Debug)]
pub struct Buddy {
    frames: u32,
    free: [BTreeSet<u32>; MAX_ORDER as usize + 1],
    free_frames: u32,
}

impl Buddy {
    /// All of `frames` free. A number that is no power of two is cut into the fewest chunks.
    pub fn new(frames: u32) -> Buddy {
        let mut buddy = Buddy {
            frames,
            free: Default::default(),
            free_frames: frames,
        };
        let mut at = 0;
        while at < frames {
            let order = (frames - at).ilog2().min(u32::from(MAX_ORDER)) as Order;
            buddy.free[usize::from(order)].insert(at);
            at += 1 << order;
        }
        buddy
    }

    pub const fn free_frames(&self) -> u32 {
        self.free_frames
    }
    pub const fn is_empty(&self) -> bool {
        self.free_frames == self.frames
    }
    /// First frames and orders of the free chunks.
    pub fn free_chunks(&self) -> impl Iterator<Item = (u32, Order)> + '_ {
        let of_order = |(order, chunks)| {
            let chunks: &BTreeSet<u32> = chunks;
            chunks.iter().map(move |at| (*at, order))
        };
        (0..).zip(&self.free).flat_map(of_order)
    }
    /// None of `frames` free: what is gets there with [`Buddy::free`].
    pub fn full(frames: u32) -> Buddy {
        Buddy {
            frames,
            free: Default::default(),
            free_frames: 0,
        }
    }
    /// Order of the largest free chunk.
    pub fn largest(&self) -> Option<Order> {
        (0..=MAX_ORDER)
            .rev()
            .find(|&order| !self.free[usize::from(order)].is_empty())
    }

    /// Takes a chunk of 2^`order` frames; its first frame.
    pub fn alloc(&mut self, order: Order) -> Option<u32> {
        let mut have = (order..=MAX_ORDER).find(|&o| !self.free[usize::from(o)].is_empty())?;
        let at = self.free[usize::from(have)].pop_first()?;
        while have > order {
            have -= 1;
            self.free[usize::from(have)].insert(at + (1 << have));
        }
        self.free_frames -= 1 << order;
        Some(at)
    }

    /// Gives a chunk back. It must have come from [`Buddy::alloc`] with the same order.
    pub fn free(&mut self, mut at: u32, mut order: Order) {
        self.free_frames += 1 << order;
        assert!(self.free_frames <= self.frames, "a chunk was freed twice");
        while order < MAX_ORDER && self.free[usize::from(order)].remove(&(at ^ (1 << order))) {
            at &= !(1 << order);
            order += 1;
        }
        let fresh = self.free[usize::from(order)].insert(at);
        assert!(fresh, "a chunk was freed twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_sizes_are_used_up_to_the_last_frame() {
        let mut buddy = Buddy::new(7);
        assert_eq!(buddy.largest(), Some(2));
        assert_eq!(buddy.alloc(2), Some(0));
        assert_eq!(buddy.alloc(1), Some(4));
        assert_eq!(buddy.alloc(0), Some(6));
        assert_eq!(buddy.alloc(0), None);
        buddy.free(4, 1);
        buddy.free(6, 0);
        buddy.free(0, 2);
        assert!(buddy.is_empty());
        assert_eq!(buddy.largest(), Some(2));
    }

    proptest! {
        /// Against a plain map of frames: no two chunks overlap, chunks lie inside and at a
        /// multiple of their size, and when all is freed all is one piece again.
        #[test]
        fn chunks_never_overlap_and_always_join(
            frames in 1u32..300,
            steps in proptest::collection::vec((0u8..7, any::<bool>(), any::<usize>()), 1..200),
        ) {
            let mut buddy = Buddy::new(frames);
            let whole = buddy.largest();
            let mut used = vec![false; frames as usize];
            let mut held: Vec<(u32, u8)> = Vec::new();
            for (order, take, pick) in steps {
                if take {
                    let Some(at) = buddy.alloc(order) else {
                        let size = 1usize << order;
                        let fits = used.chunks_exact(size).any(|c| c.iter().all(|f| !f));
                        prop_assert!(!fits, "refused though {size} aligned frames were free");
                        continue;
                    };
                    prop_assert_eq!(at % (1 << order), 0);
                    for frame in at..at + (1 << order) {
                        prop_assert!(!used[frame as usize]);
                        used[frame as usize] = true;
                    }
                    held.push((at, order));
                } else if !held.is_empty() {
                    let (at, order) = held.swap_remove(pick % held.len());
                    used[at as usize..][..1 << order].fill(false);
                    buddy.free(at, order);
                }
                prop_assert_eq!(buddy.free_frames() as usize, used.iter().filter(|u| !**u).count());
            }
            for (at, order) in held {
                buddy.free(at, order);
            }
            prop_assert!(buddy.is_empty());
            prop_assert_eq!(buddy.largest(), whole);
        }
    }
}
