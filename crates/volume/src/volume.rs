//! The data path: pages of extents are read and written at the servers that have them.
//!
//! Where all members are mapped, a transfer is a copy, and no lane, no lock and no other thread has a
//! part in it. (That a server took the memory back shows as SIGBUS, which ends the process, or in
//! the hash of what is read.) Over a wire, pages of one batch travel together, neighbouring ones in one
//! segment.
//!
//! A **read** goes to the member that has answered fastest lately; if it takes longer than usual
//! (`policy::hedge`) another is asked as well, and the first answer counts. A **write** goes to all members at
//! once and is done when all have answered. Who does not answer in time while another has is
//! suspected, and those of its members that missed the write are none any more.
//!
//! Invariant: every member that the map names has every write that was acknowledged. Known limit: with
//! one copy there is nobody else to ask, so a server is waited for until its session is lost.

use crate::VolumeError;
use crate::clerk::{Clerk, Fresh, Moved};
use crate::extent::{Entry, Extent, ExtentId, ExtentMap, Fill, Holding, Member};
use crate::mover::Order;
use crate::roster::Roster;
use crate::wire::{Ended, Leg, LegState, OPERATION_PAGES, Wire};
use muninn_net::{Buffer, Verb};
use muninn_policy::layout::Layout;
use muninn_policy::mover::{Mover, Reason};
use muninn_policy::replenish::{Bounds, Replenish};
use muninn_sys::clock;
use muninn_types::{Class, Nanos, PAGE_SIZE, ServerId};
use muninn_wire::Seg;
use std::sync::Arc;
use std::time::Duration;

pub type Page = [u8; PAGE_SIZE];

/// While several servers are waited for, each is looked at this often.
const GLANCE: Duration = Duration::from_micros(100);

/// A far page and the near one that it is read into or written from.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub extent: ExtentId,
    /// Pages from the start of the extent.
    pub place: u32,
    pub near: *mut Page,
}

impl Transfer {
    /// What a list of transfers is filled with where there are none.
    pub const EMPTY: Transfer = Transfer {
        extent: ExtentId(u32::MAX),
        place: 0,
        near: std::ptr::null_mut(),
    };
}

/// Extents by their state; cheap to ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// With fewer copies than the layout wants.
    pub degraded: u64,
    /// Copies that were made anew, ever.
    pub repaired: u64,
}

pub struct Volume {
    roster: Arc<Roster>,
    clerk: Arc<Clerk>,
    layout: Layout,
    pub(crate) map: ExtentMap,
    wire: Wire,
    replenish: Replenish,
    /// As of the last look at the roster: its news, and which session with each server counted.
    seen: Option<u64>,
    generations: Vec<u32>,
    mover: Mover,
    /// The extent that the clerk is copying.
    moving: Option<ExtentId>,
    lost: Vec<(ExtentId, String)>,
    repaired: u64,
    /// Grants of a parent that belong to no extent; they can only be shared together with others.
    pub(crate) baggage: Vec<Holding>,
    legs: Vec<Leg>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("roster", &self.roster)
            .finish_non_exhaustive()
    }
}

fn all_of(batch: &[Transfer]) -> u64 {
    u64::MAX >> (64 - batch.len())
}

/// The pages of a batch in a mask.
fn pages_in(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = mask.trailing_zeros() as usize;
        mask &= mask.checked_sub(1)?;
        Some(at)
    })
}

