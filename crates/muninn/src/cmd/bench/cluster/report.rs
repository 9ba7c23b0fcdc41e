//! Results for people and scripts: what each way came to, what was expected, charts.

use super::predict::{Prediction, predict};
use super::targets::{self, Target};
use super::way::{Run, Way};
use super::{Bench, Rack};
use crate::cmd::bench::arena::Skipped;
use crate::failure::Failure;
use crate::ui::Table;
use muninn_plot::{Bars, Chart};
use serde::Serialize;
use std::path::Path;

/// One way in a few numbers. Of jobs that failed only that they did.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub way: Way,
    pub makespan_s: f64,
    pub mean_slowdown: f64,
    pub mean_wait_s: f64,
    /// From a job's arrival to its end.
    pub mean_turnaround_s: f64,
    pub mean_running: f64,
    pub near_mib_max: f64,
    pub far_mib_max: f64,
    pub failed: usize,
    pub wrong: usize,
}

#[derive(Debug, Serialize)]
struct KindShown {
    name: &'static str,
    memory_mib: u64,
    alone_s: f64,
    min_ratio: f64,
    slowdown_at_half: f64,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    summary: Summary,
    prediction: Option<Prediction>,
    #[serde(flatten)]
    run: Detail,
}

#[derive(Debug, Serialize)]
struct Detail {
    memory: super::way::Memory,
    services: Option<super::services::Costs>,
    left_behind: u64,
    jobs: Vec<super::queue::Ran>,
    moments: Vec<super::near_far::Moment>,
}

#[derive(Debug, Serialize)]
pub struct Results {
    rack: Rack,
    jobs: u32,
    seed: u64,
    kinds: Vec<KindShown>,
    ways: Vec<Shown>,
    targets: Vec<Target>,
    skipped: Vec<Skipped>,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    sum / f64::max(count, 1.0)
}

impl Summary {
    pub fn new(run: &Run) -> Summary {
        let good = || run.jobs.iter().filter(|job| job.failed.is_none());
        Summary {
            way: run.way,
            makespan_s: good().map(|job| job.ended_s).fold(0.0, f64::max),
            mean_slowdown: mean(good().map(|job| job.slowdown)),
            mean_wait_s: mean(good().map(|job| job.begun_s - job.arrived_s)),
            mean_turnaround_s: mean(good().map(|job| job.ended_s - job.arrived_s)),
            mean_running: mean(run.moments.iter().map(|moment| f64::from(moment.running))),
            near_mib_max: run.moments.iter().map(|m| m.near_mib).fold(0.0, f64::max),
            far_mib_max: run.moments.iter().map(|m| m.far_mib).fold(0.0, f64::max),
            failed: run.jobs.iter().filter(|job| job.failed.is_some()).count(),
            wrong: run
                .jobs
                .iter()
                .filter(|job| job.failed.is_none() && !job.right)
                .count(),
        }
    }
}

impl Results {
    pub fn new(bench: &Bench, runs: Vec<Run>) -> Result<Results, Failure> {
        let mut summaries = Vec::new();
        for run in &runs {
            summaries.push((Summary::new(run), predict(bench, run.way)?));
        }
        let targets = targets::all(bench, &runs, &summaries);
        let kinds = bench.kinds.iter().map(|kind| KindShown {
            name: kind.name,
            memory_mib: kind.memory_mib,
            alone_s: kind.alone_s(),
            min_ratio: kind.job.min_ratio,
            slowdown_at_half: kind
                .job
                .profile
                .slowdown(kind.job.profile.lowest().max(0.5)),
        });
        let ways = runs.into_iter().zip(summaries);
        let ways = ways.map(|(run, (summary, prediction))| Shown {
            summary,
            prediction,
            run: Detail {
                memory: run.memory,
                services: run.services,
                left_behind: run.left_behind,
                jobs: run.jobs,
                moments: run.moments,
            },
        });
        Ok(Results {
            rack: bench.rack.clone(),
            jobs: bench.jobs,
            seed: bench.seed,
            kinds: kinds.collect(),
            ways: ways.collect(),
            targets,
            skipped: bench.arena.skipped.clone(),
        })
    }

    /// What must not be, if it is.
    pub fn wrong(&self) -> Option<String> {
        let mut said = Vec::new();
        for shown in &self.ways {
            let (way, summary) = (shown.summary.way.name(), &shown.summary);
            if summary.wrong > 0 {
                said.push(format!(
                    "{way}: {} jobs came to another result",
                    summary.wrong
                ));
            }
            // The kernel's own swap may kill; that is its result.
            if summary.failed > 0 && summary.way != Way::Zram {
                let failed = shown.run.jobs.iter().find_map(|job| job.failed.as_ref());
                let why = failed.map_or("", String::as_str);
                said.push(format!(
                    "{way}: {} jobs failed, one as {why}",
                    summary.failed
                ));
            }
            if shown.run.left_behind > 0 {
                said.push(format!(
                    "{way}: {} bytes of far memory left behind",
                    shown.run.left_behind
                ));
            }
        }
        (!said.is_empty()).then(|| said.join("; "))
    }

