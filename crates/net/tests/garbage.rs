//! Anything at all, sent to a live server: it refuses, counts why, and stays as it was.
//!
//! Valid frames are made and then broken: bits flipped, cut short, doubled, lengths changed,
//! spliced with others; half of them get a right check again, so that they come further than the
//! door. `MUNINN_GARBAGE_FRAMES=1000000` for a long run; a failing run prints its seed
//! (`MUNINN_GARBAGE_SEED`).

mod common;

use common::*;
use muninn_net::{Key, Observer, Pool, TcpSession};
use muninn_proto::client::{Handshake, Next, Purpose};
use muninn_proto::secure::{Records, Role};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, GrantId, LaneId, LaneKind, SplitMix64, Tag};
use muninn_wire::{
    ErrorCode, GrantInfo, HEADER_LEN, Header, Hello, Intent, Kind, Lock, Request, Seg, Segs,
    ShortText, Transport as Wire,
};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Where children of this program start.
#[test]
fn child() {
    serve_if_asked();
}

fn number(name: &str, or: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.and_then(|n| n.parse().ok()).unwrap_or(or)
}

/// Short, so that what was left behind is soon gone; in a run of hours the machine has other things to
/// do at times, and who behaves must not be taken for dead.
fn lease(frames: u64) -> Duration {
    Duration::from_secs(if frames > 200_000 { 6 } else { 2 })
}

/// Valid frames of every kind, for grants that may or may not be there.
fn valid(rng: &mut SplitMix64, grants: &[GrantId]) -> Vec<u8> {
    let grant = match grants.len() as u64 {
        0 => GrantId(rng.below(1000)),
        n => grants[rng.below(n) as usize],
    };
    let class = Class::ALL[rng.below(9) as usize];
    let tag = Tag(rng.below(1 << 20));
    let count = 1 + rng.below(4);
    let segs: Vec<Seg> = (0..count)
        .map(|_| Seg::new(grant, rng.below(8192) as u32, 1 + rng.below(512) as u32))
        .collect();
    let body = seg_bytes(&segs);
    let ids = list(&[grant]);
    let mut frame = Vec::new();
    let mut payload = 0;
    let request = match rng.below(16) {
        0 => Request::Hello(Hello {
            nonce: [3; 16],
            pid: 1,
            intent: match rng.below(3) {
                0 => Intent::Open {
                    transport: Wire::Tcp,
                    name: ShortText::lossy("garbage", 64),
                },
                1 => Intent::Attach {
                    session: muninn_types::SessionId(rng.next_u64()),
                    lane: LaneId(rng.below(20) as u8),
                    kind: LaneKind::Bulk,
                },
                _ => Intent::Observe,
            },
            lock: Lock::from_byte(rng.below(3) as u8).unwrap(),
            noise: pattern(rng.next_u64(), rng.below(100) as usize),
        }),
        1 => Request::Prove {
            proof: [9; 32],
            noise: &[7; 48],
        },
        2 => Request::Heartbeat,
        3 => Request::Status {
            after: muninn_types::SessionId(rng.next_u64()),
        },
        4 => Request::Drain {
            deadline_ms: rng.below(2),
        },
        5 => Request::Adopt { ticket: [1; 16] },
        6 => Request::Grant {
            bytes: rng.below(20_000),
        },
        7 => Request::Release(muninn_wire::GrantList::decode(&ids).unwrap()),
        8 => Request::Share(muninn_wire::GrantList::decode(&ids).unwrap()),
        9 => Request::FetchAdd {
            grant,
            offset: rng.below(4096) as u32,
            add: 1,
        },
        10 => Request::CompareSwap {
            grant,
            offset: rng.below(4096) as u32,
            expect: 0,
            new: 1,
        },
        11..14 => Request::Read(Segs::decode(&body).unwrap()),
        _ => {
            let segs = Segs::decode(&body).unwrap();
            payload = segs.total() as usize;
            Request::Write(segs)
        }
    };
    request.encode(class, tag, &mut frame);
    frame.resize(frame.len() + payload, 0xDD);
    frame
}

/// Gives a frame the check that its bytes ask for, if it has a header at all.
fn reseal(frame: &mut [u8]) {
    let Some(head) = frame.first_chunk::<HEADER_LEN>() else {
        return;
    };
    if let Ok(header) = Header::decode(head) {
        let end = (HEADER_LEN + header.body_len as usize).min(frame.len());
        muninn_wire::seal_frame(&mut frame[..end], header, header.payload_len);
    }
}

