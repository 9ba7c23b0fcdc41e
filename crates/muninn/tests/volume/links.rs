//! The network between a program and one of its servers fails in ways that no signal can show.

use crate::common::place;
use crate::harness::cannot_run;
use crate::pools::{pool, working};
use muninn_net::faulty::Link;
use std::cell::Cell;
use std::time::{Duration, Instant};

const FAR: u64 = 4000;

/// A server is cut off for a moment, held back for a while, and then for good.
#[test]
fn a_server_is_cut_off() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 3, "1GiB");
    let links: Vec<Link> = pool
        .servers
        .iter()
        .map(|server| Link::to(server.tcp().parse().unwrap()).unwrap())
        .collect();
    let addresses: Vec<String> = links.iter().map(|l| l.address().to_string()).collect();
    let run = working(&place, &addresses.join(","), "mirror", 25);
    run.until_far(FAR);
    let job = run.job();
    // For a while: what has happened last may not have been noticed yet.
    let since = Cell::new(Instant::now());
    let whole = || {
        if job.total().extents_degraded > 0 {
            since.set(Instant::now());
        }
        since.get().elapsed() > Duration::from_millis(500)
    };
    for link in &links {
        // Connections break all the time; each is made again.
        for _ in 0..20 {
            link.cut();
            std::thread::sleep(Duration::from_millis(5));
        }
        since.set(Instant::now());
        run.until("all copies are there", whole);
        // Nothing passes for longer than is waited for, and then everything that was held back.
        link.stop();
        std::thread::sleep(Duration::from_millis(400));
        link.go_on();
        since.set(Instant::now());
        run.until("all copies are there", whole);
    }
    links[1].close();
    let before = job.total().evicted;
    run.until("it goes on", || job.total().evicted > before + FAR);
    let ran = run.end();
    ran.assert_good_and_far();
}
