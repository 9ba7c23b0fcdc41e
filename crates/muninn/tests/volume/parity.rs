//! Pages with parity: any server goes, and what it held is computed from the others.

use crate::common::place;
use crate::harness::{Ran, cannot_run, held};
use crate::lies::spoil;
use crate::pools::{pool, working_with};
use crate::programs::{same_with, write_lines};
use muninn_types::{Bytes, SplitMix64};
use rustix::process::Signal;

/// Pages that have gone far before something happens.
const FAR: u64 = 4000;
const SECONDS: u32 = 6;

fn assert_well(ran: &Ran) {
    ran.assert_good_and_far();
    assert!(ran.out.starts_with("ok pressure"), "{ran:#?}");
}

/// Some servers go in the middle, one after the other or at once.
fn lose(layout: &str, servers: usize, hurt: &[(usize, Signal)], over_shm: bool, more: &[&str]) {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, servers, "1GiB");
    let at = match over_shm {
        true => pool.sockets(),
        false => pool.addresses(),
    };
    let run = working_with(&place, &at, layout, SECONDS, more);
    run.until_far(FAR);
    let job = run.job();
    for (victim, signal) in hurt {
        pool.signal(*victim, *signal);
    }
    let before = job.total().evicted;
    run.until("it goes on", || job.total().evicted > before + FAR);
    assert_well(&run.end());
    for (victim, _) in hurt {
        pool.signal_quietly(*victim, Signal::CONT);
    }
}

#[test]
fn any_of_three_is_killed() {
    for victim in 0..3 {
        lose("parity:2+1", 3, &[(victim, Signal::KILL)], false, &[]);
    }
}

#[test]
fn one_of_three_is_stopped() {
    lose("parity:2+1", 3, &[(1, Signal::STOP)], false, &[]);
}

#[test]
fn one_of_three_on_this_machine_goes() {
    lose("parity:2+1", 3, &[(0, Signal::KILL)], true, &[]);
    lose("parity:2+1", 3, &[(2, Signal::STOP)], true, &[]);
}

#[test]
fn sealed_pages_with_parity() {
    lose("parity:4+1", 5, &[(2, Signal::KILL)], false, &["--seal"]);
}

#[test]
fn two_of_six_go_at_once() {
    let hurt = [(1, Signal::KILL), (4, Signal::STOP)];
    lose("parity:4+2", 6, &hurt, false, &[]);
}

/// One server of five is emptied and one killed; what they held is made anew, and a third may go.
#[test]
fn what_was_lost_is_made_anew() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 5, "1GiB");
    let run = working_with(&place, &pool.addresses(), "parity:2+1", 30, &[]);
    run.until_far(FAR);
    let job = run.job();
    let holds = |at: usize| held(&place, &pool.servers[at]);
    let mut left: Vec<usize> = (0..5).collect();
    let used = |left: &[usize]| left.iter().position(|at| holds(*at) > Bytes::ZERO).unwrap();
    let drained = left.remove(used(&left));
    let at = pool.servers[drained].unix();
    let ended = place.run(&["drain", "--pool", &at, "--within", "15s"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(holds(drained), Bytes::ZERO);
    pool.signal(drained, Signal::KILL);
    let killed = left.remove(used(&left));
    pool.signal(killed, Signal::KILL);
    // Each extent has a piece at each of the three that are left: they hold the same.
    run.until("all pieces are at the others", || {
        let held: Vec<Bytes> = left.iter().map(|at| holds(*at)).collect();
        let even = held.iter().all(|bytes| *bytes == held[0]);
        even && job.total().extents_degraded == 0
    });
    pool.signal(left[0], Signal::KILL);
    assert_well(&run.end());
}

/// One server's memory is changed from outside: pages are computed from the others. With a second to
/// spare, since on a busy machine a server may be given up that was only slow.
#[test]
fn a_server_lies() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 4, "1GiB");
    let run = working_with(&place, &pool.addresses(), "parity:2+2", 10, &[]);
    run.until_far(FAR);
    let pid = pool.servers[1].listening["pid"].as_u64().unwrap();
    let changed = spoil(pid, &mut SplitMix64::new(7));
    assert!(changed > 1000, "{changed} pages");
    // Whether something wrong was met depends on what the program reads; that it is seen whenever it is met
    // is tried in the simulation of volumes.
    assert_well(&run.end());
}

/// One more than the layout allows: it is said, with the extent and the servers.
#[test]
fn too_many_go() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 3, "1GiB");
    let run = working_with(&place, &pool.addresses(), "parity:2+1", 3600, &[]);
    run.until_far(FAR);
    pool.signal(0, Signal::KILL);
    pool.signal(1, Signal::KILL);
    let ran = run.end();
    assert_ne!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("extent"), "{ran:#?}");
    assert!(ran.err.contains("server"), "{ran:#?}");
}

#[test]
fn sort_with_parity() {
    if cannot_run() {
        return;
    }
    let place = place();
    write_lines(&place, 250_000);
    let script = "LC_ALL=C sort --parallel=2 -S 4G lines | sha256sum";
    let words = ["sh", "-c", script];
    same_with(&place, "parity:2+1", 4, "16MiB", &words);
}
