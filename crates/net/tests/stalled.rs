//! Clients that stall hold back nobody but themselves.

mod common;

use common::*;
use muninn_net::{Lane, TcpSession, Transport};
use muninn_server::ServerConfig;
use muninn_sys::socket::Transfer;
use muninn_types::{Bytes, Class, GrantId, LaneKind, Tag};
use muninn_wire::{Kind, Request, Seg, Segs, Transport as Wire};
use std::time::{Duration, Instant};

/// Where children of this program start.
#[test]
fn child() {
    serve_if_asked();
}

/// A client that behaves, and checks every byte.
struct Good {
    _session: TcpSession,
    lane: Box<dyn Lane>,
    grant: GrantId,
    round: u64,
}

impl Good {
    fn new(address: &muninn_sys::socket::Address) -> Good {
        let session = TcpSession::open(address, &options()).unwrap();
        let control = muninn_net::Control::Grant { bytes: 1 << 20 };
        let grant = match session.call(control, PATIENCE).unwrap() {
            muninn_net::Answer::Granted(info) => info.grant,
            other => panic!("{other:?}"),
        };
        let lane = session.lane(LaneKind::Critical).unwrap();
        Good {
            _session: session,
            lane,
            grant,
            round: 0,
        }
    }

    /// So many writes and reads of a page. The deadline of a lane is generous; stalls would pass it.
    fn work(&mut self, rounds: u64) -> Duration {
        let started = Instant::now();
        for _ in 0..rounds {
            self.round += 1;
            let seg = [Seg::new(self.grant, (self.round % 256) as u32 * 4096, 4096)];
            let data = pattern(self.round, 4096);
            self.lane.write_v(Class::Demand, &seg, &data).unwrap();
            let mut back = vec![0; 4096];
            self.lane.read_v(Class::Demand, &seg, &mut back).unwrap();
            assert!(back == data, "round {}: other bytes", self.round);
        }
        started.elapsed()
    }
}

fn many_reads(grant: GrantId, count: u64) -> Vec<u8> {
    let mut frames = Vec::new();
    let body = seg_bytes(&[Seg::new(grant, 0, 256 << 10)]);
    for tag in 0..count {
        let segs = Segs::decode(&body).unwrap();
        Request::Read(segs).encode(Class::Demand, Tag(1000 + tag), &mut frames);
    }
    frames
}

#[test]
fn others_are_served_while_some_stall() {
    // Over leases, so that the stalled keep their sessions by heartbeats on another lane.
    let mut remote = Remote::start("child", Bytes::mib(64), Duration::from_secs(20), 1);
    let (unix, tcp) = (remote.unix.clone(), remote.tcp.clone());
    let mut good = Good::new(&tcp);
    let alone = good.work(200);
    let before = remote.anonymous_kib();

    let mut stalled = Vec::new();
    for address in [&tcp, &unix] {
        // Asks and asks, and reads nothing: until not even the requests are taken.
        let mut deaf = Raw::open(address, Wire::Tcp);
        let grant = deaf.grant(1 << 20).grant;
        for lane in 1..6 {
            let raw = deaf.attach(address, lane, LaneKind::Critical);
            let frames = many_reads(grant, 400);
            let mut sent = 0;
            while sent < frames.len() {
                match raw.send_some(&frames[sent..]) {
                    Transfer::Bytes(n) => sent += n,
                    _ => break,
                }
            }
            stalled.push(raw);
        }
        // Half a header, half a body, half a payload.
        let write = {
            let body = seg_bytes(&[Seg::new(grant, 0, 4096)]);
            let mut frame = Vec::new();
            let segs = Segs::decode(&body).unwrap();
            Request::Write(segs).encode(Class::Demand, Tag(5), &mut frame);
            frame.resize(frame.len() + 4096, 7);
            frame
        };
        for (lane, part) in [(6, 11), (7, 40), (8, 2000)] {
            let raw = deaf.attach(address, lane, LaneKind::Critical);
            raw.send(&write[..part]);
            stalled.push(raw);
        }
        // The same, a byte at a time, while the good one works: it is served, slowly.
        let mut slow = deaf.attach(address, 9, LaneKind::Critical);
        for (i, byte) in write.iter().enumerate() {
            slow.send(std::slice::from_ref(byte));
            if i % 64 == 0 {
                good.work(1);
            }
        }
        assert_eq!(slow.recv().unwrap().header.kind, Kind::WriteReply);
        stalled.push(deaf);
    }
    let besides = good.work(1000);
    println!("200 rounds alone {alone:?}, 1000 rounds beside the stalled {besides:?}");
    let grown = remote.anonymous_kib().saturating_sub(before);
    println!("{} stalled connections cost {grown} KiB", stalled.len());
    assert!(
        grown < 4 << 10,
        "{grown} KiB for {} connections",
        stalled.len()
    );
    // The deaf are served again as soon as they listen.
    let first = &mut stalled[0];
    for tag in 0..3 {
        let reply = first.recv().unwrap();
        assert_eq!(reply.header.tag, Tag(1000 + tag));
        assert_eq!(reply.payload.len(), 256 << 10);
    }
    drop(stalled);
    good.work(50);
    until("the stalled to be forgotten", || {
        remote.ask("connections") <= 2
    });
    assert!(remote.is_healthy());
}

