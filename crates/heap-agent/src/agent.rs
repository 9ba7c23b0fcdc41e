//! An agent: the state of one heap at one server, and what its thread does with it.
//!
//! Everything here runs over [`Words`], so it can be tested without a server. The host (in
//! `muninn-server`) gives it commands, carries ghost buffers to other servers, and bounds what it
//! may use. Invariant: metadata is two bitmaps of a bit for each granule at most, 1.6 % of the
//! regions served, and a bounded stack.

use crate::bitmap::Bitmap;
use crate::bytes::{Reader, Short, Writer};
use crate::command::Task;
use crate::evacuate::{EvacuateError, Evacuator, Order, ToSpace, evacuate_tablet};
use crate::layout::{Geometry, Header, TypeDescriptor, Types};
use crate::room::{NoRoom, Room, STEP, hold, settle};
use crate::trace::{STACK_MAX, Tracer, trace_region};
use crate::words::{Gone, View, Words};
use std::collections::{HashMap, VecDeque};

/// A view of an agent's heap that borrows no more than it needs.
macro_rules! view {
    ($agent:ident) => {
        View {
            geometry: &$agent.geometry,
            types: &$agent.types,
            words: &$agent.words,
        }
    };
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Short(#[from] Short),
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error(transparent)]
    Evacuate(#[from] EvacuateError),
    #[error("region {0} is not one of this server")]
    NotHere(u32),
    #[error("no trace runs")]
    NoTrace,
    #[error("too many types")]
    TooManyTypes,
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// Version of a region's tag, and whether pages are on their way into it (Semeru §4.2).
fn tag(words: &impl Words, geometry: &Geometry, region: u32) -> Result<(bool, u32), Gone> {
    let word = words.load(geometry.region_start(region))?;
    Ok((word as u32 != 0, (word >> 32) as u32))
}

/// References for other servers that may wait while a trace goes on.
const GHOSTS_MAX: usize = 1 << 17;

#[derive(Debug)]
pub struct Agent<W> {
    geometry: Geometry,
    pub words: W,
    types: Types,
    me: u32,
    servers: u32,
    region_of_tablet: Vec<u32>,
    pub trace: Option<Tracer>,
    /// Semeru: objects of each region that others refer to.
    targets: Vec<Option<Bitmap>>,
    /// Semeru: regions that each region refers to.
    links: Vec<Option<Bitmap>>,
    /// Used bytes of regions in use.
    bumps: HashMap<u32, u64>,
    /// Semeru: live bytes of regions traced since the last pause.
    estimates: HashMap<u32, u64>,
    schedule: VecDeque<u32>,
    roots: Vec<u64>,
    pub discarded_traces: u64,
    pub moved_bytes: u64,
    pub traced_objects: u64,
    peak_bytes: u64,
    /// What the descriptions of types take, from above.
    types_bytes: u64,
}

impl<W: Words> Agent<W> {
    pub fn new(geometry: Geometry, words: W, me: u32, servers: u32) -> Agent<W> {
        let regions = geometry.regions as usize;
        Agent {
            geometry,
            words,
            types: Types::default(),
            me,
            servers,
            region_of_tablet: Vec::new(),
            trace: None,
            targets: vec![None; regions],
            links: vec![None; regions],
            bumps: HashMap::new(),
            estimates: HashMap::new(),
            schedule: VecDeque::new(),
            roots: Vec::new(),
            discarded_traces: 0,
            moved_bytes: 0,
            traced_objects: 0,
            peak_bytes: 0,
            types_bytes: 0,
        }
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The number of this server.
    pub fn me(&self) -> u32 {
        self.me
    }

    fn mine(&self, region: u32) -> Result<u32, AgentError> {
        let mine = region < self.geometry.regions && self.geometry.server_of(region) == self.me;
        if mine {
            Ok(region)
        } else {
            Err(AgentError::NotHere(region))
        }
    }

    /// The most that an agent of this shape holds between tasks: bitmaps of its own regions, a few
    /// words for each region of the heap, and the stack.
    pub fn memory_max(geometry: &Geometry, me: u32) -> u64 {
        let (all, own) = (u64::from(geometry.regions), geometry.own_regions(me));
        let own = own.len() as u64;
        let bitmap = u64::from(geometry.granules()) / 8 + 64;
        let links = all / 8 + 64;
        // Targets, marks, and a copy of one region's; links twice while they are worked out anew.
        let maps = own * (2 * bitmap + links) + bitmap + 4 * links;
        maps + all * 96 + own * 160 + STACK_MAX as u64 * 16
    }

    /// Memory of the agent itself, now and at its most.
    pub fn memory_bytes(&mut self) -> (u64, u64) {
        let maps = self.targets.iter().chain(&self.links).flatten();
        let maps: u64 = maps.map(Bitmap::bytes).sum();
        let slots = (self.targets.len() + self.links.len()) as u64 * 24;
        let trace = self.trace.as_ref().map_or(0, Tracer::memory_bytes);
        let lists = 8 * self.roots.capacity() + 4 * self.schedule.capacity();
        let now = maps + slots + trace + self.types_bytes + lists as u64;
        self.peak_bytes = self.peak_bytes.max(now);
        (now, self.peak_bytes)
    }

    /// Does a task; its result. What it holds meanwhile, beside what the agent keeps, is asked for.
    pub fn run(
        &mut self,
        task: Task,
        input: &[u8],
        room: &mut dyn Room,
    ) -> Result<Vec<u8>, AgentError> {
        // What is read from the input is a small multiple of it.
        hold(room, 4 * input.len() as u64)?;
        let mut r = Reader::new(input);
        let mut out = Writer::default();
        match task {
            Task::Types => {
                self.types_bytes += input.len() as u64;
                while !r.is_empty() {
                    let descriptor = TypeDescriptor::decode(&mut r)?;
                    self.types_bytes += 64;
                    self.types.add(descriptor).ok_or(AgentError::TooManyTypes)?;
                }
            }
            Task::Tablets => {
                let count = self.geometry.regions;
                let all = (0..count).map(|_| r.u32()).collect::<Result<_, _>>();
                self.region_of_tablet = all?;
            }
            Task::TraceStart => {
                self.schedule.clear();
                let view = view!(self);
                let mut trace =
                    Tracer::new(&view, self.me, self.servers, self.region_of_tablet.clone());
                for word in r.words()? {
                    trace.visit(&view, word);
                }
                trace.ghosts_max = GHOSTS_MAX;
                self.trace = Some(trace);
            }
            Task::TraceEnd => {
                let trace = self.trace.as_ref().ok_or(AgentError::NoTrace)?;
                self.traced_objects += trace.traced_objects;
                out.u64(trace.strange);
                for unit in 0..self.geometry.regions {
                    if self.geometry.server_of(unit) == self.me {
                        out.u32(unit);
                        out.u64(trace.marks.live_bytes(unit));
                    }
                }
            }
            Task::Marks => {
                let trace = self.trace.as_ref().ok_or(AgentError::NoTrace)?;
                while !r.is_empty() {
                    let unit = self.mine(r.u32()?)?;
                    hold(
                        room,
                        2 * out.0.len() as u64 + u64::from(self.geometry.granules()),
                    )?;
                    match trace.marks.map(unit) {
                        Some(map) => out.words(map.words()),
                        None => out.words(&[]),
                    }
                }
            }
            Task::EvacuateTablet => {
                let (tablet, from, to) = (r.u32()?, r.u32()?, r.u32()?);
                let live = Bitmap::from_words(r.words()?);
                for unit in [tablet, from, to] {
                    self.mine(unit)?;
                }
                if live.words().len() * 64 != self.geometry.granules() as usize {
                    return Err(Short.into());
                }
                let bump = evacuate_tablet(&view!(self), tablet, (from, to), &live)?;
                self.moved_bytes += bump;
                out.u64(bump);
            }
            Task::Changes => self.changes(&mut r)?,
            Task::Schedule => {
                self.estimates.clear();
                let count = r.u32()?;
                self.schedule.clear();
                for _ in 0..count {
                    let region = self.mine(r.u32()?)?;
                    self.schedule.push_back(region);
                }
                self.roots = r.words()?;
            }
            Task::Estimates => {
                self.schedule.clear();
                while !r.is_empty() {
                    let region = self.mine(r.u32()?)?;
                    if !self.estimates.contains_key(&region) {
                        // A stack of a word for each granule at most.
                        hold(room, self.geometry.region_bytes())?;
                        self.estimate(region)?;
                    }
                    out.u64(self.estimates[&region]);
                }
            }
            Task::Evacuate => self.evacuate(&mut r, &mut out, room)?,
            Task::Update => self.update(&mut r, &mut out, room)?,
            Task::Rebuild => self.rebuild(&mut out, room)?,
        }
        self.memory_bytes();
        Ok(out.0)
    }

    /// Traces the next region of the schedule, if there is one (Semeru's MSCT). A trace that raced
    /// with pages coming in is discarded, and tried again later.
    pub fn trace_next_region(&mut self) -> Result<bool, Gone> {
        let Some(region) = self.schedule.pop_front() else {
            return Ok(false);
        };
        let (dirty, version) = tag(&self.words, &self.geometry, region)?;
        if dirty {
            self.discarded_traces += 1;
            return Ok(true);
        }
        let traced = self.estimate(region);
        let after = tag(&self.words, &self.geometry, region)?;
        if traced.is_err() || after != (false, version) {
            self.estimates.remove(&region);
            self.discarded_traces += 1;
        }
        Ok(true)
    }

    fn estimate(&mut self, region: u32) -> Result<(), Gone> {
        let view = view!(self);
        let targets = self.targets[region as usize].iter().flat_map(Bitmap::iter);
        let start = self.geometry.region_start(region);
        let targets = targets.map(|granule| start + u64::from(granule) * 16);
        let roots = self.roots.iter().copied();
        let roots = roots.filter(|word| self.geometry.region_of(*word) == region);
        let (live, objects) = trace_region(&view, region, targets.chain(roots))?;
        self.traced_objects += objects;
        self.estimates.insert(region, live);
        Ok(())
    }

    fn add_target(&mut self, word: u64) {
        if let Some((region, granule)) = self.geometry.split(word)
            && self.geometry.server_of(region) == self.me
        {
            let bits = self.geometry.granules();
            self.targets[region as usize]
                .get_or_insert_with(|| Bitmap::new(bits))
                .set(granule);
        }
    }

    fn add_link(&mut self, from: u32, to: u32) {
        let regions = self.geometry.regions;
        self.links[from as usize]
            .get_or_insert_with(|| Bitmap::new(regions))
            .set(to);
    }

    fn changes(&mut self, r: &mut Reader<'_>) -> Result<(), AgentError> {
        for _ in 0..r.u32()? {
            let region = self.mine(r.u32()?)?;
            self.forget(region);
        }
        self.bumps.clear();
        for _ in 0..r.u32()? {
            let (region, bump) = (r.u32()?, r.u64()?);
            self.bumps.insert(self.mine(region)?, bump);
        }
        for _ in 0..r.u32()? {
            let (from, to) = (r.u32()?, r.u32()?);
            if to < self.geometry.regions {
                self.add_link(self.mine(from)?, to);
            }
        }
        for word in r.words()? {
            self.add_target(word);
        }
        self.roots = r.words()?;
        Ok(())
    }

    fn forget(&mut self, region: u32) {
        self.targets[region as usize] = None;
        self.links[region as usize] = None;
        self.estimates.remove(&region);
        self.bumps.remove(&region);
        if let Some(trace) = &mut self.trace {
            trace.marks.forget(region);
        }
    }

    /// Empties regions (Semeru's task 2). Input: order, from, to, regions emptied anywhere, roots.
    /// Output: to-spaces, regions kept, forwards, targets at other servers.
    fn evacuate(
        &mut self,
        r: &mut Reader<'_>,
        out: &mut Writer,
        room: &mut dyn Room,
    ) -> Result<(), AgentError> {
        let order = if r.u8()? == 0 {
            Order::Depth
        } else {
            Order::Breadth
        };
        let mut from = Vec::new();
        for _ in 0..r.u32()? {
            from.push(self.mine(r.u32()?)?);
        }
        let mut to = Vec::new();
        for _ in 0..r.u32()? {
            let (region, bump) = (self.mine(r.u32()?)?, r.u64()?);
            to.push(ToSpace { region, bump });
        }
        let mut emptied = Bitmap::new(self.geometry.regions);
        for _ in 0..r.u32()? {
            let region = r.u32()?;
            if region >= self.geometry.regions {
                return Err(AgentError::NotHere(region));
            }
            emptied.set(region);
        }
        let roots = r.words()?;
        let view = view!(self);
        let mut evacuator = Evacuator::new(&self.geometry, &from, to, order, room);
        let mut new_targets = Vec::new();
        for word in roots {
            evacuator.forward(&view, word)?;
            evacuator.drain(&view)?;
        }
        for region in &from {
            let start = self.geometry.region_start(*region);
            let map = self.targets[*region as usize].take();
            for granule in map.iter().flat_map(Bitmap::iter) {
                let old = start + u64::from(granule) * 16;
                new_targets.push(evacuator.forward(&view, old)?);
                evacuator.drain(&view)?;
            }
        }
        // What was copied may refer to other regions than where it was did.
        let mut foreign = Vec::new();
        let mut links = Vec::new();
        let (mut settle_links, mut settle_foreign, mut settle_targets) = (0, 0, 0);
        for index in 0..evacuator.forwards.len() {
            let at = &evacuator.forwards[index].1;
            let here = self.geometry.region_of(*at);
            let Some((header, _)) = view.object(*at)? else {
                return Err(EvacuateError::NoObject(*at).into());
            };
            view.each_ref::<Gone>(*at, header, |_, word| {
                let there = self.geometry.region_of(word);
                if there != here && there < self.geometry.regions {
                    links.push((here, there));
                    if self.geometry.server_of(there) == self.me {
                        new_targets.push(word);
                    } else if !emptied.get(there) {
                        foreign.push(word);
                    }
                    settle(&mut links, &mut settle_links);
                    settle(&mut foreign, &mut settle_foreign);
                    settle(&mut new_targets, &mut settle_targets);
                }
                Ok(())
            })?;
            if index.is_multiple_of(STEP) {
                let lists = links.capacity() + foreign.capacity() + new_targets.capacity();
                evacuator.hold(16 * lists as u64)?;
            }
        }
        // The result says of each object where it went.
        evacuator.hold(40 * evacuator.forwards.len() as u64)?;
        evacuator.restore_kept(&view)?;
        for region in &from {
            if !evacuator.is_kept(*region) {
                self.forget(*region);
            }
        }
        // A region that stays keeps its targets; those that moved are targets no more there.
        new_targets.iter().for_each(|word| self.add_target(*word));
        links.sort_unstable();
        links.dedup();
        links
            .iter()
            .for_each(|(from, to)| self.add_link(*from, *to));
        self.moved_bytes += evacuator.copied_bytes;
        for to in evacuator.to_spaces() {
            self.bumps.insert(to.region, to.bump);
        }
        out.u32(evacuator.to_spaces().len() as u32);
        for to in evacuator.to_spaces() {
            out.u32(to.region);
            out.u64(to.bump);
        }
        let kept: Vec<u32> = from
            .iter()
            .copied()
            .filter(|r| evacuator.is_kept(*r))
            .collect();
        out.u32(kept.len() as u32);
        kept.iter().for_each(|region| out.u32(*region));
        out.u32(evacuator.forwards.len() as u32);
        for (old, new) in &evacuator.forwards {
            out.u64(*old);
            out.u64(*new);
        }
        foreign.sort_unstable();
        foreign.dedup();
        out.words(&foreign);
        Ok(())
    }

    /// Rewrites references to what was moved. Input: regions emptied anywhere, forwards, targets
    /// that other servers found. Output: pages that were changed.
    fn update(
        &mut self,
        r: &mut Reader<'_>,
        out: &mut Writer,
        room: &mut dyn Room,
    ) -> Result<(), AgentError> {
        let mut emptied = Bitmap::new(self.geometry.regions);
        for _ in 0..r.u32()? {
            let region = r.u32()?;
            if region >= self.geometry.regions {
                return Err(AgentError::NotHere(region));
            }
            emptied.set(region);
        }
        let mut forwards = HashMap::new();
        for _ in 0..r.u32()? {
            forwards.insert(r.u64()?, r.u64()?);
        }
        for word in r.words()? {
            self.add_target(word);
        }
        let (mut pages, mut found) = (Vec::new(), Vec::new());
        let (mut settle_pages, mut settle_found) = (0, 0);
        let view = view!(self);
        let touches = |region: u32| {
            let links = self.links[region as usize].as_ref();
            links.is_some_and(|links| {
                let pairs = links.words().iter().zip(emptied.words());
                pairs.into_iter().any(|(a, b)| a & b != 0)
            })
        };
        let mut walked = Vec::new();
        for (region, bump) in &self.bumps {
            if !touches(*region) {
                continue;
            }
            let mut links = Bitmap::new(self.geometry.regions);
            view.each_object::<AgentError>(*region, *bump, |at, header, _| {
                view.each_ref::<AgentError>(at, header, |slot, word| {
                    let there = self.geometry.region_of(word);
                    if there >= self.geometry.regions {
                        return Ok(());
                    }
                    let mut now = word;
                    if emptied.get(there) {
                        now = forwards.get(&word).copied().unwrap_or(word);
                        if now != word {
                            view.words.store(slot, now)?;
                            pages.push((slot >> 12) as u32);
                            settle(&mut pages, &mut settle_pages);
                        }
                    }
                    let there = self.geometry.region_of(now);
                    if there != *region {
                        links.set(there);
                        if now != word && self.geometry.server_of(there) == self.me {
                            found.push(now);
                            settle(&mut found, &mut settle_found);
                        }
                    }
                    Ok(())
                })
            })?;
            let lists = (12 * pages.capacity() + 16 * found.capacity()) as u64;
            hold(room, 48 * forwards.len() as u64 + lists)?;
            walked.push((*region, links));
        }
        for (region, links) in walked {
            self.links[region as usize] = Some(links);
        }
        found.iter().for_each(|word| self.add_target(*word));
        pages.sort_unstable();
        pages.dedup();
        out.u32(pages.len() as u32);
        pages.iter().for_each(|page| out.u32(*page));
        Ok(())
    }

    /// All targets and links anew, from marked objects alone: what only dead objects refer to is no
    /// target any more. Output: targets at other servers.
    fn rebuild(&mut self, out: &mut Writer, room: &mut dyn Room) -> Result<(), AgentError> {
        let trace = self.trace.take().ok_or(AgentError::NoTrace)?;
        let view = view!(self);
        let (mut found, mut links, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
        let (mut settle_found, mut settle_links, mut settle_foreign) = (0, 0, 0);
        for region in 0..self.geometry.regions {
            let start = self.geometry.region_start(region);
            for granule in trace.marks.map(region).into_iter().flat_map(Bitmap::iter) {
                let at = start + u64::from(granule) * 16;
                let header = Header(view.words.load(at)?);
                view.each_ref::<Gone>(at, header, |_, word| {
                    let there = self.geometry.region_of(word);
                    if there != region && there < self.geometry.regions {
                        links.push((region, there));
                        if self.geometry.server_of(there) == self.me {
                            found.push(word);
                        } else {
                            foreign.push(word);
                        }
                        settle(&mut links, &mut settle_links);
                        settle(&mut found, &mut settle_found);
                        settle(&mut foreign, &mut settle_foreign);
                    }
                    Ok(())
                })?;
            }
            let lists = found.capacity() + links.capacity() + foreign.capacity();
            hold(room, 24 * lists as u64)?;
        }
        links.sort_unstable();
        links.dedup();
        self.targets.fill(None);
        self.links.fill(None);
        self.estimates.clear();
        for region in self.bumps.keys() {
            self.estimates
                .insert(*region, trace.marks.live_bytes(*region));
        }
        found.iter().for_each(|word| self.add_target(*word));
        links
            .iter()
            .for_each(|(from, to)| self.add_link(*from, *to));
        foreign.sort_unstable();
        foreign.dedup();
        out.words(&foreign);
        Ok(())
    }

    pub fn has_schedule(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// Traces a little of the full trace; whether there is more to do here.
    pub fn trace_some(&mut self, budget: usize) -> Result<bool, Gone> {
        let view = view!(self);
        match &mut self.trace {
            Some(trace) => trace.step(&view, budget),
            None => Ok(false),
        }
    }

    /// A reference from elsewhere belongs to the trace.
    pub fn visit(&mut self, word: u64) {
        let view = view!(self);
        if let Some(trace) = &mut self.trace {
            trace.visit(&view, word);
        }
    }
}
