//! A key that somebody else has, who shakes hands for us.
//!
//! A program on far memory is not to have the key of its pool, and its runtime has no memory that the
//! program cannot read. So the launcher has the key, and answers for it: it is given what a hello
//! says in the open and what the server answers, and gives back what to send and the keys of one
//! channel. Those are of no use for another connection, nor to learn the key from.

use super::noise::NoiseError;
use super::records::ChannelKeys;

/// Has a key.
pub trait Holder: Send + Sync {
    /// Begins a handshake; `open` is what its hello says in the open. The first message.
    fn begin(&self, open: &[u8]) -> Result<(Box<dyn Shaking>, Vec<u8>), NoiseError>;
}

/// The client's side of a handshake that has begun.
pub trait Shaking: Send {
    /// The server's message; the last of ours, and what it comes to. Once.
    fn answer(&mut self, message: &[u8]) -> Result<(Vec<u8>, ChannelKeys), NoiseError>;
}
