//! A-ETAM: when the background eviction should start.
//!
//! Idea: reclaim begins when a program's local memory passes a threshold. A high one uses the
//! memory well but leaves little room when the program grows faster than pages can be sent away,
//! and then the program must wait (it is *blocked*). So the threshold follows the ratio of growth
//! to eviction, α, over cycles of N charges: it is lowered while the program outgrows the eviction,
//! pulled back as far as the miss rate suffers from that (β), and reset over M cycles once the
//! eviction keeps up.
//!
//! Invariant: `lower ≤ threshold ≤ upper`, and one cycle never raises the threshold while α > 1.
//!
//! Two readings of the paper:
//! - Eq. 4 as printed multiplies by 1 ÷ ((1−α)/β + α), which for α > 1 lowers the threshold further,
//!   while the text says that the result lies between T′ and T. With the ratio inverted (V_evict ÷
//!   V_app in the place of α) the same formula spans exactly T′ (β = 1) to T (β → ∞); that is used.
//! - V_evict is what the eviction can do, so it is measured over the time in which it was at work.
//!   Over all time it would be near 0 whenever there was nothing to evict, and α would see danger
//!   in every quiet cycle. A cycle without eviction keeps the last measurement.
//!
//! Known limit: a program that outgrows the eviction all the time gains nothing from an early
//! start; the reserve is filled by the pauses of its growth only.
//!
//! Source: Glitter, § III-B, fig. 6.

use std::fmt;
use std::str::FromStr;

use muninn_types::{Bytes, Nanos};

/// The policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ThresholdPolicy {
    /// Between half of the limit and T_upper, after growth and eviction (A-ETAM).
    #[default]
    Adaptive,
    /// Always T_upper (Fastswap).
    Fixed,
}

impl ThresholdPolicy {
    pub const ALL: [ThresholdPolicy; 2] = [ThresholdPolicy::Adaptive, ThresholdPolicy::Fixed];

    pub const fn name(self) -> &'static str {
        match self {
            ThresholdPolicy::Adaptive => "adaptive",
            ThresholdPolicy::Fixed => "fixed",
        }
    }

    /// What to give to [`Threshold::new`]: T_upper is `headroom` below the limit.
    pub fn params(self, limit: Bytes, headroom: Bytes) -> Params {
        let params = Params::for_limit(limit, headroom);
        match self {
            ThresholdPolicy::Adaptive => params,
            ThresholdPolicy::Fixed => Params {
                lower: params.upper,
                ..params
            },
        }
    }
}

impl fmt::Display for ThresholdPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no threshold policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a threshold policy: use adaptive or fixed")]
pub struct UnknownThresholdPolicy(String);

impl FromStr for ThresholdPolicy {
    type Err = UnknownThresholdPolicy;
    fn from_str(text: &str) -> Result<ThresholdPolicy, UnknownThresholdPolicy> {
        ThresholdPolicy::ALL
            .into_iter()
            .find(|policy| policy.name() == text.trim())
            .ok_or_else(|| UnknownThresholdPolicy(text.to_string()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// T_upper: where the threshold begins and returns to (Fastswap: the limit less 8 MB).
    pub upper: Bytes,
    /// T_lower: never below this.
    pub lower: Bytes,
    /// N: charges in a cycle.
    pub cycle_charges: u32,
    /// M: cycles that a reset takes.
    pub reset_cycles: u32,
    /// V_evict until the first eviction has been measured, in bytes per second; 0 for unknown.
    pub evict_rate_initial: f64,
}

impl Params {
    /// T_upper is `headroom` below the limit, T_lower half of the limit.
    pub fn for_limit(limit: Bytes, headroom: Bytes) -> Params {
        Params {
            upper: limit.saturating_sub(headroom),
            lower: Bytes(limit.0 / 2),
            cycle_charges: 1024,
            reset_cycles: 8,
            evict_rate_initial: 0.0,
        }
    }
}

/// What one cycle did to the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Steps 1 and 2: α > 1, and the miss rate did not suffer.
    Lowered,
    /// Steps 3 and 4: α > 1, but the miss rate rose: lowered by less.
    PulledBack,
    /// Step 5: α ≤ 1; one of M parts of the way back to T_upper.
    Reset,
    /// α ≤ 1 at T_upper, or nothing is known of the eviction yet.
    Kept,
}

/// The outcome of a cycle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cycle {
    pub alpha: f64,
    pub beta: f64,
    pub step: Step,
    pub threshold: Bytes,
}

/// The state machine. The eviction runs while the usage is above [`Threshold::get`].
#[derive(Clone, Debug)]
pub struct Threshold {
    params: Params,
    current: Bytes,
    /// Cycles of a reset that are left; M when none is under way.
    reset_left: u32,
    /// V_evict of the last cycle in which something was evicted, in bytes per second.
    evict_rate: f64,
    /// CM_last.
    miss_rate_last: Option<f64>,
    cycle: Records,
}

/// What is counted within a cycle (step 6 begins it anew).
#[derive(Clone, Copy, Debug, Default)]
struct Records {
    began: Option<Nanos>,
    charges: u32,
    charged: Bytes,
    evicted: Bytes,
    evict_busy: Nanos,
    accesses: u64,
    misses: u64,
}

impl Threshold {
    /// Bounds in the wrong order are taken as the range between them; N and M are at least 1.
    pub fn new(params: Params) -> Threshold {
        let params = Params {
            upper: params.upper.max(params.lower),
            lower: params.lower.min(params.upper),
            cycle_charges: params.cycle_charges.max(1),
            reset_cycles: params.reset_cycles.max(1),
            ..params
        };
        Threshold {
            current: params.upper,
            reset_left: params.reset_cycles,
            evict_rate: params.evict_rate_initial,
            miss_rate_last: None,
            cycle: Records::default(),
            params,
        }
    }

