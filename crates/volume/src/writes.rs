//! Writes of whole copies.
//!
//! A write goes to all members at once and is done when all have answered. Who does not answer in time
//! while another has is suspected, and its member has fallen behind ([`lag`](crate::lag)). Pages are copied once,
//! into a buffer that all who get the same send from, and summed while they are on their way.

use crate::VolumeError;
use crate::extent::Holding;
use crate::lag::Way;
use crate::sums::sum_of;
use crate::volume::{GLANCE, Transfer, Volume, all_of, pages_in};
use crate::wire::{Ended, Leg, LegState, OPERATION_PAGES, Posts, add_post};
use muninn_net::{Buffer, Verb};
use muninn_types::{Class, PAGE_SIZE, ServerId};
use std::time::Duration;

/// What has become of a write.
#[derive(Default)]
struct Progress {
    /// Pages that somebody has.
    acked: u64,
    /// Servers that failed, and pages that they do not have.
    failed: Vec<(ServerId, u64)>,
    why: String,
}

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
            self.leave_behind(batch, leg);
        }
        self.legs = legs;
        written
    }

    fn leave_behind(&mut self, batch: &[Transfer], leg: &Leg) {
        let pages = pages_in(leg.pages).map(|at| (batch[at].extent, batch[at].place));
        self.leave_write_behind(leg, pages);
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
        let mut progress = Progress::default();
        self.take_in_late();
        // SAFETY: as the caller says.
        let posts = unsafe { self.distribute_pages(batch, &mut progress) }?;
        let mut copied = None;
        for (to, pages) in posts.awaited {
            // SAFETY: as the caller says.
            match unsafe { self.post_write(batch, class, to, pages, &mut copied) } {
                Ok(leg) => legs.push(leg),
                Err(text) => {
                    progress.why = text;
                    miss(&mut progress.failed, to.server, pages);
                }
            }
        }
        for (to, pages) in posts.silent {
            let room = self.wire.may_leave_behind(to.server);
            // SAFETY: as the caller says.
            match room.then(|| unsafe { self.post_write(batch, class, to, pages, &mut copied) }) {
                Some(Ok(leg)) => self.leave_behind(batch, &leg),
                _ => {
                    let pages = pages_in(pages).map(|at| (batch[at].extent, batch[at].place));
                    self.pass_over_all(to.server, pages);
                }
            }
        }
        drop(copied);
        let summed = self.layout().members() > 1;
        let sum = |transfer: &Transfer| match summed {
            // SAFETY: readable, as the caller says.
            true => sum_of(self.sum_key, unsafe { &*transfer.near }),
            false => 0,
        };
        let mut sums = [0; OPERATION_PAGES];
        for (room, transfer) in sums.iter_mut().zip(batch) {
            *room = sum(transfer);
        }
        self.await_writes(batch, legs, &mut progress)?;
        // What nobody has may be on its way to somebody who was not waited for, or there by now.
        self.take_in_late();
        for at in pages_in(all_of(batch) & !progress.acked) {
            if self.await_page(batch[at].extent, batch[at].place) {
                progress.acked |= 1 << at;
            }
        }
        // Or those who were expected to answer failed: others are waited for now.
        let left = all_of(batch) & !progress.acked;
        if let Some(first) = pages_in(left).find(|at| !self.has_others(&batch[*at], &progress)) {
            return Err(VolumeError::Lost(format!(
                "no copy of {} can be written: {}",
                self.describe(batch[first].extent),
                progress.why
            )));
        }
        for (server, pages) in progress.failed {
            for at in pages_in(pages) {
                self.drop_member(batch[at].extent, server);
            }
        }
        if left != 0 {
            let rest: Vec<Transfer> = pages_in(left).map(|at| batch[at]).collect();
            // SAFETY: as the caller says.
            unsafe { self.write_legs(&rest, class, &mut Vec::new()) }?;
        }
        for (transfer, sum) in batch.iter().zip(sums) {
            if let Some(entry) = self.map.get_mut(transfer.extent) {
                entry.note_page_with(transfer.place, sum);
            }
        }
        Ok(())
    }

    /// Decides who gets what, and copies to members that are mapped.
    ///
    /// # Safety
    ///
    /// As for [`Volume::write`].
    unsafe fn distribute_pages(
        &mut self,
        batch: &[Transfer],
        progress: &mut Progress,
    ) -> Result<Posts, VolumeError> {
        let mut posts = Posts::default();
        for (at, transfer) in batch.iter().enumerate() {
            let entry = self.entry(transfer)?;
            let way_to = |member| self.way_to(entry, member);
            let alone = entry.members.iter().all(|m| way_to(m) != Way::Open);
            let mut closed = Vec::new();
            for member in &entry.members {
                match way_to(member) {
                    Way::Closed => closed.push(member.at),
                    Way::Silent if !alone => add_post(&mut posts.silent, member.at, at),
                    _ => match member.place(transfer.place) {
                        Some(far) => {
                            // SAFETY: as in `write_mapped`.
                            unsafe { far.copy_from_nonoverlapping(transfer.near, 1) };
                            progress.acked |= 1 << at;
                        }
                        None => add_post(&mut posts.awaited, member.at, at),
                    },
                }
            }
            for to in closed {
                self.pass_over(transfer.extent, to, transfer.place);
            }
        }
        Ok(posts)
    }

    /// Whether a page that could not be written has members that did not fail, besides one that did.
    fn has_others(&self, transfer: &Transfer, progress: &Progress) -> bool {
        let members = self.map.get(transfer.extent).map(|entry| &entry.members);
        let members = members.into_iter().flatten();
        let has_failed = |server: ServerId| {
            let mut failed = progress.failed.iter();
            failed.any(|(known, _)| *known == server)
        };
        let (failed, others) = members.partition::<Vec<_>, _>(|m| has_failed(m.at.server));
        !failed.is_empty() && !others.is_empty()
    }

    /// Posts a write of some pages; `copied` is what was posted to the member before.
    ///
    /// # Safety
    ///
    /// As for [`Volume::write`].
    unsafe fn post_write(
        &mut self,
        batch: &[Transfer],
        class: Class,
        to: Holding,
        pages: u64,
        copied: &mut Option<(u64, Buffer)>,
    ) -> Result<Leg, String> {
        let segs = self.segs(batch, pages, to.server);
        let buffer = match copied {
            Some((same, buffer)) if *same == pages => buffer.share(),
            _ => {
                let mut buffer = self.wire.buffer();
                let (room, _) = buffer.as_mut().as_chunks_mut::<PAGE_SIZE>();
                for (room, at) in room.iter_mut().zip(pages_in(pages)) {
                    // SAFETY: readable, as the caller says.
                    *room = unsafe { *batch[at].near };
                }
                let kept = buffer.share();
                *copied = Some((pages, buffer));
                kept
            }
        };
        let class = self.wire.class_of_write(to.server, class);
        let data = (segs, buffer, pages);
        self.wire
            .post(to.server, to.generation, class, Verb::Write, data)
    }

    /// Waits until all have answered, or those that have not are not worth waiting for.
    fn await_writes(
        &mut self,
        batch: &[Transfer],
        legs: &mut [Leg],
        progress: &mut Progress,
    ) -> Result<(), VolumeError> {
        let (mut turn, mut idle) = (0, 0);
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
            let elsewhere = leg.pages & !progress.acked == 0;
            if elsewhere {
                let patience = self.wire.latency(leg.server).suspect_after();
                if self.roster.now() > leg.posted_at.saturating_add(patience) {
                    self.roster.suspect(leg.server);
                    legs[turn].state = LegState::Failed;
                    self.leave_behind(batch, &leg);
                    continue;
                }
            }
            let several = batch
                .iter()
                .any(|t| self.map.get(t.extent).is_some_and(|e| e.members.len() > 1));
            let wait = match several {
                true => {
                    let patience = self.patience(&leg, waiting > 1, true)?;
                    // What does not fit into one connection goes on while another is waited for: all are looked
                    // at before anybody is.
                    match waiting > 1 && idle < waiting {
                        true => Duration::ZERO,
                        false => patience.min(GLANCE),
                    }
                }
                false => self.patience(&leg, false, false)?,
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
                    progress.acked |= leg.pages;
                    self.wire.give_back(buffer);
                    for transfer in pages_in(leg.pages).map(|at| &batch[at]) {
                        let entry = self.map.get(transfer.extent);
                        let member = entry.and_then(|entry| entry.member(leg.server));
                        if let Some(member) = member.filter(|member| !member.is_whole()) {
                            self.note_got(transfer.extent, member.at, transfer.place);
                        }
                    }
                }
                Ended::Refused(text) | Ended::Lost(text) => {
                    leg.state = LegState::Failed;
                    progress.why = text;
                    miss(&mut progress.failed, leg.server, leg.pages);
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
