//! Fingerprints of pages, by which it is decided whether a page changed and whether it came back.
//!
//! Invariant: the secret is random, of one family of processes, and never leaves it. Contents that were
//! chosen to have one fingerprint (a program may be fed any bytes) have it for a known secret only.

use crate::vault::Page;
use muninn_pager_core::Hash;
use muninn_sys::rand;
use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Bytes of a secret: what the hash makes use of.
pub const SECRET_LEN: usize = 192;

/// What takes fingerprints.
#[derive(Clone)]
pub struct Hasher {
    secret: Box<[u8; SECRET_LEN]>,
    zero: Hash,
}

/// Shows nothing of the secret.
impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

impl Hasher {
    /// With a secret of its own.
    pub fn random() -> Hasher {
        Hasher::new(rand::bytes())
    }

    pub fn new(secret: [u8; SECRET_LEN]) -> Hasher {
        let mut hasher = Hasher {
            secret: Box::new(secret),
            zero: Hash::default(),
        };
        hasher.zero = hasher.hash(&[0; muninn_types::PAGE_SIZE]);
        hasher
    }

    pub fn secret(&self) -> &[u8; SECRET_LEN] {
        &self.secret
    }

    pub fn hash(&self, page: &Page) -> Hash {
        Hash(xxh3_128_with_secret(page, &self.secret[..]))
    }

    /// The fingerprint of zeros.
    pub fn zero(&self) -> Hash {
        self.zero
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_secret_gives_another_fingerprint() {
        let page = [7; muninn_types::PAGE_SIZE];
        let (one, other) = (Hasher::random(), Hasher::random());
        assert_ne!(one.hash(&page), other.hash(&page));
        assert_eq!(one.hash(&page), Hasher::new(*one.secret()).hash(&page));
        assert_eq!(one.zero(), one.hash(&[0; muninn_types::PAGE_SIZE]));
    }
}
