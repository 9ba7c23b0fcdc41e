//! EFSM: how urgent an eviction is, as a class of traffic.
//!
//! Idea: a program that is blocked waits for its eviction, so that flow (a UEF) goes first. A
//! regular eviction (REF) hurts nobody until local memory is exhausted; the sooner that will be,
//! the more urgent it is. How soon is *soon* depends on everybody else: a map from time to
//! priority, built from the distribution of job completion times in the cluster, gives each
//! priority an equal share of what was seen. Without such a history the remaining share of memory
//! decides. If the programs that are not blocked suffer, the safeguard makes all evictions equal.
//!
//! Invariant: only a blocked program gets `UrgentEviction`; less time (or less memory) left is
//! never less urgent.
//!
//! A reading of the paper: its text gives blocked flows P7 and counts upwards, its algorithm 1 and
//! its examples give them P1 and count downwards (`[0, 78) → P2`). Here the text's order holds, so
//! the examples' P2, P3, … are our P6, P5, …; and P1 is kept for prefetching, so that regular
//! evictions have five levels, P6 to P2.
//!
//! Known limit: the map is only as good as its history; a cluster whose jobs change needs a new one.
//!
//! Source: Glitter, § III-C, algorithm 1, fig. 7; the map follows Homa's unscheduled priorities.

use muninn_types::{Bytes, Class, Nanos};

/// Levels of a regular eviction, P6 (most urgent) to P2.
pub const LEVELS: usize = 5;

/// What every eviction is when urgency counts for nothing.
pub const EQUAL: Class = Class::Eviction(4);

/// What is known of a program when it evicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// A thread waits because there is no free local page.
    pub blocked: bool,
    pub remaining: Bytes,
    pub total: Bytes,
    /// V_app, in bytes per second.
    pub growth_rate: f64,
}

/// Map_p: times to exhaustion → priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityMap {
    /// Upper ends of P6, P5, P4 and P3, ascending; P2 has none.
    bounds: [Nanos; LEVELS - 1],
}

impl PriorityMap {
    /// Equal shares of the cumulative distribution of these times. `None` without any history.
    pub fn from_history(times: &[Nanos]) -> Option<PriorityMap> {
        if times.is_empty() {
            return None;
        }
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let quantile = |i: usize| sorted[(sorted.len() * (i + 1) / LEVELS).min(sorted.len() - 1)];
        Some(PriorityMap {
            bounds: std::array::from_fn(quantile),
        })
    }

    pub fn bounds(&self) -> [Nanos; LEVELS - 1] {
        self.bounds
    }

    pub fn class(&self, exhausted_in: Nanos) -> Class {
        level(self.bounds.iter().position(|&bound| exhausted_in < bound))
    }
}

/// The `index`-th level, P6 first; `None` is the last.
fn level(index: Option<usize>) -> Class {
    Class::Eviction(6 - index.unwrap_or(LEVELS - 1) as u8)
}

/// T_exhausted = M_remain ÷ V_app.
pub fn exhausted_in(pressure: &Pressure) -> Nanos {
    if pressure.growth_rate > 0.0 {
        // The cast saturates.
        Nanos((pressure.remaining.0 as f64 / pressure.growth_rate * 1e9) as u64)
    } else {
        Nanos::MAX
    }
}

/// Without a history: a tenth of the memory for each level, from the full end.
fn class_by_ratio(pressure: &Pressure) -> Class {
    let remaining = u128::from(pressure.remaining.0) * 10;
    let total = u128::from(pressure.total.0);
    level((0..LEVELS - 1).find(|&i| remaining <= total * (i as u128 + 1)))
}

/// Algorithm 1 and its safeguard.
#[derive(Clone, Debug)]
pub struct Urgency {
    map: Option<PriorityMap>,
    /// How much slower the programs that are not blocked may become, in percent.
    tolerance_pct: f64,
    disabled: bool,
}

impl Urgency {
    /// The paper's measure of what the others may lose.
    pub const TOLERANCE_PCT: f64 = 1.0;

    pub fn new(map: Option<PriorityMap>) -> Urgency {
        Urgency {
            map,
            tolerance_pct: Urgency::TOLERANCE_PCT,
            disabled: false,
        }
    }

    pub fn with_tolerance_pct(self, tolerance_pct: f64) -> Urgency {
        Urgency {
            tolerance_pct,
            ..self
        }
    }

    /// A new history was collected.
    pub fn handle_history(&mut self, times: &[Nanos]) {
        self.map = PriorityMap::from_history(times);
    }

    /// How much slower the programs that are not blocked were found to be. Past the tolerance the
    /// scheduling stays off until [`Urgency::rearm`]: what it would do to them is what was measured.
    pub fn handle_slowdown(&mut self, slowdown_pct: f64) {
        if slowdown_pct > self.tolerance_pct {
            self.disabled = true;
        }
    }

