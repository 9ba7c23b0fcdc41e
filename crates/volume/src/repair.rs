//! The mover's part that needs the map: what is copied, and when a copy counts.

use crate::clerk::Moved;
use crate::extent::{Entry, ExtentId, Fill, Holding};
use crate::mover::{Order, Rows};
use crate::volume::{GLANCE, Page, Transfer, Volume};
use crate::wire::Ended;
use muninn_net::{Buffer, Verb};
use muninn_policy::stripe::Pieces;
use muninn_sys::clock;
use muninn_types::{Class, PAGE_SIZE, ServerId};
use muninn_wire::Seg;
use std::sync::Arc;

impl Volume {
    pub(crate) fn order_next(&mut self) {
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
            rows: layout
                .stripes()
                .zip(sums)
                .map(|(stripes, sums)| Rows { stripes, sums }),
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
            let pages = moved.pages * self.layout().breadth();
            let same = entry.pages == pages && entry.members.len() >= self.layout().needed();
            same && entry.member(target.server).is_none()
        });
        // With parity: whom the new member takes over from.
        let before = self.map.get(id).filter(|_| self.parity.is_some());
        let before = before.and_then(|entry| entry.holder(usize::from(moved.piece)));
        let before = before.map(|member| member.at.server);
        let known = known && before.is_none_or(|server| self.roster.is_draining(server));
        // An id that was used again since names another extent, which has no fill.
        let filled = match (known, fill) {
            (true, Some(fill)) if self.roster.counts(&target) => {
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
        if let Some(server) = before {
            self.drop_member(id, server);
        }
        let member = self.member(moved.piece, target);
        self.map.add_member(id, member);
        self.repaired += 1;
        // One that is to be emptied has a successor now.
        let entry = self.map.get(id).expect("it was just looked up");
        if entry.members.len() > self.layout().members() {
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
    fn fill_rest(&mut self, id: ExtentId, piece: u8, target: Holding, fill: &Fill) -> bool {
        let member = self.member(piece, target);
        let members = |volume: &Volume| volume.map.get(id).map_or(0, |e| e.members.len());
        let before = members(self);
        let is_whole = |volume: &Volume| volume.parity.is_none() || members(volume) == before;
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
        let transfer = Transfer {
            extent: id,
            place,
            near: page,
        };
        // SAFETY: the page is borrowed for the call.
        unsafe { self.read(&[transfer], Class::Prefetch) }.is_ok()
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
