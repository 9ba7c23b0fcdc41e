//! Real programs whose servers are killed and stopped: their results are those of a plain run.

use crate::common::{Place, place};
use crate::harness::{cannot_run, held, plainly, program, start};
use crate::pools::Pool;
use crate::redis_client::{Client, server_words};
use crate::rejoin::{free_address, serve_at, start_again};
use muninn_types::{Bytes, SplitMix64};
use rustix::process::Signal;
use std::fmt::Write;

/// Pages that have gone far before something happens.
const FAR: u64 = 1000;

/// Three servers that can be started again where they are.
fn lasting(place: &Place) -> Pool {
    let serve = |_| serve_at(place, &free_address());
    Pool {
        servers: (0..3).map(serve).collect(),
    }
}

/// Servers that hold something.
fn used(place: &Place, pool: &Pool) -> Vec<usize> {
    let holds = |at: &usize| held(place, &pool.servers[*at]) > Bytes::ZERO;
    let used: Vec<usize> = (0..pool.servers.len()).filter(holds).collect();
    assert!(used.len() >= 2, "two copies are at {used:?}");
    used
}

/// Runs a program with two copies at three servers; one is killed and started again, and one stopped for a
/// while.
fn same(place: &Place, local: &str, words: &[&str]) {
    let expected = plainly(place, words);
    let mut pool = lasting(place);
    let options = [
        "--local",
        local,
        "--pool",
        &pool.addresses(),
        "--layout",
        "mirror",
    ];
    let run = start(place, &options, words);
    run.until_far(FAR);
    let job = run.job();
    let used = used(place, &pool);
    pool.signal(used[0], Signal::KILL);
    // What lost a copy has one again, as far as the program lasts that long.
    while run.is_alive() && (job.total().extents_degraded > 0 || job.total().extents_repaired == 0)
    {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    start_again(place, &mut pool, used[0]);
    pool.signal(used[1], Signal::STOP);
    let ran = run.end();
    pool.signal(used[1], Signal::CONT);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert_eq!(ran.out, expected, "{ran:#?}");
}

/// A store that is loaded while a server is killed, started again, and another one stopped; all of it reads
/// back, at each step.
#[test]
fn redis() {
    if cannot_run() || program(&["redis-server"]).is_none() {
        return;
    }
    let place = place();
    let mut pool = lasting(&place);
    let (socket, dir) = (place.path("r.sock"), place.path(""));
    let at = pool.addresses();
    let options = ["--local", "16MiB", "--pool", &at, "--layout", "mirror"];
    let words = server_words(socket.to_str().unwrap(), dir.to_str().unwrap());
    let run = start(&place, &options, &words);
    let mut client = Client::connect(&socket, || run.is_alive());
    let keys = 30_000;
    client.load(keys);
    run.until_far(FAR);
    let job = run.job();
    let used = used(&place, &pool);
    pool.signal(used[0], Signal::KILL);
    client.read_back(keys);
    run.until("its copies are made anew", || {
        job.total().extents_repaired > 0 && job.total().extents_degraded == 0
    });
    start_again(&place, &mut pool, used[0]);
    client.load(keys);
    pool.signal(used[1], Signal::STOP);
    client.read_back(keys);
    pool.signal(used[1], Signal::CONT);
    run.until("what it missed is there", || {
        job.total().extents_degraded == 0
    });
    pool.signal(used[1], Signal::KILL);
    client.read_back(keys);
    client.send(&[b"SHUTDOWN", b"NOSAVE"]);
    run.end().assert_good_and_far();
}

fn write_lines(place: &Place, lines: u64) {
    let mut text = String::new();
    let mut dice = SplitMix64::new(11);
    for _ in 0..lines {
        writeln!(text, "{:016x} {:08x}", dice.next_u64(), dice.below(1 << 32)).unwrap();
    }
    place.write("lines", &text);
}

#[test]
fn sort() {
    if cannot_run() {
        return;
    }
    let place = place();
    write_lines(&place, 250_000);
    let script = "LC_ALL=C sort --parallel=2 -S 4G lines | sha256sum";
    same(&place, "16MiB", &["sh", "-c", script]);
}

#[test]
fn java() {
    if cannot_run() || program(&["java"]).is_none() || program(&["javac"]).is_none() {
        return;
    }
    let place = place();
    let source = include_str!("../../src/cmd/bench/apps/Graph.java");
    place.write("Graph.java", source);
    plainly(&place, &["javac", "-d", ".", "Graph.java"]);
    let words = [
        "java",
        "-XX:+UseSerialGC",
        "-Xms96m",
        "-Xmx96m",
        "-XX:-UsePerfData",
        "-cp",
        ".",
        "Graph",
        "300000",
        "3",
    ];
    same(&place, "48MiB", &words);
}

#[test]
fn python() {
    if cannot_run() || program(&["python3"]).is_none() {
        return;
    }
    let place = place();
    let script = "
import hashlib
pages = [bytearray(i.to_bytes(4, 'little') * 1024) for i in range(12000)]
for step in range(6):
    for i, page in enumerate(pages):
        page[step * 8] ^= (i + step) & 255
print(hashlib.sha256(b''.join(hashlib.sha256(page).digest() for page in pages)).hexdigest())
";
    same(&place, "16MiB", &["python3", "-c", script]);
}
