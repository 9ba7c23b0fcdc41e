//! A server of one shard and clients to talk to it, all in memory and in one thread.
#![allow(dead_code)] // each test uses a part of it

use muninn_proto::auth::{Key, SessionSecret};
use muninn_proto::client::{Answer, Handshake, HandshakeError, Lane, Next, OpError, Operation};
use muninn_proto::client::{Control, Purpose, Verb};
use muninn_proto::framing::FrameBuffer;
use muninn_proto::server::{
    CallerOf, FakeBacking, Inbound, Out, Peer, Pool, PoolConfig, Progress, SegmentMemory, Shard,
    Shared, SharedConfig, Step,
};
use muninn_types::{Bytes, Class, ConnId, GrantId, LaneId, LaneKind, Nanos, SessionId, SplitMix64};
use muninn_wire::{Called, ErrorCode, Header, Refusal, Seg, ShortText, TICKET_LEN, Transport};
use std::collections::BTreeMap;
use std::sync::Arc;

pub type FakeShard = Shard<FakeBacking>;

pub const LEASE: Nanos = Nanos::secs(10);

/// A shard with what its driver keeps for each connection.
pub struct Host {
    pub now: Nanos,
    pub shards: Vec<FakeShard>,
    pub pool: Arc<Pool<FakeBacking>>,
    pub shared: Arc<Shared<FakeBacking>>,
    pub out: Out<FakeBacking>,
    pub conns: BTreeMap<ConnId, HostConn>,
    /// Calls that nobody has run yet, and their arguments.
    pub calls: Vec<(CallerOf, Vec<u8>)>,
    next_conn: u64,
}

#[derive(Default)]
pub struct HostConn {
    pub shard: usize,
    pub peer: Option<Peer>,
    pub inbound: Inbound<FakeBacking>,
    after_discard: Option<Vec<u8>>,
    /// What was sent to the client and not taken yet.
    pub sent: Vec<u8>,
    pub closed: bool,
}

pub fn pool_config(memory_kib: u64, segment_kib: u64) -> PoolConfig {
    PoolConfig {
        memory: Bytes::kib(memory_kib),
        segment: Bytes::kib(segment_kib),
        quotas: Default::default(),
    }
}

pub fn shared_config(key: Key) -> SharedConfig {
    SharedConfig {
        name: ShortText::lossy("test", 64),
        key,
        lease: LEASE,
        max_sessions: 2000,
        max_sessions_of_source: 2000,
        uid: 1000,
        boot: 7,
    }
}

impl Host {
    pub fn new(pool: PoolConfig) -> Host {
        Host::with(pool, shared_config(Key::none()), 1)
    }

    pub fn with(pool: PoolConfig, config: SharedConfig, shards: u8) -> Host {
        let pool = Pool::new(FakeBacking, pool).unwrap();
        let shared = Shared::new(Arc::clone(&pool), config, Nanos::ZERO);
        let shard = |index| {
            let mut rng = SplitMix64::new(u64::from(index));
            let entropy = Box::new(move |bytes: &mut [u8]| rng.fill(bytes));
            Shard::new(index, Arc::clone(&shared), entropy)
        };
        Host {
            now: Nanos::secs(1),
            shards: (0..shards).map(shard).collect(),
            pool,
            shared,
            out: Out::default(),
            conns: BTreeMap::new(),
            calls: Vec::new(),
            next_conn: 0,
        }
    }

    /// Ends the oldest call with this result.
    pub fn end_call(&mut self, result: Result<&[u8], Refusal>) {
        let (caller, _) = self.calls.remove(0);
        let called = result.map(|reply| Called {
            accesses: 3,
            took_ns: 0,
            reply,
        });
        let mut frames = Vec::new();
        let to = self.shards[0].called(&caller, &called, &mut frames);
        if let Some(known) = to.and_then(|conn| self.conns.get_mut(&conn)) {
            known.sent.extend(frames);
        }
    }

