//! Who is at the door: the handshake, and connections that have no session.

use super::ledger::{ANSWER_BYTES, SESSION_BYTES};
use super::memory::Backing;
use super::permit::{Action, Standing, permits};
use super::registry::SessionInfo;
use super::session::{IdMap, Lane, MAX_LANES, Session};
use super::shard::{Conn, ConnState, Out, Peer, Shard, Step};
use crate::auth::{self, SessionSecret, Transcript};
use crate::secure::{ENTROPY_LEN, Responder, Role};
use muninn_policy::turnstile;
use muninn_types::{Bytes, ConnId, LaneId, LaneKind, Nanos, SessionId};
use muninn_wire::{
    Challenge, ErrorCode, Header, Hello, Intent, Lock, MAX_NAME, PROOF_LEN, Refusal, Request,
    ShortText, Transport, Welcome,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

impl<B: Backing> Shard<B> {
    // --- who is there -------------------------------------------------------------------------

    pub(super) fn handle_stranger(
        &mut self,
        conn: ConnId,
        header: &Header,
        body: &[u8],
        request: Request<'_>,
        now: Nanos,
        out: &mut Out<B>,
    ) -> Step {
        let known = self.conns.get_mut(&conn).expect("looked up by the caller");
        match (
            std::mem::replace(&mut known.state, ConnState::AwaitHello),
            request,
        ) {
            (ConnState::AwaitHello, Request::Hello(hello)) => {
                match &hello.intent {
                    Intent::Open {
                        transport: Transport::Shm,
                        ..
                    } if !matches!(known.peer, Peer::Unix { .. }) => {
                        let refusal = Refusal::new(ErrorCode::WrongTransport);
                        return self.refuse_and_close(header, &refusal, out);
                    }
                    // A session of a shard that never was is unknown here as anywhere.
                    Intent::Attach { session, .. }
                        if session.0 as u8 != self.index
                            && usize::from(session.0 as u8)
                                < self.shared.registry.shard_count() =>
                    {
                        self.forget(conn);
                        return Step::HandOff(session.0 as u8);
                    }
                    _ => {}
                }
                let key = self.shared.key();
                let shakes = key.lock() != Lock::Open && hello.lock == key.lock();
                // Before anything is worked out that costs more than the hello did.
                if shakes && !self.turnstile.enter(known.peer.source(), now) {
                    let refusal =
                        Refusal::with(ErrorCode::TooManyHandshakes, turnstile::PER_SECOND, 0);
                    return self.refuse_and_close(header, &refusal, out);
                }
                let mut entropy = [0; ENTROPY_LEN];
                (self.entropy)(&mut entropy);
                let (nonce, seed) = entropy.split_first_chunk().expect("it is longer");
                let seed: [u8; 32] = seed.try_into().expect("the rest has 32 bytes");
                let mut open = hello.open_part(body).to_vec();
                auth::bind_version(header.version, &mut open);
                let mut challenge = Challenge {
                    nonce: *nonce,
                    lock: key.lock(),
                    noise: Vec::new(),
                };
                let mut noise = None;
                if shakes {
                    match Responder::start(&key, &open, &hello.noise, seed) {
                        Ok((responder, answer)) => {
                            (noise, challenge.noise) = (Some(responder), answer);
                        }
                        Err(_) => {
                            let refusal = Refusal::new(ErrorCode::WrongKey);
                            return self.refuse_and_close(header, &refusal, out);
                        }
                    }
                }
                out.reply(header, |b| challenge.encode(b));
                known.state = ConnState::AwaitProof {
                    hello,
                    open,
                    nonce: challenge.nonce,
                    lock: key.lock(),
                    noise,
                };
                Step::Reply
            }
            (
                ConnState::AwaitProof {
                    hello,
                    open,
                    nonce,
                    lock,
                    noise,
                },
                Request::Prove {
                    proof,
                    noise: message,
                },
            ) => {
                if lock != Lock::Open {
                    let refusal = Refusal::new(ErrorCode::WrongKey);
                    let Some(Ok((records, proved))) =
                        noise.map(|noise| noise.finish(message, self.shared.time()))
                    else {
                        return self.refuse_and_close(header, &refusal, out);
                    };
                    // What stays on this machine nobody else can read or change.
                    if let Peer::Tcp { .. } = known.peer {
                        out.protect = Some(records);
                    }
                    let identity = match proved {
                        Ok(identity) => {
                            self.turnstile.proved(known.peer.source(), now);
                            identity
                        }
                        Err(why) => {
                            let refusal = refusal.remark(&why.to_string());
                            return self.refuse_and_close(header, &refusal, out);
                        }
                    };
                    known.standing = Standing::of(lock, identity.as_ref().map(|i| i.role));
                    known.identity = identity;
                }
                let transcript = Transcript {
                    hello: &open,
                    server_nonce: &nonce,
                };
                match self.admit(conn, &hello, transcript, &proof, now, out) {
                    Ok(welcome) => {
                        out.reply(header, |b| welcome.encode(b));
                        Step::Reply
                    }
                    Err(refusal) => self.refuse_and_close(header, &refusal, out),
                }
            }
            _ => self.refuse_and_close(header, &Refusal::new(ErrorCode::NotOpen), out),
        }
    }

    fn admit(
        &mut self,
        conn: ConnId,
        hello: &Hello,
        transcript: Transcript<'_>,
        proof: &[u8; PROOF_LEN],
        now: Nanos,
        out: &mut Out<B>,
    ) -> Result<Welcome, Refusal> {
        let shared = Arc::clone(&self.shared);
        let config = &shared.config;
        let mut secret = [0; PROOF_LEN];
        let wrong_key = || Refusal::new(ErrorCode::WrongKey);
        let (state, session) = match &hello.intent {
            Intent::Attach {
                session: id,
                lane,
                kind,
            } => {
                let session = self
                    .sessions
                    .get_mut(id)
                    .ok_or_else(|| Refusal::new(ErrorCode::NoSession))?;
                let known = self.conns.get(&conn);
                let owner = known.and_then(|known| known.identity.as_ref());
                let owner = owner.map_or("", |identity| identity.name.as_str());
                let its_own = session.info.owner.as_str() == owner;
                if !its_own || !auth::check_lane_proof(&session.secret, transcript, proof) {
                    return Err(wrong_key());
                }
                let old = attach(session, *lane, *kind, conn)?;
                session.seen(now, config.lease);
                if let Some(old) = old {
                    self.closed(old);
                    out.fenced.push(old);
                }
                (
                    ConnState::Lane {
                        session: *id,
                        lane: usize::from(lane.0),
                    },
                    *id,
                )
            }
            Intent::Observe => {
                if let Some(known) = self.conns.get(&conn)
                    && let Some(most) = self.observers_exceeded(known)
                {
                    return Err(Refusal::with(ErrorCode::TooManyObservers, most as u64, 0));
                }
                (ConnState::Observer, SessionId(0))
            }
            Intent::Open { transport, name } => {
                let known = self.conns.get(&conn);
                let standing = known.map_or(Standing::Anybody, |known| known.standing);
                if !permits(standing, Action::Session) {
                    let refusal = Refusal::new(ErrorCode::NotPermitted);
                    let why = "an operator holds no memory: use a client's identity";
                    return Err(refusal.remark(why));
                }
                let identity = known.and_then(|known| known.identity.clone());
                let owner = identity
                    .as_ref()
                    .map_or("", |identity| identity.name.as_str());
                let owner = ShortText::lossy(owner, MAX_NAME);
                if let Some(identity) = &identity {
                    shared.pool.set_quota(&owner, identity.quota);
                }
                let id = self.shared.session_id(self.index);
                let source = self.conns.get(&conn).map(|c| c.peer.source());
                let info = Arc::new(SessionInfo {
                    id,
                    name: name.clone(),
                    account: match identity {
                        Some(_) => owner.clone(),
                        None => name.clone(),
                    },
                    is_server: standing == Standing::Identity(Role::Server),
                    owner,
                    source: source.unwrap_or(Peer::LOOPBACK),
                    transport: *transport,
                    pid: hello.pid,
                    connected: true.into(),
                    grants: 0.into(),
                    granted_bytes: 0.into(),
                    requests: 0.into(),
                    bytes_in: 0.into(),
                    bytes_out: 0.into(),
                    lease_ends: AtomicU64::new((now + config.lease).0),
                    holdings: Arc::clone(self.shared.registry.holdings()),
                    note: Default::default(),
                });
                let entry = shared.ledger.open(info.source);
                if !entry.has_room(SESSION_BYTES + ANSWER_BYTES) {
                    let most = shared.ledger.most_of_source();
                    return Err(Refusal::with(ErrorCode::TooMuchBeside, most, 0));
                }
                let (most, of_one) = (config.max_sessions, config.max_sessions_of_source);
                let added = shared.registry.add_session(Arc::clone(&info), most, of_one);
                added
                    .map_err(|limit| Refusal::with(ErrorCode::TooManySessions, limit as u64, 0))?;
                (self.entropy)(&mut secret);
                let mut session = Session {
                    entry,
                    kept_bytes: 0,
                    info,
                    secret: SessionSecret::of(secret),
                    grants: IdMap::default(),
                    lanes: Default::default(),
                    last_seen: now,
                    left: None,
                    mapped: Default::default(),
                    writes_under_way: 0,
                    services: Vec::new(),
                    process: self.conns.get(&conn).and_then(|c| c.process),
                };
                session.settle();
                attach(&mut session, LaneId(0), LaneKind::Control, conn)?;
                self.sessions.insert(id, session);
                (
                    ConnState::Lane {
                        session: id,
                        lane: 0,
                    },
                    id,
                )
            }
        };
        if let Some(known) = self.conns.get_mut(&conn) {
            known.state = state;
            self.strangers -= 1;
        }
        let segment = self.shared.pool.config().segment;
        let largest = Bytes::pages(1 << super::buddy::MAX_ORDER);
        Ok(Welcome {
            session,
            lease_ms: (config.lease.0 / 1_000_000) as u32,
            max_grant_bytes: segment.min(largest).0,
            server: config.name.clone(),
            secret,
        })
    }

    /// The bound of observers that one more would pass: of all, or of the same client, be it known by
    /// its address or by its identity. Who may drain is let in beyond both, so that nobody is kept from
    /// ending what others do.
    fn observers_exceeded(&self, newest: &Conn) -> Option<usize> {
        let (source, name) = (newest.peer.source(), newest.name());
        let (mut all, mut of_source, mut of_name) = (0, 0, 0);
        for conn in self.conns.values() {
            if matches!(conn.state, ConnState::Observer) {
                all += 1;
                of_source += usize::from(conn.peer.source() == source);
                of_name += usize::from(name.is_some() && conn.name() == name);
            }
        }
        let may_drain = permits(newest.standing, Action::Drain) && name.is_some()
            || self.is_own_user(newest.peer);
        let reserve = match may_drain {
            true => Self::OPERATORS_RESERVE,
            false => 0,
        };
        if all >= Self::MAX_OBSERVERS + reserve {
            return Some(Self::MAX_OBSERVERS);
        }
        let full = of_source.max(of_name) >= Self::MAX_OBSERVERS_OF_CLIENT;
        (full && !may_drain).then_some(Self::MAX_OBSERVERS_OF_CLIENT)
    }

    /// Root or the server's own user, at the Unix socket.
    pub(super) fn is_own_user(&self, peer: Peer) -> bool {
        let own = self.shared.config.uid;
        matches!(peer, Peer::Unix { uid } if uid == own || uid == 0)
    }

    // --- without a session --------------------------------------------------------------------

    pub(super) fn handle_observer(
        &mut self,
        peer: Peer,
        standing: Standing,
        header: &Header,
        request: Request<'_>,
        now: Nanos,
        out: &mut Out<B>,
    ) -> Step {
        match request {
            Request::Status { after } => self.reply_status(header, after, now, out),
            Request::Heartbeat => {
                let report = self.shared.drain_report(now);
                out.reply(header, |b| report.encode(header.version, b));
                Step::Reply
            }
            Request::Drain { deadline_ms } => {
                let permitted = self.is_own_user(peer) || permits(standing, Action::Drain);
                if !permitted {
                    return self.refuse(header, &Refusal::new(ErrorCode::NotPermitted), out);
                }
                let ends = now.saturating_add(Nanos(deadline_ms.saturating_mul(1_000_000)));
                self.shared
                    .pool
                    .set_drain((deadline_ms > 0).then_some(ends));
                let report = self.shared.drain_report(now);
                out.reply(header, |b| report.encode(header.version, b));
                Step::Reply
            }
            Request::TakeOver => {
                if !self.is_own_user(peer) || !self.shared.hands_over.load(Relaxed) {
                    return self.refuse(header, &Refusal::new(ErrorCode::NotPermitted), out);
                }
                out.reply(header, |_| {});
                Step::ReplyThenGive
            }
            _ => self.refuse(header, &Refusal::new(ErrorCode::NotOpen), out),
        }
    }

    pub(super) fn reply_status(
        &mut self,
        header: &Header,
        after: SessionId,
        now: Nanos,
        out: &mut Out<B>,
    ) -> Step {
        self.shared
            .status(after, now)
            .encode(header.version, &mut out.payload);
        out.reply(header, |_| {});
        Step::Reply
    }
}

/// Ties a connection to a lane; gives the one it had before, to be fenced off: nothing that the old
/// connection still brings is looked at any more, so a late write cannot undo a later one.
fn attach<B: Backing>(
    session: &mut Session<B>,
    lane: LaneId,
    kind: LaneKind,
    conn: ConnId,
) -> Result<Option<ConnId>, Refusal> {
    let too_many = || Refusal::with(ErrorCode::TooManyLanes, MAX_LANES as u64, 0);
    let place = session
        .lanes
        .get_mut(usize::from(lane.0))
        .ok_or_else(too_many)?;
    let lane = place.get_or_insert_with(|| Lane {
        kind,
        conn: None,
        replay: Default::default(),
        calls: Vec::new(),
    });
    lane.kind = kind;
    session.left = None;
    session.info.connected.store(true, Relaxed);
    Ok(lane.conn.replace(conn))
}
