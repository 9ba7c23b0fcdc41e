//! The data path: pages of extents are read and written at the servers that have them.
//!
//! Where all members are mapped, a transfer is a copy, and no lane, no lock and no other thread has a
//! part in it. (That a server took the memory back shows as SIGBUS, which ends the process, or in
//! the hash of what is read.) Over a wire, pages of one batch travel together, neighbouring ones in one
//! segment.
//!
//! How whole copies are read and written is in [`reads`](crate::reads) and [`writes`](crate::writes), how
//! rows with parity are in [`parity`](crate::parity); what becomes of extents whose servers went in
//! [`repair`](crate::repair).
//!
//! Invariant: every member that the map names has every write that was acknowledged, but for the pages
//! that it is known to lack ([`lag`](crate::lag)). Known limit: with one copy there is nobody else to ask, so a server is waited for until its session is lost.

use crate::VolumeError;
use crate::clerk::{Clerk, Fresh};
use crate::extent::{Entry, Extent, ExtentId, ExtentMap, Holding, Member};
use crate::parity::Parity;
use crate::reads::Only;
use crate::roster::Roster;
use crate::sums::Sums;
use crate::wire::{Leg, OPERATION_PAGES, Wire};
use muninn_policy::layout::Layout;
use muninn_policy::mover::{Mover, Reason};
use muninn_policy::replenish::{Bounds, Replenish};
use muninn_sys::rand;
use muninn_types::{Class, Nanos, PAGE_SIZE, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub type Page = [u8; PAGE_SIZE];

/// While several servers are waited for, each is looked at this often.
pub(crate) const GLANCE: Duration = Duration::from_micros(100);

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
    /// With a copy that goes elsewhere: its server drains, has left the pool or wants memory back, or
    /// another one joined.
    pub leaving: u64,
    /// Of both, those for which there was no room, or nobody who answers: they are tried again.
    pub waiting: u64,
    /// Copies that were made anew, ever.
    pub repaired: u64,
}

pub struct Volume {
    pub(crate) roster: Arc<Roster>,
    pub(crate) clerk: Arc<Clerk>,
    layout: Layout,
    pub(crate) map: ExtentMap,
    pub(crate) wire: Wire,
    pub(crate) parity: Option<Parity>,
    /// Of check sums: no server knows it.
    pub(crate) sum_key: u64,
    replenish: Replenish,
    /// As of the last look at the roster: its news, and for each server which session counted and whether it
    /// was to be emptied.
    seen: Option<u64>,
    known: Vec<(u32, bool)>,
    pub(crate) mover: Mover,
    /// The extent that the clerk is copying.
    pub(crate) moving: Option<ExtentId>,
    lost: Vec<(ExtentId, String)>,
    pub(crate) repaired: u64,
    /// Extents that are to leave servers that asked for memory.
    pub(crate) given: BTreeMap<ServerId, BTreeSet<u32>>,
    pub(crate) balance_at: Nanos,
    /// Grants of a parent that belong to no extent; they can only be shared together with others.
    pub(crate) baggage: Vec<Holding>,
    pub(crate) legs: Vec<Leg>,
    /// Whom [`Volume::read_copy`] asks, in this order.
    copies: Vec<ServerId>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("roster", &self.roster)
            .finish_non_exhaustive()
    }
}

pub(crate) fn all_of(batch: &[Transfer]) -> u64 {
    u64::MAX >> (64 - batch.len())
}

