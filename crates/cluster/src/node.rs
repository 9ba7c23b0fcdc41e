//! One node's memory: among its jobs, what is not its jobs', and what it gives to the pool. Pure.
//!
//! ```text
//! memory for jobs ──┬── others: jobs that do not run under Muninn
//!                   ├── room: what our jobs may hold, divided by policy::rebalance
//!                   └── lent: what the donor granted beyond its fixed gift, until it is back
//! ```
//!
//! Invariants: Σ limits ≤ room, unless the smallest shares alone are more (then the node is *squeezed*:
//! everybody gets in proportion to the smallest share, and never less than [`SHARE_MIN`], without which
//! nothing runs); what is lent is never also a job's.

use muninn_policy::profile::Profile;
use muninn_policy::rebalance::{Guess, Job, Policy, Rebalancer};
use muninn_types::Bytes;

/// Without so much a job would do nothing but page.
pub const SHARE_MIN: Bytes = Bytes::mib(16);
/// A job of which nothing is known is planned with this at first.
pub const MEMORY_UNKNOWN: Bytes = Bytes::mib(256);
/// One that is seen to have more than it said is planned with so much more than that: it may grow on.
const GROWTH_PART: u64 = 8;
/// Of what jobs leave free, this part is lent at most: the next job is not to wait for it.
const LENT: (u64, u64) = (3, 4);
/// The donor's ceiling moves in steps, so that it does not move all the time.
const CEILING_STEP: Bytes = Bytes::mib(4);

/// What a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub memory: Bytes,
    pub others: Bytes,
    /// Given to the pool whatever happens; not a part of `memory`.
    pub donate: Bytes,
    /// What the node's memory server has granted.
    pub granted: Bytes,
}

impl Node {
    /// What our jobs may hold together now.
    pub fn room(&self) -> Bytes {
        let lent = self.granted.saturating_sub(self.donate);
        (self.memory.saturating_sub(self.others)).saturating_sub(lent)
    }

    /// What the memory server may grant, when jobs have, or are to have, so much.
    pub fn ceiling(&self, jobs: Bytes) -> Bytes {
        let free = self.memory.saturating_sub(self.others).saturating_sub(jobs);
        let lent = Bytes(free.0 / LENT.1 * LENT.0);
        let steps = lent.0 / CEILING_STEP.0;
        self.donate + Bytes(steps * CEILING_STEP.0)
    }
}

/// What is planned with for a job that asked for `said` (0: it did not say) and had `seen` at most.
pub fn planned(said: Bytes, seen: Bytes) -> Bytes {
    let at_first = if said == Bytes::ZERO {
        MEMORY_UNKNOWN
    } else {
        said
    };
    let memory = match seen > at_first {
        true => Bytes(seen.0 + seen.0 / GROWTH_PART),
        false => at_first,
    };
    Bytes(memory.0.max(SHARE_MIN.0).next_multiple_of(Bytes::PAGE.0))
}

/// A job, as the division sees it.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub profile: &'a Profile,
    pub memory: Bytes,
    pub min_ratio: f64,
    pub progress: f64,
}

impl Claim<'_> {
    /// The least that it is to have.
    pub fn floor(&self) -> Bytes {
        let ratio = self.profile.lowest().max(0.0);
        Bytes(((self.memory.0 as f64 * ratio).ceil() as u64).clamp(SHARE_MIN.0, self.memory.0))
    }
}

/// Divides a node's memory again and again.
#[derive(Debug)]
pub struct Divider {
    rebalancer: Rebalancer,
    guess: Guess,
    ratios: Vec<f64>,
}

impl Divider {
    pub fn new(policy: Policy) -> Divider {
        Divider {
            rebalancer: Rebalancer::new(policy),
            guess: Guess::default(),
            ratios: Vec::new(),
        }
    }

