//! A simulated server: the driver around the real pool and shards.
//!
//! It does what the driver over sockets does: bytes into frames, payloads into spans, replies into
//! a queue from which spans are copied only when they are sent. Beside it keeps its own account of
//! when each session was last heard of, and checks after every tick that a session is there for its
//! lease and gone after it.

use super::Sabotage;
use super::backing::{Files, SimBacking, SimSegment};
use super::env::{Env, Event, Phase};
use super::network::Way;
use muninn_proto::auth::Key;
use muninn_proto::server::{
    Inbound, Out, Peer, Pool, PoolConfig, Progress, SegmentMemory, Shard, Shared, SharedConfig,
    Span, Step, Wipe,
};
use muninn_types::{Bytes, Class, ConnId, Nanos, SessionId, Tag};
use muninn_wire::{HEADER_LEN, Header, Kind, Notice, Request, ShortText, seal_frame};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Replies that may wait for a client that does not read; then nothing more is taken from it.
const REPLIES_MAX: usize = 32;
/// Bytes under way to one client.
const WINDOW: usize = 64 << 10;

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>, Files),
    Spans(VecDeque<Span<SimBacking>>),
}

#[derive(Debug)]
pub(super) struct Conn {
    shard: usize,
    inbound: Inbound<SimBacking>,
    /// The refusal that goes out once its request's payload has gone by.
    after_discard: Option<Vec<u8>>,
    acked: bool,
    replies: VecDeque<Piece>,
    flushing: bool,
    closing: bool,
    /// From its hello, and once it was admitted.
    pub(super) asked: Option<(SessionId, u8)>,
    pub(super) session: Option<SessionId>,
}

#[derive(Debug)]
pub struct Server {
    pub(super) index: usize,
    pub(super) epoch: u32,
    pub(super) config: PoolConfig,
    pub pool: Arc<Pool<SimBacking>>,
    pub(super) shared: Arc<Shared<SimBacking>>,
    pub(super) shards: Vec<Shard<SimBacking>>,
    conns: BTreeMap<ConnId, Conn>,
    /// Connections that this server has closed.
    gone: BTreeSet<ConnId>,
    pub(super) out: Out<SimBacking>,
    wipes: Vec<Wipe<SimSegment>>,
    wipe_delay: Nanos,
    pub(super) heard: BTreeMap<SessionId, Nanos>,
    pub(super) done: BTreeSet<(SessionId, u8, Tag)>,
    leaked: Vec<Conn>,
}

fn start(
    index: usize,
    epoch: u32,
    shards: u64,
    config: &PoolConfig,
    env: &mut Env,
) -> (Arc<Shared<SimBacking>>, Vec<Shard<SimBacking>>) {
    let backing = SimBacking {
        skip_wipe: env.sabotage(Sabotage::SkipWipe),
    };
    let pool = Pool::new(backing, config.clone()).expect("plain bytes are always to be had");
    let shared_config = SharedConfig {
        name: ShortText::lossy(&format!("server-{index}"), 64),
        key: Key::none(),
        lease: env.options.lease,
        max_sessions: 64,
        max_sessions_of_source: 64,
        uid: 0,
        boot: u64::from(epoch) + 1,
    };
    let shared = Shared::new(pool, shared_config, env.now);
    let shards = (0..shards).map(|i| {
        let mut rng = env.rng.fork();
        let entropy = Box::new(move |bytes: &mut [u8]| rng.fill(bytes));
        Shard::new(i as u8, Arc::clone(&shared), entropy)
    });
    let shards = shards.collect();
    (shared, shards)
}

