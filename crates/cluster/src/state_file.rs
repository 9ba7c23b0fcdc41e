//! A file that is read back whole or not at all.
//!
//! Written beside, synced, and renamed into place; the one before is kept. The first line names the
//! length and a sum of what follows, so that a file that was torn all the same (a disk that lies, a copy
//! that was cut) is not believed, and the one before is.
//!
//! Known limit: the sum is against accidents. Who can write to the folder can write anything.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Longer files are something else.
const FILE_MAX: u64 = 1 << 30;

#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Whether it must be on the disk before a save is over.
    durable: bool,
}

/// What was found.
#[derive(Debug, PartialEq)]
pub enum Found<T> {
    Whole(T),
    /// The last one is damaged: this is the one before it.
    Older(T),
    /// There never was one.
    Nothing,
    /// There was one, and all that is left of it is damaged.
    Damaged,
}

impl StateFile {
    pub fn durable(path: impl Into<PathBuf>) -> StateFile {
        StateFile {
            path: path.into(),
            durable: true,
        }
    }

    /// For what is of no use after the machine was started again.
    pub fn fleeting(path: impl Into<PathBuf>) -> StateFile {
        StateFile {
            path: path.into(),
            durable: false,
        }
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_os_string();
        name.push(ending);
        self.path.with_file_name(name)
    }

    pub fn load<T: DeserializeOwned>(&self) -> Found<T> {
        let newest = read(&self.path);
        if let Ok(Some(state)) = newest {
            return Found::Whole(state);
        }
        match read(&self.beside(".before")) {
            Ok(Some(state)) => Found::Older(state),
            Ok(None) if matches!(newest, Ok(None)) => Found::Nothing,
            _ => Found::Damaged,
        }
    }

    pub fn save(&self, state: &impl Serialize) -> io::Result<()> {
        let body = serde_json::to_vec(state)?;
        let head = format!("muninn-state 1 {} {:016x}\n", body.len(), sum(&body));
        let (new, before) = (self.beside(".new"), self.beside(".before"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new)?;
        file.write_all(head.as_bytes())?;
        file.write_all(&body)?;
        if self.durable {
            file.sync_all()?;
        }
        // A second name first, so that there is no moment without a file. A failure only means that
        // there is none before.
        let _ = std::fs::remove_file(&before);
        let _ = std::fs::hard_link(&self.path, &before);
        std::fs::rename(&new, &self.path)?;
        if self.durable
            && let Some(folder) = self.path.parent()
        {
            let folder = if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            };
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}

/// `Ok(None)`: there is no file.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err(()),
    };
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(drop)?;
    let end = bytes.iter().position(|b| *b == b'\n').ok_or(())?;
    let (head, body) = (&bytes[..end], &bytes[end + 1..]);
    let expected = format!("muninn-state 1 {} {:016x}", body.len(), sum(body));
    if head != expected.as_bytes() {
        return Err(());
    }
    serde_json::from_slice(body).map(Some).map_err(drop)
}

/// FNV-1a: enough to tell a torn file.
fn sum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_torn_anywhere_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::durable(dir.path().join("state"));
        assert_eq!(file.load::<Vec<u32>>(), Found::Nothing);
        file.save(&vec![1u32, 2]).unwrap();
        file.save(&vec![3u32, 4, 5]).unwrap();
        assert_eq!(file.load(), Found::Whole(vec![3u32, 4, 5]));
        let whole = std::fs::read(dir.path().join("state")).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(dir.path().join("state"), &whole[..cut]).unwrap();
            assert_eq!(file.load(), Found::Older(vec![1u32, 2]), "cut at {cut}");
        }
        for bit in 0..whole.len() * 8 {
            let mut wrong = whole.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(dir.path().join("state"), &wrong).unwrap();
            assert_eq!(file.load(), Found::Older(vec![1u32, 2]), "bit {bit}");
        }
        std::fs::write(dir.path().join("state.before"), "nonsense").unwrap();
        assert_eq!(file.load::<Vec<u32>>(), Found::Damaged);
        // It goes on from there.
        file.save(&vec![9u32]).unwrap();
        assert_eq!(file.load(), Found::Whole(vec![9u32]));
    }
}
