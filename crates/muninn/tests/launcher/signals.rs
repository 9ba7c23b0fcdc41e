//! Signals reach the program, and nobody outlives the launcher.

use crate::common::{PATIENCE, Running, place};
use crate::launch::{WITHOUT, is_gone, left_behind, run, run_command, shell, until};
use muninn_sys::proc::{RealProc, status};
use muninn_sys::signal::PidFd;
use rustix::process::Signal;
use std::os::unix::process::CommandExt;

/// A script that says who it is, and its parent, then waits.
const WAITS: &str = "echo $$; while :; do sleep 0.02; done";

fn pid_of(running: &Running) -> u32 {
    running.line().expect("a line").trim().parse().unwrap()
}

fn state(pid: u32) -> u8 {
    status(&RealProc, pid as i32).map_or(0, |status| status.state)
}

#[test]
fn the_program_gets_what_is_sent_to_the_launcher() {
    let place = place();
    for (signal, name, code) in [
        (Signal::TERM, "TERM", 11),
        (Signal::INT, "INT", 12),
        (Signal::HUP, "HUP", 13),
        (Signal::QUIT, "QUIT", 14),
        (Signal::USR1, "USR1", 15),
    ] {
        let script = format!("trap 'echo got {name}; exit {code}' {name}; {WAITS}");
        let running = Running::start(run_command(&place, &shell(&script)));
        pid_of(&running);
        running.signal(signal);
        let ended = running.end();
        let got = format!("got {name}\n");
        assert_eq!((ended.code, ended.out), (Some(code), got), "{name}");
    }
    let running = Running::start(run_command(&place, &shell(WAITS)));
    pid_of(&running);
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(128 + 15));
    assert_eq!(left_behind(&place), [] as [String; 0]);
}

#[test]
fn stopped_from_the_terminal_both_stop_and_both_go_on() {
    let place = place();
    let mut command = run_command(
        &place,
        &shell("echo $$; while [ ! -e go ]; do sleep 0.02; done"),
    );
    // With a parent outside of the group: others are not stopped by a terminal.
    command.process_group(0);
    let running = Running::start(command);
    let program = pid_of(&running);
    let launcher = running.pid();
    running.signal(Signal::TSTP);
    until("the program stops", || state(program) == b'T');
    until("the launcher stops", || state(launcher) == b'T');
    running.signal(Signal::CONT);
    until("the program goes on", || state(program) != b'T');
    until("the launcher goes on", || state(launcher) != b'T');
    place.write("go", "");
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_killed_launcher_takes_the_program_and_the_server_along() {
    let place = place();
    let running = Running::start(run_command(&place, &shell(WAITS)));
    let program = pid_of(&running);
    let children = children_of(running.pid());
    running.signal(Signal::KILL);
    until("the program ends", || is_gone(program));
    for child in children {
        until("the server ends", || is_gone(child));
    }
    running.end();
    // The page stays behind, and the next launcher clears it away.
    assert!(!left_behind(&place).is_empty());
    assert_eq!(run(&place, &shell("true")).code, Some(0));
    assert_eq!(left_behind(&place), [] as [String; 0]);
}

#[test]
fn a_killed_program_is_reported_and_a_killed_server_is_named() {
    let place = place();
    let running = Running::start(run_command(&place, &shell(WAITS)));
    let program = pid_of(&running);
    let process = PidFd::open(program as i32).unwrap();
    process.send(Signal::KILL).unwrap();
    assert!(process.wait_end(Some(PATIENCE)).unwrap());
    assert_eq!(running.end().code, Some(128 + 9));

    let script = "echo $$; while [ ! -e go ]; do sleep 0.02; done; exit 5";
    let running = Running::start(run_command(&place, &shell(script)));
    let program = pid_of(&running);
    let server = children_of(running.pid())
        .into_iter()
        .find(|child| *child != program)
        .expect("there is a server");
    let process = PidFd::open(server as i32).unwrap();
    process.send(Signal::KILL).unwrap();
    until("the server ends", || is_gone(server));
    // Reaped, so the launcher has noticed.
    until("the launcher notices", || {
        !std::path::Path::new(&format!("/proc/{server}")).exists()
    });
    place.write("go", "");
    let ended = running.end();
    assert_eq!(ended.code, Some(5));
    assert_eq!(
        ended.err.replace(WITHOUT, ""),
        "muninn: the embedded memory server has ended (signal: 9 (SIGKILL)); no process had pages \
         there\n"
    );
    assert_eq!(left_behind(&place), [] as [String; 0]);
}

fn children_of(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| {
        status(&RealProc, pid as i32).is_ok_and(|status| status.ppid == u64::from(parent))
    })
    .collect()
}
