//! The demo's last part: a program that knows nothing of Muninn, with less and less local memory.
//!
//! `sort` sorts the same lines with all memory local, with half of it and with a quarter; what it
//! writes must be the same each time, and the counters of its job say where its pages were. Where
//! this machine cannot (no userfaultfd, no library), the demo says why and goes on.
//!
//! Known limit: peaks are sampled; a program that grows and ends within a few milliseconds may show
//! a smaller one than it had.

use crate::cmd::run;
use crate::embedded::Scratch;
use crate::failure::{Exit, Failure};
use crate::launched::Launched;
use crate::ui::{Table, progress};
use muninn_sys::proc::{self, RealProc};
use muninn_types::{Bytes, Percent, SplitMix64, format_duration};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Enough to sort that a quarter of the memory is a limit one can run at.
const TEXT: Bytes = Bytes::mib(64);
/// Characters of a line, its end among them.
const LINE: usize = 64;
/// Shares of the peak that stay local, after the run with all of it.
const SHARES: [f64; 2] = [0.5, 0.25];

/// What the program did, or why it was not run.
#[derive(Debug, Default, Serialize)]
pub struct Program {
    pub command: String,
    pub skipped: Option<String>,
    pub peak_bytes: u64,
    pub runs: Vec<Run>,
    /// Of what it wrote with all memory local.
    #[serde(skip)]
    pub result: Option<(u64, u64)>,
}

#[derive(Debug, Serialize)]
pub struct Run {
    pub local: String,
    pub limit_bytes: u64,
    pub seconds: f64,
    /// The same output as with all memory local.
    pub identical: bool,
    pub local_peak_bytes: u64,
    pub far_peak_bytes: u64,
    pub faults: u64,
    pub faults_remote: u64,
    pub evicted: u64,
    pub evicted_written: u64,
}

impl Program {
    pub fn wrong(&self) -> bool {
        self.runs.iter().any(|run| !run.identical)
    }

    pub fn describe(&self) -> String {
        if let Some(why) = &self.skipped {
            return format!("An unmodified program with far memory is left out here: {why}");
        }
        let mut table = Table::new([
            "local",
            "limit",
            "time",
            "peak local",
            "peak far",
            "faults",
            "from far",
            "pages out",
            "result",
        ]);
        for run in &self.runs {
            table.row([
                run.local.clone(),
                Bytes(run.limit_bytes).rounded(),
                format_duration(Duration::from_secs_f64(run.seconds)),
                Bytes(run.local_peak_bytes).rounded(),
                Bytes(run.far_peak_bytes).rounded(),
                run.faults.to_string(),
                run.faults_remote.to_string(),
                run.evicted.to_string(),
                match run.identical {
                    true => "identical".to_string(),
                    false => "DIFFERENT".to_string(),
                },
            ]);
        }
        format!(
            "An unmodified program, '{}', with less and less local memory (its peak is {}):\n\n{table}",
            self.command,
            Bytes(self.peak_bytes).rounded()
        )
    }
}

/// Runs it. Only what is wrong with this demo, not what this machine lacks, is an error.
pub fn show() -> Result<Program, Failure> {
    let mut program = Program {
        command: "sort".to_string(),
        ..Program::default()
    };
    match run_all(&mut program) {
        Ok(()) => Ok(program),
        Err(failure) if failure.exit == Exit::Unsupported => {
            program.skipped = Some(failure.message);
            program.runs.clear();
            Ok(program)
        }
        Err(failure) => Err(failure),
    }
}

