//! Servers that come back: after a pause, or started anew at the same place.

use crate::common::{Place, Served, place};
use crate::harness::{PATIENCE, cannot_run, held};
use crate::pools::{Pool, pool, working};
use muninn_types::{Bytes, SplitMix64};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const FAR: u64 = 4000;

/// One is stopped and goes on, then the other: whatever was missed meanwhile is never read.
#[test]
fn servers_pause_one_after_the_other() {
    if cannot_run() {
        return;
    }
    for pause in [Duration::from_millis(300), Duration::from_secs(4)] {
        let place = place();
        let pool = pool(&place, 2, "1GiB");
        let run = working(&place, &pool.addresses(), "mirror", 24);
        run.until_far(FAR);
        let job = run.job();
        for victim in [0, 1] {
            pool.signal(victim, Signal::STOP);
            std::thread::sleep(pause);
            pool.signal(victim, Signal::CONT);
            // It has a copy of everything again before the other one goes.
            run.until("copies are made anew", || {
                let total = job.total();
                total.extents_degraded == 0
            });
        }
        let ran = run.end();
        ran.assert_good_and_far();
    }
}

/// All pause in turn, for longer than is waited for, and nobody waits in between until anything is mended.
fn pause_in_turn(layout: &str, servers: usize) {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, servers, "1GiB");
    let run = working(&place, &pool.addresses(), layout, 10);
    run.until_far(FAR);
    let mut dice = SplitMix64::new(servers as u64);
    for _ in 0..12 {
        let victim = dice.below(servers as u64) as usize;
        pool.signal(victim, Signal::STOP);
        std::thread::sleep(Duration::from_millis(120 + dice.below(400)));
        pool.signal(victim, Signal::CONT);
    }
    run.end().assert_good_and_far();
}

#[test]
fn both_copies_pause_in_turn() {
    pause_in_turn("mirror", 2);
}

#[test]
fn all_pieces_pause_in_turn() {
    pause_in_turn("parity:2+1", 3);
}

/// An address that nobody else will take meanwhile: below the ports that the kernel gives to clients. One
/// of those who try to reach the dead server might be given its very port.
pub fn free_address() -> String {
    let mut dice = SplitMix64::new(muninn_sys::rand::u64());
    loop {
        let address = format!("127.0.0.1:{}", 20_000 + dice.below(12_000));
        if std::net::TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

pub fn serve_at(place: &Place, address: &str) -> Served {
    Served::start(place.command(&[
        "serve",
        "--listen",
        address,
        "--json",
        "--memory",
        "1GiB",
        "--lease",
        "3s",
        "--insecure",
    ]))
}

/// Starts one that was killed again, at the same address and empty.
pub fn start_again(place: &Place, pool: &mut Pool, server: usize) {
    let address = pool.servers[server].tcp();
    // On a busy machine it may take a while to end, and it listens as long.
    let ends = Instant::now() + PATIENCE;
    while std::net::TcpListener::bind(&address).is_err() {
        assert!(Instant::now() < ends, "{address} is never free");
        std::thread::sleep(Duration::from_millis(2));
    }
    pool.servers[server] = serve_at(place, &address);
}

/// A server is killed and started again at the same address, empty: it is used again, and the other
/// may go then.
#[test]
fn a_server_is_started_again() {
    if cannot_run() {
        return;
    }
    let place = place();
    let mut pool = pool(&place, 2, "1GiB");
    pool.servers[0] = serve_at(&place, &free_address());
    let run = working(&place, &pool.addresses(), "mirror", 40);
    run.until_far(FAR);
    let job = run.job();
    pool.signal(0, Signal::KILL);
    run.until("its copies are missed", || job.total().extents_degraded > 0);
    start_again(&place, &mut pool, 0);
    run.until("it is filled", || {
        job.total().extents_degraded == 0 && held(&place, &pool.servers[0]) > Bytes::ZERO
    });
    pool.signal(1, Signal::KILL);
    let started = Instant::now();
    let before = job.total().evicted;
    run.until("it goes on", || job.total().evicted > before + FAR);
    assert!(started.elapsed() < Duration::from_secs(20));
    run.end().assert_good_and_far();
}
