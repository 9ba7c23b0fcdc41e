//! The sessions of one event loop: frames in, replies out.
//!
//! [`Shard::handle`] takes one whole frame and says in a [`Step`] what its driver is to do; what to
//! send is left in an [`Out`] that the driver reuses. Every data operation is checked here against
//! the session's own grants and nothing else: there is no message by which a client could name
//! another's memory.

use super::agents::{Agents, Client};
use super::ledger::{self, Ledger};
use super::memory::{Backing, SegmentMemory};
use super::operations;
use super::permit::{Action, Standing, permits};
use super::pool::{Extent, Pool};
use super::registry::{Counters, Registry};
use super::service::{Pusher, Service, Services};
use super::session::{IdMap, Replay, Session};
use crate::auth::Key;
use crate::secure::{Identity, Records, Responder, Role, UnixTime};
use muninn_policy::turnstile::Turnstile;
use muninn_types::{Class, ConnId, Nanos, ServiceId, SessionId, Tag};
use muninn_wire::{
    Called, DecodeError, DrainReport, ErrorCode, HEADER_LEN, Header, Hello, Kind, Lock, NONCE_LEN,
    Notice, Refusal, Request, ServerStatus, ShortText, StatusPage, TICKET_LEN, Transport,
    seal_frame,
};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

#[derive(Clone, Debug)]
pub struct SharedConfig {
    pub name: ShortText,
    pub key: Key,
    pub lease: Nanos,
    pub max_sessions: usize,
    /// Of one client: a user of this machine, or an address.
    pub max_sessions_of_source: usize,
    /// The user that the server runs as; it may give operator commands over the Unix socket.
    pub uid: u32,
    /// Makes session ids of one start of a server differ from those of the next.
    pub boot: u64,
}

/// What all shards share.
#[derive(Debug)]
pub struct Shared<B: Backing> {
    pub pool: Arc<Pool<B>>,
    pub registry: Registry,
    pub config: SharedConfig,
    pub started: Nanos,
    pub services: Services<B>,
    pub ledger: Arc<Ledger>,
    pub(super) next_session: AtomicU64,
    pub(super) next_grant: AtomicU64,
    /// Somebody hands this server over to the next process when asked.
    pub hands_over: AtomicBool,
    /// Agents of managed heaps, where the server runs any.
    pub agents: OnceLock<Arc<dyn Agents<B>>>,
    /// What clients have to show; may be exchanged while the server runs.
    key: RwLock<Key>,
    pub(super) key_changes: AtomicU64,
    /// What clients are asked to move elsewhere, all together.
    pub asked_bytes: AtomicU64,
    /// The time of day, as whoever drives the shards has told last.
    time: AtomicU64,
}

impl<B: Backing> Shared<B> {
    pub fn new(pool: Arc<Pool<B>>, config: SharedConfig, started: Nanos) -> Arc<Shared<B>> {
        let key = RwLock::new(config.key.clone());
        let (part, whole) = (config.max_sessions_of_source, config.max_sessions);
        let ledger = Ledger::new(pool.config().memory, part, whole);
        Arc::new(Shared {
            pool,
            registry: Registry::default(),
            key,
            key_changes: AtomicU64::new(0),
            asked_bytes: AtomicU64::new(0),
            time: AtomicU64::new(0),
            config,
            started,
            services: Services::default(),
            ledger,
            next_session: AtomicU64::new(1),
            next_grant: AtomicU64::new(1),
            hands_over: AtomicBool::new(false),
            agents: OnceLock::new(),
        })
    }

    /// Counts sessions and grants on from where the process before came to.
    pub(super) fn count_on(&self, session: u64, grant: u64) {
        self.next_session.store(session, Relaxed);
        self.next_grant.store(grant, Relaxed);
    }

    /// What clients have to show.
    pub fn key(&self) -> Key {
        let key = self.key.read().unwrap_or_else(PoisonError::into_inner);
        key.clone()
    }
    /// From now on; who is in stays in, except by a key that is revoked, or by the word of an operator that is
    /// not believed any more.
    pub fn set_key(&self, key: Key) {
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
        self.key_changes.fetch_add(1, Relaxed);
    }

