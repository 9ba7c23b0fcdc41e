//! The mover's part that needs the map: what is copied, and when a copy counts.

use crate::clerk::Moved;
use crate::extent::{Entry, ExtentId, Fill, Holding, Member, WORDS};
use crate::mover::Order;
use crate::volume::{GLANCE, Page, Transfer, Volume};
use crate::wire::Ended;
use muninn_net::{Buffer, Verb};
use muninn_policy::layout::Layout;
use muninn_policy::mover::Reason;
use muninn_policy::stripe::Pieces;
use muninn_types::{Class, PAGE_SIZE, ServerId};
use muninn_wire::Seg;
use std::sync::Arc;

/// Where a new member comes in.
enum Place {
    Free,
    /// Of one that is to be emptied, or was silent for too long.
    Of(ServerId),
}

/// What an extent needs.
enum Task {
    /// A new member with a piece.
    Make(u8),
    /// A member that fell behind gets what it lacks.
    CatchUp(u8, Holding),
    /// Time: servers may answer again.
    Wait,
}

impl Volume {
    pub(crate) fn order_next(&mut self) {
        let now = self.roster.now();
        let (number, reason) = loop {
            let Some((number, reason)) = self.mover.poll_next(now) else {
                return;
            };
            // It may be well by now: a drain was cancelled.
            self.check(ExtentId(number));
            if self.mover.wants(number) {
                break (number, reason);
            }
        };
        let id = ExtentId(number);
        let layout = self.layout();
        let Some(task) = self.map.get(id).and_then(|entry| self.task(entry)) else {
            self.mover.handle_well(number);
            return;
        };
        let Some(entry) = self.map.get_mut(id) else {
            return;
        };
        let (piece, target) = match task {
            Task::Make(piece) => (piece, None),
            Task::CatchUp(piece, at) => (piece, Some(at)),
            Task::Wait => {
                self.mover.handle_not_yet(number, now);
                return;
            }
        };
        let lag = target.and_then(|at| entry.member(at.server)?.lag.as_ref());
        let fill = match lag {
            Some(lag) => Fill::of(lag),
            None => entry.to_fill(),
        };
        let fill = Arc::new(fill.for_member(target));
        entry.fill = Some(Arc::clone(&fill));
        let members = entry.whole().map(|member| (member.piece, member.at));
        let sums = entry.sums.clone();
        let order = Order {
            pages: entry.pages / layout.breadth(),
            piece,
            members: members.collect(),
            target,
            taken: entry.members.iter().map(|m| m.at.server).collect(),
            to: entry
                .leave
                .and_then(|leave| leave.to)
                .filter(|_| reason == Reason::Balance),
            degraded: matches!(reason, Reason::Degraded { .. }),
            fill,
            stripes: layout.stripes(),
            sums,
        };
        self.moving = Some(id);
        self.clerk.give_order(order);
    }

    /// What is to be done about an extent; `None` if it is well.
    fn task(&self, entry: &Entry) -> Option<Task> {
        if entry.whole().count() < self.layout().needed() {
            // What the others lack is on its way to them, or lost.
            return Some(Task::Wait);
        }
        // Whole copies are all alike.
        let missing = match self.layout().stripes() {
            Some(stripes) => Pieces::first(stripes.pieces()) & !entry.pieces(),
            None if entry.members.len() < self.layout().members() => Pieces::one(0),
            None => Pieces::NONE,
        };
        if let Some(piece) = missing.iter().next() {
            return Some(Task::Make(piece as u8));
        }
        let behind = || entry.members.iter().filter(|member| !member.is_whole());
        let answers = |member: &&Member| {
            let server = member.at.server;
            let silent = self.roster.is_suspected(server) || self.wire.may_change(member.at);
            !silent && !self.roster.is_draining(server)
        };
        if let Some(member) = behind().find(answers) {
            return Some(Task::CatchUp(member.piece, member.at));
        }
        let leaving = entry.members.iter().find(|m| self.is_leaving(entry, m));
        match leaving {
            Some(member) => Some(Task::Make(member.piece)),
            None => behind().next().map(|_| Task::Wait),
        }
    }

    /// Whether another should take a member's place.
    fn is_leaving(&self, entry: &Entry, member: &Member) -> bool {
        let server = member.at.server;
        if entry.leave.is_some_and(|leave| leave.from == server) {
            return true;
        }
        let silent = self.roster.is_given_up(server) || self.wire.is_given_up(server);
        silent && !member.is_whole() || self.roster.is_draining(server)
    }