impl Server {
    pub fn new(index: usize, env: &mut Env) -> Server {
        let mut quotas = HashMap::new();
        if env.rng.chance(0.3) {
            quotas.insert("*".to_string(), Bytes::kib(64 + 4 * env.rng.below(16)));
        }
        let config = PoolConfig {
            memory: Bytes::kib(64 * (2 + env.rng.below(3))),
            segment: Bytes::kib(64),
            quotas,
        };
        let shards = 1 + env.rng.below(2);
        let (shared, shards) = start(index, 0, shards, &config, env);
        let slow = [20_000, 1_000_000, 20_000_000][env.rng.below(3) as usize];
        env.at(Nanos::ZERO, Event::Tick(index, 0));
        env.at(Nanos::ZERO, Event::Wipe(index, 0));
        Server {
            index,
            epoch: 0,
            config,
            pool: Arc::clone(&shared.pool),
            shared,
            shards,
            conns: BTreeMap::new(),
            gone: BTreeSet::new(),
            out: Out::default(),
            wipes: Vec::new(),
            wipe_delay: Nanos(slow),
            heard: BTreeMap::new(),
            done: BTreeSet::new(),
            leaked: Vec::new(),
        }
    }

    pub fn quota(&self) -> Option<u64> {
        self.config.quotas.get("*").map(|bytes| bytes.0)
    }

    /// Power fails: everything is lost, and the next start has another number.
    pub fn restart(&mut self, env: &mut Env) {
        for conn in std::mem::take(&mut self.conns).into_keys() {
            self.gone.insert(conn);
            env.close(conn, Way::Down);
        }
        // The memory of tickets is freed by their end alone.
        for far in [1, 2] {
            let far = env.now + Nanos::secs(far * 1000);
            self.shards
                .iter_mut()
                .for_each(|s| s.tick(far, &mut self.out));
        }
        self.epoch += 1;
        let count = self.shards.len() as u64;
        let (shared, shards) = start(self.index, self.epoch, count, &self.config, env);
        self.pool = Arc::clone(&shared.pool);
        (self.shared, self.shards) = (shared, shards);
        self.out = Out::default();
        self.wipes.clear();
        self.heard.clear();
        self.done.clear();
        self.leaked.clear();
        env.at(env.now, Event::Tick(self.index, self.epoch));
        env.at(env.now, Event::Wipe(self.index, self.epoch));
    }

    /// Whether bytes of this connection would be taken now.
    pub fn takes(&self, conn: ConnId) -> bool {
        self.conns
            .get(&conn)
            .is_none_or(|c| c.replies.len() < REPLIES_MAX)
    }

    pub fn closed(&mut self, conn: ConnId, env: &mut Env) {
        if let Some(known) = self.conns.remove(&conn) {
            env.tell(|| format!("server {} notices the end of {conn}", self.index));
            self.shards[known.shard].closed(conn);
            if env.sabotage(Sabotage::LeakClosed) {
                self.leaked.push(known);
            }
        }
        if self.gone.insert(conn) {
            env.close(conn, Way::Down);
        }
    }

    pub fn receive(&mut self, conn: ConnId, mut input: &[u8], shm: bool, env: &mut Env) {
        if self.gone.contains(&conn) {
            return;
        }
        let mut known = match self.conns.remove(&conn) {
            Some(known) => known,
            None => {
                let shard = env.rng.below(self.shards.len() as u64) as usize;
                if !self.accept(conn, shard, shm, env) {
                    return;
                }
                Conn {
                    shard,
                    inbound: Inbound::default(),
                    after_discard: None,
                    acked: false,
                    replies: VecDeque::new(),
                    flushing: false,
                    closing: false,
                    asked: None,
                    session: None,
                }
            }
        };
        while !known.closing && !self.gone.contains(&conn) {
            match known.inbound.advance(&mut input) {
                Ok(Progress::NeedMore) => break,
                Ok(Progress::Frame(header)) => self.frame(conn, &mut known, header, shm, env),
                Ok(Progress::PayloadDone) => self.payload_done(conn, &mut known, env),
                Err(error) => {
                    env.fail(format!(
                        "server {} could not read {conn}: {error}",
                        self.index
                    ));
                    self.shards[known.shard].malformed(error, &mut self.out);
                    self.reply(&mut known);
                    known.closing = true;
                }
            }
        }
        if !self.gone.contains(&conn) {
            self.conns.insert(conn, known);
            self.want_flush(conn, env);
        }
        self.follow_up(env);
    }

