//! The mover's part that needs the map: what is copied, and when a copy counts.

use crate::clerk::Moved;
use crate::extent::{Entry, ExtentId, Fill, Holding, Member};
use crate::mover::Order;
use crate::volume::{GLANCE, Page, Transfer, Volume};
use crate::wire::Ended;
use muninn_net::{Buffer, Verb};
use muninn_policy::layout::Layout;
use muninn_policy::stripe::Pieces;
use muninn_types::{Class, PAGE_SIZE, ServerId};
use muninn_wire::Seg;
use std::sync::Arc;

/// Where a new member comes in.
enum Place {
    Free,
    /// Of one that is to be emptied.
    Of(ServerId),
}

impl Volume {
    pub(crate) fn order_next(&mut self) {
        let now = self.roster.now();
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
        let layout = self.layout();
        let piece = self.map.get(id).and_then(|entry| self.piece_to_make(entry));
        let (Some(entry), Some(piece)) = (self.map.get_mut(id), piece) else {
            self.mover.handle_well(number);
            return;
        };
        let fill = Arc::new(entry.to_fill());
        entry.fill = Some(Arc::clone(&fill));
        let members = entry.members.iter().map(|member| (member.piece, member.at));
        let sums = entry.sums.clone();
        let order = Order {
            pages: entry.pages / layout.breadth(),
            piece: piece as u8,
            members: members.collect(),
            fill,
            stripes: layout.stripes(),
            sums,
        };
        self.moving = Some(id);
        self.clerk.give_order(order);
    }

    /// Which piece a new member of an extent is to hold: one that nobody holds, or somebody who is to be
    /// emptied. Whole copies are all alike.
    fn piece_to_make(&self, entry: &Entry) -> Option<usize> {
        let Some(stripes) = self.layout().stripes() else {
            return Some(0);
        };
        let missing = Pieces::first(stripes.pieces()) & !entry.pieces();
        let mut members = entry.members.iter();
        missing.iter().next().or_else(|| {
            let leaving = members.find(|member| self.roster.is_draining(member.at.server));
            Some(usize::from(leaving?.piece))
        })
    }

    /// The clerk has copied what it was told to, or could not.
    pub(crate) fn finish(&mut self, moved: Moved) {
        let Some(id) = self.moving.take() else {
            return;
        };
        let now = self.roster.now();
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
            let pages = moved.pages * self.layout().breadth();
            let same = entry.pages == pages && entry.members.len() >= self.layout().needed();
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
        }
        let member = self.member(moved.piece, target);
        self.map.add_member(id, member);
        self.repaired += 1;
        self.check(id);
        self.clerk.note_to_move(self.mover.len());
    }

    /// The place that a new member has in an extent; `None` if it is not needed any more, because a drain
    /// was cancelled.
    fn place_for(&self, entry: &Entry, piece: u8) -> Option<Place> {
        let mut members = entry.members.iter();
        let leaving = |member: &&Member| self.roster.is_draining(member.at.server);
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
