//! The charts of `muninn sim evict --plot`.

use super::{Row, summary};
use muninn_plot::{Bars, Chart, PlotError};
use std::path::{Path, PathBuf};

/// Writes all charts and returns their paths.
pub fn write(rows: &[Row], folder: &Path) -> Result<Vec<PathBuf>, PlotError> {
    let mut written = Vec::new();
    let traces = distinct(rows.iter().map(|r| r.trace.as_str()));
    let evicts = distinct(rows.iter().map(|r| r.evict.as_str()));
    let prefetches = distinct(rows.iter().map(|r| r.prefetch.as_str()));
    let Some(&plain) = prefetches
        .iter()
        .find(|p| **p == "none")
        .or(prefetches.first())
    else {
        return Ok(written);
    };
    let best = summary::pairs(rows).into_iter().next();
    let best_evict = best.map_or(String::new(), |pair| pair.evict);

    for trace in &traces {
        let of_trace = || rows.iter().filter(|r| r.trace == *trace);
        let mut chart = Chart::new(
            format!("{trace}: misses by local memory, prefetch {plain}"),
            "local memory, % of the pages touched",
            "misses, % of accesses",
        );
        for evict in &evicts {
            let row = |r: &&Row| r.evict == *evict && r.prefetch == plain;
            let points = of_trace().filter(row);
            let points = points.map(|r| (r.local_ratio * 100.0, r.miss_ratio * 100.0));
            chart = chart.line(*evict, points.collect());
        }
        let optimum = of_trace().filter(|r| r.evict == evicts[0] && r.prefetch == plain);
        let optimum = optimum.map(|r| {
            let share = r.optimum_misses as f64 / r.accesses as f64;
            (r.local_ratio * 100.0, share * 100.0)
        });
        chart = chart.line("optimum (Belady)", optimum.collect());
        written.push(folder.join(format!("evict-misses-{}.svg", file_name(trace))));
        chart.write(&written[written.len() - 1])?;
    }

    for (transport, ns) in [
        ("shm", (|r: &Row| r.ns_per_access_shm) as fn(&Row) -> f64),
        ("tcp", |r: &Row| r.ns_per_access_tcp),
    ] {
        let mut bars = Bars::new(
            format!(
                "Cost of far memory over {transport} with {best_evict}, mean over local ratios"
            ),
            "estimated ns for each access",
        );
        for trace in &traces {
            let of_prefetch = |prefetch: &&str| {
                let row = |r: &&Row| {
                    r.trace == *trace && r.evict == best_evict && r.prefetch == **prefetch
                };
                (prefetch.to_string(), mean(rows.iter().filter(row).map(ns)))
            };
            let group: Vec<(String, f64)> = prefetches.iter().map(of_prefetch).collect();
            bars = bars.group(*trace, &group);
        }
        written.push(folder.join(format!("evict-prefetch-{transport}.svg")));
        bars.write(&written[written.len() - 1])?;
    }

    let mut bars = Bars::new(
        "Pairs of policies over all traces and local ratios",
        "time relative to the best pair of each case",
    );
    let pairs = summary::pairs(rows);
    for evict in &evicts {
        let group: Vec<(&str, f64)> = prefetches
            .iter()
            .filter_map(|prefetch| {
                let pair = pairs
                    .iter()
                    .find(|p| p.evict == *evict && p.prefetch == *prefetch);
                pair.map(|p| (*prefetch, p.score))
            })
            .collect();
        bars = bars.group(*evict, &group);
    }
    written.push(folder.join("evict-pairs.svg"));
    bars.write(&written[written.len() - 1])?;
    Ok(written)
}

/// In order of appearance.
pub fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), v| (sum + v, count + 1.0));
    sum / count
}

/// A trace file's name may hold anything; a chart's file name holds letters, digits and dashes.
fn file_name(trace: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    trace.chars().map(plain).collect()
}