    pub fn accept(&mut self, peer: Peer, shard: usize) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.shards[shard].accepted(conn, peer, self.now);
        let known = HostConn {
            shard,
            peer: Some(peer),
            ..HostConn::default()
        };
        self.conns.insert(conn, known);
        conn
    }

    pub fn close(&mut self, conn: ConnId) {
        if let Some(known) = self.conns.remove(&conn) {
            self.shards[known.shard].closed(conn);
        }
    }

    /// The other side closes a connection in good order.
    pub fn leave(&mut self, conn: ConnId) {
        if let Some(known) = self.conns.remove(&conn) {
            self.shards[known.shard].left(conn, self.now);
        }
    }

    /// Bytes from a client. Answers collect in the connection.
    pub fn feed(&mut self, conn: ConnId, mut input: &[u8]) {
        let Some(mut known) = self.conns.remove(&conn) else {
            return;
        };
        while !known.closed {
            match known.inbound.advance(&mut input) {
                Ok(Progress::NeedMore) => break,
                Ok(Progress::Frame(header)) => self.frame(conn, &mut known, &header),
                Ok(Progress::PayloadDone) => match known.after_discard.take() {
                    Some(refusal) => known.sent.extend(refusal),
                    None => {
                        let header = *known.inbound.header().unwrap();
                        self.shards[known.shard].written(conn, &header, &mut self.out);
                        send(&mut self.out, &mut known);
                    }
                },
                Err(error) => {
                    self.shards[known.shard].malformed(error, &mut self.out);
                    send(&mut self.out, &mut known);
                    known.closed = true;
                }
            }
        }
        if known.closed {
            self.shards[known.shard].closed(conn);
        }
        self.conns.insert(conn, known);
        self.shut_fenced();
    }

    fn frame(&mut self, conn: ConnId, known: &mut HostConn, header: &Header) {
        let body = known.inbound.body().to_vec();
        let shard = &mut self.shards[known.shard];
        let mut step = shard.handle(conn, header, &body, self.now, &mut self.out);
        if let Step::HandOff(to) = step {
            known.shard = usize::from(to);
            let shard = &mut self.shards[known.shard];
            shard.accepted(conn, known.peer.unwrap(), self.now);
            step = shard.handle(conn, header, &body, self.now, &mut self.out);
        }
        match step {
            Step::Reply => send(&mut self.out, known),
            Step::ReplyThenClose | Step::ReplyThenGive => {
                send(&mut self.out, known);
                known.closed = true;
            }
            Step::Receive => known.inbound.receive(&mut self.out.spans),
            Step::DiscardThenReply(len) => {
                known.inbound.discard(len);
                known.after_discard = Some(self.out.frame.clone());
            }
            Step::Nothing => {}
            Step::Call => {
                let args = body[muninn_wire::Call::HEAD..].to_vec();
                self.calls.push((self.out.caller.unwrap(), args));
            }
            Step::HandOff(_) => panic!("handed on twice"),
        }
    }

    fn shut_fenced(&mut self) {
        for fenced in std::mem::take(&mut self.out.fenced) {
            self.conns.remove(&fenced);
        }
    }

    pub fn tick(&mut self) {
        for shard in &mut self.shards {
            shard.tick(self.now, &mut self.out);
        }
        self.shut_fenced();
    }

    pub fn is_open(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|known| !known.closed)
    }
    pub fn take_sent(&mut self, conn: ConnId) -> Vec<u8> {
        let known = self.conns.get_mut(&conn);
        known.map_or_else(Vec::new, |known| std::mem::take(&mut known.sent))
    }
    pub fn refused(&self, reason: &str) -> u64 {
        let refusals = self.shared.registry.refusals();
        refusals
            .iter()
            .find(|(r, _)| *r == reason)
            .map_or(0, |(_, n)| *n)
    }

    /// A handshake from the first byte to the last.
    pub fn shake(
        &mut self,
        conn: ConnId,
        key: &Key,
        purpose: Purpose,
    ) -> Result<muninn_proto::client::Opened, HandshakeError> {
        let (mut handshake, hello) = Handshake::start(key.clone(), purpose, [3; 48], 42).unwrap();
        self.feed(conn, &hello);
        let mut frames = FrameBuffer::default();
        loop {
            let sent = self.take_sent(conn);
            let mut input = &sent[..];
            let header = frames.advance(&mut input)?.expect("a whole frame");
            let next = handshake.handle(&header, frames.body())?;
            frames.clear();
            match next {
                Next::Send(frame) => self.feed(conn, &frame),
                Next::Done(opened) => return Ok(opened),
            }
        }
    }

    pub fn open(&mut self, name: &str) -> Client {
        self.open_as(name, Transport::Tcp, Peer::LOOPBACK)
    }

    /// A session that maps memory, of a process that the kernel knows.
    pub fn open_shm_process(&mut self, name: &str, pid: i32) -> Client {
        let conn = self.accept(Peer::Unix { uid: 1 }, 0);
        self.shards[0].comes_from(conn, pid);
        self.open_on(conn, name, Transport::Shm)
    }

    pub fn open_as(&mut self, name: &str, transport: Transport, peer: Peer) -> Client {
        let conn = self.accept(peer, 0);
        self.open_on(conn, name, transport)
    }

    /// A session over tcp of a client with this key.
    pub fn open_with(&mut self, conn: ConnId, key: &Key, name: &str) -> Client {
        self.open_keyed(conn, key, name, Transport::Tcp)
    }

    fn open_on(&mut self, conn: ConnId, name: &str, transport: Transport) -> Client {
        let key = self.shared.config.key.clone();
        self.open_keyed(conn, &key, name, transport)
    }

    fn open_keyed(&mut self, conn: ConnId, key: &Key, name: &str, transport: Transport) -> Client {
        let name = ShortText::lossy(name, 64);
        let purpose = Purpose::Open { transport, name };
        let opened = self.shake(conn, key, purpose).unwrap();
        Client {
            session: opened.welcome.session,
            secret: opened.secret.unwrap(),
            conn,
            lane_id: 0,
            lane: Lane::new(64),
        }
    }
}

