//! Tables, JSON and charts of `muninn bench heap`.

use super::{Args, Run};
use crate::failure::{Failure, Outcome};
use crate::ui::{Table, print_json, print_out};
use muninn_plot::{Bars, Chart};
use serde::Serialize;
use std::path::Path;

/// What is promised, and what came out.
#[derive(Debug, Serialize)]
struct Target {
    what: String,
    value: f64,
    target: &'static str,
    met: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    scale: f64,
    servers: u32,
    transport: &'static str,
    runs: &'a [Run],
    targets: Vec<Target>,
}

pub fn print(args: &Args, runs: &[Run]) {
    let targets = targets(runs);
    if args.json {
        // One run is what it is; several are a list with what follows from them.
        match runs {
            [run] => print_json(run),
            _ => print_json(&Report {
                scale: args.scale,
                servers: args.servers,
                transport: if args.tcp { "tcp" } else { "shm" },
                runs,
                targets,
            }),
        }
        return;
    }
    let mut table = Table::new([
        "workload", "local", "plan", "time", "stopped", "beside", "mean", "p90", "p99", "max",
        "pauses", "faults", "moved", "heap",
    ]);
    for run in runs {
        let ms = |ms: f64| format!("{ms:.2} ms");
        let cells = match &run.failed {
            Some(why) => vec![
                run.workload.to_string(),
                format!("{:.0}%", run.local_percent),
                run.plan.clone(),
                why.chars().take(40).collect(),
            ],
            None => vec![
                run.workload.to_string(),
                format!("{:.0}%", run.local_percent),
                run.plan.clone(),
                format!("{:.2} s", run.seconds),
                format!("{:.2} s", run.gc_seconds),
                format!("{:.2} s", run.concurrent_seconds),
                ms(run.pause_ms.mean),
                ms(run.pause_ms.p90),
                ms(run.pause_ms.p99),
                ms(run.pause_ms.max),
                run.pause_ms.count.to_string(),
                run.faults.to_string(),
                format!("{} MiB", run.bytes_moved >> 20),
                format!(
                    "{:.0}→{:.0} MiB",
                    run.footprint_before_mib, run.footprint_after_mib
                ),
            ],
        };
        table.row(cells);
    }
    print_out(&table.to_string());
    if !targets.is_empty() {
        let mut table = Table::new(["promised", "value", "target", ""]);
        for target in &targets {
            let met = if target.met { "met" } else { "MISSED" };
            table.row([
                target.what.clone(),
                format!("{:.2}", target.value),
                target.target.to_string(),
                met.to_string(),
            ]);
        }
        print_out(&format!("\n{table}"));
    }
}

fn find<'a>(runs: &'a [Run], workload: &str, plan: &str, local: f64) -> Option<&'a Run> {
    runs.iter().find(|run| {
        run.workload == workload
            && run.plan == plan
            && (run.local_percent - local).abs() < 0.5
            && run.failed.is_none()
    })
}

/// The table of numbers of the design, as far as these runs say anything about it.
fn targets(runs: &[Run]) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut workloads: Vec<&str> = runs.iter().map(|run| run.workload).collect();
    // Runs in Java come behind all others.
    workloads.sort_unstable();
    workloads.dedup();
    for workload in workloads {
        let at = |plan: &str, local: f64| find(runs, workload, plan, local);
        let mut add = |what: String, value: f64, target: &'static str| {
            let met = match target.split_once(' ') {
                Some(("<=", bound)) => bound.parse().is_ok_and(|bound: f64| value <= bound),
                Some((_, bound)) => bound.parse().is_ok_and(|bound: f64| value >= bound),
                None => false,
            };
            targets.push(Target {
                what: format!("{workload}: {what}"),
                value,
                target,
                met,
            });
        };
        if let (Some(local), Some(semeru)) = (at("local", 25.0), at("semeru", 25.0)) {
            let ratio = local.seconds / semeru.seconds;
            add("semeru over local at 25 %".to_string(), ratio, ">= 3");
        }
        if let (Some(all), Some(some)) = (at("semeru", 100.0), at("semeru", 25.0)) {
            let ratio = some.seconds / all.seconds;
            add("semeru, 25 % against 100 %".to_string(), ratio, "<= 1.3");
        }
        if let (Some(local), Some(mako)) = (at("local", 25.0), at("mako", 25.0)) {
            let ratio = local.seconds / mako.seconds;
            add("mako over local at 25 %".to_string(), ratio, ">= 2.5");
        }
        if let Some(mako) = at("mako", 25.0) {
            add("mako pauses p90, ms".to_string(), mako.pause_ms.p90, "<= 2");
            add(
                "mako pauses max, ms".to_string(),
                mako.pause_ms.max,
                "<= 10",
            );
        }
        for (plan, target) in [("mako", "<= 1.15"), ("semeru", "<= 1.05")] {
            let with = at(&format!("{plan}, barriers"), 100.0);
            if let (Some(with), Some(bare)) = (with, at("no barriers", 100.0)) {
                let ratio = with.seconds / bare.seconds;
                add(format!("{plan} barriers, all local"), ratio, target);
            }
        }
        for java in ["java-g1", "java-shenandoah"] {
            for plan in ["semeru", "mako"] {
                let slowdown =
                    |name: &str| Some(at(name, 25.0)?.seconds / at(name, 100.0)?.seconds);
                let theirs = slowdown(java).or_else(|| {
                    // A run that did not end is slower than any that did.
                    let tried = runs
                        .iter()
                        .any(|r| r.plan == java && r.workload == workload && r.failed.is_some());
                    tried.then_some(f64::INFINITY)
                });
                if let (Some(ours), Some(theirs)) = (slowdown(plan), theirs) {
                    let ratio = ours / theirs;
                    add(
                        format!("slowdown of {plan} ÷ that of {java}"),
                        ratio,
                        "<= 1",
                    );
                }
            }
        }
    }
    targets
}

