//! Mixes of jobs, by m2c or given outright.
//!
//! m2c = Σ memory·duration ÷ Σ cores·duration, relative to the rack's own memory per core: above 1
//! the jobs want more memory for each core than the rack has (§4.5.1).
//!
//! To reach a given m2c, shares of 100 are drawn from a likelihood that runs from jobs that want cores
//! to jobs that want memory, and kept when their m2c is in the range; every kind is there at least
//! once. The likelihoods are those of the published generator: each kind's memory per core, or its
//! inverse, to the fifth power.

use super::{Rack, RackError};
use muninn_policy::profile::catalogue::JobKind;
use muninn_types::SplitMix64;
use std::fmt;
use std::str::FromStr;

/// Shares of which a generated mix is made.
const SHARES: u32 = 100;
/// How sharply the likelihood tells jobs that want memory from jobs that want cores.
const LIKELIHOOD_POWER: i32 = 5;
/// Draws, before a range is given up as out of reach.
const DRAWS_MAX: u32 = 200_000;
/// More jobs than this are not simulated.
pub const JOBS_MAX: u32 = 1_000_000;

/// A range of m2c.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    pub from: f64,
    pub to: f64,
}

impl Range {
    /// The three ranges of figure 4.7.
    pub const FIGURE_4_7: [Range; 3] = [
        Range {
            from: 0.75,
            to: 0.85,
        },
        Range {
            from: 1.15,
            to: 1.25,
        },
        Range {
            from: 1.55,
            to: 1.65,
        },
    ];
    /// A single value stands for this much to both sides.
    pub const HALF_WIDTH: f64 = 0.02;
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.2}-{:.2}", self.from, self.to))
    }
}

impl FromStr for Range {
    type Err = RackError;
    fn from_str(text: &str) -> Result<Range, RackError> {
        let refused = || RackError::NotARange(text.to_string());
        let number = |text: &str| -> Result<f64, RackError> {
            let value: f64 = text.trim().parse().map_err(|_| refused())?;
            let sane = value.is_finite() && value > 0.0;
            sane.then_some(value).ok_or_else(refused)
        };
        let range = match text.split_once('-') {
            Some((from, to)) => Range {
                from: number(from)?,
                to: number(to)?,
            },
            None => Range {
                from: number(text)? - Range::HALF_WIDTH,
                to: number(text)? + Range::HALF_WIDTH,
            },
        };
        (range.from <= range.to)
            .then_some(range)
            .ok_or_else(refused)
    }
}

/// How many jobs of each kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub counts: Vec<u32>,
}

impl Workload {
    /// `jobs` jobs in these shares; what does not divide goes to the largest remainders.
    pub fn of_shares(shares: &[f64], jobs: u32) -> Result<Workload, RackError> {
        let kinds = shares.iter().filter(|&&share| share > 0.0).count();
        if kinds == 0 {
            return Err(RackError::EmptyMix);
        }
        check_jobs(jobs, kinds)?;
        let total: f64 = shares.iter().sum();
        let exact: Vec<f64> = shares.iter().map(|s| s / total * f64::from(jobs)).collect();
        let mut counts: Vec<u32> = exact.iter().map(|&e| e as u32).collect();
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by(|&a, &b| {
            exact[b]
                .fract()
                .total_cmp(&exact[a].fract())
                .then(a.cmp(&b))
        });
        let left = jobs - counts.iter().sum::<u32>();
        for &kind in order.iter().cycle().take(left as usize) {
            counts[kind] += 1;
        }
        Ok(Workload { counts })
    }

    /// A mix written as `quicksort=67,kmeans=1`.
    pub fn of_mix(text: &str, kinds: &[JobKind], jobs: u32) -> Result<Workload, RackError> {
        let mut shares = vec![None; kinds.len()];
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let refused = || RackError::NotAShare(part.to_string());
            let (name, share) = part.split_once('=').ok_or_else(refused)?;
            let name = name.trim();
            let share: f64 = share.trim().parse().map_err(|_| refused())?;
            if !(share.is_finite() && share >= 0.0) {
                return Err(refused());
            }
            let kind = kinds.iter().position(|kind| kind.name == name);
            let kind = kind.ok_or_else(|| RackError::UnknownKind {
                name: name.to_string(),
                known: names(kinds),
            })?;
            if shares[kind].replace(share).is_some() {
                return Err(RackError::KindTwice(name.to_string()));
            }
        }
        let shares: Vec<f64> = shares.into_iter().map(Option::unwrap_or_default).collect();
        Workload::of_shares(&shares, jobs)
    }

    pub fn jobs(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// Memory-time ÷ core-time of all jobs, relative to the rack's memory ÷ cores.
    pub fn m2c(&self, kinds: &[JobKind], rack: &Rack) -> f64 {
        m2c(
            self.counts.iter().map(|&count| f64::from(count)),
            kinds,
            rack,
        )
    }

    /// The kinds of all jobs in their order of arrival, and their times within the window.
    pub fn arrivals(&self, window_ns: u64, rng: &mut SplitMix64, into: &mut Vec<(u64, u16)>) {
        into.clear();
        for (kind, &count) in self.counts.iter().enumerate() {
            for _ in 0..count {
                into.push((rng.below(window_ns + 1), kind as u16));
            }
        }
        into.sort_unstable();
    }
}

