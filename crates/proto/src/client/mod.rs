//! The client's half: a [`Handshake`] that opens or attaches a lane, and a [`Lane`] that keeps what
//! is under way on it across cuts.

mod handshake;
mod lane;
mod operation;

pub use handshake::{Handshake, HandshakeError, Next, Opened, Purpose};
pub use lane::{Lane, LaneError, Transmit};
pub use operation::{Answer, Completion, Control, OpError, Operation, Verb};