    fn accept(&mut self, conn: ConnId, shard: usize, shm: bool, env: &mut Env) -> bool {
        let peer = if shm {
            Peer::Unix { uid: 1000 }
        } else {
            Peer::LOOPBACK
        };
        self.shards[shard].accepted(conn, peer, env.now);
        let crowded = self.shards[shard].crowded(conn, env.now);
        if crowded == Some(conn) {
            self.shards[shard].closed(conn);
            self.gone.insert(conn);
            env.close(conn, Way::Down);
        }
        crowded != Some(conn)
    }

    fn frame(&mut self, conn: ConnId, known: &mut Conn, header: Header, shm: bool, env: &mut Env) {
        let body = known.inbound.body().to_vec();
        if let Ok(Request::Hello(hello)) = Request::decode(&header, &body)
            && let muninn_wire::Intent::Attach { session, lane, .. } = hello.intent
        {
            known.asked = Some((session, lane.0));
        }
        let mut step =
            self.shards[known.shard].handle(conn, &header, &body, env.now, &mut self.out);
        if let Step::HandOff(to) = step {
            env.summary.hand_offs += 1;
            known.shard = usize::from(to);
            if !self.accept(conn, known.shard, shm, env) {
                return;
            }
            step = self.shards[known.shard].handle(conn, &header, &body, env.now, &mut self.out);
        }
        self.account(known, &header, step, env);
        match step {
            Step::Reply => self.reply(known),
            Step::ReplyThenClose => {
                self.reply(known);
                known.closing = true;
            }
            Step::Receive => {
                known.inbound.receive(&mut self.out.spans);
                if env.sabotage(Sabotage::AckEarly) {
                    self.shards[known.shard].written(conn, &header, &mut self.out);
                    self.reply(known);
                    known.acked = true;
                }
            }
            Step::DiscardThenReply(len) => {
                known.inbound.discard(len);
                known.after_discard = Some(self.out.frame.clone());
            }
            Step::ReplyThenGive => env.fail("a take-over that no client asked for"),
            Step::Call | Step::Nothing => env.fail("a call that no client made"),
            Step::HandOff(_) => env.fail("a shard handed a connection on that was meant for it"),
        }
    }

    fn payload_done(&mut self, conn: ConnId, known: &mut Conn, env: &Env) {
        let Some(header) = known.inbound.header().copied() else {
            return;
        };
        let refusal = known.after_discard.take();
        if std::mem::take(&mut known.acked) || env.is_stale(conn, header.tag) {
            return;
        }
        match refusal {
            Some(refusal) => known.replies.push_back(Piece::Bytes(refusal, Files::new())),
            None => {
                self.shards[known.shard].written(conn, &header, &mut self.out);
                self.reply(known);
            }
        }
    }

    fn reply(&mut self, known: &mut Conn) {
        let out = &mut self.out;
        let mut head = out.frame.clone();
        head.extend_from_slice(&out.payload);
        let files = std::mem::take(&mut out.descriptors);
        known.replies.push_back(Piece::Bytes(head, files));
        if !out.spans.is_empty() {
            known
                .replies
                .push_back(Piece::Spans(out.spans.drain(..).collect()));
        }
        out.payload.clear();
    }

