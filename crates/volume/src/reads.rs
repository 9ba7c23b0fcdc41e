//! Reads of whole copies over a wire.
//!
//! A read goes to the member that has answered fastest lately; if it takes longer than usual
//! (`policy::hedge`) another is asked as well, and the first answer counts.

use crate::VolumeError;
use crate::extent::Holding;
use crate::volume::{GLANCE, Page, Transfer, Volume, all_of, pages_in};
use crate::wire::{Ended, Leg, LegState, add_page};
use crate::writes::miss;
use muninn_net::Verb;
use muninn_types::{Class, Nanos, PAGE_SIZE, ServerId};
use muninn_wire::Seg;
use std::time::Duration;

/// Who is asked for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Only {
    Anybody,
    /// One server, which is waited for until its session is lost or its time is over.
    Waiting(ServerId),
    /// One server, as long as answers usually take.
    Briefly(ServerId),
}

impl Only {
    fn server(self) -> Option<ServerId> {
        match self {
            Only::Anybody => None,
            Only::Waiting(server) | Only::Briefly(server) => Some(server),
        }
    }
}

impl Volume {
    /// Where a page can be read, if that is mapped.
    pub(crate) fn mapped(&self, transfer: &Transfer) -> Option<*mut Page> {
        let entry = self.map.get(transfer.extent)?;
        if let Some(parity) = &self.parity {
            let (row, piece) = parity.stripes.row_of(transfer.place);
            return entry.holder(piece)?.place(row);
        }
        let members = entry.members.iter();
        let mut members = members.filter(|member| member.has(transfer.place));
        members.find_map(|member| member.place(transfer.place))
    }

    /// The member of a page that is best asked, except at servers in `but`.
    fn best(&self, transfer: &Transfer, but: &[ServerId]) -> Option<Holding> {
        let entry = self.map.get(transfer.extent)?;
        let members = entry.members.iter();
        let members = members.filter(|member| member.has(transfer.place));
        let open = members.map(|member| member.at);
        let open = open.filter(|at| !but.contains(&at.server));
        open.min_by_key(|at| {
            let suspected = self.roster.is_suspected(at.server);
            (suspected, self.wire.latency(at.server).expected())
        })
    }

    pub(crate) fn segs(&self, batch: &[Transfer], pages: u64, server: ServerId) -> Vec<Seg> {
        let mut segs: Vec<Seg> = Vec::with_capacity(batch.len());
        for transfer in pages_in(pages).map(|at| &batch[at]) {
            let entry = self.map.get(transfer.extent).expect("it was looked up");
            let member = entry.member(server).expect("it was chosen for its member");
            add_page(&mut segs, member.at.grant, transfer.place);
        }
        segs
    }

