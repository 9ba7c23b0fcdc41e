//! The job's page seen from outside: `muninn status --jobs`, and the last words of a runtime.

use crate::common::{Ended, Place, Running, place};
use crate::launch::{left_behind, run_command};
use muninn_job::Job;
use serde_json::Value;
use std::sync::atomic::Ordering;

/// A job whose program waits, so that a test can play the runtime's part in its page.
pub struct HeldJob {
    pub running: Running,
    pub job: Job,
    pub program: u32,
}

impl HeldJob {
    pub fn start(place: &Place, options: &[&str]) -> HeldJob {
        let script = "echo $$; echo \"$MUNINN_JOB\"; while [ ! -e go ]; do sleep 0.02; done";
        let args = [options, &["--", "sh", "-c", script]].concat();
        let running = Running::start(run_command(place, &args));
        let program = running.line().expect("its number").parse().unwrap();
        let path = running.line().expect("its job");
        HeldJob {
            running,
            job: Job::open(path).unwrap(),
            program,
        }
    }

    pub fn let_go(self, place: &Place) -> Ended {
        place.write("go", "");
        self.running.end()
    }
}

#[test]
fn jobs_are_shown_with_their_processes() {
    let place = place();
    let none = place.run(&["status", "--jobs"]);
    assert_eq!(none.code, Some(0));
    // Root also sees jobs elsewhere, so a quiet machine cannot be expected.
    let own = |ended: &Ended, launcher: u32| -> Option<Value> {
        let report: Value = serde_json::from_str(&ended.out).unwrap();
        let jobs = report["jobs"].as_array().unwrap();
        let job = jobs.iter().find(|job| job["launcher"] == launcher);
        job.cloned()
    };
    let held = HeldJob::start(&place, &["--local", "64MiB"]);
    let launcher = held.running.pid();
    let seat = held.job.take_place(held.program).unwrap();
    let counters = seat.counters();
    counters.resident_bytes.store(50 << 20, Ordering::Relaxed);
    counters.far_bytes.store(7 << 20, Ordering::Relaxed);
    counters.faults.store(4242, Ordering::Relaxed);
    counters
        .limit_share_bytes
        .store(64 << 20, Ordering::Relaxed);
    held.job.leave_message(held.program, "just a word");
    let waiting = seat.waits_for(muninn_job::Waiting::PoolFull);

    for args in [&["status", "--jobs", "--json"][..], &["status", "--json"]] {
        let ended = place.run(args);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{args:?}");
        let job = own(&ended, launcher).expect("the job is shown");
        assert_eq!(job["name"], "sh");
        assert_eq!(job["limit_bytes"], 64 << 20);
        assert_eq!(job["launcher_alive"], true);
        assert_eq!(job["total"]["faults"], 4242);
        let processes = job["processes"].as_array().unwrap();
        assert_eq!(processes.len(), 1);
        assert_eq!(processes[0]["pid"], held.program);
        assert_eq!(processes[0]["far_bytes"], 7 << 20);
        assert_eq!(processes[0]["waiting_for"], "pool-full");
        assert!(processes[0]["waiting_ms"].as_u64() < Some(60_000));
        let words = format!("process {}: just a word", held.program);
        assert_eq!(job["message"], words);
    }
    let shown = place.run(&["status", "--jobs"]).out;
    for part in [
        "job ".to_string(),
        "\n  process ".to_string(),
        format!("\nsh: process {}: just a word\n", held.program),
        "50.0MiB".to_string(),
        "4242".to_string(),
    ] {
        assert!(shown.contains(&part), "{part:?} is not in:\n{shown}");
    }
    let begin = format!("sh: process {} has waited ", held.program);
    let end = shown.lines().find_map(|line| line.strip_prefix(&begin));
    let end = end.unwrap_or_else(|| panic!("no wait in:\n{shown}"));
    assert!(end.ends_with(" for memory: all servers are full"), "{end}");
    drop(waiting);
    let shown = place.run(&["status", "--jobs"]).out;
    assert!(!shown.contains(&begin), "{shown}");
    held.let_go(&place);
    let ended = place.run(&["status", "--jobs", "--json"]);
    assert_eq!(own(&ended, launcher), None, "it is over");
}

#[test]
fn the_last_words_of_a_runtime_and_its_counters_are_reported() {
    let place = place();
    let held = HeldJob::start(
        &place,
        &["--local", "64MiB", "--stats", "--json", "run.json"],
    );
    let seat = held.job.take_place(held.program).unwrap();
    let counters = seat.counters();
    counters.resident_bytes.store(60 << 20, Ordering::Relaxed);
    counters.far_bytes.store(40 << 20, Ordering::Relaxed);
    counters.far_pages_peak.store(10_240, Ordering::Relaxed);
    counters.adopted_bytes.store(1, Ordering::Relaxed);
    counters.faults.store(9, Ordering::Relaxed);
    counters.evicted.store(77, Ordering::Relaxed);
    counters.evicted_written.store(77, Ordering::Relaxed);
    held.job.note_footprint();
    held.job.leave_message(held.program, "the server is gone");
    let program = held.program;
    let ended = held.let_go(&place);
    // The shell succeeded, but somebody had to give up.
    assert_eq!(ended.code, Some(1));
    let mut lines = ended.err.lines();
    let words = format!("muninn: process {program}: the server is gone");
    assert_eq!(lines.next(), Some(words.as_str()));
    let stats: Vec<&str> = lines.collect();
    assert_eq!(stats.len(), 4, "{stats:?}");
    assert!(stats[0].starts_with("muninn: time    "), "{stats:?}");
    assert_eq!(
        stats[1..],
        [
            "muninn: memory  100MiB at most: 60.0MiB here (limit 64.0MiB), 40.0MiB far",
            "muninn: faults  9 in 0ns: 0 far (0ns), 0 about to leave (0ns), 0 first touches (0ns); 77 pages left",
            "muninn: limit   --local 112MiB would have kept all of it here",
        ]
    );
    let text = std::fs::read_to_string(place.path("run.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["processes"], 1);
    assert_eq!(report["exit_code"], 0);
    assert_eq!(report["peak_bytes"], 100 << 20);
    assert_eq!(report["counters"]["evicted_written"], 77);
    assert_eq!(report["counters"]["resident_bytes"], 0, "all have ended");
    assert_eq!(left_behind(&place), [] as [String; 0]);
}
