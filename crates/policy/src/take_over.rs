//! When a program's memory is taken over: late, and in two steps.
//!
//! Memory that was taken over is filled page by page, by us; before that the kernel fills it at full
//! speed, in huge pages where it can. So a program that fits is to keep all of its memory to itself.
//! At [`ready_at`] a pager is made ready (threads, connections), which takes milliseconds and costs
//! the program nothing; at [`adopt_at`] it gets to work.
//!
//! What lies between that and the limit is what may come in the meantime: the time from a look to the
//! moment when everything is registered, at the rate at which memory grew lately. Invariant: at least
//! [`RESERVE_MIN`] or half of a small limit, at most half of any. Known limit: a program that starts
//! to grow between two looks faster than `RESERVE_MIN` per look is seen too late by as much.

use muninn_types::Bytes;
use std::time::Duration;

/// Left for what comes while memory is taken over.
const RESERVE_MIN: Bytes = Bytes::mib(8);
const RESERVE_MAX: Bytes = Bytes::mib(64);
/// Of a large limit, this part: larger programs have more to register.
const RESERVE_PART: u64 = 16;
/// From a look to the moment when growth is in our hands.
const REACTION_S: f64 = 0.004;
/// Bytes a second by which programs grow that read files.
const ORDINARY_RATE: f64 = 1e9;
/// A pager is ready this much before the limit, or at half of a larger one.
const READY_MARGIN: Bytes = Bytes::mib(64);

/// Resident memory from which on a pager is to be ready.
pub fn ready_at(limit: Bytes) -> Bytes {
    let margin = (limit.0 / 2).max(READY_MARGIN.0).min(limit.0 / 8 * 7);
    Bytes(limit.0 - margin)
}

/// Bytes a second that a program fills at the most: two processors with ordinary pages.
const FASTEST_RATE: f64 = 8e9;
/// Between two looks, at least and at most.
const LOOK_MIN: Duration = Duration::from_micros(250);
const LOOK_MAX: Duration = Duration::from_millis(4);

/// When to look again at a program that may grow by so much: before it can have.
pub fn look_after(left: Bytes) -> Duration {
    Duration::from_secs_f64(left.0 as f64 / FASTEST_RATE / 2.0).clamp(LOOK_MIN, LOOK_MAX)
}

/// What a program should be told that asks how much memory it should hold: what it can fill, at an
/// ordinary rate, without anything going far.
pub fn advised(limit: Bytes) -> Bytes {
    adopt_at(limit, ORDINARY_RATE)
}

/// Resident memory from which on everything is taken over, when it grows by so many bytes a second.
pub fn adopt_at(limit: Bytes, growth_per_s: f64) -> Bytes {
    let base = (limit.0 / RESERVE_PART).clamp(RESERVE_MIN.0, RESERVE_MAX.0);
    let coming = (growth_per_s.max(0.0) * REACTION_S) as u64;
    Bytes(limit.0 - base.saturating_add(coming).min(limit.0 / 2))
}

/// The limit at which a program of this peak keeps all of its memory to itself, if it grows at an
/// ordinary rate; in whole MiB.
pub fn enough_for(peak: Bytes) -> Bytes {
    const MIB: u64 = 1 << 20;
    let mut limit = peak.0.max(MIB);
    // What is kept free grows by a sixteenth of what the limit grows by, so this ends at once.
    loop {
        let short = peak
            .0
            .saturating_sub(adopt_at(Bytes(limit), ORDINARY_RATE).0);
        if short == 0 {
            return Bytes(limit.next_multiple_of(MIB));
        }
        limit += short;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_program_that_fits_with_little_to_spare_keeps_its_memory() {
        let limit = Bytes::mib(176);
        assert!(adopt_at(limit, 0.0) > Bytes::mib(160));
        assert!(adopt_at(limit, 1e9) > Bytes::mib(160));
    }

    #[test]
    fn a_program_that_follows_advice_keeps_its_memory() {
        // As `sort` does: a sixteenth is for its code, which takes two MiB or so.
        for limit in [64, 200, 1024, 65_536].map(Bytes::mib) {
            let held = advised(limit).0 / 16 * 15 + Bytes::mib(2).0;
            assert!(Bytes(held) < adopt_at(limit, ORDINARY_RATE), "{limit}");
            assert!(held > limit.0 / 2, "{limit}");
        }
    }

    #[test]
    fn fast_growth_is_met_early() {
        let limit = Bytes::gib(1);
        let slow = adopt_at(limit, 1e6);
        let fast = adopt_at(limit, 8e9);
        assert!(slow.0 - fast.0 > Bytes::mib(28).0, "{slow} {fast}");
    }

    #[test]
    fn what_would_have_been_enough_is_enough_and_little_more() {
        assert_eq!(enough_for(Bytes::mib(162)), Bytes::mib(177));
    }

    proptest! {
        #[test]
        fn enough_is_enough(peak in 1u64..1 << 42) {
            let enough = enough_for(Bytes(peak));
            prop_assert!(adopt_at(enough, ORDINARY_RATE).0 >= peak);
            let less = Bytes(enough.0.saturating_sub(2 << 20));
            prop_assert!(less.0 < 4 << 20 || adopt_at(less, ORDINARY_RATE).0 < peak);
        }

        #[test]
        fn ready_before_it_is_needed(limit in 1u64 << 20..1 << 42, growth in 0f64..1e11) {
            let limit = Bytes(limit);
            let adopt = adopt_at(limit, growth);
            prop_assert!(ready_at(limit) <= adopt);
            prop_assert!(adopt.0 >= limit.0 / 2 && adopt < limit);
        }
    }
}
