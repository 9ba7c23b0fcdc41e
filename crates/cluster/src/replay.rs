//! A stream of jobs through the coordinator's book, in simulated time: what its decisions cost, and at which
//! size of a cluster.
//!
//! The book is the live one ([`Ledger`]), asked as the coordinator asks it: once a second it is told what has
//! ended and what waits, and then asked for starts until there are none. Only decisions are timed, in time on a
//! CPU. Known limits: a job that has memory far runs as long as its profile says for its smallest share, which
//! is the worst case; what Slurm's commands take is not in it.

use crate::ledger::{Ledger, NodeNews, Request, Wish};
use muninn_policy::admission::Admission;
use muninn_sys::clock;
use muninn_types::{Bytes, Nanos, SplitMix64};
use std::collections::BTreeMap;

/// Between two looks, as the coordinator has them.
const TICK: Nanos = Nanos::secs(1);
/// The book is asked so many times more than there are jobs before something is wrong.
const TURNS_MAX: u64 = 10_000_000;

/// Jobs that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    pub name: String,
    pub cores: u32,
    pub memory: Bytes,
    pub floor: Bytes,
    pub run_s: f64,
    /// Run time with the smallest share, relative to that.
    pub slowdown: f64,
}

/// A cluster and the jobs that come.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub nodes: u32,
    pub cores: u32,
    pub memory: Bytes,
    /// Far memory for each node.
    pub far: Bytes,
    pub jobs: u32,
    /// They arrive within this time, evenly.
    pub within: Nanos,
    pub kinds: Vec<Kind>,
    pub admission: Admission,
    pub seed: u64,
}

impl Default for Load {
    /// Machines and jobs as in the published rack, more or less; everything arrives within ten seconds.
    fn default() -> Load {
        let kind = |name: &str, cores, gib, ratio: f64, run_s| Kind {
            name: name.to_string(),
            cores,
            memory: Bytes::gib(gib),
            floor: Bytes((Bytes::gib(gib).0 as f64 * ratio) as u64),
            run_s,
            slowdown: 1.2,
        };
        Load {
            nodes: 40,
            cores: 48,
            memory: Bytes::gib(192),
            far: Bytes::gib(64),
            jobs: 6000,
            within: Nanos::secs(10),
            kinds: vec![
                kind("a", 4, 32, 0.6, 277.0),
                kind("b", 4, 12, 0.9, 310.0),
                kind("c", 2, 24, 0.5, 180.0),
                kind("d", 8, 40, 0.7, 420.0),
                kind("e", 1, 12, 0.6, 150.0),
            ],
            admission: Admission::HeadStart,
            seed: 1,
        }
    }
}

/// What it came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Replay {
    pub decisions: u64,
    pub jobs: u64,
    pub jobs_far: u64,
    pub makespan_s: f64,
    pub decision_us_mean: f64,
    pub decision_us_p99: f64,
    pub decision_us_max: f64,
    /// All decisions together, relative to the time that the stream took.
    pub cpu_pct: f64,
}

/// Runs a stream to its end.
pub fn run(load: &Load) -> Replay {
    let mut book = Ledger::new(load.admission);
    let mut dice = SplitMix64::new(load.seed);
    let names: Vec<String> = (0..load.nodes).map(|n| format!("n{n}")).collect();
    let news = NodeNews {
        memory: load.memory,
        donated: load.far,
        granted: Bytes::ZERO,
    };
    for name in &names {
        book.set_node(name, load.cores, (0, Bytes::ZERO), true);
    }
    let mut arriving = arrivals(load, &mut dice).into_iter().peekable();
    let mut ends: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut kinds: BTreeMap<u64, usize> = BTreeMap::new();
    let (mut costs, mut replay) = (Vec::new(), Replay::default());
    let mut now = Nanos::ZERO;
    for _ in 0..TURNS_MAX {
        for name in &names {
            book.heard(name, &news, now);
        }
        let later = ends.split_off(&(now.0 + 1));
        for job in std::mem::replace(&mut ends, later).into_values().flatten() {
            book.ended(job);
            kinds.remove(&job);
            replay.jobs += 1;
        }
        while let Some((_, job, kind)) = arriving.next_if(|(at, _, _)| *at <= now.0) {
            kinds.insert(job, kind);
            book.submit(request(job, &load.kinds[kind]));
        }
        loop {
            let begun = clock::thread_cpu();
            let start = book.decide(now);
            costs.push((clock::thread_cpu() - begun).0);
            let Some(start) = start else {
                break;
            };
            let kind = &load.kinds[kinds[&start.job]];
            let far = start.far > Bytes::ZERO;
            replay.jobs_far += u64::from(far);
            let slower = if far { kind.slowdown } else { 1.0 };
            let over = now + Nanos((kind.run_s * slower * 1e9) as u64);
            ends.entry(over.0).or_default().push(start.job);
            book.begun(request(start.job, kind), &start.node, now);
        }
        if kinds.is_empty() && arriving.peek().is_none() {
            break;
        }
        now += TICK;
    }
    replay.makespan_s = now.as_secs_f64();
    summed(costs, replay)
}

fn summed(mut costs: Vec<u64>, replay: Replay) -> Replay {
    costs.sort_unstable();
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |share: f64| us(costs[((costs.len() - 1) as f64 * share) as usize]);
    let all: u64 = costs.iter().sum();
    Replay {
        decisions: costs.len() as u64,
        decision_us_mean: us(all) / costs.len() as f64,
        decision_us_p99: at(0.99),
        decision_us_max: at(1.0),
        cpu_pct: 100.0 * all as f64 / 1e9 / replay.makespan_s.max(1.0),
        ..replay
    }
}

/// Time, number and kind, in the order of time.
fn arrivals(load: &Load, dice: &mut SplitMix64) -> Vec<(u64, u64, usize)> {
    let kinds = load.kinds.len() as u64;
    let mut all: Vec<(u64, usize)> = (0..load.jobs)
        .map(|_| (dice.below(load.within.0 + 1), dice.below(kinds) as usize))
        .collect();
    all.sort_unstable();
    let numbered = all.into_iter().enumerate();
    numbered
        .map(|(number, (at, kind))| (at, number as u64, kind))
        .collect()
}

fn request(job: u64, kind: &Kind) -> Request {
    Request {
        job,
        name: kind.name.clone(),
        user: "u".to_string(),
        uid: 1000,
        cores: kind.cores,
        memory: kind.memory,
        floor: kind.floor,
        wish: Wish::Auto,
        run_s: kind.run_s,
        nodes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_of_a_stream_runs_and_far_memory_shortens_it() {
        let load = Load {
            nodes: 20,
            jobs: 600,
            ..Load::default()
        };
        let far = run(&load);
        let near = run(&Load {
            far: Bytes::ZERO,
            ..load.clone()
        });
        assert_eq!((far.jobs, near.jobs), (600, 600));
        assert!(far.jobs_far > 0 && near.jobs_far == 0);
        assert!(far.makespan_s < near.makespan_s, "{far:?} {near:?}");
        assert!(
            far.decisions > 600,
            "each start, and each time that there was none"
        );
    }
}
