//! How a job's limit is divided among its processes.
//!
//! Idea: each process may hold what it holds and a step more, as long as all of that fits; what is
//! left over goes to them in proportion to their use, since who is large is likely to grow. When it
//! does not fit, memory is filled up like water (max-min fairness): those below the level keep
//! theirs and their step, those above it come down to the level, so that a small process that wants
//! to grow is never shut out by a large one that came first.
//!
//! Invariants: the shares add up to no more than the limit; nobody has less than the floor (or than
//! an equal part of a limit too small for all floors); who must shrink has no less than anybody else.
//! One process alone has the whole limit. Nothing is allocated: the runtime calls this in programs.
//!
//! Known limit: use is all that is known. A process that holds much and touches nothing gives up
//! memory only when others grow.

use muninn_types::Bytes;

/// The steps of all processes together are this part of the limit: 1/16.
const STEPS_PER_LIMIT: u64 = 16;

/// What process `own` of those listed may hold. 0 when it is not listed.
pub fn share(limit: Bytes, floor: Bytes, resident: &[Bytes], own: usize) -> Bytes {
    let Some(&used) = resident.get(own) else {
        return Bytes::ZERO;
    };
    let wishes = Wishes::new(limit, floor, resident.len() as u64);
    let wished = resident.iter().map(|&used| wishes.of(used));
    let sum: u128 = wished.clone().map(u128::from).sum();
    let wish = wishes.of(used);
    match u128::from(limit.0).checked_sub(sum) {
        Some(0) => Bytes(wish),
        // Rounding down keeps the sum within the limit. `sum` is 0 only when all wishes are.
        Some(left) => Bytes(wish + (left * u128::from(wish)).checked_div(sum).unwrap_or(0) as u64),
        None => Bytes(wish.min(level(limit.0, wished))),
    }
}

/// What processes would like to hold.
struct Wishes {
    step: u64,
    floor: u64,
}

impl Wishes {
    fn new(limit: Bytes, floor: Bytes, processes: u64) -> Wishes {
        let equal = limit.0 / processes;
        Wishes {
            step: equal / STEPS_PER_LIMIT,
            floor: floor.0.min(equal),
        }
    }

    fn of(&self, used: Bytes) -> u64 {
        used.0.saturating_add(self.step).max(self.floor)
    }
}

/// The level up to which `limit` fills wishes that are larger than it together.
fn level(limit: u64, wishes: impl Iterator<Item = u64> + Clone) -> u64 {
    let mut level = 0;
    loop {
        let (mut satisfied, mut above) = (0u64, 0u64);
        for wish in wishes.clone() {
            if wish <= level {
                satisfied += wish;
            } else {
                above += 1;
            }
        }
        // Each round satisfies at least one more, or is the last.
        let next = match above {
            0 => return level,
            _ => (limit - satisfied) / above,
        };
        if next <= level {
            return level;
        }
        level = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mib(numbers: &[u64]) -> Vec<Bytes> {
        numbers.iter().map(|&n| Bytes::mib(n)).collect()
    }

    fn shares(limit: Bytes, floor: Bytes, resident: &[Bytes]) -> Vec<Bytes> {
        (0..resident.len())
            .map(|own| share(limit, floor, resident, own))
            .collect()
    }

    #[test]
    fn one_process_has_all_and_none_has_nothing() {
        let limit = Bytes::mib(256);
        for used in [0, 1, 255, 256, 300] {
            assert_eq!(share(limit, Bytes::mib(4), &mib(&[used]), 0), limit);
        }
        assert_eq!(share(limit, Bytes::ZERO, &[], 0), Bytes::ZERO);
        assert_eq!(share(limit, Bytes::ZERO, &mib(&[1]), 7), Bytes::ZERO);
        assert_eq!(share(Bytes::ZERO, Bytes::ZERO, &mib(&[0, 0]), 0).0, 0);
    }

    #[test]
    fn a_compiler_under_make_may_grow_into_nearly_all() {
        let shares = shares(Bytes::mib(256), Bytes::mib(4), &mib(&[2, 1, 60, 1]));
        assert!(shares[2] > Bytes::mib(150), "{shares:?}");
    }

    #[test]
    fn the_large_one_makes_room_for_one_that_grows() {
        let limit = Bytes::mib(160);
        let mut resident = mib(&[150, 10]);
        for _ in 0..200 {
            let now = shares(limit, Bytes::mib(1), &resident);
            // The first wants nothing more, the second all it may have.
            resident = vec![resident[0].min(now[0]), now[1]];
        }
        let difference = resident[0].0.abs_diff(resident[1].0);
        assert!(difference < Bytes::mib(6).0, "{resident:?}");
        // One that does not want to grow keeps what it has; the other has the rest, but for a step.
        let kept = shares(limit, Bytes::mib(1), &mib(&[150, 10]));
        assert_eq!(kept[1], Bytes::mib(15));
        assert_eq!(kept[0], Bytes::mib(145));
    }

    proptest! {
        #[test]
        fn the_limit_is_kept_and_nobody_starves(
            limit in 1u64..1 << 44,
            floor in 0u64..1 << 30,
            resident in proptest::collection::vec(0u64..1 << 42, 1..40),
        ) {
            let (limit, floor) = (Bytes(limit), Bytes(floor));
            let resident: Vec<Bytes> = resident.into_iter().map(Bytes).collect();
            let all = shares(limit, floor, &resident);
            let sum: u64 = all.iter().map(|share| share.0).sum();
            prop_assert!(sum <= limit.0, "{sum} of {}", limit.0);
            let equal = limit.0 / resident.len() as u64;
            let most = all.iter().max().unwrap();
            let used: u64 = resident.iter().map(|used| used.0).sum();
            for (share, used) in all.iter().zip(&resident) {
                prop_assert!(share.0 >= floor.0.min(equal));
                prop_assert!(share >= used || share == most, "only the level lowers anybody");
                prop_assert!(share >= used || share.0 >= equal);
            }
            // What is lost to rounding is less than a byte each, twice.
            prop_assert!(limit.0 - sum < 2 * resident.len() as u64);
            let steps = limit.0 / STEPS_PER_LIMIT + floor.0 * resident.len() as u64;
            if used + steps <= limit.0 {
                prop_assert!(all.iter().zip(&resident).all(|(share, used)| share >= used));
            }
        }

        #[test]
        fn names_do_not_matter(
            limit in 1u64..1 << 40,
            resident in proptest::collection::vec(0u64..1 << 38, 1..20),
        ) {
            let resident: Vec<Bytes> = resident.into_iter().map(Bytes).collect();
            let forward = shares(Bytes(limit), Bytes::mib(1), &resident);
            let turned: Vec<Bytes> = resident.iter().rev().copied().collect();
            let mut backward = shares(Bytes(limit), Bytes::mib(1), &turned);
            backward.reverse();
            prop_assert_eq!(forward, backward);
        }
    }
}
