//! The figures of the paper from the rows of a study, as SVG.
//!
//! | file | figure |
//! |---|---|
//! | `slowdown-m2c-….svg` | 4.6: how much slower jobs run, as a distribution |
//! | `improvement-m2c-….svg` | 4.7: improvement of the makespan, as a distribution over workloads |
//! | `packability.svg` | 4.8: improvement against packability |
//! | `memory.svg` | 4.9: median improvement against the memory in the rack |
//! | `policies.svg`, `admission.svg` | the policies and the admissions side by side |
//!
//! A figure is written when the rows hold what it shows.

use super::spec::Rack;
use super::study::{Row, Study, quantile};
use muninn_plot::{Bars, Chart, PlotError};
use std::path::{Path, PathBuf};

/// Writes all figures that the study has data for. Gives back their files.
pub fn write(study: &Study, rack: &Rack, folder: &Path) -> Result<Vec<PathBuf>, PlotError> {
    let mut files = Vec::new();
    let rows = &study.rows;
    let first = |row: &&Row| is_first(rows, row);
    let far: Vec<&Row> = rows.iter().filter(is_far).filter(first).collect();
    for range in distinct(rows.iter().map(|row| row.range.clone())) {
        let here: Vec<&Row> = far.iter().copied().filter(|r| r.range == range).collect();
        if here.is_empty() {
            continue;
        }
        let path = folder.join(format!("slowdown-m2c-{range}.svg"));
        slowdown(&here, &range).write(&path)?;
        files.push(path);
        if here.iter().any(|row| row.workload > 0) {
            let path = folder.join(format!("improvement-m2c-{range}.svg"));
            improvement(&here, &range).write(&path)?;
            files.push(path);
        }
    }
    let packed = far.iter().filter(|row| row.packability.is_some());
    if packed.clone().any(|row| row.workload > 0) {
        let path = folder.join("packability.svg");
        packability(&packed.copied().collect::<Vec<_>>()).write(&path)?;
        files.push(path);
    }
    if distinct(rows.iter().map(|row| row.config.clone())).len() > 2 {
        let path = folder.join("memory.svg");
        memory(rows, rack).write(&path)?;
        files.push(path);
    }
    let policies = distinct(rows.iter().filter(is_far).map(|row| row.policy.clone()));
    if policies.len() > 1 {
        let path = folder.join("policies.svg");
        side_by_side(rows, "Policies", |row| row.policy.clone()).write(&path)?;
        files.push(path);
    }
    let admissions = distinct(rows.iter().filter(is_far).map(|row| row.admission.clone()));
    if admissions.len() > 1 {
        let path = folder.join("admission.svg");
        side_by_side(rows, "Admission", |row| row.admission.clone()).write(&path)?;
        files.push(path);
    }
    Ok(files)
}

fn is_far(row: &&Row) -> bool {
    row.config.starts_with("far")
}

/// Whether a row is of the first policy and admission: figures of one policy show that one.
fn is_first(rows: &[Row], row: &Row) -> bool {
    let first = rows.iter().find(is_far);
    first.is_none_or(|f| f.policy == row.policy && f.admission == row.admission)
}

