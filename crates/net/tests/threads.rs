//! Several threads with lanes of their own on one session, every byte checked, while connections
//! are cut. `MUNINN_HAMMER_SECONDS=20` for a long run.

mod common;

use common::*;
use muninn_net::faulty::Link;
use muninn_net::{Answer, Control, ShmSession, TcpSession, Transport};
use muninn_server::ServerConfig;
use muninn_types::{Bytes, Class, GrantId, LaneKind, SplitMix64};
use muninn_wire::{MAX_SEGS, Seg};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const THREADS: u64 = 4;
const PAGE: usize = 4096;

fn seconds() -> Duration {
    let set = std::env::var("MUNINN_HAMMER_SECONDS").ok();
    set.and_then(|n| n.parse().ok())
        .map_or(Duration::from_millis(1200), Duration::from_secs)
}

fn grant(transport: &dyn Transport, bytes: u64) -> GrantId {
    match transport.call(Control::Grant { bytes }, PATIENCE).unwrap() {
        Answer::Granted(info) => info.grant,
        other => panic!("{other:?}"),
    }
}

/// One thread: writes and reads pages of its own grant over two lanes, and a counter it shares.
fn hammer(
    transport: &dyn Transport,
    counter: GrantId,
    thread: u64,
    stop: &AtomicBool,
    added: &AtomicU64,
) -> u64 {
    let mut rng = SplitMix64::new(thread);
    let mut critical = transport.lane(LaneKind::Critical).unwrap();
    let mut bulk = transport.lane(LaneKind::Bulk).unwrap();
    const PAGES: u64 = 256;
    let mut own = grant(transport, PAGES * PAGE as u64);
    let mut shadow = vec![0; PAGES as usize];
    let mut rounds = 0;
    let page_of = |page: u64, version: u64| pattern(thread << 48 | page << 24 | version, PAGE);
    while !stop.load(Relaxed) {
        rounds += 1;
        // A scatter of different pages.
        let mut pages: Vec<u64> = (0..PAGES).collect();
        rng.shuffle(&mut pages);
        pages.truncate(1 + rng.below(MAX_SEGS as u64) as usize);
        let segs: Vec<Seg> = pages
            .iter()
            .map(|page| Seg::new(own, *page as u32 * PAGE as u32, PAGE as u32))
            .collect();
        if rng.below(2) == 0 {
            let mut data = Vec::new();
            for page in &pages {
                shadow[*page as usize] += 1;
                data.extend(page_of(*page, shadow[*page as usize]));
            }
            bulk.write_v(Class::Eviction(4), &segs, &data).unwrap();
        }
        let mut back = vec![1; pages.len() * PAGE];
        critical.read_v(Class::Demand, &segs, &mut back).unwrap();
        for (page, got) in pages.iter().zip(back.chunks(PAGE)) {
            let expected = match shadow[*page as usize] {
                0 => vec![0; PAGE],
                version => page_of(*page, version),
            };
            assert!(
                got == expected,
                "thread {thread}, round {rounds}: page {page}"
            );
        }
        critical.fetch_add(counter, 0, 1).unwrap();
        added.fetch_add(1, Relaxed);
        if rng.below(50) == 0 {
            // A new one in its place, which must be empty again.
            transport
                .call(Control::Release(vec![own]), PATIENCE)
                .unwrap();
            own = grant(transport, PAGES * PAGE as u64);
            shadow.fill(0);
        }
    }
    rounds
}

fn hammer_all(transport: &dyn Transport, mut disturb: impl FnMut(&mut SplitMix64)) -> u64 {
    let counter = grant(transport, 4096);
    let (stop, added) = (AtomicBool::new(false), AtomicU64::new(0));
    let rounds = std::thread::scope(|scope| {
        let (stop, added) = (&stop, &added);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || hammer(transport, counter, thread, stop, added)))
            .collect();
        let ends = Instant::now() + seconds();
        let mut rng = SplitMix64::new(99);
        while Instant::now() < ends && !threads.iter().any(|thread| thread.is_finished()) {
            disturb(&mut rng);
        }
        stop.store(true, Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    // Every addition was done, and done once.
    let mut lane = transport.lane(LaneKind::Critical).unwrap();
    let total = added.into_inner();
    assert_eq!(lane.fetch_add(counter, 0, 0).unwrap(), total);
    rounds
}

/// Lets the threads work for a moment: up to 30 ms.
fn a_moment(rng: &mut SplitMix64) {
    std::thread::sleep(Duration::from_micros(rng.below(30_000)));
}

fn served(threads: usize) -> Local {
    Local::start(ServerConfig {
        threads,
        lease: Duration::from_secs(10),
        ..config(Bytes::mib(64))
    })
}

#[test]
fn threads_over_tcp_with_cuts_lose_nothing() {
    for threads in [1, 2] {
        let local = served(threads);
        let link = Link::to(local.socket_address()).unwrap();
        let through = link.address().to_string().parse().unwrap();
        let session = TcpSession::open(&through, &options()).unwrap();
        let rounds = hammer_all(&session, |rng| {
            a_moment(rng);
            match rng.below(4) {
                0 => session.cut(),
                _ => link.cut(),
            }
        });
        let resumes = session.resumes();
        println!("{threads} server threads: {rounds} rounds, {resumes} resumes");
        assert!(rounds > 0 && resumes > 0);
        assert_eq!(session.lost(), None);
        drop(session);
        until("all memory to come back", || local.all_free());
        assert!(local.server.is_healthy());
    }
}

#[test]
fn threads_over_shared_memory_with_cuts_lose_nothing() {
    for threads in [1, 2] {
        let local = served(threads);
        let session = ShmSession::open(&local.unix, &options()).unwrap();
        let rounds = hammer_all(&session, |rng| {
            a_moment(rng);
            session.cut();
        });
        let resumes = session.resumes();
        println!("{threads} server threads: {rounds} rounds, {resumes} resumes");
        assert!(rounds > 0 && resumes > 0);
        assert_eq!(session.lost(), None);
        drop(session);
        until("all memory to come back", || local.all_free());
        assert!(local.server.is_healthy());
    }
}
