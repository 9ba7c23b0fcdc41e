//! Files of the kernel as a test wants them.
//!
//! Each path has a list of texts: every read from the start takes the next one and the last stays,
//! so a test can let memory grow from look to look. Known limit: a text is given out as it is at
//! the first read; one that is read in several pieces should stand alone.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use rustix::io::Errno;

use super::ProcSource;

type Files = HashMap<String, VecDeque<Result<String, Errno>>>;

/// Texts by path.
#[derive(Debug, Default)]
pub struct FakeProc {
    files: Mutex<Files>,
}

impl FakeProc {
    pub fn new() -> FakeProc {
        FakeProc::default()
    }

    /// Adds a text; a second one for the same path is given to the second reader.
    #[must_use]
    pub fn with(self, path: &str, text: &str) -> FakeProc {
        self.push(path, Ok(text.to_string()));
        self
    }

    /// Lets a read fail.
    #[must_use]
    pub fn failing(self, path: &str, error: Errno) -> FakeProc {
        self.push(path, Err(error));
        self
    }

    pub fn push(&self, path: &str, text: Result<String, Errno>) {
        let mut files = self.files();
        files.entry(path.to_string()).or_default().push_back(text);
    }
}

impl FakeProc {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl ProcSource for FakeProc {
    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut files = self.files();
        let texts = files.get_mut(path).ok_or(Errno::NOENT)?;
        let text = texts.front().cloned().ok_or(Errno::NOENT)??;
        let rest = text.as_bytes().get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        // The last piece has been delivered: the next reader gets the next text.
        if n == rest.len() && texts.len() > 1 && (n < buffer.len() || offset == 0) {
            texts.pop_front();
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::read_number;

    #[test]
    fn texts_follow_each_other_and_the_last_stays() {
        let fake = FakeProc::new().with("/n", "1").with("/n", "2");
        let numbers: Vec<u64> = (0..3).map(|_| read_number(&fake, "/n").unwrap()).collect();
        assert_eq!(numbers, [1, 2, 2]);
        let failing = FakeProc::new().failing("/n", Errno::ACCESS);
        assert!(read_number(&failing, "/n").is_err());
    }
}
