//! The files of a cgroup tree, as a seam.
//!
//! Known limit: the kernel takes one value per write and answers errors at the write, so texts are
//! written in one piece or not at all.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Something that holds the files of cgroups.
pub trait CgroupFiles {
    fn read(&self, path: &Path) -> Result<String, Errno>;
    fn write(&self, path: &Path, text: &str) -> Result<(), Errno>;
    fn create_dir(&self, path: &Path) -> Result<(), Errno>;
    fn remove_dir(&self, path: &Path) -> Result<(), Errno>;
}

/// The files of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RealCgroups;

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

impl CgroupFiles for RealCgroups {
    fn read(&self, path: &Path) -> Result<String, Errno> {
        let file = open(path, OFlags::RDONLY)?;
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut piece))? {
                0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
                n => text.extend_from_slice(&piece[..n]),
            }
        }
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), Errno> {
        let file = open(path, OFlags::WRONLY)?;
        let n = rustix::io::retry_on_intr(|| rustix::io::write(&file, text.as_bytes()))?;
        if n == text.len() {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }

    fn create_dir(&self, path: &Path) -> Result<(), Errno> {
        rustix::fs::mkdir(path, Mode::from_raw_mode(0o755))
    }

    fn remove_dir(&self, path: &Path) -> Result<(), Errno> {
        rustix::fs::rmdir(path)
    }
}
