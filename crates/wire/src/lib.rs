//! The messages of the Muninn protocol, versions 3 to 5, byte by byte as `docs/PROTOCOL.md` has them.
//!
//! A frame is a fixed 32-byte header, a small body and, for data, a payload. Everything is
//! little-endian. Decoding never panics and never allocates from a length it has not checked: a
//! header whose lengths are over the limits is refused before a byte of its body is waited for.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod codec;
mod error;
mod estate;
mod frame;
mod message;
mod seg;
mod service;
mod status;
mod wics;

pub use codec::{DecodeError, ShortText};
pub use error::{ErrorCode, Refusal};
pub use estate::{
    ESTATE_VERSION, Estate, EstateError, LeftAnswer, LeftExtent, LeftLane, LeftSegment,
    LeftSession, LeftSource, LeftTicket, LeftUse, Secret,
};
pub use frame::{Header, Kind, seal_frame};
pub use message::{
    Adopted, Challenge, DrainReport, GrantInfo, GrantList, Hello, Intent, Lock, Notice, Request,
    Transport, Welcome, decode_adopted, decode_old_value,
};
pub use seg::{Seg, Segs};
pub use service::{Call, Called, MAX_ARGS, MAX_LOCKS, Opening, ServiceInfo, place_of};
pub use status::{
    ClassTraffic, ServerStatus, ServerTimes, ServiceStatus, SessionStatus, StatusPage,
};
pub use wics::{
    FIRST_PUSHED, HASH_LEN, MAX_MODULE, MODULE_PART, ModuleHash, ModuleState, PushedInfo,
    WicsReply, WicsRequest,
};

/// The latest version of the protocol. A client's hello says the latest that it speaks; a server that does not
/// speak that refuses, and says its own.
pub const VERSION: u8 = 5;
/// The oldest version that is understood, and in which everything is written that was not changed since.
pub const VERSION_MIN: u8 = 3;
/// In this version a report says how much its session is asked to move away.
pub const VERSION_ASKS: u8 = 4;
/// In this version a status says how long requests took.
pub const VERSION_TIMES: u8 = 5;
/// From this version on functions can be pushed.
pub const VERSION_WICS: u8 = 5;
/// Bytes of a header.
pub const HEADER_LEN: usize = 32;
/// The most segments a scatter-gather request may name.
pub const MAX_SEGS: usize = 64;
/// The most payload bytes of a frame: 64 pages.
pub const MAX_PAYLOAD: usize = MAX_SEGS * muninn_types::PAGE_SIZE;
/// The most body bytes of a frame: a full list of segments.
pub const MAX_BODY: usize = MAX_SEGS * Seg::LEN;
/// The most grants one request may release or share.
pub const MAX_GRANTS: usize = 64;
/// The longest client name.
pub const MAX_NAME: usize = 64;
/// The longest name of a function.
pub const MAX_WIC_NAME: usize = 128;
/// Bytes of a nonce, a ticket, a proof.
pub const NONCE_LEN: usize = 16;
pub const TICKET_LEN: usize = 16;
pub const PROOF_LEN: usize = 32;
