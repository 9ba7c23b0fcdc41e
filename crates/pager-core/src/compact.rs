//! Compaction: pages that lie scattered over many grants move together, and the grants go back.
//!
//! While a child may read them, far pages are not written to in place; what leaves meanwhile lies
//! elsewhere, and afterwards there are gaps everywhere. When nobody waits, the emptiest grant gives its
//! pages to the gaps of the others, a few at a time: far copies of resident pages are simply forgotten,
//! those of others are read and written again.

use crate::below::{Far, FarError, Incoming, Kernel, Outgoing};
use crate::chunk::{ChunkNo, bit, place_of};
use crate::engine::{Engine, Fatal};
use crate::print::Print;
use crate::slots::{SlotNo, Step};
use muninn_types::{Class, PageNo};

/// Grants that are asked for to move things together, until there are wards again.
const GRANTS_MAX: u32 = 64;
/// Upper parts of page numbers that an address may have, beyond the 32 bits that a slot remembers.
const UPPER_PARTS: u64 = 1 << (47 - 12 - 32);

impl<K: Kernel, F: Far<K::Page>> Engine<K, F> {
    /// Moves a few far pages out of the emptiest grant, if that is worth it; whether there is more to do.
    pub fn compact_some(&mut self) -> Result<bool, Fatal> {
        let step = match self.slots.is_scattered() || self.slots.is_closing() {
            true => self.slots.poll_move(),
            false => Step::Done,
        };
        match step {
            Step::NeedsGrant => self.grant_for_compaction(),
            Step::Move(slots) => {
                for (slot, lower) in slots {
                    if let Some(page) = self.page_in(slot, lower) {
                        self.move_far(page, slot)?;
                    }
                }
                Ok(true)
            }
            // Not before: an empty one may be what is moved to next.
            Step::Done => {
                while let Some(extent) = self.slots.take_empty() {
                    self.far.release(extent);
                }
                Ok(false)
            }
        }
    }

    /// There are no wards any more: as many grants as ever may be asked for.
    pub fn forget_compaction(&mut self) {
        self.compaction_grants = 0;
    }

    fn grant_for_compaction(&mut self) -> Result<bool, Fatal> {
        if self.compaction_grants == GRANTS_MAX {
            return Ok(false);
        }
        self.compaction_grants += 1;
        match self.far.extent() {
            Ok(extent) => {
                self.slots.add(extent);
                Ok(true)
            }
            Err(FarError::Full(_)) => Ok(false),
            Err(FarError::Lost(why)) => Err(Fatal::Lost(why)),
        }
    }

    /// The page whose far copy is in a slot.
    fn page_in(&self, slot: SlotNo, lower: u32) -> Option<PageNo> {
        let pages = (0..UPPER_PARTS).map(|upper| PageNo(upper << 32 | u64::from(lower)));
        pages.into_iter().find(|&page| {
            let chunk = self
                .table
                .find(ChunkNo::of(page))
                .map(|index| self.table.get(index));
            chunk.is_some_and(|chunk| chunk.slot(place_of(page)) == Some(slot))
        })
    }

    fn move_far(&mut self, page: PageNo, slot: SlotNo) -> Result<(), Fatal> {
        let Some(index) = self.table.find(ChunkNo::of(page)) else {
            return Ok(());
        };
        let place = place_of(page);
        if self.table.get(index).resident & bit(place) != 0 {
            self.forget_copy(index, place);
            return Ok(());
        }
        let Some((new, _)) = self.slots.take_run(1) else {
            return Ok(());
        };
        let (from, to) = (self.far_place(slot), self.far_place(new));
        let print = self.table.get(index).print(place);
        let near = &mut self.scratch[..1];
        self.far
            .read(&[Incoming { page, from, print }], near, Class::Prefetch)?;
        // Sealed anew: what is looked at has been opened.
        let print = Print {
            hash: print.hash,
            seal: None,
        };
        let near = &self.scratch[0];
        let mut leaving = [Outgoing { to, near, print }];
        self.far
            .write(&mut leaving, Class::Prefetch)
            .map_err(|error| Fatal::Lost(error.to_string()))?;
        let [Outgoing { print, .. }] = leaving;
        self.table.get_mut(index).set_far(place, new, print);
        self.slots.set_owner(new, page);
        self.free_slot(slot);
        Ok(())
    }
}
