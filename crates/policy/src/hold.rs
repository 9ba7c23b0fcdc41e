//! When a program is made to stand still for a moment, because it fills memory faster than it can leave.
//!
//! Memory that was taken over is filled by the pager, which makes room first. But a program that makes new
//! memory all the time (a heap that grows, mapping after mapping) fills that before anybody has found it,
//! and where processors are busy it may be far ahead. So when it is [`ABOVE`] its limit it waits until
//! what it has filled was found and has left.
//!
//! Invariant: one whose memory cannot leave (it is locked, it belongs to a device, the pool is full) is held
//! less and less often, since waiting helps nobody. Known limit: being held may end a system call early that
//! sleeps, as any signal may, if the thread fell asleep at that very moment.

use muninn_types::Bytes;

/// Half of what may be above a limit for a moment.
pub const ABOVE: Bytes = Bytes::mib(4);
/// A hold that brought less than this was in vain.
const WORTH: Bytes = Bytes::mib(1);
/// Bytes a second from which on a program may be ahead of its pager.
pub const FAST: f64 = 100e6;
/// Looks that are let pass after holds in vain, at most.
const SKIP_MAX: u32 = 4096;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Looks to let pass before the next.
    skip: u32,
    /// And after that one, should it be in vain.
    next: u32,
}

impl Hold {
    /// Whether a program that holds so much, and grows by so many bytes a second, is to stand still now.
    pub fn poll(&mut self, resident: Bytes, limit: Bytes, growth_per_s: f64) -> bool {
        if resident.0 <= limit.0.saturating_add(ABOVE.0) || growth_per_s < FAST {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        true
    }

    /// What it held before and after it stood still.
    pub fn handle_held(&mut self, before: Bytes, after: Bytes) {
        if before.0.saturating_sub(after.0) >= WORTH.0 {
            *self = Hold::default();
            return;
        }
        self.next = (self.next * 4).clamp(16, SKIP_MAX);
        self.skip = self.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Bytes = Bytes::mib(16);

    #[test]
    fn one_that_outruns_its_pager_is_held_each_time() {
        let mut hold = Hold::default();
        assert!(!hold.poll(Bytes::mib(20), LIMIT, 1e9));
        assert!(!hold.poll(Bytes::mib(64), LIMIT, 1e6), "it does not grow");
        for _ in 0..100 {
            assert!(hold.poll(Bytes::mib(24), LIMIT, 1e9));
            hold.handle_held(Bytes::mib(24), Bytes::mib(17));
        }
    }

    #[test]
    fn one_whose_memory_stays_is_held_ever_more_seldom() {
        let mut hold = Hold::default();
        let mut held = 0;
        for _ in 0..100_000 {
            if hold.poll(Bytes::mib(64), LIMIT, 1e9) {
                held += 1;
                hold.handle_held(Bytes::mib(64), Bytes::mib(64));
            }
        }
        assert!((10..=40).contains(&held), "{held} times");
        hold.handle_held(Bytes::mib(64), Bytes::mib(30));
        assert!(hold.poll(Bytes::mib(64), LIMIT, 1e9), "it helps again");
    }
}
