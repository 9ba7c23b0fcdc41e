//! What a child sees of its parent's far memory: as it was when the parent forked.
//!
//! Made by the pager when the kernel tells of the fork, at which time nothing has changed since the
//! child's memory was made: pages cannot be filled while a fork is under way, and none are moved out
//! (see [`evict`](muninn_pager_core::evict)). Until the child's own pager is up, the parent's answers the child's
//! faults from here, and follows what the child does to its address space. Then all of it goes to
//! the child, as bytes.
//!
//! Far copies are shared, not copied: the extents are frozen, so both may read and nobody writes.

use crate::hash::{Hasher, SECRET_LEN};
use crate::seal::{self, KeyNo, Print, Seal, Secret};
use crate::vault::{Page, Store, Vault};
use muninn_pager_core::{Engine, Hash, Kernel, Ranges, SlotNo, places};
use muninn_types::{Extent, ExtentId, PageNo, PageRange};
use muninn_volume::Heritage;
use std::collections::BTreeSet;

/// A far page of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarPage {
    pub page: PageNo,
    pub slot: SlotNo,
    /// Its place among the seals, if pages are sealed.
    seal: u32,
    hash: Hash,
}

#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What fingerprints were taken with.
    pub secret: [u8; SECRET_LEN],
    /// In the order of pages.
    pub pages: Vec<FarPage>,
    /// Of the pages, where they are sealed.
    seals: Vec<Seal>,
    /// What they were sealed with; added when all of this is handed over.
    pub keys: Vec<(KeyNo, Secret)>,
    pub areas: Ranges,
    /// Each with its number among the parent's.
    pub extents: Vec<(u32, Extent)>,
    pub heritage: Heritage,
}

/// Numbers of items of each kind, which come first.
const COUNTS: usize = 6;
/// Bytes of a far page: page, slot, hash.
const PAGE_BYTES: usize = 8 + 4 + 16;
const KEY_BYTES: usize = 2 + seal::SECRET_LEN;
const AREA_BYTES: usize = 16;
const EXTENT_BYTES: usize = 4 + 4 + 4;

impl Snapshot {
    pub fn of<K: Kernel<Page = Page>, S: Store>(
        engine: &Engine<K, Vault<S>>,
        areas: &Ranges,
    ) -> Snapshot {
        let mut pages = Vec::with_capacity(engine.gauges().slots as usize);
        let mut seals = Vec::new();
        for chunk in engine.chunks() {
            // Resident pages are in the child by themselves; of one that is on its way out the
            // child has the far copy.
            pages.extend(places(chunk.far & !chunk.resident).filter_map(|place| {
                let slot = chunk.slot(place)?;
                let print = chunk.print(place);
                let seal = seals.len() as u32;
                seals.extend(print.seal);
                Some(FarPage {
                    page: chunk.number.page(place),
                    slot,
                    seal,
                    hash: print.hash,
                })
            }));
        }
        Snapshot {
            secret: *engine.far.hasher().secret(),
            pages,
            seals,
            keys: Vec::new(),
            areas: areas.clone(),
            extents: engine.grants().collect(),
            heritage: Heritage::default(),
        }
    }

    /// Leaves out what the child does not get as its parent has it: it must not be answered with
    /// the parent's contents.
    pub fn leave_out(&mut self, ranges: &[PageRange]) {
        for range in ranges {
            self.handle_unmap(*range);
        }
    }

    pub fn find(&self, page: PageNo) -> Option<FarPage> {
        let at = self
            .pages
            .binary_search_by_key(&page, |far| far.page)
            .ok()?;
        Some(self.pages[at])
    }

    /// By what a page is known when it comes.
    pub fn print(&self, far: &FarPage) -> Print {
        Print {
            hash: far.hash,
            seal: self.seals.get(far.seal as usize).copied(),
        }
    }

    /// The keys that pages were sealed with.
    pub fn keys_needed(&self) -> BTreeSet<KeyNo> {
        let seals = self.pages.iter().filter_map(|far| self.print(far).seal);
        seals.map(|seal| seal.key).collect()
    }

    pub fn extent_of(&self, slot: SlotNo) -> Option<ExtentId> {
        let number = slot.grant() as u32;
        let found = self.extents.iter().find(|(known, _)| *known == number);
        found.map(|(_, extent)| extent.id)
    }

    /// Forgets the parent's extents in which the child has nothing.
    pub fn leave_out_unused(&mut self) {
        let pages = self.pages.iter();
        let used: BTreeSet<u32> = pages.map(|far| far.slot.grant() as u32).collect();
        self.extents.retain(|(number, _)| used.contains(number));
    }

