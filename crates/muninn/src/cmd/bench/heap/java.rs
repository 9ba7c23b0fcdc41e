//! The same programs in Java, under stock collectors, with the heap in a memory cgroup over zram.
//!
//! The limit of the group is the share of the heap, plus what a virtual machine with this collector
//! was seen to need for itself when it ran no program at all, plus [`MARGIN`]. Everything that is made
//! here (a swap device, a group, files) is removed again, also when a run fails.

use super::{Args, Pauses, Run, Workload, best};
use crate::embedded::Scratch;
use crate::failure::{Exit, Failure, Outcome};
use crate::ui::progress;
use muninn_sys::cgroup::Hierarchy;
use muninn_sys::swap::{SwapArea, Zram};
use muninn_types::{Bytes, Percent};
use std::path::Path;
use std::process::{Command, Output};

const SOURCE: &str = include_str!("../../../../../../bench/java/HeapBench.java");
/// Memory that a virtual machine needs besides its heap as soon as it compiles a program.
const MARGIN: Bytes = Bytes::mib(16);
const COLLECTORS: [(&str, &str); 3] = [
    ("java-g1", "-XX:+UseG1GC"),
    ("java-shenandoah", "-XX:+UseShenandoahGC"),
    ("java-parallel", "-XX:+UseParallelGC"),
];
/// A group in which everything is in use all the time is now and then taken for one that is out of
/// memory, though there is swap left; so often it is tried again.
const TRIES: u32 = 3;
/// A run that thrashes longer than this is given up, and said to be.
const PATIENCE: &str = "120";

fn lacking(what: impl std::fmt::Display) -> Failure {
    Failure::new(
        Exit::Unsupported,
        format!("--java: {what}; it needs root, a JDK (javac, java), zram and a memory cgroup"),
    )
}

fn shell(program: &str, args: &[&str]) -> Result<Output, Failure> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|e| lacking(format!("{program} cannot be run: {e}")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(lacking(format!("{program} failed: {text}")));
    }
    Ok(output)
}

