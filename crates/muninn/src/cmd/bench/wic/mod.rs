//! `muninn bench wic`: functions at the client, at the server and at the nic.
//!
//! One run measures one application at one place under one load. `--all` measures the figures of the
//! WICKit evaluation, the parts of each backend one by one, and the ratios that are promised.

mod figures;
mod load;
mod stage;
mod targets;
mod wasm;

use crate::failure::{Exit, Failure, Outcome};
use crate::ui::{Table, print_json, print_out, progress};
use load::{App, AppName, Loaded};
use muninn_sys::pm_qos;
use muninn_types::Bytes;
use muninn_wic::Tuning;
use serde::Serialize;
use stage::{Over, Spot, Stage, failed};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn bench wic --app list --place nic --json
  muninn bench wic --app kv --place auto --rate 20000
  muninn bench wic --app log --place server-sync --wasm
  muninn bench wic --all --plot plots

Without --rate the load is closed: --in-flight calls at any time. With it, calls arrive at random
times, whether the ones before are done or not.")]
pub struct Args {
    /// Application
    #[arg(long, default_value = "list")]
    pub app: AppName,
    /// Where functions run
    #[arg(long, default_value = "auto")]
    pub place: Spot,
    /// How the client reaches the server
    #[arg(long, default_value = "tcp")]
    pub over: Over,
    /// Nodes of a traversal
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub nodes: u32,
    /// Calls at any time (closed loop)
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight: u32,
    /// Calls a second (open loop)
    #[arg(long)]
    pub rate: Option<f64>,
    /// Memory of the service [default: 64MiB for the list, 16MiB else]
    #[arg(long)]
    pub memory: Option<Bytes>,
    /// Locks of the key-value store; 1: one for the whole table
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub locks: u32,
    /// Functions of a module that is pushed, not those that are built in
    #[arg(long)]
    pub wasm: bool,
    /// How long to measure, in seconds
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Connections to each side
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=14))]
    pub queues: u32,
    /// Operations that are sent together
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub batch: u32,
    /// Calls that run at the client at once; 1: no multiplexing
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub multiplex: u32,
    /// Calls that run at the server at once, for server-async
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub window: u32,
    /// Measure everything: figures, ablations, and the ratios that are promised
    #[arg(long)]
    pub all: bool,
    /// With --all: only the ratios
    #[arg(long)]
    pub targets: bool,
    /// With --targets: only the ratios whose names begin so, and what is measured together with them
    #[arg(long, value_name = "NAME", requires = "targets")]
    pub only: Option<String>,
    /// With --all: write SVG figures into this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// With --all or --targets: fail (exit code 5) if a ratio is missed
    #[arg(long)]
    pub check: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What one run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub app: AppName,
    pub place: Spot,
    pub over: Over,
    pub nodes: Option<u32>,
    pub locks: u32,
    pub wasm: bool,
    /// Calls at any time; none in an open loop.
    pub in_flight: Option<u32>,
    /// Calls a second that arrived; none in a closed loop.
    pub rate: Option<f64>,
    pub calls: u64,
    pub failed: u64,
    pub throughput_per_s: f64,
    pub latency_us: Latency,
    pub accesses_per_call: f64,
    /// Where Muninn ran it at the end, and why; for auto.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
}

/// A load on an application at a place.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub app: AppName,
    pub place: Spot,
    pub over: Over,
    pub nodes: u32,
    pub locks: u32,
    pub in_flight: u32,
    pub rate: Option<f64>,
    pub memory: Bytes,
    pub window: usize,
    pub wasm: bool,
    pub tuning: Tuning,
    pub warm_up: Duration,
    pub time: Duration,
}

impl Case {
    fn of(args: &Args) -> Case {
        Case {
            app: args.app,
            place: args.place,
            over: args.over,
            nodes: args.nodes,
            locks: args.locks,
            in_flight: args.in_flight,
            rate: args.rate,
            memory: args.memory.unwrap_or(args.app.bytes()),
            window: args.window as usize,
            wasm: args.wasm,
            tuning: Tuning {
                queues: args.queues as usize,
                batch: args.batch as usize,
                multiplex: args.multiplex as usize,
                depth: 64,
                ..Tuning::default()
            },
            warm_up: Duration::from_millis(300),
            time: Duration::from_secs_f64(args.seconds),
        }
    }

    /// Sets a server up and measures.
    pub fn measure(&self) -> Result<Run, Failure> {
        let stage = Stage::usual(self.memory, self.place, self.window)?;
        let service = self.open(&stage)?;
        let app = self.fill(&stage, &service)?;
        self.measure_on(&service, &app)
    }

    /// The application, its memory filled.
    pub fn fill(&self, stage: &Stage, service: &muninn_wic::Service) -> Result<App, Failure> {
        let app = App::fill(self.app, service, self.nodes, self.place.place())?;
        match self.wasm {
            true => Ok(App::Pushed(
                Box::new(app),
                wasm::Functions::push(stage, service)?,
            )),
            false => Ok(app),
        }
    }