    pub fn describe(&self) -> String {
        let rack = &self.rack;
        let mut text = format!(
            "{} jobs on {} nodes of {} cores ({:.0} % of a core here each) and {} MiB; m2c {}\n\n",
            self.jobs,
            rack.nodes,
            rack.cores,
            100.0 * rack.core_share,
            rack.memory_mib,
            rack.m2c
        );
        let mut kinds = Table::new([
            "program",
            "memory, MiB",
            "seconds",
            "least near",
            "slower at half",
        ]);
        for kind in &self.kinds {
            kinds.row([
                kind.name.to_string(),
                kind.memory_mib.to_string(),
                format!("{:.1}", kind.alone_s),
                format!("{:.0}%", 100.0 * kind.min_ratio),
                format!("{:.2}x", kind.slowdown_at_half),
            ]);
        }
        let mut ways = Table::new([
            "way",
            "memory, MiB",
            "makespan, s",
            "predicted",
            "slowdown",
            "predicted",
            "waited, s",
            "running",
            "near, MiB",
            "far, MiB",
            "failed",
            "wrong",
        ]);
        for shown in &self.ways {
            let predicted = |of: fn(&Prediction) -> String| {
                shown.prediction.as_ref().map_or("-".to_string(), of)
            };
            let summary = &shown.summary;
            ways.row([
                summary.way.name().to_string(),
                shown.run.memory.total_mib.to_string(),
                format!("{:.1}", summary.makespan_s),
                predicted(|p| format!("{:.1} ({:.0}-{:.0})", p.makespan_s, p.least_s, p.most_s)),
                format!("{:.2}", summary.mean_slowdown),
                predicted(|p| format!("{:.2}", p.mean_slowdown)),
                format!("{:.1}", summary.mean_wait_s),
                format!("{:.1}", summary.mean_running),
                format!("{:.0}", summary.near_mib_max),
                format!("{:.0}", summary.far_mib_max),
                summary.failed.to_string(),
                summary.wrong.to_string(),
            ]);
        }
        let mut targets = Table::new(["target", "wanted", "reached", ""]);
        for target in &self.targets {
            targets.row([
                target.what.to_string(),
                target.wanted.to_string(),
                target.reached.clone(),
                match target.met {
                    Some(true) => "met",
                    Some(false) => "missed",
                    None => "not measured",
                }
                .to_string(),
            ]);
        }
        text += &format!("{kinds}\n\n{ways}\n\n{targets}");
        text
    }

    /// Makespans beside predictions, and memory over time.
    pub fn plot(&self, folder: &Path) -> Result<(), Failure> {
        let mut bars = Bars::new("A queue of jobs on a small rack", "makespan, s");
        for shown in &self.ways {
            let mut group = vec![("measured", shown.summary.makespan_s)];
            group.extend(shown.prediction.map(|p| ("sim rack", p.makespan_s)));
            bars = bars.group(shown.summary.way.name(), &group);
        }
        bars.write(folder.join("makespan.svg"))
            .map_err(Failure::failed)?;
        let mut memory = Chart::new("Memory in use", "seconds", "MiB");
        let mut running = Chart::new("Jobs that run", "seconds", "jobs");
        for shown in &self.ways {
            let name = shown.summary.way.name();
            let line = |of: fn(&super::near_far::Moment) -> f64| {
                let moments = shown.run.moments.iter();
                moments
                    .map(|moment| (moment.at_s, of(moment)))
                    .collect::<Vec<_>>()
            };
            memory = memory.line(format!("{name}, near"), line(|m| m.near_mib));
            if shown.summary.far_mib_max > 0.0 {
                memory = memory.line(format!("{name}, far"), line(|m| m.far_mib));
            }
            running = running.step(name, line(|m| f64::from(m.running)));
        }
        memory
            .y_range(0.0, self.most_mib())
            .write(folder.join("memory.svg"))
            .map_err(Failure::failed)?;
        running
            .write(folder.join("running.svg"))
            .map_err(Failure::failed)
    }

    fn most_mib(&self) -> f64 {
        let most = self
            .ways
            .iter()
            .map(|shown| shown.summary.near_mib_max.max(shown.summary.far_mib_max));
        1.05 * most.fold(1.0, f64::max)
    }
}