    /// The clerk has copied what it was told to, or could not.
    pub(crate) fn finish(&mut self, moved: Moved) {
        let Some(id) = self.moving.take() else {
            return;
        };
        let now = self.roster.now();
        let fill = self.map.get_mut(id).and_then(|entry| entry.fill.take());
        if let Some(at) = moved.behind {
            self.finish_catching_up(id, at, moved, fill.as_deref());
            return;
        }
        let target = match moved.target {
            Ok(target) => target,
            Err(why) => {
                if let Some(why) = why
                    && !self.give_up_balance(id)
                {
                    self.clerk.say_once(&why);
                    self.mover.handle_refusal(id.0, now);
                }
                self.clerk.note_to_move(self.mover.len());
                return;
            }
        };
        let known = self.map.get(id).is_some_and(|entry| {
            let pages = moved.pages * self.layout().breadth();
            let same = entry.pages == pages && entry.whole().count() >= self.layout().needed();
            same && entry.member(target.server).is_none()
        });
        let entry = self.map.get(id).filter(|_| known);
        let place = entry.and_then(|entry| self.place_for(entry, moved.piece));
        // An id that was used again since names another extent, which has no fill.
        let filled = match (&place, fill) {
            (Some(_), Some(fill)) if self.roster.counts(&target) => {
                self.fill_rest(id, moved.piece, target, &fill)
            }
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
        if let Some(Place::Of(server)) = place {
            self.drop_member(id, server);
            self.distrust_if_deaf(server);
        }
        let member = self.member(moved.piece, target);
        self.map.add_member(id, member);
        self.repaired += 1;
        self.check(id);
        self.clerk.note_to_move(self.mover.len());
    }

    /// A member that had fallen behind has what it lacked, or not.
    fn finish_catching_up(&mut self, id: ExtentId, at: Holding, moved: Moved, fill: Option<&Fill>) {
        let members = self.map.get(id).map_or(&[][..], |entry| &entry.members);
        let known = members.iter().any(|member| member.at == at);
        // Otherwise the extent, or the member, is gone.
        if let Some(fill) = fill.filter(|fill| known && fill.behind == Some(at)) {
            let caught_up = match moved.target {
                Ok(_) => self.roster.counts(&at) && self.fill_rest(id, moved.piece, at, fill),
                // The clerk was interrupted, between two runs.
                Err(None) => {
                    self.map.set_lag(id, &at, fill.rest());
                    self.check(id);
                    self.clerk.note_to_move(self.mover.len());
                    return;
                }
                Err(Some(_)) => false,
            };
            match caught_up {
                true => self.map.set_lag(id, &at, [0; WORDS]),
                // A write may still be on its way there, of which nobody knows.
                false => self.drop_member(id, at.server),
            }
            self.check(id);
        }
        self.clerk.note_to_move(self.mover.len());
    }

    /// A server whose place was taken because it does nothing would be given the next extent at once: its
    /// heartbeats are answered.
    fn distrust_if_deaf(&mut self, server: ServerId) {
        if self.roster.is_given_up(server) || !self.wire.is_given_up(server) {
            return;
        }
        if !self.roster.is_distrusted(server) {
            let at = self.roster.address(server);
            self.roster.tell(&format!(
                "the server at {at} says that it is there, and does nothing that it is asked for; others are \
                 given what it had"
            ));
        }
        self.roster.distrust(server);
    }

    /// The place that a new member has in an extent; `None` if it is not needed any more, because a drain
    /// was cancelled or a server answers again.
    fn place_for(&self, entry: &Entry, piece: u8) -> Option<Place> {
        let mut members = entry.members.iter();
        let leaving = |member: &&Member| self.is_leaving(entry, member);
        let of = |member: &Member| Place::Of(member.at.server);
        match self.layout() {
            Layout::Parity(_) => match entry.holder(usize::from(piece)) {
                None => Some(Place::Free),
                Some(member) => Some(member).filter(leaving).map(of),
            },
            layout if entry.members.len() < layout.members() => Some(Place::Free),
            _ => members.find(leaving).map(of),
        }
    }

    /// Takes in what the clerk has copied so far: a child is about to be given all there is.
    pub(crate) fn settle_move(&mut self) {
        if let Some(moved) = self.clerk.take_moved() {
            self.finish(moved);
        }
    }

    /// Copies what was written while the mover copied. Nobody else writes meanwhile.
    fn fill_rest(&mut self, id: ExtentId, piece: u8, target: Holding, fill: &Fill) -> bool {
        let member = self.member(piece, target);
        let members = |volume: &Volume| volume.map.get(id).map_or(0, |e| e.members.len());
        let before = members(self);
        let is_whole = |volume: &Volume| members(volume) == before;
        let mut page: Box<Page> = Box::new([0; PAGE_SIZE]);
        let mut from = 0;
        while let Some((first, len)) = fill.take_run(from) {
            from = first + len;
            for place in first..first + len {
                // Where somebody was found to lie, the mover left all that he spoiled to us: it is done
                // by the mover, without him.
                if !self.read_to_fill(id, piece, place, &mut page) || !is_whole(self) {
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

    /// Reads what a new member is to hold at a place of its own.
    fn read_to_fill(&mut self, id: ExtentId, piece: u8, place: u32, page: &mut Page) -> bool {
        if self.parity.is_some() {
            let piece = usize::from(piece);
            return self.make_piece(id, place, piece, page).is_ok();
        }
        let sums = self.map.get(id).and_then(|entry| entry.sums.clone());
        let is_right = |page: *const Page| {
            // SAFETY: the page is borrowed for the call.
            let page = unsafe { &*page };
            sums.as_ref()
                .is_none_or(|sums| sums.is_right(place, 0, page))
        };
        let near: *mut Page = page;
        let transfer = Transfer {
            extent: id,
            place,
            near,
        };
        // SAFETY: as above.
        if unsafe { self.read(&[transfer], Class::Prefetch) }.is_err() {
            return false;
        }
        // One copy after the other until one is right, as the pager does.
        let (mut wrong, mut n) = (Vec::new(), 0);
        while !is_right(near) {
            // SAFETY: as above.
            match unsafe { self.read_copy(&transfer, Class::Prefetch, n) } {
                None => return false,
                Some(Ok(server)) if !is_right(near) => wrong.push(server),
                Some(_) => {}
            }
            n += 1;
        }
        for server in wrong {
            self.distrust(id, server);
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
            if self.roster.now() > leg.posted_at.saturating_add(patience) {
                self.wire.leave_behind(&leg, Vec::new());
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