    /// The time of day: keys expire by it.
    pub fn set_time(&self, now: UnixTime) {
        self.time.store(now.0, Relaxed);
    }
    pub(super) fn time(&self) -> UnixTime {
        UnixTime(self.time.load(Relaxed))
    }

    /// boot (24 bits) | count (32 bits) | shard (8 bits): the shard of a session is in its id.
    pub(super) fn session_id(&self, shard: u8) -> SessionId {
        let count = self.next_session.fetch_add(1, Relaxed) & 0xffff_ffff;
        SessionId((self.config.boot & 0xff_ffff) << 40 | count << 8 | u64::from(shard))
    }

    pub fn status(&self, after: SessionId, now: Nanos) -> StatusPage {
        let pool = self.pool.stats();
        let sessions = self.registry.sessions(after, StatusPage::MAX_SESSIONS, now);
        let (drain, _) = self.pool.drain();
        let text = |s: &str| ShortText::lossy(s, 64);
        StatusPage {
            server: ServerStatus {
                name: self.config.name.clone(),
                uptime_ms: now.saturating_sub(self.started).0 / 1_000_000,
                pool_bytes: pool.memory.0,
                granted_bytes: pool.granted.0,
                wiping_bytes: pool.wiping.0,
                largest_free_bytes: pool.largest_free.0,
                sessions: self.registry.session_count() as u32,
                grants: pool.extents,
                connections: self.registry.connections(),
                lease_ms: (self.config.lease.0 / 1_000_000) as u32,
                drain_left_ms: drain.map_or(0, |d| d.saturating_sub(now).0 / 1_000_000 + 1),
                traffic: self.registry.traffic(),
                refusals: self
                    .registry
                    .refusals()
                    .iter()
                    .map(|(r, n)| (text(r), *n))
                    .collect(),
                services: self.services.status(),
                times: Some(Box::new(self.registry.times())),
            },
            next: sessions
                .last()
                .map(|s| s.id)
                .filter(|_| sessions.len() == StatusPage::MAX_SESSIONS),
            sessions,
        }
    }

    pub(super) fn drain_report(&self, now: Nanos) -> DrainReport {
        let (drain, _) = self.pool.drain();
        let (holders, held_bytes) = self.registry.holders();
        let left_ms = drain.map_or(0, |d| d.saturating_sub(now).0 / 1_000_000);
        DrainReport {
            draining: drain.is_some(),
            left_ms,
            held_bytes,
            holders,
            asked_bytes: 0,
        }
    }

    /// What a session is asked to move away: its part of what the machine needs back.
    pub(super) fn asked_of(&self, session: &super::registry::SessionInfo) -> u64 {
        let asked = u128::from(self.asked_bytes.load(Relaxed));
        let held = u128::from(session.granted_bytes.load(Relaxed));
        let all = u128::from(self.pool.stats().granted.0).max(held).max(1);
        (asked.min(all) * held).div_ceil(all) as u64
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    Unix { uid: u32 },
    Tcp { from: IpAddr },
}

impl Peer {
    pub const LOOPBACK: Peer = Peer::Tcp {
        from: IpAddr::V4(Ipv4Addr::LOCALHOST),
    };

    /// Who is bounded as one: a user of this machine, an address; of the sixth version a whole
    /// network, since a machine has as many addresses there as it likes. So it has for talking to itself:
    /// those are one.
    pub fn source(self) -> Peer {
        let Peer::Tcp { from } = self else {
            return self;
        };
        match from.to_canonical() {
            from if from.is_loopback() => Peer::LOOPBACK,
            IpAddr::V6(from) => {
                let network = from.to_bits() & !u128::from(u64::MAX);
                let from = IpAddr::V6(network.into());
                Peer::Tcp { from }
            }
            from => Peer::Tcp { from },
        }
    }
}

/// A run of bytes of the pool; keeps its extent alive.
pub struct Span<B: Backing> {
    pub extent: Arc<Extent<B>>,
    /// In the segment.
    pub at: u64,
    pub len: u32,
}

impl<B: Backing> fmt::Debug for Span<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({}+{})", self.at, self.len)
    }
}

