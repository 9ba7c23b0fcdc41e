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

/// A fourth server takes over what the dead one held; then another may go.
#[test]
fn what_was_lost_is_made_anew() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 4, "1GiB");
    let run = working_with(&place, &pool.addresses(), "parity:2+1", 20, &[]);
    run.until_far(FAR);
    let job = run.job();
    let used = |at: &usize| held(&place, &pool.servers[*at]) > Bytes::ZERO;
    for _ in 0..2 {
        let whole = || job.total().extents_degraded == 0;
        run.until("all pieces are there", whole);
        let made = job.total().extents_repaired;
        let alive = (0..4).filter(|at| pool.is_alive(*at));
        let victim = alive.filter(used).next().expect("one holds something");
        pool.kill(victim);
        // The first time there is another server, the second time there is none.
        if pool.alive() == 3 {
            run.until("pieces are made", || {
                job.total().extents_repaired > made && whole()
            });
        }
    }
    assert_well(&run.end());
}

#[test]
fn a_server_with_pieces_is_emptied() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 4, "1GiB");
    let run = working_with(&place, &pool.addresses(), "parity:2+1", 20, &[]);
    run.until_far(FAR);
    let used = (0..4).find(|at| held(&place, &pool.servers[*at]) > Bytes::ZERO);
    let used = used.expect("one of them holds something");
    let at = pool.servers[used].unix();
    let ended = place.run(&["drain", "--pool", &at, "--within", "15s"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(held(&place, &pool.servers[used]), Bytes::ZERO);
    pool.signal(used, Signal::KILL);
    assert_well(&run.end());
}

/// One server's memory is changed from outside: pages are computed from the others.
#[test]
fn a_server_lies() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 3, "1GiB");
    let run = working_with(&place, &pool.addresses(), "parity:2+1", 10, &[]);
    run.until_far(FAR);
    let pid = pool.servers[1].listening["pid"].as_u64().unwrap();
    let changed = spoil(pid, &mut SplitMix64::new(7));
    assert!(changed > 1000, "{changed} pages");
    let ran = run.end();
    assert_well(&ran);
    assert!(
        ran.err.contains("gave back other bytes than were written"),
        "{ran:#?}"
    );
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
