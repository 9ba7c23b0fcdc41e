//! By what a page is known again when it comes back.
//!
//! Plain data: who takes fingerprints and seals pages is below the engine ([`Far`](crate::below::Far)).

/// The fingerprint of a page's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub u128);

impl Hash {
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
    pub fn from_bytes(bytes: [u8; 16]) -> Hash {
        Hash(u128::from_le_bytes(bytes))
    }
}

/// A key among those that an engine knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyNo(pub u16);

pub const TAG_LEN: usize = 16;

/// How a page was sealed. Never leaves the family of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    pub key: KeyNo,
    /// Of all that were sealed with the key: the version of the page.
    pub count: u64,
    pub tag: [u8; TAG_LEN],
}

impl Seal {
    pub const BYTES: usize = 2 + 8 + TAG_LEN;

    pub fn to_bytes(self) -> [u8; Seal::BYTES] {
        let mut bytes = [0; Seal::BYTES];
        bytes[..2].copy_from_slice(&self.key.0.to_le_bytes());
        bytes[2..10].copy_from_slice(&self.count.to_le_bytes());
        bytes[10..].copy_from_slice(&self.tag);
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Seal> {
        Some(Seal {
            key: KeyNo(u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?)),
            count: u64::from_le_bytes(bytes.get(2..10)?.try_into().ok()?),
            tag: bytes.get(10..)?.try_into().ok()?,
        })
    }
}

/// By what a far copy is known again when it comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Print {
    pub hash: Hash,
    /// Of a page that was sealed.
    pub seal: Option<Seal>,
}
