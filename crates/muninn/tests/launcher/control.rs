//! `muninn ctl limit`: the limit of a running job.

use crate::common::{Running, place};
use crate::jobs::HeldJob;
use muninn_types::Bytes;
use serde_json::Value;

#[test]
fn the_limit_is_changed_through_any_process_of_the_job() {
    let place = place();
    let held = HeldJob::start(&place, &["--local", "64MiB"]);
    let limit = |pid: u32, size: &str, more: &[&str]| {
        let pid = pid.to_string();
        let args = [&["ctl", "limit", &pid, size], more].concat();
        place.run(&args)
    };
    assert_eq!(held.job.limit(), Bytes::mib(64));
    let ended = limit(held.running.pid(), "128MiB", &[]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert_eq!(ended.out, "sh: the limit is 128MiB now, and was 64MiB\n");
    assert_eq!(held.job.limit(), Bytes::mib(128));

    // A process counts as one of the job once the runtime in it has taken its place.
    held.job.take_place(held.program).unwrap();
    let ended = limit(held.program, "32MiB", &["--json"]);
    let changed: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(changed["job"], "sh");
    assert_eq!(changed["launcher"], held.running.pid());
    assert_eq!(changed["limit_before_bytes"], 128 << 20);
    assert_eq!(held.job.limit(), Bytes::mib(32));

    let ended = limit(held.program, "1MiB", &[]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.err,
        "muninn: a limit of 1MiB is too little: Muninn keeps 8MiB free for growth and needs room to \
         move pages; give 16MiB or more\n"
    );
    let stranger = std::process::id();
    let ended = limit(stranger, "64MiB", &[]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.err,
        format!(
            "muninn: process {stranger} belongs to no job of 'muninn run' that this user may change: \
             'muninn status --jobs' lists those there are\n"
        )
    );
    assert_eq!(held.job.limit(), Bytes::mib(32));
    held.let_go(&place);
}

#[test]
fn a_wrong_number_is_said_so() {
    let place = place();
    let ended = Running::start(place.command(&["ctl", "limit", "none", "64MiB"])).end();
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("invalid value 'none' for '<PID>'"));
}