pub fn run(args: &Args, workloads: &[Workload], runs: &mut Vec<Run>) -> Outcome {
    let scratch = Scratch::new()?;
    let source = scratch.path().join("HeapBench.java");
    std::fs::write(&source, SOURCE)?;
    let dir = scratch.path().display().to_string();
    shell("javac", &["-d", &dir, &source.display().to_string()])?;
    let heaps = workloads.iter().map(|workload| args.heap_of(*workload).0);
    let swap = Bytes(heaps.max().unwrap_or(0) * 4);
    let swap = Zram::create(swap, None).map_err(lacking)?;
    let _on = swap.on().map_err(lacking)?;
    let bar = progress(
        (workloads.len() * args.local.len() * COLLECTORS.len()) as u64,
        "running Java",
    );
    let machines: Vec<Machine> = COLLECTORS
        .into_iter()
        .map(|(name, flag)| Machine::new(name, flag, scratch.path()))
        .collect::<Result<_, _>>()?;
    for workload in workloads {
        for local in &args.local {
            for machine in &machines {
                bar.set_message(format!(
                    "{} under {}, {local} local",
                    workload.name(),
                    machine.name
                ));
                let run = || one(args, *workload, *local, machine);
                runs.push(best(args.best_of, run)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// A virtual machine with one of its collectors.
struct Machine<'a> {
    name: &'static str,
    flag: &'static str,
    dir: &'a Path,
    /// What it needs for itself.
    own: Bytes,
}

/// What a process of a limited group did.
struct Ran {
    output: Output,
    peak: Bytes,
    /// Counted by the group, so what the virtual machine itself swaps is in it too.
    faults: u64,
}

impl Ran {
    /// By a signal that nobody can catch, or with the code that `timeout` makes of it.
    fn was_killed(&self) -> bool {
        matches!(self.output.status.code(), Some(137) | None)
    }
}

impl<'a> Machine<'a> {
    fn new(name: &'static str, flag: &'static str, dir: &'a Path) -> Result<Machine<'a>, Failure> {
        let own = Bytes::ZERO;
        let machine = Machine {
            name,
            flag,
            dir,
            own,
        };
        let ran = machine.run("nothing", 1.0, Bytes::mib(64), None)?;
        if !ran.output.status.success() {
            return Err(lacking(format!("java {flag} does not start")));
        }
        Ok(Machine {
            own: ran.peak,
            ..machine
        })
    }

    fn log(&self) -> std::path::PathBuf {
        self.dir.join("gc.log")
    }

    /// Runs a program in a group of its own.
    fn run(
        &self,
        workload: &str,
        scale: f64,
        heap: Bytes,
        limit: Option<Bytes>,
    ) -> Result<Ran, Failure> {
        let hierarchy = Hierarchy::find().map_err(lacking)?;
        let group = format!("muninn-bench-{:x}", muninn_sys::rand::u64());
        let group = hierarchy.create(&group).map_err(lacking)?;
        group.set_limits(limit, Some(None)).map_err(lacking)?;
        let _ = std::fs::remove_file(self.log());
        let heap = heap.0 >> 20;
        let command = format!(
            "echo $$ > {procs} && exec timeout {PATIENCE} java {flag} -Xms{heap}m -Xmx{heap}m \
             -Xlog:gc:file={log} -cp {dir} HeapBench {workload} {scale}",
            procs = group.path().join("cgroup.procs").display(),
            flag = self.flag,
            log = self.log().display(),
            dir = self.dir.display(),
        );
        let output = Command::new("sh").args(["-c", &command]).output()?;
        let stat = std::fs::read_to_string(group.path().join("memory.stat")).unwrap_or_default();
        let faults = stat
            .lines()
            .find_map(|line| line.strip_prefix("pgmajfault ")?.trim().parse().ok());
        Ok(Ran {
            output,
            peak: group.peak().map_err(lacking)?,
            faults: faults.unwrap_or(0),
        })
    }
}

fn one(
    args: &Args,
    workload: Workload,
    local: Percent,
    machine: &Machine<'_>,
) -> Result<Run, Failure> {
    let mut run = Run::empty(workload, machine.name, local);
    let heap = args.heap_of(workload);
    run.heap_bytes = heap.0;
    // With everything local there is no limit.
    let limit = (local.ratio() < 1.0).then(|| local.of(heap) + machine.own + MARGIN);
    let mut ran = machine.run(workload.name(), args.scale, heap, limit)?;
    for _ in 1..TRIES {
        if ran.was_killed() {
            ran = machine.run(workload.name(), args.scale, heap, limit)?;
        }
    }
    let was_killed = ran.was_killed();
    run.faults = ran.faults;
    let output = ran.output;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.trim().split_once(' ') {
        Some((sum, seconds)) if output.status.success() => {
            run.checksum = sum.to_string();
            run.seconds = seconds.parse().unwrap_or(f64::NAN);
        }
        _ => {
            run.failed = Some(match output.status.code() {
                Some(124) => format!("not finished within {PATIENCE} s"),
                _ if was_killed => format!("out of memory: killed, {TRIES} times"),
                _ => {
                    let why = String::from_utf8_lossy(&output.stderr).into_owned() + &text;
                    let last = why
                        .lines()
                        .find(|line| line.contains("Error"))
                        .unwrap_or("failed");
                    last.trim().to_string()
                }
            });
            return Ok(run);
        }
    }
    let log = std::fs::read_to_string(machine.log()).unwrap_or_default();
    run.pauses = log.lines().filter_map(pause).collect();
    run.footprints = log.lines().filter_map(footprint).collect();
    let mean = |of: fn(&(f64, f64, f64)) -> f64| {
        run.footprints.iter().map(of).sum::<f64>() / run.footprints.len().max(1) as f64
    };
    (run.footprint_before_mib, run.footprint_after_mib) = (mean(|f| f.1), mean(|f| f.2));
    run.pause_ms = Pauses::of(run.pauses.iter().map(|(_, ms)| *ms).collect());
    run.collections = run.pauses.len() as u64;
    run.full_collections = log
        .lines()
        .filter(|line| line.contains("Pause Full"))
        .count() as u64;
    run.gc_seconds = run.pauses.iter().fold(0.0, |sum, (_, ms)| sum + ms / 1e3);
    run.mutator_seconds = run.seconds - run.gc_seconds;
    Ok(run)
}

/// `[1.234s][info][gc] GC(3) Pause Young (Normal) … 3.456ms`: when, and how long.
fn pause(line: &str) -> Option<(f64, f64)> {
    if !line.contains("Pause") {
        return None;
    }
    let at = line.strip_prefix('[')?.split_once("s]")?.0.parse().ok()?;
    let length = line
        .trim_end()
        .strip_suffix("ms")?
        .rsplit(' ')
        .next()?
        .parse()
        .ok()?;
    Some((at, length))
}

/// `[1.234s][info][gc] GC(3) … 24M->4M(160M) 3.456ms`: when, MiB before, MiB after.
fn footprint(line: &str) -> Option<(f64, f64, f64)> {
    let at = line.strip_prefix('[')?.split_once("s]")?.0.parse().ok()?;
    let (before, after) = line.split_once("M->")?;
    let before = before.rsplit(' ').next()?.parse().ok()?;
    let after = after.split_once("M(")?.0.parse().ok()?;
    Some((at, before, after))
}

#[cfg(test)]
mod tests {
    use super::{footprint, pause};

    #[test]
    fn pauses_are_read_from_the_log() {
        let line = "[0.123s][info][gc] GC(2) Pause Young (Normal) (G1 Evacuation Pause) 24M->4M(160M) 3.456ms";
        assert_eq!(pause(line), Some((0.123, 3.456)));
        assert_eq!(footprint(line), Some((0.123, 24.0, 4.0)));
        assert_eq!(footprint("[0.2s][info][gc] Using G1"), None);
        assert_eq!(pause("[0.2s][info][gc] Using G1"), None);
        assert_eq!(
            pause("[0.2s][info][gc] GC(3) Concurrent marking 1.2ms"),
            None
        );
    }
}
