//! What the program gets, what comes back, and what is left behind.

use crate::common::{Ended, PATIENCE, Place, Running};
use muninn_sys::proc::ProcessId;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A library that is in every program anyway, so preloading it changes nothing.
pub fn harmless_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(5))
        .find(|path| path.contains("/libc.so") || path.contains("/libc-"));
    PathBuf::from(library.expect("this test is linked with a C library"))
}

/// `muninn run` with these arguments, and no signal ignored: a test that was started in the background
/// inherits some that are.
pub fn run_command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(&[&["run"], args].concat());
    command.env("MUNINN_PRELOAD", harmless_library());
    let reset = || {
        for signal in [
            libc::SIGHUP,
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGTERM,
            libc::SIGTSTP,
        ] {
            // SAFETY: the default action is no function of this process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls without memory or locks are made.
    unsafe { command.pre_exec(reset) };
    command
}

/// What is said of a program into which the library was not loaded, as it is the case here, once it
/// ran for so long that the library would have been heard of.
pub const WITHOUT: &str = "muninn: the program ran without far memory: Muninn's library was not \
                           loaded into it (does it start another program with other variables?)\n";

pub fn run(place: &Place, args: &[&str]) -> Ended {
    let mut ended = Running::start(run_command(place, args)).end();
    ended.err = ended.err.replace(WITHOUT, "");
    ended
}

/// A shell's script at a limit that it stays below.
pub fn shell(script: &str) -> Vec<&str> {
    vec!["--local", "64MiB", "--", "sh", "-c", script]
}

/// Files of launchers in the private folder of this test.
pub fn left_behind(place: &Place) -> Vec<String> {
    let folder = place.path(&format!("muninn-{}", muninn_sys::proc::own_uid()));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Waits for something that happens in another process.
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(
            start.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn is_gone(pid: u32) -> bool {
    ProcessId::of(pid).is_none()
}

#[test]
fn exit_codes_are_those_of_the_program() {
    let place = crate::common::place();
    let ended = run(&place, &shell("echo out; echo err >&2; exit 7"));
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("out\n", "err\n"));
    assert_eq!(run(&place, &shell("true")).code, Some(0));
    assert_eq!(run(&place, &shell("kill -9 $$")).code, Some(128 + 9));
    assert_eq!(run(&place, &shell("kill -TERM $$")).code, Some(128 + 15));
    assert_eq!(left_behind(&place), [] as [String; 0]);
}

#[test]
fn the_program_finds_its_job_its_name_and_what_was_preloaded_before() {
    let place = crate::common::place();
    let script =
        "echo \"$MUNINN_JOB\"; echo \"$LD_PRELOAD\"; test -f \"$MUNINN_JOB\" && echo there";
    let mut command = run_command(&place, &shell(script));
    let before = harmless_library().with_file_name("libm.so.6");
    command.env("LD_PRELOAD", &before);
    let ended = Running::start(command).end();
    assert_eq!(ended.err.replace(WITHOUT, ""), "");
    let lines: Vec<&str> = ended.out.lines().collect();
    let [job, preload, there] = lines[..] else {
        panic!("{ended:?}");
    };
    let folder = place.path(&format!("muninn-{}/job-", muninn_sys::proc::own_uid()));
    assert!(job.starts_with(&folder.display().to_string()), "{job}");
    let library = std::fs::canonicalize(harmless_library()).unwrap();
    let both = format!("{}:{}", library.display(), before.display());
    assert_eq!((preload, there), (both.as_str(), "there"));
    // The name by which it was called, not the path at which it was found.
    let args = ["--local", "64MiB", "--", "sh", "-c", "echo $0"];
    assert_eq!(run(&place, &args).out, "sh\n");
}

#[test]
fn a_program_without_the_library_is_reported() {
    let place = crate::common::place();
    let ended = Running::start(run_command(&place, &shell("sleep 1.2; exit 2"))).end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(2), WITHOUT));
}

#[test]
fn those_whom_the_program_leaves_behind_are_waited_for() {
    let place = crate::common::place();
    let script = "(while [ ! -e go ]; do sleep 0.01; done; echo late) & echo early; exit 4";
    let running = Running::start(run_command(&place, &shell(script)));
    assert_eq!(running.line().as_deref(), Some("early"));
    place.write("go", "");
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(4), "late\n"));
    assert_eq!(left_behind(&place), [] as [String; 0]);
}

#[test]
fn the_report_is_written_and_a_library_that_was_not_loaded_is_said() {
    let place = crate::common::place();
    let args = [
        "--local",
        "64MiB",
        "--stats",
        "--json",
        "run.json",
        "--prefetch",
        "trend",
        "--evict",
        "sieve",
        "--threshold",
        "fixed",
        "--max-far",
        "128MiB",
        "--",
        "sh",
        "-c",
        "exit 3",
    ];
    let ended = run(&place, &args);
    assert_eq!(ended.code, Some(3));
    assert!(
        ended.err.starts_with("muninn: time    ") && ended.err.ends_with("; without far memory\n"),
        "{ended:?}"
    );
    let text = std::fs::read_to_string(place.path("run.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["command"], serde_json::json!(["sh", "-c", "exit 3"]));
    assert_eq!(report["exit_code"], 3);
    assert_eq!(report["signal"], Value::Null);
    assert_eq!(report["limit_bytes"], 64 << 20);
    assert_eq!(report["processes"], 0);
    assert_eq!(report["embedded"], true);
    let policies = ["prefetch", "evict", "threshold"].map(|name| report[name].clone());
    assert_eq!(policies, ["trend", "sieve", "fixed"].map(Value::from));
    assert_eq!(report["counters"]["faults"], 0);
    assert!(report["pool"][0].as_str().unwrap().starts_with("unix:"));

    let ended = run(
        &place,
        &[
            "--local",
            "64MiB",
            "--json",
            "run.json",
            "--",
            "sh",
            "-c",
            "kill -9 $$",
        ],
    );
    assert_eq!(ended.code, Some(137));
    let text = std::fs::read_to_string(place.path("run.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["signal"], "SIGKILL");
}

#[test]
fn the_configuration_file_is_read() {
    let place = crate::common::place();
    place.write(
        "muninn.toml",
        "[run]\nlocal = \"64MiB\"\nevict = \"fifo\"\n",
    );
    let mut command = run_command(&place, &["--json", "run.json", "--", "true"]);
    command.env("MUNINN_CONFIG", "muninn.toml");
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = std::fs::read_to_string(place.path("run.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&report["limit_bytes"], &report["evict"]),
        (&(64 << 20).into(), &"fifo".into())
    );
}

#[test]
fn a_pool_that_is_named_is_used_and_a_peak_that_is_named_is_remembered() {
    let place = crate::common::place();
    let served = place.serve(&["--memory", "8MiB"]);
    let pool = served.tcp();
    let args = [
        "--local", "50%", "--peak", "100MiB", "--pool", &pool, "--json", "run.json", "--", "true",
    ];
    let ended = run(&place, &args);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let read = || -> Value {
        let text = std::fs::read_to_string(place.path("run.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    assert_eq!(read()["pool"], serde_json::json!([pool]));
    assert_eq!(read()["embedded"], false);
    assert_eq!(read()["limit_bytes"], 50 << 20);
    let again = run(
        &place,
        &["--local", "25%", "--json", "run.json", "--", "true"],
    );
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(read()["limit_bytes"], 25 << 20);
}
