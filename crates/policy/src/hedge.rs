//! How long to wait for a server before another is asked as well, and before it is suspected.
//!
//! The time of an answer is followed as TCP follows round trips: a running mean and a running
//! deviation; mean plus four deviations stands for the 99th percentile. A demand read that takes
//! longer is *hedged*: another member is asked, and the first answer counts. A server that has not
//! answered for [`SUSPECT_EXTRA`] beyond that is *suspected*: nobody waits for it any more while others
//! can answer. One silence decides so for all that the server holds: waiting is paid for once.
//!
//! Invariant: hedging comes before suspicion, both within bounds whatever was measured.

use muninn_types::Nanos;

/// Never hedged sooner: a busy machine must not double its own traffic.
pub const HEDGE_MIN: Nanos = Nanos::millis(2);
pub const HEDGE_MAX: Nanos = Nanos::millis(50);
/// Silence beyond what is usual that makes a server suspected.
pub const SUSPECT_EXTRA: Nanos = Nanos::millis(100);
/// How much the latest answer counts.
const WEIGHT: f64 = 1.0 / 8.0;
const DEVIATION_WEIGHT: f64 = 1.0 / 4.0;

/// The answers of one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    mean_ns: f64,
    deviation_ns: f64,
    measured: bool,
}

impl Latency {
    pub fn handle_answer(&mut self, took: Nanos) {
        let took = took.0 as f64;
        if !self.measured {
            (self.mean_ns, self.deviation_ns) = (took, took / 2.0);
            self.measured = true;
            return;
        }
        let off = (took - self.mean_ns).abs();
        self.deviation_ns += (off - self.deviation_ns) * DEVIATION_WEIGHT;
        self.mean_ns += (took - self.mean_ns) * WEIGHT;
    }

    /// What an answer takes; nothing for one that was never asked, so that it will be.
    pub fn expected(&self) -> Nanos {
        Nanos(self.mean_ns as u64)
    }

    fn usual(&self) -> Nanos {
        Nanos((self.mean_ns + 4.0 * self.deviation_ns) as u64)
    }

    /// After this long another member is asked as well.
    pub fn hedge_after(&self) -> Nanos {
        match self.measured {
            true => self.usual().clamp(HEDGE_MIN, HEDGE_MAX),
            false => HEDGE_MAX,
        }
    }

    /// After this long without an answer the server is suspected.
    pub fn suspect_after(&self) -> Nanos {
        self.hedge_after().saturating_add(SUSPECT_EXTRA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_server_is_hedged_before_it_is_suspected(answers in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut latency = Latency::default();
            for took in answers {
                latency.handle_answer(Nanos(took));
                prop_assert!(latency.hedge_after() >= HEDGE_MIN);
                prop_assert!(latency.hedge_after() <= HEDGE_MAX);
                prop_assert!(latency.suspect_after() >= latency.hedge_after() + SUSPECT_EXTRA);
            }
        }
    }

    #[test]
    fn steady_answers_are_hedged_soon_and_slower_ones_later() {
        let mut latency = Latency::default();
        assert_eq!(latency.hedge_after(), HEDGE_MAX);
        for _ in 0..100 {
            latency.handle_answer(Nanos::micros(30));
        }
        assert_eq!(latency.hedge_after(), HEDGE_MIN);
        assert_eq!(latency.expected(), Nanos::micros(30));
        for _ in 0..100 {
            latency.handle_answer(Nanos::millis(10));
        }
        assert!(latency.hedge_after() >= Nanos::millis(9));
        assert!(latency.hedge_after() <= Nanos::millis(20));
    }
}
