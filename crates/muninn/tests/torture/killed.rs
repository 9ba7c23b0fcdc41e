//! Somebody kills the companions of a program: whoever needed them ends, and reads no zeros before.

use crate::both::{PATIENCE, cannot_run, finish, open_place, program};
use crate::harness::start;
use crate::watcher::{descendants, is_companion};
use muninn_sys::signal::PidFd;
use rustix::process::Signal;

fn companions_are_killed(flags: &[&str]) {
    if cannot_run() {
        return;
    }
    let place = open_place();
    let flags = [&["--local", "16MiB"], flags].concat();
    let run = start(&place, &flags, &[&program("companion_killed")]);
    run.until("much is far", || run.job().total().evicted > 4096);
    let filled = || run.out().contains("filled\n");
    run.until("it is filled", filled);
    let pid = *run.programs().first().expect("the program");
    PidFd::open(pid as i32).unwrap().send(Signal::USR1).unwrap();
    run.until("it has forked", || run.out().contains("forked "));
    run.until("the fork was followed", || run.job().total().forks > 0);
    let out = run.out();
    let child = out
        .split_whitespace()
        .last()
        .and_then(|pid| pid.parse().ok());
    let child = PidFd::open(child.expect("the number of the child")).unwrap();
    let family = descendants(run.pid() as i32);
    let companions: Vec<i32> = family
        .into_iter()
        .filter(|&pid| is_companion(pid))
        .collect();
    assert!(!companions.is_empty());
    for pid in companions {
        PidFd::open(pid).unwrap().kill().unwrap();
    }
    let _ = child.send(Signal::USR1);
    let ran = finish(run, PATIENCE);
    assert!(!ran.out.contains("WRONG"), "{ran:#?}");
    assert!(!ran.out.contains("the child is right"), "{ran:#?}");
    assert_eq!(ran.code, 128 + 9, "{ran:#?}");
    assert!(ran.err.contains("companion"), "{ran:#?}");
    assert!(child.wait_end(Some(PATIENCE)).unwrap(), "the child lives");
}

#[test]
fn shm() {
    companions_are_killed(&[]);
}

#[test]
fn no_move() {
    companions_are_killed(&["--no-move"]);
}
