//! A server is emptied while programs run.

use crate::common::place;
use crate::harness::{cannot_run, held};
use crate::pools::{pool, pool_with, working};
use muninn_types::Bytes;
use rustix::process::Signal;

const FAR: u64 = 4000;

fn drain_under_load(layout: &str, servers: usize) {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, servers, "1GiB");
    let run = working(&place, &pool.addresses(), layout, 25);
    run.until_far(FAR);
    let used = (0..servers).find(|at| held(&place, &pool.servers[*at]) > Bytes::ZERO);
    let used = used.expect("one of them holds something");
    let at = pool.servers[used].unix();
    let ended = place.run(&["drain", "--pool", &at, "--within", "20s"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(held(&place, &pool.servers[used]), Bytes::ZERO);
    // Nobody needs it any more.
    pool.signal(used, Signal::KILL);
    run.end().assert_good_and_far();
}

#[test]
fn the_only_copies_move() {
    drain_under_load("single", 2);
}

#[test]
fn one_of_two_copies_moves() {
    drain_under_load("mirror", 3);
}

/// A server that is told to stop waits until its clients have moved away.
#[test]
fn a_server_stops_when_it_is_empty() {
    if cannot_run() {
        return;
    }
    let place = place();
    let mut pool = pool_with(&place, 2, "1GiB", &["--stop-grace", "60s"]);
    let run = working(&place, &pool.addresses(), "single", 25);
    run.until_far(FAR);
    let used = (0..2).find(|at| held(&place, &pool.servers[*at]) > Bytes::ZERO);
    let server = pool
        .servers
        .remove(used.expect("one of them holds something"));
    let ended = server.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.err.contains("have lost it"), "{ended:?}");
    run.end().assert_good_and_far();
}