    /// Closes what a call said is to be closed, and passes notices on.
    pub(super) fn follow_up(&mut self, env: &mut Env) {
        for conn in std::mem::take(&mut self.out.fenced) {
            env.summary.fenced += 1;
            let receiving = |c: &Conn| !c.inbound.targets().0.is_empty();
            if self.conns.get(&conn).is_some_and(receiving) {
                env.summary.fenced_in_payload += 1;
            }
            if env.sabotage(Sabotage::IgnoreFencing) && self.conns.get(&conn).is_some_and(receiving)
            {
                continue;
            }
            env.tell(|| format!("server {} shuts {conn}", self.index));
            self.conns.remove(&conn);
            self.gone.insert(conn);
            env.close(conn, Way::Down);
        }
        for (conn, notice) in std::mem::take(&mut self.out.notices) {
            let mut frame = vec![0; HEADER_LEN];
            notice.encode(&mut frame);
            seal_frame(
                &mut frame,
                Header::new(Kind::Notice, Class::Control, Tag(0)),
                0,
            );
            if let Some(known) = self.conns.get_mut(&conn) {
                known.replies.push_back(Piece::Bytes(frame, Files::new()));
                self.want_flush(conn, env);
            }
        }
    }

    fn want_flush(&mut self, conn: ConnId, env: &mut Env) {
        if let Some(known) = self.conns.get_mut(&conn)
            && !known.flushing
            && (!known.replies.is_empty() || known.closing)
        {
            known.flushing = true;
            let delay = Nanos(env.rng.below(30_000));
            env.after(delay, Event::Flush(self.index, conn));
        }
    }

    /// Sends some of what waits. A span is copied now and not before.
    pub fn flush(&mut self, conn: ConnId, env: &mut Env) {
        let Some(known) = self.conns.get_mut(&conn) else {
            return;
        };
        known.flushing = false;
        if env.net.queued(conn, Way::Down) > WINDOW {
            known.flushing = true;
            env.after(Nanos::millis(2), Event::Flush(self.index, conn));
            return;
        }
        for _ in 0..=env.rng.below(4) {
            match known.replies.front_mut() {
                Some(Piece::Bytes(bytes, files)) => {
                    env.send(conn, Way::Down, bytes, std::mem::take(files));
                    known.replies.pop_front();
                }
                Some(Piece::Spans(spans)) => {
                    if let Some(span) = spans.pop_front() {
                        let mut bytes = vec![0; span.len as usize];
                        span.extent.mem().read(span.at, &mut bytes);
                        env.send(conn, Way::Down, &bytes, Files::new());
                    }
                    if spans.is_empty() {
                        known.replies.pop_front();
                    }
                }
                None => break,
            }
        }
        if known.replies.is_empty() && known.closing {
            self.closed(conn, env);
        } else {
            self.want_flush(conn, env);
        }
    }

    /// Wipes some of what waits, in any order.
    pub fn wipe(&mut self, env: &mut Env) {
        while let Some(wipe) = self.pool.take_wipe() {
            self.wipes.push(wipe);
        }
        let mut count = env.rng.below(1 + 2 * self.wipes.len() as u64) as usize;
        if env.phase >= Phase::Leave {
            count = self.wipes.len();
        }
        for _ in 0..count.min(self.wipes.len()) {
            let pick = env.rng.below(self.wipes.len() as u64) as usize;
            let wipe = self.wipes.swap_remove(pick);
            env.summary.wipes += 1;
            env.summary.retired += u64::from(wipe.is_retirement());
            if let Err(error) = self.pool.wipe(wipe) {
                env.fail(format!("wiping failed: {error}"));
            }
        }
        let delay = env.about(self.wipe_delay) + Nanos(50_000);
        let delay = if env.phase == Phase::Leave {
            delay.max(Nanos::millis(20))
        } else {
            delay
        };
        env.after(delay, Event::Wipe(self.index, self.epoch));
    }

    pub fn drain(&mut self, deadline: Option<Nanos>, env: &mut Env) {
        self.pool.set_drain(deadline);
        env.summary.drains += u64::from(deadline.is_some());
        env.tell(|| format!("server {} drains until {deadline:?}", self.index));
    }
    pub fn say_stopping(&mut self, env: &mut Env) {
        let out = &mut self.out;
        self.shards
            .iter_mut()
            .for_each(|s| s.notify(Notice::Stopping, out));
        self.follow_up(env);
    }
}
