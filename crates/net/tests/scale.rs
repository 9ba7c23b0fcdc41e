//! A thousand sessions and ten thousand grants: little memory, and requests that cost the same.

mod common;

use common::*;
use muninn_net::Observer;
use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, LaneKind, Tag};
use muninn_wire::{GrantInfo, Kind, Request, Seg, Transport as Wire};
use std::time::{Duration, Instant};

const SESSIONS: usize = 1000;
const GRANTS: usize = 10;

/// Where children of this program start.
#[test]
fn child() {
    serve_if_asked();
}

/// Time on the CPU, of all threads of a process, in clock ticks.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// So many reads of a page, one after the other: the time they took.
fn reads(raw: &mut Raw, info: &GrantInfo, count: usize) -> Duration {
    let started = Instant::now();
    for _ in 0..count {
        let reply = raw.read(&[Seg::new(info.grant, 0, 4096)]);
        assert_eq!(reply.payload.len(), 4096);
    }
    started.elapsed()
}

#[test]
fn a_thousand_sessions_with_ten_grants_each() {
    let needed = SESSIONS as u64 + 200;
    let limit = raise_descriptors(u64::MAX);
    if limit < needed {
        muninn_testing::skip(format!(
            "{needed} open files are needed and {limit} permitted (ulimit -n)"
        ));
        return;
    }
    // Nobody sends heartbeats here.
    let long = Duration::from_secs(600);
    let mut remote = Remote::start("child", Bytes::mib(256), long, 1);
    let pid = remote.process.pid();
    let tcp = remote.tcp.clone();
    let beside = |remote: &Remote| {
        // Pages of the pool are shared memory; nothing was written, so there are none yet.
        remote.anonymous_kib() + status_kib(pid, "RssShmem")
    };
    let empty = beside(&remote);
    let mut first = Raw::open(&tcp, Wire::Tcp);
    let of_first = first.grant(8192);
    reads(&mut first, &of_first, 200);
    let alone = reads(&mut first, &of_first, 1000);
    let ticks = cpu_ticks(pid);
    reads(&mut first, &of_first, 2000);
    let alone_ticks = cpu_ticks(pid) - ticks;

    let started = Instant::now();
    let mut sessions = Vec::new();
    for _ in 1..SESSIONS {
        let raw = Raw::open(&tcp, Wire::Tcp);
        // All at once: one answer after the other.
        let mut frames = Vec::new();
        for tag in 0..GRANTS as u64 {
            Request::Grant { bytes: 4096 }.encode(Class::Control, Tag(100 + tag), &mut frames);
        }
        raw.send(&frames);
        sessions.push(raw);
    }
    for raw in &mut sessions {
        for _ in 0..GRANTS {
            let reply = raw.recv().unwrap();
            assert_eq!((reply.header.kind, reply.code()), (Kind::GrantReply, None));
        }
    }
    println!("opened in {:?}", started.elapsed());
    assert_eq!(remote.ask("sessions"), SESSIONS as u64);
    assert_eq!(remote.ask("grants"), ((SESSIONS - 1) * GRANTS + 1) as u64);
    assert_eq!(
        remote.ask("granted"),
        ((SESSIONS - 1) * GRANTS * 4096 + 8192) as u64
    );
    let full = beside(&remote);
    println!(
        "beside the pool: {full} KiB with {SESSIONS} sessions and {} grants, {empty} KiB without",
        remote.ask("grants")
    );
    assert!(full < 64 << 10, "{full} KiB beside the pool");

    // Timings are no tests: a ratio to be read.
    let among = reads(&mut first, &of_first, 1000);
    let ticks = cpu_ticks(pid);
    reads(&mut first, &of_first, 2000);
    let among_ticks = cpu_ticks(pid) - ticks;
    println!(
        "1000 reads: {alone:?} alone, {among:?} among {SESSIONS} sessions (ratio {:.2}); \
         server's CPU for 2000: {alone_ticks} and {among_ticks} ticks",
        among.as_secs_f64() / alone.as_secs_f64()
    );

    // A page of status at a time, none twice, none left out.
    let page = status_of(&tcp);
    assert_eq!(page.sessions.len(), SESSIONS);
    assert!(page.sessions.is_sorted_by(|a, b| a.id < b.id));
    let grants: u32 = page.sessions.iter().map(|s| s.grants).sum();
    assert_eq!(grants as u64, remote.ask("grants"));

    // All of them say goodbye, and nothing is left of them.
    sessions.push(first);
    for raw in &mut sessions {
        raw.ask(&Request::Goodbye, &[]);
    }
    until("all memory to come back", || {
        remote.ask("granted") == 0 && remote.ask("wiping") == 0
    });
    until("the connections to be forgotten", || {
        remote.ask("connections") == 0
    });
    assert_eq!(remote.ask("sessions"), 0);
    assert!(remote.is_healthy());
}

#[test]
fn sessions_come_and_go_without_end_and_leave_nothing() {
    let long = Duration::from_secs(600);
    let mut remote = Remote::start("child", Bytes::mib(64), long, 2);
    let tcp = remote.tcp.clone();
    let unix = remote.unix.clone();
    let round = |rounds: usize| {
        for i in 0..rounds {
            let (address, transport) = match i % 3 {
                0 => (&tcp, Wire::Tcp),
                1 => (&unix, Wire::Tcp),
                _ => (&unix, Wire::Shm),
            };
            let mut raw = Raw::open(address, transport);
            let info = raw.grant(8192);
            if transport == Wire::Tcp {
                let mut lane = raw.attach(address, 1, LaneKind::Bulk);
                lane.write(&[Seg::new(info.grant, 0, 8)], b"and gone");
            }
            assert_eq!(raw.ask(&Request::Goodbye, &[]).code(), None);
        }
    };
    let settled = |remote: &mut Remote| {
        until("the server to be empty", || {
            ["sessions", "grants", "connections", "wiping"].map(|what| remote.ask(what)) == [0; 4]
        });
        remote.anonymous_kib()
    };
    let fds = format!("/proc/{}/fd", remote.process.pid());
    let open = || std::fs::read_dir(&fds).unwrap().count();
    round(150);
    let memory = settled(&mut remote);
    let files = open();
    round(600);
    let memory_now = settled(&mut remote);
    // One is closed a moment after its session is forgotten.
    until("all descriptors to be closed", || open() <= files);
    println!("{memory} KiB and {files} files, then {memory_now} KiB");
    assert!(
        memory_now < memory + 2048,
        "{memory} KiB became {memory_now} KiB"
    );
}

/// A server answers at every address that it says it listens at.
#[test]
fn forty_addresses_are_answered_at() {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let with = |count: usize| ServerConfig {
        listen: vec![any.clone(); count],
        ..config(Bytes::mib(16))
    };
    let server = Server::start(with(40)).unwrap();
    for at in server.addresses() {
        let mut observer = Observer::connect(at, &options()).unwrap();
        assert_eq!(observer.status().unwrap().server.sessions, 0, "{at}");
    }
    let refused = Server::start(with(257)).unwrap_err().to_string();
    assert!(refused.contains("257 addresses"), "{refused}");
}
