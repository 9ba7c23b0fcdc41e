//! What a client makes of an answer: each is either told to the shadow, or could not happen.

use super::client::{Client, Held, TicketModel};
use super::env::Env;
use super::shadow::{Frozen, Key, Look, Part};
use muninn_proto::client::{Answer, Completion, OpError};
use muninn_types::Tag;
use muninn_wire::{ErrorCode, GrantInfo, Notice, Refusal};
use std::fmt;

/// A request as the model remembers it.
#[derive(Debug)]
pub struct Op {
    pub server: usize,
    pub lane: usize,
    pub tag: Tag,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Read(Vec<Part>, Look),
    Write(Vec<Part>),
    Add {
        key: Key,
        word: usize,
        add: u64,
    },
    Swap {
        key: Key,
        word: usize,
        expect: u64,
        new: u64,
    },
    Grant {
        bytes: u64,
    },
    Release(Vec<Key>),
    Share(Vec<Key>),
    Adopt(TicketModel),
    Heartbeat,
    Status,
    Goodbye,
    /// Must be refused with one of these.
    Trespass(&'static [ErrorCode]),
}

/// As the account of a failure tells it.
impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grants = |keys: &[Key]| {
            keys.iter()
                .map(|k| format!(" {}", k.grant))
                .collect::<String>()
        };
        let parts = |parts: &[Part]| {
            let text = |p: &Part| format!(" {}[{}+{}]", p.key.grant, p.offset, p.len);
            parts.iter().map(text).collect::<String>()
        };
        match self {
            What::Read(p, _) => write!(f, "read{}", parts(p)),
            What::Write(p) => write!(f, "write{}", parts(p)),
            What::Add { key, word, add } => write!(f, "add {add} to {} word {word}", key.grant),
            What::Swap { key, word, .. } => write!(f, "swap {} word {word}", key.grant),
            What::Grant { bytes } => write!(f, "grant of {bytes} bytes"),
            What::Release(keys) => write!(f, "release{}", grants(keys)),
            What::Share(keys) => write!(f, "share{}", grants(keys)),
            What::Adopt(ticket) => write!(f, "adopt{}", grants(&ticket.grants)),
            What::Heartbeat => write!(f, "heartbeat"),
            What::Status => write!(f, "status"),
            What::Goodbye => write!(f, "goodbye"),
            What::Trespass(_) => write!(f, "trespass"),
        }
    }
}

impl Client {
    /// Takes what a lane has completed.
    pub fn reap(&mut self, server: usize, lane: usize, env: &mut Env) {
        loop {
            let Some(session) = &mut self.sessions[server] else {
                return;
            };
            if let Some(notice) = session.lanes[lane].lane.pop_notice() {
                env.summary.drain_notices += u64::from(matches!(notice, Notice::Drain { .. }));
                session.draining = matches!(notice, Notice::Drain { .. });
            }
            let Some(done) = session.lanes[lane].lane.pop() else {
                return;
            };
            self.complete(done, env);
        }
    }

    /// Takes what failed with its session; a broken client takes it for done.
    pub fn reap_lost(&mut self, server: usize, lane: usize, as_done: bool, env: &mut Env) {
        while let Some(session) = &mut self.sessions[server]
            && let Some(mut done) = session.lanes[lane].lane.pop()
        {
            let write = self.ops.get(&done.operation.token);
            if as_done && write.is_some_and(|op| matches!(op.what, What::Write(_))) {
                done.result = Ok(Answer::Done);
            }
            self.complete(done, env);
        }
    }

    fn complete(&mut self, done: Completion<Vec<u8>>, env: &mut Env) {
        let token = done.operation.token;
        let Some(op) = self.ops.remove(&token) else {
            return env.fail(format!(
                "client {} completed a request it never made",
                self.index
            ));
        };
        let index = self.index;
        match done.result {
            Ok(answer) => {
                env.tell(|| format!("client {index} server {}: {} done", op.server, op.what));
                self.answered(token, op, answer, done.operation.data, env);
            }
            Err(OpError::SessionLost(_)) => {
                env.summary.ops_lost += 1;
                self.unanswered(token, op, env);
            }
            Err(OpError::Refused(refusal)) => {
                let server = op.server;
                env.tell(|| format!("client {index} server {server}: {}: {refusal}", op.what));
                self.refused(token, op, &refusal, env);
            }
            Err(error) => env.fail(format!("client {index}: {error}")),
        }
    }

