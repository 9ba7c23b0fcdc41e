//! A simulated client: sessions at several servers, their lanes, and what it does when one is cut.

use super::Sabotage;
use super::backing::{Files, SimSegment};
use super::completion::Op;
use super::env::{Env, Event, Phase};
use super::network::{End, Way};
use super::shadow::Key as GrantKey;
use muninn_proto::auth::{Key, SessionSecret};
use muninn_proto::client::{Handshake, HandshakeError, Lane, Next, Purpose};
use muninn_proto::framing::FrameBuffer;
use muninn_proto::secure::ENTROPY_LEN;
use muninn_types::{ConnId, LaneId, LaneKind, Nanos, SessionId, Tag};
use muninn_wire::{ErrorCode, HEADER_LEN, Header, Kind, ShortText, TICKET_LEN, Transport};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes that a client has under way before it waits.
const WINDOW: usize = 64 << 10;

pub type Data = Vec<u8>;

#[derive(Debug)]
pub struct ClientLane {
    pub lane: Lane<Data>,
    pub conn: Option<ConnId>,
    handshake: Option<(Handshake, FrameBuffer)>,
    was_attached: bool,
    files: VecDeque<Arc<SimSegment>>,
    /// For sabotage: a write that was sent long ago.
    old_write: Option<Vec<u8>>,
}

#[derive(Debug)]
pub struct Held {
    pub key: GrantKey,
    pub releasing: bool,
    /// Where it lies, if the session maps its memory.
    pub mapped: Option<(Arc<SimSegment>, u64)>,
}

#[derive(Debug)]
pub struct Session {
    pub generation: u32,
    pub epoch: u32,
    pub id: SessionId,
    secret: Option<SessionSecret>,
    pub lanes: Vec<ClientLane>,
    pub grants: Vec<Held>,
    pub files: BTreeMap<(u32, u32), Arc<SimSegment>>,
    pub draining: bool,
    pub leaving: bool,
    pub heartbeat_due: Nanos,
}

#[derive(Clone, Debug)]
pub struct TicketModel {
    pub server: usize,
    pub epoch: u32,
    pub ticket: [u8; TICKET_LEN],
    pub grants: Vec<GrantKey>,
    /// The session that shared it.
    pub owner: SessionId,
}

#[derive(Debug)]
pub struct Client {
    pub index: usize,
    pub name: ShortText,
    pub alive: bool,
    pub stalled_until: Nanos,
    /// Maps its memory instead of sending requests for it.
    pub shm: bool,
    pub lane_count: usize,
    pub sessions: Vec<Option<Session>>,
    pub ops: BTreeMap<u64, Op>,
    pub next_token: u64,
    next_generation: u32,
    /// Tickets from its parent, not used yet.
    pub tickets: Vec<TicketModel>,
    /// Tickets for a child that was not started yet.
    pub offspring: Vec<TicketModel>,
    /// Mappings of sessions that are lost.
    pub stale: Vec<Arc<SimSegment>>,
    pub step_mean: Nanos,
}

impl Session {
    pub fn is_open(&self) -> bool {
        self.secret.is_some() && !self.leaving
    }
    /// Open (or given up) with every lane attached.
    pub fn is_settled(&self) -> bool {
        let attached = |l: &ClientLane| l.conn.is_some() && l.handshake.is_none();
        self.is_open() && self.lanes.iter().all(attached)
    }
    pub fn held(&self, key: GrantKey) -> Option<&Held> {
        self.grants.iter().find(|held| held.key == key)
    }
}

impl Client {
    pub fn new(index: usize, name: &str, servers: usize, env: &mut Env) -> Client {
        let shm = env.rng.chance(0.2);
        Client {
            index,
            name: ShortText::lossy(name, 64),
            alive: true,
            stalled_until: Nanos::ZERO,
            shm,
            lane_count: if shm {
                1
            } else {
                3 + env.rng.below(3) as usize
            },
            sessions: (0..servers).map(|_| None).collect(),
            ops: BTreeMap::new(),
            next_token: 1,
            next_generation: 0,
            tickets: Vec::new(),
            offspring: Vec::new(),
            stale: Vec::new(),
            step_mean: Nanos(500_000 + env.rng.below(1_500_000)),
        }
    }

    /// Begins a session, unless there is one.
    pub fn begin(&mut self, server: usize, env: &mut Env) {
        if self.sessions[server].is_some() || !env.servers[server].accepting {
            return;
        }
        self.next_generation += 1;
        let lanes = (0..self.lane_count).map(|_| ClientLane {
            lane: Lane::new(1 + env.rng.below(40) as usize),
            conn: None,
            handshake: None,
            was_attached: false,
            files: VecDeque::new(),
            old_write: None,
        });
        self.sessions[server] = Some(Session {
            generation: self.next_generation,
            epoch: env.servers[server].epoch,
            id: SessionId(0),
            secret: None,
            lanes: lanes.collect(),
            grants: Vec::new(),
            files: BTreeMap::new(),
            draining: false,
            leaving: false,
            heartbeat_due: env.now,
        });
        self.connect(server, self.next_generation, 0, env);
    }

