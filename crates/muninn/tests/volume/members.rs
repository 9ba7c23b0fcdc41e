//! Servers that join and leave the pool of a program while it runs: its pool file changes.

use crate::common::{Served, place};
use crate::harness::{cannot_run, held};
use crate::pools::{pool, working};
use muninn_types::Bytes;
use rustix::process::Signal;

const FAR: u64 = 4000;

fn pool_file(servers: &[&Served]) -> String {
    let line = |server: &&Served| format!("[[server]]\naddress = \"{}\"\n", server.tcp());
    servers.iter().map(line).collect()
}

/// A server joins and gets its part of what the only other one holds.
#[test]
fn one_that_joins_is_given_its_part() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 2, "1GiB");
    let [first, second] = &pool.servers[..] else {
        unreachable!("two were started");
    };
    let file = place.write("pool.toml", &pool_file(&[first]));
    let named = format!("pool:{}", file.display());
    let run = working(&place, &named, "single", 15);
    run.until_far(FAR);
    place.write("pool.toml", &pool_file(&[first, second]));
    run.until("both hold something", || {
        let (one, other) = (held(&place, first), held(&place, second));
        other > Bytes::ZERO && one.0 <= other.0 + (32 << 20)
    });
    run.end().assert_good_and_far();
}

/// A hundred servers are named, and ten of them are dead.
#[test]
fn ten_of_a_hundred_are_dead() {
    if cannot_run() {
        return;
    }
    let place = place();
    let listen: Vec<&str> = (0..15).flat_map(|_| ["--listen", "127.0.0.1:0"]).collect();
    let serve = |at: usize| {
        let socket = place.path(&format!("s{at}.sock"));
        let usual = [
            "serve",
            "--socket",
            socket.to_str().unwrap(),
            "--json",
            "--memory",
            "64MiB",
        ];
        Served::start(place.command(&[&usual[..], &listen].concat()))
    };
    let servers: Vec<Served> = (0..6).map(serve).collect();
    let mut all: Vec<String> = Vec::new();
    for server in &servers {
        let listening = server.listening["listen"].as_array().unwrap();
        let named = listening.iter().map(|at| at.as_str().unwrap().to_string());
        all.extend(named.filter(|at| !at.starts_with("unix:")));
    }
    // Nobody listens at the first ports there are.
    let dead = (1..=10).map(|port| format!("127.0.0.1:{port}"));
    let all: Vec<String> = dead.chain(all).collect();
    assert_eq!(all.len(), 100);
    let run = working(&place, &all.join(","), "mirror", 4);
    run.until_far(FAR);
    let ran = run.end();
    ran.assert_good_and_far();
}

/// One that leaves is emptied into one that joins, and can then be taken away.
#[test]
fn one_leaves_and_another_takes_its_place() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 3, "1GiB");
    let [first, second, third] = &pool.servers[..] else {
        unreachable!("three were started");
    };
    let file = place.write("pool.toml", &pool_file(&[first, second]));
    let named = format!("pool:{}", file.display());
    let run = working(&place, &named, "mirror", 20);
    run.until_far(FAR);
    assert_eq!(held(&place, third), Bytes::ZERO);
    // Half a file changes nothing.
    place.write("pool.toml", "[[server]]\naddress =");
    place.write("pool.toml", &pool_file(&[second, third]));
    run.until("the one that left is empty", || {
        held(&place, first) == Bytes::ZERO && held(&place, third) > Bytes::ZERO
    });
    pool.signal(0, Signal::KILL);
    let ran = run.end();
    ran.assert_good_and_far();
    let joined = format!("muninn: the server at {} joined the pool\n", third.tcp());
    let left = format!("muninn: the server at {} left the pool", first.tcp());
    assert!(
        ran.err.contains(&joined) && ran.err.contains(&left),
        "{ran:#?}"
    );
    let named = ran.report["pool"].as_array().unwrap();
    assert_eq!(named.len(), 2, "{ran:#?}");
}
