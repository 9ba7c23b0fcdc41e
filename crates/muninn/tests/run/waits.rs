//! What a program waits for is shown.

use crate::common::place;
use crate::harness::{cannot_run, checker, serve, start};
use muninn_job::Waiting;
use rustix::process::Signal;

#[test]
fn a_server_that_does_not_answer_is_named_as_the_reason() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "512MiB");
    let words = [
        checker(),
        "pressure",
        "--without",
        "fork",
        "--seconds",
        "5",
        "--size",
        "64MiB",
    ];
    let run = start(
        &place,
        &["--local", "16MiB", "--pool", &server.tcp()],
        &words,
    );
    run.until_far(1000);
    server.running.signal(Signal::STOP);
    let waits = || {
        let report = place.run(&["status", "--jobs", "--json"]).out;
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let jobs = report["jobs"].as_array().unwrap();
        let own = jobs.iter().find(|job| job["launcher"] == run.pid())?;
        let reason = own["processes"][0]["waiting_for"].as_str()?;
        let long = own["processes"][0]["waiting_ms"].as_u64()? >= 100;
        (long && reason == Waiting::Server.name()).then_some(())
    };
    let mut shown = false;
    run.until("the wait to be shown", || {
        shown = shown || waits().is_some();
        shown
    });
    server.running.signal(Signal::CONT);
    run.until("the wait to be over", || waits().is_none());
    let ran = run.end();
    ran.assert_good_and_far();
}