    pub fn open(&self, stage: &Stage) -> Result<muninn_wic::Service, Failure> {
        let size = (self.memory, self.locks);
        stage.open(self.over, self.place.place(), size, self.tuning)
    }

    /// Measures on what is there.
    pub fn measure_on(&self, service: &muninn_wic::Service, app: &App) -> Result<Run, Failure> {
        let times = (self.warm_up, self.time);
        let loaded = match self.rate {
            Some(rate) => load::open(service, app, rate, times)?,
            None => load::closed(service, app, self.in_flight as usize, times)?,
        };
        if let (true, Some(error)) = (loaded.failed == loaded.calls, &loaded.error) {
            return Err(failed(error));
        }
        Ok(self.run_of(&loaded, service.explain()))
    }

    fn run_of(&self, loaded: &Loaded, placement: Vec<String>) -> Run {
        Run {
            app: self.app,
            place: self.place,
            over: self.over,
            nodes: (self.app == AppName::List).then_some(self.nodes),
            locks: self.locks,
            wasm: self.wasm,
            in_flight: self.rate.is_none().then_some(self.in_flight),
            rate: self.rate,
            calls: loaded.calls,
            failed: loaded.failed,
            throughput_per_s: loaded.per_second(),
            latency_us: Latency {
                mean: loaded.mean_us(),
                p50: loaded.us(50.0),
                p99: loaded.us(99.0),
            },
            accesses_per_call: loaded.accesses_per_call(),
            placement,
        }
    }
}

pub fn run(args: &Args) -> Outcome {
    if args.rate.is_some_and(|rate| !(1.0..=1e8).contains(&rate)) {
        return Err(Failure::usage("--rate: use 1 to 100000000 calls a second"));
    }
    if !(0.05..=600.0).contains(&args.seconds) {
        return Err(Failure::usage("--seconds: use 0.05 to 600"));
    }
    // Sleeping CPUs would be all that is measured.
    let _awake = pm_qos::keep_awake().ok();
    if args.all || args.targets {
        return run_all(args);
    }
    let run = Case::of(args).measure()?;
    if args.json {
        print_json(&run);
        return Ok(());
    }
    print_out(&table_of(std::slice::from_ref(&run)).to_string());
    for line in &run.placement {
        print_out(&format!("\n{line}"));
    }
    Ok(())
}

fn table_of(runs: &[Run]) -> Table {
    let mut table = Table::new([
        "app", "place", "over", "nodes", "load", "calls/s", "p50 us", "p99 us", "accesses",
    ]);
    for run in runs {
        let load = match (run.rate, run.in_flight) {
            (Some(rate), _) => format!("{rate:.0}/s"),
            (None, n) => format!("{} at once", n.unwrap_or(0)),
        };
        table.row([
            format!("{}{}", run.app.name(), if run.wasm { ", wasm" } else { "" }),
            run.place.name().to_string(),
            format!("{:?}", run.over).to_lowercase(),
            run.nodes.map_or("-".to_string(), |n| n.to_string()),
            load,
            format!("{:.0}", run.throughput_per_s),
            format!("{:.1}", run.latency_us.p50),
            format!("{:.1}", run.latency_us.p99),
            format!("{:.1}", run.accesses_per_call),
        ]);
    }
    table
}

#[derive(Debug, Serialize)]
struct Everything {
    targets: Vec<super::Measurement>,
    runs: Vec<Run>,
    figures: Vec<String>,
}

fn run_all(args: &Args) -> Outcome {
    let only = args.only.as_deref();
    let parts = if args.targets { 0 } else { figures::PARTS };
    let bar = progress(targets::steps(only) + parts, "bench wic");
    let targets = targets::measure(&bar, only)?;
    if targets.is_empty() {
        let message = format!("--only: no ratio begins with '{}'", only.unwrap_or(""));
        return Err(Failure::usage(message));
    }
    let mut everything = Everything {
        targets,
        runs: Vec::new(),
        figures: Vec::new(),
    };
    if !args.targets {
        let drawn = figures::measure(&bar)?;
        everything.runs = drawn.runs;
        if let Some(folder) = &args.plot {
            for (name, svg) in drawn.figures {
                let path = folder.join(name);
                svg.write(&path).map_err(Failure::failed)?;
                everything.figures.push(path.display().to_string());
            }
        }
    }
    bar.finish_and_clear();
    if args.json {
        print_json(&everything);
    } else {
        if !everything.runs.is_empty() {
            print_out(&format!("{}\n", table_of(&everything.runs)));
        }
        super::net::print_table(&everything.targets);
        for path in &everything.figures {
            print_out(&format!("wrote {path}"));
        }
    }
    let missed = everything.targets.iter().filter(|m| m.met == Some(false));
    let missed: Vec<&str> = missed.map(|m| m.name).collect();
    if args.check && !missed.is_empty() {
        let message = format!("targets missed: {}", missed.join(", "));
        return Err(Failure::new(Exit::CheckFailed, message));
    }
    Ok(())
}