fn send(out: &mut Out<FakeBacking>, known: &mut HostConn) {
    known.sent.extend_from_slice(&out.frame);
    known.sent.extend_from_slice(&out.payload);
    for span in out.spans.drain(..) {
        let mut bytes = vec![0; span.len as usize];
        span.extent.mem().read(span.at, &mut bytes);
        known.sent.extend(bytes);
    }
    out.payload.clear();
    out.descriptors.clear();
    // Whether records are used is tested where sockets are.
    out.protect = None;
}

/// One lane of a session.
pub struct Client {
    pub session: SessionId,
    pub secret: SessionSecret,
    pub conn: ConnId,
    pub lane_id: u8,
    pub lane: Lane<Vec<u8>>,
}

pub type Outcome = Result<(Answer, Vec<u8>), OpError>;

impl Client {
    /// Another lane of the same session, or this one again.
    pub fn attach(
        &self,
        host: &mut Host,
        lane_id: u8,
        shard: usize,
    ) -> Result<Client, HandshakeError> {
        let conn = host.accept(Peer::LOOPBACK, shard);
        let purpose = Purpose::Attach {
            session: self.session,
            secret: self.secret.clone(),
            lane: LaneId(lane_id),
            kind: LaneKind::Bulk,
        };
        let key = host.shared.config.key.clone();
        host.shake(conn, &key, purpose)?;
        Ok(Client {
            session: self.session,
            secret: self.secret.clone(),
            conn,
            lane_id,
            lane: Lane::new(64),
        })
    }

    /// Cuts the connection, as the client sees it, and comes back on a new one.
    pub fn come_back(&mut self, host: &mut Host) {
        let fresh = self.attach(host, self.lane_id, 0).unwrap();
        self.conn = fresh.conn;
        self.lane.cut();
    }

