//! A graph of objects in a Java heap, under each of the collectors, as they come and tuned.
//!
//! G1 collects the young part again and again and the whole now and then; Shenandoah walks the whole
//! heap beside the program; Serial and Parallel stop it and move everything together. They touch memory in
//! orders that are not the program's. *Tuned* means what `muninn run --tune` chooses for the limit; it is
//! given in the same words on every backend, so that what is compared stays the pager.

use super::program::{Measured, Program, by_output, works};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_policy::tune::Advice;
use muninn_policy::tune::jvm::{Jvm, advise};
use muninn_sys::proc::{self, RealProc};
use muninn_types::Bytes;
use std::time::Duration;

const SOURCE: &str = include_str!("Graph.java");
/// Bytes of heap for a node, its links and its scrap.
const NODE: u64 = 32 + 16 + 8 * 4 + 32 + 4;
const ROUNDS: u32 = 8;

/// What is behind `java-` of a collector that nobody chose is nothing. G1 and Shenandoah have nothing that is
/// set.
pub const NAMES: [&str; 8] = [
    "java",
    "java-tuned",
    "java-serial",
    "java-serial-tuned",
    "java-parallel",
    "java-parallel-tuned",
    "java-g1",
    "java-shenandoah",
];

#[derive(Debug)]
pub struct Java {
    name: &'static str,
    collector: Option<&'static str>,
    tuned: bool,
    words: Vec<String>,
}

impl Java {
    pub fn named(name: &str) -> Option<Java> {
        let name = *NAMES.iter().find(|known| **known == name)?;
        let collector = match name.strip_suffix("-tuned").unwrap_or(name) {
            "java-serial" => Some("Serial"),
            "java-parallel" => Some("Parallel"),
            "java-g1" => Some("G1"),
            "java-shenandoah" => Some("Shenandoah"),
            _ => None,
        };
        Some(Java {
            name,
            collector,
            tuned: name.ends_with("-tuned"),
            words: Vec::new(),
        })
    }

    fn choice(&self) -> Option<String> {
        self.collector.map(|name| format!("-XX:+Use{name}GC"))
    }

    /// What `--tune` would add.
    fn options(&self, limit: Bytes) -> Option<String> {
        let jvm = Jvm {
            words: self.words.clone(),
            memory: proc::meminfo(&RealProc).map_or(Bytes::ZERO, |info| info.total),
            has_serial: true,
            may_commit: true,
        };
        match advise(&jvm, limit) {
            Advice::Set { options, .. } if self.tuned => Some(options.join(" ")),
            _ => None,
        }
    }
}

impl Program for Java {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&mut self, arena: &Arena, size: Bytes) -> Result<(), String> {
        let choice = self.choice();
        let test: Vec<&str> = choice
            .iter()
            .map(String::as_str)
            .chain(["-version"])
            .collect();
        works("java", &test).map_err(|error| format!("{error} (Debian: default-jdk-headless)"))?;
        let source = arena.dir().join("Graph.java");
        std::fs::write(&source, SOURCE).map_err(|error| format!("no source file: {error}"))?;
        let (dir, source) = (arena.dir().to_string_lossy(), source.to_string_lossy());
        works("javac", &["-d", &dir, &source])
            .map_err(|error| format!("{error} (Debian: default-jdk-headless)"))?;
        let heap = format!("{}k", size.0 >> 10);
        // Half of the heap is alive.
        let nodes = size.0 / 2 / NODE;
        let begin = ["java".to_string()].into_iter().chain(choice);
        let rest = [
            &format!("-Xmx{heap}"),
            "-XX:-UsePerfData",
            "-cp",
            &dir,
            "Graph",
            &nodes.to_string(),
            &ROUNDS.to_string(),
        ];
        self.words = begin.chain(rest.map(str::to_string)).collect();
        Ok(())
    }

    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure> {
        let tuned = self.options(limit);
        let job = Job {
            env: tuned
                .map(|options| ("JAVA_TOOL_OPTIONS".to_string(), options))
                .into_iter()
                .collect(),
            patience,
            ..Job::new(self.words.clone())
        };
        by_output(self.name(), arena, backend, limit, &job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_tuned_is_given_options() {
        assert!(Java::named("java-epsilon").is_none());
        let options = |name| {
            let mut java = Java::named(name).unwrap();
            java.words = java
                .choice()
                .into_iter()
                .chain(["-Xmx800m".to_string()])
                .collect();
            java.options(Bytes::mib(200))
        };
        assert_eq!(options("java"), None);
        assert_eq!(options("java-g1"), None);
        let tuned = options("java-tuned").unwrap();
        assert!(
            tuned.starts_with("-XX:+UseSerialGC -XX:MaxNewSize=33m"),
            "{tuned}"
        );
        assert_eq!(
            options("java-parallel-tuned").as_deref(),
            Some("-XX:MaxNewSize=33m")
        );
    }
}