/// The share of a window of each length that the program had at least (BMU).
fn utilisation(run: &Run) -> Vec<(f64, f64)> {
    let total_ms = run.seconds * 1e3;
    let mut points = Vec::new();
    let mut window = 0.1;
    while window < total_ms {
        // The worst window begins or ends at a pause.
        let mut worst: f64 = 1.0;
        let ends = run
            .pauses
            .iter()
            .flat_map(|(at, ms)| [at * 1e3, at * 1e3 + ms - window]);
        for start in ends {
            let start = start.clamp(0.0, total_ms - window);
            let stopped: f64 = run
                .pauses
                .iter()
                .map(|(at, ms)| {
                    let (from, to) = (at * 1e3, at * 1e3 + ms);
                    (to.min(start + window) - from.max(start)).max(0.0)
                })
                .sum();
            worst = worst.min(1.0 - (stopped / window).min(1.0));
        }
        points.push((window, worst));
        window *= 1.5;
    }
    // Bounded: of all windows at least that long.
    let mut least: f64 = 1.0;
    for point in points.iter_mut().rev() {
        least = least.min(point.1);
        point.1 = least;
    }
    points
}

pub fn charts(dir: &Path, runs: &[Run]) -> Outcome {
    std::fs::create_dir_all(dir)?;
    let failed = |error: muninn_plot::PlotError| Failure::failed(error);
    let mut keys: Vec<(&str, String)> = runs
        .iter()
        .map(|run| (run.workload, format!("{:.0}", run.local_percent)))
        .collect();
    keys.sort();
    keys.dedup();
    for (workload, local) in keys {
        let some: Vec<&Run> = runs
            .iter()
            .filter(|r| r.workload == workload && format!("{:.0}", r.local_percent) == local)
            .filter(|r| r.failed.is_none())
            .collect();
        let file = |what: &str| dir.join(format!("heap-{workload}-{local}-{what}.svg"));
        let title = format!("{workload}, {local} % local");
        let mut bars = Bars::new(format!("{title}: time"), "s");
        for run in &some {
            bars = bars.group(
                &run.plan,
                &[
                    ("program", run.mutator_seconds),
                    ("stopped", run.gc_seconds),
                ],
            );
        }
        bars.write(file("time")).map_err(failed)?;
        let mut cdf =
            Chart::new(format!("{title}: pauses"), "pause, ms", "share of pauses").x_log();
        let mut bmu = Chart::new(
            format!("{title}: utilisation"),
            "window, ms",
            "least share of the program",
        )
        .x_log();
        let mut footprint =
            Chart::new(format!("{title}: footprint"), "time, s", "heap in use, MiB");
        for run in &some {
            let mut ms: Vec<f64> = run.pauses.iter().map(|(_, ms)| ms.max(0.001)).collect();
            ms.sort_by(f64::total_cmp);
            let count = ms.len().max(1) as f64;
            let points = ms
                .iter()
                .enumerate()
                .map(|(i, ms)| (*ms, (i + 1) as f64 / count));
            cdf = cdf.step(run.plan.clone(), points.collect());
            bmu = bmu.line(run.plan.clone(), utilisation(run));
            if !run.footprints.is_empty() {
                let points = run
                    .footprints
                    .iter()
                    .flat_map(|(at, before, after)| [(*at, *before), (*at, *after)]);
                footprint = footprint.line(run.plan.clone(), points.collect());
            }
        }
        cdf.write(file("pauses")).map_err(failed)?;
        bmu.write(file("bmu")).map_err(failed)?;
        footprint.write(file("footprint")).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::heap::Workload;

    #[test]
    fn utilisation_is_what_is_left_of_the_worst_window() {
        let mut run = Run::empty(Workload::PageRank, "mako", "25%".parse().unwrap());
        run.seconds = 1.0;
        run.pauses = vec![(0.2, 10.0), (0.5, 20.0)];
        let curve = utilisation(&run);
        let at = |ms: f64| {
            let close =
                |a: &&(f64, f64), b: &&(f64, f64)| (a.0 - ms).abs().total_cmp(&(b.0 - ms).abs());
            curve.iter().min_by(close).unwrap().1
        };
        assert_eq!(at(5.0), 0.0, "a window inside of a pause");
        assert!((at(200.0) - 0.9).abs() < 0.02, "{}", at(200.0));
        assert!(curve.is_sorted_by(|a, b| a.1 <= b.1));
    }
}