    pub fn post(&mut self, verb: Verb, data: Vec<u8>) {
        let operation = Operation {
            verb,
            class: Class::Demand,
            data,
            token: 0,
        };
        assert!(self.lane.post(operation).is_ok(), "the window is full");
    }

    /// Everything that waits to be sent, as bytes.
    pub fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(transmit) = self.lane.transmit(&mut bytes) {
            bytes.extend_from_slice(self.lane.payload(transmit));
        }
        bytes
    }

    /// The connection breaks, what was sent on it is lost, and the lane comes back.
    pub fn cut_and_attach(&mut self, host: &mut Host) {
        host.close(self.conn);
        let again = self.attach(host, self.lane_id, 0).unwrap();
        self.conn = again.conn;
        self.lane.cut();
    }

    pub fn exchange(&mut self, host: &mut Host) {
        let bytes = self.bytes();
        host.feed(self.conn, &bytes);
        self.lane.receive(&host.take_sent(self.conn)).unwrap();
    }

    pub fn call(&mut self, host: &mut Host, verb: Verb, data: Vec<u8>) -> Outcome {
        self.post(verb, data);
        self.exchange(host);
        let done = self.lane.pop().expect("an answer");
        done.result.map(|answer| (answer, done.operation.data))
    }

    pub fn control(&mut self, host: &mut Host, control: Control) -> Result<Answer, OpError> {
        self.call(host, Verb::Control(control), Vec::new())
            .map(|(answer, _)| answer)
    }

    pub fn grant(&mut self, host: &mut Host, bytes: u64) -> Result<GrantId, ErrorCode> {
        match self.control(host, Control::Grant { bytes }) {
            Ok(Answer::Granted(info)) => Ok(info.grant),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(code(error)),
        }
    }
    pub fn release(&mut self, host: &mut Host, grants: &[GrantId]) -> Result<(), ErrorCode> {
        let released = self.control(host, Control::Release(grants.to_vec()));
        released.map(|_| ()).map_err(code)
    }
    pub fn share(
        &mut self,
        host: &mut Host,
        grants: &[GrantId],
    ) -> Result<[u8; TICKET_LEN], ErrorCode> {
        match self.control(host, Control::Share(grants.to_vec())) {
            Ok(Answer::Ticket(ticket)) => Ok(ticket),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(code(error)),
        }
    }
    pub fn adopt(&mut self, host: &mut Host, ticket: [u8; TICKET_LEN]) -> Result<usize, ErrorCode> {
        match self.control(host, Control::Adopt { ticket }) {
            Ok(Answer::Adopted(grants)) => Ok(grants.len()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(code(error)),
        }
    }
    pub fn write(
        &mut self,
        host: &mut Host,
        grant: GrantId,
        offset: u32,
        data: &[u8],
    ) -> Result<(), ErrorCode> {
        let segs = vec![Seg::new(grant, offset, data.len() as u32)];
        let written = self.call(host, Verb::Write(segs), data.to_vec());
        written.map(|_| ()).map_err(code)
    }
    pub fn read(
        &mut self,
        host: &mut Host,
        grant: GrantId,
        offset: u32,
        len: u32,
    ) -> Result<Vec<u8>, ErrorCode> {
        let segs = vec![Seg::new(grant, offset, len)];
        let read = self.call(host, Verb::Read(segs), vec![0xee; len as usize]);
        read.map(|(_, data)| data).map_err(code)
    }
    pub fn add(&mut self, host: &mut Host, grant: GrantId, add: u64) -> Result<u64, ErrorCode> {
        let verb = Verb::FetchAdd {
            grant,
            offset: 0,
            add,
        };
        match self.call(host, verb, Vec::new()) {
            Ok((Answer::Old(old), _)) => Ok(old),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(code(error)),
        }
    }
}

pub fn refusal(error: OpError) -> Refusal {
    match error {
        OpError::Refused(refusal) => refusal,
        other => panic!("{other}"),
    }
}

pub fn code(error: OpError) -> ErrorCode {
    refusal(error).code
}