/// In the order of their first appearance.
fn distinct(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn median(rows: &[&Row], value: impl Fn(&Row) -> f64) -> f64 {
    let mut values: Vec<f64> = rows.iter().map(|row| value(row)).collect();
    quantile(&mut values, 0.5)
}

fn slowdown(rows: &[&Row], range: &str) -> Chart {
    let title = format!("Job slowdown by far memory, m2c {range}");
    let mut chart = Chart::new(
        title,
        "run time ÷ run time with all memory local",
        "share of jobs",
    );
    for config in distinct(rows.iter().map(|row| row.config.clone())) {
        let of: Vec<&Row> = rows
            .iter()
            .copied()
            .filter(|r| r.config == config)
            .collect();
        let points = (0..=100).map(|i| {
            let at = median(&of, |row| f64::from(row.slowdown_cdf[i]));
            (at, i as f64 / 100.0)
        });
        chart = chart.line(config, points.collect());
    }
    chart.y_range(0.0, 1.0)
}

fn improvement(rows: &[&Row], range: &str) -> Chart {
    let title = format!("Makespan improvement over NOFAR, m2c {range}");
    let mut chart = Chart::new(title, "improvement [%]", "share of workloads");
    for config in distinct(rows.iter().map(|row| row.config.clone())) {
        let of = rows.iter().filter(|row| row.config == config);
        let mut values: Vec<f64> = of.map(|row| row.improvement_pct).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let points = values.into_iter().enumerate();
        let points = points.map(|(i, value)| (value, (i + 1) as f64 / count));
        chart = chart.step(config, points.collect());
    }
    chart.y_range(0.0, 1.0)
}

fn packability(rows: &[&Row]) -> Chart {
    let title = "Improvement against packability";
    let mut chart = Chart::new(title, "packability in NOFAR", "makespan improvement [%]");
    let configs = distinct(rows.iter().map(|row| row.config.clone()));
    // Figure 4.8 shows FAR(+17.5 %); without it, the first there is.
    let wished = configs.iter().find(|config| *config == "far+17.5");
    if let Some(config) = wished.or(configs.first()) {
        let of = rows.iter().filter(|row| row.config == *config);
        let points = of.map(|row| (row.packability.unwrap_or(f64::NAN), row.improvement_pct));
        chart = chart.points(config.clone(), points.collect());
    }
    chart
}

fn memory(rows: &[Row], rack: &Rack) -> Chart {
    let title = "Adding memory: far (lines) or to every machine (points)";
    let mut chart = Chart::new(
        title,
        "memory in the rack [TB]",
        "median makespan improvement [%]",
    );
    let total_tb = rack.total().0 as f64 / (1u64 << 40) as f64;
    for range in distinct(rows.iter().map(|row| row.range.clone())) {
        let mut far: Vec<(f64, f64)> = Vec::new();
        let mut near: Vec<(f64, f64)> = Vec::new();
        let here = rows.iter().filter(|row| row.range == range);
        let here: Vec<&Row> = here
            .filter(|row| !is_far(row) || is_first(rows, row))
            .collect();
        for config in distinct(here.iter().map(|row| row.config.clone())) {
            let of: Vec<&Row> = here
                .iter()
                .copied()
                .filter(|r| r.config == config)
                .collect();
            let more_pct = of[0].more_pct;
            let point = (
                total_tb * (1.0 + more_pct / 100.0),
                median(&of, |row| row.improvement_pct),
            );
            if is_far(&of[0]) {
                far.push(point);
            } else if more_pct > 0.0 {
                near.push(point);
            }
        }
        far.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart = chart.line(format!("{range} far"), far);
        if !near.is_empty() {
            chart = chart.points(format!("{range} local"), near);
        }
    }
    chart
}

fn side_by_side(rows: &[Row], title: &str, series: impl Fn(&Row) -> String) -> Bars {
    let far: Vec<&Row> = rows.iter().filter(is_far).collect();
    let names = distinct(far.iter().map(|row| series(row)));
    let mut bars = Bars::new(
        format!("{title}: median improvement over NOFAR"),
        "makespan improvement [%]",
    );
    let cases = distinct(
        far.iter()
            .map(|row| format!("{} {}", row.range, row.config)),
    );
    for case in cases {
        let values: Vec<(String, f64)> = names
            .iter()
            .map(|name| {
                let of = far.iter().copied().filter(|row| {
                    series(row) == *name && format!("{} {}", row.range, row.config) == case
                });
                let value = median(&of.collect::<Vec<_>>(), |row| row.improvement_pct);
                (name.clone(), value)
            })
            .collect();
        bars = bars.group(case, &values);
    }
    bars
}
