//! Agents of managed heaps: their memory and threads are those of a session, and they go nowhere.

use crate::common::*;
use muninn_heap_agent::command::Task;
use muninn_heap_agent::layout::{Geometry, Mode};
use muninn_heap_agent::message::{Ask, Attach, Polled};
use muninn_types::{Bytes, Class, LaneKind, Tag};
use muninn_wire::{ErrorCode, GrantInfo, Kind, Request, Seg, Transport};
use std::io::Write;
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_secs(30);
/// What a server may hold beside its pool, whatever clients do.
const BESIDE: u64 = (64 << 20) / 1024;

struct Attacker {
    raw: Raw,
    data: Raw,
    scratch: GrantInfo,
}

fn small_heap() -> Geometry {
    Geometry {
        region_shift: 16,
        regions: 1,
        regions_per_server: 1,
        mode: Mode::Direct,
    }
}

impl Attacker {
    fn new(remote: &Remote, scratch: u64) -> Attacker {
        let mut raw = Raw::open(&remote.tcp, Transport::Tcp);
        let data = raw.attach(&remote.tcp, 1, LaneKind::Critical);
        let scratch = raw.grant(scratch);
        Attacker { raw, data, scratch }
    }

    fn ask(&mut self, ask: Ask<'_>) -> Result<Vec<u8>, ErrorCode> {
        let reply = self.raw.ask(&Request::Agent(&ask.encode()), &[]);
        match reply.code() {
            Some(code) => Err(code),
            None => Ok(reply.body),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        for (at, part) in bytes.chunks(64 << 10).enumerate() {
            let seg = Seg {
                grant: self.scratch.grant,
                offset: (at * (64 << 10)) as u32,
                len: part.len() as u32,
            };
            assert_eq!(self.data.write(&[seg], part).code(), None);
        }
    }

    fn attach(&mut self, geometry: Geometry, grants: &[u64]) -> Result<Vec<u8>, ErrorCode> {
        let list: Vec<u8> = grants.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.write(&list);
        let attach = Attach {
            geometry,
            me: 0,
            servers: 2,
            scratch: self.scratch.grant.0,
            list_len: list.len() as u32,
        };
        self.ask(Ask::Attach(attach))
    }

    fn attach_small(&mut self) -> Result<Vec<u8>, ErrorCode> {
        let region = self.raw.grant(64 << 10).grant.0;
        let ends = Instant::now() + PATIENCE;
        loop {
            match self.attach(small_heap(), &[region]) {
                // What others have only just given back is being wiped.
                Err(ErrorCode::TryAgain) if Instant::now() < ends => {}
                done => return done,
            }
        }
    }
}

fn server(memory: Bytes) -> Remote {
    Remote::start("child", memory, LEASE, 1)
}

fn threads(remote: &Remote) -> usize {
    let tasks = format!("/proc/{}/task", remote.process.pid());
    std::fs::read_dir(tasks).unwrap().count()
}

/// The test harness of the child has threads and memory as well.
fn settled(remote: &mut Remote) -> u64 {
    let mut raw = Raw::open(&remote.tcp, Transport::Tcp);
    raw.grant(4096);
    remote.anonymous_kib()
}

#[test]
fn a_refused_append_takes_no_memory_and_no_time() {
    let mut remote = server(Bytes::mib(64));
    let before = settled(&mut remote);
    let mut attacker = Attacker::new(&remote, 64 << 10);
    attacker.attach_small().unwrap();
    for len in [1 << 30, u32::MAX, (64 << 10) + 1] {
        let started = Instant::now();
        let refused = attacker.ask(Ask::Append { len });
        assert_eq!(refused, Err(ErrorCode::OutOfBounds));
        assert!(
            started.elapsed() < Duration::from_millis(500),
            "{len} bytes were looked at"
        );
    }
    let grown = remote.anonymous_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB for what was refused");
    // What fits is taken as before.
    attacker.ask(Ask::Append { len: 64 << 10 }).unwrap();
}

#[test]
fn input_of_an_agent_is_memory_of_the_pool() {
    let mut remote = server(Bytes::mib(16));
    let before = settled(&mut remote);
    let mut attacker = Attacker::new(&remote, 1 << 20);
    attacker.attach_small().unwrap();
    let held = remote.ask("granted");
    let mut appended = 0u64;
    let refusal = loop {
        assert!(appended < 64 << 20, "four times the server's memory");
        match attacker.ask(Ask::Append { len: 1 << 20 }) {
            Ok(_) => appended += 1 << 20,
            Err(ErrorCode::TryAgain) => std::thread::sleep(Duration::from_millis(1)),
            Err(code) => break code,
        }
    };
    assert_eq!(refusal, ErrorCode::PoolFull);
    println!("{appended} bytes of input were taken");
    assert!(appended > 1 << 20);
    assert!(remote.ask("granted") >= held + appended);
    assert!(remote.anonymous_kib().saturating_sub(before) < BESIDE);
    // And others have their share back when it is gone.
    attacker.ask(Ask::Detach).unwrap();
    until("the agent's memory to come back", || {
        remote.ask("granted") + remote.ask("wiping") < held
    });
}

#[test]
fn a_heap_of_many_regions_elsewhere_costs_its_own_client() {
    let mut remote = server(Bytes::mib(32));
    let before = settled(&mut remote);
    let huge = Geometry {
        regions: 1 << 20,
        ..small_heap()
    };
    let mut attackers = Vec::new();
    let mut refused = 0;
    for _ in 0..8 {
        let mut attacker = Attacker::new(&remote, 4096);
        let region = attacker.raw.grant(64 << 10).grant.0;
        refused += usize::from(attacker.attach(huge, &[region]).is_err());
        attackers.push(attacker);
    }
    assert_eq!(refused, 8, "100 MiB of tables fit into 32 MiB");
    let grown = remote.anonymous_kib().saturating_sub(before);
    assert!(grown < BESIDE, "{grown} KiB");
    // One of a modest shape still has its agent.
    attackers[0].attach_small().unwrap();
}

#[test]
fn threads_of_agents_are_counted_until_they_have_ended() {
    let mut remote = server(Bytes::mib(64));
    settled(&mut remote);
    let before = threads(&remote);
    let mut attacker = Attacker::new(&remote, 4096);
    let region = attacker.raw.grant(64 << 10).grant.0;
    let mut most = 0;
    for _ in 0..400 {
        // Refused while too many of those before have not ended.
        let _ = attacker.attach(small_heap(), &[region]);
        attacker.ask(Ask::Detach).unwrap();
        most = most.max(threads(&remote) - before.min(threads(&remote)));
    }
    assert!(most <= 64, "{most} threads for one session");
    until("the last of them to end", || threads(&remote) <= before);
    assert!(remote.is_healthy());
}

#[test]
fn a_server_connects_to_nobody_for_a_client() {
    let remote = server(Bytes::mib(16));
    let bait = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    bait.set_nonblocking(true).unwrap();
    let mut attacker = Attacker::new(&remote, 64 << 10);
    // A heap of two servers, of which the second is said to be at the bait's address: as it was
    // asked before, with the address behind the grants, and as it is asked now.
    let region = attacker.raw.grant(64 << 10).grant.0;
    let mut list = region.to_le_bytes().to_vec();
    for name in ["127.0.0.1:1", &bait.local_addr().unwrap().to_string()] {
        list.extend_from_slice(&(name.len() as u32).to_le_bytes());
        list.extend_from_slice(name.as_bytes());
    }
    attacker.write(&list);
    let geometry = Geometry {
        regions: 2,
        ..small_heap()
    };
    let attach = Attach {
        geometry,
        me: 0,
        servers: 2,
        scratch: attacker.scratch.grant.0,
        list_len: list.len() as u32,
    };
    assert_eq!(
        attacker.ask(Ask::Attach(attach)),
        Err(ErrorCode::AgentRefused)
    );
    attacker.attach(geometry, &[region]).unwrap();
    // A reference into the other server's region is kept for the heap to take there.
    let mut words = 1u32.to_le_bytes().to_vec();
    words.extend_from_slice(&((1u64 << 16) + 64).to_le_bytes());
    let run = Ask::Run {
        task: Task::TraceStart,
        input: &words,
    };
    attacker.ask(run).unwrap();
    until("the trace to come to its end", || {
        let polled = Polled::decode(&attacker.ask(Ask::Poll).unwrap()).unwrap();
        polled.pending == 0 && !polled.flags.tracing && polled.flags.ghosts
    });
    let batch = attacker.ask(Ask::Ghosts { taken: 0 }).unwrap();
    assert_eq!(batch, [1u32.to_le_bytes(), 1u32.to_le_bytes()].concat());
    // A peer that was not asked for may not hand references in.
    let mut stranger = Raw::stranger(&remote.tcp);
    stranger
        .shake(muninn_proto::client::Purpose::Observe)
        .unwrap();
    let reply = stranger.ask(&Request::Agent(&Ask::Poll.encode()), &[]);
    assert_eq!(reply.code(), Some(ErrorCode::NotOpen));
    let nobody = bait.accept().map(|(mut stream, _)| stream.write(b"!"));
    assert!(nobody.is_err(), "the server connected to the bait");
}

#[test]
fn whatever_bytes_an_agent_is_sent_the_server_goes_on() {
    let mut remote = server(Bytes::mib(32));
    let before = settled(&mut remote);
    let mut attacker = Attacker::new(&remote, 64 << 10);
    attacker.attach_small().unwrap();
    let mut rng = muninn_types::SplitMix64::new(0x5eed);
    for round in 0..4000u64 {
        let mut body = vec![0; rng.below(60) as usize + 1];
        rng.fill(&mut body);
        body[0] = 2 + (rng.below(8) as u8);
        if body[0] == 9 {
            continue;
        }
        let tag = Tag(1 << 32 | round);
        let frame = sealed(Kind::Agent, Class::Control, tag, &body, 0);
        attacker.raw.send(&frame);
        while attacker.raw.recv().expect("still open").header.tag != tag {}
    }
    let grown = remote.anonymous_kib().saturating_sub(before);
    assert!(grown < BESIDE, "{grown} KiB");
    let good = Attacker::new(&remote, 4096);
    drop(good);
    assert!(remote.is_healthy());
}
