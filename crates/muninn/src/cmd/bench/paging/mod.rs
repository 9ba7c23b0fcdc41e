//! `muninn bench paging`: what a page costs that is not there, beside zram and a swap file.
//!
//! One program touches more memory than it may keep, in one pattern after the other, on every
//! backend in turn, so that whatever else this machine does hits all of them alike. Ratios are those
//! of one run. Known limit: the area of the program is what the limit is a share of; its code and the
//! runtime come on top.

mod fits;
mod report;
mod targets;

use super::arena::{Arena, Backend, Job, Skipped};
use super::median;
use crate::cmd::workload::paging::{Pattern, Report};
use crate::failure::{Exit, Failure, Outcome};
use crate::ui::{Progress, print_json, print_out, progress};
use muninn_types::{Bytes, Percent};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  muninn bench paging --quick
  muninn bench paging --patterns seq-read,rand-read --backends shm,zram --local 50%
  muninn bench paging --rounds 3 --json --plot charts

zram and the swap file are set up by the bench and removed again; that needs root.")]
pub struct Args {
    /// Memory that the program touches
    #[arg(long, default_value = "512MiB")]
    pub size: Bytes,
    /// Shares of it that may be local
    #[arg(long, value_delimiter = ',', default_value = "50%,25%")]
    pub local: Vec<Percent>,
    #[arg(long, value_delimiter = ',', default_values_t = Pattern::ALL.map(|p| p.name().to_string()))]
    pub patterns: Vec<String>,
    /// Of shm, tcp, shm-sealed, tcp-sealed, zram, swap-file
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp,zram,swap-file")]
    pub backends: Vec<Backend>,
    /// Measure shm and tcp with sealed pages, too
    #[arg(long)]
    pub seal: bool,
    /// Threads of the program, for the patterns at random
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    pub threads: Vec<u32>,
    /// How often each is measured; the median counts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Accesses, in multiples of the number of pages
    #[arg(long, default_value_t = 1.0)]
    pub passes: f64,
    /// How often "everything fits" is compared with not using Muninn; 0: not at all
    #[arg(long, default_value_t = 9)]
    pub fits_rounds: u32,
    /// A small run: 128 MiB, one thread, three comparisons
    #[arg(long)]
    pub quick: bool,
    /// Write charts into this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// Fail (exit code 5) if a target is missed
    #[arg(long)]
    pub check: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// One measured cell.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub pattern: Pattern,
    pub local_ratio: f64,
    pub backend: Backend,
    pub threads: u32,
    /// Time of all accesses divided by their number; none where the run failed.
    pub ns_per_page: Option<f64>,
    /// How many times faster than zram, and than the swap file.
    pub ratio_to_zram: Option<f64>,
    pub ratio_to_swapfile: Option<f64>,
    /// The most that was resident above the limit.
    pub over_limit_mib: f64,
    /// Of which the runtime says that they are its own.
    pub runtime_mib: Option<f64>,
    /// How it ended, where it failed.
    pub failed: Option<String>,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    size_bytes: u64,
    results: &'a [Row],
    fits: Option<&'a fits::Fits>,
    targets: &'a [targets::Target],
    skipped: &'a [Skipped],
}

/// What distinguishes cells that are compared with each other.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    pattern: Pattern,
    local: Percent,
    threads: u32,
}

pub fn run(args: &Args) -> Outcome {
    let cells = cells(args)?;
    let size = if args.quick {
        args.size.min(Bytes::mib(128))
    } else {
        args.size
    };
    if size < Bytes::mib(16) {
        return Err(Failure::usage(format!(
            "--size {size} is too little to measure with: use 16MiB or more"
        )));
    }
    // Everything may go far, and a program has more than its area.
    let far = Bytes(size.0 + size.0 / 2 + (64 << 20));
    let wanted = wanted_backends(args);
    let arena = Arena::new(&wanted, far)?;
    for skipped in &arena.skipped {
        eprintln!("bench paging: without {}: {}", skipped.what, skipped.reason);
    }
    let backends: Vec<Backend> = wanted.into_iter().filter(|b| arena.has(*b)).collect();
    let fits_rounds = if args.quick {
        args.fits_rounds.min(3)
    } else {
        args.fits_rounds
    };
    let steps = cells.len() as u64 * backends.len() as u64 * u64::from(args.rounds);
    let bar = progress(steps + 2 * u64::from(fits_rounds), "bench paging");
    let mut rows = Vec::new();
    for cell in &cells {
        rows.extend(measure(&arena, args, size, *cell, &backends, &bar)?);
    }
    let wants_fits = fits_rounds > 0 && backends.contains(&Backend::Shm);
    let fits = wants_fits
        .then(|| fits::measure(&arena, size, fits_rounds, &bar))
        .transpose()?;
    bar.finish_and_clear();
    let targets = targets::check(&rows, fits.as_ref());
    if args.json {
        print_json(&Results {
            size_bytes: size.0,
            results: &rows,
            fits: fits.as_ref(),
            targets: &targets,
            skipped: &arena.skipped,
        });
    } else {
        print_out(&report::table(&rows));
        if let Some(fits) = &fits {
            print_out(&format!("\n{fits}"));
        }
        print_out(&format!("\n{}", targets::table(&targets)));
    }
    if let Some(folder) = &args.plot {
        report::plot(&rows, folder)?;
    }
    let missed: Vec<&str> = targets
        .iter()
        .filter(|t| t.met == Some(false))
        .map(|t| t.what)
        .collect();
    if args.check && !missed.is_empty() {
        let message = format!("targets missed: {}", missed.join(", "));
        return Err(Failure::new(Exit::CheckFailed, message));
    }
    Ok(())
}

