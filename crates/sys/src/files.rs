//! What may be done with a file, what it gives to those who execute it, and whose it is.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};

/// Opens a plain file of this user in a folder that others may have prepared: no link is followed,
/// and nothing else than a file of one name is opened, so that neither a pipe makes us wait, nor a
/// device does something, nor a file of somebody else's is changed through a second name.
pub fn open_plain(path: &Path, owner: u32, writable: bool) -> io::Result<File> {
    // Looked at before it is opened: a handle that can do nothing, which then cannot change.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let seen = File::from(handle);
    let about = seen.metadata()?;
    if !about.is_file() || about.uid() != owner || about.nlink() != 1 {
        let why = "it is not a plain file of its owner's";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let number = std::os::fd::AsRawFd::as_raw_fd(&seen);
    let mut options = File::options();
    options.read(true).write(writable);
    options.open(format!("/proc/self/fd/{number}"))
}

/// Opens a file that was found, not named. What others may have put there in its place does not make
/// us wait.
pub fn open_found(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?.into())
}

/// Why a file that was found, not named, is not to be believed, if somebody other than this user
/// and root could have written it or put it there.
pub fn distrusted(path: &Path, file: &File) -> Option<String> {
    let (own, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let strange = |uid: u32| uid != 0 && uid != own.as_raw();
    let (Ok(name), Ok(about)) = (path.symlink_metadata(), file.metadata()) else {
        return Some("it cannot be looked at".to_string());
    };
    for uid in [name.uid(), about.uid()] {
        if strange(uid) {
            return Some(format!("it belongs to another user (uid {uid})"));
        }
    }
    if !about.is_file() {
        return Some("it is not a file".to_string());
    }
    let open_group = about.mode() & 0o020 != 0 && ![0, group.as_raw()].contains(&about.gid());
    if about.mode() & 0o002 != 0 || open_group {
        let mode = about.mode() & 0o777;
        return Some(format!("others may write to it (mode {mode:04o})"));
    }
    None
}

/// Why a file in this folder could be exchanged by somebody else than this user and root, if it could:
/// the folder and all above it, with links followed, must be theirs. Folders in which everybody may
/// write, but take away only what is his own (`/tmp`), may be above.
pub fn exchangeable(folder: &Path) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let real = match folder.canonicalize() {
        Ok(real) => real,
        Err(error) => return Some(format!("it cannot be looked at: {error}")),
    };
    for (height, above) in real.ancestors().enumerate() {
        let Ok(about) = above.symlink_metadata() else {
            return Some(format!("{} cannot be looked at", above.display()));
        };
        if about.uid() != 0 && about.uid() != own {
            let (at, uid) = (above.display(), about.uid());
            return Some(format!("{at} belongs to another user (uid {uid})"));
        }
        let sticky = height > 0 && about.mode() & 0o1000 != 0;
        if about.mode() & 0o022 != 0 && !sticky {
            let (at, mode) = (above.display(), about.mode() & 0o7777);
            return Some(format!("others may write to {at} (mode {mode:04o})"));
        }
    }
    None
}

/// Whether code in this file can be mapped: it cannot from a place that is mounted `noexec`.
pub fn may_map_code(file: &File) -> io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let length = muninn_types::PAGE_SIZE;
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    let anywhere = std::ptr::null_mut();
    // SAFETY: a new mapping at an address of the kernel's choice; nobody reads or runs what is in it.
    let mapped = unsafe { mmap(anywhere, length, protection, MapFlags::PRIVATE, file, 0) }?;
    // SAFETY: the mapping made above, of this length, to which nothing refers.
    unsafe { munmap(mapped, length) }?;
    Ok(())
}

/// Whether this user may execute the file.
pub fn may_execute(path: &Path) -> bool {
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Whether the file carries capabilities (setcap).
pub fn has_capabilities(path: &Path) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_pipes_and_second_names_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let own = rustix::process::geteuid().as_raw();
        std::fs::write(at("plain"), "x").unwrap();
        assert!(open_plain(&at("plain"), own, true).is_ok());
        assert!(open_plain(&at("plain"), own + 1, false).is_err());
        std::os::unix::fs::symlink(at("plain"), at("link")).unwrap();
        rustix::fs::mkfifoat(CWD, at("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        for name in ["link", "pipe", ".", "not-there"] {
            assert!(open_plain(&at(name), own, false).is_err(), "{name}");
        }
        std::fs::hard_link(at("plain"), at("second")).unwrap();
        assert!(open_plain(&at("second"), own, false).is_err());
    }

    #[test]
    fn what_others_may_write_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let why = |mode: u32| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
            distrusted(&path, &File::open(&path).unwrap())
        };
        assert_eq!(why(0o644), None);
        assert_eq!(why(0o664), None, "one's own group");
        let open = "others may write to it (mode 0666)";
        assert_eq!(why(0o666).as_deref(), Some(open));
    }

    #[test]
    fn whoever_could_exchange_a_file_is_noticed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (upper, folder) = (root.join("upper"), root.join("upper/folder"));
        std::fs::create_dir_all(&folder).unwrap();
        let mode = |path: &Path, mode: u32| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(&upper, 0o755);
        mode(&folder, 0o755);
        assert_eq!(
            exchangeable(&folder),
            None,
            "in a folder that all may write to"
        );
        let open = |at: &Path, mode: &str| {
            Some(format!(
                "others may write to {} (mode {mode})",
                at.display()
            ))
        };
        for (at, bits, said) in [
            (&folder, 0o777, "0777"),
            (&folder, 0o1777, "1777"),
            (&upper, 0o775, "0775"),
        ] {
            mode(at, bits);
            assert_eq!(exchangeable(&folder), open(at, said));
            mode(at, 0o755);
        }
        mode(&upper, 0o1777);
        assert_eq!(
            exchangeable(&folder),
            None,
            "only its owner may take it away"
        );
        let link = root.join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        mode(&folder, 0o775);
        assert_eq!(
            exchangeable(&link),
            open(&folder, "0775"),
            "where links lead"
        );
        if rustix::process::geteuid().is_root() {
            mode(&folder, 0o755);
            std::os::unix::fs::chown(&upper, Some(1), None).unwrap();
            let strange = format!("{} belongs to another user (uid 1)", upper.display());
            assert_eq!(exchangeable(&folder), Some(strange));
        }
        assert!(exchangeable(&root.join("none")).is_some());
    }

    #[test]
    fn code_is_mapped_from_files_and_not_from_proc() {
        let own = File::open("/proc/self/exe").unwrap();
        may_map_code(&own).unwrap();
        let noexec = File::open("/proc/self/status").unwrap();
        assert!(may_map_code(&noexec).is_err());
    }

    #[test]
    fn a_program_may_be_executed_and_a_text_may_not() {
        assert!(may_execute(Path::new("/proc/self/exe")));
        assert!(!may_execute(Path::new("/etc/passwd")));
        assert!(!may_execute(Path::new("/not/there")));
        assert!(!has_capabilities(Path::new("/etc/passwd")));
    }
}
