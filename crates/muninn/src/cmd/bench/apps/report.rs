//! Results of `bench apps` for people: a table, what was promised, a chart.

use super::{Faults, Row};
use crate::cmd::bench::arena::Backend;
use crate::failure::Failure;
use crate::ui::Table;
use muninn_plot::Bars;
use std::path::Path;

pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new([
        "program",
        "local %",
        "backend",
        "seconds",
        "ops/s",
        "p99, µs",
        "× alone",
        "faster than zram",
        "staged",
        "far",
        "zero",
        "major",
        "over limit, MiB",
        "result",
    ]);
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let result = match (&row.failed, row.equal) {
            (Some(reason), _) => reason.clone(),
            (None, Some(true)) => "equal".to_string(),
            (None, Some(false)) => "NOT EQUAL".to_string(),
            (None, None) => String::new(),
        };
        let none = || "-".to_string();
        let [staged, far, zero, major] = match row.faults {
            None => [none(), none(), none(), none()],
            Some(Faults::Major(major)) => [none(), none(), none(), major.to_string()],
            Some(Faults::Pager { staged, far, zero }) => {
                let [staged, far, zero] = [staged, far, zero].map(|n| n.to_string());
                [staged, far, zero, none()]
            }
        };
        table.row([
            row.app.clone(),
            format!("{:.0}", row.local_ratio * 100.0),
            row.backend.name().to_string(),
            number(row.seconds, 2),
            number(row.ops_per_s, 0),
            number(row.p99_us, 0),
            number(row.slowdown, 2),
            number(row.ratio_to_zram, 2),
            staged,
            far,
            zero,
            major,
            number(Some(row.over_limit_mib), 1),
            result,
        ]);
    }
    table.to_string()
}

/// Each promise with what was reached.
pub fn targets(rows: &[Row]) -> String {
    let mut table = Table::new(["target", "local %", "wanted", "reached", ""]);
    for row in rows.iter().filter(|row| row.backend == Backend::Shm) {
        let percent = (row.local_ratio * 100.0).round();
        let (what, wanted, reached) = match (row.app.as_str(), percent as u32) {
            ("sort", 50) => ("sort: time beside alone", 1.15, row.slowdown),
            ("sort", 25) => ("sort: time beside alone", 1.3, row.slowdown),
            ("redis-load" | "sort", _) | (_, 100) => continue,
            (app, _) => (app, 1.0, row.ratio_to_zram),
        };
        let is_sort = row.app == "sort";
        let killed = rows.iter().any(|other| {
            let same = other.app == row.app && other.local_ratio == row.local_ratio;
            same && other.backend == Backend::Zram && other.failed.is_some()
        });
        let met = match reached {
            Some(value) if is_sort => Some(value <= wanted),
            Some(value) => Some(value >= wanted),
            // Zram did not get to the end, and we did.
            None if killed && row.failed.is_none() => Some(true),
            None => None,
        };
        let sign = if is_sort { "<=" } else { "faster than zram >=" };
        table.row([
            what.to_string(),
            format!("{percent:.0}"),
            format!("{sign} {wanted}"),
            reached.map_or("-".to_string(), |value| format!("{value:.2}")),
            match met {
                Some(true) => "met",
                Some(false) => "missed",
                None => "not measured",
            }
            .to_string(),
        ]);
    }
    table.to_string()
}

/// One chart: how much longer each program takes, at each ratio, on each backend.
pub fn plot(rows: &[Row], folder: &Path) -> Result<(), Failure> {
    let mut chart = Bars::new("Programs with less memory", "time beside alone");
    let mut groups: Vec<(String, f64)> = Vec::new();
    for row in rows.iter().filter(|row| row.backend != Backend::Plain) {
        let group = (row.app.clone(), row.local_ratio);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (app, ratio) in groups {
        let of_group = |row: &&Row| {
            row.app == app && row.local_ratio == ratio && row.backend != Backend::Plain
        };
        let bars: Vec<(&str, f64)> = rows
            .iter()
            .filter(of_group)
            .filter_map(|row| Some((row.backend.name(), row.slowdown?)))
            .collect();
        chart = chart.group(format!("{app} {:.0} %", ratio * 100.0), &bars);
    }
    chart
        .write(folder.join("apps.svg"))
        .map_err(Failure::failed)?;
    faults(rows)
        .write(folder.join("apps-faults.svg"))
        .map_err(Failure::failed)
}

/// How often each program waited for a page, with far memory and with swap. Of a server that was measured
/// in several ways, once.
fn faults(rows: &[Row]) -> Bars {
    let mut chart = Bars::new("Waiting for pages", "thousands of faults in a run");
    let mut seen: Vec<(Faults, f64)> = Vec::new();
    let thousands = |n: u64| n as f64 / 1000.0;
    for row in rows {
        let Some(Faults::Pager { staged, far, zero }) = row.faults else {
            continue;
        };
        let known = (Faults::Pager { staged, far, zero }, row.local_ratio);
        if seen.contains(&known) {
            continue;
        }
        seen.push(known);
        let mut bars = vec![("staged", thousands(staged)), ("far", thousands(far))];
        let zram = rows.iter().find_map(|other| match other.faults {
            Some(Faults::Major(major))
                if other.app == row.app && other.local_ratio == row.local_ratio =>
            {
                Some(major)
            }
            _ => None,
        });
        bars.extend(zram.map(|major| ("zram", thousands(major))));
        let name = format!(
            "{} {:.0} %, {}",
            row.app,
            row.local_ratio * 100.0,
            row.backend.name()
        );
        chart = chart.group(name, &bars);
    }
    chart
}
