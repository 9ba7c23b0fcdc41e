//! Eviction: pages leave the program, a chunk at a time.
//!
//! `policy::evict` says which chunk. Its pages are moved to frames of the staging area with one call
//! and are then nobody else's to write: only now can be asked whether they changed. Zeros are
//! forgotten, a page equal to its far copy is dropped, the others are written to neighbouring slots
//! in one batch. When the write is done the pages are *staged*: still near, and a fault has them
//! back at the cost of a move; their frames are used up in the order in which they came.
//!
//! What the kernel will not move (pinned by a device, shared with a child) stays where it is and is
//! asked for again much later. What it must find when a thread ends stays as well
//! ([`staying`](Kernel::staying)).
//!
//! Why a change of the address space matters here: a program that unmaps memory and maps other
//! memory in its place must not have a page of the *new* memory moved out under the old one's name.
//! The kernel moves whatever is at an address, but not while a change is going on. Where pages are copied a change
//! may begin meanwhile, and is looked into afterwards ([`Engine::doubt`]): if it turns out that memory
//! was mapped anew at that very moment, the process ends with that message instead of going on with a
//! page that might be wrong.

use crate::below::{
    CHUNKS_AT_ONCE_MAX, Count, Far, FarError, FarPlace, Kernel, Outgoing, Stillness, Wait,
};
use crate::chunk::{CHUNK_PAGES, ChunkNo, Mask, SlabNo, bit, places, span};
use crate::engine::{Engine, Fatal};
use crate::print::{Hash, Print};
use crate::slots::SlotNo;
use crate::table::ChunkIndex;
use muninn_policy::evict::{Arrival, PageIndex};
use muninn_policy::urgency::Pressure;
use muninn_types::{Bytes, Cause, Class, PAGE_SIZE, PageRange, Partial};
use std::ops::Bound;

/// Chunks that are tried before giving up: those that cannot be moved come back to the policy.
const TRIES_MAX: usize = 64;

/// How an eviction went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// So many pages left.
    Pages(u64),
    /// There is nothing that could leave, or no place for it.
    Nothing,
    /// The address space is changing: read its events first.
    Changing,
    /// Somebody waits for a page, and until he has it nothing can leave.
    NotBefore,
}

impl<K: Kernel, F: Far<K::Page>> Engine<K, F> {
    /// Evicts a chunk, or as many as the kernel takes at a time. `urgent`: somebody waits for the
    /// memory.
    pub fn evict_some(&mut self, urgent: bool) -> Result<Evicted, Fatal> {
        let mut leaving = std::mem::take(&mut self.leaving);
        let mut evicted = Ok(Evicted::Nothing);
        self.look_at_parked();
        let mut tries = 0;
        while tries < TRIES_MAX / self.kernel.chunks_at_once() {
            let parked = self.parked.len();
            evicted = self
                .choose(&mut leaving)
                .and_then(|()| self.evict_chosen(&leaving, urgent));
            // What could not be moved came back to the policy: others may be.
            if leaving.is_empty() || !matches!(evicted, Ok(Evicted::Pages(0))) {
                break;
            }
            evicted = Ok(Evicted::Nothing);
            // Each is parked once: however many threads there are, what can leave is found.
            tries += usize::from(self.parked.len() == parked);
        }
        self.leaving = leaving;
        evicted
    }

    /// Chunks that are to leave together, each with a slab and with slots for its pages: once the
    /// pages are taken they must have somewhere to go.
    fn choose(&mut self, leaving: &mut Vec<(ChunkIndex, SlabNo)>) -> Result<(), Fatal> {
        leaving.clear();
        let mut slots = 0;
        for _ in 0..TRIES_MAX {
            if leaving.len() == self.kernel.chunks_at_once() {
                break;
            }
            let Some(run) = self.evict.next_run(1) else {
                break;
            };
            let index = ChunkIndex(run.first.0);
            if self.table.get(index).resident == 0 {
                continue;
            }
            // Its page was just brought in, and nobody has used it yet.
            if self.guarded == Some(index) || !self.ensure_slots(index, &mut slots)? {
                self.keep(index);
                continue;
            }
            let Some(slab) = self.slab_for(index) else {
                self.keep(index);
                break;
            };
            leaving.push((index, slab));
        }
        Ok(())
    }

