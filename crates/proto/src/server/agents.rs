//! Agents of managed heaps, as a shard knows them: somebody who takes bytes and answers.
//!
//! What the bytes mean is between the heap and its agent. Invariant: an agent is given the grants of
//! the session that asks and no others, and is told when the session ends.

use super::memory::Backing;
use super::pool::Extent;
use super::session::IdMap;
use muninn_types::{GrantId, SessionId};
use muninn_wire::{Refusal, ShortText};
use std::fmt;
use std::sync::Arc;

/// Grants of a session.
pub type Grants<B> = IdMap<GrantId, Arc<Extent<B>>>;

/// Who asks: a session, under the name that its quota goes by.
#[derive(Debug)]
pub struct Client<'a, B: Backing> {
    pub session: SessionId,
    pub name: &'a ShortText,
    pub grants: &'a Grants<B>,
}

/// What the agents of a server use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentTotals {
    pub agents: u64,
    pub served_bytes: u64,
    pub metadata_bytes: u64,
    pub cpu_ms: u64,
}

/// Runs agents. Calls come from event loops and must be short.
pub trait Agents<B: Backing>: fmt::Debug + Send + Sync {
    /// A request of a session.
    fn call(&self, from: &Client<'_, B>, body: &[u8]) -> Result<Vec<u8>, Refusal>;

    /// How all agents together are doing.
    fn totals(&self) -> AgentTotals;

    /// The session is over: its agent must let go of its memory.
    fn session_ended(&self, session: SessionId);
}