    fn answered(&mut self, token: u64, op: Op, answer: Answer, data: Vec<u8>, env: &mut Env) {
        let server = op.server;
        match (op.what, answer) {
            (What::Read(parts, look), Answer::Done) => {
                env.summary.reads += 1;
                let bytes: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
                env.summary.bytes_checked += bytes;
                env.summary.fresh_bytes_checked += if look.fresh { bytes } else { 0 };
                let seen = env.shadow.seen(&look, &parts, &data);
                env.check(seen.map_err(|what| format!("client {}: {what}", self.index)));
            }
            (What::Write(parts), Answer::Done) => {
                env.summary.writes += 1;
                env.shadow.written(token, &parts, &data);
            }
            (What::Add { key, word, add }, Answer::Old(old)) => {
                env.summary.adds += 1;
                env.shadow.added(key, word, add, Some(old));
            }
            (
                What::Swap {
                    key,
                    word,
                    expect,
                    new,
                },
                Answer::Old(old),
            ) => {
                env.summary.swaps += 1;
                let grant = env.shadow.get_mut(key);
                grant.atomics -= 1;
                let model = &mut grant.swaps[word];
                model.busy = false;
                let was = model.value;
                if old == expect {
                    model.value = new;
                }
                if old != was && !model.unknown {
                    env.fail(format!(
                        "client {}: a swap of {} found {old:#x} where {was:#x} was left",
                        self.index, key.grant
                    ));
                }
            }
            (What::Grant { bytes }, Answer::Granted(info)) => {
                self.granted(server, op.lane, bytes, info, env);
            }
            (What::Release(keys), Answer::Done) => {
                env.summary.releases += 1;
                if let Some(session) = &mut self.sessions[server] {
                    session.grants.retain(|held| !keys.contains(&held.key));
                }
            }
            (What::Share(keys), Answer::Ticket(ticket)) => {
                env.summary.shares += 1;
                for key in &keys {
                    env.shadow.get_mut(*key).frozen = Frozen::Yes;
                }
                if let Some(session) = &self.sessions[server] {
                    self.offspring.push(TicketModel {
                        server,
                        epoch: session.epoch,
                        ticket,
                        grants: keys,
                        owner: session.id,
                    });
                }
            }
            (What::Adopt(ticket), Answer::Adopted(infos)) => {
                env.summary.adoptions += 1;
                let got = infos.iter().map(|info| info.grant);
                if !got.eq(ticket.grants.iter().map(|key| key.grant)) {
                    env.fail("other grants were adopted than were shared");
                }
                for key in ticket.grants {
                    if let Some(session) = &mut self.sessions[server] {
                        session.grants.push(Held {
                            key,
                            releasing: false,
                            mapped: None,
                        });
                    }
                }
            }
            (What::Heartbeat, Answer::Report(report)) => {
                env.summary.heartbeats += 1;
                if let Some(session) = &mut self.sessions[server] {
                    session.draining = report.draining;
                }
            }
            (What::Status, Answer::Status(page)) => {
                env.summary.statuses += 1;
                let own = self.sessions[server].as_ref().map(|session| session.id);
                if !page.sessions.iter().any(|session| Some(session.id) == own) {
                    env.fail("a session is missing in the status that it asked for");
                }
            }
            (What::Goodbye, Answer::Done) => {
                env.summary.goodbyes += 1;
                self.lose(server, "it said goodbye", env);
            }
            (What::Trespass(codes), answer) => {
                env.fail(format!(
                    "answered with {answer:?}, had to be refused with {codes:?}"
                ));
            }
            (what, answer) => env.fail(format!("{what} was answered with {answer:?}")),
        }
    }

