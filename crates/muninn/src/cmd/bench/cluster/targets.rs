//! What was promised, beside what was reached.

use super::Bench;
use super::predict::Prediction;
use super::report::Summary;
use super::way::{Run, Way};
use muninn_cluster::node::{Claim, Divider};
use muninn_cluster::replay::{self, Load};
use muninn_policy::profile::Profile;
use muninn_policy::rebalance::Policy;
use muninn_sys::clock;
use muninn_types::{Bytes, SplitMix64};
use serde::Serialize;

/// Jobs of one node, for the time that a division takes.
const JOBS: u64 = 200;
const DIVISIONS: usize = 50;
/// A rack of racks, for the time that a decision takes.
const NODES: u32 = 10_000;
const QUEUE: u32 = 100_000;
/// In a small run a hundredth of both.
const QUICK: u32 = 100;

#[derive(Clone, Debug, Serialize)]
pub struct Target {
    pub what: String,
    pub wanted: &'static str,
    pub reached: String,
    /// `None`: it was not measured.
    pub met: Option<bool>,
}

fn target(
    what: impl Into<String>,
    wanted: &'static str,
    reached: Option<(f64, &str, bool)>,
) -> Target {
    let shown = |(value, unit, _): &(f64, &str, bool)| format!("{value:.1} {unit}");
    Target {
        what: what.into(),
        wanted,
        reached: reached.as_ref().map_or("-".to_string(), shown),
        met: reached.map(|(_, _, met)| met),
    }
}

pub fn all(
    bench: &Bench,
    runs: &[Run],
    summaries: &[(Summary, Option<Prediction>)],
) -> Vec<Target> {
    let of = |way: Way| summaries.iter().find(|(summary, _)| summary.way == way);
    let (alone, muninn) = (of(Way::Alone), of(Way::Muninn));
    let shorter = alone.zip(muninn).map(|(alone, muninn)| {
        let percent = 100.0 * (1.0 - muninn.0.makespan_s / alone.0.makespan_s);
        (percent, "%", percent >= 15.0)
    });
    let off = |found: Option<&(Summary, Option<Prediction>)>| {
        let (summary, prediction) = found?;
        let percent = 100.0 * (prediction.as_ref()?.makespan_s / summary.makespan_s - 1.0);
        Some((percent, "%", percent.abs() <= 10.0))
    };
    let wrong: usize = runs
        .iter()
        .map(|run| run.jobs.iter().filter(|job| !job.right).count())
        .sum();
    let left: u64 = runs.iter().map(|run| run.left_behind).sum();
    let services = runs.iter().find_map(|run| run.services);
    let rebalance_us = rebalance_us(bench);
    let load = load(bench);
    let decisions = replay::run(&load);
    let of = format!("{} nodes, {} jobs", load.nodes, load.jobs);
    vec![
        target(
            "jobs with another result than alone",
            "none",
            Some((wrong as f64, "", wrong == 0)),
        ),
        target(
            "far memory left behind",
            "none",
            Some((left as f64, "bytes", left == 0)),
        ),
        target("makespan shorter than alone", ">= 15 %", shorter),
        target("prediction, alone", "within 10 %", off(alone)),
        target("prediction, muninn", "within 10 %", off(muninn)),
        target(
            "division among 200 jobs",
            "<= 1000 us",
            Some((rebalance_us, "us", rebalance_us <= 1000.0)),
        ),
        target(
            "agent",
            "<= 1 % of a CPU",
            services.map(|costs| (costs.agent_cpu_pct, "%", costs.agent_cpu_pct <= 1.0)),
        ),
        target(
            format!("decision, {of}"),
            "<= 1000 us",
            Some((
                decisions.decision_us_mean,
                "us",
                decisions.decision_us_mean <= 1000.0,
            )),
        ),
        target(
            format!("of 100 decisions the 99th, {of}"),
            "<= 1000 us",
            Some((
                decisions.decision_us_p99,
                "us",
                decisions.decision_us_p99 <= 1000.0,
            )),
        ),
    ]
}

/// Time on a CPU that a division among many jobs takes, each time with other progress.
fn rebalance_us(bench: &Bench) -> f64 {
    let mut dice = SplitMix64::new(1);
    let profiles: Vec<&Profile> = bench.kinds.iter().map(|kind| &kind.job.profile).collect();
    let mut divider = Divider::new(Policy::MemoryTime);
    let (mut limits, mut spent) = (Vec::new(), 0);
    for _ in 0..DIVISIONS {
        let claims: Vec<Claim<'_>> = (0..JOBS)
            .map(|n| {
                let kind = (n % profiles.len() as u64) as usize;
                Claim {
                    profile: profiles[kind],
                    memory: Bytes::mib(100 + dice.below(900)),
                    min_ratio: bench.kinds[kind].job.min_ratio,
                    progress: dice.unit(),
                }
            })
            .collect();
        let wanted: u64 = claims.iter().map(|claim| claim.memory.0).sum();
        let begun = clock::thread_cpu();
        divider.divide(&claims, Bytes(wanted / 10 * 9), &mut limits);
        spent += (clock::thread_cpu() - begun).0;
    }
    spent as f64 / 1e3 / DIVISIONS as f64
}

fn load(bench: &Bench) -> Load {
    let part = if bench.quick { QUICK } else { 1 };
    Load {
        nodes: NODES / part,
        jobs: QUEUE / part,
        ..Load::default()
    }
}
