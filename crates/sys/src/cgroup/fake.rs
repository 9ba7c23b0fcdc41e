//! A tree of cgroups in memory that follows the kernel's rules.
//!
//! A new directory has its files with their first values; a process is in one group at a time; a
//! group with processes cannot be removed; in version 1 the limit of memory may not pass that of
//! memory and swap together. Any path can be told to fail. Known limit: nothing is ever charged.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::io::Errno;

use super::{CgroupFiles, Version};

/// What version 1 shows for "no limit".
const V1_NONE: &str = "9223372036854771712";

#[derive(Debug, Default)]
struct Tree {
    /// Groups by directory, each with its files.
    groups: BTreeMap<PathBuf, HashMap<String, String>>,
    failures: HashMap<PathBuf, Errno>,
}

/// Cgroups without a kernel. Clones are the same tree.
#[derive(Clone, Debug)]
pub struct FakeCgroups {
    version: Version,
    root: PathBuf,
    tree: Arc<Mutex<Tree>>,
}

impl FakeCgroups {
    pub fn new(version: Version, root: &str) -> FakeCgroups {
        let fake = FakeCgroups {
            version,
            root: PathBuf::from(root),
            tree: Arc::default(),
        };
        let files = fake.fresh_files();
        fake.tree().groups.insert(fake.root.clone(), files);
        fake
    }

    /// The texts of `/proc` that lead to this tree, with us in `own`.
    pub fn proc(&self, own: &str) -> crate::proc::FakeProc {
        let (kind, options, line) = match self.version {
            Version::V1 => ("cgroup", "rw,memory", format!("4:memory:{own}\n")),
            Version::V2 => ("cgroup2", "rw", format!("0::{own}\n")),
        };
        let root = self.root.display();
        crate::proc::FakeProc::new()
            .with(
                "/proc/self/mountinfo",
                &format!("31 25 0:27 / {root} rw - {kind} none {options}\n"),
            )
            .with("/proc/self/cgroup", &line)
    }

    /// Lets reads and writes of a file, or the making or removing of a directory, fail.
    pub fn fail(&self, path: impl AsRef<Path>, errno: Errno) {
        let path = self.root.join(path);
        self.tree().failures.insert(path, errno);
    }

    /// Sets a file, as the kernel would (use of memory, for example).
    pub fn set(&self, group: impl AsRef<Path>, file: &str, text: &str) {
        let path = self.root.join(group);
        if let Some(files) = self.tree().groups.get_mut(&path) {
            files.insert(file.to_string(), text.to_string());
        }
    }

    pub fn exists(&self, group: impl AsRef<Path>) -> bool {
        let path = self.root.join(group);
        self.tree().groups.contains_key(&path)
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn fresh_files(&self) -> HashMap<String, String> {
        let files: &[(&str, &str)] = match self.version {
            Version::V1 => &[
                ("cgroup.procs", ""),
                ("memory.limit_in_bytes", V1_NONE),
                ("memory.memsw.limit_in_bytes", V1_NONE),
                ("memory.usage_in_bytes", "0"),
                ("memory.max_usage_in_bytes", "0"),
            ],
            Version::V2 => &[
                ("cgroup.procs", ""),
                ("cgroup.controllers", "cpu memory"),
                ("cgroup.subtree_control", ""),
                ("memory.max", "max"),
                ("memory.swap.max", "max"),
                ("memory.current", "0"),
                ("memory.peak", "0"),
            ],
        };
        let owned = |(name, text): &(&str, &str)| (name.to_string(), text.to_string());
        files.iter().map(owned).collect()
    }
}

impl Tree {
    fn check(&self, path: &Path) -> Result<(), Errno> {
        self.failures.get(path).map_or(Ok(()), |errno| Err(*errno))
    }

    /// The file of a path, as directory and name.
    fn file(&mut self, path: &Path) -> Result<(&mut HashMap<String, String>, String), Errno> {
        self.check(path)?;
        let directory = path.parent().ok_or(Errno::NOENT)?;
        let name = path.file_name().ok_or(Errno::NOENT)?.to_string_lossy();
        let files = self.groups.get_mut(directory).ok_or(Errno::NOENT)?;
        if files.contains_key(name.as_ref()) {
            Ok((files, name.into_owned()))
        } else {
            Err(Errno::NOENT)
        }
    }
}

impl CgroupFiles for FakeCgroups {
    fn read(&self, path: &Path) -> Result<String, Errno> {
        let mut tree = self.tree();
        let (files, name) = tree.file(path)?;
        Ok(format!("{}\n", files[&name].trim_end()))
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), Errno> {
        let mut tree = self.tree();
        let (files, name) = tree.file(path)?;
        // "-1" and everything above the largest limit are no limit.
        let none = V1_NONE.parse::<u64>().unwrap_or(u64::MAX);
        let number = |text: &str| text.trim().parse().unwrap_or(none).min(none);
        match name.as_str() {
            "cgroup.procs" => {
                for files in tree.groups.values_mut() {
                    let procs = files.entry(name.clone()).or_default();
                    let others = procs.lines().filter(|pid| *pid != text);
                    *procs = others.map(|pid| format!("{pid}\n")).collect();
                }
                let (files, name) = tree.file(path)?;
                files
                    .entry(name)
                    .or_default()
                    .push_str(&format!("{text}\n"));
                return Ok(());
            }
            "memory.limit_in_bytes"
                if number(text) > number(&files["memory.memsw.limit_in_bytes"]) =>
            {
                return Err(Errno::INVAL);
            }
            "memory.memsw.limit_in_bytes"
                if number(text) < number(&files["memory.limit_in_bytes"]) =>
            {
                return Err(Errno::INVAL);
            }
            _ => {}
        }
        let shown = if text == "-1" { V1_NONE } else { text };
        files.insert(name, shown.to_string());
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> Result<(), Errno> {
        let files = self.fresh_files();
        let mut tree = self.tree();
        tree.check(path)?;
        if tree.groups.contains_key(path) {
            return Err(Errno::EXIST);
        }
        let parent = path.parent().ok_or(Errno::NOENT)?;
        if !tree.groups.contains_key(parent) {
            return Err(Errno::NOENT);
        }
        tree.groups.insert(path.to_path_buf(), files);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> Result<(), Errno> {
        let mut tree = self.tree();
        tree.check(path)?;
        let files = tree.groups.get(path).ok_or(Errno::NOENT)?;
        let children = tree.groups.keys().any(|other| other.parent() == Some(path));
        if children || !files["cgroup.procs"].trim().is_empty() {
            return Err(Errno::BUSY);
        }
        tree.groups.remove(path);
        Ok(())
    }
}
