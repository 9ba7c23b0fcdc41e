//! Commands that are run by `muninn run` for another command (`profile`, `demo`): this same program,
//! as a child process, with its report read back.
//!
//! A command that asks for it ([`Launched::interruptible`]) survives ctrl-c for as long as it takes
//! to end the program and to clear up.

use crate::cmd::run::report::Report;
use crate::embedded::Scratch;
use crate::failure::{Exit, Failure};
use muninn_sys::signal::{PidFd, Termination, Wish};
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How soon an end, or a wish for it, is noticed.
const LOOK: Duration = Duration::from_millis(20);

/// A command to be run with far memory, again and again.
#[derive(Debug)]
pub struct Launched {
    scratch: Scratch,
    options: Vec<OsString>,
    command: Vec<OsString>,
    env: Vec<(&'static str, &'static str)>,
    termination: Option<Termination>,
    over: Option<Arc<AtomicBool>>,
}

impl Launched {
    /// `options` are those of `muninn run` for every run.
    pub fn new(options: Vec<OsString>, command: Vec<OsString>) -> Result<Launched, Failure> {
        Ok(Launched {
            scratch: Scratch::new()?,
            options,
            command,
            env: Vec::new(),
            termination: None,
            over: None,
        })
    }

    /// Passes SIGINT and SIGTERM on to what runs, and fails then. Before other threads start.
    pub fn interruptible(mut self) -> Result<Launched, Failure> {
        self.termination = Some(Termination::watch().map_err(Failure::failed)?);
        Ok(self)
    }

    /// Ends what runs, and fails, when this is set: for runs in several threads, of which only one hears of
    /// signals.
    pub fn until(mut self, over: Arc<AtomicBool>) -> Launched {
        self.over = Some(over);
        self
    }

    /// Sets a variable for the command.
    pub fn env(&mut self, name: &'static str, value: &'static str) {
        self.env.push((name, value));
    }

    /// Runs the command once with this limit, and its output going to `out`. That the program could
    /// not be started, or the library was not loaded, is an error; how the program ended is not.
    pub fn run(&self, local: &str, out: Stdio) -> Result<Report, Failure> {
        let json = self.scratch.path().join("run.json");
        let complaint = self.scratch.path().join("complaint");
        let _ = std::fs::remove_file(&json);
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["run", "--local", local, "--json"])
            .arg(&json)
            .args(&self.options)
            .arg("--")
            .args(&self.command)
            .envs(self.env.iter().copied())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(File::create(&complaint)?);
        let child = muninn_sys::child::die_with_parent(&mut command).spawn()?;
        let status = self.wait(child)?;
        let text = std::fs::read_to_string(&json).unwrap_or_default();
        match serde_json::from_str::<Report>(&text) {
            Ok(report) if report.processes == 0 => Err(Failure::new(
                Exit::Unsupported,
                format!(
                    "nothing can be learnt of the memory of {}: it ended at once, or Muninn's \
                     library was not loaded into it",
                    name(&self.command)
                ),
            )),
            Ok(report) => Ok(report),
            Err(_) => {
                let complaint = std::fs::read_to_string(&complaint).unwrap_or_default();
                let complaint = complaint.trim().trim_start_matches("muninn: ");
                Err(Failure::new(exit_of(status), complaint))
            }
        }
    }

    fn wait(&self, mut child: Child) -> Result<ExitStatus, Failure> {
        if let Some(over) = &self.over {
            let handle = PidFd::open(child.id() as i32).map_err(Failure::failed)?;
            while !handle.wait_end(Some(LOOK)).map_err(Failure::failed)? {
                if over.load(Ordering::Relaxed) {
                    // It takes its program along.
                    let _ = handle.send(Signal::TERM);
                    let _ = child.wait();
                    return Err(Failure::failed("interrupted; nothing was written"));
                }
            }
            return Ok(child.wait()?);
        }
        let Some(termination) = &self.termination else {
            return Ok(child.wait()?);
        };
        let mut wish = None;
        loop {
            if let Some(status) = child.try_wait()? {
                // What arrived together with its end counts as well.
                return match wish.or_else(|| termination.take()) {
                    Some(_) => Err(Failure::failed("interrupted; nothing was written")),
                    None => Ok(status),
                };
            }
            let arrived = termination.wait(Some(LOOK)).map_err(Failure::failed)?;
            // The terminal has told the program by itself.
            if arrived == Some(Wish::Terminate) {
                let process = PidFd::open(child.id() as i32);
                let _ = process.and_then(|process| process.send(Signal::TERM));
            }
            wish = wish.or(arrived);
        }
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match status.code() {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Unreachable,
        Some(4) => Exit::Unsupported,
        Some(126) => Exit::CannotExecute,
        Some(127) => Exit::NotFound,
        _ => Exit::Failed,
    }
}

/// The last part of the program's path.
pub fn name(command: &[OsString]) -> String {
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let name = std::path::Path::new(program).file_name();
    name.unwrap_or(program).to_string_lossy().into_owned()
}