/// The pages of a batch in a mask.
pub(crate) fn pages_in(mut mask: u64) -> impl Iterator<Item = usize> {
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
            map: ExtentMap::default(),
            wire: Wire::new(Arc::clone(&roster)),
            parity: clerk.layout().stripes().map(Parity::new),
            sum_key: rand::u64(),
            replenish: Replenish::new(Bounds::default()),
            seen: None,
            known: Vec::new(),
            mover: Mover::default(),
            moving: None,
            lost: Vec::new(),
            repaired: 0,
            given: BTreeMap::new(),
            balance_at: Nanos::ZERO,
            baggage: Vec::new(),
            legs: Vec::new(),
            copies: Vec::new(),
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

    pub fn layout(&self) -> Layout {
        self.layout
    }

    pub fn census(&self) -> Census {
        Census {
            degraded: self.mover.degraded() as u64,
            leaving: (self.mover.len() - self.mover.degraded()) as u64,
            waiting: self.mover.waiting() as u64,
            repaired: self.repaired,
        }
    }

    /// Servers that hold something.
    pub fn holders(&self) -> Vec<ServerId> {
        let held = |server: &ServerId| !self.map.holds_nothing(*server);
        self.roster.ids().filter(held).collect()
    }

    /// Memory for more pages, now.
    pub fn extent(&mut self) -> Result<Extent, VolumeError> {
        let fresh = self.clerk.ask_now()?;
        Ok(self.take_in(fresh))
    }

    /// Memory that was asked for ahead of need, if it has come.
    pub fn take_granted(&mut self) -> Option<Extent> {
        let fresh = self.clerk.take_granted()?;
        self.replenish.handle_answer(self.roster.now());
        Some(self.take_in(fresh))
    }

    /// So many pages are free: more may be asked for ahead of need.
    pub fn replenish(&mut self, free: u64, evicted: u64) {
        let now = self.roster.now();
        self.replenish.handle_evicted(evicted, now);
        if self.replenish.poll_request(free, now).is_some() {
            self.clerk.want();
        }
    }

    pub(crate) fn member(&self, piece: u8, at: Holding) -> Member {
        let session = self.roster.session(at.server);
        let session = session.filter(|(_, generation)| *generation == at.generation);
        let mapped = session.and_then(|(transport, _)| transport.mapped(at.grant));
        Member {
            at,
            piece,
            mapped: mapped.map(Box::new),
            lag: None,
        }
    }

    /// Sums of a new extent, or of one that somebody else has written. With one copy there is nothing that
    /// could be made of others.
    fn sums(&self, pages: u32, known: bool) -> Option<Arc<Sums>> {
        let pieces = match self.layout {
            Layout::Single => return None,
            Layout::Mirror(_) => 1,
            Layout::Parity(stripes) => stripes.pieces(),
        };
        Some(Arc::new(Sums::new(pieces, pages, self.sum_key, known)))
    }

    fn take_in(&mut self, fresh: Fresh) -> Extent {
        let members = (0..).zip(&fresh.members);
        let members = members.map(|(piece, at)| self.member(piece, *at)).collect();
        let pages = fresh.pages * self.layout.breadth();
        let sums = self.sums(fresh.pages, true);
        let id = self.map.insert(pages, members, sums);
        self.settle_in(id);
        Extent { id, pages }
    }

    /// Notes an extent that was inherited.
    pub(crate) fn inherit(&mut self, extent: Extent, parts: &[(u8, Holding)]) {
        let known = |part: &&(u8, Holding)| usize::from(part.0) < self.layout.members();
        let members = parts.iter().filter(known);
        let members = members.map(|(piece, at)| self.member(*piece, *at));
        let members = members.collect();
        let rows = extent.pages / self.layout.breadth();
        let sums = self.sums(rows, false);
        self.map
            .insert_as(extent.id, extent.pages, members, true, sums);
        self.settle_in(extent.id);
    }

    /// A session may have been lost on the extent's way here. And what belongs to an earlier session must not
    /// stand beside it: numbers of grants begin anew with each.
    fn settle_in(&mut self, id: ExtentId) {
        self.look_at_servers();
        let members = self.map.get(id).map_or(&[][..], |entry| &entry.members);
        let gone = members.iter().map(|member| member.at);
        let gone: Vec<Holding> = gone.filter(|at| !self.roster.counts(at)).collect();
        for at in gone {
            self.lose_member(id, at.server);
        }
        self.check(id);
    }

    /// The session of a member is lost.
    fn lose_member(&mut self, id: ExtentId, server: ServerId) {
        self.map.drop_member(id, server);
        self.has_gone(id, server);
        self.note_if_lost(id, server);
    }

    /// An extent that is no longer needed.
    pub fn release(&mut self, id: ExtentId) {
        self.mover.handle_well(id.0);
        if let Some(leave) = self.map.get(id).and_then(|entry| entry.leave) {
            self.has_gone(id, leave.from);
        }
        self.lost.retain(|(lost, _)| *lost != id);
        if let Some(entry) = self.map.remove(id) {
            let members = entry.members.iter().map(|member| member.at);
            self.clerk.release(members);
        }
    }

    /// Puts an extent into the mover's queue, or out of it.
    pub(crate) fn check(&mut self, id: ExtentId) {
        self.forget_leave(id);
        let Some(entry) = self.map.get(id) else {
            self.mover.handle_well(id.0);
            return;
        };
        let (members, needed) = (entry.members.len(), self.layout.needed());
        let whole = entry.whole().count();
        let draining = |member: &Member| self.roster.is_draining(member.at.server);
        let reason = match entry.members.iter().any(draining) {
            _ if members < needed => None,
            _ if whole < self.layout.members() => Some(Reason::Degraded {
                copies: (whole + 1).saturating_sub(needed) as u8,
            }),
            true => Some(Reason::Draining),
            false => entry.leave.map(|leave| match leave.to {
                Some(_) => Reason::Balance,
                None => Reason::Asked,
            }),
        };
        match reason {
            Some(reason) => self.mover.handle_want(id.0, reason),
            None => self.mover.handle_well(id.0),
        }
    }

    pub(crate) fn drop_member(&mut self, id: ExtentId, server: ServerId) {
        if let Some(at) = self.map.drop_member(id, server) {
            self.clerk.release([at]);
            self.has_gone(id, server);
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
        if self.seen != Some(self.roster.news()) {
            self.look_at_servers();
        }
        if !self.mover.is_empty() {
            for server in self.roster.ids() {
                self.wire.look_behind(server);
            }
            self.take_in_late();
        }
        if self.mover.is_empty() && self.roster.has_fresh() {
            self.balance();
        }
        if self.moving.is_none() && !self.mover.is_empty() {
            self.order_next();
        }
        if self.roster.has_leaving() {
            self.part_from_empty();
        }
    }

    /// Sessions with servers that are on the list no more end when nothing is there. Here, because nobody
    /// else adds members; what the clerk has in its hands for them does not count then, and nobody needs it.
    fn part_from_empty(&mut self) {
        let mut loose = self.clerk.on_the_desk();
        loose.extend(&self.baggage);
        for server in self.roster.ids() {
            let loose = loose.iter().any(|at| at.server == server);
            if self.roster.has_left(server) && self.map.holds_nothing(server) && !loose {
                self.roster.part(server);
            }
        }
    }

    fn look_at_servers(&mut self) {
        let news = self.roster.news();
        if self.seen.replace(news) == Some(news) {
            return;
        }
        self.known.resize(self.roster.len(), (0, false));
        for server in self.roster.ids().take(self.known.len()) {
            let now = (
                self.roster.generation(server),
                self.roster.is_draining(server),
            );
            let before = std::mem::replace(&mut self.known[server.0 as usize], now);
            // Most news is of one server: what the others hold is not walked.
            if before == now {
                continue;
            }
            let (counts, lost) = (now.0, before.0 != now.0);
            if lost && before.0 != 0 {
                self.wire.forget(server, before.0);
            }
            for id in self.map.at_server(server) {
                let member = self.map.get(id).and_then(|entry| entry.member(server));
                if member.is_some_and(|member| member.at.generation != counts) {
                    self.lose_member(id, server);
                }
                self.check(id);
            }
        }
        self.give_back_asked();
        self.clerk.note_to_move(self.mover.len());
    }

    /// A member is gone: the others may be too few.
    fn note_if_lost(&mut self, id: ExtentId, server: ServerId) {
        let members = self.map.get(id).map_or(&[][..], |entry| &entry.members);
        let sound = members.iter().filter(|m| self.is_sound(m)).count();
        let is_lost = sound < self.layout.needed();
        if let Some(entry) = self.map.get_mut(id)
            && is_lost
            && !std::mem::replace(&mut entry.lost, true)
        {
            let why = format!("{id} is lost: {}", self.roster.why(server));
            self.lost.push((id, why));
        }
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
                    unsafe {
                        match self.parity {
                            Some(_) => self.read_rows(batch, class)?,
                            None => self.read_batch(batch, class, Only::Anybody)?,
                        }
                    }
                }
                return Ok(());
            };
            // SAFETY: `far` lies in a mapping that its member keeps; `near` is the caller's promise.
            unsafe { far.copy_to_nonoverlapping(transfer.near, 1) };
        }
        Ok(())
    }

    /// Reads a page whose contents were not what was written, from the `n`th copy; `None` when there
    /// are no more. Begin with 0 and leave none out: who does not answer is an error at first, and is
    /// waited for only when nobody else is left.
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
        if self.parity.is_some() {
            // SAFETY: as the caller says.
            return unsafe { self.read_piece(transfer, class, n) };
        }
        let entry = self.map.get(transfer.extent)?;
        if n == 0 {
            let members = entry.members.iter().filter(|m| m.has(transfer.place));
            self.copies = members.map(|member| member.at.server).collect();
            let roster = &self.roster;
            self.copies
                .sort_by_key(|server| roster.is_suspected(*server));
        }
        let server = *self.copies.get(n)?;
        let member = entry.member(server).filter(|m| m.has(transfer.place));
        let Some(member) = member else {
            let text = format!("{} has no copy there any more", transfer.extent);
            return Some(Err(VolumeError::Lost(text)));
        };
        if let Some(far) = member.place(transfer.place) {
            // SAFETY: as in `read`.
            unsafe { far.copy_to_nonoverlapping(transfer.near, 1) };
            return Some(Ok(server));
        }
        let asked = match self.copies[n + 1..].iter().all(|later| *later == server) {
            true => Only::Waiting(server),
            false => Only::Briefly(server),
        };
        // SAFETY: as the caller says.
        let read = unsafe { self.read_batch(std::slice::from_ref(transfer), class, asked) };
        if read.is_err() && matches!(asked, Only::Briefly(_)) && self.roster.is_suspected(server) {
            self.copies.push(server);
        }
        Some(read.map(|()| server))
    }

    /// A copy was found to be wrong, while another is right.
    pub fn distrust(&mut self, id: ExtentId, server: ServerId) {
        let others = self.map.get(id).map_or(0, |entry| {
            let others = entry.whole().filter(|m| m.at.server != server);
            others.count()
        });
        if others >= self.layout.needed() {
            let at = self.roster.address(server);
            self.roster.tell(&format!(
                "the server at {at} gave back other bytes than were written; its copy of {id} is made anew"
            ));
            self.roster.distrust(server);
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
        if self.parity.is_some() {
            for batch in transfers.chunks(OPERATION_PAGES) {
                // SAFETY: as the caller says.
                unsafe { self.write_rows(batch, class) }?;
            }
            return Ok(());
        }
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

    pub(crate) fn entry(&self, transfer: &Transfer) -> Result<&Entry, VolumeError> {
        let entry = self.map.get(transfer.extent);
        let entry = entry.filter(|entry| !entry.members.is_empty());
        entry.ok_or_else(|| VolumeError::Lost(format!("no copy of {} is left", transfer.extent)))
    }
}
