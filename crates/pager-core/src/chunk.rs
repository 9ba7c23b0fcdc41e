//! What is known of sixteen neighbouring pages.
//!
//! Pages are kept in chunks because they leave in chunks: moving sixteen pages out with one call
//! costs a fifth of what sixteen calls cost, holes included. A page is in one of these states:
//!
//! | resident | staged | far | |
//! |---|---|---|---|
//! | – | – | – | untouched: reads as zeros |
//! | ✓ | – | ? | in the program; `far`: there is a far copy, perhaps of an older version |
//! | – | ✓ | ✓ | on its way out, in a frame of the staging area; its far copy is good |
//! | – | – | ✓ | remote: the far copy is the page |
//!
//! Invariant: no page is both resident and staged, and what is staged has a good far copy, so a
//! frame can be used for something else at any time.
//!
//! Far copies are remembered with a 128-bit hash that never leaves this process: whether a page
//! changed is asked when nobody can write to it any more, and what comes back is compared.

use crate::print::{Hash, Print, Seal};
use crate::slots::SlotNo;
use muninn_types::PageNo;

/// Pages of a chunk, and frames of a slab.
pub const CHUNK_PAGES: usize = 16;
const CHUNK_SHIFT: u32 = CHUNK_PAGES.trailing_zeros();

/// A set of pages of one chunk.
pub type Mask = u16;

/// Places from `first` up to `end`.
pub fn span(first: usize, end: usize) -> Mask {
    let below = |place: usize| (1u32 << place.min(CHUNK_PAGES)) - 1;
    (below(end) & !below(first)) as Mask
}

/// The number of a chunk's address range: its first page ÷ 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkNo(pub u64);

impl ChunkNo {
    pub const fn of(page: PageNo) -> ChunkNo {
        ChunkNo(page.0 >> CHUNK_SHIFT)
    }
    pub const fn page(self, place: usize) -> PageNo {
        PageNo((self.0 << CHUNK_SHIFT) + place as u64)
    }
}

/// A page's place in its chunk.
pub const fn place_of(page: PageNo) -> usize {
    page.0 as usize % CHUNK_PAGES
}

/// The set with just this place.
pub const fn bit(place: usize) -> Mask {
    1 << place
}

/// The places of a set.
pub fn places(mask: Mask) -> impl Iterator<Item = usize> {
    (0..CHUNK_PAGES).filter(move |&place| mask & bit(place) != 0)
}

/// Which frames of the staging area hold a chunk's staged pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabNo(pub u16);

#[derive(Clone, Debug)]
pub struct Chunk {
    pub number: ChunkNo,
    pub resident: Mask,
    pub staged: Mask,
    pub far: Mask,
    /// Prefetched into the staging area, and not asked for yet.
    pub buffered: Mask,
    /// Where the staged pages are, each at its own place.
    pub slab: Option<SlabNo>,
    slots: [SlotNo; CHUNK_PAGES],
    hashes: [Hash; CHUNK_PAGES],
    /// Where pages are sealed, and one of these is far.
    seals: Option<Box<[Seal; CHUNK_PAGES]>>,
}

impl Chunk {
    pub fn new(number: ChunkNo) -> Chunk {
        Chunk {
            number,
            resident: 0,
            staged: 0,
            far: 0,
            buffered: 0,
            slab: None,
            slots: [SlotNo(0); CHUNK_PAGES],
            hashes: [Hash::default(); CHUNK_PAGES],
            seals: None,
        }
    }

    /// Nothing is known of any page: all are untouched.
    pub fn is_empty(&self) -> bool {
        self.resident | self.staged | self.far == 0
    }
    /// Pages whose only copy is far.
    pub fn remote(&self) -> Mask {
        self.far & !self.resident & !self.staged
    }
    pub fn slot(&self, place: usize) -> Option<SlotNo> {
        (self.far & bit(place) != 0).then(|| self.slots[place])
    }
    pub fn hash(&self, place: usize) -> Hash {
        self.hashes[place]
    }
    /// By what the far copy of a page is known again.
    pub fn print(&self, place: usize) -> Print {
        Print {
            hash: self.hashes[place],
            seal: self.seals.as_ref().map(|seals| seals[place]),
        }
    }
    /// The far copy of a page is now this.
    pub fn set_far(&mut self, place: usize, slot: SlotNo, print: Print) {
        self.far |= bit(place);
        self.slots[place] = slot;
        self.hashes[place] = print.hash;
        if let Some(seal) = print.seal {
            self.seals.get_or_insert_default()[place] = seal;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_one_place() {
        let page = PageNo(0x7_1234_5677);
        assert_eq!(ChunkNo::of(page).page(place_of(page)), page);
    }
}
