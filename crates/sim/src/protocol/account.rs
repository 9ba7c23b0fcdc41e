//! The server's driver keeps its own account of sessions, from what it sees pass by, and holds the
//! shards to it: a session is there for its lease, and gone after it.

use super::Sabotage;
use super::env::{Env, Event, Phase};
use super::server::{Conn, Server};
use muninn_proto::server::{Shard, Step};
use muninn_types::{Bytes, Nanos, SessionId};
use muninn_wire::{ErrorCode, HEADER_LEN, Header, Kind, Welcome};
use std::collections::BTreeSet;

impl Server {
    /// The driver's own account of sessions, from what it sees pass by.
    pub(super) fn account(&mut self, known: &mut Conn, header: &Header, step: Step, env: &mut Env) {
        let told = match step {
            Step::Receive | Step::Call | Step::Nothing => None,
            _ => self
                .out
                .frame
                .first_chunk::<HEADER_LEN>()
                .map(Header::decode),
        };
        let status = match told {
            Some(Ok(reply)) => reply.error(),
            Some(Err(error)) => return env.fail(format!("a reply that is no frame: {error}")),
            None => None,
        };
        if header.kind == Kind::Prove {
            match (status, Welcome::decode(&self.out.frame[HEADER_LEN..])) {
                (None, Ok(welcome)) => known.session = Some(welcome.session),
                (Some(ErrorCode::NoSession), _) => {
                    if let Some((id, _)) = known.asked
                        && self.heard.contains_key(&id)
                    {
                        env.fail(format!("server {} denied live session {id}", self.index));
                    }
                }
                (None, Err(error)) => env.fail(format!("a welcome that is none: {error}")),
                _ => {}
            }
        }
        let Some(session) = known.session else {
            return;
        };
        if status == Some(ErrorCode::NotOpen) {
            return;
        }
        if header.kind == Kind::Goodbye {
            self.heard.remove(&session);
            env.ended.insert((self.index, session), env.now);
            return;
        }
        self.heard.insert(session, env.now);
        if header.kind != Kind::Prove
            && !header.kind.is_idempotent()
            && status != Some(ErrorCode::TryAgain)
        {
            let lane = known.asked.map_or(0, |(_, lane)| lane);
            let again = !self.done.insert((session, lane, header.tag));
            env.summary.replays += u64::from(again);
        }
    }

    pub fn tick(&mut self, env: &mut Env) {
        let lease = env.options.lease;
        let now = if env.sabotage(Sabotage::ExpireEarly) {
            env.now + Nanos(lease.0 / 2)
        } else {
            env.now
        };
        if !env.sabotage(Sabotage::NeverExpire) {
            self.shards
                .iter_mut()
                .for_each(|shard| shard.tick(now, &mut self.out));
        }
        self.follow_up(env);
        let there = self
            .shared
            .registry
            .sessions(SessionId(0), usize::MAX, env.now);
        let there: BTreeSet<SessionId> = there.iter().map(|session| session.id).collect();
        let index = self.index;
        for id in &there {
            if !self.heard.contains_key(id) {
                env.fail(format!(
                    "server {index} keeps session {id}, which nobody opened"
                ));
            }
        }
        self.heard.retain(|id, at| {
            let quiet = env.now - *at;
            match (quiet > lease, there.contains(id)) {
                (true, true) => {
                    env.fail(format!(
                        "server {index} keeps session {id}, quiet for {quiet}"
                    ));
                    false
                }
                (false, false) => {
                    env.fail(format!(
                        "server {index} ended session {id} after only {quiet}"
                    ));
                    false
                }
                (true, false) => {
                    env.summary.expiries += 1;
                    env.ended.insert((index, *id), env.now);
                    env.tell(|| format!("server {index}: the lease of {id} ran out"));
                    false
                }
                (false, true) => true,
            }
        });
        let every = if env.phase == Phase::Leave {
            lease.0 * 2
        } else {
            lease.0 / 4
        };
        let delay = Nanos(every + env.rng.below(every / 4));
        env.after(delay, Event::Tick(self.index, self.epoch));
    }

    /// After all leases: nothing may be left.
    pub fn check_empty(&self, env: &mut Env) {
        let stats = self.pool.stats();
        let sessions: usize = self.shards.iter().map(Shard::session_count).sum();
        let (holders, held) = self.shared.registry.holders();
        let empty = stats.granted == Bytes::ZERO
            && stats.wiping == Bytes::ZERO
            && stats.extents == 0
            && stats.largest_free == self.config.segment
            && (sessions, holders, held) == (0, 0, 0);
        if !empty {
            env.fail(format!(
                "server {} did not get its memory back: {stats:?}, {sessions} sessions, \
                 {holders} holders of {held} bytes",
                self.index
            ));
        }
    }
}
