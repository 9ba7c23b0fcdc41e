//! How long things took: counts in buckets of powers of two.
//!
//! The first bucket holds what took less than a microsecond, each next one twice as long as the one before, the
//! last everything above four seconds. Known limit: a time is known to a factor of two, and no better.

use crate::Nanos;

/// A histogram of durations, with their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    pub counts: [u64; Spread::BUCKETS],
    pub sum_ns: u64,
}

impl Spread {
    pub const BUCKETS: usize = 24;

    /// The bucket of a duration.
    pub const fn bucket(took: Nanos) -> usize {
        let us = took.0 / 1000;
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        if bucket < Spread::BUCKETS {
            bucket
        } else {
            Spread::BUCKETS - 1
        }
    }

    /// What is in a bucket took less than this; None for the last, which has no end.
    pub const fn below(bucket: usize) -> Option<Nanos> {
        match bucket + 1 < Spread::BUCKETS {
            true => Some(Nanos(1000 << bucket)),
            false => None,
        }
    }

    pub fn note(&mut self, took: Nanos) {
        self.counts[Spread::bucket(took)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(took.0);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// So large a part took less than this; None if nothing is known, or it took longer than is told apart.
    pub fn part_below(&self, part: f64) -> Option<Nanos> {
        let wanted = self.count() as f64 * part;
        let mut sum = 0;
        let enough = |count: &u64| {
            sum += count;
            sum > 0 && sum as f64 >= wanted
        };
        Spread::below(self.counts.iter().position(enough)?)
    }

    pub fn add(&mut self, other: &Spread) {
        for (own, other) in self.counts.iter_mut().zip(other.counts) {
            *own = own.saturating_add(other);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// What came since; nothing where one counts anew.
    pub fn since(&self, before: &Spread) -> Spread {
        let mut since = Spread::default();
        let pairs = self.counts.iter().zip(before.counts);
        for (own, (now, before)) in since.counts.iter_mut().zip(pairs) {
            match now.checked_sub(before) {
                Some(more) => *own = more,
                None => return Spread::default(),
            }
        }
        since.sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_below_the_end_of_their_bucket_and_not_of_the_one_before() {
        for ns in [
            0,
            1,
            999,
            1000,
            1999,
            2000,
            1 << 20,
            4_194_303_999,
            1 << 40,
            u64::MAX,
        ] {
            let bucket = Spread::bucket(Nanos(ns));
            assert!(Spread::below(bucket).is_none_or(|end| ns < end.0), "{ns}");
            let before = bucket.checked_sub(1).and_then(Spread::below);
            assert!(before.is_none_or(|end| ns >= end.0), "{ns}");
        }
        assert_eq!(Spread::bucket(Nanos(4_194_304_000)), Spread::BUCKETS - 1);
    }

    #[test]
    fn what_came_since() {
        let mut before = Spread::default();
        before.note(Nanos(1500));
        let mut now = before;
        now.note(Nanos(1500));
        now.note(Nanos(7));
        let since = now.since(&before);
        assert_eq!((since.count(), since.sum_ns, since.counts[1]), (2, 1507, 1));
        assert_eq!(before.since(&now), Spread::default(), "it counts anew");
        let mut all = before;
        all.add(&since);
        assert_eq!(all, now);
        assert_eq!(all.part_below(0.5), Some(Nanos(2000)));
        assert_eq!(all.part_below(0.2), Some(Nanos(1000)));
        assert_eq!(Spread::default().part_below(0.5), None);
        all.note(Nanos(u64::MAX));
        assert_eq!(all.part_below(1.0), None);
    }
}
