//! One call on its way: what was asked, where it goes, and what it ends with.

use crate::error::{CallError, Side};
use crate::registry::{Reply, Running};
use muninn_policy::wic_place::Place as Where;
use muninn_types::Nanos;

/// A call that has ended.
#[derive(Debug)]
pub struct Finished {
    /// As it was started with.
    pub token: u64,
    /// Where it ran, or was meant to.
    pub place: Where,
    /// Accesses to memory, where the place tells.
    pub accesses: u32,
    pub started: Nanos,
    pub ended: Nanos,
    pub result: Result<Reply, CallError>,
}

impl Finished {
    pub fn took(&self) -> Nanos {
        self.ended.saturating_sub(self.started)
    }
}

/// How far a call is.
pub enum Progress {
    /// Not begun: its place has no room.
    Waits,
    /// It runs here, on memory over a network.
    Here(Running),
    /// It runs here, on memory that is mapped.
    Near,
    /// It was posted to another side, on this lane.
    There(usize),
}

pub struct Task {
    pub token: u64,
    /// In the engine's list of functions.
    pub wic: usize,
    pub args: Vec<u8>,
    pub place: Where,
    /// Chosen by Muninn, which is told how it went.
    pub automatic: bool,
    pub started: Nanos,
    pub begun: Nanos,
    pub deadline: Nanos,
    pub progress: Progress,
    /// It asked for a change of memory.
    pub changed: bool,
    pub tries: u32,
}

pub const fn side_of(place: Where) -> Side {
    match place {
        Where::Client => Side::Client,
        Where::Server => Side::Server,
        Where::Nic => Side::Nic,
    }
}
