//! Slurm, through its own commands.
//!
//! A job of `sbatch --far-memory` is not held but *deferred*: its begin time lies ahead, and is put off as
//! long as it waits for us. That is a dead man's timer: when nobody puts it off any more, Slurm starts
//! the job by itself, with all the memory that was asked for, as it always would. When there is room the
//! job gets its node, the smallest share that it will ever have as its memory, and a begin time that is
//! now. What was asked for stays in the comment that `job_submit.lua` wrote.
//!
//! Slurm's book has the smallest shares, so the sum of those and of other jobs' memory never exceeds a
//! node; what lies between is the agent's to divide.

use crate::coordinator::{Scheduler, Seen, SeenNode};
use crate::ledger::{Request, Start, Wish};
use crate::message::clean_name;
use crate::profiles::{Learned, min_ratio};
use muninn_sys::signal::PidFd;
use muninn_types::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What job_submit.lua begins its comment with.
pub const MARK: &str = "muninn:";
/// Run time of a job whose time limit nobody set.
const RUN_UNKNOWN_S: f64 = 3600.0;
/// A command has so long. Slurm's own tries for minutes to reach a slurmctld that is gone, and meanwhile nobody
/// could ask us anything.
const PATIENCE: Duration = Duration::from_secs(10);
/// Jobs that are put off with one command.
const TOGETHER_MAX: usize = 100;
/// Node names in one expression at most: more is a mistake.
const NAMES_MAX: usize = 65_536;

#[derive(Clone, Debug)]
pub struct Options {
    /// Jobs that wait begin without us after so long.
    pub dead_man: Duration,
}

#[derive(Debug)]
pub struct Slurm {
    options: Options,
    /// When the begin time of a job was put off last.
    kept: BTreeMap<u64, Instant>,
    /// Jobs that wait and are bound to a node all the same: they were to start there, or ran there and were put
    /// into the queue again. With what their users asked for.
    bound: BTreeMap<u64, Request>,
    /// Memory of the largest node, in MiB: Slurm takes no job that wants more.
    largest: u64,
}

impl Slurm {
    pub fn new(options: Options) -> Slurm {
        Slurm {
            options,
            kept: BTreeMap::new(),
            bound: BTreeMap::new(),
            largest: 0,
        }
    }
}

fn output(program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    output_within(PATIENCE, program, arguments)
}

