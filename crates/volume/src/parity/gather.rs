//! Reads pieces of rows until what is wanted of each is there or can be computed.
//!
//! Rows of one call travel together, one operation for each server. A piece that takes longer than usual
//! (`policy::hedge`) is no longer counted on: others of its row are asked for, and what comes first
//! counts. A piece that is not what was written is as good as none, and its member is made anew.

use super::{Parity, Row, standing};
use crate::VolumeError;
use crate::extent::{ExtentId, ExtentMap};
use crate::volume::{Page, Volume, pages_in};
use crate::wire::{Ended, Leg, LegState, OPERATION_PAGES, Post, add_page, add_post};
use muninn_net::Verb;
use muninn_policy::stripe::Pieces;
use muninn_types::{Class, PAGE_SIZE, ServerId};
use muninn_wire::Seg;

/// Which piece of a row a server holds.
pub(super) fn piece_at(map: &ExtentMap, row: &Row, server: ServerId) -> Option<usize> {
    let member = map.get(row.extent)?.member(server)?;
    Some(usize::from(member.piece))
}

/// Where the pieces of some rows lie at a server.
pub(super) fn row_segs<'a>(
    map: &ExtentMap,
    rows: impl Iterator<Item = &'a Row>,
    server: ServerId,
) -> Vec<Seg> {
    let mut segs: Vec<Seg> = Vec::new();
    for row in rows {
        let entry = map.get(row.extent).expect("it was looked up");
        let member = entry.member(server).expect("it was chosen for its member");
        add_page(&mut segs, member.at.grant, row.row);
    }
    segs
}

/// Members that turned out to be none.
#[derive(Default)]
struct Faults {
    liars: Vec<(ExtentId, ServerId)>,
    refused: Vec<(ExtentId, ServerId)>,
    /// What happened, for messages.
    why: Vec<String>,
}

impl Faults {
    fn note(&mut self, why: String) {
        if !self.why.contains(&why) {
            self.why.push(why);
        }
    }
}

impl Volume {
    /// Reads until all rows have what is wanted of them. With `check` all that was read is compared
    /// with its sum; otherwise only what is computed with.
    ///
    /// # Safety
    ///
    /// Pages that rows want something in must be writable and used by nobody else during the call.
    pub(super) unsafe fn gather(
        &mut self,
        rows: &mut [Row],
        class: Class,
        check: bool,
    ) -> Result<(), VolumeError> {
        assert!(rows.len() <= OPERATION_PAGES);
        let mut legs = std::mem::take(&mut self.legs);
        legs.clear();
        let mut faults = Faults::default();
        for server in self.roster().ids() {
            self.wire.look_behind(server);
        }
        self.take_in_late();
        // SAFETY: as the caller says.
        let gathered = unsafe { self.gather_legs(rows, class, check, &mut legs, &mut faults) };
        for leg in legs.iter().filter(|leg| leg.state == LegState::Waiting) {
            self.wire.leave_behind(leg, Vec::new());
        }
        self.legs = legs;
        for (extent, server) in faults.liars {
            self.distrust(extent, server);
        }
        gathered?;
        // Others had what was wanted: a server that refuses to give it has no piece.
        for (extent, server) in faults.refused {
            self.drop_member(extent, server);
        }
        // SAFETY: as the caller says.
        unsafe { self.compute(rows) }
    }