/// What there is to send. Reused from frame to frame.
#[derive(Debug)]
pub struct Out<B: Backing> {
    /// Whole frames without their payload; the last one's payload is `payload` or `spans`.
    pub frame: Vec<u8>,
    pub payload: Vec<u8>,
    pub spans: Vec<Span<B>>,
    /// Memory files that travel with the frame.
    pub descriptors: Vec<Arc<B::Segment>>,
    /// Connections to close now: a lane that came back, a session that ended.
    pub fenced: Vec<ConnId>,
    pub notices: Vec<(ConnId, Notice)>,
    /// The call that a `Step::Call` is about.
    pub caller: Option<CallerOf>,
    /// From this reply on, all of the connection is in records.
    pub protect: Option<Records>,
}

/// A call: what is to be run, and who is to be answered. Its arguments are still in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerOf {
    pub conn: ConnId,
    pub session: SessionId,
    /// Where the session was opened from.
    pub source: Peer,
    pub lane: usize,
    pub tag: Tag,
    pub class: Class,
    pub service: ServiceId,
    pub wic: u32,
    pub deadline_us: u32,
    pub idempotent: bool,
}

impl<B: Backing> Default for Out<B> {
    fn default() -> Self {
        Out {
            frame: Vec::new(),
            payload: Vec::new(),
            spans: Vec::new(),
            descriptors: Vec::new(),
            fenced: Vec::new(),
            notices: Vec::new(),
            caller: None,
            protect: None,
        }
    }
}

impl<B: Backing> Out<B> {
    pub(super) fn reply(&mut self, request: &Header, body: impl FnOnce(&mut Vec<u8>)) {
        self.frame.clear();
        self.frame.resize(HEADER_LEN, 0);
        body(&mut self.frame);
        let streamed: u32 = self.spans.iter().map(|span| span.len).sum();
        let payload_len = self.payload.len() as u32 + streamed;
        let header = Header {
            version: request.version,
            ..Header::new(request.kind.reply(), request.class, request.tag)
        };
        seal_frame(&mut self.frame, header, payload_len);
    }

    pub fn refuse(&mut self, kind: Kind, class: Class, tag: Tag, refusal: &Refusal) {
        self.payload.clear();
        self.spans.clear();
        self.descriptors.clear();
        self.frame.clear();
        self.frame.resize(HEADER_LEN, 0);
        refusal.encode(&mut self.frame);
        let mut header = Header::new(kind.reply(), class, tag);
        header.status = refusal.code as u16;
        seal_frame(&mut self.frame, header, 0);
    }
}

/// What a driver is to do with a frame it handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send `out.frame`, then `out.payload` or `out.spans`.
    Reply,
    /// Send as for `Reply`, then close.
    ReplyThenClose,
    /// Receive the payload into `out.spans`, then call [`Shard::written`].
    Receive,
    /// Drop this many bytes of payload, then send `out.frame`.
    DiscardThenReply(u32),
    /// Run `out.caller`, whose arguments follow [`Call::HEAD`](muninn_wire::Call::HEAD) bytes of the
    /// body, and hand the result to [`Shard::called`]. Other frames may be answered before.
    Call,
    /// A call that is under way already came again: its answer is to be waited for.
    Nothing,
    /// Send as for `Reply`, then give the connection to whoever hands the server over.
    ReplyThenGive,
    /// The session lives in another shard: give the connection, and this frame, to that one.
    HandOff(u8),
}

#[derive(Debug)]
pub(super) enum ConnState {
    AwaitHello,
    AwaitProof {
        hello: Hello,
        /// What the hello says in the open.
        open: Vec<u8>,
        nonce: [u8; NONCE_LEN],
        lock: Lock,
        noise: Option<Responder>,
    },
    Lane {
        session: SessionId,
        lane: usize,
    },
    Observer,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) peer: Peer,
    pub(super) since: Nanos,
    pub(super) state: ConnState,
    /// The payload of a write is arriving.
    pub(super) receiving: bool,
    /// The process at the other end, where the kernel says which that is.
    pub(super) process: Option<i32>,
    /// Who was found to be at the other end.
    pub(super) standing: Standing,
    pub(super) identity: Option<Identity>,
}

