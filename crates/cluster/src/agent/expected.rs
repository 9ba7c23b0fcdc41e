//! Jobs that an agent before this one had, and that have not come back yet.
//!
//! They run, with the limits that they had, so their memory is not to be given to others. A job that has
//! ended meanwhile is not waited for, nor one that does not come back in time: it then runs under a
//! launcher that lost its agent for good, and is what the machine's own reserve is for.

use crate::state_file::{Found, StateFile};
use muninn_sys::proc::ProcessId;
use muninn_types::Bytes;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Launchers come back within a second or two.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Expected {
    file: StateFile,
    jobs: Vec<(ProcessId, Bytes)>,
    since: Instant,
}

impl Expected {
    pub(super) fn load(path: PathBuf) -> Expected {
        let file = StateFile::fleeting(path);
        let saved: Vec<(u64, Bytes)> = match file.load() {
            Found::Whole(saved) | Found::Older(saved) => saved,
            Found::Nothing | Found::Damaged => Vec::new(),
        };
        let known = |(word, limit)| Some((ProcessId::from_word(word)?, limit));
        let mut expected = Expected {
            file,
            jobs: saved.into_iter().filter_map(known).collect(),
            since: Instant::now(),
        };
        expected.look();
        expected
    }

    /// Forgets those that ended; whether there were any.
    pub(super) fn look(&mut self) -> bool {
        let before = self.jobs.len();
        let over = self.since.elapsed() > PATIENCE;
        self.jobs.retain(|(process, _)| !over && process.is_alive());
        self.jobs.len() != before
    }

    pub(super) fn returned(&mut self, process: Option<ProcessId>) {
        self.jobs.retain(|(known, _)| Some(*known) != process);
    }

    /// What is to be kept free for them.
    pub(super) fn kept(&self) -> Bytes {
        self.jobs.iter().map(|(_, limit)| *limit).sum()
    }

    pub(super) fn list(&self) -> impl Iterator<Item = (ProcessId, Bytes)> + '_ {
        self.jobs.iter().copied()
    }

    /// For the next agent: those that are here, and those that are still expected.
    pub(super) fn save(
        &self,
        here: impl Iterator<Item = (ProcessId, Bytes)>,
    ) -> std::io::Result<()> {
        let all = here.chain(self.list());
        let all: Vec<(u64, Bytes)> = all
            .map(|(process, limit)| (process.word(), limit))
            .collect();
        self.file.save(&all)
    }
}
