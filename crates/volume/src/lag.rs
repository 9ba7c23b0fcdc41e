//! Members that fell behind: their server did not answer when pages were written to others.
//!
//! A silence of a tenth of a second is no death; a busy machine is enough for it. Nobody waits for such a
//! server, but it stays a member, and what it lacks is marked. Its pages get there in one of three ways:
//!
//! 1. The write that was not waited for is done after all: it was left behind ([`wire`](crate::wire)), not
//!    taken back. While a server is silent some more are sent to it without waiting, so that a short
//!    silence costs nothing once it is over, and not even the loss of the other copies loses anything.
//! 2. The page is written again.
//! 3. The mover copies it from others ([`repair`](crate::repair)) when the server answers. When it is silent
//!    for too long (`policy::membership::KEEP_SILENT`) another server takes its place.
//!
//! Silence is what becomes of data. A server may answer heartbeats, as one does that is stuck or means harm, and
//! do nothing else: after the same time another takes its place as well, and for a while it is asked last.
//!
//! Invariant: a page that a member lacks is never read there. What is marked may be there all the same.

use crate::extent::{Entry, ExtentId, Holding, Member};
use crate::volume::Volume;
use crate::wire::{Leg, Written};
use muninn_types::ServerId;
use std::time::Duration;

/// How often one who waits for a write that was left behind looks whether its session still counts.
const LOOK: Duration = Duration::from_millis(1);

/// Whether a member can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Its server is expected to answer.
    Open,
    /// It is not: nobody should wait for it while others have the page.
    Silent,
    /// The mover writes to it.
    Closed,
}

impl Volume {
    pub(crate) fn way_to(&self, entry: &Entry, member: &Member) -> Way {
        let server = member.at.server;
        if member.mapped.is_some() {
            Way::Open
        } else if entry.is_filling(server) {
            Way::Closed
        } else if self.roster.is_suspected(server) || self.wire.is_late(server) {
            Way::Silent
        } else {
            Way::Open
        }
    }

    /// A member does not get a page that is written to others, or not yet.
    pub(crate) fn pass_over(&mut self, id: ExtentId, at: Holding, place: u32) {
        self.wire.note_outdated(at, place);
        let member = self.map.get(id).and_then(|entry| entry.member(at.server));
        let was_whole = member.is_some_and(Member::is_whole);
        self.map.fall_behind(id, at.server, place);
        if was_whole {
            self.check(id);
        }
    }

    /// The members at a server do not get pages that are written to others.
    pub(crate) fn pass_over_all(
        &mut self,
        server: ServerId,
        pages: impl Iterator<Item = (ExtentId, u32)>,
    ) {
        for (extent, place) in pages {
            let member = self.map.get(extent).and_then(|entry| entry.member(server));
            if let Some(at) = member.map(|member| member.at) {
                self.pass_over(extent, at, place);
            }
        }
    }

    /// Nobody waits for a write of some pages (any more).
    pub(crate) fn leave_write_behind(
        &mut self,
        leg: &Leg,
        pages: impl Iterator<Item = (ExtentId, u32)>,
    ) {
        let mut written = Vec::new();
        for (extent, place) in pages {
            let entry = self.map.get(extent);
            let Some(member) = entry.and_then(|entry| entry.member(leg.server)) else {
                continue;
            };
            let at = member.at;
            self.pass_over(extent, at, place);
            written.push(Written {
                extent,
                at,
                place,
                outdated: false,
            });
        }
        self.wire.leave_behind(leg, written);
    }

    /// A server has a page that was written.
    pub(crate) fn note_got(&mut self, id: ExtentId, at: Holding, place: u32) {
        if self.map.catch_up(id, &at, place) {
            self.check(id);
        }
    }

    /// Takes note of what members have got after all; whether it was anything.
    pub(crate) fn take_in_late(&mut self) -> bool {
        let mut any = false;
        while let Some(page) = self.wire.take_late() {
            self.note_got(page.extent, page.at, page.place);
            any = true;
        }
        any
    }

    /// Waits until nothing that was left behind can change a page of a member any more.
    pub(crate) fn await_late(&mut self, at: Holding, place: u32) {
        let patience = self.wire.deadline(at.server);
        let ends = self.roster.now().saturating_add(patience.into());
        while self.wire.may_change_page(at, place)
            && self.roster.counts(&at)
            && self.roster.now() < ends
        {
            self.wire.await_behind(at.server, LOOK);
        }
        self.take_in_late();
    }

    /// Waits for a page that everybody lacks but that is on its way to somebody; whether it came.
    pub(crate) fn await_page(&mut self, id: ExtentId, place: u32) -> bool {
        let members = self.map.get(id).map_or(&[][..], |entry| &entry.members);
        let coming = |at: &Holding| self.wire.coming(*at).any(|known| known == place);
        let Some(at) = members.iter().map(|member| member.at).find(coming) else {
            return false;
        };
        self.await_late(at, place);
        let entry = self.map.get(id);
        let member = entry.and_then(|entry| entry.member(at.server));
        self.roster.counts(&at) && member.is_some_and(|member| member.has(place))
    }

    /// Waits for what was left behind, where too few members are whole without it.
    pub(crate) fn settle_late(&mut self) {
        let mut coming: Vec<(Holding, u32)> = Vec::new();
        // Whoever lacks something is in the mover's queue.
        for id in self.mover.extents() {
            let Some(entry) = self.map.get(ExtentId(id)) else {
                continue;
            };
            if entry.whole().count() < self.layout().needed() {
                let members = entry.members.iter().map(|member| member.at);
                coming.extend(members.flat_map(|at| self.wire.coming(at).map(move |p| (at, p))));
            }
        }
        for (at, place) in coming {
            self.await_late(at, place);
        }
    }

    /// Whether a member has all its pages, or will have.
    pub(crate) fn is_sound(&self, member: &Member) -> bool {
        let Some(lag) = &member.lag else {
            return true;
        };
        let mut rest = lag.clone();
        for place in self.wire.coming(member.at) {
            rest[place as usize / 64] &= !(1 << (place % 64));
        }
        rest.iter().all(|marks| *marks == 0)
    }
}
