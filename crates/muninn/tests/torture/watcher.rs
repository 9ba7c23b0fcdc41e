//! The memory of a job as an outsider sees it who looks once a millisecond.

use crate::harness::Run;
use muninn_sys::proc::StatmReader;
use muninn_types::Bytes;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(1);
/// How often new processes are looked for, once there is one.
const FAMILY: Duration = Duration::from_millis(5);

/// All processes below one.
pub fn descendants(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut all = Vec::new();
    for task in tasks.into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in text.split_whitespace().filter_map(|word| word.parse().ok()) {
            all.push(child);
            all.extend(descendants(child));
        }
    }
    all
}

pub fn is_server(pid: i32) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split('\0').any(|word| word == "serve")
}

/// Whether a process is the companion of a program, whose memory is that program's.
pub fn is_companion(pid: i32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.starts_with("muninn-")
}

/// How pages are counted that a child shares with its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// In every process: cheap, and right for a program of one process.
    Private,
    /// Once for all, by the kernel's shares (`Pss_Anon`).
    Shares,
}

/// What was seen of a job's memory.
#[derive(Debug, Default)]
pub struct Seen {
    pub most: Bytes,
    /// The least of two looks in a row: so much was there for longer than a moment.
    pub lasting: Bytes,
    pub looks: usize,
    /// The longest time that there was more than is allowed.
    pub above: Duration,
    /// The longest time between two looks: how long the machine lets one wait who wants to do something now.
    pub late: Duration,
    /// What the runtime said it holds for itself, when there was most.
    pub runtime: Bytes,
}

fn shares(pid: i32) -> Bytes {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("Pss_Anon:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Bytes::kib(number.and_then(|number| number.parse().ok()).unwrap_or(0))
}

/// Looks at all of its processes until the last has ended, or it takes too long.
pub fn watch(run: &Run, count: Count, allowed: Bytes, patience: Duration) -> Seen {
    let root = run.pid() as i32;
    let (start, mut seen, mut before) = (Instant::now(), Seen::default(), Bytes::ZERO);
    // Since when there is more than is allowed, and the last look.
    let (mut above, mut last) = (None, start);
    let mut family: BTreeMap<i32, Option<StatmReader>> = BTreeMap::new();
    let mut looked: Option<Instant> = None;
    let mut job = None;
    while run.is_alive() && start.elapsed() < patience {
        let none = family.values().flatten().next().is_none();
        if none || looked.is_none_or(|at| at.elapsed() >= FAMILY) {
            looked = Some(Instant::now());
            let found = descendants(root);
            family.retain(|pid, _| found.contains(pid) && !is_companion(*pid));
            for pid in found.into_iter().filter(|pid| !is_companion(*pid)) {
                let reader = || (!is_server(pid)).then(|| StatmReader::of(pid).ok());
                family.entry(pid).or_insert_with(|| reader().flatten());
            }
        }
        let now = family.iter().filter_map(|(pid, reader)| {
            let reader = reader.as_ref()?;
            Some(match count {
                Count::Private => reader.read().ok()?.private_resident(),
                Count::Shares => shares(*pid),
            })
        });
        let now = Bytes(now.map(|bytes| bytes.0).sum());
        let look = Instant::now();
        seen.looks += 1;
        seen.late = seen.late.max(look - last);
        last = look;
        above = (now > allowed).then(|| above.unwrap_or(look));
        seen.above = seen
            .above
            .max(above.map_or(Duration::ZERO, |since| look - since));
        seen.lasting = seen.lasting.max(now.min(before));
        before = now;
        if now > seen.most {
            seen.most = now;
            let job = job.get_or_insert_with(|| run.job());
            let own = job.places();
            seen.runtime = Bytes(own.map(|at| at.counters().snapshot().runtime_bytes).sum());
        }
        std::thread::sleep(LOOK);
    }
    seen
}