    /// What each job may hold, in the order of the claims; whether the node is squeezed.
    pub fn divide(&mut self, claims: &[Claim<'_>], room: Bytes, limits: &mut Vec<Bytes>) -> bool {
        limits.clear();
        if claims.is_empty() {
            return false;
        }
        let jobs: Vec<Job<'_>> = claims
            .iter()
            .map(|claim| Job {
                profile: claim.profile,
                memory: claim.memory,
                min_ratio: claim.min_ratio.clamp(claim.profile.lowest(), 1.0),
                progress: claim.progress.clamp(0.0, 1.0),
            })
            .collect();
        let divided = self
            .rebalancer
            .divide(&jobs, room, &mut self.guess, &mut self.ratios)
            .is_ok();
        if divided {
            let share = |(claim, ratio): (&Claim<'_>, &f64)| {
                let share = (claim.memory.0 as f64 * ratio) as u64;
                Bytes(share / Bytes::PAGE.0 * Bytes::PAGE.0)
            };
            limits.extend(claims.iter().zip(&self.ratios).map(share));
            if limits.iter().all(|limit| *limit >= SHARE_MIN) {
                return false;
            }
            // A share below what anything runs with is taken from those that have more than it.
            if lift(limits, room) {
                return false;
            }
        }
        // More was started than fits: in proportion to what each needs at least.
        let floors: u64 = claims.iter().map(|claim| claim.floor().0).sum();
        let part = (room.0 as f64 / floors.max(1) as f64).min(1.0);
        let share = |claim: &Claim<'_>| {
            let share = (claim.floor().0 as f64 * part) as u64 / Bytes::PAGE.0 * Bytes::PAGE.0;
            Bytes(share.max(SHARE_MIN.0))
        };
        limits.clear();
        limits.extend(claims.iter().map(share));
        true
    }
}

