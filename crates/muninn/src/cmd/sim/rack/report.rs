//! What `sim rack` prints: medians as a table, everything as JSON.

use crate::ui::Table;
use muninn_sim::rack::study::quantile;
use muninn_sim::rack::{Plan, Rack, Row, Study};
use serde::Serialize;

#[derive(Serialize)]
pub struct Report {
    seed: u64,
    trials: u32,
    machines: u32,
    cores: u32,
    memory_bytes: u64,
    reclaim_cores: u32,
    rows: Vec<Row>,
    medians: Vec<Median>,
}

/// All workloads of one range in one configuration.
#[derive(Serialize)]
struct Median {
    range: String,
    config: String,
    policy: String,
    admission: String,
    workloads: usize,
    m2c: f64,
    packability: f64,
    makespan_s: f64,
    improvement_pct: f64,
    improvement_pct_p1: f64,
    improvement_pct_p99: f64,
    /// Median over workloads of makespan with the first policy and admission ÷ makespan with this
    /// one − 1, in percent.
    over_first_pct: f64,
    slowdown_p50: f64,
    slowdown_p99: f64,
}

pub fn json(plan: &Plan<'_>, study: Study) -> Report {
    let Rack {
        machines,
        cores,
        memory,
        reclaim_cores,
    } = plan.rack;
    Report {
        seed: plan.seed,
        trials: plan.trials,
        machines,
        cores,
        memory_bytes: memory.0,
        reclaim_cores,
        medians: medians(&study.rows),
        rows: study.rows,
    }
}

fn medians(rows: &[Row]) -> Vec<Median> {
    type Key<'a> = [&'a str; 4];
    fn key(row: &Row) -> Key<'_> {
        [&row.range, &row.config, &row.policy, &row.admission]
    }
    let mut keys: Vec<Key<'_>> = Vec::new();
    for row in rows {
        if !keys.contains(&key(row)) {
            keys.push(key(row));
        }
    }
    let mut medians = Vec::new();
    for group in keys {
        let of: Vec<&Row> = rows.iter().filter(|row| key(row) == group).collect();
        let at = |share: f64, value: &dyn Fn(&Row) -> f64| {
            let mut values: Vec<f64> = of.iter().map(|row| value(row)).collect();
            let value = quantile(&mut values, share);
            (value * 1e4).round() / 1e4
        };
        let first = |row: &Row| {
            let mut same = rows.iter().filter(|other| {
                (&other.range, &other.config, other.workload)
                    == (&row.range, &row.config, row.workload)
            });
            same.next().map_or(row.makespan_s, |first| first.makespan_s)
        };
        medians.push(Median {
            range: group[0].to_string(),
            config: group[1].to_string(),
            policy: group[2].to_string(),
            admission: group[3].to_string(),
            workloads: of.len(),
            m2c: at(0.5, &|row| row.m2c),
            packability: at(0.5, &|row| row.packability.unwrap_or(f64::NAN)),
            makespan_s: at(0.5, &|row| row.makespan_s),
            improvement_pct: at(0.5, &|row| row.improvement_pct),
            improvement_pct_p1: at(0.01, &|row| row.improvement_pct),
            improvement_pct_p99: at(0.99, &|row| row.improvement_pct),
            over_first_pct: at(0.5, &|row| (first(row) / row.makespan_s - 1.0) * 100.0),
            slowdown_p50: at(0.5, &|row| row.slowdown_p50),
            slowdown_p99: at(0.5, &|row| row.slowdown_p99),
        });
    }
    medians
}

/// Medians over the workloads of each range.
pub fn table(study: &Study) -> Table {
    let mut table = Table::new([
        "m2c",
        "config",
        "policy",
        "admission",
        "makespan s",
        "improvement %",
        "p1",
        "p99",
        "vs first %",
        "packability",
        "slowdown p50",
        "p99",
    ]);
    for m in medians(&study.rows) {
        let range = if m.range == "given" {
            format!("{:.2}", m.m2c)
        } else {
            m.range
        };
        table.row([
            range,
            m.config,
            m.policy,
            m.admission,
            format!("{:.0}", m.makespan_s),
            format!("{:+.1}", m.improvement_pct),
            format!("{:+.1}", m.improvement_pct_p1),
            format!("{:+.1}", m.improvement_pct_p99),
            format!("{:+.1}", m.over_first_pct),
            format!("{:.3}", m.packability),
            format!("{:.3}", m.slowdown_p50),
            format!("{:.3}", m.slowdown_p99),
        ]);
    }
    table
}