    fn granted(&mut self, server: usize, lane: usize, bytes: u64, info: GrantInfo, env: &mut Env) {
        env.summary.grants += 1;
        if info.bytes < bytes || info.bytes >= 2 * bytes.max(4096) {
            env.fail(format!(
                "{bytes} bytes were asked for, {} granted",
                info.bytes
            ));
        }
        let file = info
            .descriptor
            .then(|| self.take_file(server, lane))
            .flatten();
        let (index, shm) = (self.index, self.shm);
        let home = if shm {
            0
        } else {
            1 + env.rng.below(self.lane_count as u64 - 1) as usize
        };
        let Some(session) = &mut self.sessions[server] else {
            return;
        };
        let key = Key {
            server,
            epoch: session.epoch,
            grant: info.grant,
        };
        let place = (info.segment.0, info.incarnation);
        if let Some(file) = file {
            session.files.insert(place, file);
        }
        let mapped = session.files.get(&place).cloned();
        if shm && mapped.is_none() {
            env.fail(format!("{} came without the memory it lies in", info.grant));
        }
        session.grants.push(Held {
            key,
            releasing: false,
            mapped: mapped.map(|file| (file, info.segment_offset)),
        });
        let granted = env.shadow.granted(key, info.bytes as u32, index, home);
        env.check(granted);
        let own = |held: &&Held| !held.releasing && env.shadow.get(held.key).owner == index;
        let own = session.grants.iter().filter(own);
        let sum: u64 = own
            .map(|held| u64::from(env.shadow.get(held.key).bytes))
            .sum();
        if env.servers[server].quota.is_some_and(|quota| sum > quota) {
            env.fail(format!(
                "client {index} holds {sum} bytes, more than its quota"
            ));
        }
    }

    /// The session ended before an answer came.
    fn unanswered(&mut self, token: u64, op: Op, env: &mut Env) {
        match op.what {
            What::Read(parts, _) => env.shadow.looked_away(&parts),
            What::Write(parts) => env.shadow.give_up_write(token, &parts),
            What::Add { key, word, add } => env.shadow.added(key, word, add, None),
            What::Swap { key, word, .. } => {
                let grant = env.shadow.get_mut(key);
                grant.atomics -= 1;
                grant.swaps[word].unknown = true;
            }
            _ => {}
        }
    }

    fn refused(&mut self, token: u64, op: Op, refusal: &Refusal, env: &mut Env) {
        let (server, code) = (op.server, refusal.code);
        if let What::Trespass(codes) = op.what {
            env.summary.trespasses += 1;
            env.summary.frozen_refusals += u64::from(code == ErrorCode::Frozen);
            if !codes.contains(&code) {
                env.fail(format!("refused with {code:?}, not with {codes:?}"));
            }
            return;
        }
        // A request may lose the race against the release of its grant, and against nothing else.
        let gone = |key: Key| {
            let session = self.sessions[server].as_ref();
            session.is_none_or(|s| s.held(key).is_none_or(|held| held.releasing))
        };
        let raced = code == ErrorCode::NoGrant
            && match &op.what {
                What::Read(parts, _) | What::Write(parts) => parts.iter().any(|p| gone(p.key)),
                What::Add { key, .. } | What::Swap { key, .. } => gone(*key),
                _ => false,
            };
        let expected = match (&op.what, code) {
            _ if raced => {
                env.summary.raced_releases += 1;
                true
            }
            (What::Grant { .. }, ErrorCode::TryAgain) => {
                env.summary.try_agains += 1;
                true
            }
            (What::Grant { bytes }, ErrorCode::PoolFull) => {
                env.summary.pool_fulls += 1;
                refusal.a >= *bytes && refusal.b < refusal.a
            }
            (What::Grant { bytes }, ErrorCode::QuotaExceeded) => {
                env.summary.quota_refusals += 1;
                // Who maps memory is charged for whole segments.
                let charge = match self.shm {
                    true => 64 << 10,
                    false => bytes.next_power_of_two().max(4096),
                };
                refusal.a + charge > refusal.b
            }
            (What::Grant { .. }, ErrorCode::Draining) => {
                env.summary.drain_refusals += 1;
                true
            }
            (What::Share(_), ErrorCode::TryAgain) => {
                env.summary.try_agains += 1;
                true
            }
            (What::Adopt(ticket), ErrorCode::NoTicket) => {
                // Only after its owner is gone, and a lease later.
                let ended = env.ended.get(&(server, ticket.owner));
                ended.is_some_and(|at| *at + env.options.lease < env.now)
            }
            _ => false,
        };
        if !expected {
            return env.fail(format!(
                "client {}: {} was refused: {refusal}",
                self.index, op.what
            ));
        }
        if let What::Share(keys) = &op.what {
            let asked = keys
                .iter()
                .filter(|k| env.shadow.get(**k).frozen == Frozen::Asked);
            for key in asked.copied().collect::<Vec<Key>>() {
                env.shadow.get_mut(key).frozen = Frozen::No;
            }
        }
        self.unanswered(token, op, env);
    }
}
