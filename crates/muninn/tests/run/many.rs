//! Jobs of many processes: all at once, and one after the other.

use crate::common::place;
use crate::harness::{cannot_run, run, start};
use muninn_types::Bytes;

/// More than the places a job's page has memory for at its start, and than it once had at all.
const PROCESSES: usize = 300;

#[test]
fn hundreds_at_once_have_a_place_each_and_are_left_alone_where_they_fit() {
    if cannot_run() {
        return;
    }
    let place = place();
    let script = format!(
        "n=0; while [ $n -lt {PROCESSES} ]; do sleep 1000 & all=\"$all $!\"; n=$((n + 1)); done; \
         while [ ! -e go ]; do sleep 0.1; done; kill $all; wait; \
         while [ ! -e end ]; do sleep 0.1; done; echo done"
    );
    let run = start(&place, &["--local", "1GiB"], &["sh", "-c", &script]);
    let job = run.job();
    run.until("all have a place", || job.places().count() > PROCESSES);
    place.write("go", "");
    // The shell, and what it sleeps with.
    run.until("the places are free again", || job.places().count() <= 3);
    place.write("end", "");
    let ran = run.end();
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{ran:#?}");
    assert!(ran.report["processes"].as_u64() > Some(PROCESSES as u64));
    for name in ["adoptions", "faults", "evicted", "grants"] {
        assert_eq!(ran.counter(name), 0, "{name}: {ran:#?}");
    }
}

#[test]
fn the_dead_hold_nothing() {
    if cannot_run() {
        return;
    }
    let place = place();
    let script = "n=0; while [ $n -lt 200 ]; do /bin/true; n=$((n + 1)); done";
    let ran = run(&place, &["--local", "64MiB"], &["sh", "-c", script]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    let peak = ran.report["local_peak_bytes"].as_u64().unwrap();
    // A shell, a child or two, and what the launcher was late with.
    assert!(Bytes(peak) <= Bytes::mib(8), "{} at one time", Bytes(peak));
    assert_eq!(ran.counter("evicted"), 0, "{ran:#?}");
}
