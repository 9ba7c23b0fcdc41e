//! Writes pages of rows, and the parity of these rows.
//!
//! A write is done when every member that it touches has it. One that does not answer in time is not
//! waited for if the others keep the row; it has fallen behind ([`lag`](crate::lag)). Pages of a row that are not
//! written are read first, unless nobody has ever written them.

use super::Row;
use super::gather::row_segs;
use crate::VolumeError;
use crate::extent::{Entry, ExtentId, Member};
use crate::lag::Way;
use crate::volume::{GLANCE, Page, Transfer, Volume, pages_in};
use crate::wire::{Ended, Leg, LegState, Post, Posts, add_post};
use muninn_net::Verb;
use muninn_policy::stripe::{PIECES_MAX, Pieces};
use muninn_types::{Class, PAGE_SIZE, ServerId};
use std::ptr;
use std::time::Duration;

/// What is written to a row.
struct Change {
    /// Pages that are given.
    new: Pieces,
    /// Those and the parity, where each is; null for what is not written.
    pages: [*const Page; PIECES_MAX],
    /// Members that have the row as it is to be, and answer.
    sure: Pieces,
}

impl Change {
    /// A member has it.
    fn has(&mut self, piece: usize) {
        self.sure |= Pieces::one(piece);
    }
}

/// Members that failed: they are none any more.
type Failed = Vec<(ExtentId, ServerId)>;

