//! A graph of objects in a Java heap, under one of two collectors.
//!
//! G1 collects the young part again and again and the whole now and then; Shenandoah walks the whole
//! heap beside the program. Both touch memory in orders that are not the program's.

use super::program::{Measured, Program, by_output, works};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_types::Bytes;
use std::time::Duration;

const SOURCE: &str = include_str!("Graph.java");
/// Bytes of heap for a node, its links and its scrap.
const NODE: u64 = 32 + 16 + 8 * 4 + 32 + 4;
const ROUNDS: u32 = 8;

#[derive(Debug)]
pub struct Java {
    collector: &'static str,
    words: Vec<String>,
}

impl Java {
    pub fn new(collector: &'static str) -> Java {
        Java {
            collector,
            words: Vec::new(),
        }
    }
}

impl Program for Java {
    fn name(&self) -> &'static str {
        if self.collector == "G1" {
            "java-g1"
        } else {
            "java-shenandoah"
        }
    }

    fn prepare(&mut self, arena: &Arena, size: Bytes) -> Result<(), String> {
        let choose = format!("-XX:+Use{}GC", self.collector);
        works("java", &[&choose, "-version"])
            .map_err(|error| format!("{error} (Debian: default-jdk-headless)"))?;
        let source = arena.dir().join("Graph.java");
        std::fs::write(&source, SOURCE).map_err(|error| format!("no source file: {error}"))?;
        let (dir, source) = (arena.dir().to_string_lossy(), source.to_string_lossy());
        works("javac", &["-d", &dir, &source])
            .map_err(|error| format!("{error} (Debian: default-jdk-headless)"))?;
        let heap = format!("{}k", size.0 >> 10);
        // Half of the heap is alive.
        let nodes = size.0 / 2 / NODE;
        self.words = [
            "java",
            &choose,
            &format!("-Xms{heap}"),
            &format!("-Xmx{heap}"),
            "-XX:-UsePerfData",
            "-cp",
            &dir,
            "Graph",
            &nodes.to_string(),
            &ROUNDS.to_string(),
        ]
        .map(str::to_string)
        .to_vec();
        Ok(())
    }

    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure> {
        let job = Job {
            patience,
            ..Job::new(self.words.clone())
        };
        by_output(self.name(), arena, backend, limit, &job)
    }
}
