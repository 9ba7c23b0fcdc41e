//! Proof of a shared key by challenge and response; the key itself never travels.
//!
//! Both sides send a nonce and prove the key over the whole hello and both nonces, each under its
//! own label, so a proof cannot be replayed or reflected. Without a key the same code runs with an
//! empty one: it proves nothing, and a server listens beyond its own machine that way only when
//! told `--insecure`. What follows the handshake is not encrypted: use a network that is trusted,
//! or a tunnel.
//!
//! A session's secret is made from the key and the nonces of its first connection, on both sides,
//! and never travels either; further lanes prove it.

use hmac::{Hmac, KeyInit, Mac};
use muninn_types::SessionId;
use muninn_wire::{NONCE_LEN, PROOF_LEN};
use sha2::Sha256;
use std::fmt;

/// A shared key. Printing it shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

/// Why a text is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("it holds {0} bytes, and a key is {min} to {max}", min = Key::MIN, max = Key::MAX)]
    Length(usize),
}

impl Key {
    pub const MIN: usize = 16;
    pub const MAX: usize = 1024;

    /// The contents of a key file, without white space at its ends.
    pub fn from_file_contents(contents: &[u8]) -> Result<Key, KeyError> {
        let key = contents.trim_ascii();
        if (Key::MIN..=Key::MAX).contains(&key.len()) {
            Ok(Key(key.to_vec()))
        } else {
            Err(KeyError::Length(key.len()))
        }
    }

    /// No key: everyone's proof is equal.
    pub fn none() -> Key {
        Key(Vec::new())
    }
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() {
            "Key(none)"
        } else {
            "Key(…)"
        })
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
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret(…)")
    }
}

/// The bytes both proofs are made over.
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

pub fn server_proof(key: &Key, transcript: Transcript<'_>) -> [u8; PROOF_LEN] {
    finish(mac(&key.0, "muninn server 1", transcript))
}

pub fn check_server_proof(key: &Key, transcript: Transcript<'_>, proof: &[u8; PROOF_LEN]) -> bool {
    mac(&key.0, "muninn server 1", transcript)
        .verify_slice(proof)
        .is_ok()
}

pub fn client_proof(key: &Key, transcript: Transcript<'_>) -> [u8; PROOF_LEN] {
    finish(mac(&key.0, "muninn client 1", transcript))
}

pub fn check_client_proof(key: &Key, transcript: Transcript<'_>, proof: &[u8; PROOF_LEN]) -> bool {
    mac(&key.0, "muninn client 1", transcript)
        .verify_slice(proof)
        .is_ok()
}

pub fn session_secret(key: &Key, transcript: Transcript<'_>, session: SessionId) -> SessionSecret {
    let mut mac = mac(&key.0, "muninn session 1", transcript);
    mac.update(&session.0.to_le_bytes());
    SessionSecret(finish(mac))
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
    fn proofs_hold_for_their_key_label_and_transcript_only() {
        let key = Key::from_file_contents(b"  a key of sufficient length\n").unwrap();
        let other = Key::from_file_contents(b"another key of some length").unwrap();
        let nonce = [7; NONCE_LEN];
        let t = Transcript {
            hello: b"hello",
            server_nonce: &nonce,
        };
        let proof = client_proof(&key, t);
        assert!(check_client_proof(&key, t, &proof));
        assert!(!check_client_proof(&other, t, &proof));
        assert!(!check_client_proof(&Key::none(), t, &proof));
        assert!(
            !check_server_proof(&key, t, &proof),
            "a proof can be reflected"
        );
        let later = Transcript {
            hello: b"hello",
            server_nonce: &[8; NONCE_LEN],
        };
        assert!(
            !check_client_proof(&key, later, &proof),
            "a proof can be replayed"
        );
        let secret = session_secret(&key, t, SessionId(1));
        assert_ne!(secret, session_secret(&key, t, SessionId(2)));
        assert!(check_lane_proof(&secret, t, &lane_proof(&secret, t)));
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
