//! Children and grandchildren are all waited for. One test alone in its process: it reaps every
//! child there is.
#![allow(clippy::zombie_processes)] // they are reaped, by what is tested

use muninn_sys::reap::{self, Event};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn next(except: Option<u32>) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = reap::next_event(except) {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "nothing happened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_descendant_is_waited_for_and_the_exception_is_left() {
    assert_eq!(reap::next_event(None), None);
    reap::adopt_orphans().unwrap();

    let child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
    let pid = child.id();
    assert_eq!(next(None), Event::Exited { pid, code: 7 });
    let child = Command::new("sh").args(["-c", "kill -9 $$"]).spawn();
    let pid = child.unwrap().id();
    assert_eq!(next(None), Event::Killed { pid, signal: 9 });

    // A parent that ends before its child, which waits for us to close its input.
    let mut parent = Command::new("sh")
        .args(["-c", "exec 3<&0; cat <&3 >/dev/null & exit 0"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let input = parent.stdin.take();
    let pid = parent.id();
    assert_eq!(next(None), Event::Exited { pid, code: 0 });
    let left = reap::children();
    let [orphan] = left[..] else {
        panic!("the orphan is not ours: {left:?}");
    };
    drop(input);
    assert_eq!(
        next(None),
        Event::Exited {
            pid: orphan,
            code: 0
        }
    );
    assert_eq!(reap::children(), []);

    let mut kept = Command::new("true").spawn().unwrap();
    assert_eq!(next(Some(kept.id())), Event::Excepted);
    assert!(kept.wait().unwrap().success());
    assert_eq!(reap::next_event(None), None);

    // One that is left alone and stopped does not hide what happens to the others.
    let mut kept = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let handle = muninn_sys::signal::PidFd::open(kept.id() as i32).unwrap();
    handle.send(rustix::process::Signal::STOP).unwrap();
    let start = Instant::now();
    let state = || muninn_sys::proc::status(&muninn_sys::proc::RealProc, kept.id() as i32);
    while state().unwrap().state != b'T' {
        assert!(start.elapsed() < PATIENCE, "it was not stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = Command::new("true").spawn().unwrap().id();
    assert_eq!(next(Some(kept.id())), Event::Exited { pid, code: 0 });
    kept.kill().unwrap();
    assert_eq!(next(Some(kept.id())), Event::Excepted);
    kept.wait().unwrap();

    let mut stopped = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let pid = stopped.id();
    let handle = muninn_sys::signal::PidFd::open(pid as i32).unwrap();
    handle.send(rustix::process::Signal::STOP).unwrap();
    let signal = rustix::process::Signal::STOP.as_raw();
    assert_eq!(next(None), Event::Stopped { pid, signal });
    handle.send(rustix::process::Signal::CONT).unwrap();
    drop(stopped.stdin.take());
    assert_eq!(next(None), Event::Exited { pid, code: 0 });
}
