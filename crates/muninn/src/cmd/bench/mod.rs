//! `muninn bench`: side-by-side measurements. Every figure comes with the alternative it is
//! compared to, measured in the same run, because machines differ and are shared.

pub mod apps;
pub mod arena;
pub mod bare;
pub mod cluster;
pub mod heap;
pub mod net;
pub mod paging;
pub mod scale;
pub mod volume;
pub mod wic;

use crate::failure::Outcome;
use clap::Subcommand;
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Transports and server, beside a bare memcpy and bare sockets
    Net(net::Args),
    /// A page that is not there, beside zram and a swap file
    Paging(Box<paging::Args>),
    /// Real programs with less memory than they want, beside zram
    Apps(Box<apps::Args>),
    /// Functions at the client, at the server and at the nic
    Wic(wic::Args),
    /// Copies and parity beside a single copy, and reads while servers go
    Volume(volume::Args),
    /// The managed heap and its collectors, beside Java's
    Heap(heap::Args),
    /// A queue of real jobs on a small Slurm rack, with and without far memory
    Cluster(Box<cluster::Args>),
}

pub fn run(bench: &Bench) -> Outcome {
    match bench {
        Bench::Net(args) => net::run(args),
        Bench::Paging(args) => paging::run(args),
        Bench::Apps(args) => apps::run(args),
        Bench::Wic(args) => wic::run(args),
        Bench::Volume(args) => volume::run(args),
        Bench::Heap(args) => heap::run(args),
        Bench::Cluster(args) => cluster::run(args),
    }
}

/// One measurement and the alternative measured beside it.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub baseline: f64,
    /// What the baseline is.
    pub against: &'static str,
    /// value ÷ baseline.
    pub ratio: f64,
    /// What the ratio should be, such as `<= 1.5`; empty where nothing is promised.
    pub target: &'static str,
    pub met: Option<bool>,
}

impl Measurement {
    pub fn new(
        name: &'static str,
        (value, unit): (f64, &'static str),
        (baseline, against): (f64, &'static str),
        target: &'static str,
    ) -> Measurement {
        let ratio = value / baseline;
        let met = target.split_once(' ').and_then(|(sign, bound)| {
            let bound: f64 = bound.parse().ok()?;
            Some(if sign == "<=" {
                ratio <= bound
            } else {
                ratio >= bound
            })
        });
        Measurement {
            name,
            value,
            unit,
            baseline,
            against,
            ratio,
            target,
            met,
        }
    }
}

/// The middle of a list.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The value that `share` of the list lie below.
pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 - 1.0) * share).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}
