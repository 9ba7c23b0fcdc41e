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
