//! The launcher's commands with the runtime in the program: a limit that is changed while processes
//! hold memory, and a profile.

use crate::common::{Ended, Place, Running, far_memory_possible, place};
use crate::launch::{left_behind, until};
use muninn_sys::proc::{RealProc, status};
use muninn_sys::signal::PidFd;
use muninn_types::Bytes;
use rustix::process::Signal;
use serde_json::Value;

/// One line of 96 MiB: `tail` has to keep it until it has seen the end of it.
const ONE_LINE: &str = "yes muninn | tr -d '\\n' | head -c 100663296";

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// The job that this launcher runs, as `status` shows it.
fn job(place: &Place, launcher: u32) -> Option<Value> {
    let report = json(&place.run(&["status", "--jobs", "--json"]));
    let jobs = report["jobs"].as_array().unwrap();
    jobs.iter().find(|job| job["launcher"] == launcher).cloned()
}

#[test]
fn a_lower_limit_takes_effect_while_processes_hold_memory() {
    if !far_memory_possible() {
        return;
    }
    let place = place();
    let script =
        format!("{{ {ONE_LINE}; while [ ! -e go ]; do sleep 0.02; done; }} | tail -n 1 | wc -c");
    let args = ["run", "--local", "64MiB", "--", "sh", "-c", &script];
    let running = Running::start(place.command(&args));
    let launcher = running.pid();
    let total = |name: &str| {
        let job = job(&place, launcher);
        job.map_or(0, |job| job["total"][name].as_u64().unwrap())
    };
    until("all is read and pages leave", || {
        let far = total("far_bytes");
        far >= 32 << 20 && far + total("resident_bytes") >= 90 << 20
    });
    let ended = place.run(&["ctl", "limit", &launcher.to_string(), "32MiB"]);
    assert_eq!(ended.out, "sh: the limit is 32MiB now, and was 64MiB\n");
    until("more pages leave", || {
        total("resident_bytes") <= Bytes::mib(32).0 && total("far_bytes") >= 60 << 20
    });
    place.write("go", "");
    let ended = running.end();
    assert_eq!(
        (ended.code, ended.out.trim(), ended.err.as_str()),
        (Some(0), "100663296", "")
    );
    assert_eq!(left_behind(&place), [] as [String; 0]);
}

#[test]
fn a_killed_server_ends_those_who_had_pages_there_and_nothing_hangs() {
    if !far_memory_possible() {
        return;
    }
    let place = place();
    let script = format!("{{ {ONE_LINE}; while printf .; do sleep 0.02; done; }} | tail -n 1");
    let args = ["run", "--local", "64MiB", "--", "sh", "-c", &script];
    let running = Running::start(place.command(&args));
    let launcher = running.pid();
    let far = |process: &Value| process["far_bytes"].as_u64().unwrap() >= 16 << 20;
    let mut holder = None;
    until("pages leave", || {
        let job = job(&place, launcher).unwrap_or_default();
        let processes = job["processes"].as_array().cloned().unwrap_or_default();
        holder = processes.into_iter().find(far);
        holder.is_some()
    });
    let pid = holder.unwrap()["pid"].as_u64().unwrap();
    let server = server_of(launcher);
    let handle = PidFd::open(server as i32).unwrap();
    handle.send(Signal::KILL).unwrap();
    let ended = running.end();
    // `tail` was killed, and the loop ends when nobody reads what it writes.
    assert_eq!(ended.code, Some(128 + 9), "{ended:?}");
    assert!(
        ended.err.contains(&format!(
            "muninn: the embedded memory server has ended (signal: 9 (SIGKILL)); process {pid} had \
             pages there and was ended\n"
        )),
        "{ended:?}"
    );
    assert_eq!(left_behind(&place), [] as [String; 0]);
}

/// The server among the children of a launcher.
fn server_of(launcher: u32) -> u32 {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_server = |pid: &u32| {
        let of_launcher =
            status(&RealProc, *pid as i32).is_ok_and(|status| status.ppid == u64::from(launcher));
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        of_launcher && line.split(|b| *b == 0).any(|word| word == b"serve")
    };
    pids.into_iter().find(is_server).expect("there is a server")
}

#[test]
fn a_profile_is_measured_and_the_simulator_reads_it() {
    if !far_memory_possible() {
        return;
    }
    let place = place();
    // Peaks are sampled, so the program keeps its memory for a while before it ends.
    let script = format!("{{ {ONE_LINE}; sleep 1; }} | tail -n 1 | wc -c");
    let args = [
        "profile", "--ratios", "50%", "--name", "walk", "--json", "--", "sh", "-c", &script,
    ];
    let report = json(&place.run(&args));
    assert!(
        report["peak_bytes"].as_u64().unwrap() >= 64 << 20,
        "{report}"
    );
    let points = report["points"].as_array().unwrap();
    assert_eq!(
        (points.len(), &points[0]["faults"]),
        (2, &0.into()),
        "{report}"
    );
    assert!(points[1]["far_peak_bytes"].as_u64().unwrap() >= 16 << 20);
    let chart = std::fs::read_to_string(place.path("profile-walk.svg")).unwrap();
    assert!(chart.contains("walk: run time with less local memory"));
    let args = [
        "sim",
        "rack",
        "--profiles",
        "profile-walk.toml",
        "--mix",
        "walk=1",
        "--machines",
        "2",
        "--jobs",
        "20",
        "--workloads",
        "1",
        "--configs",
        "nofar",
        "--json",
    ];
    let simulated = place.run(&args);
    assert_eq!((simulated.code, simulated.err.as_str()), (Some(0), ""));
}
