//! Waiting for children, and for those whom their parents left behind.
//!
//! A launcher adopts all descendants of what it starts ([`adopt_orphans`]), so that it can wait for
//! every one of them. Invariant: children that belong to somebody else in this process (a server
//! with a handle of its own) are never reaped here, since the handle would then name whoever gets
//! the number next: they are looked at first, and left.
//!
//! Known limit: [`children`] asks `/proc` about every process; it is for the end of a program, not
//! for every moment.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// What happened to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It ended by itself.
    Exited { pid: u32, code: i32 },
    /// A signal ended it.
    Killed { pid: u32, signal: i32 },
    /// A signal stopped it, for now.
    Stopped { pid: u32, signal: i32 },
    /// Something happened to the one that was to be left alone; ask its handle.
    Excepted,
}

/// From now on, processes whose parents have ended become children of this one.
pub fn adopt_orphans() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// The next thing that happened to any child, without waiting; `None` when nothing has. That the
/// excepted one was stopped is passed over.
pub fn next_event(except: Option<u32>) -> Option<Event> {
    let pid = loop {
        let (pid, stopped) = look(libc::P_ALL, 0, libc::WNOWAIT)?;
        match except == Some(pid) {
            false => break pid as libc::pid_t,
            // Taken note of, or it would stand before all others for as long as it is stopped.
            true if stopped => _ = look(libc::P_PID, pid, 0),
            true => return Some(Event::Excepted),
        }
    };
    let mut status = 0;
    // SAFETY: `status` is ours, and the child is ours to reap.
    let reaped = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::WUNTRACED) };
    if reaped != pid {
        return None;
    }
    let pid = pid as u32;
    Some(if libc::WIFEXITED(status) {
        let code = libc::WEXITSTATUS(status);
        Event::Exited { pid, code }
    } else if libc::WIFSTOPPED(status) {
        let signal = libc::WSTOPSIG(status);
        Event::Stopped { pid, signal }
    } else {
        let signal = libc::WTERMSIG(status);
        Event::Killed { pid, signal }
    })
}

/// A child to which something happened, and whether it was stopped.
fn look(of: libc::idtype_t, id: u32, keep: libc::c_int) -> Option<(u32, bool)> {
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let ended = if keep == 0 { 0 } else { libc::WEXITED };
        let options = ended | libc::WSTOPPED | libc::WNOHANG | keep;
        // SAFETY: `info` is ours; the call fills it or leaves the zeros, which are a value of it.
        let (done, info) = unsafe {
            let done = libc::waitid(of, id, info.as_mut_ptr(), options);
            (done, info.assume_init())
        };
        // SAFETY: a record of `waitid` holds the number of a child, or 0 when nothing happened.
        match (done, unsafe { info.si_pid() }) {
            (0, 0) => return None,
            (0, pid) => {
                let stopped = matches!(info.si_code, libc::CLD_STOPPED | libc::CLD_TRAPPED);
                return Some((pid as u32, stopped));
            }
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            // No children.
            _ => return None,
        }
    }
}

/// Children of this process that are alive or wait to be reaped.
pub fn children() -> Vec<u32> {
    let own = std::process::id();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.parse::<u32>().ok()
    });
    pids.filter(|&pid| parent_of(pid) == Some(own)).collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // `PID (NAME) STATE PPID …`; the name may hold anything, the last `)` ends it.
    let end = text.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(&text[end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// All who descend from this process, as far as that can be seen.
pub fn descendants() -> Vec<u32> {
    /// More than a machine has; the list may change while it is made.
    const MANY: usize = 1 << 20;
    let mut all = Vec::new();
    let mut next = Some(std::process::id());
    let mut done = 0;
    while let Some(pid) = next {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(
                text.split_ascii_whitespace()
                    .filter_map(|word| word.parse::<u32>().ok()),
            );
        }
        next = all.get(done).copied().filter(|_| done < MANY);
        done += 1;
    }
    all
}

/// Whether a process is this one or descends from it.
pub fn is_descendant(pid: u32) -> bool {
    /// Far more generations than anybody has.
    const GENERATIONS: usize = 4096;
    let own = std::process::id();
    let line = std::iter::successors(Some(pid), |&pid| parent_of(pid));
    line.take(GENERATIONS).any(|ancestor| ancestor == own)
}

/// Processor time of all children that have ended and were waited for: user, system.
pub fn children_cpu_time() -> (Duration, Duration) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is ours; the call fills it or leaves the zeros, which are a value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    (time(usage.ru_utime), time(usage.ru_stime))
}

/// Stops this process, as ctrl-z does, until somebody continues it.
pub fn stop_self() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
}
