//! Which extent is moved next: one that lacks copies, or one on a server that wants its memory back.
//!
//! One queue for repair, drain and join. What has the fewest copies left comes first: it is the next
//! to be lost. An extent that could not be moved (no room elsewhere) waits for [`PAUSE`], so that a
//! full pool is not asked again and again.
//!
//! Invariant: an extent is in the queue once; the work of a call does not grow with the extents that
//! are well.

use muninn_types::Nanos;
use std::collections::{BTreeSet, HashMap};

pub const PAUSE: Nanos = Nanos::secs(1);
/// How long an extent waits whose server is expected to answer again.
pub const PAUSE_SHORT: Nanos = Nanos::millis(20);

/// Why an extent is to be moved; the first is the most pressing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It has so many copies left, fewer than its layout wants.
    Degraded { copies: u8 },
    /// A server with a copy gives its memory back.
    Draining,
    /// A server with a copy wants some of its memory back.
    Asked,
    /// A server that joined has less than the others.
    Balance,
}

/// The queue. Extents are numbers of the caller's.
#[derive(Clone, Debug, Default)]
pub struct Mover {
    ready: BTreeSet<(Reason, u32)>,
    waiting: BTreeSet<(Nanos, u32)>,
    known: HashMap<u32, (Reason, Nanos)>,
    degraded: usize,
}

fn is_degraded(reason: Reason) -> bool {
    matches!(reason, Reason::Degraded { .. })
}

impl Mover {
    pub fn len(&self) -> usize {
        self.known.len()
    }
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Those that could not be moved and wait for another attempt: there is no room, or nobody answers.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Those that lack copies.
    pub fn degraded(&self) -> usize {
        self.degraded
    }

    /// All that are to be moved.
    pub fn extents(&self) -> impl Iterator<Item = u32> {
        let ready = self.ready.iter().map(|(_, extent)| *extent);
        ready.chain(self.waiting.iter().map(|(_, extent)| *extent))
    }

    pub fn wants(&self, extent: u32) -> bool {
        self.known.contains_key(&extent)
    }

    /// An extent is to be moved, or for another reason than before.
    pub fn handle_want(&mut self, extent: u32, reason: Reason) {
        self.handle_well(extent);
        self.known.insert(extent, (reason, Nanos::ZERO));
        self.degraded += usize::from(is_degraded(reason));
        self.ready.insert((reason, extent));
    }

    /// Nothing is to be done about it any more.
    pub fn handle_well(&mut self, extent: u32) {
        if let Some((reason, until)) = self.known.remove(&extent) {
            self.degraded -= usize::from(is_degraded(reason));
            self.ready.remove(&(reason, extent));
            self.waiting.remove(&(until, extent));
        }
    }

    /// It could not be moved now.
    pub fn handle_refusal(&mut self, extent: u32, now: Nanos) {
        self.put_off(extent, now.saturating_add(PAUSE));
    }

    /// It may be well soon without being moved.
    pub fn handle_not_yet(&mut self, extent: u32, now: Nanos) {
        self.put_off(extent, now.saturating_add(PAUSE_SHORT));
    }

    fn put_off(&mut self, extent: u32, to: Nanos) {
        if let Some((reason, until)) = self.known.get_mut(&extent) {
            self.ready.remove(&(*reason, extent));
            self.waiting.remove(&(*until, extent));
            *until = to;
            self.waiting.insert((*until, extent));
        }
    }

    /// The next one, which stays in the queue until it is well.
    pub fn poll_next(&mut self, now: Nanos) -> Option<(u32, Reason)> {
        while let Some(&(until, extent)) = self.waiting.first() {
            if until > now {
                break;
            }
            self.waiting.pop_first();
            if let Some((reason, _)) = self.known.get(&extent) {
                self.ready.insert((*reason, extent));
            }
        }
        self.ready.first().map(|&(reason, extent)| (extent, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn all_are_there_whether_they_wait_or_not() {
        let mut mover = Mover::default();
        for extent in 0..4 {
            mover.handle_want(extent, Reason::Draining);
        }
        mover.handle_refusal(1, Nanos::ZERO);
        mover.handle_not_yet(2, Nanos::ZERO);
        mover.handle_well(3);
        let all: BTreeSet<u32> = mover.extents().collect();
        assert_eq!((all, mover.extents().count()), ([0, 1, 2].into(), 3));
        assert_eq!(mover.waiting(), 2);
    }

    #[test]
    fn the_one_with_the_fewest_copies_comes_first() {
        let mut mover = Mover::default();
        mover.handle_want(1, Reason::Draining);
        mover.handle_want(2, Reason::Degraded { copies: 2 });
        mover.handle_want(3, Reason::Degraded { copies: 1 });
        let next = |mover: &mut Mover, now| mover.poll_next(now).map(|(extent, _)| extent);
        assert_eq!(next(&mut mover, Nanos::ZERO), Some(3));
        mover.handle_refusal(3, Nanos::ZERO);
        assert_eq!(next(&mut mover, Nanos::ZERO), Some(2));
        mover.handle_well(2);
        assert_eq!(next(&mut mover, Nanos::ZERO), Some(1));
        assert_eq!(next(&mut mover, PAUSE), Some(3));
    }

    proptest! {
        #[test]
        fn nothing_is_forgotten_and_nothing_is_there_twice(
            steps in prop::collection::vec((0u8..4, 0u32..6), 1..200),
        ) {
            let mut mover = Mover::default();
            let mut model: BTreeMap<u32, Reason> = BTreeMap::new();
            let mut now = Nanos::ZERO;
            for (what, extent) in steps {
                now += Nanos::millis(100);
                match what {
                    0 => {
                        mover.handle_want(extent, Reason::Draining);
                        model.insert(extent, Reason::Draining);
                    }
                    1 => {
                        let reason = Reason::Degraded { copies: extent as u8 % 2 };
                        mover.handle_want(extent, reason);
                        model.insert(extent, reason);
                    }
                    2 => mover.handle_refusal(extent, now),
                    _ => {
                        mover.handle_well(extent);
                        model.remove(&extent);
                    }
                }
                prop_assert_eq!(mover.len(), model.len());
                let degraded = model.values().filter(|reason| is_degraded(**reason)).count();
                prop_assert_eq!(mover.degraded(), degraded);
            }
            now += PAUSE;
            let mut order = Vec::new();
            while let Some((extent, reason)) = mover.poll_next(now) {
                prop_assert_eq!(model.remove(&extent), Some(reason));
                order.push(reason);
                mover.handle_well(extent);
            }
            prop_assert!(model.is_empty());
            prop_assert!(order.is_sorted());
        }
    }
}
