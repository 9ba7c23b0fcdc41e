//! The memory of all of a program's processes, looked at from outside once a millisecond.
//!
//! Counted is what is resident and not of files or shared memory (a mapped pool is not the
//! program's). Of a launcher's processes neither itself nor a memory server counts, and what a program
//! and its companion both have counts once. Known limits:
//! the kernel keeps these numbers by CPU and folds them late, so a sum may be a quarter of a MiB old;
//! a page that a child shares with its parent counts twice; a process that lives for less than
//! [`FAMILY`] may be missed.

use muninn_job::Job;
use muninn_sys::proc::{self, StatmReader};
use muninn_types::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(1);
/// How often new processes are looked for.
const FAMILY: Duration = Duration::from_millis(10);

/// The most of each at one look.
#[derive(Debug, Default)]
struct Seen {
    resident: AtomicU64,
    runtime: AtomicU64,
}

#[derive(Debug)]
pub struct Sampler {
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Watches a process and its descendants; only the descendants of a `launcher`.
    pub fn start(root: i32, launcher: bool) -> Sampler {
        let (seen, stop) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
        let (shared, ended) = (seen.clone(), stop.clone());
        let thread = std::thread::spawn(move || watch(root, launcher, &shared, &ended));
        Sampler {
            seen,
            stop,
            thread: Some(thread),
        }
    }

    /// The most private memory that was resident at one time.
    pub fn most(&self) -> Bytes {
        Bytes(self.seen.resident.load(Ordering::Relaxed))
    }

    /// The most of it that was the runtime's own, by its own account.
    pub fn runtime(&self) -> Bytes {
        Bytes(self.seen.runtime.load(Ordering::Relaxed))
    }

    /// Looks no more; what was seen stays.
    pub fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

fn watch(root: i32, launcher: bool, seen: &Seen, stop: &AtomicBool) {
    // None: one that does not count.
    let mut family: BTreeMap<i32, Option<StatmReader>> = BTreeMap::new();
    let mut job: Option<Job> = None;
    let mut looked: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) {
        if looked.is_none_or(|at| at.elapsed() >= FAMILY) {
            looked = Some(Instant::now());
            if launcher && job.is_none() {
                job = muninn_job::find_by_pid(root as u32);
            }
            if let Some(job) = &job {
                let own = job
                    .places()
                    .map(|place| place.counters().snapshot().runtime_bytes);
                seen.runtime.fetch_max(own.sum(), Ordering::Relaxed);
            }
            let mut found = vec![root];
            descendants(root, &mut found);
            family.retain(|pid, _| found.contains(pid));
            for pid in found {
                if family.contains_key(&pid) {
                    continue;
                }
                let counted = family.iter().filter(|(_, reader)| reader.is_some());
                let again = counted
                    .map(|(known, _)| proc::share_memory(*known as u32, pid as u32))
                    .any(|shared| shared == Some(true));
                let counts = !again && !(launcher && (pid == root || is_server(pid)));
                let reader = counts.then(|| StatmReader::of(pid).ok()).flatten();
                family.insert(pid, reader);
            }
        }
        let now: u64 = family
            .values()
            .flatten()
            .filter_map(|reader| reader.read().ok())
            .map(|memory| memory.private_resident().0)
            .sum();
        seen.resident.fetch_max(now, Ordering::Relaxed);
        std::thread::sleep(LOOK);
    }
}

/// Adds all below a process.
fn descendants(pid: i32, found: &mut Vec<i32>) {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for task in tasks.flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
        {
            if !found.contains(&child) {
                found.push(child);
                descendants(child, found);
            }
        }
    }
}

/// A memory server that a launcher started: `muninn … serve …`.
fn is_server(pid: i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let ours = words
        .next()
        .is_some_and(|program| Path::new(program.as_ref()).file_name() == Some("muninn".as_ref()));
    ours && words.take(4).any(|word| word == "serve")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn memory_of_children_is_seen_and_a_launcher_is_not() {
        // The shell waits for a child that holds 64 MiB until its input ends.
        let script = r#"exec 3<&0; head -c 67108864 /dev/zero |
            { x=$(tr '\0' x); echo held; read line <&3; }"#;
        let run = |launcher: bool| {
            let mut child = Command::new("sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut sampler = Sampler::start(child.id() as i32, launcher);
            let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
            std::io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
            let enough = Instant::now();
            while sampler.most() < Bytes::mib(48) && enough.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(LOOK);
            }
            sampler.end();
            let most = sampler.most();
            let _ = child.stdin.take().unwrap().write_all(b"\n");
            child.wait().unwrap();
            most
        };
        assert!(run(false) >= Bytes::mib(48));
        // The memory is a child's, so it counts all the same.
        assert!(run(true) >= Bytes::mib(48));
    }
}
