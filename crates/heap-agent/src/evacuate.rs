//! Evacuation: live objects of some regions are copied into others, in the order of a traversal.
//!
//! The copy *is* the trace: an object is copied when a reference to it is first forwarded, and what
//! it refers to comes next (depth first) or after its siblings (breadth first), so that neighbours
//! in the graph become neighbours in memory (Semeru §4.2). Regions that are linked by references are
//! coalesced by the same token. The old object's header says where the new one is.
//!
//! Invariant: between calls of [`Evacuator::drain`] every copied object is either on the list or has
//! all its references into the evacuated regions rewritten.

use crate::bitmap::Bitmap;
use crate::layout::{Geometry, Header, REGION_HEAD};
use crate::room::{NoRoom, Room, STEP, hold};
use crate::words::{Gone, View, Words};
use std::collections::{HashSet, VecDeque};

/// In which order objects are laid down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Connected objects lie together.
    #[default]
    Depth,
    /// Objects of one level, such as the elements of an array, lie together.
    Breadth,
}

/// Why an evacuation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvacuateError {
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error("place {0:#x} of the heap holds no object")]
    NoObject(u64),
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// A region that objects are copied into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToSpace {
    pub region: u32,
    /// Where the next object goes, from the start of the region.
    pub bump: u64,
}

#[derive(Debug)]
pub struct Evacuator<'r> {
    room: &'r mut dyn Room,
    /// Regions that are emptied.
    from: Bitmap,
    to: Vec<ToSpace>,
    filling: usize,
    list: VecDeque<u64>,
    order: Order,
    pub copied_bytes: u64,
    pub copied_objects: u64,
    /// Regions with objects for which there was no room, and these objects: they stay.
    kept: Bitmap,
    kept_objects: HashSet<u64>,
    /// Old place and new place of everything that was copied.
    pub forwards: Vec<(u64, u64)>,
}

impl<'r> Evacuator<'r> {
    pub fn new(
        geometry: &Geometry,
        from: &[u32],
        to: Vec<ToSpace>,
        order: Order,
        room: &'r mut dyn Room,
    ) -> Evacuator<'r> {
        let mut set = Bitmap::new(geometry.regions);
        for region in from {
            set.set(*region);
        }
        Evacuator {
            room,
            kept: Bitmap::new(geometry.regions),
            kept_objects: HashSet::new(),
            from: set,
            to,
            filling: 0,
            list: VecDeque::new(),
            order,
            copied_bytes: 0,
            copied_objects: 0,
            forwards: Vec::new(),
        }
    }

    pub fn is_from(&self, region: u32) -> bool {
        self.from.get(region)
    }

    /// Whether objects had to stay in a region that was to be emptied.
    pub fn is_kept(&self, region: u32) -> bool {
        self.kept.get(region)
    }

    /// Gives moved objects of regions that stay their headers back, so that these can be walked.
    pub fn restore_kept<W: Words + ?Sized>(&self, view: &View<'_, W>) -> Result<(), Gone> {
        for (old, new) in &self.forwards {
            if self.kept.get(view.geometry.region_of(*old)) {
                view.words.store(*old, view.words.load(*new)?)?;
            }
        }
        Ok(())
    }

    /// The regions copied into, and how full they are.
    pub fn to_spaces(&self) -> &[ToSpace] {
        &self.to
    }

    /// Memory that the evacuation itself takes, and `more` bytes of its caller's.
    pub fn hold(&mut self, more: u64) -> Result<(), NoRoom> {
        let kept = 24 * self.kept_objects.capacity();
        let lists = 16 * self.forwards.capacity() + 8 * self.list.capacity();
        hold(self.room, (kept + lists) as u64 + more)
    }

    /// The new place of a reference; the object is copied if it has not been yet.
    pub fn forward<W: Words + ?Sized>(
        &mut self,
        view: &View<'_, W>,
        word: u64,
    ) -> Result<u64, EvacuateError> {
        let Some((region, _)) = view.geometry.split(word) else {
            return Ok(word);
        };
        if !self.from.get(region) {
            return Ok(word);
        }
        let header = Header(view.words.load(word)?);
        if let Some(new) = header.moved() {
            return Ok(new);
        }
        let (_, size) = view.object(word)?.ok_or(EvacuateError::NoObject(word))?;
        if (self.forwards.len() + self.kept_objects.len()).is_multiple_of(STEP) {
            // A list that is full takes twice as much next.
            self.hold(16 * self.forwards.len() as u64)?;
        }
        let Some(new) = self.room(view.geometry, size) else {
            // It stays; what it refers to is still looked at, once.
            self.kept.set(region);
            if self.kept_objects.insert(word) {
                self.list.push_back(word);
            }
            return Ok(word);
        };
        view.words.copy(word, new, size)?;
        view.words.store(word, Header::moved_to(new).0)?;
        self.copied_bytes += size;
        self.copied_objects += 1;
        self.forwards.push((word, new));
        self.list.push_back(new);
        Ok(new)
    }

    fn room(&mut self, geometry: &Geometry, size: u64) -> Option<u64> {
        while let Some(to) = self.to.get_mut(self.filling) {
            if to.bump.saturating_add(size) <= geometry.region_bytes() {
                let at = geometry.region_start(to.region) + to.bump;
                to.bump += size;
                return Some(at);
            }
            self.filling += 1;
        }
        None
    }

    /// Rewrites the references of copied objects, copying what they lead to, until all is done.
    pub fn drain<W: Words + ?Sized>(&mut self, view: &View<'_, W>) -> Result<(), EvacuateError> {
        loop {
            let next = match self.order {
                Order::Depth => self.list.pop_back(),
                Order::Breadth => self.list.pop_front(),
            };
            let Some(at) = next else { return Ok(()) };
            self.fix(view, at)?;
        }
    }

    /// Forwards all references of one object.
    pub fn fix<W: Words + ?Sized>(
        &mut self,
        view: &View<'_, W>,
        at: u64,
    ) -> Result<(), EvacuateError> {
        let (header, _) = view.object(at)?.ok_or(EvacuateError::NoObject(at))?;
        view.each_ref(at, header, |slot, word| {
            let new = self.forward(view, word)?;
            if new != word {
                view.words.store(slot, new)?;
            }
            Ok::<(), EvacuateError>(())
        })
    }
}

/// Moves the marked objects of one region into another and sets their entries (Mako's evacuation):
/// entries do not move, so no reference has to be rewritten. Returns the new region's bump.
pub fn evacuate_tablet<W: Words + ?Sized>(
    view: &View<'_, W>,
    tablet: u32,
    (from, to): (u32, u32),
    live: &Bitmap,
) -> Result<u64, EvacuateError> {
    let (from, to) = (
        view.geometry.region_start(from),
        view.geometry.region_start(to),
    );
    let mut bump = REGION_HEAD;
    for entry in live.iter() {
        let at = from + u64::from(view.entry(tablet, entry)?) * 16;
        let (header, size) = view.object(at)?.ok_or(EvacuateError::NoObject(at))?;
        if header.entry() != entry || bump + size > view.geometry.region_bytes() {
            return Err(EvacuateError::NoObject(at));
        }
        view.words.copy(at, to + bump, size)?;
        view.set_entry(tablet, entry, (bump / 16) as u32)?;
        bump += size;
    }
    Ok(bump)
}
