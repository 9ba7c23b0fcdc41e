//! Far memory that outlives its servers.
//!
//! A pager knows *extents*: pieces of far memory of up to 16 MiB. Which servers hold the copies of an
//! extent only this crate knows:
//!
//! ```text
//!  pager ── ExtentId ──► Volume (data path, one thread)          Clerk (one thread)
//!                          │ ExtentMap: members of each extent     │ grants, releases, leases,
//!                          │ reads from one member, hedged         │ servers that come back,
//!                          │ writes to all members                 │ copies of what was lost
//!                          └───────────── Roster ──────────────────┘
//!                            sessions, who is suspected, who is away
//! ```
//!
//! The rule that everything rests on: *what a member missed is marked, and never read there* ([`lag`]). A
//! session that is lost takes its members along. So old contents are never read, whatever a server
//! believes to hold.
//!
//! An extent has whole copies ([`reads`], [`writes`]), or its pages lie in rows with parity ([`parity`], with
//! the arithmetic in [`code`]).
//!
//! Decisions are in `policy` (`layout`, `hedge`, `membership`, `mover`).

#![warn(unreachable_pub)]

mod clerk;
pub mod code;
mod extent;
mod give;
mod heritage;
mod lag;
mod mover;
mod parity;
mod reads;
mod repair;
mod roster;
#[cfg(test)]
mod scale;
mod sums;
mod volume;
mod wire;
mod writes;

pub use clerk::{Clerk, EXTENT_PAGES};
pub use extent::{Extent, ExtentId};
pub use heritage::{Heritage, Ticket};
pub use roster::{Attempt, Connect, Listed, Roster, SERVERS_MAX, Source, Tell, Time};
pub use volume::{Census, Page, Transfer, Volume};

use std::fmt;

/// Why far memory does not answer. The message names the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeError {
    /// There is no room for more.
    Full(String),
    /// What is far is out of reach for good.
    Lost(String),
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeError::Full(why) | VolumeError::Lost(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for VolumeError {}

/// Locks without caring whether somebody panicked: a panic ends the program.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
