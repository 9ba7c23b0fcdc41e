//! What a program of this bench has to say, and what they share.

use crate::cmd::bench::arena::{Arena, Backend, End, Job, Ran};
use crate::cmd::bench::paging::why;
use crate::failure::Failure;
use muninn_types::{Bytes, SplitMix64};
use serde::Serialize;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub trait Program {
    fn name(&self) -> &'static str;

    /// Makes what it works on, so that it wants about `size` of memory; else the reason why it
    /// cannot be run here.
    fn prepare(&mut self, arena: &Arena, size: Bytes) -> Result<(), String>;

    /// Runs it once; one result for each thing that is measured.
    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure>;

    /// The same as lines for a shell that end with the result on standard output. Many may run at once,
    /// each with a folder of its own in `$PLACE`. `None`: it can only be measured from outside.
    fn script(&self) -> Option<String> {
        None
    }
}

/// Words as a shell takes them apart again.
pub fn quoted<S: AsRef<str>>(words: &[S]) -> String {
    let one = |word: &S| format!("'{}'", word.as_ref().replace('\'', r"'\''"));
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// What a program waited for, in a whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Faults {
    /// Of a pager: pages that were on their way out, that were far, that were new.
    Pager { staged: u64, far: u64, zero: u64 },
    /// Of the kernel: pages that were swapped out (or in a file).
    Major(u64),
}

impl Faults {
    pub fn of(ran: &Ran) -> Option<Faults> {
        let count = |name: &str| Some(ran.counter(name)? as u64);
        match (count("faults_staged"), ran.major_faults) {
            (Some(staged), _) => Some(Faults::Pager {
                staged,
                far: count("faults_remote")? + count("faults_buffered")?,
                zero: count("faults_zero")?,
            }),
            (None, major) => major.map(Faults::Major),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Measured {
    pub app: String,
    pub seconds: Option<f64>,
    pub ops_per_s: Option<f64>,
    pub p99_us: Option<f64>,
    pub checksum: Option<String>,
    pub most: Bytes,
    pub faults: Option<Faults>,
    pub failed: Option<String>,
    /// By the kernel, for want of memory.
    pub killed: bool,
}

impl Measured {
    pub fn new(app: &str) -> Measured {
        Measured {
            app: app.to_string(),
            seconds: None,
            ops_per_s: None,
            p99_us: None,
            checksum: None,
            most: Bytes::ZERO,
            faults: None,
            failed: None,
            killed: false,
        }
    }

    /// Of a program whose time is the time of its run.
    pub fn of_run(app: &str, ran: &Ran, checksum: impl FnOnce(&Ran) -> Option<String>) -> Measured {
        let good = ran.end.is_good();
        Measured {
            seconds: good.then_some(ran.seconds),
            checksum: if good { checksum(ran) } else { None },
            most: ran.most,
            faults: Faults::of(ran),
            failed: (!good).then(|| why(ran)),
            killed: ran.end == End::Signal(9),
            ..Measured::new(app)
        }
    }
}

/// Runs a job to its end and takes what it printed as its checksum.
pub fn by_output(
    app: &str,
    arena: &Arena,
    backend: Backend,
    limit: Bytes,
    job: &Job,
) -> Result<Vec<Measured>, Failure> {
    let ran = arena.run(backend, limit, job)?;
    let measured = Measured::of_run(app, &ran, |ran| Some(ran.out.trim().to_string()));
    Ok(vec![measured])
}

/// Whether a command ends well; else why not.
pub fn works(program: &str, args: &[&str]) -> Result<(), String> {
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("'{program} {}' ends with {status}", args.join(" "))),
        Err(error) => Err(format!("{program} cannot be started: {error}")),
    }
}

/// A file of lines that a sort cannot guess.
pub fn write_lines(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    let mut dice = SplitMix64::new(7);
    let mut written = 0;
    while written < bytes {
        // Between 17 and 81 letters, the first of them at random.
        let words = 1 + dice.below(5);
        let mut line = String::new();
        for _ in 0..words {
            line += &format!("{:016x}", dice.next_u64());
        }
        line.push('\n');
        out.write_all(line.as_bytes())?;
        written += line.len() as u64;
    }
    out.flush()
}

/// FNV-1a over 64 bits: enough to tell two results apart, and written in four lines.
pub fn digest(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut piece = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut piece)?;
        if n == 0 {
            return Ok(format!("{hash:016x}"));
        }
        for byte in &piece[..n] {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_each_time_and_digests_tell_files_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        write_lines(&one, 10_000).unwrap();
        write_lines(&two, 10_000).unwrap();
        assert_eq!(digest(&one).unwrap(), digest(&two).unwrap());
        std::fs::write(&two, "a").unwrap();
        assert_eq!(
            digest(&two).unwrap(),
            "af63dc4c8601ec8c",
            "the published value for 'a'"
        );
        assert_ne!(digest(&one).unwrap(), digest(&two).unwrap());
    }

    #[test]
    fn faults_are_the_pagers_or_the_kernels() {
        let counters = serde_json::json!({ "counters": {
            "faults_staged": 1, "faults_remote": 2, "faults_buffered": 4, "faults_zero": 8
        }});
        let mut ran = Ran {
            end: End::Code(0),
            seconds: 1.0,
            out: String::new(),
            err: String::new(),
            most: Bytes::ZERO,
            over_limit: Bytes::ZERO,
            runtime: Bytes::ZERO,
            stats: Some(counters),
            major_faults: None,
        };
        let (staged, far, zero) = (1, 6, 8);
        assert_eq!(Faults::of(&ran), Some(Faults::Pager { staged, far, zero }));
        (ran.stats, ran.major_faults) = (None, Some(5));
        assert_eq!(Faults::of(&ran), Some(Faults::Major(5)));
        ran.major_faults = None;
        assert_eq!(Faults::of(&ran), None);
    }

    #[test]
    fn a_shell_takes_words_apart_as_they_were() {
        let words = ["printf", "%s|", "a b", "it's", "", "$HOME"];
        let output = Command::new("sh")
            .args(["-c", &quoted(&words)])
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"a b|it's||$HOME|");
    }

    #[test]
    fn a_missing_program_is_told() {
        let reason = works("/nowhere/program", &[]).unwrap_err();
        assert!(
            reason.starts_with("/nowhere/program cannot be started"),
            "{reason}"
        );
        assert!(
            works("false", &[])
                .unwrap_err()
                .starts_with("'false ' ends with")
        );
        works("true", &[]).unwrap();
    }
}
