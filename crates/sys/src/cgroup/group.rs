//! One group: its limits, its use, its processes.
//!
//! Version 1 limits memory, and memory and swap together; version 2 limits memory and swap. The
//! difference is hidden here: a limit of swap is one of swap alone. Invariant: `None` is "no limit".
//! Known limit: the kernel rounds limits down to whole pages.

use std::path::{Path, PathBuf};

use muninn_types::Bytes;
use rustix::io::Errno;

use super::files::{CgroupFiles, RealCgroups};
use super::{CgroupError, Hierarchy, Version};

/// Limits of version 1 at or above this are none: it writes the largest number of whole pages.
const V1_UNLIMITED: u64 = 1 << 62;

/// Times a group that is still busy is tried to be removed.
const REMOVE_TRIES: usize = 1000;

/// A group of processes with a memory limit.
#[derive(Debug)]
pub struct MemoryCgroup<F: CgroupFiles + Clone = RealCgroups> {
    hierarchy: Hierarchy<F>,
    below: PathBuf,
    /// Removed when dropped.
    made: bool,
}

impl<F: CgroupFiles + Clone> MemoryCgroup<F> {
    pub(super) fn existing(hierarchy: Hierarchy<F>, below: PathBuf) -> MemoryCgroup<F> {
        MemoryCgroup {
            hierarchy,
            below,
            made: false,
        }
    }

    pub(super) fn made(hierarchy: Hierarchy<F>, below: PathBuf) -> MemoryCgroup<F> {
        MemoryCgroup {
            hierarchy,
            below,
            made: true,
        }
    }

    /// The directory of the group.
    pub fn path(&self) -> PathBuf {
        self.hierarchy.root.join(&self.below)
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.path().join(match self.hierarchy.version {
            Version::V1 => v1,
            Version::V2 => v2,
        })
    }

    /// Memory used now.
    pub fn usage(&self) -> Result<Bytes, CgroupError> {
        let used = self.size(&self.file("memory.usage_in_bytes", "memory.current"))?;
        Ok(used.unwrap_or_default())
    }

    /// The most memory used so far.
    pub fn peak(&self) -> Result<Bytes, CgroupError> {
        let peak = self.size(&self.file("memory.max_usage_in_bytes", "memory.peak"))?;
        Ok(peak.unwrap_or_default())
    }

    /// The limit of this group itself.
    pub fn limit(&self) -> Result<Option<Bytes>, CgroupError> {
        match self.size(&self.file("memory.limit_in_bytes", "memory.max")) {
            // The root of version 2 has no limit and no such file.
            Err(CgroupError::File {
                source: Errno::NOENT,
                ..
            }) if self.below == Path::new("") => Ok(None),
            other => other,
        }
    }

