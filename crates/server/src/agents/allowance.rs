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
use muninn_wire::{ErrorCode, Refusal, ShortText, Transport};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Cut from the pool at a time, where a segment is not smaller. Less would fill the pool with crumbs.
const STEP: u64 = 256 << 10;
/// How long memory may take to be wiped, and between two looks whether it is.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

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

    /// The same, for an agent's own thread, with nothing locked: memory that is only just being wiped
    /// is waited for.
    pub(super) fn set_when_wiped(&self, part: Part, bytes: u64) -> Result<(), Refusal> {
        patiently(|| self.set(part, bytes))
    }

    /// Cuts pieces for so many bytes more, which a `set` that follows can then have without waiting.
    pub(super) fn make_room(&self, more: u64) -> Result<(), Refusal> {
        patiently(|| self.change(|parts| parts.iter().sum::<u64>().saturating_add(more), true))
    }

    /// From now on a part holds this many bytes. Refused, it holds what it held.
    pub(super) fn set(&self, part: Part, bytes: u64) -> Result<(), Refusal> {
        let total = |parts: &mut [u64; 3]| {
            parts[part as usize] = bytes;
            parts
                .iter()
                .fold(0, |sum: u64, part| sum.saturating_add(*part))
        };
        self.change(total, false)
    }

    fn change(&self, total: impl FnOnce(&mut [u64; 3]) -> u64, keep: bool) -> Result<(), Refusal> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = held.parts;
        let needed = total(&mut parts);
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
        held.parts = parts;
        // Kept for a while: what shrinks mostly grows again.
        let mut back = Vec::new();
        while let Some(last) = held.pieces.last().map(|piece| piece.bytes())
            && !keep
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

/// Again and again while the pool says that it only has to wipe.
fn patiently(mut attempt: impl FnMut() -> Result<(), Refusal>) -> Result<(), Refusal> {
    let ends = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(refusal) if refusal.code == ErrorCode::TryAgain && Instant::now() < ends => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// The task under way asks.
impl Room for &Allowance {
    fn may_hold(&mut self, bytes: u64) -> bool {
        self.set_when_wiped(Part::Task, bytes).is_ok()
    }
}
