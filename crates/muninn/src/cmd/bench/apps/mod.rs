//! `muninn bench apps`: real programs with less memory than they want, beside zram.
//!
//! Each program first runs alone: that gives its result, its time and its peak, of which the limits
//! are shares. Then it runs at every local ratio on every backend, and must come to the same result.
//! What is not installed is left out, with the reason. Known limit: at 100 % the limit is 16 MiB
//! above the measured peak, because the pager starts its work a little before the limit.

mod client;
mod compile;
mod java;
mod kmeans;
mod memcached;
mod postgres;
mod program;
mod redis;
mod report;
mod sort;

pub use program::{Faults, Measured, Program};

use super::arena::{Arena, Backend, Skipped};
use super::paging::mib;
use crate::failure::{Exit, Failure, Outcome};
use crate::ui::{Progress, print_json, print_out, progress};
use muninn_types::{Bytes, Percent};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  muninn bench apps --quick
  muninn bench apps --apps sort,redis --local 50% --json

zram is set up by the bench and removed again; that needs root.")]
pub struct Args {
    /// About what each program should want of memory
    #[arg(long, default_value = "384MiB")]
    pub size: Bytes,
    /// Of sort, sort-in-memory, redis, memcached, postgres, kmeans, compile, and java (PageRank with the
    /// collector that it has by itself), java-serial, java-parallel, java-g1, java-shenandoah; with
    /// -tuned behind it, java, java-serial and java-parallel get what 'muninn run --tune' chooses
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sort,sort-in-memory,redis,kmeans,java-g1,java-shenandoah,compile"
    )]
    pub apps: Vec<String>,
    /// Shares of a program's peak that may be local
    #[arg(long, value_delimiter = ',', default_value = "100%,50%,25%")]
    pub local: Vec<Percent>,
    /// Of shm, tcp, zram, swap-file
    #[arg(long, value_delimiter = ',', default_value = "shm,zram")]
    pub backends: Vec<Backend>,
    /// Longer than this is given up
    #[arg(long, default_value_t = 180, value_name = "SECONDS")]
    pub patience: u64,
    /// A small run: 96 MiB, and 50 % only
    #[arg(long)]
    pub quick: bool,
    /// Write charts into this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// Fail (exit code 5) if a result is not that of the program alone
    #[arg(long)]
    pub check: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How often a program is started again that the kernel killed.
const ATTEMPTS: usize = 3;

/// One measured run.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub app: String,
    pub local_ratio: f64,
    pub backend: Backend,
    pub seconds: Option<f64>,
    pub ops_per_s: Option<f64>,
    pub p99_us: Option<f64>,
    pub checksum: Option<String>,
    /// The checksum is that of the program alone.
    pub equal: Option<bool>,
    pub limit_mib: Option<f64>,
    pub peak_mib: f64,
    pub over_limit_mib: f64,
    pub faults: Option<Faults>,
    /// Time beside the program alone; below 1 is faster (of rates, the inverse).
    pub slowdown: Option<f64>,
    /// How many times faster than zram.
    pub ratio_to_zram: Option<f64>,
    pub failed: Option<String>,
}

impl Row {
    /// What grows when it gets slower: seconds, or the time of an operation.
    fn cost(&self) -> Option<f64> {
        self.seconds.or(self.ops_per_s.map(|rate| 1.0 / rate))
    }
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    results: &'a [Row],
    skipped: &'a [Skipped],
}

/// A program by its name.
pub fn known(name: &str) -> Option<Box<dyn Program>> {
    Some(match name {
        "sort" => Box::new(sort::Sort::default()),
        "sort-in-memory" => Box::new(sort::Sort::in_memory()),
        "redis" => Box::new(redis::Redis::default()),
        "kmeans" => Box::new(kmeans::KMeans::default()),
        "memcached" => Box::new(memcached::Memcached::default()),
        "postgres" => Box::new(postgres::Postgres::default()),
        "compile" => Box::new(compile::Compile::default()),
        name => Box::new(java::Java::named(name)?),
    })
}

pub fn run(args: &Args) -> Outcome {
    let mut programs = Vec::new();
    for name in &args.apps {
        programs.push(known(name).ok_or_else(|| {
            Failure::usage(format!(
                "there is no program '{name}' here: use some of sort, sort-in-memory, redis, memcached, \
                 postgres, kmeans, compile, {}",
                java::NAMES.join(", ")
            ))
        })?);
    }
    let (size, local) = if args.quick {
        let half = Percent::from_ratio(0.5).into_iter().collect();
        (args.size.min(Bytes::mib(96)), half)
    } else {
        (args.size, args.local.clone())
    };
    if size < Bytes::mib(32) {
        return Err(Failure::usage(format!(
            "--size {size} is less than these programs need to start: use 32MiB or more"
        )));
    }
    let far = Bytes(size.0 * 4 + (512 << 20));
    let mut arena = Arena::new(&args.backends, far)?;
    for skipped in &arena.skipped {
        eprintln!("bench apps: without {}: {}", skipped.what, skipped.reason);
    }
    let backends: Vec<Backend> = args
        .backends
        .iter()
        .copied()
        .filter(|b| arena.has(*b))
        .collect();
    let runs = programs.len() * (1 + local.len() * backends.len());
    let bar = progress(runs as u64, "bench apps");
    let mut rows = Vec::new();
    for program in &mut programs {
        bar.set_message(format!("{}: getting ready", program.name()));
        if let Err(reason) = program.prepare(&arena, size) {
            let what = program.name().to_string();
            eprintln!("bench apps: without {what}: {reason}");
            arena.skipped.push(Skipped { what, reason });
            bar.inc(1 + (local.len() * backends.len()) as u64);
            continue;
        }
        let program: &dyn Program = program.as_ref();
        rows.extend(measure(&arena, args, program, &local, &backends, &bar)?);
    }
    bar.finish_and_clear();
    if args.json {
        print_json(&Results {
            results: &rows,
            skipped: &arena.skipped,
        });
    } else {
        print_out(&report::table(&rows));
        print_out(&format!("\n{}", report::targets(&rows)));
    }
    if let Some(folder) = &args.plot {
        report::plot(&rows, folder)?;
    }
    let wrong: Vec<&Row> = rows.iter().filter(|row| row.equal == Some(false)).collect();
    if let Some(row) = wrong.first() {
        let message = format!(
            "{} at {:.0} % local on {} came to another result than alone ({} results differ)",
            row.app,
            row.local_ratio * 100.0,
            row.backend.name(),
            wrong.len()
        );
        if args.check {
            return Err(Failure::new(Exit::CheckFailed, message));
        }
        eprintln!("bench apps: {message}");
    }
    Ok(())
}

