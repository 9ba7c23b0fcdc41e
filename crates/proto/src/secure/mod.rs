//! Who is at the other end, and a channel that nobody in between can read, change or replay.
//!
//! The handshake is Noise, from a library (`snow`), inside of hello, challenge and proof. Two patterns:
//! `NNpsk0` where both sides have one key, `XX` where each has an identity of its own; both with fresh
//! Diffie-Hellman keys, so that what was recorded stays secret when a key is lost later. All that a
//! hello says in the open is the prologue, so both sides have the same idea of it or nothing comes
//! about. What follows travels in records ([`Records`]) where the network is not this machine's own.
//!
//! Which pattern is used, and whether records are, is never negotiated: it follows from the keys and
//! the kind of socket, so there is nothing to talk anybody down to.

mod held;
mod identity;
mod noise;
mod records;

pub use held::{Holder, Shaking};
pub use identity::{
    Certificate, Credentials, Identity, IdentityError, Operator, Role, UnixTime, parse_public,
};
pub(crate) use noise::Initiator;
pub use noise::{NoiseError, Proved, Responder, begin};
pub use records::{Broken, ChannelKeys, RECORD_MAX, Records};

/// Random bytes that a handshake takes.
pub const ENTROPY_LEN: usize = 48;

/// Overwrites a secret that is not needed any more.
pub fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    // Keeps the stores above from being left out as of no use.
    std::hint::black_box(bytes);
}
