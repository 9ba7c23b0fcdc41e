//! One process in the place of another: what a server leaves, and how the next goes on with it.
//!
//! A [`Will`] is written while every shard stands still. It names the memory, who holds which part of it,
//! and what was answered last on each lane, so that a client that asks again is not served twice. Not in
//! it: connections, which clients make again, and services, whose functions run in the old process.
//!
//! Invariant: memory that is neither free nor in somebody's hands is wiped by the next process before it
//! is granted, whatever it was used for at that moment.

use super::ledger;
use super::memory::Backing;
use super::pool::{Extent, Pool, PoolConfig, Ticket};
use super::registry::{SessionInfo, lock};
use super::session::{IdMap, Lane, MAX_LANES, REPLAY_LEN, Replay, Session};
use super::shard::{Peer, Shard, Shared, SharedConfig};
use crate::auth::SessionSecret;
use muninn_types::Nanos;
use muninn_wire::{
    Estate, EstateError, LeftAnswer, LeftLane, LeftSession, LeftSource, LeftTicket, Secret,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

impl From<Peer> for LeftSource {
    fn from(peer: Peer) -> LeftSource {
        match peer {
            Peer::Unix { uid } => LeftSource::User(uid),
            Peer::Tcp { from } => LeftSource::Address(from),
        }
    }
}

impl From<LeftSource> for Peer {
    fn from(source: LeftSource) -> Peer {
        match source {
            LeftSource::User(uid) => Peer::Unix { uid },
            LeftSource::Address(from) => Peer::Tcp { from },
        }
    }
}

/// What is left, while it is being written.
#[derive(Debug, Default)]
pub struct Will {
    estate: Estate,
    /// Numbers of extents by where they lie; those that were counted are kept alive by their holders,
    /// which stand still.
    extents: HashMap<usize, u32>,
}

impl Will {
    fn number<B: Backing>(&mut self, extent: &Arc<Extent<B>>) -> u32 {
        let next = self.estate.extents.len() as u32;
        let place = Arc::as_ptr(extent).addr();
        let number = *self.extents.entry(place).or_insert(next);
        if number == next {
            self.estate.extents.push(Pool::left_extent(extent));
        }
        number
    }

    /// Adds the sessions of a shard, which stands still from now on. The wiper does, too.
    pub fn add<B: Backing>(&mut self, shard: &Shard<B>) {
        let memory = shard.shared.pool.memory();
        let places = memory.iter().map(|mem| Arc::as_ptr(mem).addr());
        let segments: HashMap<usize, u32> = places.zip(0..).collect();
        for session in shard.sessions.values() {
            let left = self.session(session, &segments);
            self.estate.sessions.push(left);
        }
    }

    fn session<B: Backing>(
        &mut self,
        session: &Session<B>,
        segments: &HashMap<usize, u32>,
    ) -> LeftSession {
        let info = &session.info;
        let place = |file: &Weak<B::Segment>| {
            let file = file.upgrade()?;
            segments.get(&Arc::as_ptr(&file).addr()).copied()
        };
        let answer = |kept: &Replay<B>| LeftAnswer {
            tag: kept.tag,
            frame: kept.frame.clone(),
            payload: kept.payload.clone(),
            segments: kept.descriptors.iter().map(place).collect(),
        };
        let lanes = (0..).zip(&session.lanes).filter_map(|(index, lane)| {
            lane.as_ref().map(|lane| LeftLane {
                index,
                kind: lane.kind,
                answers: lane.replay.iter().map(answer).collect(),
            })
        });
        let grants = session.grants.iter();
        LeftSession {
            id: info.id,
            name: info.name.clone(),
            account: info.account.clone(),
            owner: info.owner.clone(),
            is_server: info.is_server,
            source: info.source.into(),
            transport: info.transport,
            pid: info.pid,
            secret: Secret(session.secret.bytes()),
            requests: info.requests.load(Relaxed),
            bytes_in: info.bytes_in.load(Relaxed),
            bytes_out: info.bytes_out.load(Relaxed),
            note: lock(&info.note).clone(),
            process: session.process.and_then(|pid| u32::try_from(pid).ok()),
            left_ns: session.left.map(|left| left.0),
            lanes: lanes.collect(),
            grants: grants
                .map(|(grant, extent)| (*grant, self.number(extent)))
                .collect(),
        }
    }

    /// All of it, once every shard was added.
    pub fn finish<B: Backing>(mut self, shared: &Shared<B>) -> Estate {
        let pool = &shared.pool;
        pool.bequeath(&mut self.estate);
        pool.each_ticket(|key, ticket| {
            let grants = ticket.grants.iter();
            let left = LeftTicket {
                key: Secret(*key),
                owner: ticket.owner,
                whose: ticket.whose.clone(),
                transport: ticket.transport,
                source: ticket.entry.source().into(),
                ends_ns: ticket.ends.map(|ends| ends.0),
                grants: grants
                    .map(|(grant, extent)| (*grant, self.number(extent)))
                    .collect(),
            };
            self.estate.tickets.push(left);
        });
        Estate {
            name: shared.config.name.clone(),
            lease_ns: shared.config.lease.0,
            memory_bytes: pool.config().memory.0,
            segment_bytes: pool.config().segment.0,
            shards: shared.registry.shard_count() as u8,
            boot: shared.config.boot,
            next_session: shared.next_session.load(Relaxed),
            next_grant: shared.next_grant.load(Relaxed),
            started_ns: shared.started.0,
            ..self.estate
        }
    }
}

/// What the next process starts with: shards are to take their sessions from it.
#[derive(Debug)]
pub struct Inherited<B: Backing> {
    pub shared: Arc<Shared<B>>,
    extents: Vec<Arc<Extent<B>>>,
    memory: Vec<Arc<B::Segment>>,
}

impl<B: Backing> Inherited<B> {
    /// From an estate and the memory that came with it. The number of the start stays what it was:
    /// sessions are known by it.
    pub fn new(
        backing: B,
        pool: PoolConfig,
        config: SharedConfig,
        memory: Vec<Arc<B::Segment>>,
        left: &Estate,
    ) -> Result<Inherited<B>, EstateError> {
        let (pool, extents) = Pool::inherit(backing, pool, memory.clone(), left)?;
        let config = SharedConfig {
            boot: left.boot,
            ..config
        };
        let shared = Shared::new(pool, config, Nanos(left.started_ns));
        shared.count_on(left.next_session, left.next_grant);
        let inherited = Inherited {
            shared,
            extents,
            memory,
        };
        for ticket in &left.tickets {
            inherited.ticket(ticket)?;
        }
        Ok(inherited)
    }

    fn extent(&self, number: u32) -> Result<Arc<Extent<B>>, EstateError> {
        let extent = self.extents.get(number as usize);
        extent
            .cloned()
            .ok_or(EstateError::Contradiction("a grant of no extent"))
    }

    fn ticket(&self, left: &LeftTicket) -> Result<(), EstateError> {
        let grants = left.grants.iter();
        let grants = grants.map(|(grant, extent)| Ok((*grant, self.extent(*extent)?)));
        let grants: Vec<_> = grants.collect::<Result<_, EstateError>>()?;
        let mut entry = self.shared.ledger.open(left.source.into());
        let _ = entry.set(ledger::TICKET_BYTES + grants.capacity() as u64 * 16);
        let ticket = Ticket {
            owner: left.owner,
            whose: left.whose.clone(),
            transport: left.transport,
            grants,
            ends: left.ends_ns.map(Nanos),
            entry,
        };
        self.shared.pool.put_ticket(left.key.0, ticket);
        Ok(())
    }

    /// Gives a shard the sessions that carry its number. Their leases begin anew: it was not their
    /// clients that were silent.
    pub fn settle(
        &self,
        shard: &mut Shard<B>,
        left: &Estate,
        now: Nanos,
    ) -> Result<(), EstateError> {
        let index = shard.index;
        let own = left.sessions.iter().filter(|s| s.id.0 as u8 == index);
        for session in own {
            let session = self.session(session, now)?;
            shard.sessions.insert(session.info.id, session);
        }
        Ok(())
    }

    fn session(&self, left: &LeftSession, now: Nanos) -> Result<Session<B>, EstateError> {
        let shared = &self.shared;
        let lease_ends = AtomicU64::new((now + shared.config.lease).0);
        let info = Arc::new(SessionInfo {
            id: left.id,
            name: left.name.clone(),
            account: left.account.clone(),
            owner: left.owner.clone(),
            is_server: left.is_server,
            source: left.source.into(),
            transport: left.transport,
            pid: left.pid,
            connected: false.into(),
            grants: 0.into(),
            granted_bytes: 0.into(),
            requests: left.requests.into(),
            bytes_in: left.bytes_in.into(),
            bytes_out: left.bytes_out.into(),
            lease_ends,
            holdings: Arc::clone(shared.registry.holdings()),
            note: Mutex::new(left.note.clone()),
        });
        // They were let in before, whatever the limits are now.
        let added = shared
            .registry
            .add_session(Arc::clone(&info), usize::MAX, usize::MAX);
        added.map_err(|_| EstateError::Contradiction("too many sessions"))?;
        let mut session = Session {
            entry: shared.ledger.open(info.source),
            kept_bytes: 0,
            info,
            secret: SessionSecret::of(left.secret.0),
            grants: IdMap::default(),
            lanes: Default::default(),
            last_seen: now,
            left: left.left_ns.map(Nanos),
            mapped: HashMap::new(),
            writes_under_way: 0,
            services: Vec::new(),
            process: left.process.and_then(|pid| i32::try_from(pid).ok()),
        };
        for (grant, extent) in &left.grants {
            session.insert(*grant, self.extent(*extent)?);
        }
        for lane in &left.lanes {
            let index = usize::from(lane.index);
            if index >= MAX_LANES || lane.answers.len() > REPLAY_LEN {
                return Err(EstateError::Contradiction("a lane that cannot be"));
            }
            session.lanes[index] = Some(Lane {
                kind: lane.kind,
                conn: None,
                replay: Default::default(),
                calls: Vec::new(),
            });
            for answer in &lane.answers {
                session.remember(index, self.answer(answer)?);
            }
        }
        session.settle();
        Ok(session)
    }

    fn answer(&self, left: &LeftAnswer) -> Result<Replay<B>, EstateError> {
        let file = |index: &u32| {
            let memory = self.memory.get(*index as usize);
            let memory = memory.ok_or(EstateError::Contradiction("an answer with no segment"))?;
            Ok(Arc::downgrade(memory))
        };
        let descriptors = match &left.segments {
            Some(segments) => segments
                .iter()
                .map(file)
                .collect::<Result<_, EstateError>>()?,
            // It cannot be given again: what it was about is gone.
            None => vec![Weak::new()],
        };
        Ok(Replay {
            tag: left.tag,
            frame: left.frame.clone(),
            payload: left.payload.clone(),
            descriptors,
        })
    }
}

impl<B: Backing> Shard<B> {
    /// The server stood still for a while: no client is to lose its lease by that.
    pub fn stood_still(&mut self, now: Nanos) {
        let lease = self.shared.config.lease;
        for session in self.sessions.values_mut() {
            session.seen(now, lease);
        }
    }
}
