//! `muninn bench cluster`: a queue of real jobs on a small Slurm rack, with and without far memory.
//!
//! Each program first runs by itself, which gives its result, its peak and its profile; from these follows how
//! much memory the rack's nodes have, so that the queue wants `--m2c` times as much memory for each core as
//! there is. Then the same queue, with the same arrivals, runs on a Slurm that the bench starts, in several
//! [`Way`]s; and `sim rack`'s engine says from the profiles what it would have expected.
//!
//! A core of the rack is a part of a core here (`cpu` cgroups, one for each job): so that all cores of all
//! nodes together are less than what this machine has, and what binds is memory, as on a rack. Programs, their
//! pagers and the kernel's own swapping all run within that part. Known limits: what the memory server, Slurm
//! and the services do is outside of it; every node is this machine, so far memory is as near as shared memory
//! is; zram needs version 1 of cgroups.

mod kinds;
mod near_far;
mod predict;
mod queue;
mod report;
mod services;
mod targets;
mod way;

pub use way::Way;

use super::arena::{Arena, Skipped};
use crate::failure::{Exit, Failure, Outcome};
use crate::slurm_rack;
use crate::ui::{print_json, print_out, progress};
use kinds::Kind;
use muninn_sys::cgroup::Hierarchy;
use muninn_types::{Bytes, Percent};
use report::Results;
use serde::Serialize;
use std::path::PathBuf;

/// Of this machine's cores, so much is for the cores of the rack; the rest for all that is not a job.
const CPU_FOR_JOBS: f64 = 0.75;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  muninn bench cluster --quick
  muninn bench cluster --plot docs/benchmarks/cluster --json

It takes about ten minutes, and root: a Slurm of its own (slurmctld, slurmd, munge), cgroups and zram are set
up and removed again.")]
pub struct Args {
    /// Jobs in the queue
    #[arg(long, default_value_t = 40)]
    pub jobs: u32,
    /// Programs, as 'bench apps' knows them: sort-in-memory, redis, compile, kmeans; the first gets all of
    /// --size, each further one 15 % less
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sort-in-memory,redis,compile"
    )]
    pub programs: Vec<String>,
    /// About what the largest job should want of memory
    #[arg(long, default_value = "224MiB")]
    pub size: Bytes,
    /// Nodes; with far memory one gives way to it
    #[arg(long, default_value_t = 6)]
    pub nodes: u32,
    /// Cores of a node
    #[arg(long, default_value_t = 2)]
    pub cores: u32,
    /// Memory that the jobs want for each core, relative to the rack's
    #[arg(long, default_value_t = 1.4)]
    pub m2c: f64,
    /// More memory for all ways but the first, in percent of the rack's
    #[arg(long, default_value_t = 33.3)]
    pub more: f64,
    /// Of alone, more, zram, muninn
    #[arg(long, value_delimiter = ',', default_value = "alone,more,zram,muninn")]
    pub ways: Vec<Way>,
    /// Shares of a job's memory for its profile, besides 100%
    #[arg(long, value_delimiter = ',', default_value = "75%,50%")]
    pub local: Vec<Percent>,
    /// Seed of the arrivals
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A small run: nine jobs of 64 MiB on three nodes, without zram
    #[arg(long)]
    pub quick: bool,
    /// Write charts into this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// Fail (exit code 5) if a job failed or came to another result than by itself, or far memory is left behind
    #[arg(long)]
    pub check: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What the rack is like, in all ways but for its memory.
#[derive(Clone, Debug, Serialize)]
pub struct Rack {
    pub nodes: u32,
    pub cores: u32,
    /// What a core of the rack has of a core here.
    pub core_share: f64,
    /// Of each node, in the first way.
    pub memory_mib: u64,
    pub more_pct: f64,
    pub m2c: f64,
}

/// All that the ways share.
#[derive(Debug)]
pub struct Bench {
    pub arena: Arena,
    pub cpu: Hierarchy,
    pub kinds: Vec<Kind>,
    pub rack: Rack,
    pub jobs: u32,
    pub seed: u64,
    pub quick: bool,
}

