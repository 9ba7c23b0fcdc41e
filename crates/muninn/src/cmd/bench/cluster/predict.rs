//! What `sim rack`'s engine expects of the same queue, from the measured profiles.

use super::Bench;
use super::way::{Way, sim_rack};
use crate::failure::Failure;
use muninn_policy::admission::Admission;
use muninn_policy::profile::catalogue::JobKind;
use muninn_policy::rebalance::{Effort, Policy};
use muninn_sim::rack::{Engine, Order, Setup, Workload};
use serde::Serialize;

/// Other arrivals of the same jobs, to see how much hangs on chance.
const OTHERS: u64 = 50;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Prediction {
    /// With the arrivals of the bench.
    pub makespan_s: f64,
    pub mean_slowdown: f64,
    /// The shortest and the longest makespan with other arrivals.
    pub least_s: f64,
    pub most_s: f64,
}

/// `None` for what the simulator does not know.
pub fn predict(bench: &Bench, way: Way) -> Result<Option<Prediction>, Failure> {
    let Some(config) = way.config(bench) else {
        return Ok(None);
    };
    let kinds: Vec<JobKind> = bench.kinds.iter().map(|kind| kind.job.clone()).collect();
    let setup = Setup {
        policy: Policy::MemoryTime,
        // Slurm's own is first come, first served, with backfill.
        admission: match way {
            Way::Muninn => Admission::HeadStart,
            _ => Admission::Eager,
        },
        effort: Effort::THOROUGH,
        // The coordinator and Slurm look at nodes in their order.
        order: Order::Index,
        ..Setup::default()
    };
    let shape = config.shape(&sim_rack(bench)).map_err(Failure::usage)?;
    let workload = Workload {
        counts: bench.counts(),
    };
    let mut engine = Engine::new(&kinds, setup);
    let checked = engine.check(&workload, &shape, way.name());
    checked.map_err(Failure::failed)?;
    let run = engine.run(&workload, &shape, bench.seed);
    let slowdowns = run.slowdowns.iter().map(|slowdown| f64::from(*slowdown));
    let mean_slowdown = slowdowns.sum::<f64>() / run.slowdowns.len().max(1) as f64;
    let others = (1..=OTHERS).map(|more| bench.seed.wrapping_add(more));
    let others: Vec<f64> = others
        .map(|seed| engine.run(&workload, &shape, seed).makespan.as_secs_f64())
        .collect();
    Ok(Some(Prediction {
        makespan_s: run.makespan.as_secs_f64(),
        mean_slowdown,
        least_s: others.iter().copied().fold(f64::INFINITY, f64::min),
        most_s: others.iter().copied().fold(0.0, f64::max),
    }))
}
