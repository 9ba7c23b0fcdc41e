//! How a job's limit is divided among its processes.
//!
//! Idea: each process may hold what it holds and a step more, as long as all of that fits; what is
//! left over goes to them in proportion to their use, since who is large is likely to grow. When it
//! does not fit, memory is filled up like water (max-min fairness): those below the level keep
//! theirs and their step, those above it come down to the level, so that a small process that wants
//! to grow is never shut out by a large one that came first.
//!
//! One looks at all of them from time to time ([`Division`], once for all; then each share costs
//! nothing) and tells each its share. In between a process goes by what it was told ([`own`]), however
//! much it has grown since: what it was not given may be somebody else's by now. One that nobody has
//! looked at yet has what was free when it came ([`newcomer`]). Two exceptions, so that a job of many
//! processes that fits has no work with its limit: while so little is held that no pager would have to
//! be ready if it were all one process's, each may have what the others do not hold, since what grows
//! between two looks is far less than what is free; and a process too small to give anything up is not
//! asked to.
//!
//! Invariants: the shares of a division add up to no more than the limit; nobody has less than the
//! floor (or than an equal part of a limit too small for all floors); who must shrink has no less than
//! anybody else. One process alone has the whole limit, looked at or not.
//!
//! Known limit: use is all that is known. A process that holds much and touches nothing gives up
//! memory only when others grow.

use crate::take_over;
use muninn_types::Bytes;

/// No process of a job gets a smaller share than this, while there is enough for all.
pub const FLOOR: Bytes = Bytes::mib(4);
/// A process that holds no more than this has nothing to give up: a pager would need as much.
const SMALL: Bytes = Bytes::mib(2);
/// What it is told it may hold, so that it makes no pager ready.
const SMALL_SHARE: Bytes = Bytes::mib(16);
/// The steps of all processes together are this part of the limit: 1/16.
const STEPS_PER_LIMIT: u64 = 16;

/// A limit divided among processes that hold certain amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    limit: u64,
    wishes: Wishes,
    /// All wishes together.
    sum: u128,
    /// Who wishes for more comes down to this. Without meaning while all wishes fit.
    level: u64,
}

impl Division {
    /// `held` is put in another order.
    pub fn new(limit: Bytes, floor: Bytes, held: &mut [Bytes]) -> Division {
        let wishes = Wishes::new(limit, floor, held.len() as u64);
        let sum = held.iter().map(|&used| u128::from(wishes.of(used))).sum();
        let level = match sum > u128::from(limit.0) {
            true => {
                held.sort_unstable();
                level(limit.0, held.iter().map(|&used| wishes.of(used)))
            }
            false => limit.0,
        };
        Division {
            limit: limit.0,
            wishes,
            sum,
            level,
        }
    }

    /// What a process may hold that was counted with so much.
    pub fn share(&self, used: Bytes) -> Bytes {
        let wish = self.wishes.of(used);
        match u128::from(self.limit).checked_sub(self.sum) {
            // Rounding down keeps the sum within the limit. `sum` is 0 only when all wishes are.
            Some(left) => {
                let more = (left * u128::from(wish)).checked_div(self.sum).unwrap_or(0);
                Bytes(wish.saturating_add(more as u64))
            }
            None => Bytes(wish.min(self.level)),
        }
    }
}

/// What processes would like to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wishes {
    step: u64,
    floor: u64,
}

impl Wishes {
    fn new(limit: Bytes, floor: Bytes, processes: u64) -> Wishes {
        let equal = limit.0 / processes.max(1);
        Wishes {
            step: equal / STEPS_PER_LIMIT,
            floor: floor.0.min(equal),
        }
    }

    fn of(&self, used: Bytes) -> u64 {
        used.0.saturating_add(self.step).max(self.floor)
    }
}

/// The level up to which `limit` fills wishes, in rising order, that are larger than it together.
fn level(limit: u64, wishes: impl ExactSizeIterator<Item = u64>) -> u64 {
    let (mut left, mut above) = (limit, wishes.len() as u64);
    for wish in wishes {
        // Nobody above this one has more than an equal part of what is left.
        if wish > left / above {
            return left / above;
        }
        left -= wish;
        above -= 1;
    }
    limit
}

/// What a process knows of how the limit is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub limit: Bytes,
    /// Processes of the job, itself among them, as far as anybody knows, and how many of them nobody
    /// has looked at.
    pub processes: u64,
    pub newcomers: u64,
    /// What it holds, and what the others held when they were looked at.
    pub held: Bytes,
    pub others: Bytes,
    /// What it was given, and of which limit.
    pub share: Bytes,
    pub share_of: Bytes,
}

/// What a process may hold now.
pub fn own(known: &Known) -> Bytes {
    if known.processes <= 1 {
        return known.limit;
    }
    let unseen = FLOOR.0.saturating_mul(known.newcomers);
    let others = known.others.0.saturating_add(unseen);
    if others.saturating_add(known.held.0) <= take_over::ready_at(known.limit).0 {
        return Bytes(known.limit.0 - others);
    }
    let share = match known.limit >= known.share_of {
        true => known.share,
        false => {
            // The limit was lowered since, and everybody comes down with it.
            let part = u128::from(known.share.0) * u128::from(known.limit.0);
            Bytes((part / u128::from(known.share_of.0)) as u64)
        }
    };
    let small = known.held <= SMALL;
    share
        .max(if small { SMALL_SHARE } else { Bytes::ZERO })
        .min(known.limit)
}