fn run_all(program: &mut Program) -> Result<(), Failure> {
    let scratch = Scratch::new()?;
    let bar = progress(2 + SHARES.len() as u64, "writing lines to sort");
    bar.enable_steady_tick(Duration::from_millis(200));
    let (command, checks_itself) = command(&scratch, program)?;
    let mut launched = Launched::new(Vec::new(), command)?;
    // By bytes, not by the rules of a language.
    launched.env("LC_ALL", "C");
    bar.inc(1);
    let all = proc::meminfo(&RealProc).map_err(Failure::failed)?.total;
    let mut expected = None;
    let shares = std::iter::once(1.0).chain(SHARES);
    for share in shares {
        let share = Percent::from_ratio(share).unwrap_or(Percent::FULL);
        bar.set_message(format!("sorting with {share} of memory local"));
        let limit = match expected {
            None => all,
            Some(_) => share.of(Bytes(program.peak_bytes)),
        };
        let out = scratch.path().join("sorted");
        let report = launched.run(&limit.to_string(), Stdio::from(File::create(&out)?))?;
        if report.exit_code != 0 || report.message.is_some() {
            let why = report.message.unwrap_or_default();
            return Err(Failure::failed(format!(
                "the demo cannot go on: {} ended with code {} at {share} local: {why}",
                program.command, report.exit_code
            )));
        }
        // What checks itself prints how long it took, which differs.
        let result = match checks_itself {
            true => (0, 0),
            false => digest(&out)?,
        };
        if expected.is_none() {
            program.peak_bytes = report.peak_bytes;
            program.result = Some(result);
        }
        program.runs.push(Run {
            local: share.to_string(),
            limit_bytes: match expected {
                None => report.peak_bytes,
                Some(_) => report.limit_bytes,
            },
            seconds: report.seconds,
            identical: *expected.get_or_insert(result) == result,
            local_peak_bytes: report.local_peak_bytes,
            far_peak_bytes: report.far_peak_bytes,
            faults: report.counters.faults,
            faults_remote: report.counters.faults_remote,
            evicted: report.counters.evicted,
            evicted_written: report.counters.evicted_written,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// `sort` and a file for it; or, where there is no `sort`, a program of our own that compares every
/// word it reads with what it wrote and fails if one differs.
pub(super) fn command(
    scratch: &Scratch,
    program: &mut Program,
) -> Result<(Vec<OsString>, bool), Failure> {
    if run::program::find("sort".as_ref()).is_err() {
        program.command = "muninn workload paging".to_string();
        let mut words: Vec<OsString> = vec![std::env::current_exe()?.into()];
        words.extend(["workload", "paging", "--pattern", "rand-write"].map(OsString::from));
        words.extend(["--size".into(), Bytes(2 * TEXT.0).to_string().into()]);
        return Ok((words, true));
    }
    let path = scratch.path().join("lines");
    write_lines(&path)?;
    program.command = format!("sort of {}", TEXT.rounded());
    // One thread, and a buffer that takes all of it: what is wanted is memory, not files.
    let words = ["sort", "--parallel=1", "--buffer-size=1G"].map(OsString::from);
    Ok((words.into_iter().chain([path.into()]).collect(), false))
}

fn write_lines(path: &PathBuf) -> Result<(), Failure> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut file = BufWriter::new(File::create(path)?);
    let mut rng = SplitMix64::new(1);
    let mut line = [b'\n'; LINE];
    for _ in 0..TEXT.0 / LINE as u64 {
        for part in line[..LINE - 1].chunks_mut(16) {
            let mut bits = rng.next_u64();
            for byte in part {
                *byte = DIGITS[(bits & 15) as usize];
                bits >>= 4;
            }
        }
        file.write_all(&line)?;
    }
    file.flush()?;
    Ok(())
}

/// FNV-1a over a file's words, and its length: enough to tell two orders of the same lines apart.
pub(super) fn digest(path: &Path) -> Result<(u64, u64), Failure> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let (mut hash, mut len) = (0xCBF2_9CE4_8422_2325_u64, 0);
    let mut piece = [0; LINE];
    loop {
        let n = file.read(&mut piece)?;
        if n == 0 {
            return Ok((hash, len));
        }
        len += n as u64;
        for byte in &piece[..n] {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}
