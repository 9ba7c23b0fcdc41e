//! Writes pages of rows, and the parity of these rows.
//!
//! A write is done when every member that it touches has it. One that does not answer in time is not
//! waited for if the others keep the row; it is no member any more. Pages of a row that are not
//! written are read first, unless nobody has ever written them.

use super::gather::{add_post, row_segs};
use super::{Row, standing};
use crate::VolumeError;
use crate::extent::{ExtentId, Holding};
use crate::volume::{GLANCE, Page, Transfer, Volume, pages_in};
use crate::wire::{Ended, Leg, LegState};
use muninn_net::Verb;
use muninn_policy::stripe::{PIECES_MAX, Pieces};
use muninn_types::{Class, PAGE_SIZE, ServerId};
use std::ptr;

/// What is written to a row.
struct Change {
    /// Pages that are given.
    new: Pieces,
    /// Those and the parity, where each is; null for what is not written.
    pages: [*const Page; PIECES_MAX],
    /// Members that have the row as it is to be, and of these those that answer.
    valid: Pieces,
    sure: Pieces,
}

impl Change {
    /// A member has it.
    fn has(&mut self, piece: usize) {
        self.valid |= Pieces::one(piece);
        self.sure |= Pieces::one(piece);
    }
}

/// Members that missed a write.
type Missed = Vec<(ExtentId, ServerId)>;

fn miss(missed: &mut Missed, extent: ExtentId, server: ServerId) {
    if !missed.contains(&(extent, server)) {
        missed.push((extent, server));
    }
}

impl Volume {
    /// # Safety
    ///
    /// As for [`Volume::write`].
    pub(crate) unsafe fn write_rows(
        &mut self,
        batch: &[Transfer],
        class: Class,
    ) -> Result<(), VolumeError> {
        self.parity().scratch.used = 0;
        let (mut rows, mut changes) = self.rows_of(batch);
        self.pass_over(&rows, &changes)?;
        self.want_old(&mut rows, &changes);
        // SAFETY: what is wanted goes to pages of ours.
        unsafe { self.gather(&mut rows, class, true) }?;
        // SAFETY: what was gathered is ours, what is new is readable as the caller says.
        unsafe { self.encode(&rows, &mut changes) };
        let mut legs = std::mem::take(&mut self.legs);
        legs.clear();
        // SAFETY: as above.
        let written = unsafe { self.post_changes(&rows, &mut changes, class, &mut legs) };
        for leg in legs.iter().filter(|leg| leg.state == LegState::Waiting) {
            self.wire.leave_behind(leg);
        }
        self.legs = legs;
        for (extent, server) in written? {
            self.drop_member(extent, server);
        }
        for (row, change) in rows.iter().zip(&changes) {
            let touched = self.stripes().touched(change.new);
            let Some(entry) = self.map.get_mut(row.extent) else {
                continue;
            };
            let sums = entry.sums.as_ref().expect("rows have sums");
            for piece in touched.iter() {
                match change.pages[piece].is_null() {
                    true => sums.forget(row.row, piece),
                    // SAFETY: readable, as above.
                    false => sums.note(row.row, piece, unsafe { &*change.pages[piece] }),
                }
            }
            // Last: the mover compares what it reads with the sums.
            entry.note_row(row.row);
        }
        Ok(())
    }

    fn rows_of(&self, batch: &[Transfer]) -> (Vec<Row>, Vec<Change>) {
        let stripes = self.stripes();
        let (mut rows, mut changes): (Vec<Row>, Vec<Change>) = (Vec::new(), Vec::new());
        for transfer in batch {
            let (number, piece) = stripes.row_of(transfer.place);
            let same = |row: &Row| row.extent == transfer.extent && row.row == number;
            let at = rows.iter().rposition(same).unwrap_or_else(|| {
                rows.push(Row::new(transfer.extent, number));
                changes.push(Change {
                    new: Pieces::NONE,
                    pages: [ptr::null(); PIECES_MAX],
                    valid: Pieces::NONE,
                    sure: Pieces::NONE,
                });
                rows.len() - 1
            });
            changes[at].new |= Pieces::one(piece);
            changes[at].pages[piece] = transfer.near;
        }
        (rows, changes)
    }

