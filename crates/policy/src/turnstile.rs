//! How often somebody may ask for what costs much before they have shown who they are.
//!
//! A handshake costs a server a thousand times what it costs to send the bytes that ask for one. So each
//! source has a bucket of turns: one is taken when a handshake begins and given back when it has been
//! brought to its end; those that never are come back slowly. Who has a key never notices, and who has
//! none costs no more than [`PER_SECOND`] handshakes.
//!
//! Invariant: never more than [`SOURCES_MAX`] sources are known. One that is forgotten begins with a full
//! bucket; forgotten are first those whose buckets are fullest, who have least to gain.
//!
//! Known limit: who shares an address with an attacker shares its turns.

use muninn_types::Nanos;
use std::collections::HashMap;
use std::hash::Hash;

/// Turns at first, and those that come back each second.
pub const TURNS: u64 = 256;
pub const PER_SECOND: u64 = 128;
/// Sources that are known at one time.
pub const SOURCES_MAX: usize = 4096;

/// A turn is a second's part.
const TURN: u64 = 1_000_000_000 / PER_SECOND;
const FULL: u64 = TURNS * TURN;

/// What a source has left, in nanoseconds of waiting, and when that was so.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u64,
    at: Nanos,
}

impl Bucket {
    fn now(self, now: Nanos) -> u64 {
        (self.left + now.saturating_sub(self.at).0.min(FULL)).min(FULL)
    }
}

#[derive(Clone, Debug)]
pub struct Turnstile<K> {
    buckets: HashMap<K, Bucket>,
}

impl<K> Default for Turnstile<K> {
    fn default() -> Turnstile<K> {
        Turnstile {
            buckets: HashMap::new(),
        }
    }
}

impl<K: Hash + Eq + Copy> Turnstile<K> {
    /// Takes a turn, if the source has one.
    pub fn enter(&mut self, source: K, now: Nanos) -> bool {
        if self.buckets.len() >= SOURCES_MAX && !self.buckets.contains_key(&source) {
            self.forget(now);
        }
        let left = self.buckets.get(&source).map_or(FULL, |b| b.now(now));
        let may = left >= TURN;
        let left = if may { left - TURN } else { left };
        self.buckets.insert(source, Bucket { left, at: now });
        may
    }

    /// Gives a turn back: its handshake was brought to its end.
    pub fn proved(&mut self, source: K, now: Nanos) {
        if let Some(bucket) = self.buckets.get_mut(&source) {
            let left = (bucket.now(now) + TURN).min(FULL);
            *bucket = Bucket { left, at: now };
        }
    }

    /// Makes room: those who have all their turns, or else the half that has most of them.
    fn forget(&mut self, now: Nanos) {
        self.buckets.retain(|_, bucket| bucket.now(now) < FULL);
        if self.buckets.len() < SOURCES_MAX {
            return;
        }
        let mut left: Vec<u64> = self.buckets.values().map(|b| b.now(now)).collect();
        let (_, middle, _) = left.select_nth_unstable(SOURCES_MAX / 2);
        let middle = *middle;
        self.buckets.retain(|_, bucket| bucket.now(now) < middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_proves_is_never_held_up_and_who_does_not_soon_is() {
        let mut turnstile = Turnstile::default();
        let mut now = Nanos::ZERO;
        let (mut strangers, mut good) = (0, 0);
        for _ in 0..4000 {
            now += Nanos::micros(250);
            strangers += u64::from(turnstile.enter("stranger", now));
            if turnstile.enter("client", now) {
                good += 1;
                turnstile.proved("client", now);
            }
        }
        assert_eq!(good, 4000);
        // One second: all they had, and what came back.
        assert!(strangers <= TURNS + PER_SECOND + 1, "{strangers}");
        assert!(strangers >= TURNS, "{strangers}");
    }

    proptest! {
        /// Whatever is asked, when, and by whom: no source has more turns than it may, and few are known.
        #[test]
        fn turns_are_bounded(
            asks in prop::collection::vec((0u64..6000, 0u64..3_000_000, any::<bool>()), 1..9000),
        ) {
            let mut turnstile = Turnstile::default();
            let mut now = Nanos::ZERO;
            let mut entered = 0u64;
            for (source, pause, proves) in asks {
                now += Nanos(pause);
                // One source stands out, and is looked at.
                if turnstile.enter(0u64, now) {
                    entered += 1;
                    prop_assert!(entered <= 2 * TURNS + now.0 / TURN + 1, "{} in {}", entered, now.0);
                }
                if turnstile.enter(source + 1, now) && proves {
                    turnstile.proved(source + 1, now);
                }
                prop_assert!(turnstile.buckets.len() <= SOURCES_MAX);
            }
        }
    }
}