fn check_jobs(jobs: u32, kinds: usize) -> Result<(), RackError> {
    if jobs == 0 {
        return Err(RackError::NoJobs);
    }
    if (jobs as usize) < kinds {
        return Err(RackError::FewJobs { jobs, kinds });
    }
    if jobs > JOBS_MAX {
        return Err(RackError::TooManyJobs(jobs, JOBS_MAX));
    }
    Ok(())
}

pub fn names(kinds: &[JobKind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
    names.join(", ")
}

fn m2c(counts: impl Iterator<Item = f64>, kinds: &[JobKind], rack: &Rack) -> f64 {
    let (mut memory, mut cores) = (0.0, 0.0);
    for (count, kind) in counts.zip(kinds) {
        let seconds = count * kind.profile.full_s();
        memory += kind.memory.0 as f64 * seconds;
        cores += f64::from(kind.cores) * seconds;
    }
    memory / cores * f64::from(rack.cores) / rack.memory.0 as f64
}

/// Draws workloads with an m2c in a range.
#[derive(Clone, Debug)]
pub struct Generator<'a> {
    kinds: &'a [JobKind],
    rack: Rack,
    wants_memory: Vec<f64>,
    wants_cores: Vec<f64>,
}

impl<'a> Generator<'a> {
    pub fn new(kinds: &'a [JobKind], rack: &Rack) -> Generator<'a> {
        let per_core = |kind: &JobKind| kind.memory.0 as f64 / f64::from(kind.cores);
        let spread = |weights: Vec<f64>| {
            let total: f64 = weights.iter().sum();
            let sharp: Vec<f64> = weights
                .iter()
                .map(|w| (w / total).powi(LIKELIHOOD_POWER))
                .collect();
            let total: f64 = sharp.iter().sum();
            sharp.iter().map(|w| w / total).collect()
        };
        Generator {
            kinds,
            rack: *rack,
            wants_memory: spread(kinds.iter().map(per_core).collect()),
            wants_cores: spread(kinds.iter().map(|kind| 1.0 / per_core(kind)).collect()),
        }
    }

    pub fn draw(
        &self,
        range: Range,
        jobs: u32,
        rng: &mut SplitMix64,
    ) -> Result<Workload, RackError> {
        check_jobs(jobs, self.kinds.len())?;
        let (mut lowest, mut highest) = (f64::INFINITY, 0.0f64);
        for _ in 0..DRAWS_MAX {
            let shares = self.shares(rng);
            let m2c = m2c(shares.iter().copied(), self.kinds, &self.rack);
            if (range.from..=range.to).contains(&m2c) {
                return Workload::of_shares(&shares, jobs);
            }
            lowest = lowest.min(m2c);
            highest = highest.max(m2c);
        }
        Err(RackError::OutOfReach {
            from: range.from,
            to: range.to,
            lowest,
            highest,
        })
    }

    fn shares(&self, rng: &mut SplitMix64) -> Vec<f64> {
        let lean = rng.unit();
        let both = self.wants_memory.iter().zip(&self.wants_cores);
        let likelihood: Vec<f64> = both.map(|(m, c)| c + (m - c) * lean).collect();
        let mut shares = vec![0u32; self.kinds.len()];
        for _ in 0..SHARES {
            let mut at = rng.unit();
            let last = shares.len() - 1;
            let kind = likelihood.iter().position(|&l| {
                at -= l;
                at < 0.0
            });
            shares[kind.unwrap_or(last)] += 1;
        }
        // Every kind at least once, at the expense of the most frequent.
        for kind in 0..shares.len() {
            if shares[kind] == 0 {
                let most = (0..shares.len()).max_by_key(|&k| shares[k]).unwrap_or(0);
                shares[most] -= 1;
                shares[kind] = 1;
            }
        }
        shares.into_iter().map(f64::from).collect()
    }
}
