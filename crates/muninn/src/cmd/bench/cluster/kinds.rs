//! The programs of the queue: what each comes to by itself, what it needs, and how it bears far memory.

use super::Args;
use crate::cmd::bench::apps;
use crate::cmd::bench::arena::{Arena, Skipped};
use crate::cmd::profile::{Measured, Runs};
use crate::failure::Failure;
use crate::launched::Launched;
use crate::ui::Progress;
use muninn_policy::profile::catalogue::{self, JobKind, Size};
use muninn_sys::cgroup::{CpuCgroup, Hierarchy};
use muninn_types::{Bytes, Percent};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A job asks for so much beside its peak: the pager starts its work a little before the limit.
pub const HEADROOM: Bytes = Bytes::mib(16);
/// Each program wants so much less than the one before it.
const LESS: f64 = 0.85;
/// How often ctrl-c is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// A program by itself on a machine without much else to do.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that is ready.
pub struct Prepared {
    name: &'static str,
    script: PathBuf,
    result: String,
}

/// A program of which everything is known.
#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    /// Takes the job's folder, its CPU group, and the prefix of the nodes' memory groups.
    pub script: PathBuf,
    /// What it comes to by itself.
    pub result: String,
    pub memory_mib: u64,
    /// As `muninn profile` writes it.
    pub profile: String,
    pub job: JobKind,
}

impl Kind {
    /// Run time with all memory near.
    pub fn alone_s(&self) -> f64 {
        self.job.profile.full_s()
    }
}

/// A job's own words around those of its program. Where it is, and in which groups, are its arguments.
fn script(program: &str) -> String {
    format!(
        r#"#!/bin/sh
PLACE=$1; export PLACE
echo $$ > "$2/cgroup.procs" || exit 90
if [ -n "$3" ]; then echo $$ > "$3$SLURMD_NODENAME/cgroup.procs" || exit 91; fi
echo "$SLURMD_NODENAME" > "$PLACE/node"
date +%s.%N > "$PLACE/begun"
{{
{program}
}} > "$PLACE/result" 2> "$PLACE/errors"
code=$?
echo "$code $(date +%s.%N)" > "$PLACE/over" && mv "$PLACE/over" "$PLACE/ended"
exit $code
"#
    )
}

/// Makes what the programs work on, and runs each once by itself. Also those that cannot be run here.
pub fn prepare(
    arena: &Arena,
    args: &Args,
    bar: &Progress,
) -> Result<(Vec<Prepared>, Vec<Skipped>), Failure> {
    let (mut prepared, mut without) = (Vec::new(), Vec::new());
    let mut size = args.size;
    for name in &args.programs {
        bar.set_message(format!("{name}: getting ready"));
        let Some(mut program) = apps::known(name) else {
            return Err(Failure::usage(format!("there is no program '{name}' here")));
        };
        let ready = program.prepare(arena, size).and_then(|()| {
            let lines = program.script();
            lines.ok_or_else(|| "it cannot be a job of a queue".to_string())
        });
        bar.inc(1);
        size = Bytes((size.0 as f64 * LESS) as u64);
        let lines = match ready {
            Ok(lines) => lines,
            Err(reason) => {
                eprintln!("bench cluster: without {name}: {reason}");
                without.push(Skipped {
                    what: name.clone(),
                    reason,
                });
                bar.inc(1 + args.local.len() as u64);
                continue;
            }
        };
        let path = arena.dir().join(format!("{name}.sh"));
        std::fs::write(&path, script(&lines))?;
        let name = program.name();
        let result = by_itself(arena, name, &path)?;
        prepared.push(Prepared {
            name,
            script: path,
            result,
        });
    }
    match prepared.is_empty() {
        true => Err(Failure::failed("none of the programs can be run here")),
        false => Ok((prepared, without)),
    }
}

