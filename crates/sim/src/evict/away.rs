//! The pool below the engine: as many extents as are wanted, and in each slot a version of a page.
//!
//! Invariant: what is read is what was written there last, and what the engine says it must be.

use super::near::{Version, ZEROS};
use muninn_pager_core::{Far, FarError, FarPlace, Fatal, Hash, Incoming, Outgoing};
use muninn_types::{Class, Extent, ExtentId};
use std::cell::Cell;

#[derive(Debug, Default)]
pub struct Away {
    /// By extent; those that were given back are empty.
    extents: Vec<Vec<Version>>,
}

impl Away {
    fn at(&mut self, place: FarPlace) -> &mut Version {
        &mut self.extents[place.extent.0 as usize][place.place as usize]
    }
}

fn hash(version: Version) -> Hash {
    Hash(u128::from(version))
}

impl Far<Cell<Version>> for Away {
    fn fingerprint(&self, page: &Cell<Version>) -> Hash {
        hash(page.get())
    }
    fn zero(&self) -> Hash {
        hash(ZEROS)
    }
    fn read(
        &mut self,
        from: &[Incoming],
        into: &mut [Cell<Version>],
        _: Class,
    ) -> Result<(), Fatal> {
        for (one, near) in from.iter().zip(into) {
            let version = *self.at(one.from);
            if hash(version) != one.print.hash {
                return Err(Fatal::Changed(one.page.addr(), one.from.extent.to_string()));
            }
            near.set(version);
        }
        Ok(())
    }
    fn write(
        &mut self,
        pages: &mut [Outgoing<'_, Cell<Version>>],
        _: Class,
    ) -> Result<(), FarError> {
        for one in pages {
            *self.at(one.to) = one.near.get();
        }
        Ok(())
    }
    fn extent(&mut self) -> Result<Extent, FarError> {
        let id = ExtentId(self.extents.len() as u32);
        self.extents.push(vec![ZEROS; Extent::PAGES_MAX as usize]);
        let pages = Extent::PAGES_MAX;
        Ok(Extent { id, pages })
    }
    fn granted(&mut self) -> Option<Extent> {
        None
    }
    fn replenish(&mut self, _: u64, _: u64) {}
    fn release(&mut self, extent: ExtentId) {
        self.extents[extent.0 as usize] = Vec::new();
    }
}
