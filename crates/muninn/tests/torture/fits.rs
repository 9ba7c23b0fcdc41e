//! A program that fits is never touched: each page is counted once, and the dead are not counted.

use crate::both::{Case, PATIENCE, Way, cannot_run, program};
use crate::harness;
use muninn_types::Bytes;
use std::time::Duration;

/// Runs it at a limit that it does not reach; not one page may go out.
fn fits(words: &[&str], local: &str, patience: Duration) -> harness::Ran {
    let mut case = Case::new(words);
    case.local = local;
    case.far = 0;
    case.patience = patience;
    let ran = case.same(Way::Shm);
    assert_eq!(ran.counter("evicted"), 0, "pages went out: {ran:#?}");
    ran
}

fn fits_program(words: &[&str], local: &str) {
    if cannot_run() {
        return;
    }
    let program = program(words[0]);
    fits(
        &[&[program.as_str()], &words[1..]].concat(),
        local,
        PATIENCE,
    );
}

#[test]
fn what_is_filled_at_once() {
    fits_program(&["fill_at_once", "48", "plain"], "96MiB");
}

/// 16 MiB in five processes are 16 MiB.
#[test]
fn what_children_share() {
    fits_program(&["share_after_fork", "16", "4"], "40MiB");
}

#[test]
fn children_in_a_row() {
    fits_program(&["fork_many", "300", "8", "check"], "128MiB");
}

#[test]
fn two_hundred_short_programs() {
    if cannot_run() {
        return;
    }
    let script =
        "i=0; while [ $i -lt 200 ]; do /bin/true || echo WRONG; i=$((i+1)); done; echo done";
    let ran = fits(&["/bin/sh", "-c", script], "64MiB", PATIENCE);
    let peak = Bytes(ran.report["peak_bytes"].as_u64().unwrap());
    assert!(peak < Bytes::mib(16), "a peak of {peak}: {ran:#?}");
}

#[test]
fn python_with_short_children() {
    let Some(python) = harness::program(&["/usr/bin/python3", "python3"]) else {
        return;
    };
    if cannot_run() {
        return;
    }
    let script = "import subprocess
data = [bytes([i % 251]) * 65536 for i in range(192)]
for i in range(200):
    assert subprocess.run(['/bin/true']).returncode == 0
assert all(d == bytes([i % 251]) * 65536 for i, d in enumerate(data))
print('right')";
    let ran = fits(&[python, "-c", script], "128MiB", PATIENCE);
    let peak = Bytes(ran.report["peak_bytes"].as_u64().unwrap());
    assert!(peak < Bytes::mib(64), "a peak of {peak}: {ran:#?}");
}

/// A child that is gone before it is handed over keeps nobody waiting: a wait that ends by a time limit
/// of half a minute does not pass.
#[test]
fn a_shell_that_substitutes() {
    if cannot_run() {
        return;
    }
    let script = "i=0; while [ $i -lt 200 ]; do x=$(echo $i | cat); [ \"$x\" = $i ] || echo WRONG $i; \
                  i=$((i+1)); done; echo done";
    let words = ["/bin/sh", "-c", script];
    fits(&words, "64MiB", Duration::from_secs(25));
}
