//! When to ask a server for more slots, and for how many.
//!
//! Slots must last until the answer to a request comes: `threshold = eviction rate × round trip`.
//! The published round trip is computed, `T_NW + T_S + T_S·P·(N−1)÷M` for N compute nodes that each
//! send a request with probability P to one of M memory nodes; [`expected_round_trip`] is that
//! formula. The live system measures both factors instead, which includes whatever queueing there
//! is: the rate as the highest of the last few periods, the round trip as a running mean plus four
//! deviations (as TCP does), so that a server that slows down is asked earlier.
//!
//! Invariants: the threshold stays within its bounds; one request is under way at a time; a request
//! asks for at least one page and never takes the free slots beyond twice the largest threshold.
//!
//! From: COMEX, section 3.3.3, equation (1); bounds from its figure 10 (good from 512 to 8,192).

use muninn_types::Nanos;

/// Equation (1): the mean round trip of a request, with the queueing that other nodes cause.
///
/// `busy` is the probability P that another compute node has a request under way. A pool without
/// memory nodes has no round trip: the longest time is returned.
pub fn expected_round_trip(
    network: Nanos,
    service: Nanos,
    compute_nodes: u32,
    memory_nodes: u32,
    busy: f64,
) -> Nanos {
    if memory_nodes == 0 {
        return Nanos::MAX;
    }
    let others = f64::from(compute_nodes.saturating_sub(1)) / f64::from(memory_nodes);
    let queueing_ns = service.0 as f64 * others * busy.clamp(0.0, 1.0);
    Nanos(
        network
            .0
            .saturating_add(service.0)
            .saturating_add(queueing_ns.round() as u64),
    )
}

/// Pages that are evicted during one round trip, rounded up.
pub fn threshold_pages(pages_per_s: f64, round_trip: Nanos) -> u64 {
    // A rate that is not a number counts as none; the bounds of the caller still hold.
    (pages_per_s.max(0.0) * round_trip.as_secs_f64()).ceil() as u64
}

/// How few and how many slots may be asked for ahead of need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub threshold_pages_min: u64,
    pub threshold_pages_max: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            threshold_pages_min: 512,
            threshold_pages_max: 8_192,
        }
    }
}

/// The rate is taken over periods of this length, and the highest of the last few counts.
const PERIOD: Nanos = Nanos::millis(10);
const PERIODS: usize = 8;
/// Until a round trip has been measured.
const ROUND_TRIP_GUESS: Nanos = Nanos::millis(1);

/// Watches evictions and round trips, and says when to ask.
#[derive(Clone, Debug)]
pub struct Replenish {
    bounds: Bounds,
    round_trip_mean_ns: f64,
    round_trip_deviation_ns: f64,
    measured: bool,
    /// Pages evicted in each of the last periods; `period` is the current one.
    evicted_pages: [u64; PERIODS],
    period: u64,
    asked_at: Option<Nanos>,
}

impl Replenish {
    pub fn new(bounds: Bounds) -> Replenish {
        Replenish {
            bounds: Bounds {
                threshold_pages_min: bounds.threshold_pages_min.max(1),
                threshold_pages_max: bounds
                    .threshold_pages_max
                    .max(bounds.threshold_pages_min)
                    .max(1),
            },
            round_trip_mean_ns: ROUND_TRIP_GUESS.0 as f64,
            round_trip_deviation_ns: 0.0,
            measured: false,
            evicted_pages: [0; PERIODS],
            period: 0,
            asked_at: None,
        }
    }

    pub fn handle_evicted(&mut self, pages: u64, now: Nanos) {
        self.advance(now);
        let current = (self.period % PERIODS as u64) as usize;
        self.evicted_pages[current] = self.evicted_pages[current].saturating_add(pages);
    }

    /// The answer has come, granted or refused; the time it took is the next estimate's sample.
    pub fn handle_answer(&mut self, now: Nanos) {
        let Some(asked_at) = self.asked_at.take() else {
            return;
        };
        let sample_ns = now.saturating_sub(asked_at).0 as f64;
        if self.measured {
            let error = (sample_ns - self.round_trip_mean_ns).abs();
            self.round_trip_deviation_ns += (error - self.round_trip_deviation_ns) / 4.0;
            self.round_trip_mean_ns += (sample_ns - self.round_trip_mean_ns) / 8.0;
        } else {
            self.round_trip_mean_ns = sample_ns;
            self.round_trip_deviation_ns = sample_ns / 2.0;
            self.measured = true;
        }
    }

    /// Fewer free slots than this, and more are asked for.
    pub fn threshold(&self) -> u64 {
        let Bounds {
            threshold_pages_min,
            threshold_pages_max,
        } = self.bounds;
        threshold_pages(self.pages_per_s(), self.round_trip())
            .clamp(threshold_pages_min, threshold_pages_max)
    }

