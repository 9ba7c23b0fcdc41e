//! The same programs in Java, under stock collectors, with the heap in a memory cgroup over zram.
//!
//! The limit of the group is the share of the heap plus [`OUTSIDE`], which the virtual machine needs
//! besides its heap; so Java is given more local memory than our heap is. Everything that is made
//! here (a swap device, a group, files) is removed again, also when a run fails.

use super::{Args, Pauses, Run, Workload};
use crate::embedded::Scratch;
use crate::failure::{Exit, Failure, Outcome};
use crate::ui::progress;
use muninn_sys::cgroup::Hierarchy;
use muninn_types::{Bytes, Percent};
use std::path::Path;
use std::process::{Command, Output};

const SOURCE: &str = include_str!("../../../../../../bench/java/HeapBench.java");
/// Memory of a virtual machine besides its heap.
const OUTSIDE: Bytes = Bytes::mib(64);
const COLLECTORS: [(&str, &str); 3] = [
    ("java-g1", "-XX:+UseG1GC"),
    ("java-shenandoah", "-XX:+UseShenandoahGC"),
    ("java-parallel", "-XX:+UseParallelGC"),
];
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

/// A zram device in use as swap; gone when dropped.
struct Zram {
    number: u32,
}

impl Zram {
    fn new(size: Bytes) -> Result<Zram, Failure> {
        let add = "/sys/class/zram-control/hot_add";
        let number = std::fs::read_to_string(add).map_err(|e| lacking(format!("{add}: {e}")))?;
        let number = number.trim().parse().map_err(lacking)?;
        let zram = Zram { number };
        let sizes = format!("/sys/block/zram{number}/disksize");
        std::fs::write(&sizes, size.0.to_string()).map_err(|e| lacking(format!("{sizes}: {e}")))?;
        shell("mkswap", &[&zram.device()])?;
        shell("swapon", &["-p", "32767", &zram.device()])?;
        Ok(zram)
    }
    fn device(&self) -> String {
        format!("/dev/zram{}", self.number)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = shell("swapoff", &[&self.device()]);
        let _ = std::fs::write(
            "/sys/class/zram-control/hot_remove",
            self.number.to_string(),
        );
    }
}

pub fn run(args: &Args, workloads: &[Workload], runs: &mut Vec<Run>) -> Outcome {
    let scratch = Scratch::new()?;
    let source = scratch.path().join("HeapBench.java");
    std::fs::write(&source, SOURCE)?;
    let dir = scratch.path().display().to_string();
    shell("javac", &["-d", &dir, &source.display().to_string()])?;
    let _swap = Zram::new(Bytes(args.heap.0 * 4))?;
    let bar = progress(
        (workloads.len() * args.local.len() * COLLECTORS.len()) as u64,
        "running Java",
    );
    for workload in workloads {
        for local in &args.local {
            for collector in COLLECTORS {
                bar.set_message(format!(
                    "{} under {}, {local} local",
                    workload.name(),
                    collector.0
                ));
                runs.push(one(args, *workload, *local, collector, scratch.path())?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn one(
    args: &Args,
    workload: Workload,
    local: Percent,
    (name, flag): (&str, &str),
    dir: &Path,
) -> Result<Run, Failure> {
    let mut run = Run::empty(workload, name, local);
    let hierarchy = Hierarchy::find().map_err(lacking)?;
    let group = format!("muninn-bench-{:x}", muninn_sys::rand::u64());
    let group = hierarchy.create(&group).map_err(lacking)?;
    // With everything local there is no limit but what the heap and the machine around it need.
    let limit = match local.ratio() >= 1.0 {
        true => Bytes(args.heap.0 * 2 + OUTSIDE.0 * 2),
        false => local.of(args.heap) + OUTSIDE,
    };
    group.set_limits(Some(limit), Some(None)).map_err(lacking)?;
    let log = dir.join("gc.log");
    let _ = std::fs::remove_file(&log);
    let heap = args.heap.0 >> 20;
    let command = format!(
        "echo $$ > {procs} && exec timeout {PATIENCE} java {flag} -Xms{heap}m -Xmx{heap}m \
         -Xlog:gc:file={log} -cp {dir} HeapBench {} {}",
        workload.name(),
        args.scale,
        procs = group.path().join("cgroup.procs").display(),
        log = log.display(),
        dir = dir.display(),
    );
    let output = Command::new("sh").args(["-c", &command]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.trim().split_once(' ') {
        Some((sum, seconds)) if output.status.success() => {
            run.checksum = sum.to_string();
            run.seconds = seconds.parse().unwrap_or(f64::NAN);
        }
        _ => {
            run.failed = Some(match output.status.code() {
                Some(124) => format!("not finished within {PATIENCE} s"),
                Some(137) | None => "killed: out of memory".to_string(),
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
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    run.pauses = log.lines().filter_map(pause).collect();
    run.pause_ms = Pauses::of(run.pauses.iter().map(|(_, ms)| *ms).collect());
    run.collections = run.pauses.len() as u64;
    run.full_collections = log
        .lines()
        .filter(|line| line.contains("Pause Full"))
        .count() as u64;
    run.gc_seconds = run.pauses.iter().map(|(_, ms)| ms / 1e3).sum();
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

#[cfg(test)]
mod tests {
    use super::pause;

    #[test]
    fn pauses_are_read_from_the_log() {
        let line = "[0.123s][info][gc] GC(2) Pause Young (Normal) (G1 Evacuation Pause) 24M->4M(160M) 3.456ms";
        assert_eq!(pause(line), Some((0.123, 3.456)));
        assert_eq!(pause("[0.2s][info][gc] Using G1"), None);
        assert_eq!(
            pause("[0.2s][info][gc] GC(3) Concurrent marking 1.2ms"),
            None
        );
    }
}
