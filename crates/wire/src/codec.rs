//! Reading and writing of little-endian fields, bounds-checked.

use std::fmt;

/// Why bytes are not a message. Each reason is counted by the server under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the frame does not start with the bytes of this protocol")]
    Magic,
    #[error("the peer speaks protocol version {0}, this side speaks {ours}", ours = crate::VERSION)]
    Version(u8),
    #[error("the frame's check does not match its bytes")]
    Check,
    #[error("no message has the number {0}")]
    Kind(u8),
    #[error("no class of traffic has the number {0}")]
    Class(u8),
    #[error("the body is {0} bytes long, more than a body may be")]
    BodyTooLong(u32),
    #[error("the payload is {0} bytes long, more than a payload may be")]
    PayloadTooLong(u32),
    #[error("the body ends in the middle of a field")]
    Short,
    #[error("the body goes on after its last field")]
    Long,
    #[error("a field has a value that it cannot have")]
    Value,
    #[error("the payload's length is not the sum of the segments")]
    PayloadLength,
}

impl DecodeError {
    /// A name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            DecodeError::Magic => "bad-magic",
            DecodeError::Version(_) => "wrong-version",
            DecodeError::Check => "bad-check",
            DecodeError::Kind(_) => "unknown-message",
            DecodeError::Class(_) => "unknown-class",
            DecodeError::BodyTooLong(_) => "body-too-long",
            DecodeError::PayloadTooLong(_) => "payload-too-long",
            DecodeError::Short => "body-too-short",
            DecodeError::Long => "body-too-long-for-message",
            DecodeError::Value => "bad-value",
            DecodeError::PayloadLength => "bad-payload-length",
        }
    }
}

/// Takes fields off the front of a body.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(head)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*head)
    }
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }
    pub(crate) fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value),
        }
    }
    /// A text of at most `max` bytes behind its one-byte length.
    pub(crate) fn text(&mut self, max: usize) -> Result<ShortText, DecodeError> {
        let len = usize::from(self.u8()?);
        if len > max {
            return Err(DecodeError::Value);
        }
        let text = std::str::from_utf8(self.bytes(len)?).map_err(|_| DecodeError::Value)?;
        ShortText::new(text).ok_or(DecodeError::Value)
    }
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
    pub(crate) fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Long)
        }
    }
}

/// Appends fields to a buffer that is reused from message to message.
pub(crate) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub(crate) fn u8(&mut self, n: u8) -> &mut Self {
        self.bytes(&[n])
    }
    pub(crate) fn u16(&mut self, n: u16) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }
    pub(crate) fn u32(&mut self, n: u32) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }
    pub(crate) fn u64(&mut self, n: u64) -> &mut Self {
        self.bytes(&n.to_le_bytes())
    }
    pub(crate) fn text(&mut self, text: &ShortText) -> &mut Self {
        self.u8(text.as_str().len() as u8)
            .bytes(text.as_str().as_bytes())
    }
}

/// A text of at most 255 bytes without control characters: names and remarks that end up on a
/// person's terminal must not be able to steer it.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShortText(String);

impl ShortText {
    pub const MAX: usize = 255;

    pub fn new(text: &str) -> Option<ShortText> {
        let fits = text.len() <= Self::MAX && !text.chars().any(char::is_control);
        fits.then(|| ShortText(text.to_string()))
    }
    /// The nearest text that is allowed: control characters go, and so does what is too long.
    pub fn lossy(text: &str, max: usize) -> ShortText {
        let mut clean: String = text.chars().filter(|c| !c.is_control()).collect();
        let mut end = max.min(Self::MAX).min(clean.len());
        while !clean.is_char_boundary(end) {
            end -= 1;
        }
        clean.truncate(end);
        ShortText(clean)
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ShortText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
impl fmt::Display for ShortText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
