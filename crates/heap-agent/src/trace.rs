//! Tracing: which objects can be reached.
//!
//! A mark is one bit, of the granule at which an object starts (direct references) or of its entry
//! (indirect ones). What belongs to another server goes into a *ghost buffer* for that server (Mako
//! §5.2). The stack is bounded: when it is full, a marked object is left to a later walk over the
//! marks of its region, so memory stays bounded whatever the shape of the graph.
//!
//! Invariant: when the stack is empty and no region waits to be walked again, everything that can be
//! reached from what was visited, through regions of this server, is marked, and the rest is in
//! ghost buffers. Words that name no object (a page that is being written meanwhile) are skipped
//! and counted: under SATB what they hid is reported by the mutator.

use crate::bitmap::Bitmap;
use crate::layout::Mode;
use crate::words::{Gone, View, Words};
use std::collections::BTreeSet;

/// The most references that wait to be traced; more are found again by a walk over the marks.
pub const STACK_MAX: usize = 1 << 16;

/// Marks by region (or tablet), and how many bytes they stand for.
#[derive(Debug, Default)]
pub struct Marks {
    maps: Vec<Option<Bitmap>>,
    live: Vec<u64>,
    bits: u32,
}

impl Marks {
    pub fn new(units: u32, bits: u32) -> Marks {
        Marks {
            maps: vec![None; units as usize],
            live: vec![0; units as usize],
            bits,
        }
    }
    fn set(&mut self, unit: u32, index: u32) -> bool {
        self.maps[unit as usize]
            .get_or_insert_with(|| Bitmap::new(self.bits))
            .set(index)
    }
    pub fn map(&self, unit: u32) -> Option<&Bitmap> {
        self.maps[unit as usize].as_ref()
    }
    pub fn live_bytes(&self, unit: u32) -> u64 {
        self.live[unit as usize]
    }
    /// Forgets the marks of one region.
    pub fn forget(&mut self, unit: u32) {
        self.maps[unit as usize] = None;
        self.live[unit as usize] = 0;
    }
    pub fn memory_bytes(&self) -> u64 {
        self.maps.iter().flatten().map(Bitmap::bytes).sum::<u64>() + self.live.len() as u64 * 16
    }
}

/// A trace under way.
#[derive(Debug)]
pub struct Tracer {
    pub marks: Marks,
    stack: Vec<u64>,
    again: BTreeSet<u32>,
    /// References that belong to other servers, by server.
    pub ghosts: Vec<Vec<u64>>,
    /// References for others that may wait here; beyond, tracing stops until there is room.
    pub ghosts_max: usize,
    ghosts_held: usize,
    /// The object at which tracing stopped: its references are looked at again.
    stopped_at: Option<u64>,
    is_full: bool,
    is_stuck: bool,
    me: u32,
    region_of_tablet: Vec<u32>,
    /// Words that named no object.
    pub strange: u64,
    pub traced_objects: u64,
}

impl Tracer {
    /// `region_of_tablet` is empty with direct references; `me` is this server.
    pub fn new<W: Words + ?Sized>(
        view: &View<'_, W>,
        me: u32,
        servers: u32,
        region_of_tablet: Vec<u32>,
    ) -> Tracer {
        let geometry = view.geometry;
        Tracer {
            marks: Marks::new(geometry.regions, geometry.granules()),
            stack: Vec::new(),
            again: BTreeSet::new(),
            ghosts: vec![Vec::new(); servers as usize],
            ghosts_max: usize::MAX,
            ghosts_held: 0,
            stopped_at: None,
            is_full: false,
            is_stuck: false,
            me,
            region_of_tablet,
            strange: 0,
            traced_objects: 0,
        }
    }

    /// A reference was found.
    pub fn visit<W: Words + ?Sized>(&mut self, view: &View<'_, W>, word: u64) {
        let Some((unit, index)) = view.geometry.split(word) else {
            self.strange += 1;
            return;
        };
        let owner = view.geometry.server_of(unit);
        if owner != self.me {
            match self.ghosts.get_mut(owner as usize) {
                Some(ghosts) => {
                    ghosts.push(word);
                    self.ghosts_held += 1;
                }
                None => self.strange += 1,
            }
            return;
        }
        if self.marks.set(unit, index) {
            if self.stack.len() < STACK_MAX {
                self.stack.push(word);
            } else {
                self.again.insert(unit);
            }
        }
    }

    pub fn is_idle(&self) -> bool {
        self.stack.is_empty() && self.again.is_empty() && self.stopped_at.is_none()
    }

    /// Whether the trace stopped because too many references wait for others. It goes on once they
    /// were taken.
    pub fn is_full(&self) -> bool {
        self.is_full
    }
    /// Whether one object refers to more than may wait: `ghosts_max` is too small for it.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// The references that wait for a server.
    pub fn take_ghosts(&mut self, server: usize) -> Vec<u64> {
        let taken = std::mem::take(&mut self.ghosts[server]);
        self.ghosts_held -= taken.len();
        self.is_full = false;
        taken
    }

