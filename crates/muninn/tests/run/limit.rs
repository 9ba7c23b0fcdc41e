//! Resident memory stays below the limit, as an outsider sees it who looks every millisecond.

use crate::common::place;
use crate::harness::{ATTEMPTS, LOCAL, SIZE, cannot_run, checker, start};
use muninn::cmd::bench::arena::Sampler;
use muninn_types::Bytes;

/// What may be above the limit, beside the runtime's own.
const ABOVE: Bytes = Bytes::mib(8);
/// What the runtime may hold for itself.
const RUNTIME_MAX: Bytes = Bytes::mib(32);

/// The sum over all processes at every look against the limit. On a machine with other work to do
/// the runtime may not get a CPU for longer than a program takes to grow: one good run of several
/// shows that the limit is kept, and wrong contents or an oversized runtime fail in any of them.
fn watch(words: &[&str]) {
    if cannot_run() {
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let (most, allowed) = watch_once(words);
        if most <= allowed {
            return;
        }
        seen.push(format!("{most} resident, {allowed} allowed"));
    }
    panic!("never within the limit: {seen:?}");
}

/// The most that was resident, and the most that may be.
fn watch_once(words: &[&str]) -> (Bytes, Bytes) {
    let place = place();
    let all = [&[checker()], words, &["--size", SIZE]].concat();
    let run = start(&place, &["--local", LOCAL], &all);
    let job = run.job();
    let mut sampler = Sampler::start(run.pid() as i32, true);
    let mut runtime = Bytes::ZERO;
    while run.is_alive() {
        let own = job
            .places()
            .map(|place| place.counters().snapshot().runtime_bytes);
        runtime = runtime.max(Bytes(own.sum()));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let ran = run.end();
    sampler.end();
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(
        runtime <= RUNTIME_MAX,
        "the runtime holds {runtime}: {ran:#?}"
    );
    let limit: Bytes = LOCAL.parse().unwrap();
    let most = sampler.most();
    assert!(
        most >= Bytes(limit.0 / 4),
        "only {most} were ever seen: {ran:#?}"
    );
    (most, Bytes(limit.0 + ABOVE.0 + runtime.0))
}

#[test]
fn one_thread_that_grows_and_reads() {
    watch(&["fill"]);
}

#[test]
fn threads_that_grow_and_change_mappings() {
    watch(&["pressure", "--seconds", "3", "--without", "fork"]);
}

#[test]
fn a_heap_of_small_pieces() {
    watch(&["malloc"]);
}
