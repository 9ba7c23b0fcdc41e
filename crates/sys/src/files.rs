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
    fn a_program_may_be_executed_and_a_text_may_not() {
        assert!(may_execute(Path::new("/proc/self/exe")));
        assert!(!may_execute(Path::new("/etc/passwd")));
        assert!(!may_execute(Path::new("/not/there")));
        assert!(!has_capabilities(Path::new("/etc/passwd")));
    }
}