fn mutate(frame: &mut Vec<u8>, rng: &mut SplitMix64, other: &[u8]) {
    let at = rng.below(frame.len() as u64) as usize;
    match rng.below(8) {
        0 | 1 => {
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(frame.len() as u64) as usize;
                frame[at] ^= 1 << rng.below(8);
            }
        }
        2 => frame.truncate(at),
        3 => frame.extend_from_within(..at),
        4 => {
            // The length of the body or of the payload.
            let field = [16, 20][rng.below(2) as usize];
            let lengths = [0, 1, 8, 4096, 262_144, 262_145, u32::MAX];
            let length = lengths[rng.below(7) as usize];
            frame[field..field + 4].copy_from_slice(&length.to_le_bytes());
        }
        5 => {
            frame.truncate(at);
            frame.extend_from_slice(&other[other.len() / 2..]);
        }
        6 => frame[at..].fill([0, 0xFF][rng.below(2) as usize]),
        _ => {
            let kinds = Kind::ALL;
            frame[3] = kinds[rng.below(kinds.len() as u64) as usize] as u8;
        }
    }
    if rng.below(2) == 0 {
        reseal(frame);
    }
}

/// Sends batches of frames, each on a connection of its own that is then half closed: so the server
/// sees all of it, to the end or to the first frame for which it closes.
struct Sender {
    address: Address,
    /// For whoever may cancel a drain, which garbage can start too.
    unix: Address,
    session: Raw,
    grants: Vec<GrantId>,
    connections: u64,
}

impl Sender {
    fn new(address: &Address, unix: &Address) -> Sender {
        let (session, grants) = Sender::enter(address, unix);
        Sender {
            address: address.clone(),
            unix: unix.clone(),
            session,
            grants,
            connections: 1,
        }
    }

