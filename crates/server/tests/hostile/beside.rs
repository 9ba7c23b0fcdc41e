//! Memory beside the pool: what a server remembers of its clients, and what waits on its way.
//!
//! Each attack alone took a server of 64 MiB beyond what it may hold; all of them together must not.

use crate::common::*;
use muninn_net::{Pool, PoolOptions};
use muninn_proto::client::{Handshake, Next, Purpose};
use muninn_proto::secure::Role;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, LaneKind};
use muninn_wire::{ErrorCode, GrantList, Request, Seg, ShortText, Transport};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const MEMORY: Bytes = Bytes::mib(64);
const LEASE: Duration = Duration::from_secs(30);

/// What a server may hold, whatever clients do.
fn most_kib() -> u64 {
    (MEMORY.0 + (64 << 20) + MEMORY.0 / 100) / 1024
}

fn rss_kib(remote: &Remote) -> u64 {
    status_kib(remote.process.pid(), "VmRSS")
}

fn check(remote: &Remote, what: &str) {
    let now = rss_kib(remote);
    println!("{what}: {} MiB of {} MiB", now >> 10, most_kib() >> 10);
    assert!(now <= most_kib(), "{what}: {now} KiB");
}

/// A session with all its lanes, as far as the server lets it; sources are many.
fn sessions(remote: &Remote, count: usize, lanes: u8) -> Vec<Vec<Raw>> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut raw = Raw::stranger(&remote.tcp);
        let purpose = Purpose::Open {
            transport: Transport::Tcp,
            name: ShortText::lossy("hoarder", 64),
        };
        if raw.shake(purpose).is_err() {
            break;
        }
        let mut family = vec![raw];
        for lane in 1..lanes {
            match family[0].try_attach(&remote.tcp, lane, LaneKind::Bulk) {
                Some(raw) => family.push(raw),
                None => break,
            }
        }
        all.push(family);
    }
    all
}

/// Asks without reading the answer. False: the connection is closed.
fn shout(raw: &mut Raw, request: &Request<'_>) -> bool {
    let mut frame = Vec::new();
    let tag = raw.tag();
    request.encode(Class::Control, tag, &mut frame);
    matches!(raw.send_some(&frame), muninn_sys::socket::Transfer::Bytes(n) if n == frame.len())
}

#[test]
fn a_server_holds_no_more_than_its_memory_and_a_little() {
    raise_descriptors(u64::MAX);
    let mut remote = Remote::start("child", MEMORY, LEASE, 1);
    let mut good = Raw::open(&remote.unix, Transport::Tcp);
    // All of the pool, written, in the smallest pieces there are: a note for each page.
    let mut owner = Raw::open(&remote.tcp, Transport::Tcp);
    let mut data = owner.attach(&remote.tcp, 1, LaneKind::Bulk);
    let mut held = Vec::new();
    let refused = loop {
        let reply = owner.ask(&Request::Grant { bytes: 4096 }, &[]);
        match reply.code() {
            None => held.push(muninn_wire::GrantInfo::decode(&reply.body).unwrap().grant),
            Some(code) => break code,
        }
    };
    assert!(refused == ErrorCode::PoolFull);
    for grant in &held {
        let seg = Seg {
            grant: *grant,
            offset: 0,
            len: 4096,
        };
        assert_eq!(data.write(&[seg], &[7; 4096]).code(), None);
    }
    check(&remote, "a pool of single pages");
    // As many shares of them as are taken.
    for part in held.chunks(64).cycle().take(200) {
        let ids = list(part);
        let share = Request::Share(GrantList::decode(&ids).unwrap());
        if owner.ask(&share, &[]).code().is_some() {
            break;
        }
    }
    check(&remote, "shares");
    // Sessions with all their lanes; on each, what is remembered for later.
    let mut all = sessions(&remote, 400, 16);
    let lanes: usize = all.iter().map(Vec::len).sum();
    println!("{} sessions, {lanes} lanes", all.len());
    check(&remote, "sessions");
    for raw in all.iter_mut().flatten() {
        for _ in 0..32 {
            shout(raw, &Request::Adopt { ticket: [1; 16] });
        }
    }
    until("what was asked to be answered", || {
        remote.ask("refusals") > 0 && good.ask(&Request::Heartbeat, &[]).code().is_none()
    });
    check(&remote, "answers that are kept");
    // Long answers that nobody reads.
    for _ in 0..40 {
        for raw in all.iter_mut().flatten() {
            let after = muninn_types::SessionId(0);
            shout(raw, &Request::Status { after });
        }
        assert_eq!(good.ask(&Request::Heartbeat, &[]).code(), None);
        check(&remote, "answers that nobody reads");
    }
    drop(all);
    remote.process.tell("table");
    println!("refusals: {}", remote.process.hear());
    assert!(remote.is_healthy());
    // Who behaves is served.
    assert_eq!(good.ask(&Request::Heartbeat, &[]).code(), None);
}

/// Has all of the pool in use.
fn fill(remote: &mut Remote) {
    let own = test_identity(Role::Client, "filler");
    let options = PoolOptions {
        key: own,
        ..options()
    };
    let pool = Pool::connect(&remote.tcp.to_string(), options).unwrap();
    let bytes = vec![7; 1 << 20];
    while let Ok(grant) = pool.grant(Bytes::mib(1)) {
        pool.write(&grant, 0, &bytes).unwrap();
    }
    assert_eq!(remote.ask("granted"), MEMORY.0);
    std::mem::forget(pool);
}

/// A connection in records, of which one is begun and never ended.
fn half_a_record(at: SocketAddr, from: Ipv4Addr) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    bind(&socket, &SocketAddr::from((from, 0))).ok()?;
    connect(&socket, &at).ok()?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let purpose = Purpose::Open {
        transport: Transport::Tcp,
        name: ShortText::lossy("slow", 64),
    };
    let key = test_identity(Role::Client, "slow");
    let entropy = muninn_sys::rand::bytes();
    let (mut handshake, hello) = Handshake::start(key, purpose, entropy, 7).ok()?;
    stream.write_all(&hello).ok()?;
    let mut head = [0; muninn_wire::HEADER_LEN];
    stream.read_exact(&mut head).ok()?;
    let header = muninn_wire::Header::decode(&head).ok()?;
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).ok()?;
    let Ok(Next::Send(proof)) = handshake.handle(&header, &body) else {
        return None;
    };
    stream.write_all(&proof).ok()?;
    let mut welcome = [0; 64];
    stream.read_exact(&mut welcome).ok()?;
    // As long as a length can say, and all of it but the last byte.
    let len = 16_400u16;
    let mut record = len.to_le_bytes().to_vec();
    record.resize(usize::from(len) + 1, 9);
    stream.write_all(&record).ok()?;
    Some(stream)
}

#[test]
fn records_that_never_end_take_no_more_than_a_little() {
    raise_descriptors(u64::MAX);
    let mut remote = Remote::start_as("child", MEMORY, LEASE, 1, "identity");
    let Address::Tcp(at) = remote.tcp else {
        unreachable!("the server's second address is tcp")
    };
    fill(&mut remote);
    let mut open = Vec::new();
    for n in 0..3000u32 {
        let from = Ipv4Addr::from(0x7f01_0000 + n / 16 + 1);
        open.extend(half_a_record(at, from));
        if n % 200 == 0 {
            check(&remote, "half records");
        }
    }
    println!("{} connections", open.len());
    remote.process.tell("table");
    println!("refusals: {}", remote.process.hear());
    assert!(remote.is_healthy());
}
