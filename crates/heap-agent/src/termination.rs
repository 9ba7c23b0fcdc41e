//! When is a trace over that runs on several servers at once? (Mako §5.2)
//!
//! Each server keeps four flags: it is tracing; references from others wait for it; references of
//! its own have not been acknowledged by another; and one of these has changed since it was last
//! asked. The compute node asks all of them, again and again. The trace is over when two rounds in
//! a row found every flag of every server false. One round would not do: a server that was asked
//! first may get work from one that is asked last and is idle again by then.
//!
//! Invariant: a server clears "ghosts" only after the receiver has set its "roots", so a reference
//! on its way is always seen by one of the two.

/// The flags of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flags {
    pub tracing: bool,
    pub roots: bool,
    pub ghosts: bool,
    pub changed: bool,
}

impl Flags {
    pub fn set_tracing(&mut self, value: bool) {
        self.changed |= self.tracing != value;
        self.tracing = value;
    }
    pub fn set_roots(&mut self, value: bool) {
        self.changed |= self.roots != value;
        self.roots = value;
    }
    pub fn set_ghosts(&mut self, value: bool) {
        self.changed |= self.ghosts != value;
        self.ghosts = value;
    }
    /// What a poll is told; changes count from now on.
    pub fn poll(&mut self) -> Flags {
        let told = *self;
        self.changed = false;
        told
    }
    pub const fn is_quiet(self) -> bool {
        !(self.tracing || self.roots || self.ghosts || self.changed)
    }

    pub const fn to_byte(self) -> u8 {
        self.tracing as u8 | (self.roots as u8) << 1 | (self.ghosts as u8) << 2 | (self.changed as u8) << 3
    }
    pub const fn from_byte(byte: u8) -> Flags {
        Flags {
            tracing: byte & 1 != 0,
            roots: byte & 2 != 0,
            ghosts: byte & 4 != 0,
            changed: byte & 8 != 0,
        }
    }
}

/// Rounds that must find everything quiet.
pub const ROUNDS: u32 = 2;

/// The compute node's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Poller {
    quiet_rounds: u32,
    /// A server of this round was not quiet.
    noisy: bool,
}

impl Poller {
    /// A server's answer.
    pub fn heard(&mut self, flags: Flags) {
        self.noisy |= !flags.is_quiet();
    }
    /// All servers have answered; whether the trace is over.
    pub fn end_round(&mut self) -> bool {
        self.quiet_rounds = if self.noisy { 0 } else { self.quiet_rounds + 1 };
        self.noisy = false;
        self.quiet_rounds >= ROUNDS
    }
}
