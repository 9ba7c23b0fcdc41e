//! What a child of fork gets of its parent's volume: the right to read every copy.
//!
//! A server shares what it has mapped together only together, so all that the parent has is shared,
//! and nothing of it is written to from then on. A server that does not answer is left out, as long as
//! each extent has a copy elsewhere. The child knows the extents by the same ids.
//!
//! Known limit: this is the one thing that looks at all extents there are, once.

use crate::VolumeError;
use crate::clerk::together;
use crate::extent::{Extent, ExtentId, Holding};
use crate::volume::Volume;
use muninn_net::{Answer, Control, Kind};
use muninn_types::{GrantId, ServerId};
use muninn_wire::TICKET_LEN;
use std::time::Duration;

/// How long a server may take to let a child read: the only one, and one of several.
const ONLY_DEADLINE: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(2);

/// A grant at a server, as both sides know it.
type Place = (ServerId, GrantId);
/// A member of an extent: its piece, and where that is.
type Part = (u8, Place);

/// A server's consent to read what a parent shared.
pub type Ticket = (ServerId, [u8; TICKET_LEN]);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heritage {
    pub extents: Vec<(Extent, Vec<Part>)>,
    /// Grants that belong to no extent, and can only be shared together with others.
    pub baggage: Vec<Place>,
    pub tickets: Vec<Ticket>,
}

impl Heritage {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |word: u64| bytes.extend(word.to_le_bytes());
        put(self.extents.len() as u64);
        put(self.baggage.len() as u64);
        put(self.tickets.len() as u64);
        for (extent, members) in &self.extents {
            put(u64::from(extent.id.0) << 32 | u64::from(extent.pages));
            put(members.len() as u64);
            for (piece, (server, grant)) in members {
                put(u64::from(*piece) << 32 | u64::from(server.0));
                put(grant.0);
            }
        }
        for (server, grant) in &self.baggage {
            put(u64::from(server.0));
            put(grant.0);
        }
        for (server, ticket) in &self.tickets {
            put(u64::from(server.0));
            for half in ticket.as_chunks::<8>().0 {
                put(u64::from_le_bytes(*half));
            }
        }
        bytes
    }

    /// `None` for bytes that are not all there, or too many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Heritage> {
        let (words, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return None;
        }
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let [extents, baggage, tickets] = [words.next()?, words.next()?, words.next()?];
        let mut heritage = Heritage::default();
        let place = |words: &mut dyn Iterator<Item = u64>| -> Option<Place> {
            let server = ServerId(u32::try_from(words.next()?).ok()?);
            Some((server, GrantId(words.next()?)))
        };
        for _ in 0..extents {
            let word = words.next()?;
            let extent = Extent {
                id: ExtentId((word >> 32) as u32),
                pages: word as u32,
            };
            let count = words.next()?;
            let mut members = Vec::new();
            for _ in 0..count {
                let word = words.next()?;
                let piece = u8::try_from(word >> 32).ok()?;
                members.push((piece, (ServerId(word as u32), GrantId(words.next()?))));
            }
            heritage.extents.push((extent, members));
        }
        for _ in 0..baggage {
            heritage.baggage.push(place(&mut words)?);
        }
        for _ in 0..tickets {
            let server = ServerId(u32::try_from(words.next()?).ok()?);
            let mut ticket = [0; TICKET_LEN];
            for half in ticket.as_chunks_mut::<8>().0 {
                *half = words.next()?.to_le_bytes();
            }
            heritage.tickets.push((server, ticket));
        }
        words.next().is_none().then_some(heritage)
    }
}

const _: () = assert!(TICKET_LEN.is_multiple_of(8));

impl Volume {
    /// Shares all that there is with a child, while the clerk holds still.
    pub fn share(&mut self) -> Result<Heritage, VolumeError> {
        self.settle_move();
        self.settle_late();
        let desk = self.clerk().on_the_desk();
        let mut loose: Vec<Holding> = self.baggage.clone();
        loose.extend(desk);
        loose.retain(|holding| self.roster().counts(holding));
        let mut heritage = Heritage::default();
        let mut shared: Vec<ServerId> = Vec::new();
        for server in self.roster().ids() {
            let there = self.map.ids_at(server).filter_map(|id| self.map.get(id));
            let there = there.filter_map(|entry| entry.member(server));
            // What one that fell behind lacks is known to us alone.
            let whole = there.filter(|member| member.is_whole());
            let loose = loose.iter().filter(|at| at.server == server);
            let all = whole.map(|member| member.at).chain(loose.copied());
            let all = all.filter(|at| self.roster().counts(at));
            let grants: Vec<GrantId> = all.map(|at| at.grant).collect();
            if !grants.is_empty()
                && let Some(tickets) = self.share_at(server, &grants)
            {
                heritage.tickets.extend(tickets);
                shared.push(server);
            }
        }
        let place = |at: &Holding| (at.server, at.grant);
        for (id, entry) in self.map.iter() {
            let members = entry.whole().map(|member| (member.piece, member.at));
            let members =
                members.filter(|(_, at)| shared.contains(&at.server) && self.roster().counts(at));
            let members: Vec<Part> = members.map(|(piece, at)| (piece, place(&at))).collect();
            if members.len() < self.layout().needed() {
                let text = format!("no server lets a child read {}", self.describe(id));
                self.clerk().revoke(heritage.tickets.into_iter());
                return Err(VolumeError::Lost(text));
            }
            let pages = entry.pages;
            heritage.extents.push((Extent { id, pages }, members));
        }
        let loose = loose.iter().filter(|at| shared.contains(&at.server));
        heritage.baggage = loose.map(place).collect();
        Ok(heritage)
    }

