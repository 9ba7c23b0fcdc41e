//! What a program does that needs the next page when none can leave: waits, goes on above its limit, or ends.
//!
//! A little above is allowed, since what cannot leave now (the address space is changing, a page is pinned)
//! can a moment later. When the pool is full it is waited for: others may have ended, and their leases run out.
//!
//! Invariant: it ends only after the pool was full for all of [`PATIENCE`], and not while it holds less than
//! the overdraft.

use muninn_types::{Bytes, Nanos, PAGE_SIZE};

/// How far held pages may pass the allowance when nothing can be moved.
const OVERDRAFT: u64 = Bytes::mib(8).0 / PAGE_SIZE as u64;
/// How far they may while the address space is changing.
const ADVANCE: u64 = Bytes::mib(2).0 / PAGE_SIZE as u64;
/// How long a full pool is waited for.
pub const PATIENCE: Nanos = Nanos::millis(12_000);

/// What follows from a full pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    GoOn,
    /// It is asked again in a moment; since when it is waited for.
    Wait(Nanos),
    End,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Overdraft {
    /// Since when nothing was to be had, while the program went without.
    since: Option<Nanos>,
}

impl Overdraft {
    /// The pool is full, and a page is about to come.
    pub fn handle_full(&mut self, held: u64, allowed: u64, now: Nanos) -> Verdict {
        if held <= allowed.saturating_add(OVERDRAFT) {
            return Verdict::GoOn;
        }
        let since = *self.since.get_or_insert(now);
        match now.saturating_sub(since) > PATIENCE {
            true => Verdict::End,
            false => Verdict::Wait(since),
        }
    }

    /// Memory was to be had.
    pub fn handle_granted(&mut self) {
        self.since = None;
    }

    /// Whether so many may be held until the address space has come to rest.
    pub fn may_advance(held: u64, allowed: u64) -> bool {
        held <= allowed.saturating_add(ADVANCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_only_after_all_patience() {
        let mut overdraft = Overdraft::default();
        let held = 100 + OVERDRAFT;
        assert_eq!(overdraft.handle_full(held, 100, Nanos(7)), Verdict::GoOn);
        let wait = Verdict::Wait(Nanos(7));
        assert_eq!(overdraft.handle_full(held + 1, 100, Nanos(7)), wait);
        let last = Nanos(7) + PATIENCE;
        assert_eq!(overdraft.handle_full(held + 1, 100, last), wait);
        let after = last + Nanos(1);
        assert_eq!(overdraft.handle_full(held + 1, 100, after), Verdict::End);
        overdraft.handle_granted();
        assert_eq!(
            overdraft.handle_full(held + 1, 100, after),
            Verdict::Wait(after)
        );
    }

    #[test]
    fn an_advance_is_small() {
        assert!(Overdraft::may_advance(100 + ADVANCE, 100));
        assert!(!Overdraft::may_advance(101 + ADVANCE, 100));
        assert!(Overdraft::may_advance(u64::MAX, u64::MAX));
    }
}