/// Those that were named, each with its sealed twin beside it if that is asked for.
fn wanted_backends(args: &Args) -> Vec<Backend> {
    let mut wanted = Vec::new();
    for &backend in &args.backends {
        let twin = backend.sealed().filter(|_| args.seal);
        for backend in [Some(backend), twin].into_iter().flatten() {
            if !wanted.contains(&backend) {
                wanted.push(backend);
            }
        }
    }
    wanted
}

fn cells(args: &Args) -> Result<Vec<Cell>, Failure> {
    let patterns: Vec<Pattern> = args
        .patterns
        .iter()
        .map(|name| {
            let known = Pattern::ALL
                .into_iter()
                .find(|pattern| pattern.name() == name);
            known.ok_or_else(|| {
                let names = Pattern::ALL.map(Pattern::name).join(", ");
                Failure::usage(format!(
                    "there is no pattern '{name}': the patterns are {names}"
                ))
            })
        })
        .collect::<Result<_, _>>()?;
    let first = args.threads.first().copied().unwrap_or(1);
    let mut cells = Vec::new();
    for pattern in patterns {
        for local in &args.local {
            for &threads in &args.threads {
                // In order, threads have nothing to share; a small run keeps to the first number.
                if (pattern.is_random() && !args.quick) || threads == first {
                    cells.push(Cell {
                        pattern,
                        local: *local,
                        threads,
                    });
                }
            }
        }
    }
    Ok(cells)
}

/// The command that is measured.
fn job(pattern: Pattern, size: Bytes, threads: u32, passes: f64) -> Result<Job, Failure> {
    let program = std::env::current_exe()?;
    let mut job = Job::new([
        program.to_string_lossy().as_ref(),
        "--config",
        "/dev/null",
        "workload",
        "paging",
        "--pattern",
        pattern.name(),
        "--size",
        &size.to_string(),
        "--threads",
        &threads.to_string(),
        "--passes",
        &passes.to_string(),
    ]);
    job.patience = Duration::from_secs(300);
    Ok(job)
}

/// One cell on every backend, round by round.
fn measure(
    arena: &Arena,
    args: &Args,
    size: Bytes,
    cell: Cell,
    backends: &[Backend],
    bar: &Progress,
) -> Result<Vec<Row>, Failure> {
    let limit = Bytes::pages(cell.local.of(size).whole_pages());
    let job = job(cell.pattern, size, cell.threads, args.passes)?;
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); backends.len()];
    let mut rows: Vec<Row> = backends
        .iter()
        .map(|backend| empty_row(cell, *backend))
        .collect();
    for _ in 0..args.rounds {
        for (n, backend) in backends.iter().enumerate() {
            bar.set_message(format!(
                "{} at {}, {}",
                cell.pattern.name(),
                cell.local,
                backend.name()
            ));
            let ran = arena.run(*backend, limit, &job)?;
            bar.inc(1);
            let row = &mut rows[n];
            row.over_limit_mib = row.over_limit_mib.max(mib(ran.over_limit));
            if backend.is_muninn() {
                let own = mib(ran.runtime);
                row.runtime_mib = Some(row.runtime_mib.unwrap_or(0.0).max(own));
            }
            match serde_json::from_str::<Report>(&ran.out) {
                Ok(report) if ran.end.is_good() => samples[n].push(report.ns_per_page),
                _ => row.failed = Some(why(&ran)),
            }
        }
    }
    for (row, samples) in rows.iter_mut().zip(&mut samples) {
        if !samples.is_empty() {
            row.ns_per_page = Some(median(samples));
        }
    }
    let cost = |rows: &[Row], wanted: Backend| {
        let found = rows.iter().find(|row| row.backend == wanted);
        found.and_then(|row| row.ns_per_page)
    };
    let (zram, file) = (cost(&rows, Backend::Zram), cost(&rows, Backend::SwapFile));
    for row in &mut rows {
        let times = |other: Option<f64>| Some(other? / row.ns_per_page?);
        (row.ratio_to_zram, row.ratio_to_swapfile) = (times(zram), times(file));
    }
    Ok(rows)
}

fn empty_row(cell: Cell, backend: Backend) -> Row {
    Row {
        pattern: cell.pattern,
        local_ratio: cell.local.ratio(),
        backend,
        threads: cell.threads,
        ns_per_page: None,
        ratio_to_zram: None,
        ratio_to_swapfile: None,
        over_limit_mib: 0.0,
        runtime_mib: None,
        failed: None,
    }
}

/// How a run failed: its end, and its last words.
pub fn why(ran: &super::arena::Ran) -> String {
    let last = ran.err.lines().rfind(|line| !line.trim().is_empty());
    match (ran.end.remark(), last) {
        (remark, None) => remark,
        (remark, Some(line)) => format!("{remark}: {line}"),
    }
}

pub fn mib(bytes: Bytes) -> f64 {
    bytes.0 as f64 / f64::from(1 << 20)
}
