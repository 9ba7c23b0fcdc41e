//! The job's file: made by the launcher, opened by everybody else.

use crate::layout::{CONFIG_MAX, Layout, MAGIC, NOTES_MAX, POOL_MAX, Text, VERSION};
use crate::{Config, ConfigError, Place, Snapshot, VARIABLE, directory, place};
use muninn_sys::bell::Bell;
use muninn_sys::memory::{MemoryError, Shared};
use muninn_sys::proc::ProcessId;
use muninn_types::{Bytes, Spread};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A job, mapped. Cloning it maps nothing anew.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) page: Arc<Shared<Layout>>,
    path: PathBuf,
}

/// See [`crate::layout::Layout::advice`]: nobody has begun, somebody has, it is there.
const UNSAID: u64 = 0;
const BEGUN: u64 = 1;
pub(crate) const COMPLETE: u64 = 2;

/// The most memory that a job had at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Near and far together: the program's own peak.
    pub all: Bytes,
    pub local: Bytes,
    pub far: Bytes,
}

/// The last words of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub pid: u32,
    pub text: String,
}

/// Why there is no job.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error(
        "cannot keep the job's page in {}: {source}; make room there, or name a private directory in XDG_RUNTIME_DIR",
        .path.display()
    )]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot open the job's page {}: {source}; its launcher may have ended", .path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{VARIABLE} is not set: this process was not started by 'muninn run'")]
    NotNamed,
    #[error("{} is not the page of a job, or is damaged ({why})", .path.display())]
    Malformed { path: PathBuf, why: &'static str },
    #[error(
        "{} was made by another version of Muninn: use a launcher and a preload library of one build",
        .0.display()
    )]
    OtherVersion(PathBuf),
    #[error("the job's configuration is longer than {CONFIG_MAX} bytes; name fewer servers")]
    ConfigTooLong,
    #[error("the job's list of servers is longer than {POOL_MAX} bytes; name fewer servers")]
    PoolTooLong,
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("cannot find this process in /proc; is it mounted?")]
    NoProc,
}

impl Job {
    /// Makes a job of this process, in a private directory. The file stays until [`Job::remove`].
    pub fn create(config: &Config, limit: Bytes) -> Result<Job, JobError> {
        let text = config.to_string();
        if text.len() > CONFIG_MAX {
            return Err(JobError::ConfigTooLong);
        }
        let launcher = ProcessId::of(std::process::id()).ok_or(JobError::NoProc)?;
        let (path, page) = directory::create(launcher)?;
        page.launcher.store(launcher.word(), Ordering::Relaxed);
        page.limit.store(limit.0, Ordering::Relaxed);
        page.config.write(&text);
        page.version.store(VERSION, Ordering::Relaxed);
        page.bytes.store(Shared::<Layout>::LEN.0, Ordering::Relaxed);
        page.magic.store(MAGIC, Ordering::Release);
        Ok(Job {
            page: Arc::new(page),
            path,
        })
    }

    pub fn open(path: impl Into<PathBuf>) -> Result<Job, JobError> {
        let path = path.into();
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        match opened {
            Ok(file) => Job::of_file(&file, path),
            Err(source) => Err(JobError::Open { path, source }),
        }
    }

    /// The job in a file that was opened by somebody else.
    pub fn of_file(file: &File, path: PathBuf) -> Result<Job, JobError> {
        let page = map(file, &path)?;
        let malformed = |why| JobError::Malformed {
            path: path.clone(),
            why,
        };
        if page.magic.load(Ordering::Acquire) != MAGIC {
            return Err(malformed("it does not begin as one does"));
        }
        let same = page.version.load(Ordering::Relaxed) == VERSION
            && page.bytes.load(Ordering::Relaxed) == Shared::<Layout>::LEN.0;
        if !same {
            return Err(JobError::OtherVersion(path));
        }
        if ProcessId::from_word(page.launcher.load(Ordering::Relaxed)).is_none() {
            return Err(malformed("it names no launcher"));
        }
        Ok(Job {
            page: Arc::new(page),
            path,
        })
    }

