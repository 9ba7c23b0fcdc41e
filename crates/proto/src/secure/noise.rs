//! The handshake inside of hello, challenge and proof.
//!
//! Randomness comes from whoever drives it, as everything here is without I/O.

use super::held::Shaking;
use super::identity::{Certificate, Identity, IdentityError, Role, UnixTime};
use super::records::{ChannelKeys, Records};
use crate::auth::{Key, KeyKind};
use hmac::{Hmac, KeyInit, Mac};
use muninn_wire::{Lock, MAX_BODY};
use sha2::Sha256;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use std::fmt;

const SHARED: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const IDENTITY: &str = "Noise_XX_25519_AESGCM_SHA256";
/// Before all else in a prologue.
const LABEL: &[u8] = b"muninn 3";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoiseError {
    #[error("the other side does not have the right key")]
    WrongKey,
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// Of a key that somebody else has.
    #[error("{0}")]
    Holder(String),
}

impl From<snow::Error> for NoiseError {
    fn from(_: snow::Error) -> NoiseError {
        NoiseError::WrongKey
    }
}

/// Random bytes out of a seed.
struct Seeded {
    seed: [u8; 32],
    count: u64,
}

impl Random for Seeded {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        for chunk in dest.chunks_mut(32) {
            let mut mac =
                Hmac::<Sha256>::new_from_slice(&self.seed).map_err(|_| snow::Error::Rng)?;
            mac.update(&self.count.to_le_bytes());
            self.count += 1;
            chunk.copy_from_slice(&mac.finalize().into_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

/// Ciphers and hashes of `ring`, whose assembly is ten times as fast; the curve from `snow`'s own.
struct Resolver([u8; 32]);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        let seed = self.0;
        Some(Box::new(Seeded { seed, count: 0 }))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// The public half of a Diffie-Hellman key.
pub(super) fn public_of(secret: &[u8; 32]) -> [u8; 32] {
    let dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519);
    let mut dh = dh.expect("the curve is compiled in");
    dh.set(secret);
    dh.pubkey().try_into().expect("a public key has 32 bytes")
}

pub(super) fn state(
    key: &Key,
    open: &[u8],
    seed: [u8; 32],
    first: bool,
) -> Result<HandshakeState, NoiseError> {
    let pattern = match key.kind() {
        KeyKind::Identity(_) => IDENTITY,
        _ => SHARED,
    };
    let prologue = [LABEL, open].concat();
    let params = pattern.parse().map_err(|_| NoiseError::WrongKey)?;
    let builder = Builder::with_resolver(params, Box::new(Resolver(seed))).prologue(&prologue)?;
    let psk;
    let builder = match key.kind() {
        KeyKind::Identity(own) => builder.local_private_key(own.secret())?,
        _ => {
            psk = key.shared_secret();
            builder.psk(0, &psk)?
        }
    };
    Ok(match first {
        true => builder.build_initiator()?,
        false => builder.build_responder()?,
    })
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>, NoiseError> {
    let mut message = vec![0; MAX_BODY];
    let len = state.write_message(payload, &mut message)?;
    message.truncate(len);
    Ok(message)
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Result<Vec<u8>, NoiseError> {
    let mut payload = vec![0; MAX_BODY];
    let len = state.read_message(message, &mut payload)?;
    payload.truncate(len);
    Ok(payload)
}

/// What a certificate says, if the other side has the key that it is about.
fn check(
    key: &Key,
    now: UnixTime,
    state: &HandshakeState,
    payload: &[u8],
) -> Result<Identity, NoiseError> {
    let KeyKind::Identity(own) = key.kind() else {
        return Err(NoiseError::WrongKey);
    };
    let certificate = Certificate::decode(payload)?;
    if state.get_remote_static() != Some(&certificate.public[..]) {
        return Err(NoiseError::WrongKey);
    }
    Ok(own.believe(&certificate, now)?)
}

fn certificate(key: &Key) -> Vec<u8> {
    match key.kind() {
        KeyKind::Identity(own) => own.certificate().encode(),
        _ => Vec::new(),
    }
}

/// What a handshake that is over comes to.
fn channel(state: &mut HandshakeState, first: bool) -> Result<ChannelKeys, NoiseError> {
    if !state.is_handshake_finished() {
        return Err(NoiseError::WrongKey);
    }
    let (ours, theirs) = state.dangerously_get_raw_split();
    let keys = match first {
        true => [ours, theirs],
        false => [theirs, ours],
    };
    Ok(ChannelKeys {
        keys,
        counts: [0, 0],
    })
}

/// A handshake with a key that is here.
struct Own {
    key: Key,
    now: UnixTime,
    state: Box<HandshakeState>,
}

/// Begins the client's side. `open` is what the hello says beside the first message, which is
/// returned.
pub fn begin(
    key: &Key,
    open: &[u8],
    seed: [u8; 32],
    now: UnixTime,
) -> Result<(Box<dyn Shaking>, Vec<u8>), NoiseError> {
    if let KeyKind::Held(_, holder) = key.kind() {
        return holder.begin(open);
    }
    let mut state = state(key, open, seed, true)?;
    let first = write(&mut state, &[])?;
    let own = Own {
        key: key.clone(),
        now,
        state: Box::new(state),
    };
    Ok((Box::new(own), first))
}

impl Shaking for Own {
    fn answer(&mut self, message: &[u8]) -> Result<(Vec<u8>, ChannelKeys), NoiseError> {
        let payload = read(&mut self.state, message)?;
        if self.key.lock() == Lock::Identity {
            let server = check(&self.key, self.now, &self.state, &payload)?;
            if server.role != Role::Server {
                return Err(IdentityError::NoServer(server.name).into());
            }
            let last = write(&mut self.state, &certificate(&self.key))?;
            return Ok((last, channel(&mut self.state, true)?));
        }
        // The pattern is over; the first record shows that we have the key and are no recording.
        let mut keys = channel(&mut self.state, true)?;
        let last = Records::new(&keys).seal_nothing();
        keys.counts[0] = 1;
        Ok((last.to_vec(), keys))
    }
}

/// The client's side.
pub(crate) struct Initiator {
    shaking: Box<dyn Shaking>,
    channel: Option<ChannelKeys>,
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Initiator(…)")
    }
}

impl Initiator {
    /// As [`begin`].
    pub(crate) fn start(
        key: &Key,
        open: &[u8],
        seed: [u8; 32],
        now: UnixTime,
    ) -> Result<(Initiator, Vec<u8>), NoiseError> {
        let (shaking, first) = begin(key, open, seed, now)?;
        let initiator = Initiator {
            shaking,
            channel: None,
        };
        Ok((initiator, first))
    }

    /// The server's message; the last of ours.
    pub(crate) fn answer(&mut self, message: &[u8]) -> Result<Vec<u8>, NoiseError> {
        let (last, keys) = self.shaking.answer(message)?;
        self.channel = Some(keys);
        Ok(last)
    }

    /// The channel, once the last message is made.
    pub(crate) fn channel(&mut self) -> Result<Records, NoiseError> {
        let keys = self.channel.take().ok_or(NoiseError::WrongKey)?;
        Ok(Records::new(&keys))
    }
}

/// Who is at the other end; nobody in particular where a key is shared.
pub type Proved = Result<Option<Identity>, IdentityError>;

/// The server's side.
pub struct Responder {
    key: Key,
    state: Box<HandshakeState>,
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder(…)")
    }
}

impl Responder {
    /// The client's first message; ours.
    pub fn start(
        key: &Key,
        open: &[u8],
        message: &[u8],
        seed: [u8; 32],
    ) -> Result<(Responder, Vec<u8>), NoiseError> {
        let mut state = state(key, open, seed, false)?;
        read(&mut state, message)?;
        let answer = write(&mut state, &certificate(key))?;
        let responder = Responder {
            key: key.clone(),
            state: Box::new(state),
        };
        Ok((responder, answer))
    }

    /// The client's last message, at a time of day: the channel, and who is at its other end, where identities are used;
    /// or why they are not believed, which the channel can still tell them.
    pub fn finish(
        mut self,
        message: &[u8],
        now: UnixTime,
    ) -> Result<(Records, Proved), NoiseError> {
        if self.key.lock() != Lock::Identity {
            let mut records = Records::new(&channel(&mut self.state, false)?);
            records
                .open_nothing(message)
                .map_err(|_| NoiseError::WrongKey)?;
            return Ok((records, Ok(None)));
        }
        let payload = read(&mut self.state, message)?;
        let client = match check(&self.key, now, &self.state, &payload) {
            Ok(identity) => Ok(Some(identity)),
            Err(NoiseError::Identity(error)) => Err(error),
            Err(wrong) => return Err(wrong),
        };
        let keys = channel(&mut self.state, false)?;
        Ok((Records::new(&keys), client))
    }
}
