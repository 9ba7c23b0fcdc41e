//! Thousands of seeds of the protocol simulator.
//!
//! `MUNINN_SIM_SEEDS=N` runs more (or fewer) of them, `MUNINN_SIM_SEED=S` plays one again.

use muninn_sim::protocol::{Options, Sabotage, Summary, run};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const SEEDS: u64 = 2_000;
const THREADS: usize = 2;
/// A broken variant must be noticed within this many seeds.
const SABOTAGE_SEEDS: u64 = 150;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number of seeds, or a seed"))
}

/// Runs seeds 0..count on a few threads and adds up what happened.
fn run_many(count: u64, options: &Options) -> Result<Summary, String> {
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let mut sum = Summary::default();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= count || failed.load(Relaxed) {
                return Ok(sum);
            }
            match run(seed, options) {
                Ok(summary) => sum.add(&summary),
                Err(failure) => {
                    failed.store(true, Relaxed);
                    return Err(failure.to_string());
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let mut sum = Summary::default();
        for thread in threads {
            sum.add(&thread.join().expect("a run catches its own panics")?);
        }
        Ok(sum)
    })
}

#[test]
fn nothing_is_lost_and_nothing_is_leaked_whatever_breaks() {
    if let Some(seed) = number("MUNINN_SIM_SEED") {
        match run(seed, &Options::default()) {
            Ok(summary) => println!("seed {seed}: {:?}", summary.counts()),
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    let seeds = number("MUNINN_SIM_SEEDS").unwrap_or(SEEDS);
    let sum = run_many(seeds, &Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{seeds} seeds: {:?}", sum.counts());
    // Each kind of event has to happen, or its check checks nothing.
    if seeds >= SEEDS {
        let rare: Vec<_> = sum.counts().into_iter().filter(|(_, n)| *n < 20).collect();
        assert!(rare.is_empty(), "hardly ever happened: {rare:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in [3, 1_000_003, u64::MAX] {
        let once = run(seed, &Options::default()).unwrap();
        assert_eq!(once, run(seed, &Options::default()).unwrap(), "seed {seed}");
    }
}

/// The checks can fail: each thing broken on purpose is noticed.
#[test]
fn every_sabotage_is_noticed() {
    let broken = [
        Sabotage::SkipWipe,
        Sabotage::IgnoreFencing,
        Sabotage::StaleWrite,
        Sabotage::NewTags,
        Sabotage::AckEarly,
        Sabotage::ExpireEarly,
        Sabotage::NeverExpire,
        Sabotage::LeakClosed,
        Sabotage::AssumeDone,
    ];
    for sabotage in broken {
        let options = Options {
            sabotage,
            ..Options::default()
        };
        let mut failures = (0..SABOTAGE_SEEDS).filter_map(|seed| run(seed, &options).err());
        let failure = failures.next();
        let failure = failure.unwrap_or_else(|| panic!("{sabotage:?} went unnoticed"));
        println!("{sabotage:?}: seed {}: {}", failure.seed, failure.what);
        let again = run(failure.seed, &options).unwrap_err();
        assert_eq!(again, failure, "the seed does not reproduce it");
        assert!(!failure.events.is_empty());
    }
}