    pub fn connect(&mut self, server: usize, generation: u32, lane: usize, env: &mut Env) {
        let (shm, index, name) = (self.shm, self.index, self.name.clone());
        let Some(session) = self.session(server, generation) else {
            return;
        };
        if session.lanes[lane].conn.is_some() || (session.secret.is_none() && lane > 0) {
            return;
        }
        if !env.servers[server].accepting {
            return self.connect_later(server, generation, lane, env);
        }
        let purpose = match &session.secret {
            Some(secret) => Purpose::Attach {
                session: session.id,
                secret: secret.clone(),
                lane: LaneId(lane as u8),
                kind: LaneKind::ALL[lane.min(2)],
            },
            None => Purpose::Open {
                transport: if shm { Transport::Shm } else { Transport::Tcp },
                name,
            },
        };
        if session.secret.is_none() {
            session.epoch = env.servers[server].epoch;
        }
        let end = End {
            client: index,
            server,
            generation,
            lane,
            epoch: env.servers[server].epoch,
        };
        let conn = env.open(end);
        let mut entropy = [0; ENTROPY_LEN];
        env.rng.fill(&mut entropy);
        // Without a key: what is simulated is what comes after, thousands of handshakes long.
        let (handshake, hello) = Handshake::start(Key::none(), purpose, entropy, index as u32)
            .expect("without a key there is nothing that could fail");
        let place = &mut session.lanes[lane];
        place.conn = Some(conn);
        place.handshake = Some((handshake, FrameBuffer::default()));
        place.files.clear();
        env.send(conn, Way::Up, &hello, Files::new());
    }

    fn connect_later(&mut self, server: usize, generation: u32, lane: usize, env: &mut Env) {
        let client = self.index;
        let delay = env.about(Nanos::millis(1));
        let connect = Event::Connect {
            client,
            server,
            generation,
            lane,
        };
        env.after(delay, connect);
    }

    pub fn session(&mut self, server: usize, generation: u32) -> Option<&mut Session> {
        let session = self.sessions[server].as_mut()?;
        (session.generation == generation && self.alive).then_some(session)
    }

    pub fn receive(&mut self, end: End, conn: ConnId, input: &[u8], files: Files, env: &mut Env) {
        let End {
            server,
            generation,
            lane,
            ..
        } = end;
        let waiting: Vec<Tag> = if env.sabotage(Sabotage::StaleWrite) {
            let on_lane = |op: &&Op| op.server == server && op.lane == lane;
            self.ops.values().filter(on_lane).map(|op| op.tag).collect()
        } else {
            Vec::new()
        };
        let Some(session) = self.session(server, generation) else {
            return;
        };
        let place = &mut session.lanes[lane];
        if place.conn != Some(conn) {
            return;
        }
        place.files.extend(files);
        let mut input = input;
        while let Some((handshake, buffer)) = &mut place.handshake {
            let header = match buffer.advance(&mut input) {
                Ok(Some(header)) => header,
                Ok(None) => return,
                Err(error) => return env.fail(format!("the handshake on {conn}: {error}")),
            };
            let next = handshake.handle(&header, buffer.body());
            buffer.clear();
            match next {
                Ok(Next::Send(frame)) => env.send(conn, Way::Up, &frame, Files::new()),
                Ok(Next::Done(opened)) => {
                    place.handshake = None;
                    if place.was_attached {
                        env.summary.resumes += 1;
                        if env.sabotage(Sabotage::StaleWrite)
                            && let Some(write) = place.old_write.take()
                        {
                            let header = write.first_chunk().map(Header::decode);
                            if let Some(Ok(header)) = header
                                && !waiting.contains(&header.tag)
                            {
                                env.stale.push((conn, header.tag));
                                env.send(conn, Way::Up, &write, Files::new());
                            }
                        }
                    }
                    place.was_attached = true;
                    if let Some(secret) = opened.secret {
                        session.secret = Some(secret);
                        session.id = opened.welcome.session;
                        env.summary.sessions += 1;
                        env.tell(|| {
                            format!(
                                "client {} has {} at server {server}",
                                end.client, session.id
                            )
                        });
                        for lane in 1..self.lane_count {
                            self.connect_later(server, generation, lane, env);
                        }
                    }
                    break;
                }
                Err(HandshakeError::Refused(refusal)) if refusal.code == ErrorCode::NoSession => {
                    return self.lose(server, "the server does not know the session", env);
                }
                Err(error) => return env.fail(format!("the handshake on {conn}: {error}")),
            }
        }
        let Some(session) = self.session(server, generation) else {
            return;
        };
        if let Err(error) = session.lanes[lane].lane.receive(input) {
            return env.fail(format!("client {} on {conn}: {error}", self.index));
        }
        self.reap(server, lane, env);
        self.flush(server, env);
    }

