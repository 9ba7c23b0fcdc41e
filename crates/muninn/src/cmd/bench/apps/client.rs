//! Clients of a server that is measured: run to their end, within the time that is left.

use super::program::{Faults, Measured};
use crate::cmd::bench::arena::{Arena, End, Running};
use crate::cmd::bench::paging::why;
use crate::failure::Failure;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What went wrong with the program is a result; what went wrong with the bench is a failure.
pub type Step<T> = Result<Result<T, String>, Failure>;

macro_rules! step {
    ($step:expr) => {
        match $step? {
            Ok(value) => value,
            Err(reason) => return Ok(Err(reason)),
        }
    };
}
pub(super) use step;

pub struct Server<'a> {
    pub arena: &'a Arena,
    pub running: &'a Running<'a>,
    pub until: Instant,
}

impl Server<'_> {
    /// Until it answers, as the caller finds out.
    pub fn wait_until_up(&self, mut answers: impl FnMut() -> bool) -> Step<()> {
        while !answers() {
            if !self.running.is_alive() || Instant::now() > self.until {
                return Ok(Err("the server did not start".to_string()));
            }
            self.arena.pause(Duration::from_millis(5))?;
        }
        Ok(Ok(()))
    }

    /// Runs a client to its end; ended with the time that is left.
    pub fn ask(&self, command: &mut Command, input: Option<std::fs::File>) -> Step<String> {
        let out = self.arena.dir().join("client");
        command
            .stdin(input.map_or(Stdio::null(), Stdio::from))
            .stdout(std::fs::File::create(&out)?)
            .stderr(Stdio::null());
        let mut client = muninn_sys::child::die_with_parent(command).spawn()?;
        loop {
            if let Some(status) = client.try_wait()? {
                let said = String::from_utf8_lossy(&std::fs::read(&out)?).into_owned();
                let program = command.get_program().display();
                return Ok(if status.success() {
                    Ok(said)
                } else {
                    Err(format!("{program} ended with {status}"))
                });
            }
            let dead = !self.running.is_alive();
            let interrupted = self.arena.pause(Duration::from_millis(2));
            if dead || interrupted.is_err() || Instant::now() > self.until {
                let _ = client.kill();
                let _ = client.wait();
                interrupted?;
                let why = if dead { "the server ended" } else { "too long" };
                return Ok(Err(why.to_string()));
            }
        }
    }
}

/// Ends the server and says of all results what is known of the whole run.
pub fn finish(
    app: &str,
    running: Running<'_>,
    results: Step<Vec<Measured>>,
) -> Result<Vec<Measured>, Failure> {
    let most = running.most();
    let ran = running.stop()?;
    let mut results = results?.unwrap_or_else(|reason| {
        let mut failed = Measured::new(app);
        failed.failed = Some(format!("{reason}; {}", why(&ran)));
        failed.killed = ran.end == End::Signal(9);
        vec![failed]
    });
    for measured in &mut results {
        measured.most = most;
        measured.faults = Faults::of(&ran);
    }
    Ok(results)
}
