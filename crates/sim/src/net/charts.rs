//! The charts of a sweep, one question each.

use super::config::{JobKind, Module};
use super::sweep::Row;
use super::topology::Tier;
use muninn_plot::{Bars, Chart, PlotError};
use std::path::{Path, PathBuf};

/// Bars show one local ratio: the one nearest to that of the published figures.
const BARS_LOCAL_RATIO: f64 = 0.4;

/// Writes all charts into a folder and names them.
pub fn write(rows: &[Row], folder: &Path) -> Result<Vec<PathBuf>, PlotError> {
    let mut written = Vec::new();
    let mut path = |name: String| {
        written.push(folder.join(name));
        written[written.len() - 1].clone()
    };
    let bandwidth_max = rows.iter().map(|row| row.bandwidth).fold(0.0, f64::max);
    let full: Vec<&Row> = rows
        .iter()
        .filter(|row| row.bandwidth == bandwidth_max)
        .collect();
    let at_ratio = nearest_ratio(&full);
    for job in jobs(rows) {
        let of_job: Vec<&Row> = full.iter().copied().filter(|row| row.job == job).collect();
        let name = job.name();
        by_ratio(
            format!("{name}: job completion time"),
            "seconds",
            &of_job,
            |row| row.report.jct_s,
        )
        .write(path(format!("jct-{name}.svg")))?;
        by_ratio(
            format!("{name}: urgent eviction flows"),
            "flows of all jobs",
            &of_job,
            |row| row.report.uef_count as f64,
        )
        .write(path(format!("uef-{name}.svg")))?;
    }
    let percent = (at_ratio * 100.0).round();
    let at: Vec<&Row> = full
        .iter()
        .copied()
        .filter(|row| row.local_ratio == at_ratio)
        .collect();
    let by_job = |title: String, unit: &str, value: fn(&Row) -> f64| {
        let mut bars = Bars::new(title, unit);
        for job in jobs(rows) {
            let of_job: Vec<(&str, f64)> = at
                .iter()
                .filter(|row| row.job == job)
                .map(|row| (row.module.name(), value(row)))
                .collect();
            bars = bars.group(job.name(), &of_job);
        }
        bars
    };
    by_job(
        format!("Completion time of urgent flows, mean, {percent} % local"),
        "µs",
        |row| row.report.fct_us_mean,
    )
    .write(path("fct-mean.svg".into()))?;
    by_job(
        format!("Completion time of urgent flows, 99th percentile, {percent} % local"),
        "µs",
        |row| row.report.fct_us_p99,
    )
    .write(path("fct-p99.svg".into()))?;
    by_job(
        format!("Slowdown of the jobs that are not short of memory, {percent} % local"),
        "percent, against fixed",
        |row| row.others_slowdown_pct,
    )
    .write(path("others.svg".into()))?;
    if let Some(job) = jobs(rows).first() {
        congestion(&at, *job, percent).write(path("congestion.svg".into()))?;
        if rows.iter().any(|row| row.bandwidth != bandwidth_max) {
            bandwidth(rows, *job, at_ratio).write(path("bandwidth.svg".into()))?;
        }
    }
    Ok(written)
}

fn jobs(rows: &[Row]) -> Vec<JobKind> {
    let mut jobs: Vec<JobKind> = rows.iter().map(|row| row.job).collect();
    jobs.sort();
    jobs.dedup();
    jobs
}

fn nearest_ratio(rows: &[&Row]) -> f64 {
    let distance = |ratio: f64| (ratio - BARS_LOCAL_RATIO).abs();
    rows.iter()
        .map(|row| row.local_ratio)
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)))
        .unwrap_or(BARS_LOCAL_RATIO)
}

fn by_ratio(title: String, unit: &str, rows: &[&Row], value: fn(&Row) -> f64) -> Chart {
    let top = rows.iter().map(|row| value(row)).fold(0.0, f64::max);
    let mut chart = Chart::new(title, "local memory, % of the working set", unit)
        .y_range(0.0, (top * 1.05).max(1e-9));
    for module in Module::ALL {
        let mut points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row.module == module)
            .map(|row| (row.local_ratio * 100.0, value(row)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if !points.is_empty() {
            chart = chart.line(module.name(), points);
        }
    }
    chart
}

/// How busy each tier of links is.
fn congestion(rows: &[&Row], job: JobKind, percent: f64) -> Bars {
    let name = job.name();
    let title = format!("{name}: how busy the links are, {percent} % local");
    let mut bars = Bars::new(title, "percent of the time, mean of the tier");
    for (index, tier) in Tier::ALL.into_iter().enumerate() {
        let of_tier: Vec<(&str, f64)> = rows
            .iter()
            .filter(|row| row.job == job)
            .map(|row| {
                let load = row.report.tiers[index];
                (row.module.name(), load.utilisation_mean * 100.0)
            })
            .collect();
        bars = bars.group(tier.name(), &of_tier);
    }
    bars
}

/// Completion time against the bandwidth that is left.
fn bandwidth(rows: &[Row], job: JobKind, at_ratio: f64) -> Bars {
    let name = job.name();
    let percent = (at_ratio * 100.0).round();
    let title = format!("{name}: completion time as bandwidth shrinks, {percent} % local");
    let mut bars = Bars::new(title, "seconds");
    let mut bandwidths: Vec<f64> = rows.iter().map(|row| row.bandwidth).collect();
    bandwidths.sort_by(|a, b| b.total_cmp(a));
    bandwidths.dedup();
    for bandwidth in bandwidths {
        let group: Vec<(&str, f64)> = rows
            .iter()
            .filter(|row| row.job == job && row.local_ratio == at_ratio)
            .filter(|row| row.bandwidth == bandwidth)
            .map(|row| (row.module.name(), row.report.jct_s))
            .collect();
        bars = bars.group(format!("bandwidth × {bandwidth}"), &group);
    }
    bars
}
