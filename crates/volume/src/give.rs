//! Members that go elsewhere though their servers stay: a server asks for some of its memory back, or one that
//! joined is given its part ([`policy::evenly`](muninn_policy::evenly)).
//!
//! An extent is marked ([`Leave`]) and moved like one of a server that drains. Invariant: marks for a server that
//! asks are as many as it takes, and no more than that once it asks for less.

use crate::extent::{ExtentId, Leave};
use crate::volume::Volume;
use muninn_policy::evenly;
use muninn_types::{PAGE_SIZE, ServerId};
use std::collections::BTreeSet;

impl Volume {
    /// A member that was to go is gone, or its extent is.
    pub(crate) fn has_gone(&mut self, id: ExtentId, server: ServerId) {
        if let Some(entry) = self.map.get_mut(id)
            && entry.leave.is_some_and(|leave| leave.from == server)
        {
            entry.leave = None;
        }
        if let Some(given) = self.given.get_mut(&server) {
            given.remove(&id.0);
        }
    }

    /// What is to go may be gone, or where it is to go there may be a member by now, or no place.
    pub(crate) fn forget_leave(&mut self, id: ExtentId) {
        let Some(entry) = self.map.get(id) else {
            return;
        };
        let Some(leave) = entry.leave else { return };
        let gone = entry.member(leave.from).is_none();
        let taken = leave.to.is_some_and(|to| {
            entry.member(to).is_some() || self.roster.is_draining(to) || self.roster.asked(to) > 0
        });
        if gone || taken {
            self.has_gone(id, leave.from);
        }
    }

    fn member_bytes(&self, id: ExtentId) -> u64 {
        let pages = self.map.get(id).map_or(0, |entry| entry.pages);
        u64::from(pages / self.layout().breadth()) * PAGE_SIZE as u64
    }

    /// Marks as many extents as servers ask for, or fewer than before.
    pub(crate) fn give_back_asked(&mut self) {
        for server in self.roster.ids() {
            let asked = self.roster.asked(server);
            let marked = self.given.get(&server).cloned().unwrap_or_default();
            if asked == 0 && marked.is_empty() {
                continue;
            }
            let free = |id: &ExtentId| {
                let leave = self.map.get(*id).and_then(|entry| entry.leave);
                leave.is_none() && !marked.contains(&id.0)
            };
            let others = self.map.at_server(server).into_iter().filter(free);
            let all: Vec<ExtentId> = marked
                .iter()
                .map(|id| ExtentId(*id))
                .chain(others)
                .collect();
            let sizes = all.iter().map(|id| self.member_bytes(*id));
            let count = evenly::enough(asked, sizes);
            let wanted: BTreeSet<u32> = all[..count].iter().map(|id| id.0).collect();
            for id in wanted.symmetric_difference(&marked) {
                let leave = Leave {
                    from: server,
                    to: None,
                };
                if let Some(entry) = self.map.get_mut(ExtentId(*id)) {
                    entry.leave = wanted.contains(id).then_some(leave);
                }
                self.check(ExtentId(*id));
            }
            self.given.insert(server, wanted);
        }
        self.given.retain(|_, marked| !marked.is_empty());
    }

    /// One extent more for a server that joined, if it has fewer than others.
    pub(crate) fn balance(&mut self) {
        let now = self.roster.now();
        if now < self.balance_at {
            return;
        }
        let fresh = self
            .roster
            .ids()
            .find(|server| self.roster.is_fresh(*server));
        let Some(to) = fresh else { return };
        if self.roster.is_suspected(to) || self.roster.is_away(to) {
            // It may be there later.
            return;
        }
        let stays = |server: &ServerId| !self.roster.is_draining(*server) && *server != to;
        let others = self.roster.ids().filter(stays);
        let others = others.map(|server| (server, self.map.count_at(server)));
        let gives_back = self.roster.is_draining(to) || self.roster.asked(to) > 0;
        let from = match gives_back {
            true => None,
            false => evenly::giver(self.map.count_at(to), others),
        };
        let extent = from.and_then(|from| {
            let mut there = self.map.ids_at(from);
            there.find(|id| self.may_go(*id, from, to))
        });
        let (Some(from), Some(id)) = (from, extent) else {
            self.roster.end_fresh(to);
            return;
        };
        self.balance_at = now.saturating_add(evenly::PAUSE);
        if let Some(entry) = self.map.get_mut(id) {
            entry.leave = Some(Leave { from, to: Some(to) });
        }
        self.check(id);
    }

    /// Whether a member of an extent can go there without coming nearer to another one.
    fn may_go(&self, id: ExtentId, from: ServerId, to: ServerId) -> bool {
        let Some(entry) = self.map.get(id).filter(|entry| entry.leave.is_none()) else {
            return false;
        };
        let domain = |server| self.roster.domain(server);
        let servers = || entry.members.iter().map(|member| member.at.server);
        let near = |place| servers().any(|s| s != from && domain(s) == domain(place));
        servers().all(|server| server != to) && (!near(to) || near(from))
    }

    /// A server that joined could not take what it was to be given: that was all. Whether it was for that.
    pub(crate) fn give_up_balance(&mut self, id: ExtentId) -> bool {
        let leave = self.map.get(id).and_then(|entry| entry.leave);
        let Some(Leave { to: Some(to), .. }) = leave else {
            return false;
        };
        if let Some(entry) = self.map.get_mut(id) {
            entry.leave = None;
        }
        self.roster.end_fresh(to);
        self.check(id);
        !self.mover.wants(id.0)
    }
}
