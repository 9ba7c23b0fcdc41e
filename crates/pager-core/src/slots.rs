//! Which far pages are free: slots in extents.
//!
//! A slot is named by one number, grant × 4,096 + place, so that slots that lie together far away
//! are neighbours here. Runs of slots are given out in order (COMEX: pages that leave together lie
//! together), from the grant in use until it is full. Slots that a ward may read are *pinned*: not
//! written to while there are wards. A grant that was shared with a child is *frozen*: its slots are
//! read and forgotten, never written again, and the whole of it goes back when the last is forgotten.
//!
//! Invariant: a slot is given out at most once until it is freed; nothing is given out of a frozen
//! grant, and no pinned slot.

use muninn_types::{Extent, ExtentId, PageNo};

/// Slots of an extent, at most.
pub const GRANT_SLOTS: u32 = Extent::PAGES_MAX;
/// Grants more than would be filled that are no reason to move anything.
const SPARE_GRANTS: u64 = 1;
/// Slots that are emptied at a time.
const MOVED_AT_ONCE: usize = 16;
const WORDS: usize = GRANT_SLOTS as usize / 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotNo(pub u32);

impl SlotNo {
    pub const fn grant(self) -> usize {
        (self.0 / GRANT_SLOTS) as usize
    }
    /// Slots from the grant's start.
    pub const fn place(self) -> u32 {
        self.0 % GRANT_SLOTS
    }
}

/// An extent and its free slots.
#[derive(Debug)]
struct Ledger {
    extent: Extent,
    slots: u32,
    /// A set bit is a slot in use.
    used: [u64; WORDS],
    /// Slots that a ward may read: not written to, whether in use or not.
    pinned: [u64; WORDS],
    /// The page in each slot, without the upper bits of its number.
    owners: Box<[u32; GRANT_SLOTS as usize]>,
    live: u32,
    /// A server lets somebody else read it, and takes no writes any more.
    frozen: bool,
    /// The parent's; kept to the end.
    inherited: bool,
    /// Being emptied: nothing is given out of it.
    closing: bool,
}

impl Ledger {
    fn is_used(&self, place: u32) -> bool {
        self.used[place as usize / 64] >> (place % 64) & 1 != 0
    }
    fn is_pinned(&self, place: u32) -> bool {
        self.pinned[place as usize / 64] >> (place % 64) & 1 != 0
    }
    fn is_free(&self, place: u32) -> bool {
        !self.frozen && !self.closing && !self.is_used(place) && !self.is_pinned(place)
    }
    /// Nothing is in it, and nobody else may read what was.
    fn is_unused(&self) -> bool {
        self.live == 0 && !self.inherited && self.pinned == [0; WORDS]
    }
    /// Slots that could be given out.
    fn free(&self) -> u64 {
        if self.frozen || self.closing {
            return 0;
        }
        let taken = self
            .used
            .iter()
            .zip(&self.pinned)
            .map(|(used, pinned)| used | pinned);
        u64::from(self.slots) - taken.map(|word| u64::from(word.count_ones())).sum::<u64>()
    }
}

#[derive(Debug, Default)]
pub struct Slots {
    extents: Vec<Option<Ledger>>,
    /// Where the last run ended.
    cursor: SlotNo,
    free: u64,
    live: u64,
    /// Free slots that are kept when grants have become empty.
    spare: u64,
}

/// What became of a slot that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    Slot,
    /// It was the last of a frozen grant, which can be released now.
    Extent(ExtentId),
}

/// A step towards fewer grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// These slots are to be emptied; with the lower bits of the pages in them.
    Move(Vec<(SlotNo, u32)>),
    /// There is nowhere to write to.
    NeedsGrant,
    Done,
}

impl Slots {
    /// Without any; `spare` free slots are kept when grants have become empty.
    pub fn new(spare: u64) -> Slots {
        Slots {
            spare,
            ..Slots::default()
        }
    }

    /// Adds a grant that is ours to write to.
    pub fn add(&mut self, extent: Extent) {
        self.insert(extent, false);
    }

    fn insert(&mut self, extent: Extent, frozen: bool) -> usize {
        let slots = extent.pages.min(GRANT_SLOTS);
        let extent = Ledger {
            extent,
            slots,
            used: [0; WORDS],
            pinned: [0; WORDS],
            owners: Box::new([0; GRANT_SLOTS as usize]),
            live: 0,
            frozen,
            inherited: false,
            closing: false,
        };
        if !frozen {
            self.free += u64::from(slots);
        }
        match self.extents.iter().position(Option::is_none) {
            Some(at) => {
                self.extents[at] = Some(extent);
                at
            }
            None => {
                self.extents.push(Some(extent));
                self.extents.len() - 1
            }
        }
    }

