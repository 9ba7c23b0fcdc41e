//! Scatter-gather lists: which bytes of which grants.

use crate::codec::DecodeError;
use crate::{MAX_PAYLOAD, MAX_SEGS};
use muninn_types::GrantId;

/// One run of bytes in a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seg {
    pub grant: GrantId,
    pub offset: u32,
    pub len: u32,
}

impl Seg {
    /// Bytes of a segment on the wire.
    pub const LEN: usize = 16;

    pub const fn new(grant: GrantId, offset: u32, len: u32) -> Seg {
        Seg { grant, offset, len }
    }

    pub fn encode(&self) -> [u8; Seg::LEN] {
        let mut bytes = [0; Seg::LEN];
        bytes[..8].copy_from_slice(&self.grant.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; Seg::LEN]) -> Seg {
        let word = u128::from_le_bytes(*bytes);
        Seg::new(
            GrantId(word as u64),
            (word >> 64) as u32,
            (word >> 96) as u32,
        )
    }
}

/// A checked list of segments, still in the bytes it arrived in: 1 to 64 of them, none empty,
/// together at most 64 pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segs<'a> {
    body: &'a [u8],
    total: u32,
}

impl<'a> Segs<'a> {
    pub fn decode(body: &'a [u8]) -> Result<Segs<'a>, DecodeError> {
        let (chunks, rest) = body.as_chunks::<{ Seg::LEN }>();
        if !rest.is_empty() {
            return Err(DecodeError::Short);
        }
        if chunks.is_empty() || chunks.len() > MAX_SEGS {
            return Err(DecodeError::Value);
        }
        let mut total: u32 = 0;
        for seg in chunks.iter().map(Seg::decode) {
            if seg.len == 0 || seg.len as usize > MAX_PAYLOAD {
                return Err(DecodeError::Value);
            }
            total += seg.len; // at most 64 × 256 KiB
        }
        if total as usize > MAX_PAYLOAD {
            return Err(DecodeError::Value);
        }
        Ok(Segs { body, total })
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Seg> + use<'a> {
        self.body
            .as_chunks::<{ Seg::LEN }>()
            .0
            .iter()
            .map(Seg::decode)
    }
    /// Sum of the lengths.
    pub const fn total(&self) -> u32 {
        self.total
    }
}