/// Its result with all memory and all of a core.
fn by_itself(arena: &Arena, name: &str, script: &Path) -> Result<String, Failure> {
    let place = arena.dir().join(format!("{name}.alone"));
    std::fs::create_dir(&place)?;
    // No group: a folder of its own stands for it.
    let mut command = Command::new("sh");
    command
        .arg(script)
        .arg(&place)
        .arg(&place)
        .arg("")
        .stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = muninn_sys::child::die_with_parent(&mut command).spawn()?;
    let ends = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(failure) = arena.pause(LOOK) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failure);
        }
        if Instant::now() > ends {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::failed(format!(
                "{name} by itself takes too long: use a smaller --size"
            )));
        }
    };
    let result = result_in(&place);
    match result.filter(|_| status.success()) {
        Some(result) => Ok(result),
        None => {
            let errors = std::fs::read_to_string(place.join("errors")).unwrap_or_default();
            let why = format!("{name} by itself ends with {status}: {}", errors.trim());
            Err(Failure::failed(why))
        }
    }
}

/// What a job printed, on one line.
pub fn result_in(place: &Path) -> Option<String> {
    let text = std::fs::read_to_string(place.join("result")).ok()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The profile of each, all programs at the same time, each on a core of the rack.
pub fn measure(
    arena: &Arena,
    cpu: &Hierarchy,
    core_share: f64,
    args: &Args,
    prepared: Vec<Prepared>,
    bar: &Progress,
) -> Result<Vec<Kind>, Failure> {
    let mut ratios = args.local.clone();
    ratios.sort_by(|a, b| b.cmp(a));
    ratios.dedup();
    bar.set_message("profiles");
    let (send, results) = channel();
    let over = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for (number, one) in prepared.into_iter().enumerate() {
        let group = format!("muninn-bench-{}-p{number}", std::process::id());
        let group = CpuCgroup::create(cpu, &group, core_share).map_err(Failure::failed)?;
        let place = arena.dir().join(format!("p{number}"));
        std::fs::create_dir(&place)?;
        let (ratios, bar, send) = (ratios.clone(), bar.clone(), send.clone());
        let over = over.clone();
        threads.push(std::thread::spawn(move || {
            let kind = profile(one, &group, &place, ratios, &bar, over);
            let _ = send.send((number, kind));
        }));
    }
    drop(send);
    let mut kinds: Vec<(usize, Kind)> = Vec::new();
    let mut failed = None;
    loop {
        match results.recv_timeout(LOOK) {
            Ok((number, Ok(kind))) => kinds.push((number, kind)),
            Ok((_, Err(failure))) => failed = failed.or(Some(failure)),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if let Err(failure) = arena.check_interrupt() {
                    failed = failed.or(Some(failure));
                }
            }
        }
        // The others end after the run that they are at.
        over.store(failed.is_some(), Relaxed);
    }
    threads.into_iter().for_each(|thread| drop(thread.join()));
    if let Some(failure) = failed {
        return Err(failure);
    }
    kinds.sort_by_key(|(number, _)| *number);
    Ok(kinds.into_iter().map(|(_, kind)| kind).collect())
}

fn profile(
    one: Prepared,
    group: &CpuCgroup,
    place: &Path,
    ratios: Vec<Percent>,
    bar: &Progress,
    over: Arc<AtomicBool>,
) -> Result<Kind, Failure> {
    let words = [
        "sh".into(),
        one.script.clone(),
        place.into(),
        group.path(),
        "".into(),
    ];
    let command: Vec<OsString> = words.map(PathBuf::into_os_string).to_vec();
    let launched = Launched::new(Vec::new(), command.clone())?.until(over);
    let runs = Runs {
        launched: &launched,
        command: &command,
        name: one.name.to_string(),
        ratios,
        repeat: 1,
        headroom: HEADROOM,
        cores: Some(1),
    };
    let mut measured: Measured = runs.measure(&|_| {}, &|| bar.inc(1))?;
    let found = result_in(place);
    if found.as_ref() != Some(&one.result) {
        return Err(Failure::failed(format!(
            "{} on far memory came to '{}' and not to '{}'",
            one.name,
            found.unwrap_or_default(),
            one.result
        )));
    }
    // Slurm counts whole MiB.
    let memory_mib = measured.peak.0.div_ceil(1 << 20);
    measured.peak = Bytes::mib(memory_mib);
    let profile = measured.toml()?;
    let job = catalogue::parse(&profile, Size::Rack)
        .map_err(Failure::failed)?
        .remove(0);
    Ok(Kind {
        name: one.name,
        script: one.script,
        result: one.result,
        memory_mib,
        profile,
        job,
    })
}
