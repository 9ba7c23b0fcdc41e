//! Where jobs are kept, and how they are found.
//!
//! One directory for each user, `muninn-UID` in the most private place there is, in which nobody else
//! may look around: who can write a job's page decides where pages go. Invariant: a file gets its name only when it is
//! complete and its memory is taken, so nobody sees half of one, and a full disk is an error here and
//! not a signal later. Files of launchers that died without cleaning up are removed when the next
//! one starts.

use crate::job::map;
use crate::layout::{Layout, Seat};
use crate::{Job, JobError, PLACES_READY};
use muninn_sys::files::open_plain;
use muninn_sys::memory::{Memfd, Shared};
use muninn_sys::proc::{self, ProcessId};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Names of finished pages begin with this, and with a dot before that until they are finished.
/// Other files of a launcher that are named so, with its pid next, are swept with them.
pub const PREFIX: &str = "job-";

/// A job that was found.
#[derive(Debug)]
pub struct Found {
    pub job: Job,
    /// False when the launcher is gone and only processes it started are left.
    pub launcher_alive: bool,
}

/// Makes a complete file of zeros and maps it.
pub(crate) fn create(launcher: ProcessId) -> Result<(PathBuf, Shared<Layout>), JobError> {
    first_possible(|dir| create_in(dir, launcher))
}

/// The directory of this user, made if it is not there: for other private files of a launcher.
pub fn own_directory() -> Result<PathBuf, JobError> {
    first_possible(|dir| match private_directory(dir) {
        Ok(()) => Ok(dir.to_path_buf()),
        Err(source) => Err(JobError::Create {
            path: dir.to_path_buf(),
            source,
        }),
    })
}

/// What can be done in one of the places, the best first, or why not in the best.
fn first_possible<T>(mut action: impl FnMut(&Path) -> Result<T, JobError>) -> Result<T, JobError> {
    let mut first_error = None;
    for place in places(|name| std::env::var_os(name)) {
        match action(&place.join(own_name())) {
            Ok(made) => return Ok(made),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    Err(first_error.unwrap_or_else(|| JobError::Create {
        path: PathBuf::from("/tmp"),
        source: io::ErrorKind::NotFound.into(),
    }))
}

fn create_in(dir: &Path, launcher: ProcessId) -> Result<(PathBuf, Shared<Layout>), JobError> {
    let failed = |source| JobError::Create {
        path: dir.to_path_buf(),
        source,
    };
    private_directory(dir).map_err(failed)?;
    sweep(dir);
    let name = format!(
        "{PREFIX}{}-{:016x}",
        launcher.pid(),
        muninn_sys::rand::u64()
    );
    let hidden = dir.join(format!(".{name}"));
    let made = fill(&hidden).map_err(failed).and_then(|file| {
        let page = map(&file, &hidden)?;
        let path = dir.join(&name);
        fs::rename(&hidden, &path).map_err(failed)?;
        Ok((path, page))
    });
    if made.is_err() {
        let _ = fs::remove_file(&hidden);
    }
    made
}

fn fill(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    // Written and not only lengthened: its memory must be there before it is mapped. Only for few of
    // the places; who takes one of the others takes its memory with it.
    let ready = std::mem::offset_of!(Layout, places) + PLACES_READY * size_of::<Seat>();
    io::Write::write_all(&mut &file, &vec![0; ready])?;
    file.set_len(Shared::<Layout>::LEN.0)?;
    Ok(file)
}

/// Makes the directory, or checks that the one that is there is ours alone.
fn private_directory(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    if is_private(dir, proc::own_uid()) {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to somebody else or is open to others",
        ))
    }
}

/// A directory (not a link to one) of this user, in which nobody else may look around. Those who
/// know a name may come: what lies there has permissions of its own.
fn is_private(dir: &Path, uid: u32) -> bool {
    fs::symlink_metadata(dir)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == uid && meta.mode() & 0o066 == 0)
}

fn own_name() -> String {
    format!("muninn-{}", proc::own_uid())
}