    fn span(&self, range: PageRange) -> std::ops::Range<usize> {
        let at = |page| self.pages.partition_point(|far| far.page < page);
        at(range.first())..at(range.end())
    }

    pub fn handle_remove(&mut self, range: PageRange) {
        let span = self.span(range);
        self.pages.drain(span);
    }

    pub fn handle_unmap(&mut self, range: PageRange) {
        self.areas.remove(range);
        self.handle_remove(range);
    }

    pub fn handle_remap(&mut self, from: PageRange, to: PageNo) {
        self.handle_unmap(PageRange::new(to, from.pages()));
        self.areas.remove(from);
        self.areas.insert(PageRange::new(to, from.pages()));
        let span = self.span(from);
        let moved: Vec<FarPage> = self.pages.drain(span).collect();
        let renamed = moved.into_iter().map(|far| FarPage {
            page: PageNo(to.0 + (far.page.0 - from.first().0)),
            ..far
        });
        let at = self.pages.partition_point(|far| far.page < to);
        self.pages.splice(at..at, renamed);
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let areas: Vec<PageRange> = self.areas.iter().collect();
        let heritage = self.heritage.to_bytes();
        let seals = self.pages.iter().filter_map(|far| self.print(far).seal);
        let sealed = match self.seals.is_empty() {
            true => 0,
            false => self.pages.len(),
        };
        let counts: [usize; COUNTS] = [
            self.pages.len(),
            sealed,
            self.keys.len(),
            areas.len(),
            self.extents.len(),
            heritage.len(),
        ];
        let len = SECRET_LEN
            + 8 * COUNTS
            + self.pages.len() * PAGE_BYTES
            + sealed * Seal::BYTES
            + self.keys.len() * KEY_BYTES
            + areas.len() * AREA_BYTES
            + self.extents.len() * EXTENT_BYTES
            + heritage.len();
        // All at once: nothing of the keys stays behind in memory that was too small.
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(self.secret);
        for count in counts {
            bytes.extend((count as u64).to_le_bytes());
        }
        for far in &self.pages {
            bytes.extend(far.page.0.to_le_bytes());
            bytes.extend(far.slot.0.to_le_bytes());
            bytes.extend(far.hash.to_bytes());
        }
        for seal in seals {
            bytes.extend(seal.to_bytes());
        }
        for (no, secret) in &self.keys {
            bytes.extend(no.0.to_le_bytes());
            bytes.extend(secret.bytes());
        }
        for area in areas {
            bytes.extend(area.first().0.to_le_bytes());
            bytes.extend(area.pages().to_le_bytes());
        }
        for (number, extent) in &self.extents {
            bytes.extend(number.to_le_bytes());
            bytes.extend(extent.id.0.to_le_bytes());
            bytes.extend(extent.pages.to_le_bytes());
        }
        bytes.extend(heritage);
        debug_assert_eq!(bytes.len(), len);
        bytes
    }

    /// `None` for bytes that are not all there.
    pub fn from_bytes(bytes: &[u8]) -> Option<Snapshot> {
        let mut rest = bytes;
        let mut take = |n: usize| {
            let (head, tail) = rest.split_at_checked(n)?;
            rest = tail;
            Some(head)
        };
        let word = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        let half = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
        let secret = take(SECRET_LEN)?.try_into().ok()?;
        let mut counts = [0usize; COUNTS];
        for count in &mut counts {
            *count = usize::try_from(word(take(8)?)?).ok()?;
        }
        let [pages, seals, keys, areas, extents, heritage] = counts;
        if seals != 0 && seals != pages {
            return None;
        }
        let mut snapshot = Snapshot {
            secret,
            pages: Vec::new(),
            seals: Vec::new(),
            keys: Vec::new(),
            areas: Ranges::default(),
            extents: Vec::new(),
            heritage: Heritage::default(),
        };
        for item in take(pages.checked_mul(PAGE_BYTES)?)?.chunks_exact(PAGE_BYTES) {
            snapshot.pages.push(FarPage {
                page: PageNo(word(&item[..8])?),
                slot: SlotNo(half(&item[8..12])?),
                seal: snapshot.pages.len() as u32,
                hash: Hash::from_bytes(item[12..].try_into().ok()?),
            });
        }
        for item in take(seals.checked_mul(Seal::BYTES)?)?.chunks_exact(Seal::BYTES) {
            snapshot.seals.push(Seal::from_bytes(item)?);
        }
        for item in take(keys.checked_mul(KEY_BYTES)?)?.chunks_exact(KEY_BYTES) {
            let no = KeyNo(u16::from_le_bytes(item[..2].try_into().ok()?));
            let secret = Secret::new(item[2..].try_into().ok()?);
            snapshot.keys.push((no, secret));
        }
        for item in take(areas.checked_mul(AREA_BYTES)?)?.chunks_exact(AREA_BYTES) {
            let (first, pages) = (word(&item[..8])?, word(&item[8..])?);
            snapshot.areas.insert(PageRange::new(PageNo(first), pages));
        }
        for item in take(extents.checked_mul(EXTENT_BYTES)?)?.chunks_exact(EXTENT_BYTES) {
            let extent = Extent {
                id: ExtentId(half(&item[4..8])?),
                pages: half(&item[8..])?,
            };
            snapshot.extents.push((half(&item[..4])?, extent));
        }
        snapshot.heritage = Heritage::from_bytes(take(heritage)?)?;
        Some(snapshot)
    }
}

