//! Peaks of commands that were run before, so that `--local 50%` means something the next time.
//!
//! A small text file in the user's state folder, one command a line: peak, hash of the whole command
//! line, name of the program. Only the hash is kept: arguments may be secrets. Invariant: a file that
//! is missing, damaged or cannot be written costs nothing but the memory of it.

use muninn_types::Bytes;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Commands remembered; the oldest goes first.
const ENTRIES_MAX: usize = 256;

/// The file, if this user has a place for it.
#[derive(Debug)]
pub struct Peaks {
    path: Option<PathBuf>,
}

#[derive(Debug, PartialEq)]
struct Entry {
    peak: Bytes,
    hash: u64,
    name: String,
}

impl Peaks {
    pub fn of_user() -> Peaks {
        Peaks {
            path: place(|name| std::env::var_os(name)),
        }
    }

    pub fn get(&self, program: &Path, args: &[OsString]) -> Option<Bytes> {
        let hash = hash(program, args);
        let entries = self.read();
        entries
            .iter()
            .find(|entry| entry.hash == hash)
            .map(|entry| entry.peak)
    }

    pub fn remember(&self, program: &Path, args: &[OsString], peak: Bytes) {
        let hash = hash(program, args);
        let mut entries = self.read();
        entries.retain(|entry| entry.hash != hash);
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let entry = Entry {
            peak,
            hash,
            name: name.replace(char::is_control, "?"),
        };
        entries.insert(0, entry);
        entries.truncate(ENTRIES_MAX);
        self.write(&entries);
    }

    fn read(&self) -> Vec<Entry> {
        let text = self.path.as_ref().map(std::fs::read_to_string);
        let text = text.and_then(Result::ok).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.splitn(3, ' ');
            Some(Entry {
                peak: words.next()?.parse().ok()?,
                hash: u64::from_str_radix(words.next()?, 16).ok()?,
                name: words.next()?.to_string(),
            })
        };
        text.lines().filter_map(line).take(ENTRIES_MAX).collect()
    }

    fn write(&self, entries: &[Entry]) {
        let Some(path) = &self.path else { return };
        let line = |entry: &Entry| format!("{} {:016x} {}\n", entry.peak, entry.hash, entry.name);
        let text: String = entries.iter().map(line).collect();
        // Whole or not at all: another launcher may be reading or writing it.
        let fresh = path.with_extension(format!("{}", std::process::id()));
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&fresh, text))
            .and_then(|()| std::fs::rename(&fresh, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&fresh);
        }
    }
}

fn place(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME");
    let state = state.or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("muninn/peaks"))
}

/// FNV-1a over program and arguments, each closed by a zero.
fn hash(program: &Path, args: &[OsString]) -> u64 {
    let program = std::fs::canonicalize(program).unwrap_or_else(|_| program.to_path_buf());
    let words = [program.as_os_str()];
    let words = words.into_iter().chain(args.iter().map(OsStr::new));
    let bytes = words.flat_map(|word| word.as_bytes().iter().copied().chain([0]));
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_command_is_known_by_all_of_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/peaks");
        let peaks = Peaks {
            path: Some(path.clone()),
        };
        let sort = Path::new("/usr/bin/sort");
        assert_eq!(peaks.get(sort, &args(&["a"])), None);
        peaks.remember(sort, &args(&["a"]), Bytes::mib(300));
        peaks.remember(sort, &args(&["b"]), Bytes(4097));
        peaks.remember(sort, &args(&["a"]), Bytes::mib(400));
        assert_eq!(peaks.get(sort, &args(&["a"])), Some(Bytes::mib(400)));
        assert_eq!(peaks.get(sort, &args(&["b"])), Some(Bytes(4097)));
        assert_eq!(peaks.get(sort, &args(&["a", "b"])), None);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with(" sort\n"), "{text}");
        for n in 0..ENTRIES_MAX {
            peaks.remember(sort, &args(&["many", &n.to_string()]), Bytes(1));
        }
        assert_eq!(peaks.get(sort, &args(&["a"])), None, "the oldest is gone");
        std::fs::write(&path, "nonsense\n1GiB xyz name\n").unwrap();
        assert_eq!(peaks.read(), []);
    }

    #[test]
    fn the_state_folder_is_found() {
        let with = |state: Option<&str>, home: Option<&str>| {
            place(|name| match name {
                "HOME" => home.map(OsString::from),
                _ => state.map(OsString::from),
            })
        };
        assert_eq!(with(Some("/s"), None), Some("/s/muninn/peaks".into()));
        assert_eq!(
            with(Some("relative"), Some("/home/me")),
            Some("/home/me/.local/state/muninn/peaks".into())
        );
        assert_eq!(with(None, None), None);
        Peaks { path: None }.remember(Path::new("x"), &[], Bytes(1));
    }
}
