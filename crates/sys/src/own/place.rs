//! Where a companion is: which folder it takes for the root, and whose numbers of processes it sees.
//!
//! A child of a program that has changed its root has a companion with that root, in which there may be
//! neither `/proc` nor the pool's socket. A companion has a working folder of its own, though, and may be
//! handed the root of somebody else: so files are opened from there, by names without the first slash.

use rustix::io::Errno;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

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

/// The number of the program in `/proc`, if that is not the program's own.
static LISTED: AtomicU32 = AtomicU32::new(0);

/// Finds out under which number `/proc` lists the program: in a namespace of processes without a `/proc`
/// of its own it is the one that others know, which is `theirs`.
pub fn learn_listed(theirs: u32) {
    let Ok(own) = rustix::fs::readlink(rooted("/proc/self"), Vec::new()) else {
        return;
    };
    let listed = own.to_str().ok().and_then(|own| own.parse().ok());
    let same = listed == Some(std::process::id());
    LISTED.store(if same { 0 } else { theirs }, Ordering::Release);
}

/// A child of a fork has to find out for itself.
pub(super) fn forget_listed() {
    LISTED.store(0, Ordering::Release);
}

/// The program's number in `/proc`.
pub fn listed_pid() -> u32 {
    match LISTED.load(Ordering::Acquire) {
        0 => super::program_pid(),
        listed => listed,
    }
}

/// Whether `/proc` lists threads under other numbers than they know themselves by.
pub fn is_listed_otherwise() -> bool {
    LISTED.load(Ordering::Acquire) != 0
}

/// The namespace of process numbers that the calling process is in; `None` where there is no `/proc`.
pub fn pid_namespace() -> Option<u64> {
    let stat = rustix::fs::stat(rooted("/proc/self/ns/pid")).ok()?;
    Some(stat.st_ino)
}
