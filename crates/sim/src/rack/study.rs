//! Many runs on several threads.
//!
//! A workload with all its configurations and trials is one task. Tasks are handed out by a counter
//! and their results put at their place, so the outcome does not depend on the number of threads.

use super::RackError;
use super::engine::{Engine, Run, Setup};
use super::spec::{Config, Rack, Shape};
use super::workload::{Generator, Range, Workload};
use muninn_policy::admission::Admission;
use muninn_policy::profile::catalogue::JobKind;
use muninn_types::SplitMix64;
use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub rack: Rack,
    pub kinds: &'a [JobKind],
    pub configs: Vec<Config>,
    /// Each far configuration runs once with each of these.
    pub setups: Vec<Setup>,
    pub source: Source,
    pub trials: u32,
    pub seed: u64,
    pub threads: usize,
    /// Whether to run each workload in the pooled rack too.
    pub packability: bool,
}

#[derive(Clone, Debug)]
pub enum Source {
    /// So many workloads of so many jobs in each range.
    Drawn {
        ranges: Vec<Range>,
        workloads: u32,
        jobs: u32,
    },
    Given(Workload),
}

/// One workload in one configuration, over all trials.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub config: String,
    pub policy: String,
    pub admission: String,
    /// The range that the workload was drawn for.
    pub range: String,
    pub workload: u32,
    pub m2c: f64,
    pub packability: Option<f64>,
    pub makespan_s: f64,
    /// Makespan of NOFAR ÷ this makespan − 1, in percent.
    pub improvement_pct: f64,
    pub slowdown_p50: f64,
    pub slowdown_p99: f64,
    pub jobs_far_pct: f64,
    pub far_mean_gib: f64,
    #[serde(skip)]
    pub more_pct: f64,
    /// Every hundredth of the job slowdowns, for figure 4.6.
    #[serde(skip)]
    pub slowdown_cdf: Vec<f32>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Study {
    pub rows: Vec<Row>,
}

/// A workload that is to be run.
struct Task {
    range: String,
    number: u32,
    workload: Workload,
    seeds: Vec<u64>,
}

