//! Jobs of many processes: all at once, and one after the other.

use crate::common::place;
use crate::harness::{cannot_run, program, run, start};
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

/// 48 MiB in a parent and four children that live at the same time, as long as the parent's file is not
/// there.
const POOL: &str = r#"
import os, time
memory = bytearray(b"x" * (48 << 20))
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        while not os.path.exists("go"):
            time.sleep(0.02)
        os._exit(memory[-1] != ord("x"))
    children.append(child)
wrong = sum(os.waitpid(child, 0)[1] for child in children)
print("done", wrong)
"#;

#[test]
fn a_page_that_several_processes_have_counts_once() {
    if cannot_run() || program(&["python3"]).is_none() {
        return;
    }
    let place = place();
    let run = start(&place, &["--local", "256MiB"], &["python3", "-c", POOL]);
    let job = run.job();
    // The parent and each child know of pages that others count, too.
    run.until("all have measured", || {
        let places: Vec<_> = job.places().collect();
        let shares =
            |place: &muninn_job::Place| place.counters().snapshot().shared_bytes > 32 << 20;
        places.len() == 5 && places.iter().all(shares)
    });
    let held: u64 = job
        .places()
        .map(|place| place.counters().snapshot().resident_bytes)
        .sum();
    assert!(Bytes(held) < Bytes::mib(96), "{} for 48 MiB", Bytes(held));
    place.write("go", "");
    let ran = run.end();
    assert_eq!((ran.code, ran.out.as_str()), (0, "done 0\n"), "{ran:#?}");
    let peak = ran.report["local_peak_bytes"].as_u64().unwrap();
    assert!(Bytes(peak) < Bytes::mib(160), "{} for 48 MiB", Bytes(peak));
    assert_eq!(ran.counter("evicted"), 0, "it fits: {ran:#?}");
}
