//! One property test for all policies, against a plain set of resident and staged pages.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const PAGES: u32 = 200;

#[derive(Clone, Debug)]
enum Step {
    Resident(u32, Arrival),
    StagedHit(u32),
    Evicted(u32),
    Removed(u32),
    NextRun(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let arrival = prop_oneof![
        Just(Arrival::FirstTouch),
        Just(Arrival::Demand),
        Just(Arrival::Prefetch),
        Just(Arrival::Kept)
    ];
    prop_oneof![
        6 => (0..PAGES, arrival).prop_map(|(page, why)| Step::Resident(page, why)),
        2 => (0..PAGES).prop_map(Step::StagedHit),
        3 => (0..PAGES).prop_map(Step::Evicted),
        1 => (0..PAGES).prop_map(Step::Removed),
        4 => (0..80u32).prop_map(Step::NextRun),
    ]
}

/// What a policy must agree with.
#[derive(Default)]
struct Model {
    resident: BTreeSet<u32>,
    staged: BTreeSet<u32>,
}

impl Model {
    /// Only what a pager would say: a staged hit and an eviction concern staged pages.
    fn apply(&mut self, policy: &mut dyn Evict, step: &Step) {
        match *step {
            Step::Resident(page, why) => {
                policy.handle_resident(PageIndex(page), why);
                self.staged.remove(&page);
                self.resident.insert(page);
            }
            Step::StagedHit(page) if self.staged.remove(&page) => {
                policy.handle_staged_hit(PageIndex(page));
                self.resident.insert(page);
            }
            Step::Evicted(page) if self.staged.remove(&page) => {
                policy.handle_evicted(PageIndex(page));
            }
            Step::StagedHit(_) | Step::Evicted(_) => {}
            Step::Removed(page) => {
                policy.handle_removed(PageIndex(page));
                self.resident.remove(&page);
                self.staged.remove(&page);
            }
            Step::NextRun(pages_max) => self.take_run(policy, pages_max),
        }
        assert_eq!(policy.resident_pages() as usize, self.resident.len());
    }

    fn take_run(&mut self, policy: &mut dyn Evict, pages_max: u32) {
        let run = policy.next_run(pages_max);
        assert_eq!(run.is_none(), self.resident.is_empty());
        let Some(run) = run else { return };
        assert!((1..=pages_max.clamp(1, RUN_PAGES_MAX)).contains(&run.pages));
        for page in run.iter() {
            assert!(self.resident.remove(&page.0), "{page:?} is not resident");
            self.staged.insert(page.0);
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_a_plain_model(
        steps in prop::collection::vec(step(), 0..400),
        seed: u64,
    ) {
        for policy in EvictPolicy::ALL {
            let mut policy = policy.build(PAGES, seed);
            let mut model = Model::default();
            let memory_bytes = policy.memory_bytes();
            for step in &steps {
                model.apply(&mut *policy, step);
            }
            // Left alone, every resident page is given out in the end.
            for _ in 0..PAGES {
                if model.resident.is_empty() {
                    break;
                }
                model.take_run(&mut *policy, 1);
            }
            prop_assert!(model.resident.is_empty());
            prop_assert_eq!(policy.next_run(64), None);
            prop_assert_eq!(policy.memory_bytes(), memory_bytes, "allocated on the way");
        }
    }

    /// Events of a live program come in any order: nonsense changes no count and never panics.
    #[test]
    fn events_that_do_not_fit_are_harmless(steps in prop::collection::vec(step(), 0..200)) {
        for policy in EvictPolicy::ALL {
            let mut policy = policy.build(PAGES, 1);
            let mut seen = BTreeSet::new();
            for step in &steps {
                match *step {
                    Step::Resident(page, why) => {
                        policy.handle_resident(PageIndex(page), why);
                        seen.insert(page);
                    }
                    Step::StagedHit(page) => {
                        policy.handle_staged_hit(PageIndex(page));
                        seen.insert(page);
                    }
                    Step::Evicted(page) => policy.handle_evicted(PageIndex(page)),
                    Step::Removed(page) => {
                        policy.handle_removed(PageIndex(page));
                        seen.remove(&page);
                    }
                    Step::NextRun(pages_max) => {
                        for page in policy.next_run(pages_max).into_iter().flat_map(Run::iter) {
                            prop_assert!(seen.remove(&page.0));
                        }
                    }
                }
                prop_assert_eq!(policy.resident_pages() as usize, seen.len());
            }
        }
    }
}

#[test]
fn at_most_sixteen_bytes_a_page_and_growth_keeps_what_is_known() {
    for policy in EvictPolicy::ALL {
        let mut policy = policy.build(1_000, 1);
        assert!(policy.memory_bytes() <= 16 * 1_000, "{policy:?}");
        policy.handle_resident(PageIndex(999), Arrival::Demand);
        policy.grow(5_000);
        assert!(policy.memory_bytes() <= 16 * 5_000);
        policy.handle_resident(PageIndex(4_999), Arrival::Demand);
        assert_eq!(policy.resident_pages(), 2);
    }
}

#[test]
fn pages_that_came_in_a_row_leave_in_runs_of_64() {
    for name in EvictPolicy::ALL {
        let mut policy = name.build(6_400, 1);
        for page in 0..6_400 {
            policy.handle_resident(PageIndex(page), Arrival::FirstTouch);
        }
        let runs: Vec<Run> = (0..20).filter_map(|_| policy.next_run(64)).collect();
        let pages: u32 = runs.iter().map(|run| run.pages).sum();
        assert!(pages >= 20 * 32, "{name}: {pages} pages in 20 runs");
    }
}

#[test]
fn names_read_back_and_an_unknown_one_lists_them() {
    for policy in EvictPolicy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!(
        "lru".parse::<EvictPolicy>().unwrap_err().to_string(),
        "'lru' is not an eviction policy: use fifo, random, segmented-fifo, s3-fifo or sieve"
    );
}
