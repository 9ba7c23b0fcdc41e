//! What can go wrong between a client and its servers, and what to do about it.

use muninn_proto::client::{HandshakeError, OpError};
use muninn_sys::socket::{Address, AddressError, ConnectError};
use muninn_types::Bytes;
use muninn_wire::{ErrorCode, Refusal};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    #[error("{0}")]
    Address(#[from] AddressError),
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("the server at {0} refused: {1}")]
    Handshake(Address, HandshakeError),
    #[error(
        "the server at {0} is run by user {1}, who is not trusted here: name the pool with --pool"
    )]
    ServerUser(Address, u32),
    /// Of a key that another process has.
    #[error("cannot shake hands with the server at {0}: {1}")]
    Holder(Address, String),
    #[error("the server at {0} did not answer the handshake within {1:?}")]
    HandshakeTimeout(Address, Duration),
    #[error("the server at {0} closed the connection during the handshake")]
    HandshakeClosed(Address),
    #[error("the server at {0} refused: {1}")]
    Refused(Address, Refusal),
    #[error("the server at {0} did not answer within {1:?}")]
    Timeout(Address, Duration),
    #[error("the session with the server at {0} is lost: {1}; what it kept is gone")]
    Lost(Address, String),
    #[error("cannot map the memory of the server at {0}: {1}")]
    Map(Address, String),
    #[error("{1} at offset {0} go past the end of a grant of {2}")]
    OutOfBounds(u64, Bytes, Bytes),
    #[error("no server has {0} to spare: {1}")]
    NoRoom(Bytes, String),
    #[error("a pool needs at least one server: name one (unix:PATH or HOST:PORT)")]
    NoServers,
    #[error("the operation was malformed: {0}")]
    Operation(OpError),
    #[error("the grant belongs to another pool")]
    Foreign,
}

impl NetError {
    /// The refusal behind it, if a server refused.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            NetError::Refused(_, refusal)
            | NetError::Handshake(_, HandshakeError::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }
    pub fn is_refusal(&self, code: ErrorCode) -> bool {
        self.refusal().is_some_and(|refusal| refusal.code == code)
    }

    pub(crate) fn from_handshake(address: &Address, error: HandshakeError) -> NetError {
        match error {
            HandshakeError::Holder(why) => NetError::Holder(address.clone(), why),
            error => NetError::Handshake(address.clone(), error),
        }
    }

    pub(crate) fn from_op(address: &Address, error: OpError) -> NetError {
        match error {
            OpError::Refused(refusal) => NetError::Refused(address.clone(), refusal),
            OpError::SessionLost(why) => NetError::Lost(address.clone(), why),
            OpError::Timeout(after) => NetError::Timeout(address.clone(), after),
            other => NetError::Operation(other),
        }
    }
}
