//! Writes of whole copies.
//!
//! A write goes to all members at once and is done when all have answered. Who does not answer in time
//! while another has is suspected, and those of its members that missed the write are none any more.

use crate::VolumeError;
use crate::extent::{Holding, Member};
use crate::volume::{GLANCE, Transfer, Volume, all_of, pages_in};
use crate::wire::{Ended, Leg, LegState};
use muninn_net::Verb;
use muninn_types::{Class, PAGE_SIZE, ServerId};

impl Volume {
    /// Writes a page to all members if all are mapped; whether they are.
    ///
    /// # Safety
    ///
    /// `near` must be readable.
    pub(crate) unsafe fn write_mapped(&mut self, transfer: &Transfer) -> bool {
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
        // SAFETY: readable, as the caller says.
        entry.note_page(transfer.place, unsafe { &*transfer.near });
        true
    }

    /// # Safety
    ///
    /// As for [`Volume::write`].
    pub(crate) unsafe fn write_batch(
        &mut self,
        batch: &[Transfer],
        class: Class,
    ) -> Result<(), VolumeError> {
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
                // SAFETY: readable, as the caller says.
                entry.note_page(transfer.place, unsafe { &*transfer.near });
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
                if self.roster.now() > leg.posted_at.saturating_add(patience) {
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

pub(crate) fn miss(missed: &mut Vec<(ServerId, u64)>, server: ServerId, pages: u64) {
    match missed.iter_mut().find(|(known, _)| *known == server) {
        Some((_, all)) => *all |= pages,
        None => missed.push((server, pages)),
    }
}
