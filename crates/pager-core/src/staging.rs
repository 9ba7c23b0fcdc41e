//! The staging area: frames in which pages wait on their way out.
//!
//! A frame is a place for a page. Sixteen of them are a slab, the image of one chunk: the page at
//! place 5 of the chunk is in frame 5 of its slab, so a chunk with holes leaves with one call. Slabs
//! are used up oldest first, and what was in their frames goes back to the kernel.
//!
//! A page that came out of the program is never written to here. Somebody else may still refer to it
//! (a pipe after `vmsplice`, a socket after `MSG_ZEROCOPY`), which the kernel does not tell, and would
//! see what was written.
//!
//! This is bookkeeping only; the frames are moved and discarded by the engine.

use crate::chunk::{CHUNK_PAGES, SlabNo};
use crate::table::ChunkIndex;
use muninn_types::{PageNo, PageRange};
use std::collections::VecDeque;

/// Frames of the staging area: address space, not memory.
pub const FRAMES: u64 = 2048 * CHUNK_PAGES as u64;

#[derive(Debug)]
pub struct Staging {
    frames: PageRange,
    /// The one that was free longest is used first: frames of another may still be in hand.
    free: VecDeque<SlabNo>,
    /// Slabs in use, oldest first, each with its chunk.
    order: VecDeque<(SlabNo, ChunkIndex)>,
}

impl Staging {
    /// Over an area of frames; what is left over of the last slab is not used.
    pub fn new(frames: PageRange) -> Staging {
        let slabs = (frames.pages() / CHUNK_PAGES as u64).min(u64::from(u16::MAX)) as u16;
        Staging {
            frames,
            free: (0..slabs).map(SlabNo).collect(),
            order: VecDeque::with_capacity(usize::from(slabs)),
        }
    }

    /// The frame of a place in a slab.
    pub fn frame(&self, slab: SlabNo, place: usize) -> PageNo {
        let at = usize::from(slab.0) * CHUNK_PAGES + place;
        PageNo(self.frames.first().0 + at as u64)
    }

    /// A slab for a chunk; `None` when all are in use.
    pub fn take_slab(&mut self, chunk: ChunkIndex) -> Option<SlabNo> {
        let slab = self.free.pop_front()?;
        self.order.push_back((slab, chunk));
        Some(slab)
    }

    /// The oldest slab in use.
    pub fn oldest(&self) -> Option<(SlabNo, ChunkIndex)> {
        self.order.front().copied()
    }

    /// The oldest slab has no page left in it.
    pub fn retire_oldest(&mut self) {
        if let Some((slab, _)) = self.order.pop_front() {
            self.free.push_back(slab);
        }
    }

    /// The slab of a chunk that is gone.
    pub fn retire(&mut self, slab: SlabNo) {
        if let Some(at) = self.order.iter().position(|&(used, _)| used == slab) {
            self.order.remove(at);
            self.free.push_back(slab);
        }
    }
}
