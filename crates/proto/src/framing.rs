//! Bytes of a stream into a header and its body.
//!
//! Holds at most one frame without its payload. A header with lengths over the limits is refused
//! before anything is waited for.

use muninn_wire::{DecodeError, HEADER_LEN, Header};

#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    header: Option<Header>,
}

impl FrameBuffer {
    /// Bytes that it holds beside what it is.
    pub fn held(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes bytes off the front of `input`; the header once it and its body are whole and sound.
    pub fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Header>, DecodeError> {
        if !self.collect(HEADER_LEN, input) {
            return Ok(None);
        }
        let head = *self
            .bytes
            .first_chunk::<HEADER_LEN>()
            .expect("a whole header was collected");
        let header = match self.header {
            Some(header) => header,
            None => *self.header.insert(Header::decode(&head)?),
        };
        if !self.collect(HEADER_LEN + header.body_len as usize, input) {
            return Ok(None);
        }
        Header::verify(&head, self.body())?;
        Ok(Some(header))
    }

    /// Fills up to `upto` bytes; whether there are that many now.
    fn collect(&mut self, upto: usize, input: &mut &[u8]) -> bool {
        let n = upto.saturating_sub(self.bytes.len()).min(input.len());
        let (now, later) = input.split_at(n);
        self.bytes.extend_from_slice(now);
        *input = later;
        self.bytes.len() >= upto
    }

    /// The body of a whole frame.
    pub fn body(&self) -> &[u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.header = None;
    }
}
