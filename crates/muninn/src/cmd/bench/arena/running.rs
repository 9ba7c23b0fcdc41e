//! One program on one backend, from its start to its end.

use super::{Arena, Sampler, interrupted};
use crate::failure::Failure;
use muninn_sys::cgroup::MemoryCgroup;
use muninn_sys::signal::PidFd;
use muninn_sys::swap::SwapOn;
use muninn_types::Bytes;
use rustix::process::{Pid, Signal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often Ctrl-C is looked for while a program runs.
const LOOK: Duration = Duration::from_millis(50);
/// What a program may take to end when asked.
const FAREWELL: Duration = Duration::from_secs(20);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Code(i32),
    /// The kernel's, when memory is short, is 9.
    Signal(i32),
    TooLong,
}

impl End {
    pub fn is_good(self) -> bool {
        self == End::Code(0)
    }

    /// For a cell of a table; empty where all is well.
    pub fn remark(self) -> String {
        match self {
            End::Code(0) => String::new(),
            End::Code(code) => format!("exit code {code}"),
            End::Signal(9) => "killed (out of memory)".to_string(),
            End::Signal(signal) => format!("signal {signal}"),
            End::TooLong => "too long".to_string(),
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Ran {
    pub end: End,
    pub seconds: f64,
    pub out: String,
    pub err: String,
    /// The most private memory that was resident at one time, in all processes together.
    pub most: Bytes,
    /// How far that was above the limit.
    pub over_limit: Bytes,
    /// What of it was the runtime's own, by its own account.
    pub runtime: Bytes,
    /// What `muninn run --json` wrote.
    pub stats: Option<serde_json::Value>,
    /// Faults that waited for a page, by the kernel's count, where the program had a group of its own.
    pub major_faults: Option<u64>,
}

impl Ran {
    /// A counter of the runtime, wherever in the statistics it stands.
    pub fn counter(&self, name: &str) -> Option<f64> {
        find(self.stats.as_ref()?, name)
    }
}

fn find(value: &serde_json::Value, name: &str) -> Option<f64> {
    match value {
        serde_json::Value::Object(map) => map
            .get(name)
            .and_then(serde_json::Value::as_f64)
            .or_else(|| map.values().find_map(|value| find(value, name))),
        _ => None,
    }
}

/// A program that runs. Ended with all it started when dropped.
#[derive(Debug)]
pub struct Running<'a> {
    arena: &'a Arena,
    child: Child,
    handle: PidFd,
    started: Instant,
    limit: Bytes,
    patience: Duration,
    sampler: Option<Sampler>,
    stats: PathBuf,
    out: PathBuf,
    err: PathBuf,
    /// Gone in this order: the group first, then what its pages were swapped to.
    _group: Option<MemoryCgroup>,
    _swap: Option<SwapOn>,
    ended: bool,
}

impl<'a> Running<'a> {
    pub(super) fn spawn(
        mut command: Command,
        arena: &'a Arena,
        launched: bool,
        limit: Bytes,
        patience: Duration,
        stats: PathBuf,
        (group, swap): (Option<MemoryCgroup>, Option<SwapOn>),
    ) -> Result<Running<'a>, Failure> {
        let (out, err) = (arena.dir().join("out"), arena.dir().join("err"));
        // A group of its own, so that all of it can be ended, and Ctrl-C reaches only us.
        command
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out)?)
            .stderr(std::fs::File::create(&err)?)
            .process_group(0);
        let started = Instant::now();
        let child = muninn_sys::child::die_with_parent(&mut command)
            .spawn()
            .map_err(|error| {
                let program = command.get_program().to_string_lossy();
                Failure::failed(format!("cannot start {program}: {error}"))
            })?;
        let handle = PidFd::open(child.id() as i32).map_err(Failure::failed)?;
        let sampler = Sampler::start(child.id() as i32, launched);
        Ok(Running {
            arena,
            child,
            handle,
            started,
            limit,
            patience,
            sampler: Some(sampler),
            stats,
            out,
            err,
            _group: group,
            _swap: swap,
            ended: false,
        })
    }

    /// What it has printed on standard error so far.
    pub fn words(&self) -> String {
        text(&self.err)
    }

    pub fn is_alive(&self) -> bool {
        self.handle.is_alive()
    }

    /// The most memory that was resident so far.
    pub fn most(&self) -> Bytes {
        self.sampler.as_ref().map_or(Bytes::ZERO, Sampler::most)
    }

    /// Until it ends by itself, or has taken too long.
    pub fn wait(self) -> Result<Ran, Failure> {
        loop {
            self.arena.check_interrupt()?;
            let left = self.patience.saturating_sub(self.started.elapsed());
            let ended = self
                .handle
                .wait_end(Some(left.min(LOOK)))
                .map_err(Failure::failed)?;
            if ended {
                return self.finish(false);
            }
            if left.is_zero() {
                return self.finish(true);
            }
        }
    }

    /// Asks it to end, and waits.
    pub fn stop(self) -> Result<Ran, Failure> {
        let _ = self.handle.send(Signal::TERM);
        let asked = Instant::now();
        while !self.handle.wait_end(Some(LOOK)).map_err(Failure::failed)? {
            self.arena.check_interrupt()?;
            if asked.elapsed() > FAREWELL {
                return self.finish(true);
            }
        }
        self.finish(false)
    }

    fn finish(mut self, too_long: bool) -> Result<Ran, Failure> {
        let seconds = self.started.elapsed().as_secs_f64();
        let (most, runtime) = match self.sampler.take() {
            Some(mut sampler) => {
                sampler.end();
                (sampler.most(), sampler.runtime())
            }
            None => (Bytes::ZERO, Bytes::ZERO),
        };
        let status = self.end_all()?;
        let end = match status.code() {
            _ if too_long => End::TooLong,
            Some(code) => code_of(code),
            None => End::Signal(status.signal().unwrap_or(0)),
        };
        let stats = std::fs::read_to_string(&self.stats).ok();
        Ok(Ran {
            end,
            seconds,
            out: text(&self.out),
            err: text(&self.err),
            most,
            over_limit: most.saturating_sub(self.limit),
            runtime,
            stats: stats.and_then(|text| serde_json::from_str(&text).ok()),
            major_faults: self
                ._group
                .as_ref()
                .and_then(|group| group.major_faults().ok()),
        })
    }

    fn end_all(&mut self) -> Result<ExitStatus, Failure> {
        self.ended = true;
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            // Whoever is left of it: nobody, after an ordinary end.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        Ok(self.child.wait()?)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        drop(self.sampler.take());
        if !self.ended {
            let _ = self.end_all();
        }
    }
}

/// A launcher says by its code what signal ended the program, as a shell does.
fn code_of(code: i32) -> End {
    if code > 128 {
        End::Signal(code - 128)
    } else {
        End::Code(code)
    }
}

fn text(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Arena {
    /// Waits, and fails when somebody asks us to end meanwhile.
    pub fn pause(&self, time: Duration) -> Result<(), Failure> {
        match self.termination.wait(Some(time)).map_err(Failure::failed)? {
            Some(_) => Err(interrupted()),
            None => Ok(()),
        }
    }
}