#[test]
fn those_who_never_say_hello_are_shown_out() {
    let mut remote = Remote::start("child", Bytes::mib(16), Duration::from_secs(20), 1);
    let (unix, tcp) = (remote.unix.clone(), remote.tcp.clone());
    let mut good = Good::new(&tcp);
    let mut strangers: Vec<Raw> = (0..300)
        .map(|i| {
            let raw = Raw::stranger(if i % 2 == 0 { &tcp } else { &unix });
            // Some say half a hello.
            if i % 3 == 0 {
                let hello = sealed(Kind::Hello, Class::Control, Tag(0), &[0; 22], 0);
                raw.try_send(&hello[..20]);
            }
            raw
        })
        .collect();
    // Someone new is let in although all places for strangers are taken.
    let mut newcomer = None;
    until("someone new to be let in", || {
        newcomer = TcpSession::open(&tcp, &options()).ok();
        newcomer.is_some()
    });
    let left = strangers.iter_mut().map(|s| usize::from(!s.is_closed()));
    let left: usize = left.sum();
    println!("let in beside {left} strangers");
    assert!(left > 100, "let in only when {left} strangers were left");
    good.work(200);
    for stranger in &mut strangers {
        until("the strangers to be shown out", || stranger.is_closed());
    }
    // A session of two connections and one of one are left.
    until("the strangers to be forgotten", || {
        remote.ask("connections") == 3
    });
    remote.process.tell("table");
    let table = remote.process.hear();
    println!("{table}");
    assert!(table.contains("handshake-too-slow="), "{table}");
    assert!(table.contains("too-many-strangers="), "{table}");
    good.work(10);
    assert!(remote.is_healthy());
}

#[test]
fn those_who_only_watch_are_forgotten_when_they_go() {
    let local = Local::start(ServerConfig {
        lease: Duration::from_millis(500),
        ..config(Bytes::mib(16))
    });
    let mut observers: Vec<Raw> = (0..50)
        .map(|_| {
            let mut raw = Raw::stranger(&local.tcp);
            raw.shake(muninn_proto::client::Purpose::Observe).unwrap();
            raw
        })
        .collect();
    let heartbeat = sealed(Kind::Heartbeat, Class::Control, Tag(1), &[], 0);
    for observer in &observers {
        observer.send(&heartbeat);
    }
    for observer in &mut observers {
        assert_eq!(observer.recv().unwrap().header.kind, Kind::HeartbeatReply);
    }
    assert_eq!(local.server.status().server.connections, 50);
    drop(observers);
    until("the observers to be forgotten", || {
        local.server.status().server.connections == 0
    });
}
