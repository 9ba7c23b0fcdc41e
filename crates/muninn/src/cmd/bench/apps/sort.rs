//! `sort` of a large file.
//!
//! As people type it, `sort` asks how much memory it should hold (`RLIMIT_RSS`, which `muninn run`
//! sets) and sorts in pieces where the file is larger. Told to sort all of it in memory (`-S`), it has
//! one pass in, comparisons all over, one pass out.

use super::program::{Measured, Program, digest, quoted, works, write_lines};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_types::Bytes;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Sort {
    in_memory: bool,
    words: Vec<String>,
}

impl Sort {
    /// All of the file at once.
    pub fn in_memory() -> Sort {
        Sort {
            in_memory: true,
            words: Vec::new(),
        }
    }
}

impl Program for Sort {
    fn name(&self) -> &'static str {
        match self.in_memory {
            true => "sort-in-memory",
            false => "sort",
        }
    }

    fn prepare(&mut self, arena: &Arena, size: Bytes) -> Result<(), String> {
        works("sort", &["--version"])?;
        let input = arena.dir().join("lines");
        // Its index takes about as much again as the text.
        write_lines(&input, size.0 / 2).map_err(|error| format!("no input file: {error}"))?;
        let output = arena.dir().join("sorted");
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        self.words = ["sort", "--parallel=2", "-T"].map(str::to_string).into();
        self.words.push(path(arena.dir().to_path_buf()));
        if self.in_memory {
            let buffer = format!("{}K", (size.0 * 3) >> 10);
            self.words.extend(["-S".to_string(), buffer]);
        }
        self.words
            .extend(["-o".to_string(), path(output), path(input)]);
        Ok(())
    }

    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure> {
        let output = arena.dir().join("sorted");
        let _ = std::fs::remove_file(&output);
        let job = Job {
            env: vec![("LC_ALL".to_string(), "C".to_string())],
            patience,
            ..Job::new(self.words.clone())
        };
        let ran = arena.run(backend, limit, &job)?;
        Ok(vec![Measured::of_run(self.name(), &ran, |_| {
            digest(&output).ok()
        })])
    }

    fn script(&self) -> Option<String> {
        // To no file of its own: the lines go straight to the sum.
        let output = self.words.iter().position(|word| word == "-o")?;
        let (before, after) = self.words.split_at(output);
        let words = [before, after.get(2..)?].concat();
        Some(format!("LC_ALL=C {} | cksum", quoted(&words)))
    }
}
