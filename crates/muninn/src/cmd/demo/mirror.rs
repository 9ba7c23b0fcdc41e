//! The demo's end: a program whose far pages are kept twice, and a server killed in the middle of it.
//!
//! Three servers, two copies of every page. When pages are at the servers, the one that holds most is
//! killed without warning. The program must end well, with the same result as with all memory local.

use super::program::{Program, command, digest};
use crate::embedded::{EmbeddedServer, Scratch};
use crate::failure::{Exit, Failure};
use crate::launched::Launched;
use crate::ui::progress;
use muninn_net::{Observer, SessionOptions};
use muninn_types::{Bytes, format_duration};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

/// What must be far before a server is killed.
const FAR: Bytes = Bytes::mib(8);
/// How often servers are asked what they hold.
const LOOK: Duration = Duration::from_millis(20);

/// What happened, or why it was left out.
#[derive(Debug, Default, Serialize)]
pub struct Mirror {
    pub command: String,
    pub skipped: Option<String>,
    /// The server that was killed, and what it held then.
    pub killed: Option<String>,
    pub held_bytes: u64,
    pub identical: bool,
    pub seconds: f64,
    pub extents_repaired: u64,
}

impl Mirror {
    pub fn wrong(&self) -> bool {
        self.skipped.is_none() && !self.identical
    }

    pub fn describe(&self) -> String {
        if let Some(why) = &self.skipped {
            return format!("A program whose server is killed is left out here: {why}");
        }
        let killed = match &self.killed {
            Some(server) => format!(
                "the one at {server} was killed while it held {}",
                Bytes(self.held_bytes).rounded()
            ),
            None => "it ended before one of them could be killed".to_string(),
        };
        format!(
            "The same program with its far pages kept twice, at three servers: {killed}. Extents copied anew: {}; \
             after {} the result is {}.",
            self.extents_repaired,
            format_duration(Duration::from_secs_f64(self.seconds)),
            match self.identical {
                true => "identical",
                false => "DIFFERENT",
            }
        )
    }
}

/// Runs it after the program was run with all memory local.
pub fn show(before: &Program) -> Result<Mirror, Failure> {
    let mut mirror = Mirror::default();
    let (Some(expected), None) = (before.result, &before.skipped) else {
        let why = before.skipped.clone();
        mirror.skipped = Some(why.unwrap_or("the program could not be run".to_string()));
        return Ok(mirror);
    };
    match run(before, expected, &mut mirror) {
        Ok(()) => Ok(mirror),
        Err(failure) if failure.exit == Exit::Unsupported => {
            mirror.skipped = Some(failure.message);
            Ok(mirror)
        }
        Err(failure) => Err(failure),
    }
}

fn run(before: &Program, expected: (u64, u64), mirror: &mut Mirror) -> Result<(), Failure> {
    let scratch = Scratch::new()?;
    let memory = Bytes(before.peak_bytes * 2)
        .max(Bytes::mib(256))
        .to_string();
    let start = || EmbeddedServer::start(["--memory", &memory, "--listen", "127.0.0.1:0"]);
    let mut servers = [start()?, start()?, start()?];
    let at: Vec<String> = servers.iter().map(|s| s.addresses()[0].clone()).collect();
    let mut shown = Program::default();
    let (words, checks_itself) = command(&scratch, &mut shown)?;
    mirror.command = shown.command;
    let options = ["--layout", "mirror", "--pool", &at.join(",")].map(OsString::from);
    let mut launched = Launched::new(options.to_vec(), words)?;
    launched.env("LC_ALL", "C");
    let out = scratch.path().join("sorted");
    let (limit, file) = (
        Bytes(before.peak_bytes / 2).to_string(),
        File::create(&out)?,
    );
    let bar = progress(0, "sorting, with every far page kept twice");
    bar.enable_steady_tick(Duration::from_millis(200));
    let report = std::thread::scope(|scope| {
        let program = scope.spawn(|| launched.run(&limit, Stdio::from(file)));
        while !program.is_finished() && mirror.killed.is_none() {
            std::thread::sleep(LOOK);
            let held: Vec<u64> = at.iter().map(|address| held(address)).collect();
            let most = (0..held.len()).max_by_key(|at| held[*at]).unwrap_or(0);
            if held[most] >= FAR.0 {
                servers[most].kill();
                mirror.killed = Some(at[most].clone());
                mirror.held_bytes = held[most];
                bar.set_message("a server was killed; the program goes on");
            }
        }
        program.join().expect("it does not panic")
    })?;
    bar.finish_and_clear();
    mirror.seconds = report.seconds;
    mirror.extents_repaired = report.counters.extents_repaired;
    let result = match checks_itself {
        true => (0, 0),
        false => digest(&out)?,
    };
    mirror.identical = report.exit_code == 0 && report.message.is_none() && result == expected;
    Ok(())
}

/// What clients hold of a server's memory; nothing if it does not say.
fn held(address: &str) -> u64 {
    let address = address.parse();
    let status = address.ok().and_then(|address| {
        let mut server = Observer::connect(&address, &SessionOptions::default()).ok()?;
        server.status().ok()
    });
    status.map_or(0, |status| status.server.granted_bytes)
}
