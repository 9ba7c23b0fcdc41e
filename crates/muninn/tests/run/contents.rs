//! Every subcommand of the checker at a quarter of its memory: what a program does with its memory
//! leaves every byte as it must be.

use crate::common::place;
use crate::harness::{LOCAL, SIZE, cannot_run, checker, full, run, run_far, serve, until_returned};
use muninn_testing::skip;

/// Runs a check over shared memory. `far`: so much of it must have been away that it shows.
fn check(words: &[&str], far: bool) {
    if cannot_run() {
        return;
    }
    let place = place();
    let all = [&[checker()], words, &["--size", SIZE]].concat();
    let ran = run_far(&place, &["--local", LOCAL], &all);
    let said = ran.out.lines().next().unwrap_or_default();
    if said.starts_with("skip") {
        skip(said);
        return;
    }
    assert!(said.starts_with("ok "), "{ran:#?}");
    if far {
        ran.assert_good_and_far();
    }
    assert_eq!(ran.code, 0, "{ran:#?}");
}

macro_rules! checks {
    ($($name:ident: $words:expr;)+) => {
        $(#[test]
        fn $name() {
            check(&$words, true);
        })+
    };
}

checks! {
    fill: ["fill"];
    sparse: ["sparse"];
    reserve: ["reserve"];
    hugepage: ["hugepage"];
    overlap: ["overlap"];
    munmap: ["munmap"];
    mremap: ["mremap"];
    madvise: ["madvise"];
    mprotect: ["mprotect"];
    mlock_part: ["mlock", "--how", "part"];
    fork: ["fork"];
    fork_many: ["fork-many", "--count", "8"];
    shared: ["shared"];
    syscalls: ["syscalls"];
    directio: ["directio"];
    uring: ["uring"];
    futex: ["futex"];
    threads: ["threads", "--count", "4"];
    stack: ["stack"];
    signals: ["signals", "--count", "4"];
    bss: ["bss"];
    brk: ["brk"];
    malloc: ["malloc"];
    exec: ["exec"];
    close_all: ["close-all"];
}

#[test]
fn pressure() {
    let seconds = if full() { "120" } else { "4" };
    check(&["pressure", "--seconds", seconds, "--seed", "5"], true);
}

/// All of it in a row, with other seeds.
#[test]
fn pressure_again_and_again() {
    for round in 0..if full() { 100 } else { 2 } {
        let seed = (100 + round).to_string();
        check(
            &[
                "pressure",
                "--seconds",
                "1",
                "--threads",
                "2",
                "--seed",
                &seed,
            ],
            true,
        );
    }
}

#[test]
fn exit_codes_come_through_whatever_is_far() {
    if cannot_run() {
        return;
    }
    let place = place();
    for how in ["return", "exit", "_exit", "thread"] {
        let words = [
            checker(),
            "exit",
            "--how",
            how,
            "--code",
            "7",
            "--size",
            SIZE,
        ];
        let ran = run(&place, &["--local", LOCAL], &words);
        assert_eq!(ran.code, 7, "{how}: {ran:#?}");
        assert!(ran.out.starts_with("ok exit"), "{how}: {ran:#?}");
    }
}

#[test]
fn a_crash_ends_by_its_signal() {
    if cannot_run() {
        return;
    }
    let place = place();
    for signal in [11, 6, 15] {
        let number = signal.to_string();
        let words = [checker(), "crash", "--signal", &number, "--size", SIZE];
        let ran = run(&place, &["--local", LOCAL], &words);
        assert_eq!(ran.code, 128 + signal, "{ran:#?}");
        assert!(ran.out.starts_with("ok crash"), "{ran:#?}");
    }
}

#[test]
fn a_daemon_goes_on_and_is_waited_for() {
    if cannot_run() {
        return;
    }
    let place = place();
    let file = place.path("result");
    let words = [
        checker(),
        "daemon",
        "--size",
        SIZE,
        "--file",
        file.to_str().unwrap(),
    ];
    let ran = run(&place, &["--local", LOCAL], &words);
    assert_eq!(ran.code, 0, "{ran:#?}");
    let result = std::fs::read_to_string(&file);
    let result = result.unwrap_or_else(|error| panic!("no result: {error}; {ran:#?}"));
    assert!(result.starts_with("ok daemon"), "{result}");
}

/// A child whose parent is killed at its birth may end, and the launcher says so; it never reads what
/// was not there.
#[test]
fn orphan() {
    if cannot_run() {
        return;
    }
    let place = place();
    let words = [checker(), "orphan", "--count", "8", "--size", SIZE];
    let ran = run(&place, &["--local", LOCAL], &words);
    assert!(ran.out.starts_with("ok orphan"), "{ran:#?}");
}

/// A few of them over the network; afterwards the server has everything back.
#[test]
fn over_tcp() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "512MiB");
    let pool = server.tcp();
    let seconds = if full() { "120" } else { "3" };
    for words in [
        &["fill"][..],
        &["fork"],
        &["mremap"],
        &["madvise"],
        &["syscalls"],
        &["pressure", "--seconds", seconds],
    ] {
        let all = [&[checker()], words, &["--size", SIZE]].concat();
        let ran = run_far(&place, &["--local", LOCAL, "--pool", &pool], &all);
        assert!(ran.out.starts_with("ok "), "{words:?}: {ran:#?}");
        ran.assert_good_and_far();
    }
    until_returned(&place, &server);
}

/// As on a kernel without UFFDIO_MOVE: the same checks, by the way of copies.
#[test]
fn without_move() {
    if cannot_run() {
        return;
    }
    let place = place();
    let seconds = if full() { "120" } else { "3" };
    for words in [
        &["fill"][..],
        &["fork"],
        &["fork-many", "--count", "4"],
        &["munmap"],
        &["mremap"],
        &["madvise"],
        &["mprotect"],
        &["syscalls"],
        &["threads", "--count", "4"],
        &["pressure", "--seconds", seconds],
    ] {
        let all = [&[checker()], words, &["--size", SIZE]].concat();
        let ran = run_far(&place, &["--local", LOCAL, "--no-move"], &all);
        assert!(ran.out.starts_with("ok "), "{words:?}: {ran:#?}");
        ran.assert_good_and_far();
    }
}

/// A copy would miss what a device writes: such a program keeps its memory, and is told why when that
/// is more than it may have.
#[test]
fn without_move_nothing_leaves_that_a_device_may_write_to() {
    if cannot_run() {
        return;
    }
    let place = place();
    for words in [["directio"], ["uring"]] {
        let all = [&[checker()], &words[..], &["--size", SIZE]].concat();
        let ran = run(&place, &["--local", LOCAL, "--no-move"], &all);
        let said = ran.out.lines().next().unwrap_or_default();
        let good = ["ok ", "skip"].iter().any(|good| said.starts_with(good));
        assert!(good || ran.err.contains("direct I/O"), "{ran:#?}");
    }
}