fn output_within(patience: Duration, program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |error: &dyn std::fmt::Display| format!("{program} cannot be run: {error}");
    let child = command.spawn().map_err(|error| failed(&error))?;
    let handle = PidFd::open(child.id() as i32).map_err(|error| failed(&error))?;
    let (done, over) = channel::<()>();
    let watch = std::thread::spawn(move || {
        // It has ended when the other end is dropped.
        let late = over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
        late && handle.kill().is_ok()
    });
    let output = child.wait_with_output();
    drop(done);
    let late = watch.join().unwrap_or(false);
    let output = output.map_err(|error| failed(&error))?;
    if late {
        return Err(format!(
            "{program} did not end within {} s",
            PATIENCE.as_secs()
        ));
    }
    if output.status.success() {
        return Ok(output.stdout);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let line = complaint.lines().find(|line| !line.trim().is_empty());
    Err(format!("{program}: {}", line.unwrap_or("it failed").trim()))
}

fn json(program: &str) -> Result<Value, String> {
    let bytes = output(program, &["--json"])?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{program} --json: {error}"))
}

impl Scheduler for Slurm {
    fn look(&mut self) -> Result<Seen, String> {
        // Nodes first: a job that starts in between is counted twice for a second, and not never.
        let nodes = json("sinfo")?;
        let jobs = json("squeue")?;
        let seen = read(&nodes, &jobs)?;
        let there: Vec<u64> = seen.jobs.iter().map(|(request, _)| request.job).collect();
        self.kept.retain(|job, _| there.contains(job));
        self.bound = bound(&jobs);
        let memory = |node: &Value| number(&node["real_memory"]);
        let list = nodes["nodes"].as_array().into_iter().flatten();
        self.largest = list.filter_map(memory).max().unwrap_or(0);
        Ok(seen)
    }

    fn start(&mut self, start: &Start) -> Result<(), String> {
        let job = format!("JobId={}", start.job);
        let memory = format!("MinMemoryNode={}", start.local.0.div_ceil(1 << 20).max(1));
        let node = format!("ReqNodeList={}", start.node);
        output(
            "scontrol",
            &["update", &job, &memory, &node, "StartTime=now"],
        )?;
        Ok(())
    }

    fn keep(&mut self, jobs: &[u64]) -> Result<(), String> {
        let due = self.options.dead_man / 2;
        let now = Instant::now();
        let early = |job: &&u64| {
            let kept = self.kept.get(job);
            kept.is_none_or(|at| now.saturating_duration_since(*at) >= due)
        };
        let due: Vec<u64> = jobs.iter().filter(early).copied().collect();
        let later = format!("StartTime=now+{}", self.options.dead_man.as_secs().max(1));
        let mut complaint = Ok(());
        // Whoever starts them, they may run wherever they might before, with all that was asked for.
        for (job, request) in self.bound.iter().filter(|(job, _)| jobs.contains(job)) {
            let nodes = format!("ReqNodeList={}", request.nodes.join(","));
            let memory = format!(
                "MinMemoryNode={}",
                (request.memory.0 >> 20).min(self.largest)
            );
            let name = format!("JobId={job}");
            if let Err(why) = output("scontrol", &["update", &name, &nodes, &memory, &later]) {
                complaint = Err(why);
            }
            self.kept.insert(*job, now);
        }
        for some in due.chunks(TOGETHER_MAX) {
            let names: Vec<String> = some.iter().map(u64::to_string).collect();
            let names = format!("JobId={}", names.join(","));
            // One of them may have ended just now; the others are put off all the same.
            if let Err(why) = output("scontrol", &["update", &names, &later]) {
                complaint = Err(why);
            }
            self.kept.extend(some.iter().map(|job| (*job, now)));
        }
        complaint
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// A number as one version of Slurm writes it, or as the next one does.
fn number(value: &Value) -> Option<u64> {
    let plain = value.as_u64().or_else(|| value.as_f64().map(|n| n as u64));
    plain.or_else(|| value["number"].as_u64())
}

fn states(job: &Value, name: &str) -> Vec<String> {
    match &job[name] {
        Value::String(state) => vec![state.to_uppercase()],
        Value::Array(states) => states
            .iter()
            .filter_map(|state| Some(state.as_str()?.to_uppercase()))
            .collect(),
        _ => Vec::new(),
    }
}

/// What `sinfo --json` and `squeue --json` say.
pub fn read(nodes: &Value, jobs: &Value) -> Result<Seen, String> {
    let list = nodes["nodes"]
        .as_array()
        .ok_or("sinfo --json names no nodes")?;
    let jobs = jobs["jobs"]
        .as_array()
        .ok_or("squeue --json names no jobs")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let mut seen = Seen::default();
    let mut others: BTreeMap<String, (u32, Bytes)> = BTreeMap::new();
    for job in jobs {
        let state = states(job, "job_state");
        let is = |wanted: &str| state.iter().any(|state| state == wanted);
        let runs = is("RUNNING") || is("COMPLETING") || is("SUSPENDED") || is("CONFIGURING");
        let there = if runs {
            expand(text(job, "nodes"))
        } else {
            Vec::new()
        };
        match request(job) {
            Some(request) if runs => {
                // It is over, but for what Slurm still has to do: so is what it was promised.
                if !is("COMPLETING") {
                    seen.jobs.push((request, there.first().cloned()));
                }
            }
            // Whoever does not want it to begin yet is not overruled.
            Some(request) if is("PENDING") && begin(job) <= now && !is_held(job) => {
                seen.jobs.push((request, None));
            }
            Some(_) => {}
            None => {
                let share = there.len().max(1) as u32;
                let cores = number(&job["cpus"]).unwrap_or(1) as u32 / share;
                let memory = memory_per_node(job, cores);
                for node in there {
                    let entry = others.entry(node).or_default();
                    entry.0 += cores;
                    entry.1 += memory;
                }
            }
        }
    }
    for node in list {
        let name = text(node, "name").to_string();
        let mut state = states(node, "state");
        state.extend(states(node, "state_flags"));
        let shut = [
            "DOWN",
            "DRAIN",
            "DRAINING",
            "DRAINED",
            "FAIL",
            "NOT_RESPONDING",
            "MAINT",
        ];
        let open = !state.iter().any(|state| shut.contains(&state.as_str()));
        seen.nodes.push(SeenNode {
            cores: number(&node["cpus"]).unwrap_or(0) as u32,
            others: others.remove(&name).unwrap_or_default(),
            open,
            name,
        });
    }
    Ok(seen)
}

/// Jobs that wait and are bound to other nodes than their users wanted.
fn bound(jobs: &Value) -> BTreeMap<u64, Request> {
    let all = jobs["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let waiting = all
        .iter()
        .filter(|job| states(job, "job_state") == ["PENDING"]);
    let moved = waiting.filter_map(|job| {
        let request = request(job)?;
        let is = expand(text(job, "required_nodes"));
        (is != request.nodes).then_some((request.job, request))
    });
    moved.collect()
}

/// When its user wants it to begin at the earliest, in seconds.
fn begin(job: &Value) -> u64 {
    let words = text(job, "admin_comment").split(';');
    let begin = words.filter_map(|word| word.strip_prefix("begin=")).next();
    begin.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn is_held(job: &Value) -> bool {
    number(&job["priority"]) == Some(0) || text(job, "state_reason") == "Dependency"
}

fn memory_per_node(job: &Value, cores: u32) -> Bytes {
    let per_node = number(&job["memory_per_node"]).filter(|mib| *mib > 0 && *mib < 1 << 40);
    let per_cpu = number(&job["memory_per_cpu"]).filter(|mib| *mib > 0 && *mib < 1 << 40);
    let mib = per_node.or_else(|| per_cpu.map(|mib| mib * u64::from(cores)));
    Bytes::mib(mib.unwrap_or(0))
}

/// A job that asked for far memory, by the comment that was written when it was submitted:
/// `muninn:mem=900;far=auto;begin=0;profile=sort;nodes=`.
fn request(job: &Value) -> Option<Request> {
    let comment = text(job, "admin_comment");
    let words = comment.strip_prefix(MARK)?;
    let words: BTreeMap<&str, &str> = words
        .split(';')
        .filter_map(|word| word.split_once('='))
        .collect();
    let memory = Bytes::mib(words.get("mem")?.parse().ok()?);
    let wish = match *words.get("far")? {
        "auto" => Wish::Auto,
        "none" => Wish::None,
        size => Wish::Most(size.parse().ok()?),
    };
    // A profile of which nothing is known, unless the comment says how far it may go.
    let (profile, _) = Learned::default().profile();
    let usual = min_ratio(&profile);
    let ratio: Option<f64> = words.get("ratio").and_then(|text| text.parse().ok());
    let ratio = ratio
        .filter(|ratio| (0.05..=1.0).contains(ratio))
        .unwrap_or(usual);
    let minutes = number(&job["time_limit"]).filter(|minutes| *minutes > 0 && *minutes < 1 << 31);
    let name = words
        .get("profile")
        .copied()
        .filter(|name| !name.is_empty());
    Some(Request {
        job: number(&job["job_id"])?,
        name: clean_name(name.unwrap_or_else(|| text(job, "name"))),
        user: clean_name(text(job, "user_name")),
        uid: number(&job["user_id"]).map_or(u32::MAX, |uid| uid as u32),
        cores: number(&job["cpus"]).unwrap_or(1).clamp(1, 1 << 20) as u32,
        memory,
        floor: Bytes(
            ((memory.0 as f64 * ratio) as u64)
                .max(Bytes::mib(16).0)
                .min(memory.0),
        ),
        wish,
        run_s: minutes.map_or(RUN_UNKNOWN_S, |minutes| minutes as f64 * 60.0),
        nodes: match words.get("nodes") {
            Some(nodes) => expand(nodes),
            // Of a job_submit.lua that did not write them.
            None => expand(text(job, "required_nodes")),
        },
    })
}

/// `n[1-3,7],x` as names.
pub fn expand(expression: &str) -> Vec<String> {
    let (mut names, mut depth, mut word) = (Vec::new(), 0, String::new());
    for c in expression.chars().chain([',']) {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                expand_one(&std::mem::take(&mut word), &mut names);
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    names
}

fn expand_one(word: &str, names: &mut Vec<String>) {
    let Some((head, rest)) = word.split_once('[') else {
        if !word.is_empty() {
            names.push(word.to_string());
        }
        return;
    };
    let Some((ranges, tail)) = rest.split_once(']') else {
        return;
    };
    for range in ranges.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (from.parse::<u64>(), to.parse::<u64>()) else {
            continue;
        };
        for n in first..=last {
            if names.len() >= NAMES_MAX {
                return;
            }
            expand_one(
                &format!("{head}{n:0width$}{tail}", width = from.len()),
                names,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_command_that_never_ends_is_ended() {
        assert_eq!(output("echo", &["said"]).unwrap(), b"said\n");
        let begun = Instant::now();
        let why = output_within(Duration::from_millis(200), "sleep", &["600"]).unwrap_err();
        assert!(why.contains("did not end within"), "{why}");
        assert!(begun.elapsed() < Duration::from_secs(300));
        assert!(output("/nowhere/squeue", &[]).is_err());
    }

    #[test]
    fn nodes_are_named_one_by_one() {
        assert_eq!(expand("n1"), ["n1"]);
        assert_eq!(expand("n[1-3,7],x"), ["n1", "n2", "n3", "n7", "x"]);
        assert_eq!(expand("a[08-10]b"), ["a08b", "a09b", "a10b"]);
        assert_eq!(expand(""), [] as [&str; 0]);
        assert_eq!(expand("r[1-2]n[1-2]"), ["r1n1", "r1n2", "r2n1", "r2n2"]);
    }

    #[test]
    fn jobs_with_far_memory_are_told_from_others() {
        let jobs = json!({ "jobs": [
            { "job_id": 7, "name": "a", "user_name": "u", "job_state": "PENDING", "cpus": 2,
              "admin_comment": "muninn:mem=900;far=auto;ratio=;profile=", "time_limit": 10 },
            { "job_id": 8, "name": "b", "user_name": "u", "job_state": "RUNNING", "cpus": 1, "nodes": "n2",
              "admin_comment": "muninn:mem=600;far=100MiB;ratio=0.4;profile=sort", "time_limit": {"number": 3} },
            { "job_id": 9, "job_state": "RUNNING", "cpus": 2, "nodes": "n[1-2]", "memory_per_node": 300,
              "admin_comment": "something else" },
            { "job_id": 10, "job_state": "COMPLETING", "cpus": 1, "nodes": "n1",
              "admin_comment": "muninn:mem=600;far=none" },
        ]});
        let nodes = json!({ "nodes": [
            { "name": "n1", "cpus": 4, "state": "idle", "state_flags": [] },
            { "name": "n2", "cpus": 4, "state": "mixed", "state_flags": ["DRAIN"] },
        ]});
        let seen = read(&nodes, &jobs).unwrap();
        assert_eq!(seen.jobs.len(), 2);
        let (first, node) = &seen.jobs[0];
        assert_eq!((first.job, first.memory, node), (7, Bytes::mib(900), &None));
        assert_eq!((first.name.as_str(), first.run_s), ("a", 600.0));
        let (second, node) = &seen.jobs[1];
        assert_eq!(
            (second.name.as_str(), node.as_deref()),
            ("sort", Some("n2"))
        );
        assert_eq!(second.floor, Bytes::mib(240));
        assert_eq!(second.need().floor, Bytes::mib(500));
        let open: Vec<bool> = seen.nodes.iter().map(|node| node.open).collect();
        assert_eq!(open, [true, false]);
        assert_eq!(seen.nodes[0].others, (1, Bytes::mib(300)));
    }

    #[test]
    fn a_job_that_is_queued_again_wants_what_its_user_wanted() {
        let job = |required: &str, state: &str| {
            json!({ "jobs": [{
                "job_id": 7, "job_state": state, "cpus": 1, "required_nodes": required,
                "admin_comment": "muninn:mem=900;far=auto;begin=0;profile=x;nodes=n[1-2]",
            }]})
        };
        let nodes = json!({ "nodes": [] });
        let seen = read(&nodes, &job("n1", "PENDING")).unwrap();
        assert_eq!(seen.jobs[0].0.nodes, ["n1", "n2"]);
        assert!(bound(&job("n1", "PENDING")).contains_key(&7));
        assert!(
            bound(&job("n[1-2]", "PENDING")).is_empty(),
            "it may run at both"
        );
        assert!(bound(&job("n1", "RUNNING")).is_empty());
    }

    proptest! {
        #[test]
        fn no_comment_and_no_name_makes_it_stumble(comment in ".{0,60}", nodes in "[n0-9\\[\\],-]{0,20}") {
            let job = json!({ "job_id": 1, "job_state": "RUNNING", "nodes": nodes,
                              "admin_comment": format!("{MARK}{comment}") });
            let _ = read(&json!({ "nodes": [] }), &json!({ "jobs": [job] }));
            let _ = expand(&comment);
        }
    }
}
