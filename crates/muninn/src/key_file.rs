//! Key files: one key, text or bytes, readable by its owner only.

use crate::failure::{Exit, Failure};
use crate::ui;
use muninn_net::Key;
use muninn_proto::secure::wipe;
use muninn_server::MetricsToken;
use muninn_sys::clock;
use muninn_sys::files::open_found;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Nobody but the owner may write; a group may be let in to read, all others may not.
const FORBIDDEN_MODE: u32 = 0o027;
/// White space around a key is passed over, but a file longer than this is something else.
const FILE_MAX: u64 = 64 << 10;
/// Seconds before its end at which a key's user is told.
const SOON: u64 = 14 * 86_400;
/// Random bytes of a fresh key.
pub const FRESH_LEN: usize = 32;

/// The key in a file, or no key where no file is named. Says so if it is about to expire.
pub fn load(path: Option<&Path>) -> Result<Key, Failure> {
    let Some(path) = path else {
        return Ok(Key::none());
    };
    let key = read(path)?;
    if let Some(until) = expires(&key)
        && until.saturating_sub(clock::unix()) < SOON
    {
        let (path, date) = (path.display(), ui::date(until));
        eprintln!(
            "muninn: the key in {path} expires {date}: 'muninn keygen rotate {path}' makes another in its place"
        );
    }
    Ok(key)
}

/// When a key is believed no more, in seconds since 1970.
fn expires(key: &Key) -> Option<u64> {
    Some(key.credentials()?.identity().until?.0)
}

/// A key that is believed still.
fn read(path: &Path) -> Result<Key, Failure> {
    let key = read_any(path)?;
    match expires(&key).filter(|until| *until <= clock::unix()) {
        None => Ok(key),
        Some(until) => {
            let (path, date) = (path.display(), ui::date(until));
            Err(Failure::usage(format!(
                "the key in {path} has expired ({date}): 'muninn keygen rotate {path}' makes another in its place"
            )))
        }
    }
}

/// A key, also one that has expired.
pub fn read_any(path: &Path) -> Result<Key, Failure> {
    // Nobody reads the key out of this process, and no dump of it has the key in it.
    muninn_sys::secret::hide_process();
    let mut contents = private_bytes(path)?;
    let key = Key::from_file_contents(&contents);
    wipe(&mut contents);
    let key = key.map_err(|error| {
        let shown = path.display();
        Failure::usage(format!(
            "the key file {shown} is of no use: {error}; 'muninn keygen PATH' makes a good one"
        ))
    })?;
    key.for_each_secret(muninn_sys::secret::lock);
    Ok(key)
}

/// The token in a file that is as private as a key's.
pub fn metrics_token(path: &Path) -> Result<MetricsToken, Failure> {
    let text = String::from_utf8(private_bytes(path)?).unwrap_or_default();
    MetricsToken::from_file_contents(text.trim_ascii()).ok_or_else(|| {
        let shown = path.display();
        Failure::usage(format!(
            "the file {shown} holds no token: 16 to 256 letters, digits and signs without spaces; \
             'muninn keygen {shown}' makes one"
        ))
    })
}

/// What a file holds that nobody but its owner can have written, and few have read.
fn private_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let advice = match error.kind() {
            ErrorKind::NotFound => format!("make one with 'muninn keygen {shown}'"),
            ErrorKind::PermissionDenied => {
                "run as its owner, or copy the key to a file of your own".to_string()
            }
            _ => "name another with --key-file".to_string(),
        };
        Failure::usage(format!(
            "cannot read the key file {shown}: {error}; {advice}"
        ))
    };
    // A pipe in its place keeps nobody waiting.
    let file = open_found(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Failure::usage(format!(
            "cannot read the key file {shown}: it is not a file; name another with --key-file"
        )));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & FORBIDDEN_MODE != 0 {
        return Err(Failure::usage(format!(
            "the key file {shown} is open to others (mode {mode:04o}), so its key may be known: \
             'chmod 600 {shown}', and if others could read it, make a new one with 'muninn keygen'"
        )));
    }
    // All at once: nothing of it stays behind in memory that was too small.
    let mut contents = Vec::with_capacity(FILE_MAX as usize);
    file.take(FILE_MAX)
        .read_to_end(&mut contents)
        .map_err(unreadable)?;
    Ok(contents)
}

/// Writes a fresh key to a new file.
pub fn create(path: &Path) -> Result<(), Failure> {
    let key: [u8; FRESH_LEN] = muninn_sys::rand::bytes();
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    write_new(path, &format!("{text}\n"))
}

/// Writes a new file that only its owner can read.
pub fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let shown = path.display();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(
            Exit::Failed,
            format!(
                "{shown} is there already and was left alone: servers may be using its key; \
                 choose another name, or remove it first"
            ),
        ),
        _ => Failure::failed(format!("cannot write the key file {shown}: {error}")),
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)
}

/// Puts another text into a file, all of it at once for whoever reads it meanwhile.
pub fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{:016x}", muninn_sys::rand::u64()));
    let beside = path.with_file_name(name);
    write_new(&beside, text)?;
    std::fs::rename(&beside, path).map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        Failure::failed(format!("cannot change {}: {error}", path.display()))
    })
}

/// A key file that is read again when it has changed.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    seen: Option<(u64, i64, i64, u64)>,
}

impl Watched {
    pub fn new(path: &Path) -> Watched {
        let path = path.to_path_buf();
        let seen = Watched::look(&path);
        Watched { path, seen }
    }

    fn look(path: &Path) -> Option<(u64, i64, i64, u64)> {
        let about = std::fs::metadata(path).ok()?;
        Some((about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
    }

    /// The key, if there is another one since; or why what is there now is none.
    pub fn changed(&mut self) -> Option<Result<Key, Failure>> {
        // One that is gone changes nothing: it may be about to be replaced, or was meant for one start.
        let now = Some(Watched::look(&self.path)?);
        if now == self.seen {
            return None;
        }
        Some(self.read())
    }

    /// The key, whether it has changed or not.
    pub fn read(&mut self) -> Result<Key, Failure> {
        self.seen = Watched::look(&self.path);
        read(&self.path)
    }
}

/// The key for those who ask again and again: that of the file as it is by then, or, where that is
/// none, as it was before.
#[derive(Debug)]
pub struct Current {
    key: Key,
    watched: Option<Watched>,
}

impl Current {
    pub fn load(path: Option<&Path>) -> Result<Current, Failure> {
        // Looked at first: what is written between the two is read once more.
        let watched = path.map(Watched::new);
        let key = load(path)?;
        Ok(Current { key, watched })
    }

    /// Always this one.
    pub fn fixed(key: Key) -> Current {
        Current { key, watched: None }
    }

    pub fn key(&mut self) -> &Key {
        if let Some(Ok(key)) = self.watched.as_mut().and_then(Watched::changed) {
            self.key = key;
        }
        &self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_key_is_private_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let key = load(Some(&path)).unwrap();
        assert!(!key.is_none());
        let other = dir.path().join("other");
        create(&other).unwrap();
        assert!(
            load(Some(&other)).unwrap() != key,
            "two fresh keys are equal"
        );
        assert!(load(None).unwrap().is_none());
    }

    #[test]
    fn a_group_may_read_but_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create(&path).unwrap();
        for (mode, fine) in [(0o400, true), (0o640, true), (0o660, false), (0o604, false)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(load(Some(&path)).is_ok(), fine, "mode {mode:o}");
        }
    }
}