impl Conn {
    pub(super) fn is_stranger(&self) -> bool {
        !matches!(self.state, ConnState::Lane { .. } | ConnState::Observer)
    }
    /// What it has proved to be called.
    pub(super) fn name(&self) -> Option<&str> {
        let identity = self.identity.as_ref()?;
        Some(identity.name.as_str())
    }
}

/// Fills a buffer with random bytes: from the kernel, or from a seed in simulation.
pub(super) type Entropy = Box<dyn FnMut(&mut [u8]) + Send>;

pub struct Shard<B: Backing> {
    pub(super) index: u8,
    pub(super) shared: Arc<Shared<B>>,
    counters: Arc<Counters>,
    pub(super) conns: IdMap<ConnId, Conn>,
    pub(super) sessions: IdMap<SessionId, Session<B>>,
    pub(super) entropy: Entropy,
    /// Connections that have not said who they are.
    pub(super) strangers: usize,
    /// Handshakes that sources may begin.
    pub(super) turnstile: Turnstile<Peer>,
    pub(super) drain_seen: u64,
    /// Changes of the key that were looked at.
    pub(super) key_seen: u64,
    /// When it was last looked whose keys have expired.
    pub(super) time_seen: UnixTime,
}

impl<B: Backing> fmt::Debug for Shard<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({}, {} sessions)", self.index, self.sessions.len())
    }
}

impl<B: Backing> Shard<B> {
    /// How long a connection may take to say who it is.
    pub const HANDSHAKE: Nanos = Nanos::secs(5);
    /// How long one may say nothing even when others wait for its place, and how long one that has
    /// begun may take.
    const SILENCE: Nanos = Nanos::millis(50);
    const GRACE: Nanos = Nanos::millis(1_000);
    /// The most connections of a shard that have not said yet, and those of one source.
    pub const MAX_STRANGERS: usize = 256;
    pub const MAX_STRANGERS_OF_SOURCE: usize = 96;
    /// The most connections of a shard without a session, and how long one may say nothing.
    pub const MAX_OBSERVERS: usize = 256;
    /// Those of one client, and how many more are let in of those who may drain.
    pub const MAX_OBSERVERS_OF_CLIENT: usize = 64;
    pub const OPERATORS_RESERVE: usize = 16;
    pub const OBSERVER_IDLE: Nanos = Nanos::secs(60);

    pub fn new(index: u8, shared: Arc<Shared<B>>, entropy: Entropy) -> Shard<B> {
        let counters = shared.registry.add_shard();
        let (conns, sessions) = Default::default();
        Shard {
            index,
            shared,
            counters,
            conns,
            sessions,
            entropy,
            strangers: 0,
            turnstile: Turnstile::default(),
            drain_seen: 0,
            key_seen: 0,
            time_seen: UnixTime(0),
        }
    }

