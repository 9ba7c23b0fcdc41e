//! Many runs: every job at every local ratio and bandwidth with every module, on all cores.
//!
//! Each combination's `fixed` run is made once, whether it was asked for or not: the effect on the
//! others is measured against it. Runs do not touch each other, so the rows do not depend on how
//! many threads made them.

use super::config::{Config, InputError, JobKind, Module};
use super::engine::run;
use super::report::Report;
use super::trace::Shape;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug)]
pub struct Sweep {
    /// What all runs have in common.
    pub base: Config,
    pub jobs: Vec<JobKind>,
    pub local_ratios: Vec<f64>,
    pub bandwidths: Vec<f64>,
    pub modules: Vec<Module>,
}

/// One row of the result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub module: Module,
    pub job: JobKind,
    pub local_ratio: f64,
    pub bandwidth: f64,
    pub report: Report,
    /// How many times faster than with `fixed`.
    pub speedup: f64,
    pub others_slowdown_pct: f64,
}

impl Sweep {
    fn configs(&self) -> Vec<Config> {
        // In the order of `Module`, which begins with `Fixed`.
        let mut modules = self.modules.clone();
        modules.push(Module::Fixed);
        modules.sort();
        modules.dedup();
        let mut configs = Vec::new();
        for &job in &self.jobs {
            for &bandwidth in &self.bandwidths {
                for &local_ratio in &self.local_ratios {
                    for &module in &modules {
                        configs.push(Config {
                            module,
                            job,
                            local_ratio,
                            bandwidth,
                            ..self.base.clone()
                        });
                    }
                }
            }
        }
        configs
    }

    pub fn check(&self) -> Result<(), InputError> {
        for (field, empty) in [
            ("job", self.jobs.is_empty()),
            ("local", self.local_ratios.is_empty()),
            ("bandwidth", self.bandwidths.is_empty()),
            ("module", self.modules.is_empty()),
        ] {
            if empty {
                return Err(InputError::new(field, "an empty list", "name at least one"));
            }
        }
        self.configs().iter().try_for_each(Config::check)
    }

    /// How many runs [`Sweep::run`] will make.
    pub fn len(&self) -> usize {
        self.configs().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes all runs on so many threads; `done` is called after each.
    pub fn run(&self, threads: usize, done: impl Fn() + Sync) -> Result<Vec<Row>, InputError> {
        self.check()?;
        let configs = self.configs();
        // Long runs first, so that no thread is left alone with one at the end.
        let mut order: Vec<usize> = (0..configs.len()).collect();
        order.sort_by(|&a, &b| weight(&configs[b]).total_cmp(&weight(&configs[a])));
        let reports: Mutex<Vec<Option<Report>>> = Mutex::new(vec![None; configs.len()]);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, configs.len()) {
                scope.spawn(|| {
                    while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let report = run(&configs[index]);
                        reports.lock().expect("no run panics")[index] = Some(report);
                        done();
                    }
                });
            }
        });
        let reports = reports.into_inner().expect("no run panics");
        let mut rows = Vec::new();
        let mut base: Option<&Report> = None;
        for (config, report) in configs.iter().zip(&reports) {
            let report = report.as_ref().expect("every run was made");
            if config.module == Module::Fixed {
                base = Some(report);
            }
            let base = base.expect("the fixed run of a combination comes first");
            if self.modules.contains(&config.module) {
                rows.push(Row {
                    module: config.module,
                    job: config.job,
                    local_ratio: config.local_ratio,
                    bandwidth: config.bandwidth,
                    speedup: base.jct_s / report.jct_s,
                    others_slowdown_pct: slowdown_pct(base.others_jct_s, report.others_jct_s),
                    report: report.clone(),
                });
            }
        }
        Ok(rows)
    }
}

/// 0 where there are no others.
fn slowdown_pct(before_s: f64, after_s: f64) -> f64 {
    if before_s > 0.0 {
        (after_s / before_s - 1.0) * 100.0
    } else {
        0.0
    }
}

/// How long a run will take, relative to others.
fn weight(config: &Config) -> f64 {
    Shape::of(config.job).working_set.0 as f64 / config.local_ratio / config.bandwidth
}