impl Volume {
    pub fn new(roster: Arc<Roster>, clerk: Arc<Clerk>) -> Volume {
        Volume {
            layout: clerk.layout(),
            map: ExtentMap::new(roster.len()),
            wire: Wire::new(Arc::clone(&roster)),
            replenish: Replenish::new(Bounds::default()),
            seen: None,
            generations: vec![0; roster.len()],
            mover: Mover::default(),
            moving: None,
            lost: Vec::new(),
            repaired: 0,
            baggage: Vec::new(),
            legs: Vec::new(),
            roster,
            clerk,
        }
    }

    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }
    pub fn clerk(&self) -> &Arc<Clerk> {
        &self.clerk
    }

    pub fn census(&self) -> Census {
        Census {
            degraded: self.mover.len() as u64,
            repaired: self.repaired,
        }
    }

    /// Memory for more pages, now.
    pub fn extent(&mut self) -> Result<Extent, VolumeError> {
        let fresh = self.clerk.ask_now()?;
        Ok(self.take_in(fresh))
    }

    /// Memory that was asked for ahead of need, if it has come.
    pub fn take_granted(&mut self) -> Option<Extent> {
        let fresh = self.clerk.take_granted()?;
        self.replenish.handle_answer(clock::now());
        Some(self.take_in(fresh))
    }

    /// So many pages are free: more may be asked for ahead of need.
    pub fn replenish(&mut self, free: u64, evicted: u64) {
        let now = clock::now();
        self.replenish.handle_evicted(evicted, now);
        if self.replenish.poll_request(free, now).is_some() {
            self.clerk.want();
        }
    }

    fn member(&self, at: Holding) -> Member {
        let session = self.roster.session(at.server);
        let session = session.filter(|(_, generation)| *generation == at.generation);
        let mapped = session.and_then(|(transport, _)| transport.mapped(at.grant));
        Member { at, mapped }
    }

    fn take_in(&mut self, fresh: Fresh) -> Extent {
        let members = fresh.members.iter().map(|at| self.member(*at)).collect();
        let id = self.map.insert(fresh.pages, members);
        // A session may have been lost on the way here.
        self.seen = None;
        self.check(id);
        Extent {
            id,
            pages: fresh.pages,
        }
    }

    /// Notes an extent that was inherited.
    pub(crate) fn inherit(&mut self, extent: Extent, holdings: &[Holding]) {
        let members = holdings.iter().map(|at| self.member(*at)).collect();
        self.map.insert_as(extent.id, extent.pages, members, true);
        self.seen = None;
        self.check(extent.id);
    }

    /// An extent that is no longer needed.
    pub fn release(&mut self, id: ExtentId) {
        self.mover.handle_well(id.0);
        self.lost.retain(|(lost, _)| *lost != id);
        if let Some(entry) = self.map.remove(id) {
            let members = entry.members.iter().map(|member| member.at);
            self.clerk.release(members);
        }
    }

    /// Puts an extent into the mover's queue, or out of it.
    fn check(&mut self, id: ExtentId) {
        let Some(entry) = self.map.get(id) else {
            self.mover.handle_well(id.0);
            return;
        };
        let copies = entry.members.len();
        let draining = |member: &Member| self.roster.is_draining(member.at.server);
        let reason = match entry.members.iter().any(draining) {
            _ if copies < self.layout.members() && copies > 0 => Some(Reason::Degraded {
                copies: copies as u8,
            }),
            true => Some(Reason::Draining),
            false => None,
        };
        match reason {
            Some(reason) => self.mover.handle_want(id.0, reason),
            None => self.mover.handle_well(id.0),
        }
    }

    fn drop_member(&mut self, id: ExtentId, server: ServerId) {
        if let Some(at) = self.map.drop_member(id, server) {
            self.clerk.release([at]);
            self.check(id);
        }
    }

    /// Looks at what has happened to servers, and keeps the mover at work. Cheap when nothing has.
    pub fn attend(&mut self) {
        // First: a copy that is complete may be the only one by now.
        if self.moving.is_some()
            && let Some(moved) = self.clerk.take_moved()
        {
            self.finish(moved);
        }
        let news = self.roster.news();
        if self.seen != Some(news) {
            self.seen = Some(news);
            self.look_at_servers();
        }
        if self.moving.is_none() && !self.mover.is_empty() {
            self.order_next();
        }
    }

    fn look_at_servers(&mut self) {
        for server in self.roster.ids() {
            let counts = self.roster.generation(server);
            let before = std::mem::replace(&mut self.generations[server.0 as usize], counts);
            if before != counts && before != 0 {
                self.wire.forget(server, before);
            }
            for id in self.map.at_server(server) {
                let entry = self.map.get(id).expect("it was just named");
                let gone = entry
                    .member(server)
                    .is_some_and(|member| member.at.generation != counts);
                if gone {
                    self.map.drop_member(id, server);
                    if self.map.get(id).is_some_and(|e| e.members.is_empty()) {
                        self.mover.handle_well(id.0);
                        let why = format!("{id} is lost: {}", self.roster.why(server));
                        self.lost.push((id, why));
                    }
                }
                if gone || self.roster.is_draining(server) {
                    self.check(id);
                }
            }
        }
        self.clerk.note_to_move(self.mover.len());
    }

    /// Extents of which no copy is left, and why.
    pub fn take_lost(&mut self) -> Option<(ExtentId, String)> {
        self.lost.pop()
    }

    /// Reads far pages, all or none.
    ///
    /// # Safety
    ///
    /// Each `near` must be writable and used by nobody else during the call.
    pub unsafe fn read(&mut self, transfers: &[Transfer], class: Class) -> Result<(), VolumeError> {
        for (at, transfer) in transfers.iter().enumerate() {
            let Some(far) = self.mapped(transfer) else {
                for batch in transfers[at..].chunks(OPERATION_PAGES) {
                    // SAFETY: as the caller says.
                    unsafe { self.read_batch(batch, class, None) }?;
                }
                return Ok(());
            };
            // SAFETY: `far` lies in a mapping that its member keeps; `near` is the caller's promise.
            unsafe { far.copy_to_nonoverlapping(transfer.near, 1) };
        }
        Ok(())
    }

    /// Reads a page whose contents were not what was written, from the `n`th copy; `None` when there
    /// are no more.
    ///
    /// # Safety
    ///
    /// As for [`Volume::read`].
    pub unsafe fn read_copy(
        &mut self,
        transfer: &Transfer,
        class: Class,
        n: usize,
    ) -> Option<Result<ServerId, VolumeError>> {
        let entry = self.map.get(transfer.extent)?;
        let member = entry.members.get(n)?;
        let server = member.at.server;
        if let Some(far) = member.place(transfer.place) {
            // SAFETY: as in `read`.
            unsafe { far.copy_to_nonoverlapping(transfer.near, 1) };
            return Some(Ok(server));
        }
        // SAFETY: as the caller says.
        let read = unsafe { self.read_batch(std::slice::from_ref(transfer), class, Some(server)) };
        Some(read.map(|()| server))
    }

    /// A copy was found to be wrong, while another is right.
    pub fn distrust(&mut self, id: ExtentId, server: ServerId) {
        let copies = self.map.get(id).map_or(0, |entry| entry.members.len());
        if copies > 1 {
            let at = self.roster.address(server);
            self.roster.tell(&format!(
                "the server at {at} gave back other bytes than were written; its copy of {id} is made anew"
            ));
            self.drop_member(id, server);
        }
    }

    /// Servers that hold an extent, for messages.
    pub fn describe(&self, id: ExtentId) -> String {
        let members = self.map.get(id).map_or(&[][..], |entry| &entry.members);
        let named: Vec<String> = members
            .iter()
            .map(|m| {
                format!(
                    "grant {} of the server at {}",
                    m.at.grant,
                    self.roster.address(m.at.server)
                )
            })
            .collect();
        format!("{id} ({})", named.join(", "))
    }

    fn mapped(&self, transfer: &Transfer) -> Option<*mut Page> {
        let members = &self.map.get(transfer.extent)?.members;
        members
            .iter()
            .find_map(|member| member.place(transfer.place))
    }

    /// Writes far pages. They are at all members when this returns.
    ///
    /// # Safety
    ///
    /// Each `near` must be readable and not written to during the call.
    pub unsafe fn write(
        &mut self,
        transfers: &[Transfer],
        class: Class,
    ) -> Result<(), VolumeError> {
        for (at, transfer) in transfers.iter().enumerate() {
            // SAFETY: as the caller says.
            if !unsafe { self.write_mapped(transfer) } {
                for batch in transfers[at..].chunks(OPERATION_PAGES) {
                    // SAFETY: as the caller says.
                    unsafe { self.write_batch(batch, class) }?;
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Writes a page to all members if all are mapped; whether they are.
    ///
    /// # Safety
    ///
    /// `near` must be readable.
    unsafe fn write_mapped(&mut self, transfer: &Transfer) -> bool {
        let Some(entry) = self.map.get_mut(transfer.extent) else {
            return false;
        };
        if entry.members.is_empty() || entry.members.iter().any(|m| m.mapped.is_none()) {
            return false;
        }
        for far in entry.members.iter().filter_map(|m| m.place(transfer.place)) {
            // SAFETY: as in `read`, the other way.
            unsafe { far.copy_from_nonoverlapping(transfer.near, 1) };
        }
        entry.note_written(transfer.place);
        true
    }

    fn entry(&self, transfer: &Transfer) -> Result<&Entry, VolumeError> {
        let entry = self.map.get(transfer.extent);
        let entry = entry.filter(|entry| !entry.members.is_empty());
        entry.ok_or_else(|| VolumeError::Lost(format!("no copy of {} is left", transfer.extent)))
    }

    /// The member of a page that is best asked, except at servers in `but`.
    fn best(&self, transfer: &Transfer, but: &[ServerId]) -> Option<Holding> {
        let entry = self.map.get(transfer.extent)?;
        let members = entry.members.iter().map(|member| member.at);
        let open = members.filter(|at| !but.contains(&at.server));
        open.min_by_key(|at| {
            let suspected = self.roster.is_suspected(at.server);
            (suspected, self.wire.latency(at.server).expected())
        })
    }

    fn segs(&self, batch: &[Transfer], pages: u64, server: ServerId) -> Vec<Seg> {
        let mut segs: Vec<Seg> = Vec::with_capacity(batch.len());
        for transfer in pages_in(pages).map(|at| &batch[at]) {
            let entry = self.map.get(transfer.extent).expect("it was looked up");
            let member = entry.member(server).expect("it was chosen for its member");
            let (grant, offset) = (member.at.grant, transfer.place * PAGE_SIZE as u32);
            match segs.last_mut() {
                Some(last) if last.grant == grant && last.offset + last.len == offset => {
                    last.len += PAGE_SIZE as u32;
                }
                _ => segs.push(Seg::new(grant, offset, PAGE_SIZE as u32)),
            }
        }
        segs
    }

    /// Posts reads of some pages, each at its best member but those at `but`. Pages for which there is
    /// nobody to ask are left out; those that were asked for.
    fn post_reads(
        &mut self,
        batch: &[Transfer],
        pages: u64,
        but: &[ServerId],
        only: Option<ServerId>,
        class: Class,
        legs: &mut Vec<Leg>,
    ) -> u64 {
        let (mut left, mut asked) = (pages, 0);
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let best = match only {
                Some(server) => self.holding(&batch[first], server),
                None => self.best(&batch[first], but),
            };
            let Some(at) = best else {
                left &= !(1 << first);
                continue;
            };
            // Pages whose best member is there, too, travel along.
            let mut mask = 0;
            for page in pages_in(left) {
                let same = match only {
                    Some(_) => true,
                    None => self.best(&batch[page], but).map(|b| b.server) == Some(at.server),
                };
                if same {
                    mask |= 1 << page;
                }
            }
            left &= !mask;
            let segs = self.segs(batch, mask, at.server);
            let buffer = self.wire.buffer();
            let posted = self.wire.post(
                at.server,
                at.generation,
                class,
                Verb::Read,
                (segs, buffer, mask),
            );
            match posted {
                Ok(leg) => {
                    asked |= mask;
                    legs.push(leg);
                }
                // As if nobody was there: others are asked, or nobody is left.
                Err(_) if only.is_none() && but.len() < self.roster.len() => {
                    let but = [but, &[at.server]].concat();
                    asked |= self.post_reads(batch, mask, &but, None, class, legs);
                }
                Err(_) => {}
            }
        }
        asked
    }

    fn holding(&self, transfer: &Transfer, server: ServerId) -> Option<Holding> {
        Some(self.map.get(transfer.extent)?.member(server)?.at)
    }

    /// # Safety
    ///
    /// As for [`Volume::read`].
    unsafe fn read_batch(
        &mut self,
        batch: &[Transfer],
        class: Class,
        only: Option<ServerId>,
    ) -> Result<(), VolumeError> {
        let mut legs = std::mem::take(&mut self.legs);
        legs.clear();
        // SAFETY: as the caller says.
        let read = unsafe { self.read_legs(batch, class, only, &mut legs) };
        for leg in legs.iter().filter(|leg| leg.state == LegState::Waiting) {
            self.wire.leave_behind(leg);
        }
        self.legs = legs;
        read
    }

    /// # Safety
    ///
    /// As for [`Volume::read`].
    unsafe fn read_legs(
        &mut self,
        batch: &[Transfer],
        class: Class,
        only: Option<ServerId>,
        legs: &mut Vec<Leg>,
    ) -> Result<(), VolumeError> {
        let (all, mut done) = (all_of(batch), 0u64);
        let mut several = false;
        for (at, transfer) in batch.iter().enumerate() {
            let entry = self.entry(transfer)?;
            several |= entry.members.len() > 1;
            if only.is_none()
                && let Some(far) = self.mapped(transfer)
            {
                // SAFETY: as in `read`.
                unsafe { far.copy_to_nonoverlapping(transfer.near, 1) };
                done |= 1 << at;
            }
        }
        let hedged = several && only.is_none();
        if hedged {
            for server in self.roster.ids() {
                self.wire.look_behind(server);
            }
        }
        let mut why = String::new();
        let mut refused: Vec<(ServerId, u64)> = Vec::new();
        self.post_reads(batch, all & !done, &[], only, class, legs);
        while done != all {
            if hedged {
                self.hedge(batch, done, class, legs);
            }
            let waiting = legs.iter().filter(|leg| leg.state == LegState::Waiting);
            let waiting = waiting.count();
            if waiting == 0 {
                let first = (!done).trailing_zeros() as usize;
                let id = batch[first].extent;
                return Err(VolumeError::Lost(format!(
                    "no copy of {id} can be read: {why}{}",
                    match why.is_empty() {
                        true => self.describe(id),
                        false => String::new(),
                    }
                )));
            }
            let at = match waiting {
                1 => legs.iter().position(|leg| leg.state == LegState::Waiting),
                // Take turns.
                _ => {
                    let first = legs.iter().position(|leg| leg.state == LegState::Waiting);
                    first.map(|first| {
                        legs[first..].rotate_left(1);
                        legs.iter()
                            .position(|leg| leg.state == LegState::Waiting)
                            .unwrap_or(first)
                    })
                }
            };
            let leg = legs[at.expect("one waits")];
            let wait = self.patience(&leg, waiting > 1, hedged)?;
            let Some((token, ended)) = self.wire.poll(&leg, wait) else {
                continue;
            };
            let Some(leg) = legs.iter_mut().find(|leg| leg.token == token) else {
                if let Ended::Well(buffer) = ended {
                    self.wire.give_back(buffer);
                }
                continue;
            };
            match ended {
                Ended::Well(buffer) => {
                    leg.state = LegState::Done;
                    let (pages, _) = buffer.as_ref().as_chunks::<PAGE_SIZE>();
                    for (from, at) in pages.iter().zip(pages_in(leg.pages)) {
                        if done >> at & 1 == 0 {
                            // SAFETY: writable and ours, as the caller says.
                            unsafe { *batch[at].near = *from };
                        }
                    }
                    done |= leg.pages;
                    self.wire.give_back(buffer);
                }
                Ended::Refused(text) => {
                    leg.state = LegState::Failed;
                    miss(&mut refused, leg.server, leg.pages);
                    why = text;
                }
                Ended::Lost(text) => {
                    leg.state = LegState::Failed;
                    why = text;
                }
            }
        }
        // Others had the pages: a server that refuses to give them back has no copy.
        for (server, pages) in refused {
            for at in pages_in(pages) {
                self.drop_member(batch[at].extent, server);
            }
        }
        Ok(())
    }

    /// How long to wait for a leg before something else is done.
    fn patience(&self, leg: &Leg, others: bool, hedged: bool) -> Result<Duration, VolumeError> {
        if others {
            return Ok(GLANCE);
        }
        let now = clock::now();
        let latency = self.wire.latency(leg.server);
        let deadline = self.wire.deadline(leg.server);
        let ends = leg.posted_at.saturating_add(deadline.into());
        if now >= ends {
            let at = self.roster.address(leg.server);
            return Err(VolumeError::Lost(format!(
                "the server at {at} did not answer within {deadline:?}"
            )));
        }
        let next = match (hedged, leg.hedged) {
            (false, _) => ends,
            (true, false) => leg.posted_at.saturating_add(latency.hedge_after()),
            (true, true) => now.saturating_add(Nanos::millis(10)),
        };
        let until = next.min(ends).saturating_sub(now);
        Ok(Duration::from(until).max(Duration::from_micros(1)))
    }

    /// Asks others for what a server should have brought by now, or has failed to bring.
    fn hedge(&mut self, batch: &[Transfer], done: u64, class: Class, legs: &mut Vec<Leg>) {
        let now = clock::now();
        for at in 0..legs.len() {
            let leg = legs[at];
            let lacking = leg.pages & !done;
            if lacking == 0 || leg.state == LegState::Done {
                continue;
            }
            let latency = self.wire.latency(leg.server);
            if leg.state == LegState::Waiting
                && now > leg.posted_at.saturating_add(latency.suspect_after())
                && self.is_elsewhere(batch, lacking, leg.server)
            {
                self.roster.suspect(leg.server);
            }
            let late = now >= leg.posted_at.saturating_add(latency.hedge_after());
            if leg.hedged || !(late || leg.state == LegState::Failed) {
                continue;
            }
            legs[at].hedged = true;
            let tried: Vec<ServerId> = legs
                .iter()
                .filter(|other| other.pages & lacking != 0)
                .map(|other| other.server)
                .collect();
            self.post_reads(batch, lacking, &tried, None, class, legs);
        }
    }

    /// Whether each of some pages has a copy at another server.
    fn is_elsewhere(&self, batch: &[Transfer], pages: u64, server: ServerId) -> bool {
        pages_in(pages).all(|at| self.best(&batch[at], &[server]).is_some())
    }

    /// # Safety
    ///
    /// As for [`Volume::write`].
    unsafe fn write_batch(&mut self, batch: &[Transfer], class: Class) -> Result<(), VolumeError> {
        let mut legs = std::mem::take(&mut self.legs);
        legs.clear();
        // SAFETY: as the caller says.
        let written = unsafe { self.write_legs(batch, class, &mut legs) };
        for leg in legs.iter().filter(|leg| leg.state == LegState::Waiting) {
            self.wire.leave_behind(leg);
        }
        self.legs = legs;
        written
    }

    /// # Safety
    ///
    /// As for [`Volume::write`].
    unsafe fn write_legs(
        &mut self,
        batch: &[Transfer],
        class: Class,
        legs: &mut Vec<Leg>,
    ) -> Result<(), VolumeError> {
        let (all, mut acked) = (all_of(batch), 0u64);
        let mut why = String::new();
        // Which pages each server is to get, and those that it will have missed.
        let mut wanted: Vec<(Holding, u64)> = Vec::new();
        let mut missed: Vec<(ServerId, u64)> = Vec::new();
        for (at, transfer) in batch.iter().enumerate() {
            let entry = self.entry(transfer)?;
            let sure = |m: &Member| m.mapped.is_some() || !self.roster.is_suspected(m.at.server);
            let any_sure = entry.members.iter().any(sure);
            for member in &entry.members {
                if let Some(far) = member.place(transfer.place) {
                    // SAFETY: as in `write_mapped`.
                    unsafe { far.copy_from_nonoverlapping(transfer.near, 1) };
                    acked |= 1 << at;
                } else if any_sure && !sure(member) {
                    miss(&mut missed, member.at.server, 1 << at);
                } else {
                    match wanted
                        .iter_mut()
                        .find(|(to, _)| to.server == member.at.server)
                    {
                        Some((_, pages)) => *pages |= 1 << at,
                        None => wanted.push((member.at, 1 << at)),
                    }
                }
            }
        }
        for (to, pages) in wanted {
            let segs = self.segs(batch, pages, to.server);
            let mut buffer = self.wire.buffer();
            let (room, _) = buffer.as_mut().as_chunks_mut::<PAGE_SIZE>();
            for (room, at) in room.iter_mut().zip(pages_in(pages)) {
                // SAFETY: readable, as the caller says.
                *room = unsafe { *batch[at].near };
            }
            let posted = self.wire.post(
                to.server,
                to.generation,
                class,
                Verb::Write,
                (segs, buffer, pages),
            );
            match posted {
                Ok(leg) => legs.push(leg),
                Err(text) => {
                    why = text;
                    miss(&mut missed, to.server, pages);
                }
            }
        }
        self.await_writes(batch, legs, &mut acked, &mut missed, &mut why)?;
        if acked != all {
            let first = (!acked).trailing_zeros() as usize;
            return Err(VolumeError::Lost(format!(
                "no copy of {} can be written: {why}",
                self.describe(batch[first].extent)
            )));
        }
        for (server, pages) in missed {
            for at in pages_in(pages) {
                self.drop_member(batch[at].extent, server);
            }
        }
        for transfer in batch {
            if let Some(entry) = self.map.get_mut(transfer.extent) {
                entry.note_written(transfer.place);
            }
        }
        Ok(())
    }

    /// Waits until all have answered, or those that have not are not worth waiting for.
    fn await_writes(
        &mut self,
        batch: &[Transfer],
        legs: &mut [Leg],
        acked: &mut u64,
        missed: &mut Vec<(ServerId, u64)>,
        why: &mut String,
    ) -> Result<(), VolumeError> {
        let mut turn = 0;
        loop {
            let waiting = legs.iter().filter(|leg| leg.state == LegState::Waiting);
            let waiting = waiting.count();
            if waiting == 0 {
                return Ok(());
            }
            turn = (turn + 1) % legs.len();
            if legs[turn].state != LegState::Waiting {
                continue;
            }
            let leg = legs[turn];
            let elsewhere = leg.pages & !*acked == 0;
            if elsewhere {
                let patience = self.wire.latency(leg.server).suspect_after();
                if clock::now() > leg.posted_at.saturating_add(patience) {
                    // It is not waited for, and what it missed is no copy any more.
                    self.roster.suspect(leg.server);
                    self.wire.leave_behind(&leg);
                    legs[turn].state = LegState::Failed;
                    miss(missed, leg.server, leg.pages);
                    continue;
                }
            }
            let several = batch
                .iter()
                .any(|t| self.map.get(t.extent).is_some_and(|e| e.members.len() > 1));
            let wait = match several {
                true => {
                    self.patience(&leg, waiting > 1, true)?;
                    GLANCE
                }
                false => self.patience(&leg, false, false)?,
            };
            let Some((token, ended)) = self.wire.poll(&leg, wait) else {
                continue;
            };
            let Some(leg) = legs.iter_mut().find(|leg| leg.token == token) else {
                if let Ended::Well(buffer) = ended {
                    self.wire.give_back(buffer);
                }
                continue;
            };
            match ended {
                Ended::Well(buffer) => {
                    leg.state = LegState::Done;
                    *acked |= leg.pages;
                    self.wire.give_back(buffer);
                }
                Ended::Refused(text) | Ended::Lost(text) => {
                    leg.state = LegState::Failed;
                    *why = text;
                    miss(missed, leg.server, leg.pages);
                }
            }
        }
    }
}

fn miss(missed: &mut Vec<(ServerId, u64)>, server: ServerId, pages: u64) {
    match missed.iter_mut().find(|(known, _)| *known == server) {
        Some((_, all)) => *all |= pages,
        None => missed.push((server, pages)),
    }
}

/// The mover's part that needs the map: what is copied, and when a copy counts.
impl Volume {
    fn order_next(&mut self) {
        let now = clock::now();
        let number = loop {
            let Some((number, _)) = self.mover.poll_next(now) else {
                return;
            };
            // It may be well by now: a drain was cancelled.
            self.check(ExtentId(number));
            if self.mover.wants(number) {
                break number;
            }
        };
        let id = ExtentId(number);
        let Some(entry) = self.map.get_mut(id) else {
            self.mover.handle_well(number);
            return;
        };
        let fill = Arc::new(Fill::of(&entry.written));
        entry.fill = Some(Arc::clone(&fill));
        let order = Order {
            pages: entry.pages,
            members: entry.members.iter().map(|member| member.at).collect(),
            fill,
        };
        self.moving = Some(id);
        self.clerk.give_order(order);
    }

    /// The clerk has copied what it was told to, or could not.
    fn finish(&mut self, moved: Moved) {
        let Some(id) = self.moving.take() else {
            return;
        };
        let now = clock::now();
        let fill = self.map.get_mut(id).and_then(|entry| entry.fill.take());
        let target = match moved.target {
            Ok(target) => target,
            Err(why) => {
                if let Some(why) = why {
                    self.clerk.say_once(&why);
                    self.mover.handle_refusal(id.0, now);
                }
                self.clerk.note_to_move(self.mover.len());
                return;
            }
        };
        let known = self.map.get(id).is_some_and(|entry| {
            let same = entry.pages == moved.pages && !entry.members.is_empty();
            same && entry.member(target.server).is_none()
        });
        // An id that was used again since names another extent, which has no fill.
        let filled = match (known, fill) {
            (true, Some(fill)) if self.roster.counts(&target) => self.fill_rest(id, target, &fill),
            _ => false,
        };
        if !filled {
            self.clerk.release([target]);
            if self.map.get(id).is_some() {
                self.mover.handle_refusal(id.0, now);
            }
            self.clerk.note_to_move(self.mover.len());
            return;
        }
        let member = self.member(target);
        self.map.add_member(id, member);
        self.repaired += 1;
        // One that is to be emptied has a successor now.
        let entry = self.map.get(id).expect("it was just looked up");
        if entry.members.len() > self.layout.members() {
            let leaving = entry.members.iter().map(|member| member.at.server);
            let leaving: Vec<ServerId> = leaving.filter(|s| self.roster.is_draining(*s)).collect();
            if let Some(server) = leaving.first() {
                self.drop_member(id, *server);
            }
        }
        self.check(id);
        self.clerk.note_to_move(self.mover.len());
    }

    /// Takes in what the clerk has copied so far: a child is about to be given all there is.
    pub(crate) fn settle_move(&mut self) {
        if let Some(moved) = self.clerk.take_moved() {
            self.finish(moved);
        }
    }

    /// Copies what was written while the mover copied. Nobody else writes meanwhile.
    fn fill_rest(&mut self, id: ExtentId, target: Holding, fill: &Fill) -> bool {
        let member = self.member(target);
        let mut page: Box<Page> = Box::new([0; PAGE_SIZE]);
        let mut from = 0;
        while let Some((first, len)) = fill.take_run(from) {
            from = first + len;
            for place in first..first + len {
                let transfer = Transfer {
                    extent: id,
                    place,
                    near: &raw mut *page,
                };
                // SAFETY: the page is ours.
                if unsafe { self.read(&[transfer], Class::Prefetch) }.is_err() {
                    return false;
                }
                if let Some(far) = member.place(place) {
                    // SAFETY: the new member's memory, which nobody else knows.
                    unsafe { far.copy_from_nonoverlapping(&*page, 1) };
                } else if !self.write_one(target, place, &page) {
                    return false;
                }
            }
        }
        true
    }

    fn write_one(&mut self, to: Holding, place: u32, page: &Page) -> bool {
        let mut buffer: Buffer = self.wire.buffer();
        buffer.as_mut()[..PAGE_SIZE].copy_from_slice(page);
        let seg = Seg::new(to.grant, place * PAGE_SIZE as u32, PAGE_SIZE as u32);
        let posted = self.wire.post(
            to.server,
            to.generation,
            Class::Prefetch,
            Verb::Write,
            (vec![seg], buffer, 1),
        );
        let Ok(leg) = posted else { return false };
        let patience = self.wire.latency(to.server).suspect_after();
        loop {
            if clock::now() > leg.posted_at.saturating_add(patience) {
                self.wire.leave_behind(&leg);
                return false;
            }
            match self.wire.poll(&leg, GLANCE) {
                Some((token, Ended::Well(buffer))) => {
                    self.wire.give_back(buffer);
                    if token == leg.token {
                        return true;
                    }
                }
                Some((token, _)) if token == leg.token => return false,
                _ => {}
            }
        }
    }
}