fn fail(failed: &mut Failed, extent: ExtentId, server: ServerId) {
    if !failed.contains(&(extent, server)) {
        failed.push((extent, server));
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
        self.drop_gone(&rows)?;
        self.want_old(&mut rows, &changes);
        // SAFETY: what is wanted goes to pages of ours.
        unsafe { self.gather(&mut rows, class, true) }?;
        // SAFETY: what was gathered is ours, what is new is readable as the caller says.
        unsafe { self.encode(&rows, &mut changes) };
        let mut legs = std::mem::take(&mut self.legs);
        legs.clear();
        // SAFETY: as above.
        let written = unsafe { self.write_changes(&rows, &mut changes, class, &mut legs) };
        for leg in legs.iter().filter(|leg| leg.state == LegState::Waiting) {
            self.leave_rows_behind(&rows, leg);
        }
        self.legs = legs;
        written?;
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
            entry.note_row(row.row, touched);
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
                    sure: Pieces::NONE,
                });
                rows.len() - 1
            });
            changes[at].new |= Pieces::one(piece);
            changes[at].pages[piece] = transfer.near;
        }
        (rows, changes)
    }

    /// Members whose session is lost are none any more.
    fn drop_gone(&mut self, rows: &[Row]) -> Result<(), VolumeError> {
        let mut gone = Failed::new();
        for row in rows {
            let Some(entry) = self.map.get(row.extent) else {
                let text = format!("{} is not there any more", row.extent);
                return Err(VolumeError::Lost(text));
            };
            let is_gone = |member: &&Member| !self.roster.counts(&member.at);
            for member in entry.members.iter().filter(is_gone) {
                fail(&mut gone, row.extent, member.at.server);
            }
        }
        for (extent, server) in gone {
            self.drop_member(extent, server);
        }
        Ok(())
    }

    fn leave_rows_behind(&mut self, rows: &[Row], leg: &Leg) {
        let pages = pages_in(leg.pages).map(|at| (rows[at].extent, rows[at].row));
        self.leave_write_behind(leg, pages);
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

    /// Members that keep a row as it will be, if the touched ones can be written: those that are expected
    /// to answer, and those that are not.
    fn keepers(&self, entry: &Entry, row: u32, touched: Pieces) -> (Pieces, Pieces) {
        let (mut open, mut silent) = (Pieces::NONE, Pieces::NONE);
        for member in &entry.members {
            let piece = usize::from(member.piece);
            if !touched.has(piece) && !member.has(row) {
                continue;
            }
            match self.way_to(entry, member) {
                Way::Open => open |= Pieces::one(piece),
                Way::Silent => silent |= Pieces::one(piece),
                // The mover changes only what it lacks.
                Way::Closed if !touched.has(piece) => silent |= Pieces::one(piece),
                Way::Closed => {}
            }
        }
        (open, silent)
    }

    /// Decides who gets what of the rows, and copies to members that are mapped.
    ///
    /// # Safety
    ///
    /// As for [`Volume::encode`].
    unsafe fn distribute(&mut self, rows: &[Row], changes: &mut [Change]) -> Posts {
        let stripes = self.stripes();
        let mut posts = Posts::default();
        for (at, (row, change)) in rows.iter().zip(&mut *changes).enumerate() {
            let touched = stripes.touched(change.new);
            let Some(entry) = self.map.get(row.extent) else {
                continue;
            };
            let (open, silent) = self.keepers(entry, row.row, touched);
            let over = stripes.passed_over(touched, open, silent);
            let has = entry.members.iter().filter(|member| member.has(row.row));
            let has: Pieces = has.map(|member| usize::from(member.piece)).collect();
            change.sure = has & open & !touched;
            let mut closed = Vec::new();
            for piece in touched.iter() {
                let Some(member) = entry.holder(piece) else {
                    continue;
                };
                // Parity was not computed where none was there; nobody can have joined since.
                assert!(!change.pages[piece].is_null());
                if let Some(far) = member.place(row.row) {
                    // SAFETY: `far` lies in a mapping that its member keeps; the page is readable.
                    unsafe { far.copy_from_nonoverlapping(change.pages[piece], 1) };
                    change.has(piece);
                } else if over.has(piece) {
                    add_post(&mut posts.silent, member.at, at);
                } else if (open | silent).has(piece) {
                    add_post(&mut posts.awaited, member.at, at);
                } else {
                    closed.push(member.at);
                }
            }
            for to in closed {
                self.pass_over(row.extent, to, row.row);
            }
        }
        posts
    }

    /// Posts a write of some rows to a server.
    ///
    /// # Safety
    ///
    /// As for [`Volume::encode`].
    unsafe fn post_rows(
        &mut self,
        rows: &[Row],
        changes: &[Change],
        class: Class,
        (to, mask): Post,
    ) -> Result<Leg, String> {
        let segs = row_segs(&self.map, pages_in(mask).map(|at| &rows[at]), to.server);
        let mut buffer = self.wire.buffer();
        let (room, _) = buffer.as_mut().as_chunks_mut::<PAGE_SIZE>();
        for (room, at) in room.iter_mut().zip(pages_in(mask)) {
            let piece = self.piece_of(&rows[at], to.server);
            // SAFETY: readable, as the caller says.
            *room = unsafe { *changes[at].pages[piece] };
        }
        let class = self.wire.class_of_write(to.server, class);
        let data = (segs, buffer, mask);
        self.wire
            .post(to.server, to.generation, class, Verb::Write, data)
    }

    /// Writes to all members that are touched. When those who were expected to answer fail, others are
    /// waited for.
    ///
    /// # Safety
    ///
    /// As for [`Volume::encode`].
    unsafe fn write_changes(
        &mut self,
        rows: &[Row],
        changes: &mut [Change],
        class: Class,
        legs: &mut Vec<Leg>,
    ) -> Result<(), VolumeError> {
        loop {
            // SAFETY: as the caller says.
            let (failed, why) = unsafe { self.post_changes(rows, changes, class, legs) }?;
            let mut lost = None;
            for row in rows {
                if !self.is_kept(row, &failed) {
                    lost = Some(self.lost(row.extent, &why));
                    break;
                }
            }
            let hopeless = failed.is_empty();
            for (extent, server) in failed {
                self.drop_member(extent, server);
            }
            match lost {
                None => return Ok(()),
                Some(lost) if hopeless => return Err(lost),
                Some(_) => legs.clear(),
            }
        }
    }

    /// Writes to all members that are touched; those that failed, and why.
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
    ) -> Result<(Failed, String), VolumeError> {
        let mut failed = Failed::new();
        let mut why = String::new();
        // SAFETY: as the caller says.
        let posts = unsafe { self.distribute(rows, changes) };
        for post in posts.awaited {
            // SAFETY: as the caller says.
            match unsafe { self.post_rows(rows, changes, class, post) } {
                Ok(leg) => legs.push(leg),
                Err(text) => {
                    why = text;
                    self.give_up(rows, changes, (post.0.server, post.1), &mut failed);
                }
            }
        }
        for post in posts.silent {
            let room = self.wire.may_leave_behind(post.0.server);
            // SAFETY: as the caller says.
            match room.then(|| unsafe { self.post_rows(rows, changes, class, post) }) {
                Some(Ok(leg)) => self.leave_rows_behind(rows, &leg),
                _ => {
                    let rows = pages_in(post.1).map(|at| (rows[at].extent, rows[at].row));
                    self.pass_over_all(post.0.server, rows);
                }
            }
        }
        self.await_changes(rows, changes, legs, &mut failed, &mut why)?;
        Ok((failed, why))
    }

    /// Whether enough members have a row as it is to be; if not, those that were not waited for are now.
    fn is_kept(&mut self, row: &Row, failed: &Failed) -> bool {
        loop {
            self.take_in_late();
            let Some(entry) = self.map.get(row.extent) else {
                return false;
            };
            let counts = |member: &&Member| {
                let has_failed = failed.contains(&(row.extent, member.at.server));
                !has_failed && self.roster.counts(&member.at)
            };
            let members = || entry.members.iter().filter(counts);
            let have = members().filter(|member| member.has(row.row));
            let have: Pieces = have.map(|member| usize::from(member.piece)).collect();
            if self.stripes().suffice(have) {
                return true;
            }
            let is_coming = |member: &&Member| {
                let mut coming = self.wire.coming(member.at);
                coming.any(|known| known == row.row)
            };
            let Some(at) = members().find(is_coming).map(|member| member.at) else {
                return false;
            };
            let ends = self
                .roster
                .now()
                .saturating_add(self.wire.deadline(at.server).into());
            self.await_late(at, row.row);
            if self.roster.now() >= ends {
                return false;
            }
        }
    }

    /// A server failed: it is no member of the extents of some rows any more, and so keeps no other row of
    /// them either.
    fn give_up(
        &self,
        rows: &[Row],
        changes: &mut [Change],
        (server, mask): (ServerId, u64),
        failed: &mut Failed,
    ) {
        for at in pages_in(mask) {
            fail(failed, rows[at].extent, server);
        }
        for (row, change) in rows.iter().zip(changes) {
            if failed.contains(&(row.extent, server))
                && let Some(piece) = super::gather::piece_at(&self.map, row, server)
            {
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
        failed: &mut Failed,
        why: &mut String,
    ) -> Result<(), VolumeError> {
        let stripes = self.stripes();
        let mut idle = 0;
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
                self.roster.suspect(leg.server);
                leg.state = LegState::Failed;
                let leg = *leg;
                self.leave_rows_behind(rows, &leg);
                continue;
            }
            let leg = *leg;
            self.patience(&leg, waiting > 1, true)?;
            // All are looked at before anybody is waited for, as in `await_writes`.
            let wait = match waiting > 1 && idle < waiting {
                true => Duration::ZERO,
                false => GLANCE,
            };
            let Some((token, ended)) = self.wire.poll(&leg, wait) else {
                idle = if wait.is_zero() { idle + 1 } else { 0 };
                continue;
            };
            idle = 0;
            // One that was left behind is taken note of elsewhere.
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
                        let row = &rows[at];
                        if failed.contains(&(row.extent, leg.server)) {
                            continue;
                        }
                        let entry = self.map.get(row.extent);
                        let member = entry.and_then(|entry| entry.member(leg.server));
                        if let Some((member_at, piece)) = member.map(|m| (m.at, m.piece)) {
                            changes[at].has(usize::from(piece));
                            self.note_got(row.extent, member_at, row.row);
                        }
                    }
                    self.wire.give_back(buffer);
                }
                Ended::Refused(text) | Ended::Lost(text) => {
                    leg.state = LegState::Failed;
                    *why = text;
                    let given_up = (leg.server, leg.pages);
                    self.give_up(rows, changes, given_up, failed);
                }
            }
        }
    }
}