impl Plan<'_> {
    fn check(&self) -> Result<(), RackError> {
        self.rack.check()?;
        if self.trials == 0 {
            return Err(RackError::NoTrials);
        }
        for setup in &self.setups {
            if !(setup.alpha > 0.0 && setup.alpha <= 1.0) {
                return Err(RackError::Alpha(setup.alpha));
            }
        }
        Ok(())
    }

    fn tasks(&self) -> Result<Vec<Task>, RackError> {
        let mut rng = SplitMix64::new(self.seed);
        let mut tasks = Vec::new();
        let seeds = |rng: &mut SplitMix64| (0..self.trials).map(|_| rng.next_u64()).collect();
        match &self.source {
            Source::Given(workload) => tasks.push(Task {
                range: "given".to_string(),
                number: 0,
                workload: workload.clone(),
                seeds: seeds(&mut rng),
            }),
            Source::Drawn {
                ranges,
                workloads,
                jobs,
            } => {
                if *workloads == 0 {
                    return Err(RackError::NoWorkloads);
                }
                let generator = Generator::new(self.kinds, &self.rack);
                for range in ranges {
                    let mut rng = rng.fork();
                    for number in 0..*workloads {
                        tasks.push(Task {
                            range: range.to_string(),
                            number,
                            workload: generator.draw(*range, *jobs, &mut rng)?,
                            seeds: seeds(&mut rng),
                        });
                    }
                }
            }
        }
        Ok(tasks)
    }

    /// Runs everything; `done` is told of each finished workload.
    pub fn run(&self, done: &(dyn Fn() + Sync)) -> Result<Study, RackError> {
        self.check()?;
        let tasks = self.tasks()?;
        let shapes: Vec<Shape> = self
            .configs
            .iter()
            .map(|config| config.shape(&self.rack))
            .collect::<Result<_, _>>()?;
        for task in &tasks {
            let nofar = Config::NOFAR.shape(&self.rack)?;
            for setup in &self.setups {
                let engine = Engine::new(self.kinds, *setup);
                engine.check(&task.workload, &nofar, "nofar")?;
                for (config, shape) in self.configs.iter().zip(&shapes) {
                    engine.check(&task.workload, shape, &config.name(&self.rack))?;
                }
            }
        }
        let next = AtomicUsize::new(0);
        let rows: Vec<Mutex<Vec<Row>>> = tasks.iter().map(|_| Mutex::new(Vec::new())).collect();
        let work = || {
            let mut engines: Vec<Engine<'_>> = self
                .setups
                .iter()
                .map(|setup| Engine::new(self.kinds, *setup))
                .collect();
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(place) else {
                    return;
                };
                let made = self.rows(task, &shapes, &mut engines);
                *rows[place].lock().expect("no thread panics") = made;
                done();
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.max(1) {
                scope.spawn(work);
            }
            work();
        });
        let rows = rows
            .into_iter()
            .map(|rows| rows.into_inner().expect("no thread panics"));
        Ok(Study {
            rows: rows.flatten().collect(),
        })
    }

    fn rows(&self, task: &Task, shapes: &[Shape], engines: &mut [Engine<'_>]) -> Vec<Row> {
        let nofar = Config::NOFAR.shape(&self.rack).expect("was checked");
        let trials = |engine: &mut Engine<'_>, shape: &Shape| -> Vec<Run> {
            let seeds = task.seeds.iter();
            seeds
                .map(|&seed| engine.run(&task.workload, shape, seed))
                .collect()
        };
        // NOFAR, which everything is compared with, always has the published admission.
        let published = Setup {
            admission: Admission::Eager,
            ..self.setups[0]
        };
        let mut engine = Engine::new(self.kinds, published);
        let base_runs = trials(&mut engine, &nofar);
        let base = mean_s(&base_runs);
        let packability = self.packability.then(|| {
            let pooled = trials(&mut engine, &self.rack.pooled());
            mean_s(&pooled) / base
        });
        let mut rows = Vec::new();
        for (config, shape) in self.configs.iter().zip(shapes) {
            for (i, (setup, engine)) in self.setups.iter().zip(engines.iter_mut()).enumerate() {
                // Without far memory there is nothing to divide: one row for each admission.
                let mut before = self.setups[..i].iter();
                if !config.is_far() && before.any(|b| b.admission == setup.admission) {
                    continue;
                }
                if *shape == nofar && setup.admission == published.admission {
                    rows.push(self.row(task, *config, setup, &base_runs, base, packability));
                    continue;
                }
                let runs = trials(engine, shape);
                rows.push(self.row(task, *config, setup, &runs, base, packability));
            }
        }
        rows
    }

    fn row(
        &self,
        task: &Task,
        config: Config,
        setup: &Setup,
        runs: &[Run],
        base_s: f64,
        packability: Option<f64>,
    ) -> Row {
        let makespan_s = mean_s(runs);
        let mut slowdowns: Vec<f32> = runs
            .iter()
            .flat_map(|r| r.slowdowns.iter().copied())
            .collect();
        slowdowns.sort_unstable_by(f32::total_cmp);
        let at = |share: f64| slowdowns[((slowdowns.len() - 1) as f64 * share).round() as usize];
        let count = slowdowns.len() as f64;
        let far_mean: f64 =
            runs.iter().map(|r| r.far_mean.0 as f64).sum::<f64>() / runs.len() as f64;
        let far = config.is_far();
        Row {
            config: config.name(&self.rack),
            policy: (if far { setup.policy.name() } else { "none" }).to_string(),
            admission: setup.admission.name().to_string(),
            range: task.range.clone(),
            workload: task.number,
            m2c: rounded(task.workload.m2c(self.kinds, &self.rack), 4),
            packability: packability.map(|p| rounded(p, 4)),
            makespan_s: rounded(makespan_s, 3),
            improvement_pct: rounded((base_s / makespan_s - 1.0) * 100.0, 3),
            slowdown_p50: rounded(f64::from(at(0.5)), 4),
            slowdown_p99: rounded(f64::from(at(0.99)), 4),
            jobs_far_pct: rounded(
                runs.iter().map(|r| f64::from(r.jobs_far)).sum::<f64>() / count * 100.0,
                2,
            ),
            far_mean_gib: rounded(far_mean / (1u64 << 30) as f64, 2),
            more_pct: config.more_pct(&self.rack),
            slowdown_cdf: (0..=100).map(|i| at(f64::from(i) / 100.0)).collect(),
        }
    }
}

fn mean_s(runs: &[Run]) -> f64 {
    runs.iter()
        .map(|run| run.makespan.as_secs_f64())
        .sum::<f64>()
        / runs.len() as f64
}

/// So many digits are meant; more would only make equal results look different.
fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// The value below which this share of the values lies.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len() - 1) as f64 * share;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    low + (high - low) * at.fract()
}
