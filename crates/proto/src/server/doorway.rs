//! Who is at the door: the handshake, and connections that have no session.

use super::memory::Backing;
use super::registry::SessionInfo;
use super::session::{IdMap, Lane, MAX_LANES, Session};
use super::shard::{Conn, ConnState, Out, Peer, Shard, Step};
use crate::auth::{self, Transcript};
use muninn_types::{Bytes, ConnId, LaneId, LaneKind, Nanos, SessionId};
use muninn_wire::{
    Challenge, ErrorCode, Header, Hello, Intent, NONCE_LEN, PROOF_LEN, Refusal, Request, Transport,
    Welcome,
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
                let mut nonce = [0; NONCE_LEN];
                (self.entropy)(&mut nonce);
                let key = &self.shared.config.key;
                let transcript = Transcript {
                    hello: body,
                    server_nonce: &nonce,
                };
                let proof = auth::server_proof(key, transcript);
                let challenge = Challenge {
                    nonce,
                    key_required: !key.is_none(),
                    proof,
                };
                out.reply(header, |b| challenge.encode(b));
                let hello_body = body.to_vec();
                known.state = ConnState::AwaitProof {
                    hello,
                    hello_body,
                    nonce,
                };
                Step::Reply
            }
            (
                ConnState::AwaitProof {
                    hello,
                    hello_body,
                    nonce,
                },
                Request::Prove { proof },
            ) => {
                let transcript = Transcript {
                    hello: &hello_body,
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
                if !auth::check_lane_proof(&session.secret, transcript, proof) {
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
            _ if !auth::check_client_proof(&config.key, transcript, proof) => {
                return Err(wrong_key());
            }
            Intent::Observe => {
                let observes = |c: &&Conn| matches!(c.state, ConnState::Observer);
                if self.conns.values().filter(observes).count() >= Self::MAX_OBSERVERS {
                    let max = Self::MAX_OBSERVERS as u64;
                    return Err(Refusal::with(ErrorCode::TooManyObservers, max, 0));
                }
                (ConnState::Observer, SessionId(0))
            }
            Intent::Open { transport, name } => {
                let id = self.shared.session_id(self.index);
                let source = self.conns.get(&conn).map(|c| c.peer.source());
                let info = Arc::new(SessionInfo {
                    id,
                    name: name.clone(),
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
                let (most, of_one) = (config.max_sessions, config.max_sessions_of_source);
                let added = shared.registry.add_session(Arc::clone(&info), most, of_one);
                added
                    .map_err(|limit| Refusal::with(ErrorCode::TooManySessions, limit as u64, 0))?;
                let mut session = Session {
                    info,
                    secret: auth::session_secret(&config.key, transcript, id),
                    grants: IdMap::default(),
                    lanes: Default::default(),
                    last_seen: now,
                    left: None,
                    mapped: Default::default(),
                    writes_under_way: 0,
                    services: Vec::new(),
                    process: self.conns.get(&conn).and_then(|c| c.process),
                };
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
        })
    }

    // --- without a session --------------------------------------------------------------------

    pub(super) fn handle_observer(
        &mut self,
        peer: Peer,
        header: &Header,
        request: Request<'_>,
        now: Nanos,
        out: &mut Out<B>,
    ) -> Step {
        match request {
            Request::Status { after } => self.reply_status(header, after, now, out),
            Request::Heartbeat => {
                let report = self.shared.drain_report(now);
                out.reply(header, |b| report.encode(b));
                Step::Reply
            }
            Request::Drain { deadline_ms } => {
                let config = &self.shared.config;
                let permitted = match peer {
                    Peer::Unix { uid } => uid == config.uid || uid == 0,
                    Peer::Tcp { .. } => !config.key.is_none(),
                };
                if !permitted {
                    return self.refuse(header, &Refusal::new(ErrorCode::NotPermitted), out);
                }
                let ends = now.saturating_add(Nanos(deadline_ms.saturating_mul(1_000_000)));
                self.shared
                    .pool
                    .set_drain((deadline_ms > 0).then_some(ends));
                let report = self.shared.drain_report(now);
                out.reply(header, |b| report.encode(b));
                Step::Reply
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
        self.shared.status(after, now).encode(&mut out.payload);
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
