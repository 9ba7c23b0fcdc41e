//! The differential fuzzer: random programs, run plainly and under `muninn run`, must print the same.
//!
//! A seed makes a program (`examples/fuzz-run`), a limit of 10 to 60 % of its memory, and a way for
//! its pages: shared memory, TCP, or without moves. Two run at a time until the time is over. One
//! that prints something else, ends otherwise or does not end is a failure: its command is printed,
//! and steps are taken away from it for as long as it still fails.
//!
//! | variable | |
//! |---|---|
//! | `MUNINN_FUZZ_SECONDS` | how long [120] |
//! | `MUNINN_FUZZ_SEED` | the first seed [from the clock, printed] |
//! | `MUNINN_FUZZ_OVER` | `shm`, `tcp` or `no-move` only |
//! | `MUNINN_FUZZ_WITHOUT` | kinds of steps that are left out: `rawfork,vmsplice` |
//! | `MUNINN_FUZZ_PLAIN=1` | compares plain runs with plain runs: the fuzzer itself is checked |
//! | `MUNINN_FUZZ_ALL=1` | goes on after a failure |
//! | `MUNINN_FUZZ_SHRINK_SECONDS` | how long steps are taken away [60] |

#[allow(dead_code)]
#[path = "../cli/common.rs"]
mod common;

mod plan;
mod progress;
mod run;
mod shrink;

use plan::{Over, Plan};
use run::Outcome;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Machines are small.
const AT_A_TIME: usize = 2;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

#[derive(Default)]
struct Done {
    programs: u64,
    far_pages: u64,
}

/// What is known so far.
struct Campaign {
    next: AtomicU64,
    until: Instant,
    shrink_for: Duration,
    plain_only: bool,
    go_on: bool,
    over: Option<Over>,
    stopped: AtomicBool,
    done: Mutex<BTreeMap<Over, Done>>,
    failed: Mutex<Vec<String>>,
}

impl Campaign {
    fn work(&self) {
        while Instant::now() < self.until && !self.stopped.load(Ordering::SeqCst) {
            let seed = self.next.fetch_add(1, Ordering::SeqCst);
            let plan = Plan::new(seed, self.over, self.plain_only);
            self.one(&plan);
        }
    }

    fn one(&self, plan: &Plan) {
        let (outcome, far_pages) = run::compare(plan);
        {
            let mut done = self.done.lock().unwrap();
            let done = done.entry(plan.over).or_default();
            done.programs += 1;
            done.far_pages += far_pages;
        }
        if outcome == Outcome::Same {
            return;
        }
        self.stopped.fetch_or(!self.go_on, Ordering::SeqCst);
        let line = format!("seed {} {}: {}", plan.seed, plan.over, outcome.kind());
        println!("{line}; it is shrunk now");
        let smallest = shrink::shrink(plan, &outcome, self.shrink_for);
        let command = plan.command(&[]);
        // In one piece, another may be printed at the same time; with the word by which the runner
        // of tests announces what `.ci/run` repeats at its end.
        println!("\nfailures:\n\n{line}\n  {command}\n{outcome}\n{smallest}");
        self.failed.lock().unwrap().push(line);
    }

    fn sum_up(&self, seconds: u64) -> bool {
        let done = self.done.lock().unwrap();
        let failed = self.failed.lock().unwrap();
        let programs: u64 = done.values().map(|done| done.programs).sum();
        println!(
            "differential: {programs} seeds in {seconds} s; {} failed",
            failed.len()
        );
        let mut good = programs > 0 && failed.is_empty();
        for (over, done) in done.iter() {
            let (programs, pages) = (done.programs, done.far_pages);
            println!("  {over}: {programs} seeds, {pages} pages went far");
            if pages == 0 && !self.plain_only {
                println!("  {over}: no page went far, so nothing was tested");
                good = false;
            }
        }
        failed.iter().for_each(|line| println!("  {line}"));
        good
    }
}

/// Why far memory cannot be used here.
fn missing() -> Option<&'static str> {
    // SAFETY: a plain call; the descriptor is closed below.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if fd >= 0 {
        // SAFETY: made a moment ago.
        unsafe { libc::close(fd as i32) };
        return None;
    }
    let device = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd");
    device
        .is_err()
        .then_some("this user may not have userfaultfd")
}

fn main() -> ExitCode {
    // What the test runner passes: everything here is one test.
    if std::env::args().any(|word| word == "--list") {
        println!("differential: test");
        return ExitCode::SUCCESS;
    }
    let plain_only = is_set("MUNINN_FUZZ_PLAIN");
    if let Some(reason) = missing().filter(|_| !plain_only) {
        println!("skipped: {reason}\n\ntest result: ok. 0 passed; 0 failed");
        return ExitCode::SUCCESS;
    }
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
        * 1000;
    let seed = number("MUNINN_FUZZ_SEED").unwrap_or(clock);
    let seconds = number("MUNINN_FUZZ_SECONDS").unwrap_or(120);
    let shrink_for = number("MUNINN_FUZZ_SHRINK_SECONDS").unwrap_or(60);
    println!("differential: from MUNINN_FUZZ_SEED={seed} on, for {seconds} s");
    let campaign = Campaign {
        next: AtomicU64::new(seed),
        until: Instant::now() + Duration::from_secs(seconds),
        shrink_for: Duration::from_secs(shrink_for),
        plain_only,
        go_on: is_set("MUNINN_FUZZ_ALL"),
        over: std::env::var("MUNINN_FUZZ_OVER")
            .ok()
            .map(|text| Over::parse(&text)),
        stopped: AtomicBool::new(false),
        done: Mutex::default(),
        failed: Mutex::default(),
    };
    let start = Instant::now();
    let panicked = std::thread::scope(|scope| {
        let workers = [(); AT_A_TIME].map(|()| scope.spawn(|| campaign.work()));
        workers.map(|worker| worker.join().is_err()).contains(&true)
    });
    let good = campaign.sum_up(start.elapsed().as_secs()) && !panicked;
    let (word, passed) = if good { ("ok", 1) } else { ("FAILED", 0) };
    println!(
        "\ntest result: {word}. {passed} passed; {} failed",
        1 - passed
    );
    ExitCode::from(u8::from(!good))
}
