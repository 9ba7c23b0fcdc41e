//! Resident memory stays below the limit, as an outsider sees it who looks every millisecond.

use crate::common::place;
use crate::harness::{LOCAL, SIZE, Turn, cannot_run, checker, start_in};
use muninn_sys::proc::StatmReader;
use muninn_types::Bytes;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What may be above the limit, beside the runtime's own.
const ABOVE: Bytes = Bytes::mib(8);
/// What the runtime may hold for itself.
const RUNTIME_MAX: Bytes = Bytes::mib(32);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);
/// So long may memory be above that: what is seen at one look may be over at the next.
const ABOVE_MAX: Duration = Duration::from_millis(1);

/// What was seen of a run.
#[derive(Debug, Default)]
struct Seen {
    /// The most at one look.
    most: Bytes,
    /// The most of the runtime's own.
    runtime: Bytes,
    /// The longest time in which every look found too much.
    above_longest: Duration,
    above_looks: u64,
    looks: u64,
}

/// The sum over all processes at every look against the limit.
fn watch(words: &[&str]) {
    if cannot_run() {
        return;
    }
    let place = place();
    let all = [&[checker()], words, &["--size", SIZE]].concat();
    let run = start_in(Turn::alone(), &place, &["--local", LOCAL], &all);
    let job = run.job();
    let limit: Bytes = LOCAL.parse().unwrap();
    let mut seen = Seen::default();
    let mut readers = BTreeMap::new();
    let mut above_since = None;
    while run.is_alive() {
        let (mut sum, mut runtime) = (0, 0);
        for place in job.places() {
            let pid = place.pid() as i32;
            let reader = readers
                .entry(pid)
                .or_insert_with(|| StatmReader::of(pid).ok());
            let memory = reader.as_ref().and_then(|reader| reader.read().ok());
            sum += memory.map_or(0, |memory| memory.private_resident().0);
            runtime += place.counters().snapshot().runtime_bytes;
        }
        seen.looks += 1;
        seen.most = seen.most.max(Bytes(sum));
        seen.runtime = seen.runtime.max(Bytes(runtime));
        if sum > limit.0 + ABOVE.0 + runtime {
            seen.above_looks += 1;
            let since: Instant = *above_since.get_or_insert_with(Instant::now);
            seen.above_longest = seen.above_longest.max(since.elapsed());
        } else {
            above_since = None;
        }
        std::thread::sleep(LOOK);
    }
    let ran = run.end();
    println!("{seen:?}");
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(seen.runtime <= RUNTIME_MAX, "{seen:?}: {ran:#?}");
    assert!(
        seen.most >= Bytes(limit.0 / 4),
        "little was ever seen: {seen:?}: {ran:#?}"
    );
    assert!(
        seen.above_longest <= ABOVE_MAX,
        "above the limit for too long: {seen:?}: {ran:#?}"
    );
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
