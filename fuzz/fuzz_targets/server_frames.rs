//! Frames of any kind, in any order, on a few lanes of a few sessions: no panic, and afterwards all
//! memory is free.
//!
//! The input is a list of frames: one byte for the connection, one for how long the rest of the
//! frame is, then kind, class and body. Lengths and check are filled in, so that every mutant is a
//! frame; a flag leaves some of them broken.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muninn_proto::auth::Key;
use muninn_proto::client::{Handshake, Next, Purpose};
use muninn_proto::framing::FrameBuffer;
use muninn_proto::server::{
    FakeBacking, Inbound, Out, Peer, Pool, PoolConfig, Progress, Shard, Shared, SharedConfig, Step,
};
use muninn_types::{Bytes, Class, ConnId, Nanos, SplitMix64, Tag};
use muninn_wire::{
    ErrorCode, HEADER_LEN, Header, Kind, Refusal, Segs, ShortText, Transport, seal_frame,
};
use std::sync::Arc;

struct Conn {
    id: ConnId,
    inbound: Inbound<FakeBacking>,
    open: bool,
}

struct Host {
    shard: Shard<FakeBacking>,
    out: Out<FakeBacking>,
    now: Nanos,
}

impl Host {
    fn feed(&mut self, conn: &mut Conn, mut input: &[u8]) {
        while conn.open {
            match conn.inbound.advance(&mut input) {
                Ok(Progress::NeedMore) => return,
                Ok(Progress::Frame(header)) => {
                    let body = conn.inbound.body().to_vec();
                    let out = &mut self.out;
                    match self.shard.handle(conn.id, &header, &body, self.now, out) {
                        Step::Reply => {}
                        Step::ReplyThenClose | Step::ReplyThenGive | Step::HandOff(_) => {
                            conn.open = false
                        }
                        Step::Receive => conn.inbound.receive(&mut out.spans),
                        Step::DiscardThenReply(len) => conn.inbound.discard(len),
                        Step::Nothing => {}
                        Step::Call => {
                            // Some end at once, others never: both leave nothing behind.
                            let caller = out.caller.expect("a call has a caller");
                            if caller.wic % 2 == 0 {
                                let none = Err(Refusal::new(ErrorCode::NoWic));
                                self.shard.called(&caller, &none, &mut Vec::new());
                            }
                        }
                    }
                }
                Ok(Progress::PayloadDone) => {
                    if let Some(header) = conn.inbound.header().copied() {
                        self.shard.written(conn.id, &header, &mut self.out);
                    }
                }
                Err(error) => {
                    self.shard.malformed(error, &mut self.out);
                    conn.open = false;
                }
            }
        }
        self.shard.closed(conn.id);
        conn.inbound = Inbound::default();
    }

    fn open(&mut self, id: u64, transport: Transport) -> Conn {
        let id = ConnId(id);
        let peer = Peer::Unix { uid: 1 };
        self.shard.accepted(id, peer, self.now);
        let mut conn = Conn {
            id,
            inbound: Inbound::default(),
            open: true,
        };
        let name = ShortText::lossy("fuzz", 8);
        let purpose = Purpose::Open { transport, name };
        let (mut handshake, mut frame) =
            Handshake::start(Key::none(), purpose, [1; 48], 1).unwrap();
        loop {
            self.feed(&mut conn, &frame);
            let mut frames = FrameBuffer::default();
            let header = frames.advance(&mut &self.out.frame[..]).unwrap().unwrap();
            match handshake.handle(&header, frames.body()).unwrap() {
                Next::Send(next) => frame = next,
                Next::Done(_) => return conn,
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let config = PoolConfig {
        memory: Bytes::kib(64),
        segment: Bytes::kib(16),
        quotas: Default::default(),
    };
    let pool = Pool::new(FakeBacking, config).unwrap();
    let lease = Nanos::secs(10);
    let config = SharedConfig {
        name: ShortText::default(),
        key: Key::none(),
        lease,
        max_sessions: 16,
        max_sessions_of_source: 16,
        uid: 1,
        boot: 1,
    };
    let shared = Shared::new(Arc::clone(&pool), config, Nanos::ZERO);
    let mut rng = SplitMix64::new(1);
    let entropy = Box::new(move |bytes: &mut [u8]| rng.fill(bytes));
    let mut host = Host {
        shard: Shard::new(0, shared, entropy),
        out: Out::default(),
        now: Nanos::secs(1),
    };
    let mut conns = vec![
        host.open(1, Transport::Tcp),
        host.open(2, Transport::Tcp),
        host.open(3, Transport::Shm),
    ];
    let stranger = ConnId(4);
    host.shard.accepted(stranger, Peer::LOOPBACK, host.now);
    conns.push(Conn {
        id: stranger,
        inbound: Inbound::default(),
        open: true,
    });
    let mut rest = bytes;
    while let [which, len, kind, class, later @ ..] = rest {
        let body = &later[..usize::from(*len).min(later.len())];
        rest = &later[body.len()..];
        let mut frame = vec![0; HEADER_LEN];
        frame.extend_from_slice(body);
        let conn = &mut conns[usize::from(which & 3)];
        match (Kind::from_byte(*kind), Class::from_byte(class & 15)) {
            (Ok(kind), Ok(class)) => {
                // A write brings the payload that its segments ask for.
                let segs = Segs::decode(body).ok().filter(|_| kind == Kind::Write);
                let payload = segs.map_or(0, |segs| segs.total());
                let tag = Tag(u64::from(which >> 2));
                seal_frame(&mut frame, Header::new(kind, class, tag), payload);
                frame.resize(frame.len() + payload as usize, 0x77);
            }
            // Or bytes as they are.
            _ => frame = rest.iter().take(64).copied().collect(),
        }
        host.feed(conn, &frame);
        for fenced in std::mem::take(&mut host.out.fenced) {
            let fenced = conns.iter_mut().find(|conn| conn.id == fenced);
            if let Some(conn) = fenced {
                conn.open = false;
                conn.inbound = Inbound::default();
            }
        }
        host.out.notices.clear();
        if *kind == 0 {
            pool.wipe_all().unwrap();
        }
        let stats = pool.stats();
        let sum = stats.granted.0 + stats.wiping.0 + pool.free_bytes().0;
        assert_eq!(sum, stats.memory.0);
    }
    drop(conns);
    host.out = Out::default();
    for _ in 0..2 {
        host.now = host.now + lease + Nanos(1);
        host.shard.tick(host.now, &mut host.out);
    }
    pool.wipe_all().unwrap();
    let stats = pool.stats();
    assert_eq!(
        (stats.granted, stats.wiping, stats.extents),
        (Bytes::ZERO, Bytes::ZERO, 0)
    );
    assert_eq!(pool.free_bytes(), stats.memory);
    assert_eq!(host.shard.session_count(), 0);
});
