//! What is promised of paging, and what was reached.

use super::Row;
use super::fits::Fits;
use crate::cmd::bench::arena::Backend;
use crate::cmd::workload::paging::Pattern;
use crate::ui::Table;
use serde::Serialize;

/// A promise, and the worst that was measured of it.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    pub what: &'static str,
    /// Such as `>= 4`.
    pub target: &'static str,
    pub reached: Option<f64>,
    pub met: Option<bool>,
}

impl Target {
    fn new(what: &'static str, target: &'static str, reached: Option<f64>) -> Target {
        let met = reached.and_then(|value| {
            let (sign, bound) = target.split_once(' ')?;
            let bound: f64 = bound.parse().ok()?;
            Some(if sign == "<=" {
                value <= bound
            } else {
                value >= bound
            })
        });
        Target {
            what,
            target,
            reached,
            met,
        }
    }
}

/// What the runtime itself may hold, beside the program.
const RUNTIME_MIB: f64 = 32.0;

fn worst(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::min)
}

pub fn check(rows: &[Row], fits: Option<&Fits>) -> Vec<Target> {
    let of = |pattern: Pattern, backend: Backend| {
        let wanted =
            move |row: &&Row| row.pattern == pattern && row.backend == backend && row.threads == 1;
        rows.iter().filter(wanted)
    };
    let to_zram = |pattern, backend| worst(of(pattern, backend).filter_map(|r| r.ratio_to_zram));
    let to_file =
        |pattern, backend| worst(of(pattern, backend).filter_map(|r| r.ratio_to_swapfile));
    let ours = || {
        rows.iter()
            .filter(|row| row.backend.is_muninn() && row.ns_per_page.is_some())
    };
    // The runtime's part is not the program's, as far as it says so and within its bound.
    let over = ours()
        .map(|row| row.over_limit_mib - row.runtime_mib.unwrap_or(0.0).min(RUNTIME_MIB))
        .map(|over| over.max(0.0))
        .reduce(f64::max);
    let runtime = ours().filter_map(|row| row.runtime_mib).reduce(f64::max);
    // Two threads beside one, each at its local ratio.
    let scaling = worst(of(Pattern::RandRead, Backend::Shm).filter_map(|one| {
        let two = rows.iter().find(|row| {
            row.threads == 2
                && row.pattern == one.pattern
                && row.backend == one.backend
                && row.local_ratio == one.local_ratio
        })?;
        Some(one.ns_per_page? / two.ns_per_page?)
    }));
    vec![
        Target::new(
            "sequential read, shm: times faster than zram",
            ">= 4",
            to_zram(Pattern::SeqRead, Backend::Shm),
        ),
        Target::new(
            "random read, shm: times faster than zram",
            ">= 1.5",
            to_zram(Pattern::RandRead, Backend::Shm),
        ),
        Target::new(
            "random write, shm: times faster than zram",
            ">= 1.3",
            to_zram(Pattern::RandWrite, Backend::Shm),
        ),
        Target::new(
            "sequential read, tcp: times faster than zram",
            ">= 2",
            to_zram(Pattern::SeqRead, Backend::Tcp),
        ),
        Target::new(
            "random read, tcp: times faster than the swap file",
            ">= 2",
            to_file(Pattern::RandRead, Backend::Tcp),
        ),
        Target::new(
            "everything fits: time beside not using Muninn",
            "<= 1.01",
            fits.map(|fits| fits.ratio),
        ),
        Target::new(
            "resident above the limit, MiB, without the runtime's own",
            "<= 8",
            over,
        ),
        Target::new("the runtime's own memory, MiB", "<= 32", runtime),
        Target::new(
            "random read, shm: rate of two threads beside one",
            ">= 1.6",
            scaling,
        ),
    ]
}

pub fn table(targets: &[Target]) -> String {
    let mut table = Table::new([
        "target (worst of all local ratios)",
        "wanted",
        "reached",
        "",
    ]);
    for target in targets {
        let reached = target
            .reached
            .map_or("-".to_string(), |v| format!("{v:.3}"));
        let met = match target.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "not measured",
        };
        table.row([target.what, target.target, &reached, met]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pattern: Pattern, backend: Backend, threads: u32, ns: f64, zram: f64) -> Row {
        Row {
            pattern,
            local_ratio: 0.5,
            backend,
            threads,
            ns_per_page: Some(ns),
            ratio_to_zram: Some(zram / ns),
            ratio_to_swapfile: None,
            over_limit_mib: 20.0,
            runtime_mib: Some(15.0),
            failed: None,
        }
    }

    #[test]
    fn the_worst_counts_and_what_was_not_measured_is_not_met() {
        let rows = [
            row(Pattern::RandRead, Backend::Shm, 1, 2000.0, 4000.0),
            row(Pattern::RandRead, Backend::Shm, 2, 1250.0, 4000.0),
            Row {
                local_ratio: 0.25,
                ..row(Pattern::RandRead, Backend::Shm, 1, 3000.0, 4200.0)
            },
            row(Pattern::RandRead, Backend::Zram, 1, 4000.0, 4000.0),
        ];
        let targets = check(&rows, None);
        let of = |start: &str| targets.iter().find(|t| t.what.starts_with(start)).unwrap();
        let read = of("random read, shm: times");
        assert_eq!((read.reached, read.met), (Some(1.4), Some(false)));
        let scaling = of("random read, shm: rate");
        assert_eq!((scaling.reached, scaling.met), (Some(1.6), Some(true)));
        let over = of("resident above");
        assert_eq!((over.reached, over.met), (Some(5.0), Some(true)));
        assert_eq!(of("everything fits").met, None);
        assert!(table(&targets).contains("not measured"));
    }
}