/// What a process may hold that has just come to others, who hold `held` together; `processes` and
/// `newcomers` count it, too. Half of what is free, since the others may grow as well.
pub fn newcomer(limit: Bytes, floor: Bytes, held: Bytes, processes: u64, newcomers: u64) -> Bytes {
    if processes <= 1 {
        return limit;
    }
    let free = limit.0.saturating_sub(held.0);
    let floor = floor.0.min(limit.0 / processes);
    Bytes((free / 2 / newcomers.max(1)).max(floor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mib(numbers: &[u64]) -> Vec<Bytes> {
        numbers.iter().map(|&n| Bytes::mib(n)).collect()
    }

    fn shares(limit: Bytes, floor: Bytes, held: &[Bytes]) -> Vec<Bytes> {
        let division = Division::new(limit, floor, &mut held.to_vec());
        held.iter().map(|&used| division.share(used)).collect()
    }

    #[test]
    fn one_process_has_all() {
        let limit = Bytes::mib(256);
        for used in [0, 1, 255, 256, 300] {
            assert_eq!(shares(limit, Bytes::mib(4), &mib(&[used])), [limit]);
        }
        assert_eq!(shares(limit, Bytes::ZERO, &[]), []);
        let nothing = shares(Bytes::ZERO, Bytes::ZERO, &mib(&[0, 0]));
        assert_eq!(nothing, [Bytes::ZERO; 2]);
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

    #[test]
    fn between_two_looks_a_process_goes_by_what_it_was_given() {
        let known = Known {
            limit: Bytes::mib(100),
            processes: 2,
            newcomers: 0,
            held: Bytes::mib(20),
            others: Bytes::mib(40),
            share: Bytes::mib(60),
            share_of: Bytes::mib(100),
        };
        assert_eq!(own(&known), Bytes::mib(60));
        let with = |limit, processes| {
            own(&Known {
                limit: Bytes::mib(limit),
                processes,
                ..known
            })
        };
        assert_eq!(with(100, 1), Bytes::mib(100), "alone");
        assert_eq!(with(50, 2), Bytes::mib(30), "the limit was halved");
        assert_eq!(with(110, 2), Bytes::mib(60), "raised: until somebody looks");
        assert_eq!(own(&Known::default()), Bytes::ZERO);
    }

    #[test]
    fn a_job_with_much_left_and_a_small_process_have_no_work_with_the_limit() {
        let sleeper = Known {
            limit: Bytes::mib(512),
            processes: 300,
            newcomers: 0,
            held: Bytes::kib(300),
            others: Bytes::mib(90),
            share: Bytes::kib(1700),
            share_of: Bytes::mib(512),
        };
        assert_eq!(own(&sleeper), Bytes::mib(422));
        let coming = Known {
            newcomers: 10,
            ..sleeper
        };
        assert_eq!(own(&coming), Bytes::mib(382), "a floor for each");
        let full = Known {
            others: Bytes::mib(500),
            ..sleeper
        };
        assert!(full.held < take_over::ready_at(own(&full)));
        let larger = Known {
            held: Bytes::mib(3),
            ..full
        };
        assert_eq!(own(&larger), larger.share);
    }

    #[test]
    fn a_newcomer_has_half_of_what_is_free_or_the_floor() {
        let at = |held, processes, newcomers| {
            let held = Bytes::mib(held);
            newcomer(Bytes::mib(64), FLOOR, held, processes, newcomers)
        };
        assert_eq!(at(0, 1, 1), Bytes::mib(64));
        assert_eq!(at(24, 2, 1), Bytes::mib(20));
        assert_eq!(at(24, 3, 2), Bytes::mib(10));
        assert_eq!(at(64, 2, 1), FLOOR);
        assert_eq!(at(90, 64, 1), Bytes::mib(1), "a floor that fits");
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

        /// However the processes grow after a look, and whoever comes: those that were looked at hold
        /// no more than the limit together, and newcomers no more than was free, but for their floors.
        #[test]
        fn nobody_grows_into_what_another_was_given(
            limit in 1u64..1 << 40,
            lowered in 0u64..1 << 40,
            held in proptest::collection::vec(0u64..1 << 38, 2..20),
            newcomers in 0u64..10,
        ) {
            let limit = Bytes(limit);
            let held: Vec<Bytes> = held.into_iter().map(Bytes).collect();
            let given = shares(limit, FLOOR, &held);
            let now = limit.min(Bytes(lowered));
            let processes = held.len() as u64 + newcomers;
            let all_held = Bytes(held.iter().map(|held| held.0).sum());
            let known = |(&share, &held): (&Bytes, &Bytes)| Known {
                limit: now, processes, newcomers, share, share_of: limit, held,
                others: Bytes(all_held.0 - held.0),
            };
            let now_own = |pair: (&Bytes, &Bytes)| own(&known(pair));
            let ready = take_over::ready_at(now);
            let plenty = all_held.0 + FLOOR.0 * newcomers <= ready.0;
            for (share, &held) in given.iter().zip(&held).map(now_own).zip(&held) {
                prop_assert!(share <= now);
                prop_assert!(!plenty || share.0 + (all_held.0 - held.0) <= now.0);
            }
            let small = held.iter().filter(|&&held| held <= SMALL).count() as u64;
            let sum: u64 = given.iter().zip(&held).map(now_own).map(|share| share.0).sum();
            if !plenty {
                prop_assert!(sum <= now.0 + small * SMALL_SHARE.0, "{sum} of {now}");
            }
            let came = newcomer(limit, FLOOR, all_held, processes, newcomers).0 * newcomers;
            let free = limit.0.saturating_sub(all_held.0);
            prop_assert!(came <= free.max(FLOOR.0 * newcomers), "{came} of {free}");
        }
    }
}
