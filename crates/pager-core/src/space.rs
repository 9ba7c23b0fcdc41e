//! What the program does to its address space, followed event by event.
//!
//! Taking memory over is here too: a range that was registered is looked at, and the pages that are
//! there become ours to move.
//!
//! Invariant: after an event was followed, nothing is known any more of pages that are gone, their
//! slots are free, and pages that moved are known under their new address. Pages of a range that is
//! being given back (REMOVE) are untouched from then on, although the kernel drops them only
//! afterwards: only a fault makes them ours again, so that none is sent away that the program has
//! given up.

use crate::below::{Count, Far, Kernel};
use crate::chunk::{CHUNK_PAGES, ChunkNo, Mask, bit, place_of, places};
use crate::engine::{Engine, Fatal};
use crate::table::ChunkIndex;
use muninn_policy::evict::{Arrival, PageIndex};
use muninn_types::{PageNo, PageRange};

/// Pages of a range that are in one chunk.
fn part_of(range: PageRange, number: ChunkNo) -> Mask {
    let first = number.page(0);
    let from = range
        .first()
        .0
        .saturating_sub(first.0)
        .min(CHUNK_PAGES as u64);
    let to = (range.end().0.saturating_sub(first.0)).min(CHUNK_PAGES as u64);
    (from..to).fold(0, |mask, place| mask | bit(place as usize))
}

fn chunks_of(range: PageRange) -> std::ops::Range<ChunkNo> {
    let after = PageNo(range.end().0 + CHUNK_PAGES as u64 - 1);
    ChunkNo::of(range.first())..ChunkNo::of(after)
}

impl<K: Kernel, F: Far<K::Page>> Engine<K, F> {
    /// Pages of a range that was just registered are there already: they are ours to move now.
    pub fn adopt_present(&mut self, range: PageRange) {
        for page in range.iter() {
            self.set_resident(page, Arrival::FirstTouch);
        }
    }

    /// The program unmapped a range, or mapped something else there.
    pub fn handle_unmap(&mut self, range: PageRange) -> Result<(), Fatal> {
        self.count(Count::Unmaps, 1);
        self.settle_doubt(range)?;
        self.forget(range);
        Ok(())
    }

    /// The program gives the pages of a range back; they read as zeros from then on.
    pub fn handle_remove(&mut self, range: PageRange) {
        self.count(Count::Removes, 1);
        self.forget(range);
    }

    /// Pages that left while their memory was perhaps being replaced: if it was, nobody can say
    /// whose they are.
    fn settle_doubt(&mut self, range: PageRange) -> Result<(), Fatal> {
        let Some(doubt) = self.doubt.take() else {
            return Ok(());
        };
        for page in doubt.iter().filter(|&page| range.contains(page)) {
            let index = self.table.find(ChunkNo::of(page));
            let staged =
                index.is_some_and(|index| self.table.get(index).staged & bit(place_of(page)) != 0);
            if staged && self.kernel.is_mapped(page) {
                return Err(Fatal::Torn(page.addr()));
            }
        }
        self.doubt = Some(doubt);
        Ok(())
    }

    /// Whether a chunk left while the address space was changing.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// No change is under way: what left, left from where it was thought to be.
    pub fn clear_doubt(&mut self) {
        self.doubt = None;
    }

    pub(crate) fn forget(&mut self, range: PageRange) {
        let mut numbers = chunks_of(range);
        while let Some((index, next)) = self.table.next_in(numbers.clone()) {
            numbers.start = next;
            let number = self.table.get(index).number;
            self.forget_pages(index, part_of(range, number));
        }
    }

    fn forget_pages(&mut self, index: ChunkIndex, mask: Mask) {
        self.let_go_of_frames(index, mask);
        self.clear_resident(index, mask);
        for place in places(self.table.get(index).far & mask) {
            let chunk = self.table.get_mut(index);
            let slot = chunk.slot(place);
            chunk.far &= !bit(place);
            if let Some(slot) = slot {
                self.free_slot(slot);
            }
        }
        self.remove_if_empty(index);
    }

    /// Staged pages of a chunk become remote; their frames are free.
    fn let_go_of_frames(&mut self, index: ChunkIndex, mask: Mask) {
        let chunk = self.table.get_mut(index);
        let staged = chunk.staged & mask;
        chunk.staged &= !staged;
        chunk.buffered &= !staged;
        let slab = chunk.slab;
        self.staged -= u64::from(staged.count_ones());
        let Some(slab) = slab else { return };
        self.discard_frames(slab, staged);
    }

    pub(crate) fn remove_if_empty(&mut self, index: ChunkIndex) {
        let chunk = self.table.get_mut(index);
        if !chunk.is_empty() {
            return;
        }
        if let Some(slab) = chunk.slab.take() {
            self.staging.retire(slab);
        }
        self.evict.handle_removed(PageIndex(index.0));
        self.table.remove(index);
    }

    /// The program moved pages to another address.
    pub fn handle_remap(&mut self, from: PageRange, to: PageNo) -> Result<(), Fatal> {
        self.count(Count::Remaps, 1);
        self.settle_doubt(from)?;
        // Whatever was known of the target is of memory that is no longer there.
        let target = PageRange::new(to, from.pages());
        self.forget(target);
        let mut numbers = chunks_of(from);
        while let Some((index, next)) = self.table.next_in(numbers.clone()) {
            numbers.start = next;
            let number = self.table.get(index).number;
            let mask = part_of(from, number);
            self.let_go_of_frames(index, mask);
            let chunk = self.table.get(index);
            for place in places(mask & (chunk.resident | chunk.far)) {
                let offset = number.page(place).0 - from.first().0;
                self.rename(index, place, PageNo(to.0 + offset));
            }
            self.remove_if_empty(index);
        }
        Ok(())
    }

    fn rename(&mut self, index: ChunkIndex, place: usize, page: PageNo) {
        let target = self.chunk_of(page);
        let chunk = self.table.get_mut(index);
        let (slot, print) = (chunk.slot(place), chunk.print(place));
        let resident = chunk.resident & bit(place) != 0;
        chunk.resident &= !bit(place);
        chunk.far &= !bit(place);
        let moved = self.table.get_mut(target);
        if let Some(slot) = slot {
            moved.set_far(place_of(page), slot, print);
            self.slots.set_owner(slot, page);
        }
        if resident {
            moved.resident |= bit(place_of(page));
            self.evict
                .handle_resident(PageIndex(target.0), Arrival::FirstTouch);
        }
    }
}
