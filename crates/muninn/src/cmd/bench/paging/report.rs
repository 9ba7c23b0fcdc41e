//! Results of `bench paging` for people: a table, and a chart for each number of threads.

use super::Row;
use crate::cmd::bench::arena::Backend;
use crate::failure::Failure;
use crate::ui::Table;
use muninn_plot::Bars;
use std::path::Path;

pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new([
        "pattern",
        "local %",
        "threads",
        "backend",
        "ns/page",
        "× zram",
        "× swap file",
        "over limit, MiB",
        "",
    ]);
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        table.row([
            row.pattern.name().to_string(),
            format!("{:.0}", row.local_ratio * 100.0),
            row.threads.to_string(),
            row.backend.name().to_string(),
            number(row.ns_per_page, 0),
            number(row.ratio_to_zram, 2),
            number(row.ratio_to_swapfile, 2),
            number(Some(row.over_limit_mib), 1),
            row.failed.clone().unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// One chart for each local ratio and number of threads: a group of bars for each pattern.
pub fn plot(rows: &[Row], folder: &Path) -> Result<(), Failure> {
    let mut kinds: Vec<(f64, u32)> = rows.iter().map(|r| (r.local_ratio, r.threads)).collect();
    kinds.dedup();
    kinds.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    kinds.dedup();
    for (local, threads) in kinds {
        let chosen: Vec<&Row> = rows
            .iter()
            .filter(|row| row.local_ratio == local && row.threads == threads)
            .collect();
        let percent = (local * 100.0).round();
        let title = format!("A page at {percent} % local, {threads} thread(s)");
        let mut chart = Bars::new(title, "ns per page");
        let mut patterns: Vec<_> = chosen.iter().map(|row| row.pattern).collect();
        patterns.dedup();
        for pattern in patterns {
            let bars: Vec<(&str, f64)> = chosen
                .iter()
                .filter(|row| row.pattern == pattern && row.backend != Backend::Plain)
                .filter_map(|row| Some((row.backend.name(), row.ns_per_page?)))
                .collect();
            chart = chart.group(pattern.name(), &bars);
        }
        let name = format!("paging-{percent}-{threads}.svg");
        chart.write(folder.join(name)).map_err(Failure::failed)?;
    }
    Ok(())
}