    /// The connection of a lane ended.
    pub fn closed(&mut self, end: End, conn: ConnId, env: &mut Env) {
        env.close(conn, Way::Up);
        let Some(session) = self.session(end.server, end.generation) else {
            return;
        };
        if session.lanes[end.lane].conn != Some(conn) {
            return;
        }
        env.tell(|| format!("client {} notices the end of {conn}", end.client));
        if session.leaving {
            return self.lose(end.server, "it said goodbye", env);
        }
        self.cut(end.server, end.lane, env);
    }

    /// Gives up the connection of a lane and makes a new one.
    pub fn cut(&mut self, server: usize, lane: usize, env: &mut Env) {
        let Some(session) = &mut self.sessions[server] else {
            return;
        };
        let generation = session.generation;
        let place = &mut session.lanes[lane];
        place.conn = None;
        place.handshake = None;
        place.lane.cut();
        if env.sabotage(Sabotage::NewTags) {
            place.lane.fail("posted again below");
            let mut again = Vec::new();
            while let Some(done) = place.lane.pop() {
                again.push(done.operation);
            }
            for operation in again {
                let token = operation.token;
                if let (Ok(tag), Some(op)) = (place.lane.post(operation), self.ops.get_mut(&token))
                {
                    op.tag = tag;
                }
            }
        }
        if env.sabotage(Sabotage::AssumeDone) {
            place.lane.fail("taken for done");
            self.reap_lost(server, lane, true, env);
        }
        self.connect_later(server, generation, lane, env);
    }

    /// The session is gone, with everything it held.
    pub fn lose(&mut self, server: usize, why: &str, env: &mut Env) {
        let Some(session) = &mut self.sessions[server] else {
            return;
        };
        let (index, id) = (self.index, session.id);
        env.tell(|| format!("client {index} has lost {id} at server {server}: {why}"));
        if !session.leaving {
            env.summary.sessions_lost += 1;
        }
        for lane in 0..session.lanes.len() {
            let Some(session) = &mut self.sessions[server] else {
                return;
            };
            let place = &mut session.lanes[lane];
            if let Some(conn) = place.conn.take() {
                env.close(conn, Way::Up);
            }
            place.lane.fail(why);
            self.reap_lost(server, lane, false, env);
        }
        if let Some(session) = self.sessions[server].take() {
            self.stale.extend(session.files.into_values());
        }
    }

    /// Sends what is posted.
    pub fn flush(&mut self, server: usize, env: &mut Env) {
        let Some(session) = &mut self.sessions[server] else {
            return;
        };
        let mut head = Vec::new();
        for place in &mut session.lanes {
            let Some(conn) = place.conn.filter(|_| place.handshake.is_none()) else {
                continue;
            };
            while place.lane.wants_to_send() && env.net.queued(conn, Way::Up) < WINDOW {
                head.clear();
                if let Some(transmit) = place.lane.transmit(&mut head) {
                    head.extend_from_slice(place.lane.payload(transmit));
                    env.send(conn, Way::Up, &head, Files::new());
                    let is_write = (head.first_chunk::<HEADER_LEN>())
                        .and_then(|h| Header::decode(h).ok())
                        .is_some_and(|h| h.kind == Kind::Write);
                    if is_write && (place.old_write.is_none() || env.rng.chance(0.1)) {
                        place.old_write = Some(head.clone());
                    }
                }
            }
        }
    }

    /// The process is gone, at once. Its kernel closes its connections, or its machine is gone too.
    pub fn kill(&mut self, env: &mut Env) {
        env.summary.kills += u64::from(env.phase == Phase::Work);
        env.tell(|| format!("client {} is killed", self.index));
        self.alive = false;
        let power_fails = env.rng.chance(0.5);
        for session in self.sessions.iter_mut().flatten() {
            for place in &mut session.lanes {
                if let Some(conn) = place.conn.take() {
                    if power_fails {
                        env.cut(conn);
                    } else {
                        env.close(conn, Way::Up);
                    }
                }
            }
        }
        for session in self.sessions.iter_mut().filter_map(Option::take) {
            self.stale.extend(session.files.into_values());
        }
        self.ops.clear();
    }

    pub fn take_file(&mut self, server: usize, lane: usize) -> Option<Arc<SimSegment>> {
        self.sessions[server].as_mut()?.lanes[lane]
            .files
            .pop_front()
    }
}