    pub fn round_trip(&self) -> Nanos {
        Nanos((self.round_trip_mean_ns + 4.0 * self.round_trip_deviation_ns) as u64)
    }

    /// How many pages to ask for now, if any. Asking up to twice the threshold leaves at least one
    /// round trip between two requests.
    pub fn poll_request(&mut self, free_pages: u64, now: Nanos) -> Option<u64> {
        self.advance(now);
        let threshold = self.threshold();
        if self.asked_at.is_some() || free_pages >= threshold {
            return None;
        }
        self.asked_at = Some(now);
        Some(2 * threshold - free_pages)
    }

    fn pages_per_s(&self) -> f64 {
        let busiest = self.evicted_pages.iter().max().copied().unwrap_or(0);
        busiest as f64 / PERIOD.as_secs_f64()
    }

    /// Empties the periods that have gone by since the last event.
    fn advance(&mut self, now: Nanos) {
        let period = now.0 / PERIOD.0;
        let gone = period.saturating_sub(self.period).min(PERIODS as u64);
        for ago in 0..gone {
            self.evicted_pages[((period - ago) % PERIODS as u64) as usize] = 0;
        }
        self.period = self.period.max(period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The paper's case: 12 memory nodes, 10 compute nodes, P near 1, 50 pages a microsecond.
    #[test]
    fn the_papers_testbed_needs_some_750_pages() {
        let round_trip = expected_round_trip(Nanos(4_540), Nanos(6_000), 10, 12, 1.0);
        assert_eq!(round_trip, Nanos(15_040));
        assert_eq!(threshold_pages(50e6, round_trip), 752);
        // Alone, nobody queues.
        assert_eq!(
            expected_round_trip(Nanos(4_540), Nanos(6_000), 1, 12, 1.0),
            Nanos(10_540)
        );
    }

    #[test]
    fn a_faster_eviction_or_a_slower_server_asks_earlier() {
        let after = |pages: u64, round_trip: Nanos| {
            let mut replenish = Replenish::new(Bounds::default());
            replenish.poll_request(0, Nanos::ZERO);
            replenish.handle_answer(round_trip);
            replenish.handle_evicted(pages, round_trip);
            replenish.threshold()
        };
        assert_eq!(after(0, Nanos::micros(100)), 512, "the lower bound");
        // 2,000 pages in 10 ms over a first round trip of 1 ms (3 ms with its margin).
        assert_eq!(after(2_000, Nanos::millis(1)), 600);
        assert_eq!(after(4_000, Nanos::millis(1)), 1_200);
        assert_eq!(after(2_000, Nanos::millis(2)), 1_200);
        assert_eq!(after(1_000_000, Nanos::millis(5)), 8_192, "the upper bound");
    }

    #[test]
    fn one_request_at_a_time_and_a_burst_is_forgotten() {
        let mut replenish = Replenish::new(Bounds::default());
        assert_eq!(replenish.poll_request(600, Nanos::ZERO), None);
        assert_eq!(replenish.poll_request(500, Nanos::ZERO), Some(524));
        assert_eq!(replenish.poll_request(0, Nanos::ZERO), None);
        replenish.handle_answer(Nanos::millis(1));
        replenish.handle_evicted(100_000, Nanos::millis(1));
        assert_eq!(replenish.threshold(), 8_192);
        replenish.handle_evicted(0, Nanos::secs(1));
        assert_eq!(replenish.threshold(), 512);
    }

    proptest! {
        #[test]
        fn bounds_are_kept(
            min in 0u64..2_000,
            max in 0u64..20_000,
            events in prop::collection::vec((0u64..100_000, 0u64..50_000_000, 0u64..30_000), 0..60),
        ) {
            let bounds = Bounds { threshold_pages_min: min, threshold_pages_max: max };
            let mut replenish = Replenish::new(bounds);
            let mut now = Nanos::ZERO;
            for (pages, gap_ns, free) in events {
                now += Nanos(gap_ns);
                replenish.handle_evicted(pages, now);
                let threshold = replenish.threshold();
                prop_assert!(threshold >= min.max(1) && threshold <= max.max(min).max(1));
                if let Some(asked) = replenish.poll_request(free, now) {
                    prop_assert!(free < threshold);
                    prop_assert!(asked >= 1 && free + asked <= 2 * max.max(min).max(1));
                    replenish.handle_answer(now + Nanos(gap_ns));
                }
            }
        }

        #[test]
        fn the_formula_rises_with_load_and_falls_with_servers(
            nodes in 1u32..100, servers in 1u32..100, busy in 0.0f64..1.0,
        ) {
            let at = |n, m, p| expected_round_trip(Nanos(4_540), Nanos(6_000), n, m, p);
            prop_assert!(at(nodes + 1, servers, busy) >= at(nodes, servers, busy));
            prop_assert!(at(nodes, servers + 1, busy) <= at(nodes, servers, busy));
            prop_assert!(at(nodes, servers, 1.0) >= at(nodes, servers, busy));
        }
    }
}