    pub fn rearm(&mut self) {
        self.disabled = false;
    }

    pub fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// The class of an eviction that is sent now.
    pub fn class(&self, pressure: &Pressure) -> Class {
        if self.disabled {
            EQUAL
        } else if pressure.blocked {
            Class::UrgentEviction
        } else if let Some(map) = &self.map {
            map.class(exhausted_in(pressure))
        } else {
            class_by_ratio(pressure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pressure(remaining: u64, total: u64, growth_rate: f64) -> Pressure {
        Pressure {
            blocked: false,
            remaining: Bytes(remaining),
            total: Bytes(total),
            growth_rate,
        }
    }

    #[test]
    fn a_blocked_program_goes_first_and_only_it() {
        let urgency = Urgency::new(None);
        let mut now = pressure(0, 100, 5.0);
        assert_eq!(urgency.class(&now), Class::Eviction(6));
        now.blocked = true;
        assert_eq!(urgency.class(&now), Class::UrgentEviction);
    }

    #[test]
    fn remaining_ratio_as_in_the_paper() {
        let urgency = Urgency::new(None);
        let class = |percent| urgency.class(&pressure(percent, 100, 1.0));
        let cases = [
            (0, 6),
            (10, 6),
            (11, 5),
            (20, 5),
            (21, 4),
            (30, 4),
            (40, 3),
            (41, 2),
            (100, 2),
        ];
        for (percent, priority) in cases {
            assert_eq!(class(percent), Class::Eviction(priority), "{percent} %");
        }
    }

    #[test]
    fn the_map_splits_the_history_evenly() {
        // Fig. 7: [0, 78) is the most urgent level, [78, 213) the next.
        let history: Vec<Nanos> = [40, 78, 150, 213, 300, 350, 500, 600, 900, 1000]
            .map(Nanos::secs)
            .to_vec();
        let map = PriorityMap::from_history(&history).unwrap();
        assert_eq!(map.bounds(), [150, 300, 500, 900].map(Nanos::secs));
        let mut of_level = [0; 7];
        for time in history {
            let Class::Eviction(priority) = map.class(time) else {
                panic!("a regular eviction");
            };
            of_level[usize::from(priority)] += 1;
        }
        assert_eq!(of_level[2..], [2, 2, 2, 2, 2]);
        assert_eq!(PriorityMap::from_history(&[]), None);
    }

    #[test]
    fn the_example_of_figure_7() {
        let map = PriorityMap {
            bounds: [78, 213, 400, 700].map(Nanos::secs),
        };
        let urgency = Urgency::new(Some(map));
        // 1 GB left at 20 MB/s: 50 s. At 10 MB/s: 100 s. Not growing: never.
        let class = |rate| urgency.class(&pressure(1_000_000_000, 4_000_000_000, rate));
        assert_eq!(class(20e6), Class::Eviction(6));
        assert_eq!(class(10e6), Class::Eviction(5));
        assert_eq!(class(0.0), Class::Eviction(2));
        assert_eq!(class(-3.0), Class::Eviction(2));
    }

    #[test]
    fn the_safeguard_makes_everything_equal_until_rearmed() {
        let mut urgency = Urgency::new(None);
        let blocked = Pressure {
            blocked: true,
            ..pressure(0, 100, 1.0)
        };
        urgency.handle_slowdown(0.9);
        assert_eq!(urgency.class(&blocked), Class::UrgentEviction);
        urgency.handle_slowdown(1.5);
        assert!(urgency.is_disabled());
        assert_eq!(urgency.class(&blocked), EQUAL);
        assert_eq!(urgency.class(&pressure(90, 100, 1.0)), EQUAL);
        urgency.rearm();
        assert_eq!(urgency.class(&blocked), Class::UrgentEviction);
    }

    proptest! {
        #[test]
        fn less_left_is_never_less_urgent(
            history in proptest::collection::vec(0u64..1 << 50, 0..40),
            total in 1u64..1 << 45,
            less in 0u64..1 << 45,
            more in 0u64..1 << 45,
            rate in 0.0f64..1e12,
        ) {
            let history: Vec<Nanos> = history.into_iter().map(Nanos).collect();
            let urgency = Urgency::new(PriorityMap::from_history(&history));
            let scarce = urgency.class(&pressure(less.min(more), total, rate));
            let ample = urgency.class(&pressure(less.max(more), total, rate));
            prop_assert!(scarce.priority() >= ample.priority());
            prop_assert!((2..=6).contains(&scarce.priority()));
            let faster = urgency.class(&pressure(more, total, rate * 2.0));
            let slower = urgency.class(&pressure(more, total, rate));
            prop_assert!(faster.priority() >= slower.priority());
        }
    }
}