/// Raises shares to [`SHARE_MIN`], at the cost of those above; false: there is not so much.
fn lift(limits: &mut [Bytes], room: Bytes) -> bool {
    if SHARE_MIN.0 * limits.len() as u64 > room.0 {
        return false;
    }
    let above = |limit: &Bytes| limit.saturating_sub(SHARE_MIN).0;
    let spare: u64 = limits.iter().map(above).sum();
    let left = room.0 - SHARE_MIN.0 * limits.len() as u64;
    let part = (left as f64 / spare.max(1) as f64).min(1.0);
    for limit in limits {
        let kept = (above(limit) as f64 * part) as u64 / Bytes::PAGE.0 * Bytes::PAGE.0;
        *limit = SHARE_MIN + Bytes(kept);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Instant;

    fn profile(lowest: f64, slowdown: f64) -> Profile {
        Profile::from_points(&[1.0, lowest], &[100.0, 100.0 * slowdown]).unwrap()
    }

    #[test]
    fn a_second_job_shrinks_the_first_and_its_end_gives_it_back() {
        let curve = profile(0.5, 1.2);
        let claim = Claim {
            profile: &curve,
            memory: Bytes::mib(600),
            min_ratio: 0.5,
            progress: 0.0,
        };
        let (mut divider, mut limits) = (Divider::new(Policy::MemoryTime), Vec::new());
        assert!(!divider.divide(&[claim], Bytes::gib(1), &mut limits));
        assert_eq!(limits, [Bytes::mib(600)]);
        assert!(!divider.divide(&[claim, claim], Bytes::gib(1), &mut limits));
        let sum = limits[0] + limits[1];
        assert!(
            sum <= Bytes::gib(1) && sum >= Bytes::mib(1023),
            "{limits:?}"
        );
        assert!(divider.divide(&[claim; 4], Bytes::gib(1), &mut limits));
        assert_eq!(limits, [Bytes::mib(256); 4]);
        assert!(!divider.divide(&[claim], Bytes::gib(1), &mut limits));
        assert_eq!(limits, [Bytes::mib(600)]);
    }

    #[test]
    fn what_is_lent_is_not_a_jobs_and_comes_back() {
        let mut node = Node {
            memory: Bytes::gib(8),
            others: Bytes::gib(1),
            donate: Bytes::gib(1),
            granted: Bytes::ZERO,
        };
        assert_eq!(node.room(), Bytes::gib(7));
        assert_eq!(node.ceiling(Bytes::gib(3)), Bytes::gib(1) + Bytes::gib(3));
        node.granted = Bytes::gib(3);
        assert_eq!(node.room(), Bytes::gib(5));
        assert_eq!(node.ceiling(Bytes::gib(7)), Bytes::gib(1));
        assert_eq!(node.ceiling(Bytes::gib(70)), Bytes::gib(1));
        node.others = Bytes::gib(90);
        assert_eq!(node.room(), Bytes::ZERO);
    }

    #[test]
    fn a_job_that_said_too_little_is_planned_with_what_it_has() {
        let mib = Bytes::mib;
        assert_eq!(planned(mib(100), mib(50)), mib(100));
        assert_eq!(planned(mib(100), mib(800)), mib(900));
        assert_eq!(planned(Bytes::ZERO, Bytes::ZERO), MEMORY_UNKNOWN);
        assert_eq!(planned(mib(1), Bytes::ZERO), SHARE_MIN);
    }

    /// The figure of the design: 200 jobs within a millisecond. Printed, and held to ten times that,
    /// unoptimised and beside whatever else this machine does.
    #[test]
    fn two_hundred_jobs_are_divided_in_no_time() {
        let curves: Vec<Profile> = (0..200u32)
            .map(|i| {
                let tail = 1.05 + 0.02 * f64::from(i % 40);
                let runtimes = [100.0, 100.0 + f64::from(i % 7), 100.0 * tail + 9.0];
                Profile::from_points(&[1.0, 0.8, 0.5], &runtimes).unwrap()
            })
            .collect();
        let claims: Vec<Claim<'_>> = curves
            .iter()
            .enumerate()
            .map(|(i, profile)| Claim {
                profile,
                memory: Bytes::mib(200 + 37 * (i as u64 % 50)),
                min_ratio: 0.5,
                progress: (i % 10) as f64 / 10.0,
            })
            .collect();
        let wanted: u64 = claims.iter().map(|claim| claim.memory.0).sum();
        let mut divider = Divider::new(Policy::MemoryTime);
        let (mut limits, mut best) = (Vec::new(), f64::MAX);
        for round in 0..20u64 {
            let room = Bytes(wanted * (70 + round) / 100);
            let start = Instant::now();
            assert!(!divider.divide(&claims, room, &mut limits));
            best = best.min(start.elapsed().as_secs_f64());
            assert!(limits.iter().map(|l| l.0).sum::<u64>() <= room.0);
        }
        println!("200 jobs divided in {:.0} µs", best * 1e6);
        assert!(best < 0.01, "{best} s");
    }

    proptest! {
        #[test]
        fn no_more_is_given_out_than_there_is(
            jobs in prop::collection::vec((1u64..2000, 10u32..=100, 100u32..300), 1..40),
            room in 0u64..20_000,
            which in 0usize..3,
        ) {
            let curves: Vec<Profile> = jobs.iter().map(|&(_, lowest, slow)| match lowest {
                100 => Profile::exempt(10.0).unwrap(),
                lowest => profile(f64::from(lowest) / 100.0, f64::from(slow) / 100.0),
            }).collect();
            let claims: Vec<Claim<'_>> = jobs.iter().zip(&curves).map(|(job, profile)| Claim {
                profile,
                memory: planned(Bytes::mib(job.0), Bytes::ZERO),
                min_ratio: profile.lowest(),
                progress: 0.3,
            }).collect();
            let room = Bytes::mib(room);
            let mut limits = Vec::new();
            let squeezed = Divider::new(Policy::ALL[which]).divide(&claims, room, &mut limits);
            prop_assert_eq!(limits.len(), claims.len());
            let sum: u64 = limits.iter().map(|limit| limit.0).sum();
            for (limit, claim) in limits.iter().zip(&claims) {
                prop_assert!(*limit >= SHARE_MIN && *limit <= claim.memory);
            }
            let least = SHARE_MIN.0 * claims.len() as u64;
            prop_assert!(sum <= room.0.max(least) + SHARE_MIN.0 * u64::from(squeezed) * claims.len() as u64);
            if !squeezed {
                prop_assert!(sum <= room.0);
            }
        }
    }
}