    fn enter(address: &Address, unix: &Address) -> (Raw, Vec<GrantId>) {
        let ends = Instant::now() + PATIENCE;
        let mut raw = Raw::open(address, Wire::Tcp);
        let mut grants = Vec::new();
        while grants.len() < 2 {
            let reply = raw.ask(&Request::Grant { bytes: 16384 }, &[]);
            match reply.code() {
                None => grants.push(GrantInfo::decode(&reply.body).unwrap().grant),
                Some(ErrorCode::Draining) => cancel_drain(unix),
                Some(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(Instant::now() < ends, "no grant for a new session");
        }
        (raw, grants)
    }

    /// A connection: of the session, of an observer, or of nobody in particular.
    fn connect(&mut self, rng: &mut SplitMix64) -> Raw {
        self.connections += 1;
        let mut raw = Raw::stranger(&self.address);
        let purpose = match rng.below(8) {
            0 => return raw,
            1 => Purpose::Observe,
            _ => Purpose::Attach {
                session: self.session.session,
                secret: self.session.secret.clone(),
                lane: LaneId(rng.below(3) as u8),
                kind: LaneKind::Control,
            },
        };
        if raw.shake(purpose).is_err() {
            // A goodbye came through.
            (self.session, self.grants) = Sender::enter(&self.address, &self.unix);
        } else if rng.below(16) == 0 {
            // Releases come through as well: something to attack must be left.
            let reply = raw.ask(&Request::Grant { bytes: 16384 }, &[]);
            if reply.code().is_none() && reply.header.kind == Kind::GrantReply {
                let at = rng.below(self.grants.len() as u64) as usize;
                self.grants[at] = GrantInfo::decode(&reply.body).unwrap().grant;
            }
        }
        raw
    }

    fn run(&mut self, frames: u64, rng: &mut SplitMix64) {
        let mut sent = 0;
        while sent < frames {
            let mut raw = self.connect(rng);
            let mut bytes = Vec::new();
            for _ in 0..1 + rng.below(6) {
                sent += 1;
                if rng.below(20) == 0 {
                    bytes.extend(pattern(rng.next_u64(), rng.below(300) as usize));
                    continue;
                }
                let other = valid(rng, &self.grants);
                let mut frame = valid(rng, &self.grants);
                if rng.below(8) > 0 {
                    mutate(&mut frame, rng, &other);
                }
                bytes.extend(frame);
            }
            if raw.try_send(&bytes) {
                // A few leave without a word; the others hear the server out.
                let _ = rustix::net::shutdown(raw.stream.as_fd(), rustix::net::Shutdown::Write);
                if rng.below(32) > 0 {
                    raw.drain();
                }
            }
        }
    }
}

fn cancel_drain(unix: &Address) {
    Observer::connect(unix, &options())
        .unwrap()
        .drain(None)
        .unwrap();
}

#[test]
fn a_server_stays_as_it_was_whatever_it_is_sent() {
    let frames = number("MUNINN_GARBAGE_FRAMES", 100_000);
    let seed = number("MUNINN_GARBAGE_SEED", muninn_sys::rand::u64());
    println!("MUNINN_GARBAGE_SEED={seed}");
    let lease = lease(frames);
    let mut remote = Remote::start("child", Bytes::mib(256), lease, 2);
    let (tcp, unix) = (remote.tcp.clone(), remote.unix.clone());

    // Someone who behaves, all the while.
    let good = TcpSession::open(&tcp, &options()).unwrap();
    let good = Pool::new(vec![Arc::new(good)], options()).unwrap();
    let mapped = Pool::connect(&unix.to_string(), options()).unwrap();
    let kept = [&good, &mapped].map(|pool| pool.grant(Bytes::kib(256)).unwrap());
    let data = pattern(seed, 256 << 10);
    good.write(&kept[0], 0, &data).unwrap();
    mapped.write(&kept[1], 0, &data).unwrap();

    // Once round, so that what is allocated once is not taken for growth.
    let mut rng = SplitMix64::new(seed);
    for address in [&tcp, &unix] {
        Sender::new(address, &unix).run(2000, &mut rng);
    }
    let settle = |remote: &mut Remote| {
        cancel_drain(&remote.unix);
        until("the server to be as it was", || {
            let now = ["sessions", "grants", "connections", "wiping"].map(|what| remote.ask(what));
            // The good one's control and two lanes, and the mapped one's control.
            now == [2, 2, 4, 0] || {
                std::thread::sleep(Duration::from_millis(20));
                false
            }
        });
    };
    good.read(&kept[0], 0, &mut [0; 8]).unwrap();
    settle(&mut remote);
    let (refusals, memory) = (remote.ask("refusals"), remote.anonymous_kib());

    let started = Instant::now();
    let (stop, checks, opened) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, checks, opened) = (&stop, &checks, &opened);
        let check = scope.spawn(|| {
            let mut back = vec![0; 256 << 10];
            while !stop.load(Relaxed) {
                for (pool, grant) in [(&good, &kept[0]), (&mapped, &kept[1])] {
                    back.fill(0);
                    pool.read(grant, 0, &mut back).unwrap();
                    assert!(back == data, "a client that behaves reads other bytes");
                    pool.write(grant, 4096, &data[4096..8192]).unwrap();
                }
                checks.fetch_add(1, Relaxed);
            }
        });
        let unix = &unix;
        let senders = [&tcp, unix, &tcp, unix].map(|address| {
            let mut rng = rng.fork();
            scope.spawn(move || {
                let mut sender = Sender::new(address, unix);
                sender.run(frames / 4, &mut rng);
                opened.fetch_add(sender.connections, Relaxed);
            })
        });
        let sent = senders.map(|sender| sender.join());
        stop.store(true, Relaxed);
        check.join().unwrap();
        for sender in sent {
            sender.unwrap();
        }
    });
    let (checks, opened) = (checks.into_inner(), opened.into_inner());
    let took = started.elapsed();
    println!("{frames} frames over {opened} connections in {took:?}, {checks} checks beside them");

    assert!(remote.is_healthy());
    settle(&mut remote);
    let refused = remote.ask("refusals") - refusals;
    remote.process.tell("table");
    println!("refusals: {}", remote.process.hear());
    // At least each connection that was closed was closed for a reason that was counted.
    assert!(
        refused > frames / 10,
        "only {refused} refusals were counted"
    );
    let grown = remote.anonymous_kib() as i64 - memory as i64;
    println!("memory beside the pool: {memory} KiB, grown by {grown} KiB");
    assert!(grown < 4 << 10, "the server grew by {grown} KiB");
    assert!(checks > 0, "nobody checked");
    for (pool, grant) in [(&good, &kept[0]), (&mapped, &kept[1])] {
        let mut back = vec![0; 256 << 10];
        pool.read(grant, 0, &mut back).unwrap();
        assert!(back == data, "a client that behaves reads other bytes");
    }
}

