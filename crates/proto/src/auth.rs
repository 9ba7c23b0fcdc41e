//! Keys, and the proof that a lane belongs to a session.
//!
//! A key is nothing (everybody may come: on this machine, or where told `--insecure`), one key that
//! servers and clients share, or an identity of one's own; [`crate::secure`] proves it. A session's
//! secret comes with the welcome; further lanes prove it over what both sides said in the open.

use crate::secure::{Credentials, Holder, IdentityError, wipe};
use hmac::{Hmac, KeyInit, Mac};
use muninn_wire::{Lock, NONCE_LEN, PROOF_LEN};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// What one has to show. Printing it shows nothing of it.
#[derive(Clone)]
pub struct Key(KeyKind);

#[derive(Clone)]
pub(crate) enum KeyKind {
    None,
    Shared(Arc<Secret>),
    Identity(Arc<Credentials>),
    /// Somebody else has it, and it is of this kind.
    Held(Lock, Arc<dyn Holder>),
}

/// Bytes that are wiped when nobody needs them any more.
#[derive(PartialEq, Eq)]
pub(crate) struct Secret(Box<[u8]>);

impl Drop for Secret {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        match (&self.0, &other.0) {
            (KeyKind::None, KeyKind::None) => true,
            (KeyKind::Shared(one), KeyKind::Shared(two)) => one == two,
            (KeyKind::Identity(one), KeyKind::Identity(two)) => one == two,
            (KeyKind::Held(_, one), KeyKind::Held(_, two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}

impl Eq for Key {}

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("it holds {0} bytes, and a key is {min} to {max}", min = Key::MIN, max = Key::MAX)]
    Length(usize),
    #[error("{0}")]
    Identity(#[from] IdentityError),
}

impl Key {
    pub const MIN: usize = 16;
    pub const MAX: usize = 1024;

    /// The contents of a key file, without white space at its ends: an identity, or any other bytes
    /// that are to be shared.
    pub fn from_file_contents(contents: &[u8]) -> Result<Key, KeyError> {
        let key = contents.trim_ascii();
        if Credentials::is_text(key) {
            let text = std::str::from_utf8(key).map_err(|_| IdentityError::Malformed)?;
            let own = Credentials::from_text(text)?;
            return Ok(Key::identity(own));
        }
        if (Key::MIN..=Key::MAX).contains(&key.len()) {
            Ok(Key(KeyKind::Shared(Arc::new(Secret(key.into())))))
        } else {
            Err(KeyError::Length(key.len()))
        }
    }

    pub fn identity(own: Credentials) -> Key {
        Key(KeyKind::Identity(Arc::new(own)))
    }

    /// A key that somebody else has, who shakes hands for us.
    pub fn held(lock: Lock, holder: Arc<dyn Holder>) -> Key {
        Key(KeyKind::Held(lock, holder))
    }

    /// No key: everyone may come.
    pub fn none() -> Key {
        Key(KeyKind::None)
    }
    pub fn is_none(&self) -> bool {
        matches!(self.0, KeyKind::None)
    }
    pub fn lock(&self) -> Lock {
        match &self.0 {
            KeyKind::None => Lock::Open,
            KeyKind::Shared(_) => Lock::Shared,
            KeyKind::Identity(_) => Lock::Identity,
            KeyKind::Held(lock, _) => *lock,
        }
    }
    /// Shows where its secrets lie in memory, to be kept from being written elsewhere.
    pub fn for_each_secret(&self, mut show: impl FnMut(&[u8])) {
        match &self.0 {
            KeyKind::None | KeyKind::Held(..) => {}
            KeyKind::Shared(secret) => show(&secret.0),
            KeyKind::Identity(own) => own.for_each_secret(show),
        }
    }
    /// The identity, where it is one.
    pub fn credentials(&self) -> Option<&Credentials> {
        match &self.0 {
            KeyKind::Identity(own) => Some(own),
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> &KeyKind {
        &self.0
    }
    /// A shared key, of whatever length, as one of 32 bytes.
    pub(crate) fn shared_secret(&self) -> [u8; 32] {
        match &self.0 {
            KeyKind::Shared(key) => {
                let hash = Sha256::new_with_prefix(b"muninn shared key 1").chain_update(&key.0);
                hash.finalize().into()
            }
            _ => [0; 32],
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            KeyKind::None => f.write_str("Key(none)"),
            KeyKind::Shared(_) => f.write_str("Key(…)"),
            KeyKind::Identity(own) => write!(f, "Key({own:?})"),
            KeyKind::Held(..) => f.write_str("Key(held by another)"),
        }
    }
}

/// What a session's lanes prove; see the module's head.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret([u8; PROOF_LEN]);

impl SessionSecret {
    /// For connections that have no session.
    pub fn none() -> SessionSecret {
        SessionSecret([0; PROOF_LEN])
    }
    pub(crate) fn bytes(&self) -> [u8; PROOF_LEN] {
        self.0
    }
    pub(crate) fn of(bytes: [u8; PROOF_LEN]) -> SessionSecret {
        SessionSecret(bytes)
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret(…)")
    }
}

/// The bytes that a proof is made over: what a hello says in the open, and the server's nonce.
#[derive(Clone, Copy, Debug)]
pub struct Transcript<'a> {
    pub hello: &'a [u8],
    pub server_nonce: &'a [u8; NONCE_LEN],
}

fn mac(key: &[u8], label: &str, transcript: Transcript<'_>) -> Hmac<Sha256> {
    // HMAC takes keys of any length, so this cannot fail.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key");
    mac.update(label.as_bytes());
    mac.update(&(transcript.hello.len() as u64).to_le_bytes());
    mac.update(transcript.hello);
    mac.update(transcript.server_nonce);
    mac
}

fn finish(mac: Hmac<Sha256>) -> [u8; PROOF_LEN] {
    mac.finalize().into_bytes().into()
}

/// Adds the version of a hello to what both sides prove to have read of it, so that nobody in between can change
/// it. In the oldest it is not there.
pub fn bind_version(version: u8, open: &mut Vec<u8>) {
    if version > muninn_wire::VERSION_MIN {
        open.push(version);
    }
}

pub fn lane_proof(secret: &SessionSecret, transcript: Transcript<'_>) -> [u8; PROOF_LEN] {
    finish(mac(&secret.0, "muninn lane 1", transcript))
}

pub fn check_lane_proof(
    secret: &SessionSecret,
    transcript: Transcript<'_>,
    proof: &[u8; PROOF_LEN],
) -> bool {
    mac(&secret.0, "muninn lane 1", transcript)
        .verify_slice(proof)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_secret_and_transcript_only() {
        let nonce = [7; NONCE_LEN];
        let t = Transcript {
            hello: b"hello",
            server_nonce: &nonce,
        };
        let (secret, other) = (SessionSecret::of([1; 32]), SessionSecret::of([2; 32]));
        let proof = lane_proof(&secret, t);
        assert!(check_lane_proof(&secret, t, &proof));
        assert!(!check_lane_proof(&other, t, &proof));
        let later = Transcript {
            hello: b"hello",
            server_nonce: &[8; NONCE_LEN],
        };
        assert!(!check_lane_proof(&secret, later, &proof), "replayed");
        let key = Key::from_file_contents(b"  a key of sufficient length\n").unwrap();
        assert_eq!(format!("{key:?} {secret:?}"), "Key(…) SessionSecret(…)");
    }

    #[test]
    fn short_keys_are_refused() {
        assert_eq!(
            Key::from_file_contents(b" 15 bytes, short \n")
                .unwrap_err()
                .to_string(),
            "it holds 15 bytes, and a key is 16 to 1024"
        );
    }
}
