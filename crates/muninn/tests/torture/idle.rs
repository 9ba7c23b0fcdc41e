//! What the runtime costs while nobody does anything.

use crate::both::{PATIENCE, cannot_run, finish, open_place, program};
use crate::harness::start;
use crate::watcher::{descendants, is_companion, is_server};
use muninn_sys::signal::PidFd;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How long the cost is measured.
const WINDOW: Duration = Duration::from_secs(10);
/// After the last process was started.
const SETTLE: Duration = Duration::from_secs(2);
/// Of one CPU.
const SHARE_MAX: f64 = 0.001;

/// The CPU time of all threads of a process.
fn cpu_time(pid: i32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let times = tasks.into_iter().flatten().flatten().map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let number = text.split(' ').next().and_then(|word| word.parse().ok());
        number.unwrap_or(0u64)
    });
    Duration::from_nanos(times.sum())
}

fn sleepers(how: &str) {
    if cannot_run() {
        return;
    }
    let place = open_place();
    let run = start(
        &place,
        &["--local", "256MiB"],
        &[&program("sleepers"), "200", how],
    );
    run.until("all sleep", || run.out().starts_with("ready"));
    let launcher = run.pid() as i32;
    std::thread::sleep(SETTLE);
    let family = descendants(launcher);
    let all = || -> Duration {
        let times = family.iter().chain([&launcher]).map(|pid| cpu_time(*pid));
        times.sum()
    };
    let (before, since) = (all(), Instant::now());
    std::thread::sleep(WINDOW);
    let (used, window) = (all() - before, since.elapsed());
    let is_program = |pid: &&i32| !is_server(**pid) && !is_companion(**pid);
    let program = family.iter().find(is_program).unwrap();
    let program = PidFd::open(*program).unwrap();
    program.send(Signal::TERM).unwrap();
    let ran = finish(run, PATIENCE);
    assert_eq!(ran.out, "ready\n200 slept\n", "{ran:#?}");
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(family.len() >= 201, "only {} processes", family.len());
    assert!(
        used <= window.mul_f64(SHARE_MAX),
        "{used:?} of CPU time in {window:?} of sleep, {} processes",
        family.len()
    );
}

#[test]
fn two_hundred_forked_sleepers() {
    sleepers("fork");
}

#[test]
fn two_hundred_programs_that_sleep() {
    sleepers("exec");
}
