//! A server goes, in whatever way: nobody notices more than a line.

use crate::common::place;
use crate::harness::{Ran, Run, cannot_run, held};
use crate::pools::{pool, working};
use muninn_types::Bytes;
use rustix::process::Signal;

/// Pages that have gone far before something happens.
const FAR: u64 = 4000;
/// How long programs work.
const SECONDS: u32 = 8;

fn assert_well(ran: &Ran) {
    ran.assert_good_and_far();
    assert!(ran.out.starts_with("ok pressure"), "{ran:#?}");
}

fn end_well(run: Run) -> Ran {
    let ran = run.end();
    assert_well(&ran);
    ran
}

/// One of two servers holds nothing, and goes.
fn lose_an_empty_one(signal: Signal) {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 2, "1GiB");
    let start = || {
        let run = working(&place, &pool.addresses(), "single", SECONDS);
        run.until_far(FAR);
        let is_empty = |at: &usize| held(&place, &pool.servers[*at]) == Bytes::ZERO;
        match (0..2).filter(is_empty).collect::<Vec<usize>>()[..] {
            [empty] => Some((run, empty)),
            // On a busy machine the first may be slow to answer, and the second is asked.
            _ => {
                end_well(run);
                None
            }
        }
    };
    let started = (0..5).find_map(|_| start());
    let (run, empty) = started.expect("one server should hold nothing");
    pool.signal(empty, signal);
    let ran = end_well(run);
    pool.signal_quietly(empty, Signal::CONT);
    let lines = ran.err.lines().filter(|line| line.contains("server"));
    assert!(lines.count() <= 1, "one line at most: {ran:#?}");
}

#[test]
fn an_empty_server_is_killed() {
    lose_an_empty_one(Signal::KILL);
}

#[test]
fn an_empty_server_is_ended() {
    lose_an_empty_one(Signal::TERM);
}

#[test]
fn an_empty_server_is_stopped() {
    lose_an_empty_one(Signal::STOP);
}

/// With copies, any one of three servers goes in the middle.
fn lose_one(victim: usize, signal: Signal, over_shm: bool) {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 3, "1GiB");
    let at = match over_shm {
        true => pool.sockets(),
        false => pool.addresses(),
    };
    let run = working(&place, &at, "mirror", SECONDS);
    run.until_far(FAR);
    pool.signal(victim, signal);
    let job = run.job();
    let before = job.total().evicted;
    // It goes on at once.
    run.until("it goes on", || job.total().evicted > before + FAR);
    end_well(run);
    pool.signal_quietly(victim, Signal::CONT);
}

#[test]
fn the_first_of_three_is_killed() {
    lose_one(0, Signal::KILL, false);
}

#[test]
fn the_second_of_three_is_killed() {
    lose_one(1, Signal::KILL, false);
}

#[test]
fn the_third_of_three_is_killed() {
    lose_one(2, Signal::KILL, false);
}

#[test]
fn the_first_of_three_is_stopped() {
    lose_one(0, Signal::STOP, false);
}

#[test]
fn the_second_of_three_is_stopped() {
    lose_one(1, Signal::STOP, false);
}

#[test]
fn the_third_of_three_is_stopped() {
    lose_one(2, Signal::STOP, false);
}

#[test]
fn one_of_three_ends_in_good_order() {
    lose_one(0, Signal::TERM, false);
    lose_one(1, Signal::TERM, false);
}

#[test]
fn one_of_three_on_this_machine_goes() {
    lose_one(0, Signal::KILL, true);
    lose_one(1, Signal::STOP, true);
}

/// With a third copy, two may go at the same time.
#[test]
fn two_of_three_go() {
    if cannot_run() {
        return;
    }
    for (first, second) in [(Signal::KILL, Signal::KILL), (Signal::STOP, Signal::KILL)] {
        let place = place();
        let pool = pool(&place, 3, "1GiB");
        let run = working(&place, &pool.addresses(), "mirror:3", SECONDS);
        run.until_far(FAR);
        pool.signal(0, first);
        pool.signal(2, second);
        end_well(run);
        pool.signal_quietly(0, Signal::CONT);
    }
}

/// What is left when both copies are gone is said, with the extent and the servers.
#[test]
fn all_copies_go() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 2, "1GiB");
    let run = working(&place, &pool.addresses(), "mirror", 3600);
    run.until_far(FAR);
    pool.signal(0, Signal::KILL);
    pool.signal(1, Signal::KILL);
    let ran = run.end();
    assert_ne!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("extent"), "{ran:#?}");
    assert!(ran.err.contains("server"), "{ran:#?}");
}

/// There is no room for the copies that were lost: it is said, and the program goes on.
#[test]
fn no_room_for_a_repair() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 2, "1GiB");
    let run = working(&place, &pool.addresses(), "mirror", SECONDS);
    run.until_far(FAR);
    let job = run.job();
    pool.signal(0, Signal::KILL);
    run.until("copies are missed", || job.total().extents_degraded > 0);
    let ran = end_well(run);
    assert!(ran.err.contains("no room for another copy"), "{ran:#?}");
}
