//! Commands that are run by `muninn run` for another command (`profile`, `demo`): this same program,
//! as a child process, with its report read back.

use crate::cmd::run::report::Report;
use crate::embedded::Scratch;
use crate::failure::{Exit, Failure};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::process::{Command, Stdio};

/// What is read of a launcher's complaint.
const COMPLAINT_MAX: u64 = 64 << 10;

/// A command to be run with far memory, again and again.
#[derive(Debug)]
pub struct Launched {
    scratch: Scratch,
    options: Vec<OsString>,
    command: Vec<OsString>,
    env: Vec<(&'static str, &'static str)>,
}

impl Launched {
    /// `options` are those of `muninn run` for every run.
    pub fn new(options: Vec<OsString>, command: Vec<OsString>) -> Result<Launched, Failure> {
        Ok(Launched {
            scratch: Scratch::new()?,
            options,
            command,
            env: Vec::new(),
        })
    }

    /// Sets a variable for the command.
    pub fn env(&mut self, name: &'static str, value: &'static str) {
        self.env.push((name, value));
    }

    /// Runs the command once with this limit, and its output going to `out`. That the program could
    /// not be started, or the library was not loaded, is an error; how the program ended is not.
    pub fn run(&self, local: &str, out: Stdio) -> Result<Report, Failure> {
        let json = self.scratch.path().join("run.json");
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
            .stderr(Stdio::piped());
        let mut child = muninn_sys::child::die_with_parent(&mut command).spawn()?;
        let mut complaint = Vec::new();
        if let Some(mut err) = child.stderr.take() {
            err.by_ref()
                .take(COMPLAINT_MAX)
                .read_to_end(&mut complaint)?;
            // The rest is not kept, but must be taken, or the program would wait.
            std::io::copy(&mut err, &mut std::io::sink())?;
        }
        let status = child.wait()?;
        let text = std::fs::read_to_string(&json).unwrap_or_default();
        match serde_json::from_str::<Report>(&text) {
            Ok(report) if report.processes == 0 => Err(Failure::new(
                Exit::Unsupported,
                format!(
                    "Muninn's library was not loaded by {}, so nothing can be learnt of its memory",
                    name(&self.command)
                ),
            )),
            Ok(report) => Ok(report),
            Err(_) => {
                let complaint = String::from_utf8_lossy(&complaint);
                let complaint = complaint.trim().trim_start_matches("muninn: ");
                let exit = match status.code() {
                    Some(2) => Exit::Usage,
                    Some(3) => Exit::Unreachable,
                    Some(4) => Exit::Unsupported,
                    Some(126) => Exit::CannotExecute,
                    Some(127) => Exit::NotFound,
                    _ => Exit::Failed,
                };
                Err(Failure::new(exit, complaint))
            }
        }
    }
}

/// The last part of the program's path.
pub fn name(command: &[OsString]) -> String {
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let name = std::path::Path::new(program).file_name();
    name.unwrap_or(program).to_string_lossy().into_owned()
}