    /// Of chunks whose pages had to stay one is looked at each time: it is like any other once a page may
    /// leave again, as a thread has ended.
    fn look_at_parked(&mut self) {
        let after = (Bound::Excluded(self.parked_at), Bound::Unbounded);
        let mut in_turn = self.parked.range(after).chain(self.parked.iter());
        let Some(&number) = in_turn.next() else {
            return;
        };
        self.parked_at = number;
        let index = self.table.find(number);
        let resident = index.map_or(0, |index| self.table.get(index).resident);
        let taking = self.kernel.begin_taking();
        let staying = self.kernel.staying(&taking, number);
        drop(taking);
        if resident & !staying == 0 && resident != 0 {
            return;
        }
        self.parked.remove(&number);
        if let Some(index) = index
            && resident != 0
        {
            self.keep(index);
        }
    }

    /// A chunk stays for now.
    fn keep(&mut self, index: ChunkIndex) {
        let index = PageIndex(index.0);
        self.evict.handle_resident(index, Arrival::Kept);
    }

    fn evict_chosen(
        &mut self,
        leaving: &[(ChunkIndex, SlabNo)],
        urgent: bool,
    ) -> Result<Evicted, Fatal> {
        if leaving.is_empty() {
            return Ok(Evicted::Nothing);
        }
        // Last of all: what takes time here (a server was asked for memory) is time in which the
        // program may begin a change.
        let taking = self.kernel.begin_taking();
        let mut wanted = [0; CHUNKS_AT_ONCE_MAX];
        for (wanted, &(index, _)) in wanted.iter_mut().zip(leaving) {
            let chunk = self.table.get(index);
            *wanted = chunk.resident & !self.kernel.staying(&taking, chunk.number);
        }
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        if self.kernel.chunks_at_once() > 1 {
            let chunks = leaving.iter().zip(wanted);
            runs.extend(chunks.flat_map(|(&(index, _), wanted)| self.runs_of(index, wanted)));
        }
        let stillness = self.kernel.hold_still(&runs);
        self.runs = runs;
        if stillness != Stillness::Reached || self.is_changing() {
            self.kernel.let_go();
            for &(index, _) in leaving {
                self.keep(index);
            }
            return Ok(match stillness {
                Stillness::Never(why) => {
                    self.full = Some(why.to_string());
                    Evicted::Nothing
                }
                Stillness::NotBefore => Evicted::NotBefore,
                _ => Evicted::Changing,
            });
        }
        let mut moved = [0; CHUNKS_AT_ONCE_MAX];
        for (at, &(index, slab)) in leaving.iter().enumerate() {
            moved[at] = self.move_out(index, slab, wanted[at]);
            if self.doubt.is_some() {
                break;
            }
        }
        self.kernel.let_go();
        drop(taking);
        let mut pages = 0;
        for (at, &(index, slab)) in leaving.iter().enumerate() {
            if moved[at] != 0 {
                pages += self.send_away(index, slab, moved[at], urgent)?;
            }
            if wanted[at] == 0 {
                self.parked.insert(self.table.get(index).number);
            } else if self.table.get(index).resident != 0 {
                self.keep(index);
            }
            // All zeros: there is nothing left to know.
            self.remove_if_empty(index);
        }
        if pages == 0 && self.is_changing() {
            return Ok(Evicted::Changing);
        }
        Ok(Evicted::Pages(pages))
    }

