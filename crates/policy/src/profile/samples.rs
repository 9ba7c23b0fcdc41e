//! A profile on a grid, for code that asks for all of it at once.
//!
//! Holds f(r) − f(1) and (1 − r)·f(r), the two sums that the memory-time policy weighs, at equal
//! steps from r = 1 down to the lowest ratio, and at the kinks, which are the measured points and the
//! ends of levelled stretches: there the best ratios are found.

use super::{ALL_LOCAL, Profile};

/// Steps between the lowest ratio and 1.
pub(crate) const CELLS: usize = 48;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples {
    /// Equal for equal samples, different for different ones.
    pub(crate) id: u64,
    /// From 1 downwards.
    pub(crate) ratio: Vec<f64>,
    /// f(r) − f(1), in seconds.
    pub(crate) slower_s: Vec<f64>,
    /// (1 − r)·f(r), in seconds.
    pub(crate) far_s: Vec<f64>,
}

impl Samples {
    pub(super) fn of(profile: &Profile) -> Samples {
        let lowest = profile.lowest();
        let span = ALL_LOCAL - lowest;
        let cells = if span > 0.0 { CELLS } else { 0 };
        let even = (0..=cells).map(|i| ALL_LOCAL - span * i as f64 / CELLS as f64);
        let kinks = profile.kinks().filter(|&r| r > lowest);
        let mut ratio: Vec<f64> = even.chain(kinks).collect();
        ratio.sort_by(|a, b| b.total_cmp(a));
        ratio.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
        let seconds: Vec<f64> = ratio.iter().map(|&r| profile.seconds(r)).collect();
        let far = |(r, s): (&f64, &f64)| (ALL_LOCAL - r) * s;
        let mut id = 0xCBF2_9CE4_8422_2325_u64;
        for value in ratio.iter().chain(&seconds) {
            // FNV-1a over whole words, with a mixing step: 64 bits tell any set of profiles apart.
            id = (id ^ value.to_bits()).wrapping_mul(0x0100_0000_01B3);
            id ^= id >> 29;
        }
        Samples {
            id,
            slower_s: seconds.iter().map(|s| s - profile.full_s()).collect(),
            far_s: ratio.iter().zip(&seconds).map(far).collect(),
            ratio,
        }
    }
}