/// A program alone, then at every ratio on every backend.
fn measure(
    arena: &Arena,
    args: &Args,
    program: &dyn Program,
    local: &[Percent],
    backends: &[Backend],
    bar: &Progress,
) -> Result<Vec<Row>, Failure> {
    let patience = Duration::from_secs(args.patience);
    bar.set_message(format!("{} alone", program.name()));
    let alone = program.measure(arena, Backend::Plain, Bytes(u64::MAX >> 1), patience)?;
    bar.inc(1);
    let peak = alone.iter().map(|m| m.most).max().unwrap_or_default();
    let mut rows: Vec<Row> = alone
        .into_iter()
        .map(|measured| row(measured, 1.0, Backend::Plain, None))
        .collect();
    if rows.iter().any(|row| row.failed.is_some()) {
        // Nothing to compare with.
        bar.inc((local.len() * backends.len()) as u64);
        return Ok(rows);
    }
    for ratio in local {
        let share = Bytes::pages(ratio.of(peak).whole_pages());
        let whole = ratio.ratio() >= 1.0;
        let limit = if whole {
            Bytes(share.0 + (16 << 20))
        } else {
            share
        };
        for backend in backends {
            let (name, on) = (program.name(), backend.name());
            bar.set_message(format!("{name} at {ratio}, {on}"));
            let measured = patiently(|| program.measure(arena, *backend, limit, patience))?;
            bar.inc(1);
            let new = measured.into_iter();
            rows.extend(new.map(|measured| row(measured, ratio.ratio(), *backend, Some(limit))));
        }
    }
    compare(&mut rows);
    Ok(rows)
}

/// The kernel kills programs in a small cgroup though there is swap left, when several threads
/// reclaim at once. Often it does not: its swap gets as many chances as it may want.
fn patiently(
    mut run: impl FnMut() -> Result<Vec<Measured>, Failure>,
) -> Result<Vec<Measured>, Failure> {
    let mut last = run()?;
    for _ in 1..ATTEMPTS {
        if !last.iter().any(|measured| measured.killed) {
            return Ok(last);
        }
        last = run()?;
    }
    for failed in last.iter_mut().filter(|measured| measured.killed) {
        let reason = failed.failed.take().unwrap_or_default();
        failed.failed = Some(format!("{reason}, {ATTEMPTS} times of {ATTEMPTS}"));
    }
    Ok(last)
}

fn row(measured: Measured, ratio: f64, backend: Backend, limit: Option<Bytes>) -> Row {
    Row {
        app: measured.app,
        local_ratio: ratio,
        backend,
        seconds: measured.seconds,
        ops_per_s: measured.ops_per_s,
        p99_us: measured.p99_us,
        checksum: measured.checksum,
        equal: None,
        limit_mib: limit.map(mib),
        peak_mib: mib(measured.most),
        over_limit_mib: limit.map_or(0.0, |limit| mib(measured.most.saturating_sub(limit))),
        faults: measured.faults,
        slowdown: None,
        ratio_to_zram: None,
        failed: measured.failed,
    }
}

/// Fills in what follows from comparing rows with each other.
fn compare(rows: &mut [Row]) {
    let all = rows.to_vec();
    for row in rows {
        let same = |backend: Backend, ratio: f64| {
            all.iter().find(|other| {
                other.app == row.app && other.backend == backend && other.local_ratio == ratio
            })
        };
        if let Some(alone) = same(Backend::Plain, 1.0) {
            row.slowdown = row.cost().zip(alone.cost()).map(|(own, alone)| own / alone);
            if row.failed.is_none() && alone.checksum.is_some() {
                row.equal = Some(row.checksum == alone.checksum);
            }
        }
        let zram = same(Backend::Zram, row.local_ratio).and_then(Row::cost);
        row.ratio_to_zram = zram.zip(row.cost()).map(|(zram, own)| zram / own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_the_program_alone_and_with_zram() {
        let measured = |seconds: f64, sum: &str| Measured {
            seconds: Some(seconds),
            checksum: Some(sum.to_string()),
            ..Measured::new("sort")
        };
        let mut rows = vec![
            row(measured(2.0, "a"), 1.0, Backend::Plain, None),
            row(measured(3.0, "a"), 0.5, Backend::Shm, Some(Bytes::mib(8))),
            row(measured(6.0, "b"), 0.5, Backend::Zram, Some(Bytes::mib(8))),
        ];
        compare(&mut rows);
        assert_eq!(rows[1].slowdown, Some(1.5));
        assert_eq!(rows[1].ratio_to_zram, Some(2.0));
        assert_eq!((rows[1].equal, rows[2].equal), (Some(true), Some(false)));
        assert_eq!(rows[0].ratio_to_zram, None, "zram was not run at 100 %");
    }
}