    /// A grant of the parent, to read from, under the number it has there.
    pub fn inherit(&mut self, number: u32, extent: Extent) {
        let number = number as usize;
        while self.extents.len() <= number {
            self.extents.push(None);
        }
        let at = self.insert(extent, true);
        if let Some(extent) = &mut self.extents[at] {
            extent.inherited = true;
        }
        self.extents.swap(at, number);
    }

    /// A slot of an inherited grant holds a page.
    pub fn inherit_slot(&mut self, slot: SlotNo, page: PageNo) {
        if let Some(Some(extent)) = self.extents.get_mut(slot.grant()) {
            let place = slot.place();
            extent.used[place as usize / 64] |= 1 << (place % 64);
            extent.live += 1;
            self.live += 1;
        }
        self.set_owner(slot, page);
    }

    /// The grants with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, Extent)> {
        let numbered = self.extents.iter().enumerate();
        numbered.filter_map(|(at, extent)| Some((at as u32, extent.as_ref()?.extent)))
    }

    pub fn free_slots(&self) -> u64 {
        self.free
    }
    pub fn live_slots(&self) -> u64 {
        self.live
    }
    pub fn extents(&self) -> usize {
        self.extents.iter().flatten().count()
    }
    pub fn extent_of(&self, slot: SlotNo) -> Option<ExtentId> {
        let ledger = self.extents.get(slot.grant())?.as_ref()?;
        Some(ledger.extent.id)
    }

    /// No copy of an extent is left: forgets it if that is no loss, and says whether it is none.
    pub fn forget(&mut self, id: ExtentId) -> bool {
        let found = self
            .extents
            .iter_mut()
            .find(|entry| entry.as_ref().is_some_and(|e| e.extent.id == id));
        let Some(entry) = found else {
            return true;
        };
        if !entry.as_ref().is_some_and(Ledger::is_unused) {
            return false;
        }
        if let Some(ledger) = entry.take() {
            self.free -= ledger.free();
        }
        true
    }

    /// A run of at most `wanted` slots; `None` when all are in use.
    pub fn take_run(&mut self, wanted: u32) -> Option<(SlotNo, u32)> {
        if self.free == 0 || wanted == 0 {
            return None;
        }
        let grants = self.extents.len();
        for step in 0..=grants {
            let at = (self.cursor.grant() + step) % grants;
            let from = if step == 0 { self.cursor.place() } else { 0 };
            let Some(extent) = &mut self.extents[at] else {
                continue;
            };
            if extent.frozen || extent.closing || extent.live == extent.slots {
                continue;
            }
            let Some(first) = (from..extent.slots).find(|&place| extent.is_free(place)) else {
                continue;
            };
            let mut len = 0;
            while len < wanted && first + len < extent.slots && extent.is_free(first + len) {
                let place = first + len;
                extent.used[place as usize / 64] |= 1 << (place % 64);
                len += 1;
            }
            extent.live += len;
            self.free -= u64::from(len);
            self.live += u64::from(len);
            let slot = SlotNo(at as u32 * GRANT_SLOTS + first);
            self.cursor = SlotNo(slot.0 + len);
            if self.cursor.grant() >= grants {
                self.cursor = SlotNo(0);
            }
            return Some((slot, len));
        }
        None
    }

    /// Whose page a slot holds, for those who look from slots to pages.
    pub fn set_owner(&mut self, slot: SlotNo, page: PageNo) {
        if let Some(Some(extent)) = self.extents.get_mut(slot.grant()) {
            extent.owners[slot.place() as usize] = page.0 as u32;
        }
    }

    /// The lower bits of the page that was last put there, if the slot is in use.
    pub fn owner(&self, slot: SlotNo) -> Option<u32> {
        let extent = self.extents.get(slot.grant())?.as_ref()?;
        let place = slot.place();
        extent.is_used(place).then(|| extent.owners[place as usize])
    }

    /// Whether a slot may be written again in place.
    pub fn is_writable(&self, slot: SlotNo) -> bool {
        self.extents[slot.grant()]
            .as_ref()
            .is_some_and(|e| !e.frozen && !e.is_pinned(slot.place()))
    }

    pub fn free(&mut self, slot: SlotNo) -> Freed {
        let entry = &mut self.extents[slot.grant()];
        let extent = entry.as_mut().expect("the grant of a slot in use");
        let place = slot.place();
        assert!(extent.is_used(place), "{slot:?} freed twice");
        extent.used[place as usize / 64] &= !(1 << (place % 64));
        extent.live -= 1;
        self.live -= 1;
        if !extent.frozen && !extent.closing {
            self.free += u64::from(!extent.is_pinned(place));
            return Freed::Slot;
        }
        let kept = extent.inherited || extent.pinned != [0; WORDS];
        if extent.live > 0 || kept {
            return Freed::Slot;
        }
        let id = extent.extent.id;
        *entry = None;
        Freed::Extent(id)
    }

    /// A ward may read the slots that are in use now: they are not written to until it is gone.
    pub fn pin(&mut self) {
        for extent in self.extents.iter_mut().flatten() {
            for (pinned, used) in extent.pinned.iter_mut().zip(&extent.used) {
                *pinned |= used;
            }
        }
    }

    /// There are fewer wards: only these slots are read by others.
    pub fn pin_only(&mut self, slots: impl Iterator<Item = SlotNo>) {
        for extent in self.extents.iter_mut().flatten() {
            extent.pinned = [0; WORDS];
        }
        for slot in slots {
            if let Some(Some(extent)) = self.extents.get_mut(slot.grant()) {
                extent.pinned[slot.place() as usize / 64] |= 1 << (slot.place() % 64);
            }
        }
        self.free = self.extents.iter().flatten().map(Ledger::free).sum();
        // What was written meanwhile lies behind; let what comes fill the gaps.
        self.cursor = SlotNo(0);
    }

    /// Nothing is written to the grants of now any more: somebody else reads them, for good.
    pub fn freeze(&mut self) {
        for extent in self.extents.iter_mut().flatten() {
            self.free -= extent.free();
            extent.frozen = true;
        }
    }

    /// Whether what is far lies in more grants than it would fill, or in more memory than it and a grant
    /// ahead of need take. Those that hold nothing do not count: nothing is to be moved for them.
    pub fn is_scattered(&self) -> bool {
        let (mut number, mut slots, mut live) = (0, 0, 0);
        let counts = |e: &&Ledger| !e.inherited && e.live > 0;
        for extent in self.extents.iter().flatten().filter(counts) {
            number += 1;
            slots += u64::from(extent.slots);
            live += u64::from(extent.live);
        }
        let grant = u64::from(GRANT_SLOTS);
        number > live.div_ceil(grant) + SPARE_GRANTS || slots > live + self.spare + grant
    }

    /// Whether a grant is being emptied.
    pub fn is_closing(&self) -> bool {
        let mut all = self.extents.iter().flatten();
        all.any(|extent| extent.closing)
    }
    /// The next step towards fewer grants: some slots of the one that is to be emptied next. Those come
    /// first of which nothing else can be made: the frozen, others may go on reading there. Of those that
    /// can be written to, the one with the fewest, if the rest have room for them.
    pub fn poll_move(&mut self) -> Step {
        let is_open = |e: &&Ledger| !e.inherited && e.pinned == [0; WORDS] && e.live > 0;
        let numbered = self.extents.iter().enumerate();
        let open = numbered.filter_map(|(at, e)| Some((at, e.as_ref().filter(is_open)?)));
        let Some((at, extent)) = open.min_by_key(|(_, e)| (!e.closing, !e.frozen, e.live)) else {
            return Step::Done;
        };
        if self.free < extent.free() + u64::from(extent.live) + self.spare {
            return match extent.frozen {
                true => Step::NeedsGrant,
                false => Step::Done,
            };
        }
        let slot = |place: u32| {
            let slot = SlotNo(at as u32 * GRANT_SLOTS + place);
            (slot, extent.owners[place as usize])
        };
        let used = (0..extent.slots).filter(|&place| extent.is_used(place));
        let slots = used.take(MOVED_AT_ONCE).map(slot).collect();
        self.free -= extent.free();
        if let Some(extent) = &mut self.extents[at] {
            extent.closing = true;
        }
        Step::Move(slots)
    }
    /// Grants of which no slot is in use, taken out one by one; of those that can be written to, as
    /// many as leave those to spare.
    pub fn take_empty(&mut self) -> Option<ExtentId> {
        let spare = self.free.saturating_sub(self.spare);
        let is_empty = |e: &Ledger| e.is_unused() && e.free() <= spare;
        let entry = self
            .extents
            .iter_mut()
            .find(|e| e.as_ref().is_some_and(is_empty));
        let extent = entry?.take()?;
        self.free -= extent.free();
        Some(extent.extent.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn extent(id: u32, pages: u32) -> Extent {
        Extent {
            id: ExtentId(id),
            pages,
        }
    }

    /// Follows the steps; how many grants were asked for.
    fn compact(slots: &mut Slots, next: &mut u32) -> u32 {
        let mut asked = 0;
        while slots.is_scattered() || slots.is_closing() {
            match slots.poll_move() {
                Step::Done => break,
                Step::NeedsGrant => {
                    *next += 1;
                    asked += 1;
                    assert!(asked < 1000, "no end: {slots:?}");
                    slots.add(extent(*next, GRANT_SLOTS));
                }
                Step::Move(some) => {
                    assert!(!some.is_empty());
                    for (slot, _) in some {
                        slots.take_run(1).expect("there is room");
                        slots.free(slot);
                    }
                }
            }
        }
        while slots.take_empty().is_some() {}
        asked
    }

    #[test]
    fn scattered_slots_move_together_with_few_grants_more() {
        for kept in [1, 3, 700] {
            let (mut slots, mut next) = (Slots::new(4), 0);
            let mut live = 0;
            // Each round leaves a grant that nothing can be written to, with a few slots in use.
            for round in 0..40 {
                next += 1;
                slots.add(extent(next, if round % 3 == 0 { 4096 } else { 512 }));
                let (_, len) = slots.take_run(kept).unwrap();
                live += len;
                slots.freeze();
            }
            let asked = compact(&mut slots, &mut next);
            assert_eq!(slots.live_slots(), u64::from(live));
            assert!(!slots.is_scattered(), "{slots:?}");
            let needed = live.div_ceil(GRANT_SLOTS);
            assert!(asked <= needed + 1, "{asked} grants for {live} slots");
            assert!(slots.extents() as u32 <= needed + 1);
        }
    }

    #[test]
    fn an_empty_grant_is_no_reason_to_move_anything() {
        let mut slots = Slots::new(4);
        for id in 1..=3 {
            slots.add(extent(id, GRANT_SLOTS));
        }
        for wanted in [GRANT_SLOTS, GRANT_SLOTS / 2] {
            assert_eq!(slots.take_run(wanted).unwrap().1, wanted);
        }
        assert_eq!(compact(&mut slots, &mut 4), 0);
        assert_eq!(slots.extents(), 2);
    }

    proptest! {
        #[test]
        fn a_slot_belongs_to_one(steps in prop::collection::vec((0u8..10, 1u32..40), 1..300)) {
            let mut slots = Slots::new(4);
            let mut model = BTreeSet::new();
            let mut frozen = BTreeSet::new();
            let mut pinned: BTreeSet<SlotNo> = BTreeSet::new();
            let mut next = 0;
            for (kind, n) in steps {
                match kind {
                    0 => {
                        next += 1;
                        slots.add(extent(next, n * 8));
                    }
                    1 if n >= 30 => {
                        pinned.extend(model.iter().copied());
                        slots.pin();
                    }
                    1 if n >= 20 => {
                        pinned.clear();
                        slots.pin_only(std::iter::empty());
                    }
                    1 if n < 8 => {
                        frozen.extend(model.iter().copied());
                        slots.freeze();
                        prop_assert_eq!(slots.free_slots(), 0);
                    }
                    2..=5 => {
                        let slot = model.iter().copied().nth(n as usize % model.len().max(1));
                        if let Some(slot) = slot {
                            let writable = !frozen.contains(&slot) && !pinned.contains(&slot);
                            prop_assert_eq!(slots.is_writable(slot), writable);
                            model.remove(&slot);
                            frozen.remove(&slot);
                            slots.free(slot);
                        }
                    }
                    _ => {
                        if let Some((first, len)) = slots.take_run(n) {
                            prop_assert!(len >= 1 && len <= n);
                            for slot in (first.0..first.0 + len).map(SlotNo) {
                                prop_assert!(model.insert(slot), "{:?} given out twice", slot);
                                prop_assert!(!pinned.contains(&slot), "{:?} is pinned", slot);
                                prop_assert!(slots.extent_of(slot).is_some());
                            }
                        } else {
                            prop_assert_eq!(slots.free_slots(), 0);
                        }
                    }
                }
                prop_assert_eq!(slots.live_slots(), model.len() as u64);
            }
        }
    }
}