    /// Members that are gone, and those that need not be waited for, are none any more.
    fn pass_over(&mut self, rows: &[Row], changes: &[Change]) -> Result<(), VolumeError> {
        let stripes = self.stripes();
        let mut missed = Missed::new();
        for (row, change) in rows.iter().zip(changes) {
            let Some(entry) = self.map.get(row.extent) else {
                let text = format!("{} is not there any more", row.extent);
                return Err(VolumeError::Lost(text));
            };
            let (sure, unsure) = standing(&self.roster, entry);
            if !stripes.suffice(sure | unsure) {
                return Err(self.lost(row.extent, "others are gone"));
            }
            let touched = stripes.touched(change.new);
            let over = stripes.passed_over(touched, sure, unsure);
            let gone = entry.pieces() & !(sure | unsure);
            for piece in (over | gone).iter() {
                if let Some(member) = entry.holder(piece) {
                    miss(&mut missed, row.extent, member.at.server);
                }
            }
        }
        for (extent, server) in missed {
            self.drop_member(extent, server);
        }
        Ok(())
    }

    /// Pages of the rows that are not written are needed for the parity.
    fn want_old(&mut self, rows: &mut [Row], changes: &[Change]) {
        let stripes = self.stripes();
        for (row, change) in rows.iter_mut().zip(changes) {
            let Some(entry) = self.map.get(row.extent) else {
                continue;
            };
            if (entry.pieces() & stripes.parity_pieces()).is_empty() {
                continue;
            }
            let old = stripes.data_pieces() & !change.new;
            let sums = entry.sums.as_ref().expect("rows have sums");
            let zeros = old & sums.zeros(row.row);
            row.reading.wanted = old & !zeros;
            row.reading.got = zeros;
            row.reading.asked = zeros;
            let parity = self.parity.as_mut().expect("only with parity");
            for piece in zeros.iter() {
                row.pages[piece] = &raw mut *parity.zeros;
            }
        }
    }

    /// Computes the parity of all rows that have some.
    ///
    /// # Safety
    ///
    /// What is wanted of the rows was gathered; pages of the changes are readable.
    unsafe fn encode(&mut self, rows: &[Row], changes: &mut [Change]) {
        let stripes = self.stripes();
        for (row, change) in rows.iter().zip(changes) {
            let entry = self.map.get(row.extent);
            let pieces = entry.map_or(Pieces::NONE, |entry| entry.pieces());
            if (pieces & stripes.parity_pieces()).is_empty() {
                continue;
            }
            let data: [*const Page; PIECES_MAX] =
                std::array::from_fn(|piece| match change.new.has(piece) {
                    true => change.pages[piece],
                    false => row.pages[piece].cast_const(),
                });
            let parity = self.parity.as_mut().expect("only with parity");
            for (recipe, piece) in parity.encode.iter().zip(stripes.parity_pieces().iter()) {
                let out = parity.scratch.take();
                // SAFETY: just taken; what it is computed from is readable, as the caller says.
                recipe.make(parity.vector, unsafe { &mut *out }, |at| unsafe {
                    assert!(!data[at].is_null());
                    &*data[at]
                });
                change.pages[piece] = out;
            }
        }
    }

    /// Writes to all members that are touched; those that missed it.
    ///
    /// # Safety
    ///
    /// As for [`Volume::encode`].
    unsafe fn post_changes(
        &mut self,
        rows: &[Row],
        changes: &mut [Change],
        class: Class,
        legs: &mut Vec<Leg>,
    ) -> Result<Missed, VolumeError> {
        let mut missed = Missed::new();
        let mut why = String::new();
        let mut posts: Vec<(Holding, u64)> = Vec::new();
        for (at, (row, change)) in rows.iter().zip(&mut *changes).enumerate() {
            let touched = self.stripes().touched(change.new);
            let Some(entry) = self.map.get(row.extent) else {
                continue;
            };
            let (sure, _) = standing(&self.roster, entry);
            change.valid = entry.pieces() & !touched;
            change.sure = change.valid & sure;
            for piece in touched.iter() {
                let Some(member) = entry.holder(piece) else {
                    continue;
                };
                // Parity was not computed where none was there; nobody can have joined since.
                assert!(!change.pages[piece].is_null());
                let Some(far) = member.place(row.row) else {
                    add_post(&mut posts, member.at, at);
                    continue;
                };
                // SAFETY: `far` lies in a mapping that its member keeps; the page is readable.
                unsafe { far.copy_from_nonoverlapping(change.pages[piece], 1) };
                change.has(piece);
            }
        }
        for (to, mask) in posts {
            let segs = row_segs(&self.map, pages_in(mask).map(|at| &rows[at]), to.server);
            let mut buffer = self.wire.buffer();
            let (room, _) = buffer.as_mut().as_chunks_mut::<PAGE_SIZE>();
            for (room, at) in room.iter_mut().zip(pages_in(mask)) {
                let piece = self.piece_of(&rows[at], to.server);
                // SAFETY: readable, as the caller says.
                *room = unsafe { *changes[at].pages[piece] };
            }
            let data = (segs, buffer, mask);
            let posted = self
                .wire
                .post(to.server, to.generation, class, Verb::Write, data);
            match posted {
                Ok(leg) => legs.push(leg),
                Err(text) => {
                    why = text;
                    self.give_up(rows, changes, (to.server, mask), &mut missed);
                }
            }
        }
        self.await_changes(rows, changes, legs, &mut missed, &mut why)?;
        let kept = |change: &Change| self.stripes().suffice(change.valid);
        if let Some(at) = changes.iter().position(|change| !kept(change)) {
            return Err(self.lost(rows[at].extent, &why));
        }
        Ok(missed)
    }