/// One who has a key: at the Unix socket, where what follows the handshake is in the open, or over tcp, from any
/// of this machine's many addresses, which are one source.
struct Armed {
    stream: Box<dyn Line>,
    on_a_network: bool,
    records: Option<Records>,
}

/// A connection of either kind.
trait Line: Read + Write {
    fn end_writing(&self);
}

impl Line for TcpStream {
    fn end_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Line for UnixStream {
    fn end_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// How far a handshake is brought before it is spoiled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spoilt {
    Hello,
    Proof,
    Never,
}

impl Armed {
    fn connect(to: &Address, rng: &mut SplitMix64) -> Option<Armed> {
        let to = match to {
            Address::Tcp(to) => *to,
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).ok()?;
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return Some(Armed {
                    stream: Box::new(stream),
                    on_a_network: false,
                    records: None,
                });
            }
        };
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let [_, a, b, c] = rng.next_u64().to_be_bytes()[..4] else {
            unreachable!("four bytes")
        };
        let from = Ipv4Addr::new(127, a, b, c.clamp(1, 254));
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
        bind(&socket, &SocketAddr::from((from, 0))).ok()?;
        connect(&socket, &to).ok()?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Some(Armed {
            stream: Box::new(stream),
            on_a_network: true,
            records: None,
        })
    }

    /// A whole frame of the server's; None when it has closed the connection.
    fn frame(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut head = [0; HEADER_LEN];
        self.stream.read_exact(&mut head).ok()?;
        let header = Header::decode(&head).ok()?;
        let mut body = vec![0; header.body_len as usize];
        self.stream.read_exact(&mut body).ok()?;
        Some((header, body))
    }

    /// The handshake, as far as it goes. False: the connection is of no more use.
    fn shake(&mut self, key: &Key, spoilt: Spoilt, rng: &mut SplitMix64) -> bool {
        let purpose = match rng.below(4) {
            0 => Purpose::Observe,
            _ => Purpose::Open {
                transport: Wire::Tcp,
                name: ShortText::lossy("armed", 64),
            },
        };
        let entropy = muninn_sys::rand::bytes();
        let (mut handshake, mut hello) =
            Handshake::start(key.clone(), purpose, entropy, 7).unwrap();
        if spoilt == Spoilt::Hello {
            let other = hello.clone();
            mutate(&mut hello, rng, &other);
        }
        if self.stream.write_all(&hello).is_err() || spoilt == Spoilt::Hello {
            return false;
        }
        let Some((header, body)) = self.frame() else {
            return false;
        };
        let Ok(Next::Send(mut proof)) = handshake.handle(&header, &body) else {
            return false;
        };
        if spoilt == Spoilt::Proof {
            let other = hello;
            mutate(&mut proof, rng, &other);
        }
        self.records = handshake.channel().filter(|_| self.on_a_network);
        self.stream.write_all(&proof).is_ok() && spoilt == Spoilt::Never
    }

    /// Frames of any kind in records, good and bad ones; or bytes that are no records.
    fn attack(&mut self, rng: &mut SplitMix64) -> u64 {
        let mut wire = Vec::new();
        let count = 1 + rng.below(8);
        for _ in 0..count {
            let (other, mut frame) = (valid(rng, &[]), valid(rng, &[]));
            if rng.below(8) > 0 {
                mutate(&mut frame, rng, &other);
            }
            let before = wire.len();
            match &mut self.records {
                Some(records) if rng.below(8) > 0 => {
                    for piece in frame.chunks(1 + rng.below(2000) as usize) {
                        records.seal(piece, &mut wire);
                    }
                }
                _ => wire.extend_from_slice(&frame),
            }
            if rng.below(8) == 0 && wire.len() > before {
                let at = before + rng.below((wire.len() - before) as u64) as usize;
                wire[at] ^= 1 << rng.below(8);
            }
        }
        let _ = self.stream.write_all(&wire);
        count
    }

    /// Waits for the server to be done with what was sent.
    fn end(mut self) {
        self.stream.end_writing();
        let mut rest = [0; 4096];
        while matches!(self.stream.read(&mut rest), Ok(1..)) {}
    }
}

/// Attackers are on other machines: they take no time of the server's processors.
fn stand_back() {
    // Of the calling thread, as Linux has it.
    let own = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(own), 19);
}

