//! Where a companion is: which folder it takes for the root, and whose numbers of processes it sees.
//!
//! A child of a program that has changed its root has a companion with that root, in which there may be
//! neither `/proc` nor the pool's socket. A companion has a working folder of its own, though, and may be
//! handed the root of somebody else: so files are opened from there, by names without the first slash.

use rustix::io::Errno;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The working folder is the root from which files are opened.
static ROOTED: AtomicBool = AtomicBool::new(false);

/// From now on files are opened from the working folder, which is a root.
pub(super) fn begin() {
    ROOTED.store(true, Ordering::Release);
}

/// A path as this process is to open it.
pub fn rooted(path: &str) -> &str {
    match ROOTED.load(Ordering::Acquire) {
        true => path.trim_start_matches('/'),
        false => path,
    }
}

/// The same for a path of any bytes.
pub(crate) fn rooted_path(path: &Path) -> &Path {
    match ROOTED.load(Ordering::Acquire) {
        true => path.strip_prefix("/").unwrap_or(path),
        false => path,
    }
}

/// Takes a folder for the root.
pub fn enter_root(folder: impl AsFd) -> Result<(), Errno> {
    rustix::process::fchdir(folder)
}

/// The namespace of process numbers that the calling process is in; `None` where there is no `/proc`.
pub fn pid_namespace() -> Option<u64> {
    let stat = rustix::fs::stat(rooted("/proc/self/ns/pid")).ok()?;
    Some(stat.st_ino)
}