    pub fn get(&self) -> Bytes {
        self.current
    }

    /// Pages reached the remote side; `busy` is the time that sending them took.
    pub fn handle_evicted(&mut self, bytes: Bytes, busy: Nanos) {
        self.cycle.evicted += bytes;
        self.cycle.evict_busy += busy;
    }

    /// The program touched pages, and so many of them were not local.
    pub fn handle_accesses(&mut self, accesses: u64, misses: u64) {
        self.cycle.accesses += accesses;
        self.cycle.misses += misses;
    }

    /// The program was charged for more local memory. Every N-th charge ends a cycle.
    pub fn handle_charge(&mut self, bytes: Bytes, now: Nanos) -> Option<Cycle> {
        let began = *self.cycle.began.get_or_insert(now);
        self.cycle.charges += 1;
        self.cycle.charged += bytes;
        if self.cycle.charges < self.params.cycle_charges || now <= began {
            return None;
        }
        let cycle = self.adjust(now.saturating_sub(began));
        self.cycle = Records {
            began: Some(now),
            ..Records::default()
        };
        Some(cycle)
    }

    fn adjust(&mut self, elapsed: Nanos) -> Cycle {
        let growth_rate = self.cycle.charged.0 as f64 / elapsed.as_secs_f64();
        if self.cycle.evicted > Bytes::ZERO && self.cycle.evict_busy > Nanos::ZERO {
            self.evict_rate = self.cycle.evicted.0 as f64 / self.cycle.evict_busy.as_secs_f64();
        }
        // Step 1. Without a measurement there is no α, and no reason to act.
        let known = self.evict_rate > 0.0;
        let alpha = if known {
            growth_rate / self.evict_rate
        } else {
            1.0
        };
        let beta = self.beta();
        let step = if alpha > 1.0 {
            self.reset_left = self.params.reset_cycles;
            let (threshold, step) = lowered(self.current, self.params.lower, alpha, beta);
            self.current = threshold;
            step
        } else if known && self.current < self.params.upper {
            self.reset()
        } else {
            Step::Kept
        };
        assert!(
            (self.params.lower..=self.params.upper).contains(&self.current),
            "threshold outside of its bounds"
        );
        Cycle {
            alpha,
            beta,
            step,
            threshold: self.current,
        }
    }

    /// Step 3, and the miss rate's part of step 6.
    fn beta(&mut self) -> f64 {
        if self.cycle.accesses == 0 {
            return 1.0;
        }
        let now = self.cycle.misses as f64 / self.cycle.accesses as f64;
        match self.miss_rate_last.replace(now) {
            None => 1.0,
            Some(0.0) if now == 0.0 => 1.0,
            // From none to some: the worst case, which refuses to lower.
            Some(0.0) => f64::INFINITY,
            Some(last) => now / last,
        }
    }