/// The longest that 99 of 100 reads of a page took.
fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

#[test]
fn a_server_with_a_key_stays_as_it_was_whatever_it_is_sent() {
    let frames = number("MUNINN_GARBAGE_FRAMES", 100_000) / 10;
    let seed = number("MUNINN_GARBAGE_SEED", muninn_sys::rand::u64());
    println!("MUNINN_GARBAGE_SEED={seed}");
    let lease = lease(frames);
    let mut remote = Remote::start_as("child", Bytes::mib(64), lease, 1, "identity");
    let doors = [remote.tcp.clone(), remote.unix.clone()];
    let options = muninn_net::PoolOptions {
        key: test_identity(Role::Client, "good"),
        ..options()
    };
    let good = Pool::connect(&remote.tcp.to_string(), options).unwrap();
    let grant = good.grant(Bytes::kib(256)).unwrap();
    let data = pattern(seed, 256 << 10);
    good.write(&grant, 0, &data).unwrap();
    let read = |page: u64| {
        let mut back = [0; 4096];
        let began = Instant::now();
        good.read(&grant, page * 4096, &mut back).unwrap();
        let took = began.elapsed();
        let right = &data[page as usize * 4096..][..4096];
        assert!(back == right, "a client that behaves reads other bytes");
        took
    };
    let mut idle: Vec<Duration> = (0..2000).map(|n| read(n % 64)).collect();
    let key = test_identity(Role::Client, "bad");
    let work = &|frames: u64, door: usize, mut rng: SplitMix64| {
        stand_back();
        let mut sent = 0;
        while sent < frames {
            let Some(mut armed) = Armed::connect(&doors[door], &mut rng) else {
                continue;
            };
            // Few: all of this machine's addresses are one source, which may not begin more than it ends.
            let spoilt = match rng.below(32) {
                0 => Spoilt::Hello,
                1 => Spoilt::Proof,
                _ => Spoilt::Never,
            };
            armed.shake(&key, spoilt, &mut rng);
            sent += 1 + armed.attack(&mut rng);
            armed.end();
        }
    };
    let mut rng = SplitMix64::new(seed);
    // Once round, so that what is allocated once, or for as many sessions as there are at one time, is not
    // taken for growth: a leak would go on.
    let first = (frames / 4).max(1000);
    for door in [0, 1] {
        let rng = rng.fork();
        std::thread::scope(|scope| _ = scope.spawn(|| work(first / 2, door, rng)));
    }
    let settle = |remote: &mut Remote| {
        until("the server to be as it was", || {
            // The good one's control and two lanes.
            ["sessions", "grants", "connections", "wiping"].map(|what| remote.ask(what))
                == [1, 1, 3, 0]
        });
    };
    read(0);
    settle(&mut remote);
    let (refusals, memory) = (remote.ask("refusals"), remote.anonymous_kib());
    let (stop, started) = (AtomicBool::new(false), Instant::now());
    let mut meanwhile = std::thread::scope(|scope| {
        let check = scope.spawn(|| {
            let mut times = Vec::new();
            while !stop.load(Relaxed) {
                times.push(read(times.len() as u64 % 64));
            }
            times
        });
        let senders = [0, 1].map(|door| {
            let rng = rng.fork();
            scope.spawn(move || work(frames / 2, door, rng))
        });
        let ended = senders.map(|sender| sender.join());
        stop.store(true, Relaxed);
        for sender in ended {
            sender.unwrap();
        }
        check.join().unwrap()
    });
    let (idle, busy) = (p99(&mut idle), p99(&mut meanwhile));
    println!(
        "{frames} frames in {:?}; p99 of a page: {idle:?} idle, {busy:?} meanwhile ({:.2} times)",
        started.elapsed(),
        busy.as_secs_f64() / idle.as_secs_f64()
    );
    assert!(remote.is_healthy());
    settle(&mut remote);
    let refused = remote.ask("refusals") - refusals;
    remote.process.tell("table");
    println!("refusals: {}", remote.process.hear());
    assert!(refused > frames / 20, "only {refused} were counted");
    let grown = remote.anonymous_kib() as i64 - memory as i64;
    println!("memory beside the pool: {memory} KiB, grown by {grown} KiB");
    assert!(grown < 4 << 10, "the server grew by {grown} KiB");
}
