//! Limits of memory and of CPU time of groups of processes, in both versions of cgroups.
//!
//! [`Hierarchy::find`] tells which version has the memory controller and where we are in it,
//! [`Hierarchy::find_cpu`] the same of the CPU controller;
//! [`Hierarchy::create`] makes a group that is removed when its guard is dropped. Files are reached
//! through [`CgroupFiles`]; the fake, [`FakeCgroups`], behaves as the kernel does. Invariant: a
//! guard removes only the group it made; processes that are still in it move to its parent. Known
//! limit: version 2 wants groups with children to have no processes of their own, so new groups are
//! made beside ours, at the root or at a parent the caller names.

mod cpu;
mod fake;
mod files;
mod group;
mod parse;

pub use cpu::CpuCgroup;
pub use fake::FakeCgroups;
pub use files::{CgroupFiles, RealCgroups};
pub use group::MemoryCgroup;

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::proc::{ProcError, ProcSource, read_long_text};

const MEMORY: &str = "memory";
const CPU: &str = "cpu";

/// The two interfaces of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// A group could not be found, made or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(
        "no {0} controller of cgroups is mounted: mount one (mount -t cgroup2 none \
         /sys/fs/cgroup) or run without limits"
    )]
    NoController(&'static str),
    #[error("cannot {action} {path}: {source}; changing cgroups needs root or a delegated group")]
    File {
        action: &'static str,
        path: PathBuf,
        source: Errno,
    },
    #[error("{path} holds '{text}', which is not a size")]
    Unexpected { path: PathBuf, text: String },
    #[error("'{0}' cannot be the name of a cgroup: use letters, digits, '-', '_' and '.'")]
    BadName(String),
    #[error("this kernel does not limit swap by cgroup: boot with swapaccount=1, or use version 2")]
    NoSwapLimit,
}

/// The tree of groups that has a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy<F = RealCgroups> {
    controller: &'static str,
    version: Version,
    root: PathBuf,
    /// Our own group, below the root.
    own: PathBuf,
    files: F,
}

impl Hierarchy<RealCgroups> {
    pub fn find() -> Result<Hierarchy<RealCgroups>, CgroupError> {
        Hierarchy::find_in(&crate::proc::RealProc, RealCgroups)
    }

    /// The tree that has the CPU controller.
    pub fn find_cpu() -> Result<Hierarchy<RealCgroups>, CgroupError> {
        Hierarchy::find_of(CPU, &crate::proc::RealProc, RealCgroups)
    }
}

impl<F: CgroupFiles + Clone> Hierarchy<F> {
    /// Finds the hierarchy of memory by what `/proc` says.
    pub fn find_in(source: &impl ProcSource, files: F) -> Result<Hierarchy<F>, CgroupError> {
        Hierarchy::find_of(MEMORY, source, files)
    }

    fn find_of(
        controller: &'static str,
        source: &impl ProcSource,
        files: F,
    ) -> Result<Hierarchy<F>, CgroupError> {
        let mounts = read_long_text(source, "/proc/self/mountinfo")?;
        let groups = read_long_text(source, "/proc/self/cgroup")?;
        let has_it = |root: &Path| {
            files
                .read(&root.join("cgroup.controllers"))
                .is_ok_and(|list| list.split_whitespace().any(|name| name == controller))
        };
        let mount = parse::mount_of(controller, &mounts, has_it);
        let mount = mount.ok_or(CgroupError::NoController(controller))?;
        let own = parse::own_group(controller, &groups, mount.version).unwrap_or("/");
        // In a container the mount may show only a part of the tree.
        let below = own.strip_prefix(mount.shows.as_str()).unwrap_or(own);
        Ok(Hierarchy {
            controller,
            version: mount.version,
            own: PathBuf::from(below.trim_start_matches('/')),
            root: mount.root,
            files,
        })
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The group of this process; not removed when dropped.
    pub fn own(&self) -> MemoryCgroup<F> {
        self.group(&self.own)
    }

    /// An existing group by its path below the root; not removed when dropped.
    pub fn group(&self, path: impl AsRef<Path>) -> MemoryCgroup<F> {
        MemoryCgroup::existing(self.clone(), path.as_ref().to_path_buf())
    }

    /// Makes a group at the root of the hierarchy.
    pub fn create(&self, name: &str) -> Result<MemoryCgroup<F>, CgroupError> {
        self.create_below(Path::new(""), name)
    }

    /// Makes a group below another; it is removed when dropped.
    pub fn create_below(&self, parent: &Path, name: &str) -> Result<MemoryCgroup<F>, CgroupError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.starts_with('.') || !name.chars().all(allowed) {
            return Err(CgroupError::BadName(name.to_string()));
        }
        if self.version == Version::V2 {
            // Children get the controller only where their parent hands it down.
            let control = self.root.join(parent).join("cgroup.subtree_control");
            self.write(&control, &format!("+{}", self.controller))?;
        }
        let below = parent.join(name);
        let path = self.root.join(&below);
        self.files
            .create_dir(&path)
            .map_err(|source| CgroupError::File {
                action: "create",
                path,
                source,
            })?;
        Ok(MemoryCgroup::made(self.clone(), below))
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), CgroupError> {
        self.files
            .write(path, text)
            .map_err(|source| CgroupError::File {
                action: "write",
                path: path.to_path_buf(),
                source,
            })
    }

    fn read(&self, path: &Path) -> Result<String, CgroupError> {
        self.files.read(path).map_err(|source| CgroupError::File {
            action: "read",
            path: path.to_path_buf(),
            source,
        })
    }
}
