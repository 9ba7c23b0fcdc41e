//! `muninn sim rack`: what far memory does to the makespan of a rack (Cluster Far Memory).

mod figure;
mod racks;
mod report;

use crate::failure::{Exit, Failure, Outcome};
use crate::ui;
use figure::Figure;
use muninn_policy::admission::Admission;
use muninn_policy::profile::catalogue::{self, JobKind, Size};
use muninn_policy::rebalance::{Effort, Policy};
use muninn_sim::rack::study::Source;
use muninn_sim::rack::{self, Config, Order, Plan, Rack, RackError, Setup, Workload, workload};
use muninn_types::Bytes;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn sim rack --seed 1
  muninn sim rack --mix quicksort=67,kmeans=1,memcached=5,linpack=15,spark=2,tf-inception=10 --far 1536GiB
  muninn sim rack --m2c 1.4 --configs far+0,far+11,far+33 --admission eager,head-start
  muninn sim rack --racks 1,10,100,1000 --far +33% --jobs 1200
  muninn sim rack --testbed --far +33% --m2c 1.4-1.8 --policy uniform,variable,memory-time
  muninn sim rack --figure 4.7 --plot charts/

A configuration is nofar (the rack as it is), nofar+25 (each machine with 25 % more memory), far+17.5
(one machine fewer, and far memory so that the rack has 17.5 % more memory in all) or far=1536GiB.
Improvement is the makespan of nofar divided by that of the configuration, less 1.")]
pub struct Args {
    /// Machines in the rack, before one gives way to far memory [default: 40]
    #[arg(long, value_name = "N")]
    pub machines: Option<u32>,

    /// Cores of a machine [default: 48]
    #[arg(long, value_name = "N")]
    pub cores: Option<u32>,

    /// Memory of a machine [default: 192GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,

    /// Cores of a machine that reclaim memory when there is far memory [default: 3]
    #[arg(long, value_name = "N")]
    pub reclaim_cores: Option<u32>,

    /// Let jobs use the reclaim cores of a machine while it uses no far memory
    #[arg(long)]
    pub reclaim_when_used: bool,

    /// Far memory: a size, or more memory in percent of the rack; runs this configuration alone
    #[arg(long, value_name = "SIZE|+PCT%", conflicts_with = "configs")]
    pub far: Option<String>,

    /// Configurations to run [default: nofar, nofar+25, nofar+50 and seven sizes of far memory]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub configs: Vec<String>,

    /// How a machine divides its memory: uniform, variable, memory-time [default: memory-time]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub policy: Vec<Policy>,

    /// Which waiting job is tried first: eager, head-start [default: eager, the published one]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub admission: Vec<Admission>,

    /// Smallest local ratio of every job under the uniform policy
    #[arg(long, value_name = "RATIO", default_value_t = 0.75)]
    pub alpha: f64,

    /// Memory the jobs want for each core, relative to the rack's: values or ranges
    /// [default: 0.75-0.85,1.15-1.25,1.55-1.65]
    #[arg(
        long,
        value_name = "FROM-TO,…",
        value_delimiter = ',',
        conflicts_with = "mix"
    )]
    pub m2c: Vec<String>,

    /// Run this mix instead: shares of the jobs by name
    #[arg(long, value_name = "NAME=SHARE,…")]
    pub mix: Option<String>,

    /// Jobs in a workload [default: 150 for each machine]
    #[arg(long, value_name = "N")]
    pub jobs: Option<u32>,

    /// Workloads drawn in each range of m2c [default: 8]
    #[arg(long, value_name = "N")]
    pub workloads: Option<u32>,

    /// Runs of each workload, with different arrivals [default: 1]
    #[arg(long, value_name = "N")]
    pub trials: Option<u32>,

    /// Seed of workloads, arrivals and placement
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Profiles of the jobs, as `muninn profile` writes them [default: the six published ones]
    #[arg(long, value_name = "FILE")]
    pub profiles: Option<PathBuf>,

    /// Kinds of job that may not use far memory
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub exempt: Vec<String>,

    /// The nine-machine testbed of the paper instead of its rack: 8 cores and 32 GiB each
    #[arg(long)]
    pub testbed: bool,

    /// Everything for one figure of the paper: 4.6, 4.7, 4.8, 4.9, table-4.2, policies, admission
    #[arg(long, value_name = "NAME", conflicts_with_all = ["mix", "far"])]
    pub figure: Option<Figure>,

    /// Try machines in a fixed order, as the published simulator does, not in a random one
    #[arg(long)]
    pub fixed_order: bool,

    /// Solve memory-time to within 0.1 % each time; several times slower, and hardly different
    #[arg(long)]
    pub thorough: bool,

    /// Threads [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// So many racks with one stream of jobs, and what their coordinators cost; takes one far configuration,
    /// and ranges of m2c that racks' users have in turn
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with_all = ["mix", "figure"])]
    pub racks: Vec<u32>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,

    /// Write SVG charts into this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let kinds = kinds(args)?;
    let plan = plan(args, &kinds).map_err(Failure::usage)?;
    if !args.racks.is_empty() {
        return racks::run(&args.racks, &plan, args.json, args.plot.as_deref());
    }
    let workloads = match &plan.source {
        Source::Given(_) => 1,
        Source::Drawn {
            ranges, workloads, ..
        } => ranges.len() as u64 * u64::from(*workloads),
    };
    let bar = ui::progress(workloads, "simulating racks");
    let study = plan.run(&|| bar.inc(1)).map_err(Failure::usage)?;
    bar.finish_and_clear();
    let charts = match &args.plot {
        Some(folder) => {
            rack::figures::write(&study, &plan.rack, folder).map_err(Failure::failed)?
        }
        None => Vec::new(),
    };
    if args.json {
        ui::print_json(&report::json(&plan, study));
    } else {
        ui::print_out(&report::table(&study).to_string());
        for chart in charts {
            ui::print_out(&format!("wrote {}", chart.display()));
        }
    }
    Ok(())
}

