//! A thousand short children leave nothing behind: no sessions, no grants, no memory at the server, no
//! descriptors in those who go on, no files.

use crate::both::{PATIENCE, cannot_run, finish, open_place, program};
use crate::common::{Place, Served};
use crate::harness::{Run, serve, start, until_returned};
use crate::watcher::{descendants, is_server};
use muninn_sys::signal::PidFd;
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// What the dead may take to be forgotten.
const AT_ONCE: Duration = Duration::from_secs(2);
/// A parent works on while its children come and go: so much may be other than before. One grant is asked
/// for ahead of need, another lies between what is far and what it would fill, and small ones (2 MiB) are
/// not worth moving for.
const MORE_BYTES: u64 = 36 << 20;
const MORE_GRANTS: u64 = 4;
/// Of what the program fills, more than this cannot be near.
const FAR_BYTES: u64 = 32 << 20;
const MORE_DESCRIPTORS: usize = 4;

/// What there is at one moment.
#[derive(Clone, Copy, Debug)]
struct Left {
    sessions: usize,
    grants: u64,
    bytes: u64,
    launcher_fds: usize,
    program_fds: usize,
}

fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |all| all.count())
}

fn status(place: &Place, server: &Served) -> Value {
    let ended = place.run(&["status", "--pool", &server.tcp(), "--json"]);
    let report: Value = serde_json::from_str(&ended.out).unwrap_or(Value::Null);
    let server = report["servers"][0].clone();
    assert_eq!(server["ok"], true, "no status: {ended:?}");
    server
}

fn look(place: &Place, server: &Served, run: &Run, program: i32) -> Left {
    let status = status(place, server);
    Left {
        sessions: status["sessions"].as_array().unwrap().len(),
        grants: status["grants"].as_u64().unwrap(),
        bytes: status["granted_bytes"].as_u64().unwrap(),
        launcher_fds: descriptors(run.pid() as i32),
        program_fds: descriptors(program),
    }
}

fn thousand(how: &str) {
    if cannot_run() {
        return;
    }
    let place = open_place();
    let server = serve(&place, "1GiB");
    let run = start(
        &place,
        &["--local", "16MiB", "--pool", &server.tcp()],
        &[&program("fork_many"), "1000", "8", how, "pause"],
    );
    run.until("memory is filled", || run.out().contains("filled\n"));
    let family = descendants(run.pid() as i32);
    let pid = *family.iter().find(|pid| !is_server(**pid)).unwrap();
    let program = PidFd::open(pid).unwrap();
    // Filled is not yet far: the pager may still be connecting.
    let far = || look(&place, &server, &run, pid).bytes >= FAR_BYTES;
    run.until("much is far", far);
    let before = look(&place, &server, &run, pid);
    program.send(Signal::USR1).unwrap();
    run.until("the children end", || run.out().contains("all have ended"));
    let since = Instant::now();
    loop {
        let after = look(&place, &server, &run, pid);
        if after.sessions <= before.sessions
            && after.grants <= before.grants + MORE_GRANTS
            && after.bytes <= before.bytes + MORE_BYTES
            && after.launcher_fds <= before.launcher_fds + MORE_DESCRIPTORS
            && after.program_fds <= before.program_fds + MORE_DESCRIPTORS
        {
            break;
        }
        assert!(
            since.elapsed() < AT_ONCE,
            "{AT_ONCE:?} after the last child: {after:?}, before the first: {before:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    program.send(Signal::USR1).unwrap();
    let ran = finish(run, PATIENCE);
    let said = "filled\nall have ended\n1000 children, and the parent is right\n";
    assert_eq!(ran.out, said, "{ran:#?}");
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.counter("evicted") > 1000, "{ran:#?}");
    until_returned(&place, &server);
    let sessions = status(&place, &server)["sessions"].clone();
    assert_eq!(sessions.as_array().map(Vec::len), Some(0), "{sessions}");
    let folder = place.path(&format!("muninn-{}", muninn_sys::proc::own_uid()));
    let files: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn children_that_end_at_once() {
    thousand("exit");
}

#[test]
fn children_that_are_killed_at_once() {
    thousand("kill");
}

#[test]
fn children_that_run_something_else() {
    thousand("exec");
}