pub fn run(args: &Args) -> Outcome {
    let args = &settled(args)?;
    if let Some(why) = slurm_rack::missing() {
        return Err(Failure::new(Exit::Unsupported, why));
    }
    let mut arena = Arena::new(&[], Bytes::ZERO)?;
    let cpu = Hierarchy::find_cpu().map_err(Failure::failed)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let core_share = (CPU_FOR_JOBS * cores / f64::from(args.nodes * args.cores)).min(1.0);
    let programs = args.programs.len() as u64;
    let steps =
        programs * (2 + args.local.len() as u64) + args.ways.len() as u64 * u64::from(args.jobs);
    let bar = progress(steps, "bench cluster");
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    let (kinds, without) = kinds::prepare(&arena, args, &bar)?;
    arena.skipped.extend(without);
    let kinds = kinds::measure(&arena, &cpu, core_share, args, kinds, &bar)?;
    let mut bench = Bench {
        arena,
        cpu,
        rack: Rack {
            nodes: args.nodes,
            cores: args.cores,
            core_share,
            memory_mib: 0,
            more_pct: args.more,
            m2c: args.m2c,
        },
        kinds,
        jobs: args.jobs,
        seed: args.seed,
        quick: args.quick,
    };
    bench.rack.memory_mib = bench.memory_mib()?;
    let mut runs = Vec::new();
    for way in &args.ways {
        match way::run(&bench, *way, &bar) {
            Ok(run) => runs.push(run),
            Err(failure) if failure.exit == Exit::Unsupported => {
                let (what, reason) = (way.name().to_string(), failure.message);
                eprintln!("bench cluster: without {what}: {reason}");
                bench.arena.skipped.push(Skipped { what, reason });
                bar.inc(u64::from(args.jobs));
            }
            Err(failure) => return Err(failure),
        }
    }
    bar.finish_and_clear();
    let results = Results::new(&bench, runs)?;
    match args.json {
        true => print_json(&results),
        false => print_out(&results.describe()),
    }
    if let Some(folder) = &args.plot {
        results.plot(folder)?;
    }
    match results.wrong() {
        Some(why) if args.check => Err(Failure::new(Exit::CheckFailed, why)),
        Some(why) => {
            eprintln!("bench cluster: {why}");
            Ok(())
        }
        None => Ok(()),
    }
}

/// The arguments with what `--quick` makes of them, or why they make no sense.
fn settled(args: &Args) -> Result<Args, Failure> {
    let mut args = Args {
        programs: args.programs.clone(),
        ways: args.ways.clone(),
        local: args.local.clone(),
        plot: args.plot.clone(),
        ..*args
    };
    if args.quick {
        args.jobs = args.jobs.min(9);
        args.size = args.size.min(Bytes::mib(64));
        args.nodes = args.nodes.min(3);
        args.ways.retain(|way| *way != Way::Zram);
        args.local.truncate(1);
    }
    let complaint = if args.nodes < 2 || args.nodes > 64 {
        "--nodes: use 2 to 64, as one gives way to far memory"
    } else if args.cores == 0 || args.cores > 64 {
        "--cores: use 1 to 64"
    } else if args.jobs == 0 || args.jobs > 1000 {
        "--jobs: use 1 to 1000"
    } else if args.size < Bytes::mib(32) {
        "--size is less than these programs need to start: use 32MiB or more"
    } else if !(0.1..=10.0).contains(&args.m2c) || !(0.0..=400.0).contains(&args.more) {
        "--m2c lies from 0.1 to 10, --more from 0 to 400"
    } else if args
        .local
        .iter()
        .any(|share| share.ratio() <= 0.0 || share.ratio() >= 1.0)
    {
        "--local lies between 0% and 100%"
    } else if args.programs.is_empty() || args.ways.is_empty() || args.local.is_empty() {
        "--programs, --ways and --local name at least one each"
    } else {
        return Ok(args);
    };
    Err(Failure::usage(complaint))
}

impl Bench {
    /// How many jobs of each kind: as equal as can be.
    pub fn counts(&self) -> Vec<u32> {
        let kinds = self.kinds.len() as u32;
        (0..kinds)
            .map(|n| self.jobs / kinds + u32::from(n < self.jobs % kinds))
            .collect()
    }

    /// Memory of a node, so that the queue has the m2c that is wanted.
    fn memory_mib(&self) -> Result<u64, Failure> {
        let (mut memory_s, mut core_s) = (0.0, 0.0);
        for (kind, count) in self.kinds.iter().zip(self.counts()) {
            let seconds = f64::from(count) * kind.alone_s();
            memory_s += seconds * kind.memory_mib as f64;
            core_s += seconds;
        }
        let memory = (memory_s / core_s * f64::from(self.rack.cores) / self.rack.m2c).ceil() as u64;
        let largest = self.kinds.iter().max_by_key(|kind| kind.memory_mib);
        match largest {
            Some(kind) if kind.memory_mib > memory => Err(Failure::usage(format!(
                "with this --m2c nodes have {memory} MiB, and {} needs {} MiB: use a smaller --m2c, more --cores, \
                 or programs that are more alike",
                kind.name, kind.memory_mib
            ))),
            _ => Ok(memory),
        }
    }
}