fn kinds(args: &Args) -> Result<Vec<JobKind>, Failure> {
    let size = if args.testbed || args.figure.is_some_and(Figure::on_testbed) {
        Size::Testbed
    } else {
        Size::Rack
    };
    let text = match &args.profiles {
        None => rack::PUBLISHED.to_string(),
        Some(path) => std::fs::read_to_string(path).map_err(|error| {
            let path = path.display();
            Failure::new(
                Exit::Usage,
                format!("--profiles {path}: cannot be read: {error}"),
            )
        })?,
    };
    let from = match &args.profiles {
        None => "the embedded profiles".to_string(),
        Some(path) => format!("--profiles {}", path.display()),
    };
    let mut kinds = catalogue::parse(&text, size)
        .map_err(|error| Failure::usage(format!("{from}: {error}")))?;
    for name in &args.exempt {
        let place = kinds.iter().position(|kind| kind.name == *name);
        let place = place.ok_or_else(|| {
            Failure::usage(RackError::UnknownExempt {
                name: name.clone(),
                known: workload::names(&kinds),
            })
        })?;
        kinds[place] = kinds[place].clone().exempted();
    }
    Ok(kinds)
}

fn plan<'a>(args: &Args, kinds: &'a [JobKind]) -> Result<Plan<'a>, RackError> {
    let preset = args.figure.map(Figure::preset).unwrap_or_default();
    let base = if args.testbed || args.figure.is_some_and(Figure::on_testbed) {
        Rack::TESTBED
    } else {
        Rack::PUBLISHED
    };
    let rack = Rack {
        machines: args.machines.unwrap_or(base.machines),
        cores: args.cores.unwrap_or(base.cores),
        memory: args.memory.unwrap_or(base.memory),
        reclaim_cores: args.reclaim_cores.unwrap_or(base.reclaim_cores),
    };
    rack.check()?;
    let jobs = args.jobs.unwrap_or(150 * rack.machines);
    let ranges = match &args.m2c[..] {
        [] => preset.ranges,
        given => given
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()?,
    };
    let source = match &args.mix {
        Some(mix) => Source::Given(Workload::of_mix(mix, kinds, jobs)?),
        None => Source::Drawn {
            ranges,
            workloads: args.workloads.unwrap_or(preset.workloads),
            jobs,
        },
    };
    let configs: Vec<Config> = match (&args.far, &args.configs[..]) {
        (Some(far), _) => vec![far_config(far)?],
        (None, []) => preset.configs,
        (None, given) => given
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()?,
    };
    let policies = or(&args.policy, preset.policies);
    let admissions = or(&args.admission, preset.admissions);
    let mut setups = Vec::new();
    for &policy in &policies {
        for &admission in &admissions {
            setups.push(Setup {
                policy,
                admission,
                effort: if args.thorough {
                    Effort::THOROUGH
                } else {
                    Effort::QUICK
                },
                order: if args.fixed_order {
                    Order::Index
                } else {
                    Order::Random
                },
                alpha: args.alpha,
                reclaim_always: !args.reclaim_when_used,
            });
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Plan {
        rack,
        kinds,
        configs,
        setups,
        source,
        trials: args.trials.unwrap_or(preset.trials),
        seed: args.seed,
        threads: args.threads.unwrap_or(cores),
        packability: true,
    })
}

fn or<T: Clone>(given: &[T], preset: Vec<T>) -> Vec<T> {
    if given.is_empty() {
        preset
    } else {
        given.to_vec()
    }
}

/// `--far 1536GiB` or `--far +17.5%`.
fn far_config(text: &str) -> Result<Config, RackError> {
    let refused = |_| RackError::NotFar(text.to_string());
    if text.trim_start().starts_with('+') {
        return format!("far{}", text.trim()).parse().map_err(refused);
    }
    let size: Bytes = text
        .parse()
        .map_err(|_| RackError::NotFar(text.to_string()))?;
    Ok(Config::FarSize(size))
}

#[cfg(test)]
mod tests;
