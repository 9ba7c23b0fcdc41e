//! Pages with parity: any server goes, and what it held is computed from the others. Servers that lie are in the
//! simulation of volumes.

use crate::common::place;
use crate::harness::{Ran, cannot_run, held};
use crate::pools::{pool, working_with};
use muninn_types::Bytes;
use rustix::process::Signal;
use std::time::Duration;

/// Pages that have gone far before something happens.
const FAR: u64 = 4000;
const SECONDS: u32 = 5;

fn assert_well(ran: &Ran) {
    ran.assert_good_and_far();
    assert!(ran.out.starts_with("ok pressure"), "{ran:#?}");
}

/// Some servers go in the middle, at once. All pieces are there before: on a busy machine a server may be
/// given up for a moment that was only slow.
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
    while run.is_alive() && job.total().extents_degraded > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for (victim, signal) in hurt {
        pool.signal(*victim, *signal);
    }
    assert_well(&run.end());
    for (victim, _) in hurt {
        pool.signal_quietly(*victim, Signal::CONT);
    }
}

/// Data and parity lie everywhere: each extent begins at another server.
#[test]
fn one_of_three_is_killed() {
    for victim in [0, 2] {
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
}

#[test]
fn sealed_pages_with_parity() {
    lose("parity:4+1", 5, &[(2, Signal::KILL)], false, &["--seal"]);
}

#[test]
fn two_of_six_go_at_once() {
    let hurt = [(1, Signal::KILL), (4, Signal::STOP)];
    // By shared memory, where nobody is taken for gone who is only slow: there is none to spare.
    lose("parity:4+2", 6, &hurt, true, &[]);
}

#[test]
fn a_server_with_pieces_is_emptied() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 5, "1GiB");
    let run = working_with(&place, &pool.addresses(), "parity:2+2", 15, &[]);
    run.until_far(FAR);
    let holds = |at: &usize| held(&place, &pool.servers[*at]) > Bytes::ZERO;
    let used = (0..5).find(holds).expect("one of them holds something");
    let at = pool.servers[used].unix();
    let ended = place.run(&["drain", "--pool", &at, "--within", "60s"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!holds(&used));
    // Nobody needs it any more.
    pool.signal(used, Signal::KILL);
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
