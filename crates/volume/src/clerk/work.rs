//! What the clerk does, one thing at a time: asks for an extent, gives grants back, makes a copy.

use super::gather::{PATIENCE_LEAST, Refused, some_of};
use super::rounds::Rounds;
use super::{Clerk, Desk, Moved, NAP};
use crate::extent::Holding;
use crate::lock;
use crate::mover::{Courier, Order, Stopped};
use muninn_net::{Control, NetError};
use muninn_types::GrantId;
use muninn_wire::{ErrorCode, MAX_GRANTS};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl Clerk {
    /// Does one thing that is to be done, or waits for one.
    pub(super) fn work(&self, courier: &mut Courier, rounds: &mut Rounds) {
        let mut desk = lock(&self.desk);
        if let Some((server, ticket)) = desk.to_revoke.pop() {
            // Nothing changes that the desk tells of.
            drop(desk);
            if let Some((transport, _)) = self.roster.session(server)
                && !self.roster.is_suspected(server)
            {
                let _ = transport.call(Control::Revoke { ticket }, self.deadline());
            }
            return;
        }
        let release = self.next_release(&mut desk);
        let wanted = desk.wanted && !self.is_worth_waiting();
        let nothing = !wanted && release.is_none() && desk.order.is_none();
        if desk.held || nothing {
            if let Some(list) = release {
                desk.to_release.extend(list);
            }
            let wait = rounds
                .left(self.roster.now())
                .min(NAP)
                .max(Duration::from_millis(1));
            match self.roster.simulated() {
                None => drop(self.bell.wait_timeout(desk, wait)),
                Some(pass) => {
                    drop(desk);
                    pass(wait);
                }
            }
            return;
        }
        desk.busy = true;
        desk.wanted &= !wanted;
        let order = match wanted || release.is_some() {
            true => None,
            false => desk.order.take(),
        };
        drop(desk);
        let mut kept = Vec::new();
        let (mut fresh, mut moved) = (None, None);
        if wanted {
            // A refusal is met again, and reported, when the extent is really needed.
            fresh = self.ask_now().ok();
        }
        if let Some(list) = release {
            kept = self.give_back(list);
        }
        if let Some(order) = order {
            let (result, stray) = self.carry_out(&order, courier, rounds);
            kept.extend(stray);
            moved = Some(Moved {
                pages: order.pages,
                piece: order.piece,
                behind: order.target,
                target: result,
            });
        }
        let mut desk = lock(&self.desk);
        desk.granted.extend(fresh);
        desk.to_release.extend(kept);
        if moved.is_some() {
            desk.moved = moved;
            self.news.store(true, Relaxed);
        }
        desk.busy = false;
        drop(desk);
        self.still.notify_all();
    }

    /// Grants at one server that answers, to be given back with one request. Those of sessions that are
    /// lost are forgotten.
    fn next_release(&self, desk: &mut Desk) -> Option<Vec<Holding>> {
        desk.to_release
            .retain(|holding| self.roster.counts(holding));
        let first = desk
            .to_release
            .iter()
            .find(|holding| !self.roster.is_suspected(holding.server))?;
        let server = first.server;
        let mut list = Vec::new();
        desk.to_release.retain(|holding| {
            let now = holding.server == server && list.len() < MAX_GRANTS;
            if now {
                list.push(*holding);
            }
            !now
        });
        Some(list)
    }

    /// Gives grants back; those that are still to be given back.
    fn give_back(&self, list: Vec<Holding>) -> Vec<Holding> {
        let Some((transport, generation)) = self.roster.session(list[0].server) else {
            return Vec::new();
        };
        let ids: Vec<GrantId> = list.iter().map(|holding| holding.grant).collect();
        if list[0].generation != generation {
            return Vec::new();
        }
        match transport.call(Control::Release(ids), self.deadline()) {
            Err(error) if error.is_refusal(ErrorCode::NoGrant) && list.len() > 1 => {
                // All of them or none: one that is gone must not keep the others.
                list.into_iter()
                    .flat_map(|holding| self.give_back(vec![holding]))
                    .collect()
            }
            Ok(_) | Err(NetError::Refused(..)) => Vec::new(),
            Err(NetError::Lost(_, why)) => {
                self.roster.lose(list[0].server, generation, &why);
                Vec::new()
            }
            Err(_) => {
                self.roster.suspect(list[0].server);
                list
            }
        }
    }

    /// Makes a copy: the member that has it or why there is none, and a grant that is to be given back.
    fn carry_out(
        &self,
        order: &Order,
        courier: &mut Courier,
        rounds: &mut Rounds,
    ) -> (Result<Holding, Option<String>>, Option<Holding>) {
        let mut pulse = || {
            rounds.go(self);
            !lock(&self.desk).held
        };
        if let Some(target) = order.target {
            let copied = courier.copy(order, target, &mut pulse);
            let copied = copied.map_err(|stopped| match stopped {
                Stopped::Asked => None,
                Stopped::Failed(why) => Some(why),
            });
            return (copied.map(|()| target), None);
        }
        let (mut why, mut silent) = (Vec::new(), 0);
        self.knock_ahead(&order.taken, 1);
        let to = match order.to {
            Some(server) => vec![server],
            None => self.order(&order.taken),
        };
        for server in to {
            let gives_back = self.roster.is_draining(server) || self.roster.asked(server) > 0;
            if self.is_out_of_reach(server) || gives_back {
                continue;
            }
            pulse();
            let began = self.roster.now();
            let target = match self.grant_at(server, order.pages, silent) {
                Ok((target, pages)) if pages >= order.pages => target,
                Ok((target, _)) => {
                    self.release([target]);
                    continue;
                }
                Err(Refused::Full(text) | Refused::Away(text)) => {
                    let took = self.roster.now().saturating_sub(began);
                    silent += u32::from(took >= PATIENCE_LEAST);
                    why.push(text);
                    continue;
                }
            };
            return match courier.copy(order, target, &mut pulse) {
                Ok(()) => (Ok(target), None),
                Err(Stopped::Asked) => (Err(None), Some(target)),
                Err(Stopped::Failed(text)) => (Err(Some(text)), Some(target)),
            };
        }
        let why = match why.is_empty() {
            true => "no other server answers".to_string(),
            false => some_of(&why),
        };
        let what = match order.degraded {
            true => "there is no room for another copy of what has too few",
            false => "there is no other place for what servers want to be rid of",
        };
        (Err(Some(format!("{what}: {why}"))), None)
    }
}
