//! A job's life, from its first picture to its last, in a bounded number of points.
//!
//! When there is no more room every second point is dropped, and from then on half as many are kept: so all of a
//! life is there, the longer the coarser. What only grows is kept as it is, so that rates between any two points
//! are true. Moments at which the limit changed are kept apart, exactly.

use crate::observe::JobNow;
use serde::Serialize;
use std::time::Duration;

const POINTS_MAX: usize = 256;
/// Changes of a limit that are remembered; of more, the oldest are forgotten.
const CHANGES_MAX: usize = 64;

/// Milliseconds since the first, here, far, limit, faults so far, nanoseconds waited so far.
type Point = [u64; 6];

#[derive(Debug, Default, Serialize)]
pub struct Life {
    points: Vec<Point>,
    /// Milliseconds since the first point, and the limit from then on.
    changes: Vec<[u64; 2]>,
    #[serde(skip)]
    every: u64,
    #[serde(skip)]
    seen: u64,
    #[serde(skip)]
    limit: u64,
}

impl Life {
    /// `since` is how long after its first picture this one was taken.
    pub fn note(&mut self, job: &JobNow, since: Duration) {
        let ms = since.as_millis() as u64;
        if self.every == 0 {
            (self.every, self.limit) = (1, job.limit_bytes);
        }
        if self.limit != job.limit_bytes {
            self.limit = job.limit_bytes;
            if self.changes.len() >= CHANGES_MAX {
                self.changes.remove(0);
            }
            self.changes.push([ms, job.limit_bytes]);
        }
        if self.seen.is_multiple_of(self.every) {
            if self.points.len() >= POINTS_MAX {
                let mut at = 0;
                self.points.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.every *= 2;
            }
            self.points.push([
                ms,
                job.here_bytes,
                job.far_bytes,
                job.limit_bytes,
                job.totals.faults,
                job.totals.waited_ns,
            ]);
        }
        self.seen += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_long_life_is_there_in_few_points() {
        let mut life = Life::default();
        let mut job = JobNow::default();
        for second in 0..100_000u64 {
            job.totals.faults = second * 10;
            job.limit_bytes = match second {
                0..=500 => 64,
                _ => 128,
            };
            life.note(&job, Duration::from_secs(second));
            assert!(life.points.len() <= POINTS_MAX);
        }
        assert_eq!(life.points[0][0], 0);
        assert!(life.points.len() > POINTS_MAX / 3, "{}", life.points.len());
        let last = life.points.last().unwrap();
        assert!(last[0] > 99_000_000, "{last:?}");
        for pair in life.points.windows(2) {
            let faults = pair[1][4] - pair[0][4];
            assert_eq!(faults, (pair[1][0] - pair[0][0]) / 100, "{pair:?}");
        }
        assert_eq!(life.changes, [[501_000, 128]]);
        for n in 0..1000 {
            job.limit_bytes = n;
            life.note(&job, Duration::from_secs(200_000 + n));
        }
        assert_eq!(life.changes.len(), CHANGES_MAX);
    }
}