    pub fn shared(&self) -> &Arc<Shared<B>> {
        &self.shared
    }
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }
    pub fn connection_count(&self) -> usize {
        self.conns.len()
    }

    /// A new connection. Look at what it has sent already, then ask [`Shard::crowded`].
    pub fn accepted(&mut self, conn: ConnId, peer: Peer, now: Nanos) {
        self.strangers += 1;
        self.conns.insert(
            conn,
            Conn {
                peer,
                since: now,
                state: ConnState::AwaitHello,
                receiving: false,
                process: None,
                standing: Standing::Anybody,
                identity: None,
            },
        );
        self.counters
            .connections
            .store(self.conns.len() as u32, Relaxed);
    }

    /// The process at the other end of a connection, as the kernel has it.
    pub fn comes_from(&mut self, conn: ConnId, pid: i32) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.process = (pid > 0).then_some(pid);
        }
    }

    /// Which connection to close, if there are too many that have not said who they are, now that
    /// `newest` has come.
    ///
    /// Those who say nothing make room first, the oldest of the source that has most of them; so a
    /// source that connects and says nothing shows out its own, and whoever said hello at once stays.
    /// One that only just came may have said it a moment later: many that come at once are let in.
    pub fn crowded(&mut self, newest: ConnId, now: Nanos) -> Option<ConnId> {
        let known = self.conns.get(&newest)?;
        if !known.is_stranger() {
            return None;
        }
        let mut of_source: HashMap<Peer, usize> = HashMap::new();
        let strangers = || self.conns.iter().filter(|(_, c)| c.is_stranger());
        if self.strangers <= Self::MAX_STRANGERS_OF_SOURCE {
            return None;
        }
        for (_, conn) in strangers() {
            *of_source.entry(conn.peer.source()).or_default() += 1;
        }
        let own = of_source[&known.peer.source()];
        let full = self.strangers > Self::MAX_STRANGERS;
        if !full && own <= Self::MAX_STRANGERS_OF_SOURCE {
            return None;
        }
        self.shared.registry.refused("too-many-strangers");
        let overdue = |conn: &Conn| {
            let age = now.saturating_sub(conn.since);
            match conn.state {
                ConnState::AwaitHello => age > Self::SILENCE,
                _ => age > Self::GRACE,
            }
        };
        let source_is_full = own > Self::MAX_STRANGERS_OF_SOURCE;
        let candidates = strangers()
            .filter(|(_, c)| !source_is_full || c.peer.source() == known.peer.source())
            .filter(|(_, c)| overdue(c));
        let oldest = candidates.min_by_key(|(id, c)| {
            let many = std::cmp::Reverse(of_source[&c.peer.source()]);
            (many, c.since, **id)
        });
        Some(oldest.map_or(newest, |(id, _)| *id))
    }

    pub(super) fn forget(&mut self, conn: ConnId) -> Option<Conn> {
        let gone = self.conns.remove(&conn);
        self.strangers -= usize::from(gone.as_ref().is_some_and(Conn::is_stranger));
        self.counters
            .connections
            .store(self.conns.len() as u32, Relaxed);
        gone
    }

    /// Counts bytes that were no frame, and leaves the answer to them in `out`.
    pub fn malformed(&mut self, error: DecodeError, out: &mut Out<B>) -> Step {
        self.shared.registry.refused(error.name());
        let refusal = match error {
            DecodeError::Version(theirs) => {
                let ours = u64::from(muninn_wire::VERSION);
                Refusal::with(ErrorCode::WrongVersion, ours, u64::from(theirs))
            }
            other => Refusal::new(ErrorCode::Malformed).remark(&other.to_string()),
        };
        out.refuse(Kind::Hello, Class::Control, Tag(0), &refusal);
        Step::ReplyThenClose
    }

    /// One whole frame.
    pub fn handle(
        &mut self,
        conn: ConnId,
        header: &Header,
        body: &[u8],
        now: Nanos,
        out: &mut Out<B>,
    ) -> Step {
        out.payload.clear();
        out.spans.clear();
        out.descriptors.clear();
        let request = match Request::decode(header, body) {
            Ok(request) => request,
            Err(error) => return self.malformed(error, out),
        };
        let Some(known) = self.conns.get_mut(&conn) else {
            return self.refuse_and_close(header, &Refusal::new(ErrorCode::NotOpen), out);
        };
        match known.state {
            ConnState::Lane { .. } | ConnState::Observer if header.kind == Kind::Wics => {
                known.since = now;
                self.handle_wics(conn, header, &request, now, out)
            }
            ConnState::Lane { session, lane } => {
                let step = self.handle_lane(conn, session, lane, header, request, now, out);
                if step == Step::Receive {
                    self.set_receiving(conn, true);
                }
                step
            }
            ConnState::Observer => {
                known.since = now;
                let (peer, standing) = (known.peer, known.standing);
                self.handle_observer(peer, standing, header, request, now, out)
            }
            _ => self.handle_stranger(conn, header, body, request, now, out),
        }
    }

    /// What anybody who got in asks about functions that are pushed.
    fn handle_wics(
        &mut self,
        conn: ConnId,
        header: &Header,
        request: &Request<'_>,
        now: Nanos,
        out: &mut Out<B>,
    ) -> Step {
        let (Request::Wics(request), Some(known)) = (request, self.conns.get(&conn)) else {
            return self.refuse_and_close(header, &Refusal::new(ErrorCode::Malformed), out);
        };
        let standing = known.standing;
        let mut by = Pusher {
            owner: known.name().unwrap_or(""),
            is_operator: permits(standing, Action::Push) || self.is_own_user(known.peer),
            may_own: permits(standing, Action::PushOwn),
            is_server: standing == Standing::Identity(Role::Server),
        };
        if let ConnState::Lane { session, .. } = known.state {
            let Some(session) = self.sessions.get_mut(&session) else {
                return self.refuse_and_close(header, &Refusal::new(ErrorCode::NoSession), out);
            };
            session.seen(now, self.shared.config.lease);
            by.owner = session.info.owner.as_str();
            by.is_server = session.info.is_server;
        }
        match self.shared.services.wics(&by, request) {
            Ok(reply) => {
                out.reply(header, |body| reply.encode(body));
                Step::Reply
            }
            Err(refusal) => self.refuse(header, &refusal, out),
        }
    }

    pub(super) fn refuse(&mut self, header: &Header, refusal: &Refusal, out: &mut Out<B>) -> Step {
        self.shared.registry.refused(refusal.code.name());
        out.refuse(header.kind, header.class, header.tag, refusal);
        match header.payload_len {
            0 => Step::Reply,
            len => Step::DiscardThenReply(len),
        }
    }

    pub(super) fn refuse_and_close(
        &mut self,
        header: &Header,
        refusal: &Refusal,
        out: &mut Out<B>,
    ) -> Step {
        self.refuse(header, refusal, out);
        Step::ReplyThenClose
    }

    #[allow(clippy::too_many_arguments)] // one caller, and each is a thing of its own
    fn handle_lane(
        &mut self,
        conn: ConnId,
        id: SessionId,
        lane: usize,
        header: &Header,
        request: Request<'_>,
        now: Nanos,
        out: &mut Out<B>,
    ) -> Step {
        let Some(session) = self.sessions.get_mut(&id) else {
            return self.refuse_and_close(header, &Refusal::new(ErrorCode::NoSession), out);
        };
        session.seen(now, self.shared.config.lease);
        if !is_repeatable(header, &request)
            && let Some(replay) = session.replayed(lane, header.tag)
        {
            out.frame.clone_from(&replay.frame);
            out.payload.clone_from(&replay.payload);
            let files = replay.descriptors.iter().map(Weak::upgrade);
            match files.collect::<Option<Vec<_>>>() {
                Some(files) => out.descriptors = files,
                // What it was given has been released meanwhile: nobody waits for this answer.
                None => return self.refuse(header, &Refusal::new(ErrorCode::NoGrant), out),
            }
            return Step::Reply;
        }
        if is_remembered(&request) && !session.entry.has_room(ledger::ANSWER_BYTES) {
            let most = session.entry.ledger().most_of_source();
            let refusal = Refusal::with(ErrorCode::TooMuchBeside, most, 0);
            return self.refuse(header, &refusal, out);
        }
        if header.kind.is_data() && session.transport() == Transport::Shm {
            // The client could have cut the memory file short under us.
            let refusal = Refusal::new(ErrorCode::WrongTransport);
            let refusal =
                refusal.remark("a session that maps memory reads and writes it by itself");
            return self.refuse(header, &refusal, out);
        }
        let result = match request {
            Request::Read(segs) => operations::spans_of(session, segs, false, out).map(|()| {
                out.reply(header, |_| {});
                Step::Reply
            }),
            Request::Write(segs) => {
                operations::spans_of(session, segs, true, out).map(|()| Step::Receive)
            }
            Request::CompareSwap {
                grant,
                offset,
                expect,
                new,
            } => operations::word_of(session, grant, offset).map(|(extent, at)| {
                let old = extent.mem().compare_swap(at, expect, new);
                out.reply(header, |b| b.extend_from_slice(&old.to_le_bytes()));
                Step::Reply
            }),
            Request::FetchAdd { grant, offset, add } => operations::word_of(session, grant, offset)
                .map(|(extent, at)| {
                    let old = extent.mem().fetch_add(at, add);
                    out.reply(header, |b| b.extend_from_slice(&old.to_le_bytes()));
                    Step::Reply
                }),
            Request::Heartbeat => {
                let report = DrainReport {
                    asked_bytes: self.shared.asked_of(&session.info),
                    ..self.shared.drain_report(now)
                };
                out.reply(header, |b| report.encode(header.version, b));
                Ok(Step::Reply)
            }
            Request::Grant { bytes } => {
                operations::grant(session, &self.shared, bytes, header, out)
            }
            Request::Release(grants) => operations::release(session, grants, header, out),
            Request::Share(grants) => {
                let mut ticket = [0; TICKET_LEN];
                (self.entropy)(&mut ticket);
                operations::share(session, &self.shared, grants, ticket, header, out)
            }
            Request::Adopt { ticket } => {
                operations::adopt(session, &self.shared, &ticket, header, out)
            }
            Request::Revoke { ticket } => {
                self.shared.pool.revoke_ticket(&ticket, session.info.id);
                out.reply(header, |_| {});
                Ok(Step::Reply)
            }
            Request::Status { after } => return self.reply_status(header, after, now, out),
            Request::Open(opening) => {
                let mut id = [0; 8];
                (self.entropy)(&mut id);
                let id = ServiceId(u64::from_le_bytes(id));
                operations::open(session, &self.shared, &opening, id, header, out)
            }
            Request::Close { service } => {
                operations::close(session, &self.shared, service, header, out)
            }
            Request::Resolve { name, version } => {
                let owner = session.info.owner.as_str();
                let found = (self.shared.services).find_wic(owner, name.as_str(), version);
                found.map(|number| {
                    out.reply(header, |b| b.extend_from_slice(&number.to_le_bytes()));
                    Step::Reply
                })
            }
            Request::Note { text } => operations::note(session, text, header, out),
            Request::Call(call) => {
                let under_way = match &mut session.lanes[lane] {
                    Some(lane) if !call.idempotent => Some(&mut lane.calls),
                    _ => None,
                };
                if let Some(under_way) = under_way {
                    if under_way.contains(&header.tag) {
                        return Step::Nothing;
                    }
                    if under_way.len() >= super::session::REPLAY_LEN {
                        let max = super::session::REPLAY_LEN as u64;
                        let refusal = Refusal::with(ErrorCode::TooManyCalls, max, 0);
                        return self.refuse(header, &refusal, out);
                    }
                    under_way.push(header.tag);
                }
                out.caller = Some(CallerOf {
                    conn,
                    session: id,
                    source: session.info.source.source(),
                    lane,
                    tag: header.tag,
                    class: header.class,
                    service: call.service,
                    wic: call.wic,
                    deadline_us: call.deadline_us,
                    idempotent: call.idempotent,
                });
                return Step::Call;
            }
            Request::Goodbye => {
                out.reply(header, |_| {});
                self.end_session(id, now, out);
                // This connection is closed once it has carried the reply, not before.
                out.fenced.retain(|fenced| *fenced != conn);
                return Step::ReplyThenClose;
            }
            Request::Agent(body) => match self.shared.agents.get() {
                Some(agents) => {
                    let from = Client {
                        session: id,
                        name: &session.info.account,
                        grants: &session.grants,
                    };
                    agents.call(&from, body).map(|answer| {
                        out.reply(header, |b| b.extend_from_slice(&answer));
                        Step::Reply
                    })
                }
                None => Err(Refusal::new(ErrorCode::NoAgent)),
            },
            Request::Drain { .. } | Request::TakeOver | Request::Wics(_) => {
                Err(Refusal::new(ErrorCode::NotPermitted))
            }
            Request::Hello(_) | Request::Prove { .. } => {
                return self.refuse_and_close(header, &Refusal::new(ErrorCode::Malformed), out);
            }
        };
        match result {
            Ok(step) => {
                if !header.kind.is_idempotent() {
                    remember(&mut self.sessions, id, lane, header, out);
                }
                let bytes_out: u32 = out.spans.iter().map(|span| span.len).sum();
                let bytes_out = if step == Step::Receive { 0 } else { bytes_out };
                let session = &self.sessions[&id];
                session
                    .info
                    .count(u64::from(header.payload_len), u64::from(bytes_out));
                self.counters.request(
                    header.class,
                    u64::from(header.payload_len),
                    u64::from(bytes_out),
                );
                step
            }
            Err(refusal) => {
                let step = self.refuse(header, &refusal, out);
                // A refusal that time may lift is asked again under the same tag.
                if !header.kind.is_idempotent() && refusal.code != ErrorCode::TryAgain {
                    remember(&mut self.sessions, id, lane, header, out);
                }
                step
            }
        }
    }

    /// Where its loop notes how long things took.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The payload of a write is in place: acknowledge it.
    pub fn written(&mut self, conn: ConnId, header: &Header, out: &mut Out<B>) {
        self.set_receiving(conn, false);
        out.payload.clear();
        out.spans.clear();
        out.reply(header, |_| {});
    }

    /// The identity that a session belongs to; empty where nobody has one.
    pub fn owner(&self, session: SessionId) -> &str {
        let session = self.sessions.get(&session);
        session.map_or("", |session| session.info.owner.as_str())
    }

    /// A service that a session is tied to.
    pub fn service(&self, session: SessionId, id: ServiceId) -> Option<&Arc<Service<B>>> {
        let services = &self.sessions.get(&session)?.services;
        let found = services.iter().find(|(s, _)| s.info.service == id)?;
        Some(&found.0)
    }

    /// A call has ended: appends its reply to `frames`, and says on which connection to send it.
    pub fn called(
        &mut self,
        caller: &CallerOf,
        result: &Result<Called<'_>, Refusal>,
        frames: &mut Vec<u8>,
    ) -> Option<ConnId> {
        let start = frames.len();
        frames.resize(start + HEADER_LEN, 0);
        let mut header = Header::new(Kind::CallReply, caller.class, caller.tag);
        match result {
            Ok(called) => called.encode(frames),
            Err(refusal) => {
                self.shared.registry.refused(refusal.code.name());
                refusal.encode(frames);
                header.status = refusal.code as u16;
            }
        }
        seal_frame(&mut frames[start..], header, 0);
        let session = self.sessions.get_mut(&caller.session)?;
        let bytes = (frames.len() - start) as u64;
        session.info.count(0, bytes);
        self.counters.request(caller.class, 0, bytes);
        if caller.idempotent {
            return Some(caller.conn);
        }
        session.remember(
            caller.lane,
            Replay {
                tag: caller.tag,
                frame: frames[start..].to_vec(),
                payload: Vec::new(),
                descriptors: Vec::new(),
            },
        );
        // A lane that was cut meanwhile asks again on its new connection, and is told to wait.
        let lane = session.lanes[caller.lane].as_mut()?;
        lane.calls.retain(|tag| *tag != caller.tag);
        lane.conn
    }

    fn set_receiving(&mut self, conn: ConnId, receiving: bool) {
        let Some(known) = self.conns.get_mut(&conn) else {
            return;
        };
        let before = std::mem::replace(&mut known.receiving, receiving);
        if let ConnState::Lane { session, .. } = known.state
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.writes_under_way += u32::from(receiving);
            session.writes_under_way -= u32::from(before);
        }
    }
}

/// Whether it has the server keep something: an answer, a grant, a share. Those that give back do, too,
/// but less than they give back.
fn is_remembered(request: &Request<'_>) -> bool {
    match request {
        Request::Call(call) => !call.idempotent,
        Request::CompareSwap { .. }
        | Request::FetchAdd { .. }
        | Request::Grant { .. }
        | Request::Share(_)
        | Request::Adopt { .. }
        | Request::Open(_)
        | Request::Agent(_) => true,
        _ => false,
    }
}

/// Whether doing it twice is the same as doing it once.
fn is_repeatable(header: &Header, request: &Request<'_>) -> bool {
    match request {
        Request::Call(call) => call.idempotent,
        _ => header.kind.is_idempotent(),
    }
}

fn remember<B: Backing>(
    sessions: &mut IdMap<SessionId, Session<B>>,
    id: SessionId,
    lane: usize,
    header: &Header,
    out: &Out<B>,
) {
    if let Some(session) = sessions.get_mut(&id) {
        session.remember(
            lane,
            Replay {
                tag: header.tag,
                frame: out.frame.clone(),
                payload: out.payload.clone(),
                descriptors: out.descriptors.iter().map(Arc::downgrade).collect(),
            },
        );
    }
}