    /// The smallest limit of this group and all above it.
    pub fn effective_limit(&self) -> Result<Option<Bytes>, CgroupError> {
        let mut smallest = None;
        for below in self.below.ancestors() {
            let limit = self.hierarchy.group(below).limit()?;
            smallest = match (smallest, limit) {
                (Some(a), Some(b)) => Some(Bytes::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        Ok(smallest)
    }

    /// Memory that could still be had below the limits of this group and all above it; `None` without
    /// limits. Pages of files can be dropped and do not count as used.
    pub fn left(&self) -> Result<Option<Bytes>, CgroupError> {
        let mut least = None;
        for below in self.below.ancestors() {
            let group = self.hierarchy.group(below);
            let Some(limit) = group.limit()? else {
                continue;
            };
            let used = group.usage()?.0.saturating_sub(group.cached()?.0);
            let left = Bytes(limit.0.saturating_sub(used));
            least = Some(least.map_or(left, |least: Bytes| least.min(left)));
        }
        Ok(least)
    }

    /// Faults of the group's processes that had to wait for a page: from swap, or from a file.
    pub fn major_faults(&self) -> Result<u64, CgroupError> {
        self.counted(match self.hierarchy.version {
            Version::V1 => &["total_pgmajfault"],
            Version::V2 => &["pgmajfault"],
        })
    }

    fn cached(&self) -> Result<Bytes, CgroupError> {
        let cached = self.counted(match self.hierarchy.version {
            Version::V1 => &["total_inactive_file", "total_active_file"],
            Version::V2 => &["inactive_file", "active_file"],
        });
        cached.map(Bytes)
    }

    /// The sum of these counters of the kernel's.
    fn counted(&self, names: &[&str]) -> Result<u64, CgroupError> {
        let text = self.hierarchy.read(&self.path().join("memory.stat"))?;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let counted = lines.filter(|(name, _)| names.contains(name));
        let values = counted.filter_map(|(_, value)| value.trim().parse::<u64>().ok());
        Ok(values.sum())
    }

    /// Sets the limit of memory and, where `swap` is given, that of swap: `Some(None)` lifts it.
    pub fn set_limits(
        &self,
        memory: Option<Bytes>,
        swap: Option<Option<Bytes>>,
    ) -> Result<(), CgroupError> {
        match self.hierarchy.version {
            Version::V1 => self.set_limits_v1(memory, swap),
            Version::V2 => {
                self.write("memory.max", &text_v2(memory))?;
                match swap {
                    Some(swap) => self.write_swap("memory.swap.max", &text_v2(swap)),
                    None => Ok(()),
                }
            }
        }
    }

    fn set_limits_v1(
        &self,
        memory: Option<Bytes>,
        swap: Option<Option<Bytes>>,
    ) -> Result<(), CgroupError> {
        const TOGETHER: &str = "memory.memsw.limit_in_bytes";
        // The limit of both together may never be below that of memory: out of the way first.
        let lifted = self.write_swap(TOGETHER, "-1");
        if swap.is_some() {
            lifted?;
        }
        self.write("memory.limit_in_bytes", &text_v1(memory))?;
        match (memory, swap.flatten()) {
            (Some(memory), Some(swap)) => {
                let both = Bytes(memory.0.saturating_add(swap.0));
                self.write_swap(TOGETHER, &text_v1(Some(both)))
            }
            _ => Ok(()),
        }
    }

    /// Moves a process (with all its threads) into the group.
    pub fn add(&self, pid: i32) -> Result<(), CgroupError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// The processes of the group.
    pub fn members(&self) -> Result<Vec<i32>, CgroupError> {
        let text = self.hierarchy.read(&self.path().join("cgroup.procs"))?;
        Ok(text
            .lines()
            .filter_map(|pid| pid.trim().parse().ok())
            .collect())
    }

    /// Removes the group; processes still in it move to its parent. Does nothing to a group that
    /// was there before us.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        self.remove_now()
    }

    fn remove_now(&mut self) -> Result<(), CgroupError> {
        if !std::mem::take(&mut self.made) {
            return Ok(());
        }
        let parent = self
            .hierarchy
            .group(self.below.parent().unwrap_or(Path::new("")));
        let mut last = Errno::BUSY;
        for _ in 0..REMOVE_TRIES {
            for pid in self.members().unwrap_or_default() {
                // It may have ended meanwhile.
                let _ = parent.add(pid);
            }
            match self.hierarchy.files.remove_dir(&self.path()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // A process on its way out still counts.
                Err(Errno::BUSY) => rustix::thread::sched_yield(),
                Err(errno) => {
                    last = errno;
                    break;
                }
            }
        }
        Err(CgroupError::File {
            action: "remove",
            path: self.path(),
            source: last,
        })
    }

    fn write(&self, file: &str, text: &str) -> Result<(), CgroupError> {
        self.hierarchy.write(&self.path().join(file), text)
    }

    fn write_swap(&self, file: &str, text: &str) -> Result<(), CgroupError> {
        match self.write(file, text) {
            Err(CgroupError::File {
                source: Errno::NOENT | Errno::OPNOTSUPP | Errno::ACCESS,
                ..
            }) => Err(CgroupError::NoSwapLimit),
            other => other,
        }
    }

    fn size(&self, path: &Path) -> Result<Option<Bytes>, CgroupError> {
        let text = self.hierarchy.read(path)?;
        match text.trim() {
            "max" => Ok(None),
            number => match number.parse() {
                Ok(bytes) if bytes >= V1_UNLIMITED => Ok(None),
                Ok(bytes) => Ok(Some(Bytes(bytes))),
                Err(_) => Err(CgroupError::Unexpected {
                    path: path.to_path_buf(),
                    text: number.to_string(),
                }),
            },
        }
    }
}

fn text_v1(limit: Option<Bytes>) -> String {
    limit.map_or("-1".to_string(), |bytes| bytes.0.to_string())
}

fn text_v2(limit: Option<Bytes>) -> String {
    limit.map_or("max".to_string(), |bytes| bytes.0.to_string())
}

impl<F: CgroupFiles + Clone> Drop for MemoryCgroup<F> {
    fn drop(&mut self) {
        // A group that cannot be removed stays as an empty directory: no harm but untidy.
        let _ = self.remove_now();
    }
}