    /// The job of a parent, in its child, at the address where the parent had it ([`Job::range`]).
    ///
    /// # Safety
    ///
    /// This process was made by a fork and nobody else in it uses the page there.
    pub unsafe fn inherited(addr: u64) -> Option<Job> {
        Some(Job {
            // SAFETY: a child has its parent's shared mappings, and the caller vouches for the rest.
            page: Arc::new(unsafe { Shared::inherited(addr) }?),
            path: PathBuf::new(),
        })
    }

    /// The job that this process was started in.
    pub fn from_environment() -> Result<Job, JobError> {
        std::env::var_os(VARIABLE)
            .ok_or(JobError::NotNamed)
            .and_then(Job::open)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the page lies in this process, which the runtime must leave alone: address and length.
    pub fn range(&self) -> (u64, Bytes) {
        let mapping = self.page.mapping();
        (mapping.addr(), Bytes(mapping.len() as u64))
    }

    /// What the launcher asked for. Allocates: read it once, at the start.
    pub fn config(&self) -> Result<Config, JobError> {
        let bytes = self.page.config.read();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.ok_or_else(|| JobError::Malformed {
            path: self.path.clone(),
            why: "its configuration is not text",
        })?;
        Ok(Config::parse(&text)?)
    }

    /// What all processes of the job may hold together.
    pub fn limit(&self) -> Bytes {
        Bytes(self.page.limit.load(Ordering::Relaxed))
    }

    pub fn set_limit(&self, limit: Bytes) {
        self.page.limit.store(limit.0, Ordering::Relaxed);
        self.bell().ring();
    }

    /// Rung by those who want the launcher to look.
    pub fn bell(&self) -> &Bell {
        &self.page.board.bell
    }

    /// `None` only when the file was damaged after it was opened.
    pub fn launcher(&self) -> Option<ProcessId> {
        ProcessId::from_word(self.page.launcher.load(Ordering::Relaxed))
    }

    /// Leaves last words for the launcher to print. When two speak at once, one is heard.
    pub fn leave_message(&self, pid: u32, text: &str) {
        let area = &self.page.message;
        let before = area.sequence.load(Ordering::Relaxed);
        let begun = before.is_multiple_of(2)
            && area
                .sequence
                .compare_exchange(
                    before,
                    before.wrapping_add(1),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok();
        if begun {
            area.pid.store(u64::from(pid), Ordering::Release);
            area.text.write(text);
            area.sequence
                .store(before.wrapping_add(2), Ordering::Release);
        }
    }

    /// The last words that were left.
    pub fn message(&self) -> Option<Message> {
        let area = &self.page.message;
        let before = area.sequence.load(Ordering::Acquire);
        if before == 0 || !before.is_multiple_of(2) {
            return None;
        }
        let pid = area.pid.load(Ordering::Acquire) as u32;
        let text = area.text.read()?;
        std::sync::atomic::fence(Ordering::Acquire);
        let same = area.sequence.load(Ordering::Relaxed) == before;
        same.then(|| Message {
            pid,
            text: String::from_utf8_lossy(&text).into_owned(),
        })
    }

    /// Leaves a line for the launcher to print while the program goes on.
    pub fn leave_note(&self, text: &str) {
        let number = self.page.notes_left.fetch_add(1, Ordering::AcqRel) + 1;
        let area = &self.page.notes[number as usize % NOTES_MAX];
        area.number.store(0, Ordering::Release);
        area.text.write(text);
        area.number.store(number, Ordering::Release);
        self.bell().ring();
    }

    /// The notes after the first `seen` that are complete, with their numbers; the oldest may have been
    /// lost.
    pub fn notes_after(&self, seen: u64) -> Vec<(u64, String)> {
        let left = self.page.notes_left.load(Ordering::Acquire);
        let oldest = left.saturating_sub(NOTES_MAX as u64).max(seen) + 1;
        let mut notes = Vec::new();
        for number in oldest..=left {
            let area = &self.page.notes[number as usize % NOTES_MAX];
            if area.number.load(Ordering::Acquire) != number {
                // It is being written: those after it are for the next look.
                break;
            }
            let text = area.text.read().unwrap_or_default();
            std::sync::atomic::fence(Ordering::Acquire);
            if area.number.load(Ordering::Relaxed) == number {
                notes.push((number, String::from_utf8_lossy(&text).into_owned()));
            }
        }
        notes
    }

    /// Leaves what a runtime of the job was told of the limit, or would have been. The first one counts.
    pub fn leave_advice(&self, text: &str) {
        let area = &self.page.advice;
        let first =
            area.number
                .compare_exchange(UNSAID, BEGUN, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            area.text.write(text);
            area.number.store(COMPLETE, Ordering::Release);
        }
    }

    /// What was left so.
    pub fn advice(&self) -> Option<String> {
        let area = &self.page.advice;
        if area.number.load(Ordering::Acquire) != COMPLETE {
            return None;
        }
        let text = area.text.read()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// A place for a process that is alive; when it has one already, the same again, with the counters
    /// of what is now set to 0: it has executed another program. `None` when there
    /// are [`crate::PLACES_MAX`] others alive.
    pub fn take_place(&self, pid: u32) -> Option<Place> {
        self.take_place_of(ProcessId::of(pid)?)
    }

    /// The same for a process as its launcher knows it.
    pub fn take_place_of(&self, process: ProcessId) -> Option<Place> {
        Place::take(&self.page, process)
    }

    /// Places that are taken. Those of processes that died without giving them back are among them:
    /// ask [`Place::is_alive`].
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        Place::all(&self.page)
    }

    /// The runtime was loaded into a program, which may end before its companion gets to run.
    pub fn note_loaded(&self) {
        self.page.loaded.store(1, Ordering::Relaxed);
    }

    /// How many processes ever had a place: whether the runtime came up at all.
    pub fn attached(&self) -> u64 {
        let attached = self.page.attached.load(Ordering::Relaxed);
        attached.max(self.page.loaded.load(Ordering::Relaxed))
    }

    /// Everything all processes counted so far, the ended ones included.
    pub fn total(&self) -> Snapshot {
        place::total(&self.page)
    }

    /// How long faults took ever: first touches, pages about to leave (or fetched ahead), far pages.
    pub fn times(&self) -> [Spread; 3] {
        place::times(&self.page)
    }

    /// Adds up what all processes hold, near and far, and remembers the most there ever was. It does
    /// not ask whether processes are alive. A process notes its own part with
    /// [`Place::note_footprint`].
    pub fn note_footprint(&self) -> Bytes {
        let (mut local, mut far) = (0u64, 0u64);
        for place in self.places() {
            let counters = place.counters();
            local = local.saturating_add(counters.resident_bytes.load(Ordering::Relaxed));
            far = far.saturating_add(counters.far_bytes.load(Ordering::Relaxed));
        }
        place::note_peaks(&self.page, local, far);
        Bytes(local.saturating_add(far))
    }

    /// The most that all processes held together, as far as anybody looked.
    pub fn peaks(&self) -> Peaks {
        // What a process saw by itself holds for all of them, too.
        let seen = self.total();
        let at_least = |word: &AtomicU64, seen: u64| Bytes(word.load(Ordering::Relaxed).max(seen));
        let local = at_least(&self.page.local_peak, seen.resident_peak_bytes);
        let far = at_least(
            &self.page.far_peak,
            Bytes::pages(seen.far_pages_peak.min(u64::MAX >> 12)).0,
        );
        Peaks {
            all: at_least(&self.page.footprint_peak, local.0.max(far.0)),
            local,
            far,
        }
    }

    /// Removes the file. Those who have it open keep their page.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) fn map(file: &File, path: &Path) -> Result<Shared<Layout>, JobError> {
    Shared::map(file)?.ok_or_else(|| JobError::Malformed {
        path: path.to_path_buf(),
        why: "it is too short",
    })
}

const _: () = assert!(Text::<{ CONFIG_MAX / 8 }>::MAX == CONFIG_MAX);

#[cfg(test)]
mod tests;
