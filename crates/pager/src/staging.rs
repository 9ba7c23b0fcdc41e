//! The staging area: frames in which pages wait on their way out.
//!
//! A frame is a page of memory of our own. Sixteen of them are a slab, the image of one chunk: the
//! page at place 5 of the chunk is in frame 5 of its slab, so a chunk with holes leaves with one
//! call. Slabs are used up oldest first. A frame that is taken holds a page of memory whose contents
//! nobody needs: the next page to come in is read into it and moved to the program, so that in a
//! steady state no memory is allocated or freed at all.
//!
//! This is bookkeeping only; the frames are moved and discarded by the engine.

use crate::chunk::{CHUNK_PAGES, Mask, SlabNo, bit};
use crate::table::ChunkIndex;
use muninn_sys::uffd::PageRange;
use muninn_types::PageNo;
use std::collections::VecDeque;

/// Frames without contents that are kept for the next page to come in.
pub const SPARE_MAX: usize = 128;

#[derive(Debug)]
pub struct Staging {
    frames: PageRange,
    /// The one that was free longest is used first: frames of another may still be in hand.
    free: VecDeque<SlabNo>,
    /// Slabs in use, oldest first, each with its chunk.
    order: VecDeque<(SlabNo, ChunkIndex)>,
    spare: Vec<PageNo>,
    /// Places of each slab where a spare frame is.
    taken: Vec<Mask>,
}

impl Staging {
    /// Over an area of frames; what is left over of the last slab is not used.
    pub fn new(frames: PageRange) -> Staging {
        let slabs = (frames.pages() / CHUNK_PAGES as u64).min(u64::from(u16::MAX)) as u16;
        Staging {
            frames,
            free: (0..slabs).map(SlabNo).collect(),
            order: VecDeque::with_capacity(usize::from(slabs)),
            spare: Vec::with_capacity(SPARE_MAX),
            taken: vec![0; usize::from(slabs)],
        }
    }

    /// The frame of a place in a slab.
    pub fn frame(&self, slab: SlabNo, place: usize) -> PageNo {
        let at = usize::from(slab.0) * CHUNK_PAGES + place;
        PageNo(self.frames.first().0 + at as u64)
    }

    /// The slab of a frame and its place there.
    fn place(&self, frame: PageNo) -> (SlabNo, usize) {
        let at = (frame.0 - self.frames.first().0) as usize;
        (SlabNo((at / CHUNK_PAGES) as u16), at % CHUNK_PAGES)
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

    pub fn take_spare(&mut self) -> Option<PageNo> {
        let frame = self.spare.pop()?;
        let (slab, place) = self.place(frame);
        self.taken[usize::from(slab.0)] &= !bit(place);
        Some(frame)
    }

    /// Keeps a frame whose contents nobody needs; false when there are enough of them.
    pub fn keep_spare(&mut self, frame: PageNo) -> bool {
        if self.spare.len() == SPARE_MAX {
            return false;
        }
        let (slab, place) = self.place(frame);
        self.taken[usize::from(slab.0)] |= bit(place);
        self.spare.push(frame);
        true
    }

    /// Places of a slab that nothing can be moved to, because a spare frame is there.
    pub fn taken(&self, slab: SlabNo) -> Mask {
        self.taken[usize::from(slab.0)]
    }

    pub fn spare_frames(&self) -> u64 {
        self.spare.len() as u64
    }
}