/// Where the directory may be, best first.
fn places(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let runtime = variable("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.is_dir());
    let mut places: Vec<PathBuf> = runtime.into_iter().collect();
    places.extend(["/dev/shm", "/tmp"].map(PathBuf::from));
    places
}

/// Removes what launchers left behind that are dead, as are all their processes.
fn sweep(dir: &Path) {
    for path in files(dir) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let unfinished = name.starts_with('.');
        let maker = name
            .trim_start_matches('.')
            .trim_start_matches(PREFIX)
            .split('-')
            .next()
            .and_then(|pid| pid.parse().ok())
            .and_then(ProcessId::of);
        let stale = match Job::open(&path) {
            // Somebody with the launcher's number is alive, so it may be of use.
            Err(_) => maker.is_none(),
            Ok(_) if unfinished => maker.is_none(),
            Ok(job) => {
                let launcher = job.launcher().is_some_and(ProcessId::is_alive);
                !launcher && !job.places().any(|place| place.is_alive())
            }
        };
        if stale {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Files in the directory that have the names of ours.
fn files(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.trim_start_matches('.').starts_with(PREFIX)
    };
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(ours)
}

/// All jobs of this user, and for root those of everybody in the usual places. What belongs to
/// others is a copy: they could cut the file, or have put something else in its place.
pub fn find_all() -> Vec<Found> {
    find(open_copy)
}

fn find(open_foreign: fn(&Path, u32) -> Option<Job>) -> Vec<Found> {
    let own = own_name();
    let uid = proc::own_uid();
    let mut found = Vec::new();
    for place in places(|name| std::env::var_os(name)) {
        let Ok(entries) = fs::read_dir(&place) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix("muninn-").and_then(|n| n.parse().ok());
            let wanted = name == own || (uid == 0 && owner.is_some());
            if let Some(owner) = owner.filter(|_| wanted)
                && is_private(&entry.path(), owner)
            {
                let open = |path: &Path| match owner == uid {
                    true => Job::open(path).ok(),
                    false => open_foreign(path, owner),
                };
                found.extend(files(&entry.path()).filter_map(|path| look(&path, open)));
            }
        }
    }
    found.sort_by(|a, b| a.job.path().cmp(b.job.path()));
    found
}

/// A complete job with anybody alive in it.
fn look(path: &Path, open: impl Fn(&Path) -> Option<Job>) -> Option<Found> {
    if path.file_name()?.to_string_lossy().starts_with('.') {
        return None;
    }
    let job = open(path)?;
    let launcher_alive = job.launcher().is_some_and(ProcessId::is_alive);
    let any_alive = launcher_alive || job.places().any(|place| place.is_alive());
    any_alive.then_some(Found {
        job,
        launcher_alive,
    })
}

/// Another user's job as it is at this moment.
fn open_copy(path: &Path, owner: u32) -> Option<Job> {
    let file = open_plain(path, owner, false).ok()?;
    if file.metadata().ok()?.len() != Shared::<Layout>::LEN.0 {
        return None;
    }
    let copy = Memfd::create("muninn-job", Shared::<Layout>::LEN).ok()?;
    let mut copy = File::from(copy.as_fd().try_clone_to_owned().ok()?);
    let mut bytes = io::Read::take(file, Shared::<Layout>::LEN.0);
    io::copy(&mut bytes, &mut copy).ok()?;
    Job::of_file(&copy, path.to_path_buf()).ok()
}

/// Another user's job itself, to be changed.
fn open_live(path: &Path, owner: u32) -> Option<Job> {
    let file = open_plain(path, owner, true).ok()?;
    Job::of_file(&file, path.to_path_buf()).ok()
}

/// The job whose launcher this is, or one of whose processes.
pub fn find_by_pid(pid: u32) -> Option<Job> {
    let process = ProcessId::of(pid)?;
    find(open_live)
        .into_iter()
        .map(|found| found.job)
        .find(|job| job.launcher() == Some(process) || job.places().any(|p| p.process() == process))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_directory_of_ones_own_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("muninn-0");
        private_directory(&path).unwrap();
        private_directory(&path).unwrap();
        let uid = proc::own_uid();
        assert!(is_private(&path, uid) && !is_private(&path, uid + 1));
        fs::set_permissions(&path, PermissionsExt::from_mode(0o750)).unwrap();
        assert_eq!(
            private_directory(&path).unwrap_err().to_string(),
            "it belongs to somebody else or is open to others"
        );
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        assert!(private_directory(&link).is_err());
    }

    #[test]
    fn the_most_private_place_comes_first() {
        let places = |value: Option<&str>| places(|_| value.map(OsString::from));
        let all = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(places(Some("/proc")), all(&["/proc", "/dev/shm", "/tmp"]));
        assert_eq!(places(Some("relative")), all(&["/dev/shm", "/tmp"]));
        assert_eq!(places(Some("/not/there")), all(&["/dev/shm", "/tmp"]));
        assert_eq!(places(None), all(&["/dev/shm", "/tmp"]));
    }

    #[test]
    fn leftovers_of_the_dead_are_swept_and_the_living_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        let launcher = ProcessId::of(std::process::id()).unwrap();
        let (kept, _page) = create_in(&own, launcher).unwrap();
        // Of a process number that no Linux gives out, finished and unfinished.
        let dead = [own.join("job-4999999-1"), own.join(".job-4999999-2")];
        for path in &dead {
            fs::write(path, "").unwrap();
        }
        let other = own.join("something-else");
        fs::write(&other, "").unwrap();
        sweep(&own);
        assert!(kept.exists() && other.exists());
        assert!(dead.iter().all(|path| !path.exists()));
        let mode = fs::metadata(&kept).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
