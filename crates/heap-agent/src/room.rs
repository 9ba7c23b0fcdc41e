//! How much memory an agent may hold of its own, beside the heap's.
//!
//! What an agent needs at most for its bitmaps is known from the heap's shape; what a task needs on
//! top is asked for as it grows, in steps, because nobody knows beforehand how many objects there
//! are. Invariant: memory is asked for before it is taken, but for a step.

use std::fmt;

/// Objects, or references, between two questions.
pub const STEP: usize = 4096;

/// Asked before memory grows.
pub trait Room: fmt::Debug {
    /// Whether the task under way may hold this many bytes in all.
    fn may_hold(&mut self, bytes: u64) -> bool;
}

/// No limit: for a collector that works in its own process.
impl Room for () {
    fn may_hold(&mut self, _bytes: u64) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the heap's agent needs {0} bytes of memory, and its server has no more for this client")]
pub struct NoRoom(pub u64);

/// Asks for so many bytes.
pub fn hold(room: &mut dyn Room, bytes: u64) -> Result<(), NoRoom> {
    if room.may_hold(bytes) {
        Ok(())
    } else {
        Err(NoRoom(bytes))
    }
}

/// A list of words, sorted and each once, when it has become long: what is found again and again
/// takes no more memory than what there is.
pub fn settle<T: Ord>(list: &mut Vec<T>, next: &mut usize) {
    if list.len() >= *next {
        list.sort_unstable();
        list.dedup();
        *next = (list.len() * 2).max(16 * STEP);
    }
}