    /// Posts reads of some pages, each at its best member but those at `but`. Pages for which there is
    /// nobody to ask are left out; those that were asked for.
    fn post_reads(
        &mut self,
        batch: &[Transfer],
        pages: u64,
        but: &[ServerId],
        only: Option<ServerId>,
        class: Class,
        legs: &mut Vec<Leg>,
    ) -> u64 {
        let (mut left, mut asked) = (pages, 0);
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let best = match only {
                Some(server) => self.holding(&batch[first], server),
                None => self.best(&batch[first], but),
            };
            let Some(at) = best else {
                left &= !(1 << first);
                continue;
            };
            // Pages whose best member is there, too, travel along.
            let mut mask = 0;
            for page in pages_in(left) {
                let same = match only {
                    Some(_) => true,
                    None => self.best(&batch[page], but).map(|b| b.server) == Some(at.server),
                };
                if same {
                    mask |= 1 << page;
                }
            }
            left &= !mask;
            let segs = self.segs(batch, mask, at.server);
            let buffer = self.wire.buffer();
            let posted = self.wire.post(
                at.server,
                at.generation,
                class,
                Verb::Read,
                (segs, buffer, mask),
            );
            match posted {
                Ok(leg) => {
                    asked |= mask;
                    legs.push(leg);
                }
                // As if nobody was there: others are asked, or nobody is left.
                Err(_) if only.is_none() && but.len() < self.roster.len() => {
                    let but = [but, &[at.server]].concat();
                    asked |= self.post_reads(batch, mask, &but, None, class, legs);
                }
                Err(_) => {}
            }
        }
        asked
    }

    fn holding(&self, transfer: &Transfer, server: ServerId) -> Option<Holding> {
        Some(self.map.get(transfer.extent)?.member(server)?.at)
    }

    /// # Safety
    ///
    /// As for [`Volume::read`].
    pub(crate) unsafe fn read_batch(
        &mut self,
        batch: &[Transfer],
        class: Class,
        only: Only,
    ) -> Result<(), VolumeError> {
        let mut legs = std::mem::take(&mut self.legs);
        legs.clear();
        // SAFETY: as the caller says.
        let read = unsafe { self.read_legs(batch, class, only, &mut legs) };
        for leg in legs.iter().filter(|leg| leg.state == LegState::Waiting) {
            self.wire.leave_behind(leg, Vec::new());
        }
        self.legs = legs;
        read
    }

    /// # Safety
    ///
    /// As for [`Volume::read`].
    unsafe fn read_legs(
        &mut self,
        batch: &[Transfer],
        class: Class,
        asked: Only,
        legs: &mut Vec<Leg>,
    ) -> Result<(), VolumeError> {
        let only = asked.server();
        let (all, mut done) = (all_of(batch), 0u64);
        let mut several = false;
        for (at, transfer) in batch.iter().enumerate() {
            let entry = self.entry(transfer)?;
            several |= entry.members.len() > 1;
            if only.is_none()
                && let Some(far) = self.mapped(transfer)
            {
                // SAFETY: as in `read`.
                unsafe { far.copy_to_nonoverlapping(transfer.near, 1) };
                done |= 1 << at;
            }
        }
        self.take_in_late();
        let hedged = several && only.is_none();
        if hedged {
            for server in self.roster.ids() {
                self.wire.look_behind(server);
            }
        }
        let mut why = String::new();
        let mut refused: Vec<(ServerId, u64)> = Vec::new();
        self.post_reads(batch, all & !done, &[], only, class, legs);
        while done != all {
            if hedged {
                self.hedge(batch, done, class, legs);
            }
            let waiting = legs.iter().filter(|leg| leg.state == LegState::Waiting);
            let waiting = waiting.count();
            if waiting == 0 {
                let first = (!done).trailing_zeros() as usize;
                let id = batch[first].extent;
                if only.is_none() && self.ask_late(batch, all & !done, class, legs) {
                    continue;
                }
                return Err(VolumeError::Lost(format!(
                    "no copy of {id} can be read: {why}{}",
                    match why.is_empty() {
                        true => self.describe(id),
                        false => String::new(),
                    }
                )));
            }
            let at = match waiting {
                1 => legs.iter().position(|leg| leg.state == LegState::Waiting),
                // Take turns.
                _ => {
                    let first = legs.iter().position(|leg| leg.state == LegState::Waiting);
                    first.map(|first| {
                        legs[first..].rotate_left(1);
                        legs.iter()
                            .position(|leg| leg.state == LegState::Waiting)
                            .unwrap_or(first)
                    })
                }
            };
            let leg = legs[at.expect("one waits")];
            let wait = match asked {
                Only::Briefly(_) => self.brief_patience(&leg)?,
                _ => self.patience(&leg, waiting > 1, hedged)?,
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
                    let (pages, _) = buffer.as_ref().as_chunks::<PAGE_SIZE>();
                    for (from, at) in pages.iter().zip(pages_in(leg.pages)) {
                        if done >> at & 1 == 0 {
                            // SAFETY: writable and ours, as the caller says.
                            unsafe { *batch[at].near = *from };
                        }
                    }
                    done |= leg.pages;
                    self.wire.give_back(buffer);
                }
                Ended::Refused(text) => {
                    leg.state = LegState::Failed;
                    miss(&mut refused, leg.server, leg.pages);
                    why = text;
                }
                Ended::Lost(text) => {
                    leg.state = LegState::Failed;
                    why = text;
                }
            }
        }
        // Others had the pages: a server that refuses to give them back has no copy.
        for (server, pages) in refused {
            for at in pages_in(pages) {
                self.drop_member(batch[at].extent, server);
            }
        }
        Ok(())
    }

    /// Asks those who lacked pages and have got them since, or are about to; whether there are any.
    fn ask_late(
        &mut self,
        batch: &[Transfer],
        pages: u64,
        class: Class,
        legs: &mut Vec<Leg>,
    ) -> bool {
        let failed = legs.iter().filter(|leg| leg.state == LegState::Failed);
        let failed: Vec<ServerId> = failed.map(|leg| leg.server).collect();
        self.take_in_late();
        if self.post_reads(batch, pages, &failed, None, class, legs) != 0 {
            return true;
        }
        let first = &batch[pages.trailing_zeros() as usize];
        self.await_page(first.extent, first.place)
            && self.post_reads(batch, pages, &failed, None, class, legs) != 0
    }

    /// How long to wait for a leg before something else is done.
    pub(crate) fn patience(
        &self,
        leg: &Leg,
        others: bool,
        hedged: bool,
    ) -> Result<Duration, VolumeError> {
        if others {
            return Ok(GLANCE);
        }
        let now = self.roster.now();
        let latency = self.wire.latency(leg.server);
        let deadline = self.wire.deadline(leg.server);
        let ends = leg.posted_at.saturating_add(deadline.into());
        if now >= ends {
            let at = self.roster.address(leg.server);
            return Err(VolumeError::Lost(format!(
                "the server at {at} did not answer within {deadline:?}"
            )));
        }
        let next = match (hedged, leg.hedged) {
            (false, _) => ends,
            (true, false) => leg.posted_at.saturating_add(latency.hedge_after()),
            (true, true) => now.saturating_add(Nanos::millis(10)),
        };
        let until = next.min(ends).saturating_sub(now);
        Ok(Duration::from(until).max(Duration::from_micros(1)))
    }

    /// The same, where somebody else can be asked afterwards.
    fn brief_patience(&self, leg: &Leg) -> Result<Duration, VolumeError> {
        let patience = self.wire.latency(leg.server).suspect_after();
        let ends = leg.posted_at.saturating_add(patience);
        let now = self.roster.now();
        if now > ends {
            self.roster.suspect(leg.server);
            let at = self.roster.address(leg.server);
            let text = format!("the server at {at} does not answer");
            return Err(VolumeError::Lost(text));
        }
        Ok(Duration::from(ends.saturating_sub(now)).max(Duration::from_micros(1)))
    }

    /// Asks others for what a server should have brought by now, or has failed to bring.
    fn hedge(&mut self, batch: &[Transfer], done: u64, class: Class, legs: &mut Vec<Leg>) {
        let now = self.roster.now();
        for at in 0..legs.len() {
            let leg = legs[at];
            let lacking = leg.pages & !done;
            if lacking == 0 || leg.state == LegState::Done {
                continue;
            }
            let latency = self.wire.latency(leg.server);
            if leg.state == LegState::Waiting
                && now > leg.posted_at.saturating_add(latency.suspect_after())
                && self.is_elsewhere(batch, lacking, leg.server)
            {
                self.roster.suspect(leg.server);
            }
            let late = now >= leg.posted_at.saturating_add(latency.hedge_after());
            if leg.hedged || !(late || leg.state == LegState::Failed) {
                continue;
            }
            legs[at].hedged = true;
            let tried: Vec<ServerId> = legs
                .iter()
                .filter(|other| other.pages & lacking != 0)
                .map(|other| other.server)
                .collect();
            self.post_reads(batch, lacking, &tried, None, class, legs);
        }
    }

    /// Whether each of some pages has a copy at another server.
    fn is_elsewhere(&self, batch: &[Transfer], pages: u64, server: ServerId) -> bool {
        pages_in(pages).all(|at| self.best(&batch[at], &[server]).is_some())
    }
}