/// Begins with what the parent had far. Pages that are here already are noted afterwards.
pub fn inherit<K: Kernel<Page = Page>, S: Store>(
    engine: &mut Engine<K, Vault<S>>,
    snapshot: &Snapshot,
) -> Result<(), String> {
    let hasher = Hasher::new(snapshot.secret);
    engine.far.inherit(hasher, &snapshot.keys)?;
    let pages = snapshot.pages.iter();
    let pages = pages.map(|far| (far.page, far.slot, snapshot.print(far)));
    engine.inherit(snapshot.extents.iter().copied(), pages);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::Sealer;
    use muninn_types::{GrantId, ServerId};

    #[test]
    fn it_reads_back_equal() {
        reads_back(false);
    }

    #[test]
    fn so_does_one_of_sealed_pages() {
        reads_back(true);
    }

    fn reads_back(sealed: bool) {
        let mut sealer = Sealer::new(&[]).unwrap();
        let page = [1; muninn_types::PAGE_SIZE];
        let seals = if sealed { 100 } else { 0 };
        let seals: Vec<Seal> = (0..seals).map(|_| sealer.seal(0, &page).1).collect();
        let far = |page: u64, slot: u32| FarPage {
            page: PageNo(page),
            slot: SlotNo(slot),
            seal: slot,
            hash: Hash::from_bytes([slot as u8; 16]),
        };
        let extent = Extent {
            id: ExtentId(5),
            pages: 4096,
        };
        let mut snapshot = Snapshot {
            secret: [3; SECRET_LEN],
            pages: (0..100).map(|i| far(1000 + 2 * i, i as u32)).collect(),
            keys: sealer.secrets(seals.first().map(|seal| seal.key)),
            seals,
            areas: Ranges::default(),
            extents: vec![(0, extent)],
            heritage: Heritage {
                extents: vec![(extent, vec![(0, (ServerId(1), GrantId(77)))])],
                baggage: vec![(ServerId(1), GrantId(78))],
                tickets: vec![(ServerId(1), [9; 16])],
            },
        };
        snapshot.areas.insert(PageRange::new(PageNo(1000), 300));
        snapshot.handle_remove(PageRange::new(PageNo(1010), 10));
        assert!(snapshot.find(PageNo(1012)).is_none());
        snapshot.handle_remap(PageRange::new(PageNo(1100), 20), PageNo(500));
        assert_eq!(snapshot.find(PageNo(502)).unwrap().slot, SlotNo(51));
        assert!(snapshot.find(PageNo(1102)).is_none());
        assert!(snapshot.pages.is_sorted_by_key(|far| far.page));
        let bytes = snapshot.to_bytes();
        let read = Snapshot::from_bytes(&bytes).unwrap();
        assert_eq!(read.secret, snapshot.secret);
        assert_eq!(read.pages.len(), snapshot.pages.len());
        for (one, other) in read.pages.iter().zip(&snapshot.pages) {
            assert_eq!((one.page, one.slot), (other.page, other.slot));
            assert_eq!(read.print(one), snapshot.print(other));
            assert_eq!(read.print(one).seal.is_some(), sealed);
        }
        assert_eq!(read.keys, snapshot.keys);
        assert_eq!(read.keys.is_empty(), !sealed);
        assert!(
            read.keys_needed()
                .iter()
                .eq(read.keys.iter().map(|(no, _)| no))
        );
        assert_eq!(read.extents, snapshot.extents);
        assert_eq!(read.heritage, snapshot.heritage);
        let areas = |s: &Snapshot| s.areas.iter().collect::<Vec<_>>();
        assert_eq!(areas(&read), areas(&snapshot));
        for cut in 0..bytes.len() {
            assert!(Snapshot::from_bytes(&bytes[..cut]).is_none());
        }
    }
}
