//! Messages as lines of JSON, with a bound on their length.
//!
//! Invariant: what did not arrive whole is never parsed, and nobody can make us keep more than
//! [`LINE_MAX`] bytes for a line that has no end.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A state of a few thousand jobs is a megabyte.
pub const LINE_MAX: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("a message is longer than {LINE_MAX} bytes")]
    TooLong,
    #[error("a message makes no sense: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Bytes that have arrived and are no whole line yet.
#[derive(Debug)]
pub struct Lines {
    held: Vec<u8>,
    max: usize,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines::up_to(LINE_MAX)
    }
}

impl Lines {
    /// For those who have little to say.
    pub fn up_to(max: usize) -> Lines {
        Lines {
            held: Vec::new(),
            max,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next message, if one is whole.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        let Some(end) = self.held.iter().position(|byte| *byte == b'\n') else {
            return match self.held.len() > self.max {
                true => Err(LineError::TooLong),
                false => Ok(None),
            };
        };
        if end > self.max {
            return Err(LineError::TooLong);
        }
        let parsed = serde_json::from_slice(&self.held[..end]);
        self.held.drain(..=end);
        Ok(Some(parsed?))
    }
}

pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // Plain structs of our own: strings are escaped, so there is no line end in them.
    let mut line = serde_json::to_vec(message).expect("plain data serialises");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_arrive_whole_however_they_are_cut(
            texts in prop::collection::vec(any::<String>(), 0..6),
            cut in 1usize..20,
        ) {
            let wire: Vec<u8> = texts.iter().flat_map(encode).collect();
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for piece in wire.chunks(cut) {
                lines.push(piece);
                while let Some(text) = lines.take::<String>().unwrap() {
                    seen.push(text);
                }
            }
            prop_assert_eq!(seen, texts);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut lines = Lines::up_to(64);
            lines.push(&bytes);
            while let Ok(Some(_)) = lines.take::<crate::message::ToAgent>() {}
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = Lines::up_to(8);
        lines.push(b"123456789");
        assert!(matches!(lines.take::<u64>(), Err(LineError::TooLong)));
    }
}
