//! Measured points, joined by straight lines.
//!
//! A line through the points never contradicts them, and between two of them it says no more than was
//! measured. Invariant: run times never fall with falling memory; [`mod@super::level`] sees to that before.

/// Points from ratio 1 downwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Points {
    ratio: Vec<f64>,
    seconds: Vec<f64>,
}

impl Points {
    pub(super) fn new(ratio: &[f64], seconds: &[f64]) -> Points {
        Points {
            ratio: ratio.to_vec(),
            seconds: seconds.to_vec(),
        }
    }

    pub fn ratios(&self) -> &[f64] {
        &self.ratio
    }

    /// The piece that a ratio lies in: the number of its end with less memory.
    #[inline]
    fn piece(&self, ratio: f64) -> usize {
        let above = self.ratio.partition_point(|&point| point > ratio);
        above.clamp(1, self.ratio.len() - 1)
    }

    #[inline]
    pub(super) fn at(&self, ratio: f64) -> f64 {
        let end = self.piece(ratio);
        let (more, less) = (self.ratio[end - 1], self.ratio[end]);
        let (fast, slow) = (self.seconds[end - 1], self.seconds[end]);
        let part = ((more - ratio) / (more - less)).clamp(0.0, 1.0);
        // Not fast + part · (slow − fast): at its ends that is off by a rounding, and a curve that
        // contradicts its points by a rounding is not monotone.
        match part {
            1.0 => slow,
            part => (fast + part * (slow - fast)).min(slow),
        }
    }

    /// Of the piece with less memory, at a point.
    pub(super) fn slope(&self, ratio: f64) -> f64 {
        let end = self.piece(ratio);
        let rise = self.seconds[end] - self.seconds[end - 1];
        rise / (self.ratio[end] - self.ratio[end - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use proptest::prelude::*;

    #[test]
    fn a_knee_is_where_it_was_measured() {
        // Found by `muninn profile`: nothing happens down to 60 %, then all at once. A polynomial of
        // degree four puts 20 % more run time at 65 %.
        let (ratio, seconds) = ([1.0, 0.8, 0.6, 0.5], [10.0, 10.0, 10.1, 30.0]);
        let profile = Profile::from_points(&ratio, &seconds).unwrap();
        assert_eq!(profile.seconds(0.7), 10.05);
        assert!((profile.ratio_at_slowdown(1.2) - 0.590).abs() < 0.001);
        let points = Points::new(&ratio, &seconds);
        assert!((points.slope(0.55) + 199.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn every_point_is_met_and_nothing_rises(
            steps in prop::collection::vec((0.001..0.09f64, 0.0..1e4f64), 1..10),
            first in 0.001..1e5f64,
            at in prop::collection::vec(0.0..=1.0f64, 2..40),
        ) {
            let (mut ratio, mut seconds) = (vec![1.0], vec![first]);
            for (less, slower) in steps {
                ratio.push(ratio.last().unwrap() - less);
                seconds.push(seconds.last().unwrap() + slower);
            }
            let profile = Profile::from_points(&ratio, &seconds).unwrap();
            for (&ratio, &seconds) in ratio.iter().zip(&seconds) {
                prop_assert_eq!(profile.seconds(ratio), seconds);
            }
            let mut at = at;
            at.sort_by(f64::total_cmp);
            prop_assert!(at.windows(2).all(|w| profile.seconds(w[0]) >= profile.seconds(w[1])));
            prop_assert!(at.iter().all(|&r| profile.slope(r) <= 0.0));
        }
    }
}