    /// Pages of a chunk, run by run.
    fn runs_of(
        &self,
        index: ChunkIndex,
        wanted: Mask,
    ) -> impl Iterator<Item = PageRange> + use<K, F> {
        let number = self.table.get(index).number;
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = next_wanted(wanted, next);
            let len = (wanted.checked_shr(first as u32)?).trailing_ones() as usize;
            next = first + len;
            (len > 0).then(|| PageRange::new(number.page(first), len as u64))
        })
    }

    /// The slab of a chunk: the one it has, a free one, or that of the oldest, whose pages are let
    /// go.
    pub(crate) fn slab_for(&mut self, index: ChunkIndex) -> Option<SlabNo> {
        if let Some(slab) = self.table.get(index).slab {
            return Some(slab);
        }
        let slab = loop {
            if let Some(slab) = self.staging.take_slab(index) {
                break slab;
            }
            // Whatever is held: slabs are short, not memory.
            let before = self.held();
            self.drop_staged(before.saturating_sub(CHUNK_PAGES as u64));
            if self.held() == before {
                return None;
            }
        };
        self.table.get_mut(index).slab = Some(slab);
        Some(slab)
    }

    /// Moves pages of a chunk out of the program; which ones came.
    fn move_out(&mut self, index: ChunkIndex, slab: SlabNo, wanted: Mask) -> Mask {
        let number = self.table.get(index).number;
        let mut moved: Mask = 0;
        // Pages before this one were asked to be made our own already.
        let mut unshared = 0;
        let mut first = next_wanted(wanted, 0);
        while first < CHUNK_PAGES {
            // Only pages that are known to be there: a move takes along whatever is, and where the program
            // gave a page back and wrote to it again, that is none of ours.
            let end = first + (wanted >> first).trailing_ones() as usize;
            let from = PageRange::new(number.page(first), (end - first) as u64);
            let (done, cause) = match self.move_run(from, slab, first) {
                Ok(()) => (end - first, None),
                Err(partial) => (partial.done_pages as usize, Some(partial.cause)),
            };
            moved |= span(first, first + done);
            first += done;
            match cause {
                _ if done > 0 => {}
                Some(Cause::Again) => break,
                // A run across two mappings is refused as a whole.
                Some(Cause::Invalid) if from.pages() > 1 => {
                    moved |= self.move_singly(number, slab, span(first, end));
                    first = end;
                }
                cause => {
                    if cause == Some(Cause::Busy) && unshared <= first {
                        unshared = end;
                        self.kernel.unshare(from);
                    }
                    self.count(Count::BusyPages, 1);
                    first += 1;
                }
            }
            first = next_wanted(wanted, first);
        }
        let chunk = PageRange::new(number.page(0), CHUNK_PAGES as u64);
        if !self.kernel.is_sure(chunk) {
            // Whether these pages are what they are taken for shows when the events are read. Asked
            // at once: a change that begins after the move has nothing to do with it.
            self.doubt = Some(chunk);
        }
        if moved != 0 {
            // What was not there (the program gave it back this very moment) did not arrive.
            let frames = PageRange::new(self.staging.frame(slab, 0), CHUNK_PAGES as u64);
            moved &= self.kernel.present(frames) as Mask;
        }
        self.clear_resident(index, moved);
        moved
    }

    fn move_run(&self, from: PageRange, slab: SlabNo, place: usize) -> Result<(), Partial> {
        let to = self.staging.frame(slab, place);
        self.kernel.take_out(to, from)
    }

    fn move_singly(&self, number: ChunkNo, slab: SlabNo, wanted: Mask) -> Mask {
        let mut moved = 0;
        let mut refused = 0;
        for place in places(wanted) {
            match self.move_run(PageRange::one(number.page(place)), slab, place) {
                Ok(()) => moved |= bit(place),
                // Memory that cannot be moved at all (read-only, locked) says so each time.
                Err(_) if refused == 2 => break,
                Err(_) => refused += 1,
            }
        }
        moved
    }

    /// Pages that are in our hands: forgets zeros, keeps what is unchanged, writes the rest. How
    /// many pages left.
    fn send_away(
        &mut self,
        index: ChunkIndex,
        slab: SlabNo,
        moved: Mask,
        urgent: bool,
    ) -> Result<u64, Fatal> {
        let mut dirty: Mask = 0;
        let mut hashes = [Hash::default(); CHUNK_PAGES];
        let mut zero: Mask = 0;
        for place in places(moved) {
            let frame = self.staging.frame(slab, place);
            let hash = self.far.fingerprint(self.kernel.frame(frame));
            let chunk = self.table.get(index);
            hashes[place] = hash;
            if hash == self.far.zero() {
                zero |= bit(place);
            } else if chunk.slot(place).is_none() || chunk.hash(place) != hash {
                dirty |= bit(place);
            }
        }
        if dirty != 0 {
            self.write_away(index, slab, dirty, &hashes, urgent)
                .map_err(|error| Fatal::Lost(error.to_string()))?;
        }
        Ok(self.settle(index, slab, moved, zero, dirty))
    }

    /// Whether there is a slot for each page of a chunk that may need a new one, beside those that
    /// are `spoken_for`.
    fn ensure_slots(&mut self, index: ChunkIndex, spoken_for: &mut u64) -> Result<bool, Fatal> {
        let chunk = self.table.get(index);
        let has_slot = |place: &usize| {
            let slot = chunk.slot(*place);
            slot.is_some_and(|slot| self.slots.is_writable(slot))
        };
        let needed = places(chunk.resident).filter(|p| !has_slot(p)).count() as u64 + *spoken_for;
        if needed > self.max_far_left() {
            self.full = Some(format!(
                "{} are far, which is the most that --max-far allows",
                Bytes::pages(self.slots.live_slots())
            ));
            return Ok(false);
        }
        while let Some(extent) = self.far.granted() {
            self.slots.add(extent);
        }
        while self.slots.free_slots() < needed {
            if self.full.is_some() {
                return Ok(false);
            }
            let _waits = self.kernel.waits(Wait::Grant, None);
            match self.far.extent() {
                Ok(extent) => {
                    self.slots.add(extent);
                    self.overdraft.handle_granted();
                }
                Err(FarError::Full(why)) => self.full = Some(why),
                Err(FarError::Lost(why)) => return Err(Fatal::Lost(why)),
            }
        }
        *spoken_for = needed;
        Ok(true)
    }

    fn settle(
        &mut self,
        index: ChunkIndex,
        slab: SlabNo,
        moved: Mask,
        zero: Mask,
        dirty: Mask,
    ) -> u64 {
        for place in places(zero) {
            let chunk = self.table.get_mut(index);
            let slot = chunk.slot(place);
            chunk.far &= !bit(place);
            if let Some(slot) = slot {
                self.free_slot(slot);
            }
        }
        self.discard_frames(slab, zero);
        let staged = moved & !zero;
        self.table.get_mut(index).staged |= staged;
        self.staged += u64::from(staged.count_ones());
        let count = |mask: Mask| u64::from(mask.count_ones());
        self.count(Count::Evicted, count(moved));
        self.count(Count::EvictedZero, count(zero));
        self.count(Count::EvictedWritten, count(dirty));
        self.count(Count::EvictedClean, count(moved & !zero & !dirty));
        count(moved)
    }

    /// Gives frames of a slab back whose contents nobody needs.
    pub(crate) fn discard_frames(&self, slab: SlabNo, mut mask: Mask) {
        while mask != 0 {
            let first = mask.trailing_zeros() as usize;
            let len = (mask >> first).trailing_ones() as usize;
            mask &= !span(first, first + len);
            let frames = PageRange::new(self.staging.frame(slab, first), len as u64);
            self.kernel.discard(frames);
        }
    }

    fn write_away(
        &mut self,
        index: ChunkIndex,
        slab: SlabNo,
        dirty: Mask,
        hashes: &[Hash; CHUNK_PAGES],
        urgent: bool,
    ) -> Result<(), FarError> {
        let mut slots = [None; CHUNK_PAGES];
        let mut missing = dirty;
        for place in places(dirty) {
            // A slot that a child reads too is left alone.
            let slot = self.table.get(index).slot(place);
            if let Some(slot) = slot.filter(|&slot| self.slots.is_writable(slot)) {
                slots[place] = Some(slot);
                missing &= !bit(place);
            }
        }
        let fresh = missing.count_ones();
        while missing != 0 {
            let run = self.slots.take_run(missing.count_ones());
            let (first, len) = run.expect("slots were made sure of");
            for slot in (first.0..first.0 + len).map(SlotNo) {
                let place = missing.trailing_zeros() as usize;
                slots[place] = Some(slot);
                missing &= !bit(place);
            }
        }
        let class = self.class(urgent);
        // The frames stay as they are: a fault may have them back.
        let frame = |place: usize| self.kernel.frame(self.staging.frame(slab, place));
        let mut leaving = places(dirty).map(|place| Outgoing {
            to: self.far_place(slots[place].expect("each dirty page was given a slot")),
            near: frame(place),
            print: Print {
                hash: hashes[place],
                seal: None,
            },
        });
        let len = dirty.count_ones() as usize;
        let none = dirty.trailing_zeros() as usize;
        let mut leaving: [Outgoing<'_, K::Page>; CHUNK_PAGES] = std::array::from_fn(|_| {
            leaving.next().unwrap_or_else(|| Outgoing {
                to: FarPlace::default(),
                near: frame(none),
                print: Print::default(),
            })
        });
        let waits = self.kernel.waits(Wait::Server, None);
        self.far.write(&mut leaving[..len], class)?;
        drop(waits);
        let prints = leaving.map(|one| one.print);
        self.count(Count::BytesOut, (len * PAGE_SIZE) as u64);
        for (place, print) in places(dirty).zip(prints) {
            let Some(slot) = slots[place] else { continue };
            let old = self.table.get(index).slot(place);
            let chunk = self.table.get_mut(index);
            let page = chunk.number.page(place);
            chunk.set_far(place, slot, print);
            self.slots.set_owner(slot, page);
            if let Some(old) = old.filter(|&old| old != slot) {
                self.free_slot(old);
            }
        }
        self.far
            .replenish(self.slots.free_slots(), u64::from(fresh));
        Ok(())
    }

    /// What class an eviction travels in.
    fn class(&self, urgent: bool) -> Class {
        let page = PAGE_SIZE as u64;
        let remaining = self.allowed().saturating_sub(self.held()) * page;
        self.urgency.class(&Pressure {
            blocked: urgent,
            remaining: Bytes(remaining),
            total: Bytes(self.allowed().saturating_mul(page)),
            growth_rate: self.growth_rate,
        })
    }
}

fn next_wanted(wanted: Mask, from: usize) -> usize {
    (wanted & span(from, CHUNK_PAGES)).trailing_zeros() as usize
}
