//! What an agent holds beside the heap is memory of its session: it is cut from the pool.
//!
//! The pieces that are cut are never touched, so they take no memory themselves; they stand for what
//! the agent has allocated. So agents and grants together never pass the server's memory, the
//! client's quota counts both, and a client that makes its agent large finds the pool smaller.
//! Pieces come from segments that nobody maps: a client could touch others itself.

use super::Piece;
use crate::segment::MemfdBacking;
use muninn_heap_agent::room::Room;
use muninn_proto::server::Pool;
use muninn_types::{Bytes, SessionId};
use muninn_wire::{Refusal, ShortText, Transport};
use std::sync::{Arc, Mutex, PoisonError};

/// Cut from the pool at a time, where a segment is not smaller. Less would fill the pool with crumbs.
const STEP: u64 = 256 << 10;

/// Who holds it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// What waits for the agent or for its client.
    Inbox,
    /// What the agent keeps from task to task.
    Kept,
    /// What the task under way takes.
    Task,
}

#[derive(Debug, Default)]
struct Held {
    parts: [u64; 3],
    pieces: Vec<Piece>,
}

#[derive(Debug)]
pub(super) struct Allowance {
    pool: Arc<Pool<MemfdBacking>>,
    session: SessionId,
    client: ShortText,
    held: Mutex<Held>,
}

impl Allowance {
    pub(super) fn new(
        pool: &Arc<Pool<MemfdBacking>>,
        session: SessionId,
        client: &ShortText,
    ) -> Allowance {
        Allowance {
            pool: Arc::clone(pool),
            session,
            client: client.clone(),
            held: Mutex::default(),
        }
    }

    /// From now on a part holds this many bytes. Refused, it holds what it held.
    pub(super) fn set(&self, part: Part, bytes: u64) -> Result<(), Refusal> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let others: u64 = held.parts.iter().sum::<u64>() - held.parts[part as usize];
        let needed = others.saturating_add(bytes);
        let mut have: u64 = held.pieces.iter().map(|piece| piece.bytes()).sum();
        let had = held.pieces.len();
        while have < needed {
            let most = self.pool.config().segment.0;
            let size = (needed - have)
                .next_power_of_two()
                .clamp(STEP.min(most), most);
            match self
                .pool
                .alloc(self.session, &self.client, Transport::Tcp, size)
            {
                Ok(piece) => {
                    have += piece.bytes();
                    held.pieces.push(piece);
                }
                Err(refusal) => {
                    let back = held.pieces.split_off(had);
                    drop(held);
                    drop(back);
                    return Err(refusal);
                }
            }
        }
        held.parts[part as usize] = bytes;
        // Kept for a while: what shrinks mostly grows again.
        let mut back = Vec::new();
        while let Some(last) = held.pieces.last().map(|piece| piece.bytes())
            && have - last >= 2 * needed + STEP
        {
            have -= last;
            back.extend(held.pieces.pop());
        }
        drop(held);
        drop(back);
        Ok(())
    }

    pub(super) fn bytes(&self) -> Bytes {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.pieces.iter().map(|piece| Bytes(piece.bytes())).sum()
    }
}

/// The task under way asks.
impl Room for &Allowance {
    fn may_hold(&mut self, bytes: u64) -> bool {
        self.set(Part::Task, bytes).is_ok()
    }
}
