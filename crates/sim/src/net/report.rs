//! What a run found.

use super::fabric::TierLoad;
use muninn_types::{Bytes, Nanos};

/// Means are over the memory-intensive jobs, unless they are the others'.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub jct_s: f64,
    pub others_jct_s: f64,
    /// Of the completion time: waiting for a free page, and for a page to be read.
    pub blocked_s: f64,
    pub reading_s: f64,
    /// Urgent and regular eviction flows of all memory-intensive jobs.
    pub uef_count: u64,
    pub ref_count: u64,
    /// Completion time of urgent eviction flows: from the block to the last acknowledgement.
    pub fct_us_mean: f64,
    pub fct_us_p99: f64,
    pub tiers: [TierLoad; 4],
    pub delivered: Bytes,
}

/// Times in buckets less than 1 % wide; the mean is exact. Its size does not depend on how many
/// times were added.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u128,
}

/// 2^7 buckets to each doubling.
const SUB_BITS: u32 = 7;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: vec![0; bucket(u64::MAX) + 1],
            count: 0,
            sum_ns: 0,
        }
    }
}

impl Histogram {
    pub fn add(&mut self, time: Nanos) {
        self.counts[bucket(time.0)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(time.0);
    }

    /// 0 where there is nothing.
    pub fn mean_us(&self) -> f64 {
        self.sum_ns as f64 / 1000.0 / self.count.max(1) as f64
    }

    /// The lower end of the bucket in which this share of all times is reached; 0 where there is
    /// nothing.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        let rank = (self.count as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += count;
            if count > 0 && seen >= rank {
                return lower_end(index) as f64 / 1000.0;
            }
        }
        0.0
    }
}

/// Below 2^(SUB_BITS + 1) a bucket is one nanosecond; above, 2^shift of them.
fn bucket(ns: u64) -> usize {
    let bits = 64 - ns.leading_zeros();
    let shift = bits.saturating_sub(SUB_BITS + 1);
    ((shift as usize) << SUB_BITS) + (ns >> shift) as usize
}

fn lower_end(index: usize) -> u64 {
    let shift = (index >> SUB_BITS).saturating_sub(1);
    ((index - (shift << SUB_BITS)) as u64) << shift
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_are_narrow_and_in_order(ns: u64, more in 0u64..1 << 40) {
            let low = lower_end(bucket(ns));
            prop_assert!(low <= ns && (ns - low) as f64 <= ns as f64 / 128.0);
            prop_assert!(bucket(ns) <= bucket(ns.saturating_add(more)));
        }
    }

    #[test]
    fn quantiles_of_a_thousand() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(0.99), 0.0);
        for n in 1..=1000 {
            histogram.add(Nanos::micros(n));
        }
        assert_eq!(histogram.mean_us(), 500.5);
        let p99 = histogram.quantile_us(0.99);
        assert!((982.0..=990.0).contains(&p99), "{p99}");
    }
}