    /// # Safety
    ///
    /// As for [`Volume::gather`].
    unsafe fn gather_legs(
        &mut self,
        rows: &mut [Row],
        class: Class,
        check: bool,
        legs: &mut Vec<Leg>,
        faults: &mut Faults,
    ) -> Result<(), VolumeError> {
        let stripes = self.stripes();
        loop {
            self.note_late(rows, legs);
            // SAFETY: as the caller says.
            let refused = unsafe { self.ask(rows, class, legs, faults) }?;
            // SAFETY: as the caller says: pages that were read into are ours.
            let wrong = unsafe { self.check_rows(rows, check, faults) };
            let lacking = rows.iter().find(|row| !stripes.is_enough(&row.reading));
            let Some(lacking) = lacking else {
                return Ok(());
            };
            if refused || wrong {
                continue;
            }
            let waiting = legs.iter().filter(|leg| leg.state == LegState::Waiting);
            let waiting = waiting.count();
            if waiting == 0 {
                if self.take_in_late() || self.await_page(lacking.extent, lacking.row) {
                    continue;
                }
                return Err(self.lost(lacking.extent, &faults.why.join("; ")));
            }
            // Take turns.
            legs.rotate_left(1);
            let next = legs.iter().find(|leg| leg.state == LegState::Waiting);
            let leg = *next.expect("one waits");
            let wait = self.patience(&leg, waiting > 1, true)?;
            let Some((token, ended)) = self.wire.poll(&leg, wait) else {
                continue;
            };
            let Some(leg) = legs.iter_mut().find(|leg| leg.token == token) else {
                if let Ended::Well(buffer) = ended {
                    self.wire.give_back(buffer);
                }
                continue;
            };
            leg.state = match ended {
                Ended::Well(_) => LegState::Done,
                Ended::Refused(_) | Ended::Lost(_) => LegState::Failed,
            };
            let (server, mask) = (leg.server, leg.pages);
            let mut pieces = Vec::with_capacity(mask.count_ones() as usize);
            for at in pages_in(mask) {
                let row = &mut rows[at];
                let piece = piece_at(&self.map, row, server).expect("it was asked for it");
                row.reading.waiting = row.reading.waiting & !Pieces::one(piece);
                pieces.push((at, piece));
            }
            match ended {
                Ended::Well(buffer) => {
                    let (pages, _) = buffer.as_ref().as_chunks::<PAGE_SIZE>();
                    for (from, (at, piece)) in pages.iter().zip(pieces) {
                        let page = rows[at].page(piece, &mut self.parity().scratch);
                        // SAFETY: ours, or writable as the caller says.
                        unsafe { *page = *from };
                        rows[at].reading.got |= Pieces::one(piece);
                    }
                    self.wire.give_back(buffer);
                }
                Ended::Refused(text) => {
                    let refused = pieces.iter().map(|(at, _)| (rows[*at].extent, server));
                    faults.refused.extend(refused);
                    faults.note(text);
                }
                Ended::Lost(text) => faults.note(text),
            }
        }
    }

    /// Counts no longer on what is late, and suspects who has been silent for too long.
    fn note_late(&mut self, rows: &mut [Row], legs: &mut [Leg]) {
        let (now, stripes) = (self.roster.now(), self.stripes());
        for leg in legs.iter_mut().filter(|l| l.state == LegState::Waiting) {
            let latency = self.wire.latency(leg.server);
            let elsewhere = |at: usize| {
                let entry = self.map.get(rows[at].extent);
                entry.is_some_and(|entry| entry.whole().count() > stripes.data())
            };
            if now > leg.posted_at.saturating_add(latency.suspect_after())
                && pages_in(leg.pages).all(elsewhere)
            {
                self.roster().suspect(leg.server);
            }
            if leg.hedged || now < leg.posted_at.saturating_add(latency.hedge_after()) {
                continue;
            }
            leg.hedged = true;
            for at in pages_in(leg.pages) {
                if let Some(piece) = piece_at(&self.map, &rows[at], leg.server) {
                    let waiting = rows[at].reading.waiting;
                    rows[at].reading.waiting = waiting & !Pieces::one(piece);
                }
            }
        }
    }

