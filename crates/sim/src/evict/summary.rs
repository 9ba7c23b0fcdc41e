//! From many rows to few: how the pairs of policies compare over all traces and local ratios.

use super::Row;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a visit to a page costs by itself. Overheads are compared on top of it, so that a trace that
/// hardly faults does not outweigh one that does nothing else.
const VISIT_NS: f64 = 100.0;

/// A pair of policies over everything that was run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    pub evict: String,
    pub prefetch: String,
    /// Geometric mean, over traces and local ratios, of the time for each access relative to the
    /// best pair of that trace and ratio. 1 would be best everywhere.
    pub score_shm: f64,
    pub score_tcp: f64,
    /// The mean of both.
    pub score: f64,
    /// Geometric mean of the time for each access, the visit itself included: comparable between
    /// runs, where the scores are not.
    pub time_ns_shm: f64,
    pub time_ns_tcp: f64,
    /// The worst single case, over both transports.
    pub worst: f64,
}

/// All pairs, best first.
pub fn pairs(rows: &[Row]) -> Vec<Pair> {
    let mut best: BTreeMap<(&str, u64), (f64, f64)> = BTreeMap::new();
    for row in rows {
        let entry = best.entry(case(row)).or_insert((f64::MAX, f64::MAX));
        entry.0 = entry.0.min(row.ns_per_access_shm);
        entry.1 = entry.1.min(row.ns_per_access_tcp);
    }
    let mut by_pair: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let pair = (row.evict.as_str(), row.prefetch.as_str());
        by_pair.entry(pair).or_default().push(row);
    }
    let of_pair = |(evict, prefetch): (&str, &str), rows: &[&Row]| {
        let shm = |r: &&Row| (VISIT_NS + r.ns_per_access_shm) / (VISIT_NS + best[&case(r)].0);
        let tcp = |r: &&Row| (VISIT_NS + r.ns_per_access_tcp) / (VISIT_NS + best[&case(r)].1);
        let score_shm = geometric_mean(rows.iter().map(shm));
        let score_tcp = geometric_mean(rows.iter().map(tcp));
        Pair {
            evict: evict.to_string(),
            prefetch: prefetch.to_string(),
            score_shm,
            score_tcp,
            score: (score_shm + score_tcp) / 2.0,
            time_ns_shm: geometric_mean(rows.iter().map(|r| VISIT_NS + r.ns_per_access_shm)),
            time_ns_tcp: geometric_mean(rows.iter().map(|r| VISIT_NS + r.ns_per_access_tcp)),
            worst: rows.iter().map(|r| shm(r).max(tcp(r))).fold(1.0, f64::max),
        }
    };
    let mut pairs: Vec<Pair> = by_pair
        .iter()
        .map(|(pair, rows)| of_pair(*pair, rows))
        .collect();
    pairs.sort_by(|a, b| a.score.total_cmp(&b.score));
    pairs
}

fn case(row: &Row) -> (&str, u64) {
    (row.trace.as_str(), row.local_ratio.to_bits())
}

pub fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value.ln();
        count += 1.0;
    }
    if count == 0.0 {
        f64::NAN
    } else {
        (sum / count).exp()
    }
}
