//! Whether a program still goes on, on a machine that may have no time for it.
//!
//! A clock alone cannot tell a hang from a busy machine. What a thread ran and what it waited for a
//! processor (`schedstat`) can: a program that wants to run and may not does not hang. Threads of
//! the runtime do not count, they look around for ever.

use muninn_sys::signal::PidFd;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Whatever it does by then, it will not come to an end.
const LONGEST: Duration = Duration::from_secs(600);

/// It has ended. Else it was given `patience`, and then did nothing for a while.
pub fn ends(handle: &PidFd, group: u32, patience: Duration) -> bool {
    // Of each of these it must have run, or wanted to, at least a tenth.
    let window_len = patience / 4;
    let start = Instant::now();
    let mut window = Instant::now();
    let mut before = wanted(group);
    loop {
        if handle.wait_end(Some(Duration::from_secs(1))).unwrap() {
            return true;
        }
        if window.elapsed() < window_len {
            continue;
        }
        let now = wanted(group);
        let spent = now.iter().map(|(task, time)| {
            let known = before.get(task).copied().unwrap_or_default();
            time.saturating_sub(known)
        });
        let idle = spent.sum::<Duration>() < window.elapsed() / 10;
        if idle && start.elapsed() >= patience || start.elapsed() > LONGEST {
            return false;
        }
        (before, window) = (now, Instant::now());
    }
}

/// For each thread of a group, the time that it ran or wanted to.
fn wanted(group: u32) -> HashMap<String, Duration> {
    let mut all = HashMap::new();
    for (process, _) in members(group) {
        let tasks = std::fs::read_dir(process.join("task"));
        for task in tasks.into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name));
            let (Ok(name), Ok(times)) = (read("comm"), read("schedstat")) else {
                continue;
            };
            if name.starts_with("muninn") {
                continue;
            }
            let times = times
                .split(' ')
                .take(2)
                .filter_map(|n| n.parse::<u64>().ok());
            let task = task.file_name().to_string_lossy().into_owned();
            all.insert(task, Duration::from_nanos(times.sum()));
        }
    }
    all
}

/// The folders of a group's processes in `/proc`, with the numbers of their parents.
pub fn members(group: u32) -> Vec<(std::path::PathBuf, String)> {
    let group = group.to_string();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let members = all.filter_map(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split(' ').collect();
        let parent = fields.get(2)?.to_string();
        (fields.get(3) == Some(&group.as_str())).then(|| (process.path(), parent))
    });
    members.collect()
}