    /// A server missed its part of some rows: it is no member of their extents any more, and so keeps no
    /// other row of them either.
    fn give_up(
        &self,
        rows: &[Row],
        changes: &mut [Change],
        (server, mask): (ServerId, u64),
        missed: &mut Missed,
    ) {
        for at in pages_in(mask) {
            miss(missed, rows[at].extent, server);
        }
        for (row, change) in rows.iter().zip(changes) {
            if missed.contains(&(row.extent, server))
                && let Some(piece) = super::gather::piece_at(&self.map, row, server)
            {
                change.valid = change.valid & !Pieces::one(piece);
                change.sure = change.sure & !Pieces::one(piece);
            }
        }
    }

    fn piece_of(&self, row: &Row, server: ServerId) -> usize {
        let piece = super::gather::piece_at(&self.map, row, server);
        piece.expect("it was chosen for its piece")
    }

    /// Waits until all have answered, or those that have not are not worth waiting for.
    fn await_changes(
        &mut self,
        rows: &[Row],
        changes: &mut [Change],
        legs: &mut [Leg],
        missed: &mut Missed,
        why: &mut String,
    ) -> Result<(), VolumeError> {
        let stripes = self.stripes();
        loop {
            let waiting = legs.iter().filter(|leg| leg.state == LegState::Waiting);
            let waiting = waiting.count();
            if waiting == 0 {
                return Ok(());
            }
            legs.rotate_left(1);
            let next = legs.iter_mut().find(|leg| leg.state == LegState::Waiting);
            let leg = next.expect("one waits");
            let patience = self.wire.latency(leg.server).suspect_after();
            if pages_in(leg.pages).all(|at| stripes.suffice(changes[at].sure))
                && self.roster.now() > leg.posted_at.saturating_add(patience)
            {
                // It is not waited for, and what it missed is no piece any more.
                self.roster.suspect(leg.server);
                self.wire.leave_behind(leg);
                leg.state = LegState::Failed;
                let given_up = (leg.server, leg.pages);
                self.give_up(rows, changes, given_up, missed);
                continue;
            }
            let leg = *leg;
            self.patience(&leg, waiting > 1, true)?;
            let Some((token, ended)) = self.wire.poll(&leg, GLANCE) else {
                continue;
            };
            // One that was given up counts no more, even if it comes now.
            let awaited = |leg: &&mut Leg| leg.token == token && leg.state == LegState::Waiting;
            let Some(leg) = legs.iter_mut().find(awaited) else {
                if let Ended::Well(buffer) = ended {
                    self.wire.give_back(buffer);
                }
                continue;
            };
            match ended {
                Ended::Well(buffer) => {
                    leg.state = LegState::Done;
                    for at in pages_in(leg.pages) {
                        if !missed.contains(&(rows[at].extent, leg.server)) {
                            let piece = self.piece_of(&rows[at], leg.server);
                            changes[at].has(piece);
                        }
                    }
                    self.wire.give_back(buffer);
                }
                Ended::Refused(text) | Ended::Lost(text) => {
                    leg.state = LegState::Failed;
                    *why = text;
                    let given_up = (leg.server, leg.pages);
                    self.give_up(rows, changes, given_up, missed);
                }
            }
        }
    }
}
