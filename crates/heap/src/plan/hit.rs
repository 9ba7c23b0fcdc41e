//! The heap indirection table (Mako §4): one entry for each object, which never moves.
//!
//! Entries lie in *tablets*, behind the regions in the same linear space, at home on the server of
//! their region and cached like everything else. A tablet belongs to one region at a time; which,
//! and whether it may be used, is one word here. An entry takes 4 bytes, the object's place in its
//! region, half of what an address would take. What is kept at the compute node: a bit for each
//! entry that is in use and, for tablets that were allocated from during a cycle, a bit for each
//! entry that was handed out since it began ("fresh": such objects live, whatever the marks say).
//!
//! Mutators take entries in batches, so that most allocations need no lock; the pages of a batch are
//! brought with it.

use crate::heap::Inner;
use muninn_heap_agent::bitmap::Bitmap;
use muninn_heap_agent::layout::{GRANULE_SHIFT, Geometry};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// No region.
pub const NONE: u32 = 0x7fff_ffff;
const INVALID: u32 = 1 << 31;
/// Entries taken at a time.
const BATCH: usize = 256;

#[derive(Debug, Default)]
struct Tablet {
    /// Entries in use, or handed to a mutator.
    used: Option<Bitmap>,
    /// Of these, since the cycle began.
    fresh: Option<Bitmap>,
    /// Words of `used` before this one are full.
    hint: usize,
}

#[derive(Debug)]
pub struct Hit {
    geometry: Geometry,
    /// Region of each tablet; with the top bit set it must not be used now.
    regions: Box<[AtomicU32]>,
    tablets: Box<[Mutex<Tablet>]>,
    cycle: AtomicBool,
    /// Where tablets begin, and the size of one as a power of two: the load barrier has no time to
    /// work them out.
    tablets_at: u64,
    tablet_shift: u32,
}

impl Hit {
    pub fn new(geometry: Geometry) -> Hit {
        let tablets = 0..geometry.regions;
        Hit {
            geometry,
            regions: tablets.clone().map(|_| AtomicU32::new(NONE)).collect(),
            tablets: tablets.map(|_| Mutex::default()).collect(),
            cycle: AtomicBool::new(false),
            tablets_at: geometry.tablet_start(0),
            tablet_shift: geometry.tablet_bytes().trailing_zeros(),
        }
    }

