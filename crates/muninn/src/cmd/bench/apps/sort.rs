//! `sort` of a large file, in memory: one pass in, comparisons all over, one pass out.

use super::program::{Measured, Program, digest, works, write_lines};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_types::Bytes;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Sort {
    words: Vec<String>,
}

impl Program for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn prepare(&mut self, arena: &Arena, size: Bytes) -> Result<(), String> {
        works("sort", &["--version"])?;
        let input = arena.dir().join("lines");
        // Its index takes about as much again as the text.
        write_lines(&input, size.0 / 2).map_err(|error| format!("no input file: {error}"))?;
        let buffer = format!("{}K", (size.0 * 3) >> 10);
        let output = arena.dir().join("sorted");
        self.words = ["sort", "--parallel=2", "-S", &buffer, "-o"]
            .map(str::to_string)
            .into_iter()
            .chain([output, input].map(|path| path.to_string_lossy().into_owned()))
            .collect();
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
        Ok(vec![Measured::of_run("sort", &ran, |_| {
            digest(&output).ok()
        })])
    }
}