    /// Step 5: equal parts of the way, so that after M quiet cycles in a row it is T_upper.
    fn reset(&mut self) -> Step {
        let way = self.params.upper.saturating_sub(self.current);
        self.current += Bytes(way.0.div_ceil(u64::from(self.reset_left)));
        self.reset_left = match self.reset_left - 1 {
            0 => self.params.reset_cycles,
            left => left,
        };
        Step::Reset
    }
}

/// Steps 2 to 4 for α > 1: eq. 2, then eq. 4 where β > 1.
fn lowered(current: Bytes, lower: Bytes, alpha: f64, beta: f64) -> (Bytes, Step) {
    let target = (current.0 as f64 / alpha).max(lower.0 as f64);
    if beta <= 1.0 {
        return (clamp(target, lower, current), Step::Lowered);
    }
    // 1 ÷ α, or what T_lower left of it, so that the result ends at T in either case.
    let ratio = target / current.0 as f64;
    let pulled_back = target / ((1.0 - ratio) / beta + ratio);
    (clamp(pulled_back, lower, current), Step::PulledBack)
}

fn clamp(bytes: f64, low: Bytes, high: Bytes) -> Bytes {
    // The cast saturates; NaN (0 ÷ 0 where everything is 0) becomes 0.
    Bytes(bytes as u64).clamp(low, high.max(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_names_and_bounds() {
        for policy in ThresholdPolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert_eq!(
            "low".parse::<ThresholdPolicy>().unwrap_err().to_string(),
            "'low' is not a threshold policy: use adaptive or fixed"
        );
        let bounds = |policy: ThresholdPolicy| {
            let params = policy.params(Bytes::mib(100), Bytes::mib(8));
            (params.lower, params.upper)
        };
        assert_eq!(
            bounds(ThresholdPolicy::Adaptive),
            (Bytes::mib(50), Bytes::mib(92))
        );
        assert_eq!(
            bounds(ThresholdPolicy::Fixed),
            (Bytes::mib(92), Bytes::mib(92))
        );
    }
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn params(cycle_charges: u32) -> Params {
        Params {
            upper: Bytes::mib(992),
            lower: Bytes::mib(500),
            cycle_charges,
            reset_cycles: 4,
            evict_rate_initial: 0.0,
        }
    }

    /// A cycle of one second in which the program grew and the eviction sent so many MiB, and so
    /// many of 1,000 accesses missed.
    fn cycle(threshold: &mut Threshold, at_s: u64, grown: u64, sent: u64, misses: u64) -> Cycle {
        threshold.handle_evicted(Bytes::mib(sent), Nanos::secs(1));
        threshold.handle_accesses(1000, misses);
        threshold
            .handle_charge(Bytes::mib(grown), Nanos::secs(at_s))
            .expect("one charge is a cycle")
    }

    fn begun() -> Threshold {
        let mut threshold = Threshold::new(params(1));
        assert_eq!(threshold.handle_charge(Bytes::ZERO, Nanos::ZERO), None);
        threshold.cycle.charges = 0;
        threshold
    }

    #[test]
    fn begins_at_the_upper_bound_and_stays_while_the_eviction_keeps_up() {
        let mut threshold = begun();
        let outcome = cycle(&mut threshold, 1, 100, 287, 10);
        assert_eq!(
            (outcome.step, outcome.threshold),
            (Step::Kept, Bytes::mib(992))
        );
    }

    #[test]
    fn equation_2_divides_by_alpha_down_to_the_lower_bound() {
        let mut threshold = begun();
        let outcome = cycle(&mut threshold, 1, 250, 200, 10);
        assert_eq!(outcome.alpha, 1.25);
        assert_eq!(outcome.step, Step::Lowered);
        assert_eq!(outcome.threshold.0, (992.0 * MIB as f64 / 1.25) as u64);
        let outcome = cycle(&mut threshold, 2, 1000, 100, 10);
        assert_eq!(outcome.threshold, Bytes::mib(500));
    }

    #[test]
    fn equation_4_pulls_back_towards_the_old_value_as_misses_rise() {
        let at_beta = |misses: u64| {
            let mut threshold = begun();
            cycle(&mut threshold, 1, 100, 100, 100);
            cycle(&mut threshold, 2, 150, 100, misses)
        };
        let unharmed = at_beta(100);
        let doubled = at_beta(200);
        let tenfold = at_beta(1000);
        assert_eq!(unharmed.step, Step::Lowered);
        assert_eq!((doubled.step, doubled.beta), (Step::PulledBack, 2.0));
        assert!(unharmed.threshold < doubled.threshold);
        assert!(doubled.threshold < tenfold.threshold);
        assert!(tenfold.threshold < Bytes::mib(992));
        // T' ÷ ((1 − 1/1.5)/2 + 1/1.5) = T' × 1.2.
        let expected = 992.0 / 1.5 * 1.2;
        assert!((doubled.threshold.0 as f64 / MIB as f64 - expected).abs() < 0.01);
    }

    #[test]
    fn a_miss_rate_that_comes_from_nothing_refuses_to_lower() {
        let mut threshold = begun();
        cycle(&mut threshold, 1, 100, 100, 0);
        let outcome = cycle(&mut threshold, 2, 300, 100, 1);
        assert_eq!(
            (outcome.step, outcome.threshold),
            (Step::PulledBack, Bytes::mib(992))
        );
    }

    #[test]
    fn the_reset_takes_m_cycles() {
        let mut threshold = begun();
        cycle(&mut threshold, 1, 1000, 100, 10);
        let back: Vec<u64> = (2..=6)
            .map(|at| cycle(&mut threshold, at, 50, 100, 10).threshold.0 / MIB)
            .collect();
        assert_eq!(back, [623, 746, 869, 992, 992]);
    }

    #[test]
    fn a_cycle_without_eviction_keeps_the_last_rate() {
        let mut threshold = begun();
        assert_eq!(
            threshold
                .handle_charge(Bytes::gib(4), Nanos::secs(1))
                .unwrap()
                .step,
            Step::Kept,
            "nothing is known of the eviction yet"
        );
        cycle(&mut threshold, 2, 100, 200, 10);
        let outcome = threshold
            .handle_charge(Bytes::mib(400), Nanos::secs(3))
            .unwrap();
        assert_eq!((outcome.alpha, outcome.step), (2.0, Step::Lowered));
    }

    proptest! {
        #[test]
        fn bounds_are_kept_and_danger_never_raises(
            upper in 0u64..1 << 40,
            lower in 0u64..1 << 40,
            reset_cycles in 0u32..10,
            events in proptest::collection::vec(
                (0u64..1 << 34, 0u64..1 << 34, 0u64..3_000_000_000, 0u64..1000), 1..60),
        ) {
            let mut threshold = Threshold::new(Params {
                upper: Bytes(upper), lower: Bytes(lower), cycle_charges: 2, reset_cycles,
                evict_rate_initial: 0.0,
            });
            let mut now = 0;
            for (charged, evicted, later, misses) in events {
                let before = threshold.get();
                now += later;
                threshold.handle_evicted(Bytes(evicted), Nanos(later));
                threshold.handle_accesses(1000, misses);
                let outcome = threshold.handle_charge(Bytes(charged), Nanos(now));
                let after = threshold.get();
                prop_assert!(after >= Bytes(lower.min(upper)) && after <= Bytes(upper.max(lower)));
                match outcome {
                    None => prop_assert_eq!(after, before),
                    Some(cycle) if cycle.alpha > 1.0 => prop_assert!(after <= before),
                    Some(_) => prop_assert!(after >= before),
                }
            }
        }

        #[test]
        fn monotone_in_alpha_and_beta(
            current in 1u64..1 << 40,
            lower_share in 0.0f64..1.0,
            alpha in 1.0f64..50.0,
            more in 0.0f64..10.0,
            beta in 0.1f64..50.0,
        ) {
            let lower = Bytes((current as f64 * lower_share) as u64);
            let at = |alpha, beta| lowered(Bytes(current), lower, alpha, beta).0;
            // One byte for rounding.
            prop_assert!(at(alpha + more, beta).0 <= at(alpha, beta).0 + 1, "alpha");
            prop_assert!(at(alpha, beta + more).0 + 1 >= at(alpha, beta).0, "beta");
            let unharmed = at(alpha, 1.0);
            prop_assert!(at(alpha, beta) >= unharmed && at(alpha, beta) <= Bytes(current));
        }
    }
}
