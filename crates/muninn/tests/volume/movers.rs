//! Copies that are made while others are made, while programs fork, end, and there is no room for them.

use crate::common::{Running, place};
use crate::harness::{cannot_run, held, program, start, until_returned};
use crate::pools::{pool, working};
use muninn_types::Bytes;
use rustix::process::Signal;

const FAR: u64 = 2000;

/// A parent and a child that change all of their memory again and again, until they are told that it is enough.
const FAMILY: &str = r#"
import os, signal, sys
signal.alarm(240)
pages = [bytearray(n.to_bytes(4, "little") * 1024) for n in range(10000)]
child = os.fork()
signal.alarm(240)
own = 1 if child else 2
step = 0
while step < 3 or not os.path.exists("enough"):
    step += 1
    for n, page in enumerate(pages):
        expected = n & 255 if step == 1 else (own * 100 + step - 1) & 255
        assert page[own * 64] == expected, (own, step, n, page[own * 64])
        assert page[2048:2052] == n.to_bytes(4, "little"), (own, step, n)
        page[own * 64] = (own * 100 + step) & 255
    open("step%d" % own, "w").write(str(step))
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("right", flush=True)
else:
    os._exit(0)
"#;

/// Parent and child have movers of their own, for extents of which both read some. A server is killed, and at
/// the same time another is to be emptied.
#[test]
fn a_family_has_what_was_lost_made_anew() {
    if cannot_run() || program(&["python3"]).is_none() {
        return;
    }
    let place = place();
    let pool = pool(&place, 4, "1GiB");
    let at = pool.addresses();
    let options = ["--local", "16MiB", "--pool", &at, "--layout", "mirror"];
    let run = start(&place, &options, &["python3", "-c", FAMILY]);
    let job = run.job();
    run.until("both are at work", || {
        let step = |who: u32| std::fs::read_to_string(place.path(&format!("step{who}")));
        step(1).is_ok() && step(2).is_ok() && job.total().evicted > FAR
    });
    let used = |at: &usize| held(&place, &pool.servers[*at]) > Bytes::ZERO;
    let mut used = (0..4).filter(used);
    let (killed, drained) = (used.next().unwrap(), used.next().unwrap());
    pool.signal(killed, Signal::KILL);
    let drained = &pool.servers[drained];
    let ended = place.run(&["drain", "--pool", &drained.unix(), "--within", "60s"]);
    assert_eq!(ended.code, Some(0), "{ended:?}, {}", run.err());
    run.until("all copies are there", || job.total().extents_degraded == 0);
    assert_eq!(held(&place, drained), Bytes::ZERO);
    place.write("enough", "");
    let ran = run.end();
    ran.assert_good_and_far();
    assert_eq!(ran.out, "right\n");
}

/// All processes of a program are killed while copies are made: servers have their memory back by the time
/// that the lease is over.
#[test]
fn who_is_killed_during_a_move_leaves_nothing() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 3, "1GiB");
    let run = working(&place, &pool.addresses(), "mirror", 3600);
    run.until_far(4 * FAR);
    let job = run.job();
    let holds = |at: &usize| held(&place, &pool.servers[*at]) > Bytes::ZERO;
    let killed = (0..3).find(holds).expect("one of them holds something");
    let repaired = job.total().extents_repaired;
    pool.signal(killed, Signal::KILL);
    run.until("copies are made anew", || {
        job.total().extents_repaired > repaired
    });
    run.signal_group(Signal::KILL);
    drop(run);
    for server in (0..3).filter(|at| *at != killed) {
        until_returned(&place, &pool.servers[server]);
    }
}

/// Two of four servers are gone at once, and there is no place for what they had: a line says so, and no more
/// than one, the program goes on, and `status` says what waits and for what.
#[test]
fn half_of_the_servers_are_gone() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 4, "1GiB");
    let run = working(&place, &pool.addresses(), "mirror:3", 12);
    run.until_far(4 * FAR);
    let job = run.job();
    run.until("all copies are there", || job.total().extents_degraded == 0);
    let before = job.total().evicted;
    pool.signal(0, Signal::KILL);
    pool.signal(1, Signal::KILL);
    let lines = || {
        let err = run.err();
        let said = err
            .lines()
            .filter(|line| line.contains("no room for another copy"));
        said.count()
    };
    run.until("it says that there is no room", || lines() > 0);
    let state = || {
        let home = place.path("");
        let mut command = place.command(&["status", "--jobs"]);
        command.env("XDG_STATE_HOME", &home).env("TMPDIR", &home);
        Running::start(command).end().out
    };
    run.until("status says what waits", || {
        state().contains("of them wait for room, or for servers that answer")
    });
    run.until("it goes on", || job.total().evicted > before + FAR);
    let ran = run.end();
    ran.assert_good_and_far();
    let said = ran
        .err
        .lines()
        .filter(|line| line.contains("no room for another copy"));
    assert_eq!(said.count(), 1, "{ran:#?}");
}