    /// Asks for what is to be asked for; whether somebody could not be asked.
    ///
    /// # Safety
    ///
    /// As for [`Volume::gather`].
    unsafe fn ask(
        &mut self,
        rows: &mut [Row],
        class: Class,
        legs: &mut Vec<Leg>,
        faults: &mut Faults,
    ) -> Result<bool, VolumeError> {
        let stripes = self.stripes();
        let mut posts: Vec<Post> = Vec::new();
        for (at, row) in rows.iter_mut().enumerate() {
            if stripes.is_enough(&row.reading) {
                continue;
            }
            let Some(entry) = self.map.get(row.extent) else {
                let text = format!("{} is not there any more", row.extent);
                return Err(VolumeError::Lost(text));
            };
            let (sure, unsure) = standing(&self.roster, entry, row.row);
            let ask = stripes.to_ask(&row.reading, sure, unsure);
            row.reading.asked |= ask;
            for piece in ask.iter() {
                let member = entry.holder(piece).expect("it counts");
                let Some(far) = member.place(row.row) else {
                    row.reading.waiting |= Pieces::one(piece);
                    add_post(&mut posts, member.at, at);
                    continue;
                };
                let parity = self.parity.as_mut().expect("only with parity");
                let page = row.page(piece, &mut parity.scratch);
                // SAFETY: `far` lies in a mapping that its member keeps; the page is ours, or writable
                // as the caller says.
                unsafe { far.copy_to_nonoverlapping(page, 1) };
                row.reading.got |= Pieces::one(piece);
            }
        }
        let mut refused = false;
        for (to, mask) in posts {
            let segs = row_segs(&self.map, pages_in(mask).map(|at| &rows[at]), to.server);
            let data = (segs, self.wire.buffer(), mask);
            let posted = self
                .wire
                .post(to.server, to.generation, class, Verb::Read, data);
            match posted {
                Ok(leg) => legs.push(leg),
                Err(text) => {
                    refused = true;
                    faults.note(text);
                    for at in pages_in(mask) {
                        let piece = piece_at(&self.map, &rows[at], to.server);
                        let piece = Pieces::one(piece.expect("it was chosen for it"));
                        rows[at].reading.waiting = rows[at].reading.waiting & !piece;
                    }
                }
            }
        }
        Ok(refused)
    }

    /// Compares what is computed with, or everything, with the sums; whether something was wrong.
    ///
    /// # Safety
    ///
    /// Pages of pieces that rows have got must be readable.
    unsafe fn check_rows(&mut self, rows: &mut [Row], all: bool, faults: &mut Faults) -> bool {
        let stripes = self.stripes();
        let mut wrong = false;
        for row in rows.iter_mut() {
            let computed = !row.reading.wanted.all_in(row.reading.got);
            if !stripes.is_enough(&row.reading) || !(computed || all) {
                continue;
            }
            let Some(entry) = self.map.get(row.extent) else {
                continue;
            };
            let Some(sums) = &entry.sums else { continue };
            for piece in (row.reading.got & !row.checked).iter() {
                // SAFETY: as the caller says.
                if sums.is_right(row.row, piece, unsafe { &*row.pages[piece] }) {
                    row.checked |= Pieces::one(piece);
                    continue;
                }
                wrong = true;
                row.reading.got = row.reading.got & !Pieces::one(piece);
                if let Some(member) = entry.holder(piece) {
                    let fault = (row.extent, member.at.server);
                    let at = self.roster.address(member.at.server);
                    faults.note(format!("the server at {at} gave back other bytes"));
                    if !faults.liars.contains(&fault) {
                        faults.liars.push(fault);
                    }
                }
            }
        }
        wrong
    }

    /// Computes what is wanted and was not read.
    ///
    /// # Safety
    ///
    /// As for [`Volume::gather`].
    unsafe fn compute(&mut self, rows: &mut [Row]) -> Result<(), VolumeError> {
        for row in rows {
            let missing = row.reading.wanted & !row.reading.got;
            for piece in missing.iter() {
                let parity = self.parity();
                let recipe = parity.recipe(row.reading.got, piece);
                let Parity {
                    vector, scratch, ..
                } = parity;
                let out = row.page(piece, scratch);
                // SAFETY: ours, or writable as the caller says; no piece that was got is there.
                let out: &mut Page = unsafe { &mut *out };
                // SAFETY: pieces that were got, each in a page of its own.
                recipe.make(*vector, out, |at| unsafe { &*row.pages[at] });
                let entry = self.map.get(row.extent);
                let sums = entry.and_then(|entry| entry.sums.as_ref());
                if sums.is_some_and(|sums| !sums.is_right(row.row, piece, out)) {
                    return Err(self.lost(row.extent, "they do not fit together"));
                }
            }
        }
        Ok(())
    }
}