    /// Traces up to `budget` objects; whether there is more to do.
    pub fn step<W: Words + ?Sized>(
        &mut self,
        view: &View<'_, W>,
        budget: usize,
    ) -> Result<bool, Gone> {
        for _ in 0..budget {
            if self.is_full {
                return Ok(true);
            }
            if let Some(word) = self.stopped_at.take() {
                self.trace_one(view, word, false)?;
                self.is_stuck = self.is_full;
                continue;
            }
            let Some(word) = self.stack.pop() else {
                match self.again.pop_first() {
                    Some(unit) => self.walk_again(view, unit)?,
                    None => return Ok(false),
                }
                continue;
            };
            self.trace_one(view, word, true)?;
        }
        Ok(!self.is_idle())
    }

    /// Traces until nothing is left to do here.
    pub fn finish<W: Words + ?Sized>(&mut self, view: &View<'_, W>) -> Result<(), Gone> {
        while self.step(view, 4096)? {}
        Ok(())
    }

    fn trace_one<W: Words + ?Sized>(
        &mut self,
        view: &View<'_, W>,
        word: u64,
        first_time: bool,
    ) -> Result<(), Gone> {
        let Some(at) = view.place(word, &self.region_of_tablet)? else {
            self.strange += 1;
            return Ok(());
        };
        let Some((header, size)) = view.object(at)? else {
            self.strange += 1;
            return Ok(());
        };
        if view.geometry.mode == Mode::Indirect && header.entry() != word as u32 {
            // The entry was free when the trace began, or its page has not arrived: a fresh object.
            self.strange += 1;
            return Ok(());
        }
        if first_time {
            self.traced_objects += 1;
            let unit = view.geometry.split(word).map_or(0, |(unit, _)| unit);
            self.marks.live[unit as usize] += size;
        }
        view.each_ref::<Gone>(at, header, |_, target| {
            // The rest of this object is looked at again, from its start: to tell others twice of a
            // reference does no harm.
            self.is_full |= self.ghosts_held >= self.ghosts_max;
            if !self.is_full {
                self.visit(view, target);
            }
            Ok(())
        })?;
        if self.is_full {
            self.stopped_at = Some(word);
        }
        Ok(())
    }

    /// Looks at all marked objects of a region again, because some were not put on the stack.
    fn walk_again<W: Words + ?Sized>(&mut self, view: &View<'_, W>, unit: u32) -> Result<(), Gone> {
        let Some(marked) = self.marks.map(unit).cloned() else {
            return Ok(());
        };
        let before = self.marks.live[unit as usize];
        let mut live = 0;
        for index in marked.iter() {
            if self.is_full {
                self.again.insert(unit);
                return Ok(());
            }
            let word = match view.geometry.mode {
                Mode::Direct => view.geometry.region_start(unit) + u64::from(index) * 16,
                Mode::Indirect => u64::from(unit) << 32 | u64::from(index),
            };
            if let Some(at) = view.place(word, &self.region_of_tablet)?
                && let Some((_, size)) = view.object(at)?
            {
                live += size;
            }
            self.trace_one(view, word, false)?;
        }
        self.marks.live[unit as usize] = live.max(before);
        Ok(())
    }

    pub fn memory_bytes(&self) -> u64 {
        let ghosts: usize = self.ghosts.iter().map(Vec::capacity).sum();
        self.marks.memory_bytes() + 8 * (self.stack.capacity() + ghosts) as u64
    }
}

/// Live bytes and objects of one region, as far as they can be reached from `roots` without leaving
/// it (Semeru's region tracing). Words that lead to no object are passed over: the region may be in
/// use.
pub fn trace_region<W: Words + ?Sized>(
    view: &View<'_, W>,
    region: u32,
    roots: impl Iterator<Item = u64>,
) -> Result<(u64, u64), Gone> {
    let mut marks = Bitmap::new(view.geometry.granules());
    let mut stack: Vec<u64> = Vec::new();
    let (mut live, mut objects) = (0, 0);
    let mut visit = |word: u64, stack: &mut Vec<u64>| {
        if let Some((there, granule)) = view.geometry.split(word)
            && there == region
            && marks.set(granule)
        {
            stack.push(word);
        }
    };
    for root in roots {
        visit(root, &mut stack);
        while let Some(at) = stack.pop() {
            if let Some((header, size)) = view.object(at)? {
                live += size;
                objects += 1;
                view.each_ref::<Gone>(at, header, |_, word| {
                    visit(word, &mut stack);
                    Ok(())
                })?;
            }
        }
    }
    Ok((live, objects))
}