    fn lock(&self, tablet: u32) -> MutexGuard<'_, Tablet> {
        self.tablets[tablet as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The load barrier: the address of an object, or null while its region is being moved.
    #[inline(always)]
    pub fn resolve(&self, inner: &Inner, word: u64) -> *mut u8 {
        let tablet = word >> 32;
        let region = self.regions[tablet as usize].load(Acquire);
        if region & INVALID != 0 {
            return std::ptr::null_mut();
        }
        let entry = u64::from(word as u32) * 4;
        let entry = self.tablets_at + (tablet << self.tablet_shift) + entry;
        debug_assert_eq!(entry, self.geometry.entry_at(tablet as u32, word as u32));
        let entry = inner.pager.address(entry);
        inner.pager.expect_read(entry);
        // SAFETY: an entry of the table, inside of the heap's mapping and aligned to 4; entries are
        // accessed atomically. A page that is absent comes.
        let granule = unsafe { AtomicU32::from_ptr(entry.cast()) }.load(Relaxed);
        let at = self.geometry.region_start(region) + (u64::from(granule) << GRANULE_SHIFT);
        inner.pager.address(at)
    }

    pub fn is_moving(&self, word: u64) -> bool {
        self.regions[(word >> 32) as usize].load(SeqCst) & INVALID != 0
    }
    pub fn region_of(&self, tablet: u32) -> u32 {
        self.regions[tablet as usize].load(SeqCst) & !INVALID
    }
    /// From now on the tablet is this region's, and may be used.
    pub fn assign(&self, tablet: u32, region: u32) {
        self.regions[tablet as usize].store(region, SeqCst);
    }
    pub fn invalidate(&self, tablet: u32) {
        self.regions[tablet as usize].fetch_or(INVALID, SeqCst);
    }
    /// The tablet belongs to nobody.
    pub fn clear(&self, tablet: u32) {
        self.regions[tablet as usize].store(NONE, SeqCst);
        *self.lock(tablet) = Tablet::default();
    }

    /// Points an entry at its object; the reference.
    #[inline]
    pub fn set(&self, inner: &Inner, tablet: u32, entry: u32, at: u64) -> u64 {
        let address = inner.pager.address(self.geometry.entry_at(tablet, entry));
        inner.pager.expect_write(address);
        // SAFETY: as in `resolve`.
        unsafe { AtomicU32::from_ptr(address.cast()) }.store(self.geometry.granule_of(at), Relaxed);
        u64::from(tablet) << 32 | u64::from(entry)
    }

    /// Takes one certain entry.
    pub fn take_entry(&self, tablet: u32, entry: u32) {
        let bits = self.geometry.granules();
        let mut guard = self.lock(tablet);
        let tablet = &mut *guard;
        tablet
            .used
            .get_or_insert_with(|| Bitmap::new(bits))
            .set(entry);
        if self.cycle.load(SeqCst) {
            tablet
                .fresh
                .get_or_insert_with(|| Bitmap::new(bits))
                .set(entry);
        }
    }

    /// Takes a batch of free entries, and one more to be used now.
    #[cold]
    pub fn refill(&self, inner: &Inner, number: u32, into: &mut Vec<u32>) -> u32 {
        let bits = self.geometry.granules();
        let fresh = self.cycle.load(SeqCst);
        let mut guard = self.lock(number);
        let tablet = &mut *guard;
        let used = tablet.used.get_or_insert_with(|| {
            let mut map = Bitmap::new(bits);
            // Entry 0 is null.
            map.set(0);
            map
        });
        let words = used.words_mut();
        let mut at = tablet.hint;
        while into.len() < BATCH && at < words.len() {
            let mut free = !words[at];
            while free != 0 && into.len() < BATCH {
                let bit = free.trailing_zeros();
                free &= free - 1;
                words[at] |= 1 << bit;
                into.push(at as u32 * 64 + bit);
            }
            if free == 0 {
                at += 1;
            }
        }
        tablet.hint = at;
        if fresh {
            let map = tablet.fresh.get_or_insert_with(|| Bitmap::new(bits));
            into.iter().for_each(|entry| {
                map.set(*entry);
            });
        }
        drop(guard);
        // In order of address; the list is taken from its end.
        into.reverse();
        if let (Some(last), Some(first)) = (into.first(), into.last()) {
            let places =
                self.geometry.entry_at(number, *first)..self.geometry.entry_at(number, *last) + 4;
            inner.pager.preload(places.clone());
            inner.pager.populate(places);
        }
        into.pop()
            .expect("a tablet has more entries than its region has room for objects")
    }

    /// Entries that a mutator took and did not use.
    pub fn give_back(&self, number: u32, entries: &mut Vec<u32>) {
        if entries.is_empty() {
            return;
        }
        let mut guard = self.lock(number);
        let tablet = &mut *guard;
        tablet.hint = 0;
        for entry in entries.drain(..) {
            if let Some(used) = &mut tablet.used {
                used.clear(entry);
            }
            if let Some(fresh) = &mut tablet.fresh {
                fresh.clear(entry);
            }
        }
    }

    /// A cycle begins: entries handed out from now on are fresh. The world is stopped, and no
    /// mutator has entries in hand.
    pub fn begin_cycle(&self) {
        for tablet in 0..self.geometry.regions {
            self.lock(tablet).fresh = None;
        }
        self.cycle.store(true, SeqCst);
    }
    pub fn end_cycle(&self) {
        self.cycle.store(false, SeqCst);
        for tablet in 0..self.geometry.regions {
            self.lock(tablet).fresh = None;
        }
    }

    /// Frees entries that are neither marked nor fresh; how many live, and how many of them are
    /// fresh.
    pub fn reclaim(&self, number: u32, marks: &Bitmap) -> (u32, u32) {
        let mut guard = self.lock(number);
        let tablet = &mut *guard;
        tablet.hint = 0;
        let Some(used) = &mut tablet.used else {
            return (0, 0);
        };
        let (mut live, mut new) = (0, 0);
        for (at, word) in used.words_mut().iter_mut().enumerate() {
            let marked = marks.words().get(at).copied().unwrap_or(0);
            let fresh = tablet.fresh.as_ref().map_or(0, |map| map.words()[at]);
            *word &= marked | fresh;
            live += word.count_ones();
            new += (*word & fresh).count_ones();
        }
        // Entry 0 is null, and never to be had.
        used.set(0);
        (live, new)
    }

    /// The entries in use.
    pub fn allocated(&self, number: u32) -> Bitmap {
        let mut map = match &self.lock(number).used {
            Some(used) => used.clone(),
            None => Bitmap::new(self.geometry.granules()),
        };
        map.clear(0);
        map
    }

    pub fn memory_bytes(&self) -> u64 {
        let tablets = (0..self.geometry.regions).map(|tablet| {
            let tablet = self.lock(tablet);
            let maps = tablet.used.iter().chain(&tablet.fresh);
            maps.map(Bitmap::bytes).sum::<u64>() + size_of::<Mutex<()>>() as u64 + 60
        });
        tablets.sum()
    }
}