    fn share_at(&self, server: ServerId, grants: &[GrantId]) -> Option<Vec<Ticket>> {
        let (transport, _) = self.roster().session(server)?;
        if self.roster().is_suspected(server) && !self.roster().is_alone() {
            return None;
        }
        let deadline = self.patience_with_one();
        let mut tickets = Vec::new();
        for list in together(&*transport, grants) {
            let Ok(Answer::Ticket(ticket)) = transport.call(Control::Share(list), deadline) else {
                self.clerk().revoke(tickets.into_iter());
                return None;
            };
            tickets.push((server, ticket));
        }
        Some(tickets)
    }

    fn patience_with_one(&self) -> Duration {
        match self.roster().is_alone() {
            true => ONLY_DEADLINE,
            false => DEADLINE,
        }
    }

    /// Takes over what a parent shared: the extents that are `needed`. The others are given back, unless
    /// they are mapped together with these.
    pub fn adopt(
        &mut self,
        heritage: &Heritage,
        needed: impl Fn(ExtentId) -> bool,
    ) -> Result<(), VolumeError> {
        // A server may have joined since we began.
        self.clerk().follow_list();
        let mut out: Vec<ServerId> = Vec::new();
        let mut why = String::new();
        for (server, ticket) in &heritage.tickets {
            if server.0 as usize >= self.roster().len() {
                return Err(VolumeError::Lost("a server too many".to_string()));
            }
            let ask = Control::Adopt { ticket: *ticket };
            let deadline = self.patience_with_one();
            let adopted = self.roster().open(*server).and_then(|(transport, _)| {
                let adopted = transport.call(ask, deadline);
                adopted.map_err(|error| error.to_string())
            });
            if let Err(error) = adopted {
                out.push(*server);
                why = error;
            }
        }
        let roster = self.roster().clone();
        let holding = |&(server, grant): &Place| {
            let holding = Holding {
                server,
                generation: roster.generation(server),
                grant,
            };
            (!out.contains(&server)).then_some(holding)
        };
        let mut loose: Vec<Holding> = heritage.baggage.iter().filter_map(holding).collect();
        for (extent, parts) in &heritage.extents {
            let members = parts.iter();
            let members: Vec<(u8, Holding)> = members
                .filter_map(|(piece, place)| Some((*piece, holding(place)?)))
                .collect();
            if !needed(extent.id) {
                loose.extend(members.iter().map(|(_, at)| *at));
                continue;
            }
            if members.len() < self.layout().needed() {
                return Err(VolumeError::Lost(why));
            }
            self.inherit(*extent, &members);
        }
        let is_mapped = |at: &Holding| {
            let session = roster.session(at.server);
            session.is_some_and(|(transport, _)| transport.kind() == Kind::Shm)
        };
        let (kept, unneeded): (Vec<_>, Vec<_>) = loose.into_iter().partition(is_mapped);
        self.baggage = kept;
        self.clerk().release(unneeded);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_reads_back_and_what_is_cut_does_not(
            extents in prop::collection::vec((any::<u32>(), any::<u32>(), prop::collection::vec((any::<u8>(), any::<u32>(), any::<u64>()), 0..4)), 0..5),
            baggage in prop::collection::vec((any::<u32>(), any::<u64>()), 0..5),
            tickets in prop::collection::vec((any::<u32>(), any::<[u8; 16]>()), 0..5),
        ) {
            let place = |(server, grant)| (ServerId(server), GrantId(grant));
            let heritage = Heritage {
                extents: extents.into_iter().map(|(id, pages, members)| {
                    let extent = Extent { id: ExtentId(id), pages };
                    let part = |(piece, server, grant)| (piece, place((server, grant)));
                    (extent, members.into_iter().map(part).collect())
                }).collect(),
                baggage: baggage.into_iter().map(place).collect(),
                tickets: tickets.into_iter().map(|(server, ticket)| (ServerId(server), ticket)).collect(),
            };
            let bytes = heritage.to_bytes();
            prop_assert_eq!(Heritage::from_bytes(&bytes), Some(heritage));
            for cut in 0..bytes.len() {
                prop_assert!(Heritage::from_bytes(&bytes[..cut]).is_none());
            }
        }
    }
}
