//! What a seed means: which program, how its pages go, and how little memory it has.

use crate::common::BINARY;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The least that `muninn run` takes.
const LIMIT_MIN_MIB: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Over {
    Shm,
    Tcp,
    NoMove,
    Plain,
}

impl Over {
    pub fn parse(text: &str) -> Over {
        match text {
            "shm" => Over::Shm,
            "tcp" => Over::Tcp,
            "no-move" => Over::NoMove,
            _ => panic!("MUNINN_FUZZ_OVER={text}: it is shm, tcp or no-move"),
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Over::Shm => "over shm",
            Over::Tcp => "over tcp",
            Over::NoMove => "with --no-move",
            Over::Plain => "plainly",
        })
    }
}

/// A program and how it is run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub steps: u64,
    pub over: Over,
    pub limit_mib: u64,
}

impl Plan {
    pub fn new(seed: u64, over: Option<Over>, plain: bool) -> Plan {
        let size = words_of(&["size", "--seed", &seed.to_string()]);
        let size: u64 = size.trim().parse().expect("a number of MiB");
        let percent = 10 + scatter(seed, 1) % 51;
        let any = [Over::Shm, Over::Tcp, Over::NoMove][(seed % 3) as usize];
        Plan {
            seed,
            steps: 30 + scatter(seed, 2) % 90,
            over: if plain {
                Over::Plain
            } else {
                over.unwrap_or(any)
            },
            limit_mib: (size * percent / 100).max(LIMIT_MIN_MIB),
        }
    }

    /// The words of the program, with these steps left out.
    pub fn program(&self, verb: &str, skipped: &[String]) -> Vec<String> {
        let mut words = vec![
            verb.to_string(),
            "--seed".to_string(),
            self.seed.to_string(),
            "--steps".to_string(),
            self.steps.to_string(),
        ];
        let mut without = std::env::var("MUNINN_FUZZ_WITHOUT").unwrap_or_default();
        if self.over == Over::NoMove {
            // Without moves, a program that does such things keeps its memory, and is ended for it.
            without += ",direct,uring";
        }
        if !without.is_empty() {
            let without = without.trim_start_matches(',').to_string();
            words.extend(["--without".to_string(), without]);
        }
        if !skipped.is_empty() {
            words.extend(["--skip".to_string(), ranges(skipped)]);
        }
        words
    }

    /// Options of `muninn run`; the pool is named by whoever starts it.
    pub fn options(&self, pool: Option<&str>) -> Vec<String> {
        let mut words = vec!["--local".to_string(), format!("{}MiB", self.limit_mib)];
        if let Some(pool) = pool {
            words.extend(["--pool".to_string(), pool.to_string()]);
        }
        if self.over == Over::NoMove {
            words.push("--no-move".to_string());
        }
        words
    }

    /// As one would type it.
    pub fn command(&self, skipped: &[String]) -> String {
        let program = format!("fuzz-run {}", self.program("play", skipped).join(" "));
        match self.over {
            Over::Plain => program,
            Over::Tcp => format!(
                "muninn serve --listen 127.0.0.1:7099 --memory 1GiB --insecure & muninn run {} -- {program}",
                self.options(Some("127.0.0.1:7099")).join(" ")
            ),
            _ => format!("muninn run {} -- {program}", self.options(None).join(" ")),
        }
    }

    /// The steps that are left, as `(number, words)`.
    pub fn list(&self, skipped: &[String]) -> Vec<(String, String)> {
        let words = self.program("list", skipped);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = words_of(&words);
        let lines = text.lines().filter_map(|line| {
            let (number, words) = line.trim_start().split_once(": ")?;
            Some((number.to_string(), words.to_string()))
        });
        lines.collect()
    }
}

/// Numbers that have nothing to do with each other.
fn scatter(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `1,2,3,7,9.1` as `1-3,7,9.1`.
fn ranges(numbers: &[String]) -> String {
    let mut plain: Vec<u64> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
    plain.sort_unstable();
    let mut words: Vec<String> = Vec::new();
    for run in plain.chunk_by(|one, next| one + 1 == *next) {
        words.push(match run {
            [one] => one.to_string(),
            _ => format!("{}-{}", run[0], run[run.len() - 1]),
        });
    }
    words.extend(numbers.iter().filter(|n| n.contains('.')).cloned());
    words.join(",")
}

/// What the program prints about itself.
fn words_of(args: &[&str]) -> String {
    let output = Command::new(fuzz_run()).args(args).output().unwrap();
    assert!(output.status.success(), "fuzz-run {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The program, built if the tests are run without the examples.
pub fn fuzz_run() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = Path::new(BINARY).parent().expect("a binary is in a folder");
        let path = folder.join("examples/fuzz-run");
        if !path.exists() {
            let target = folder.parent().expect("profiles are in the target folder");
            let status = Command::new(env!("CARGO"))
                .args(["build", "--example", "fuzz-run", "--manifest-path"])
                .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
                .env("CARGO_TARGET_DIR", target)
                .status()
                .unwrap();
            assert!(status.success(), "fuzz-run could not be built");
        }
        path
    })
}
