//! The regions of a heap at this server, as an agent sees them.

use super::Piece;
use muninn_heap_agent::layout::Geometry;
use muninn_heap_agent::words::{Gone, Words};
use muninn_sys::memory::{guarded_copy, guarded_load, guarded_store};
use std::ops::Range;

#[derive(Debug)]
pub(super) struct GrantWords {
    geometry: Geometry,
    own: Range<u32>,
    /// Addresses of the regions in `own`, then of their tablets.
    starts: Vec<*mut u8>,
    // Keeps the memory behind the addresses.
    _pieces: Vec<Piece>,
}

// SAFETY: the addresses are of mappings that `_pieces` keeps; all accesses are guarded copies, which
// may be made from any thread.
unsafe impl Send for GrantWords {}

impl GrantWords {
    /// `pieces` are the server's own regions, then its tablets where there are any; each was found to
    /// be as long as it must be.
    pub(super) fn new(geometry: Geometry, own: Range<u32>, pieces: Vec<Piece>) -> GrantWords {
        let regions = own.len();
        let start = |(index, piece): (usize, &Piece)| {
            let bytes = if index < regions {
                geometry.region_bytes()
            } else {
                geometry.tablet_bytes()
            };
            piece.mem().at(piece.start(), bytes)
        };
        GrantWords {
            geometry,
            own,
            starts: pieces.iter().enumerate().map(start).collect(),
            _pieces: pieces,
        }
    }

    fn find(&self, at: u64, len: u64) -> Result<*mut u8, Gone> {
        let (geometry, gone) = (&self.geometry, Gone { at });
        let heap = geometry.heap_bytes();
        let (unit, offset, size, skip) = if at < heap {
            let region = geometry.region_of(at);
            let offset = at - geometry.region_start(region);
            (u64::from(region), offset, geometry.region_bytes(), 0)
        } else {
            let tablet = (at - heap) / geometry.tablet_bytes();
            let offset = at - heap - tablet * geometry.tablet_bytes();
            (tablet, offset, geometry.tablet_bytes(), self.own.len())
        };
        let unit = u32::try_from(unit).map_err(|_| gone)?;
        if !self.own.contains(&unit) || at & 7 != 0 || len > size - offset {
            return Err(gone);
        }
        let index = (unit - self.own.start) as usize + skip;
        let start = self.starts.get(index).ok_or(gone)?;
        Ok(start.wrapping_add(offset as usize))
    }
}

impl Words for GrantWords {
    fn load(&self, at: u64) -> Result<u64, Gone> {
        let word = self.find(at, 8)?;
        // SAFETY: inside of a mapping that `_pieces` keeps, aligned; the handler was installed when
        // the agent was started.
        unsafe { guarded_load(word.cast()) }.map_err(|_| Gone { at })
    }
    fn store(&self, at: u64, value: u64) -> Result<(), Gone> {
        let word = self.find(at, 8)?;
        // SAFETY: as in `load`; segments are mapped writable.
        unsafe { guarded_store(word.cast(), value) }.map_err(|_| Gone { at })
    }
    fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), Gone> {
        let (source, target) = (self.find(from, len)?, self.find(to, len)?);
        // SAFETY: both ranges are inside of mappings that `_pieces` keeps.
        unsafe { guarded_copy(target, source, len as usize) }
            .map(|_| ())
            .map_err(|_| Gone { at: from })
    }
}
