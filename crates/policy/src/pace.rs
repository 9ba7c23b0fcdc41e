//! How long a mutator waits before it takes more memory while a collector works on getting some.
//!
//! Idea: what is free has to last until the collector is expected to free more. A mutator that takes
//! a piece sooner than that allows waits for the difference, a little at each piece, instead of
//! running on at full speed and standing still for the rest of the collection. From: the pacer of
//! Shenandoah.
//!
//! Invariant: more room or less time left is never a longer wait, and no wait is longer than
//! [`WAIT_MAX`] (where next to nothing is left, [`LAST_WAIT_MAX`]). While much is free nobody waits.
//!
//! Known limit: how long a collection takes is taken from the one before.

use muninn_types::Nanos;

pub const WAIT_MAX: Nanos = Nanos::micros(900);
pub const LAST_WAIT_MAX: Nanos = Nanos::millis(6);
/// So few pieces are next to nothing.
const LAST_PIECES: u32 = 3;
/// More than one part in this many is much.
const MUCH: u32 = 3;
/// A shorter wait costs more than it is worth.
const WAIT_MIN: Nanos = Nanos::micros(200);

/// The wait before the next of `free` pieces (of `all`) is taken. The collection runs for `elapsed`, freed
/// memory after `expected` the last time (zero: never yet), and the mutator took its last piece
/// `since` ago.
pub fn wait(free: u32, all: u32, elapsed: Nanos, expected: Nanos, since: Nanos) -> Nanos {
    if free > all / MUCH {
        return Nanos::ZERO;
    }
    // One that takes longer than the last, or is the first, is taken to be half done.
    let left = match expected.saturating_sub(elapsed) {
        Nanos::ZERO => elapsed,
        left => left,
    };
    let fair = Nanos(left.0 / u64::from(free.max(1)));
    let most = if free <= LAST_PIECES {
        LAST_WAIT_MAX
    } else {
        WAIT_MAX
    };
    let wait = fair.saturating_sub(since).min(most);
    if wait < WAIT_MIN { Nanos::ZERO } else { wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::millis;

    #[test]
    fn a_mutator_with_room_or_at_a_fair_pace_does_not_wait() {
        assert_eq!(wait(101, 300, MS(0), MS(10_000), MS(0)), Nanos::ZERO);
        assert_eq!(wait(100, 300, MS(0), MS(10), MS(0)), Nanos::ZERO);
        assert_eq!(wait(50, 300, MS(0), MS(100), MS(2)), Nanos::ZERO);
    }

    #[test]
    fn one_that_is_too_fast_waits_for_the_difference() {
        let half = Nanos::micros(500);
        assert_eq!(wait(100, 300, MS(0), MS(50), Nanos::ZERO), half);
        assert_eq!(wait(100, 300, MS(0), MS(100), half), half);
        assert_eq!(wait(10, 300, MS(0), MS(100), MS(1)), WAIT_MAX);
        assert_eq!(wait(0, 300, MS(0), MS(100), MS(0)), LAST_WAIT_MAX);
    }

    #[test]
    fn a_collection_that_is_late_is_half_done() {
        let half = Nanos::micros(500);
        assert_eq!(wait(100, 300, MS(50), MS(20), MS(0)), half);
        assert_eq!(wait(100, 300, MS(50), Nanos::ZERO, MS(0)), half);
    }
}
