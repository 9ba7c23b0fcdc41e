//! A program that knows what its memory must hold, and says so when it does not.
//!
//! Every subcommand fills more memory than the machine is told it has, does one kind of thing with
//! it (forks, remaps, locks, crashes, …) and compares every byte with what follows from its place, a
//! seed and a generation. It prints one line, `ok …` or `skip …`, and ends with 0; or it says which
//! address holds what instead of what, and ends with 1. It knows nothing of Muninn: it must pass
//! alone, and under `muninn run`.
//!
//! `cargo run --example checker -- fill --size 64MiB`; `checker all` runs every subcommand once.
//!
//! Known limit: what was printed by a child of `fork` is not always in the order of events.

mod advise;
mod args;
mod calls;
mod fork;
mod heap;
mod io;
mod locks;
mod maps;
mod pressure;
mod process;
mod remap;
mod shared;
mod signals;
mod span;
mod threads;
mod uring;

use args::Args;

/// What a check came to.
#[derive(Debug)]
pub enum Done {
    Ok(String),
    /// This machine cannot do it, and why.
    Skip(String),
}

pub type Outcome = Result<Done, String>;

pub fn ok(detail: impl Into<String>) -> Outcome {
    Ok(Done::Ok(detail.into()))
}

type Check = fn(&Args) -> Outcome;

/// Name, what it does, whether `all` runs it (some end by a signal or leave a child).
const CHECKS: &[(&str, &str, Check, bool)] = &[
    ("self-test", "wrong memory is found", span::self_test, true),
    (
        "fill",
        "write, read in order and at random",
        maps::fill,
        true,
    ),
    (
        "sparse",
        "a huge mapping touched thinly",
        maps::sparse,
        true,
    ),
    (
        "reserve",
        "reserved, then committed piecewise",
        maps::reserve,
        true,
    ),
    ("hugepage", "with MADV_HUGEPAGE", maps::hugepage, true),
    (
        "overlap",
        "map over a part of what is there",
        maps::overlap,
        true,
    ),
    ("munmap", "unmap parts, map again", remap::munmap, true),
    (
        "mremap",
        "grow, move, shrink, to a fixed place",
        remap::mremap,
        true,
    ),
    (
        "madvise",
        "drop, free, populate, page out",
        advise::madvise,
        true,
    ),
    (
        "mprotect",
        "read-only and none, and back",
        advise::mprotect,
        true,
    ),
    (
        "mlock",
        "lock --how part|current|future",
        advise::mlock,
        true,
    ),
    (
        "fork",
        "children, grandchildren, survivors",
        fork::fork,
        true,
    ),
    (
        "orphan",
        "--count children whose parents are killed at their birth",
        fork::orphan,
        true,
    ),
    (
        "fork-many",
        "--count forks, one by one and at once",
        fork::fork_many,
        true,
    ),
    (
        "shared",
        "shared mappings and private files",
        shared::shared,
        true,
    ),
    ("syscalls", "buffers of system calls", io::syscalls, true),
    ("directio", "O_DIRECT out and in", io::directio, true),
    (
        "uring",
        "registered buffers of io_uring",
        uring::uring,
        true,
    ),
    ("futex", "locks and condition variables", locks::futex, true),
    (
        "threads",
        "threads that come and go",
        threads::threads,
        true,
    ),
    ("stack", "deep recursion in threads", threads::stack, true),
    (
        "signals",
        "handlers and alternate stacks",
        signals::signals,
        true,
    ),
    ("bss", "zero-initialised static memory", heap::bss, true),
    ("brk", "the heap grows and shrinks", heap::brk, true),
    (
        "malloc",
        "many sizes, freed and taken again",
        heap::malloc,
        true,
    ),
    ("exec", "become a fresh program", process::exec, true),
    (
        "exit",
        "--how return|exit|_exit|thread --code N",
        process::exit,
        true,
    ),
    (
        "close-all",
        "close every descriptor, go on",
        process::close_all,
        true,
    ),
    (
        "pressure",
        "all of it at random for --seconds",
        pressure::pressure,
        true,
    ),
    (
        "idle",
        "little memory, prints what is resident",
        process::idle,
        true,
    ),
    (
        "crash",
        "end by --signal N (SIGSEGV)",
        signals::crash,
        false,
    ),
    (
        "daemon",
        "go to the background, result in --file",
        process::daemon,
        false,
    ),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match words.split_first() {
        Some((name, rest)) if !name.starts_with('-') => (name.as_str(), rest),
        _ => usage(),
    };
    let args = Args::parse(rest).unwrap_or_else(|error| {
        eprintln!("checker {name}: {error}");
        std::process::exit(2);
    });
    if name == "all" {
        std::process::exit(all(rest));
    }
    let Some((_, _, check, _)) = CHECKS.iter().find(|check| check.0 == name) else {
        usage()
    };
    finish(name, check(&args));
}

/// Prints the one line and ends the process.
pub fn finish(name: &str, outcome: Outcome) -> ! {
    let (line, code) = match outcome {
        Ok(Done::Ok(detail)) => (format!("ok {name}: {detail}\n"), 0),
        Ok(Done::Skip(reason)) => (format!("skip {name}: {reason}\n"), 0),
        Err(wrong) => {
            calls::say(2, &format!("checker {name}: {wrong}\n"));
            (format!("wrong {name}: {wrong}\n"), 1)
        }
    };
    calls::say(1, &line);
    std::process::exit(code)
}

/// Every subcommand as a process of its own.
fn all(rest: &[String]) -> i32 {
    let program = std::env::current_exe().expect("our own path is known");
    let mut failed = 0;
    for (name, _, _, _) in CHECKS.iter().filter(|check| check.3) {
        let status = std::process::Command::new(&program)
            .arg(name)
            .args(rest)
            .status();
        if !status.as_ref().is_ok_and(|status| status.success()) {
            calls::say(2, &format!("checker all: {name} ended with {status:?}\n"));
            failed = 1;
        }
    }
    failed
}

fn usage() -> ! {
    let mut text = String::from("usage: checker CHECK [--size SIZE] [--seed N] …\n");
    for (name, what, _, _) in CHECKS {
        text += &format!("  {name:10} {what}\n");
    }
    text += "  all        each of them once\n";
    eprint!("{text}{}", args::OPTIONS);
    std::process::exit(2)
}
