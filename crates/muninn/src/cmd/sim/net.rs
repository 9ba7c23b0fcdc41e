//! `muninn sim net`: evictions competing in a leaf-spine network.

use crate::failure::{Failure, Outcome};
use crate::ui;
use muninn_sim::net::{Config, JobKind, Module, Row, Sweep, Tier, Topology, Trace, charts};
use muninn_types::Nanos;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn sim net
  muninn sim net --job linpack --local 40% --module fixed,urgency --bandwidth 1,1/2,1/4,1/8
  muninn sim net --job linpack --local 20% --scale 1
  muninn sim net --json --plot charts/

Modules: fixed (a threshold of the limit less 8 MB, all evictions alike), threshold (A-ETAM),
urgency (EFSM), both. A trace file is TOML:

  working_set = \"1.5GiB\"
  [[segment]]
  seconds = 2.0        # of computing
  grown = \"1GiB\"       # memory that is new to the program
  touched = \"4GiB\"     # memory that it has had before")]
pub struct Args {
    /// Jobs of the memory-intensive servers: linpack, kmeans, pagerank, quicksort; 'all' for all
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub job: Vec<String>,

    /// Local memory of those jobs, as shares of the working set
    #[arg(
        long,
        value_name = "RATIO,…",
        value_delimiter = ',',
        default_value = "20%,40%,80%"
    )]
    pub local: Vec<String>,

    /// What decides: fixed, threshold, urgency, both; 'all' for all
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub module: Vec<String>,

    /// Shares of the links' rate that can be used
    #[arg(
        long,
        value_name = "RATIO,…",
        value_delimiter = ',',
        default_value = "1"
    )]
    pub bandwidth: Vec<String>,

    /// Spine switches
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub spines: u32,

    /// Leaf switches
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub leaves: u32,

    /// Servers under each leaf
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub servers_per_leaf: u32,

    /// Rate of each link between a leaf and a spine, in Gb/s
    #[arg(long, value_name = "GBPS", default_value_t = 25.0)]
    pub fabric_gbps: f64,

    /// Rate of each server's link, in Gb/s
    #[arg(long, value_name = "GBPS", default_value_t = 10.0)]
    pub server_gbps: f64,

    /// Propagation time of each link, in µs
    #[arg(long, value_name = "US", default_value_t = 3)]
    pub propagation_us: u64,

    /// Servers that run memory-intensive jobs
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub intensive: u32,

    /// Jobs on each server
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub jobs_per_server: u32,

    /// Eviction cores of each server, shared by its jobs
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub evict_cores: u32,

    /// What one core can evict, in MB/s
    #[arg(long, value_name = "MBPS", default_value_t = 287.0)]
    pub evict_mb_s: f64,

    /// Divide the memory and the time of the memory-intensive jobs by this; 1 is the published size
    #[arg(long, value_name = "N", default_value_t = 64.0)]
    pub scale: f64,

    /// A recorded trace in the place of the jobs' synthetic ones
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Seed of the traces and of placement
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Threads; 0 for one on each processor
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,

    /// Write SVG charts into this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let sweep = sweep(args)?;
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let bar = ui::progress(sweep.len() as u64, "simulating networks");
    let rows = sweep.run(threads, || bar.inc(1)).map_err(Failure::usage)?;
    bar.finish_and_clear();
    let charts = match &args.plot {
        Some(folder) => charts::write(&rows, folder).map_err(Failure::failed)?,
        None => Vec::new(),
    };
    if args.json {
        ui::print_json(&json(args, &rows));
        return Ok(());
    }
    ui::print_out(&table(&rows).to_string());
    for path in charts {
        ui::print_out(&format!("wrote {}", path.display()));
    }
    Ok(())
}

fn sweep(args: &Args) -> Result<Sweep, Failure> {
    let trace = match &args.trace {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::usage(format!("trace {} cannot be read: {error}", path.display()))
            })?;
            // A wrong scale is named by the check below, not here.
            let scale = if args.scale >= 1.0 { args.scale } else { 1.0 };
            Some(Arc::new(
                Trace::parse(&text, scale).map_err(Failure::usage)?,
            ))
        }
    };
    let base = Config {
        topology: Topology {
            spines: args.spines,
            leaves: args.leaves,
            servers_per_leaf: args.servers_per_leaf,
            fabric_gbps: args.fabric_gbps,
            server_gbps: args.server_gbps,
            propagation: Nanos(args.propagation_us.saturating_mul(1000)),
        },
        intensive_servers: args.intensive,
        jobs_per_server: args.jobs_per_server,
        evict_cores: args.evict_cores,
        evict_mb_s: args.evict_mb_s,
        scale: args.scale,
        seed: args.seed,
        trace,
        ..Config::default()
    };
    let jobs = names("job", &args.job, &JobKind::ALL.map(|job| (job.name(), job)))?;
    // A recorded trace is what every job would do: one of them stands for it.
    let jobs = if base.trace.is_some() {
        vec![jobs[0]]
    } else {
        jobs
    };
    let sweep = Sweep {
        base,
        jobs,
        local_ratios: ratios("local", &args.local)?,
        bandwidths: ratios("bandwidth", &args.bandwidth)?,
        modules: names(
            "module",
            &args.module,
            &Module::ALL.map(|module| (module.name(), module)),
        )?,
    };
    sweep.check().map_err(Failure::usage)?;
    Ok(sweep)
}

/// A list of names, or `all`; in the order of the choices, each once.
fn names<T: Copy>(field: &str, given: &[String], choices: &[(&str, T)]) -> Result<Vec<T>, Failure> {
    let known: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    for name in given {
        if name != "all" && !known.contains(&name.as_str()) {
            let known = known.join(", ");
            return Err(Failure::usage(format!(
                "{field} is {name}: use {known} or all"
            )));
        }
    }
    let wanted = |name: &str| given.iter().any(|given| given == "all" || given == name);
    Ok(choices
        .iter()
        .filter(|(name, _)| wanted(name))
        .map(|&(_, value)| value)
        .collect())
}

fn ratios(field: &str, given: &[String]) -> Result<Vec<f64>, Failure> {
    given.iter().map(|text| ratio(field, text)).collect()
}

/// `0.4`, `40%` or `2/5`.
fn ratio(field: &str, text: &str) -> Result<f64, Failure> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let value = if let Some(percent) = text.strip_suffix('%') {
        number(percent).map(|percent| percent / 100.0)
    } else if let Some((above, below)) = text.split_once('/') {
        number(above).zip(number(below)).map(|(a, b)| a / b)
    } else {
        number(text)
    };
    value.ok_or_else(|| {
        Failure::usage(format!(
            "{field} is {text}: write a ratio such as 0.4, 40% or 2/5"
        ))
    })
}

fn table(rows: &[Row]) -> ui::Table {
    let mut table = ui::Table::new([
        "job",
        "local",
        "bandwidth",
        "module",
        "JCT s",
        "faster",
        "blocked",
        "UEFs",
        "FCT µs",
        "FCT p99 µs",
        "others slower",
        "uplinks busy",
    ]);
    for row in rows {
        let report = &row.report;
        table.row([
            row.job.name().to_string(),
            format!("{}%", (row.local_ratio * 1000.0).round() / 10.0),
            format!("{}", row.bandwidth),
            row.module.name().to_string(),
            format!("{:.3}", report.jct_s),
            format!("{:+.1}%", (row.speedup - 1.0) * 100.0),
            format!("{:.0}%", 100.0 * report.blocked_s / report.jct_s),
            format!("{}", report.uef_count),
            format!("{:.0}", report.fct_us_mean),
            format!("{:.0}", report.fct_us_p99),
            format!("{:+.2}%", row.others_slowdown_pct),
            format!("{:.0}%", 100.0 * report.tiers[1].utilisation_mean),
        ]);
    }
    table
}

#[derive(Serialize)]
struct Json {
    seed: u64,
    scale: f64,
    servers: u32,
    intensive_servers: u32,
    jobs_per_server: u32,
    evict_cores: u32,
    rows: Vec<JsonRow>,
}

#[derive(Serialize)]
struct JsonRow {
    module: &'static str,
    job: &'static str,
    local_ratio: f64,
    bandwidth: f64,
    jct_s: f64,
    speedup: f64,
    blocked_s: f64,
    reading_s: f64,
    uef_count: u64,
    ref_count: u64,
    fct_us: Fct,
    others_slowdown_pct: f64,
    network: Vec<JsonTier>,
}

#[derive(Serialize)]
struct Fct {
    mean: f64,
    p99: f64,
}

#[derive(Serialize)]
struct JsonTier {
    tier: &'static str,
    utilisation_mean: f64,
    utilisation_max: f64,
    wait_us_mean: f64,
}

fn json(args: &Args, rows: &[Row]) -> Json {
    // A recorded trace is no job of the list.
    let job = |row: &Row| match args.trace {
        Some(_) => "trace",
        None => row.job.name(),
    };
    Json {
        seed: args.seed,
        scale: args.scale,
        servers: args.leaves * args.servers_per_leaf,
        intensive_servers: args.intensive,
        jobs_per_server: args.jobs_per_server,
        evict_cores: args.evict_cores,
        rows: rows
            .iter()
            .map(|row| JsonRow {
                module: row.module.name(),
                job: job(row),
                local_ratio: row.local_ratio,
                bandwidth: row.bandwidth,
                jct_s: row.report.jct_s,
                speedup: row.speedup,
                blocked_s: row.report.blocked_s,
                reading_s: row.report.reading_s,
                uef_count: row.report.uef_count,
                ref_count: row.report.ref_count,
                fct_us: Fct {
                    mean: row.report.fct_us_mean,
                    p99: row.report.fct_us_p99,
                },
                others_slowdown_pct: row.others_slowdown_pct,
                network: Tier::ALL
                    .into_iter()
                    .zip(row.report.tiers)
                    .map(|(tier, load)| JsonTier {
                        tier: tier.name(),
                        utilisation_mean: load.utilisation_mean,
                        utilisation_max: load.utilisation_max,
                        wait_us_mean: load.wait_us_mean,
                    })
                    .collect(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn message(words: &[&str]) -> String {
        let words = ["net"].iter().chain(words);
        let cli = Cli::try_parse_from(words).expect("clap takes it");
        sweep(&cli.args).expect_err("it is refused").message
    }

    #[test]
    fn bad_input_gets_a_message_that_names_the_field() {
        let cases: &[(&[&str], &str)] = &[
            (&["--leaves", "0"], "leaves is 0: use 1 to 256"),
            (
                &["--servers-per-leaf", "0"],
                "servers-per-leaf is 0: use 1 to 256",
            ),
            (
                &["--local", "150%"],
                "local is 1.5: use a ratio from 0.01 to 1",
            ),
            (
                &["--local", "NaN"],
                "local is NaN: use a ratio from 0.01 to 1",
            ),
            (
                &["--local", "much"],
                "local is much: write a ratio such as 0.4, 40% or 2/5",
            ),
            (
                &["--bandwidth", "1/0"],
                "bandwidth is inf: use a ratio from 0.001 to 1",
            ),
            (
                &["--fabric-gbps", "NaN"],
                "fabric-gbps is NaN: use 0.01 to 10000",
            ),
            (
                &["--module", "fast"],
                "module is fast: use fixed, threshold, urgency, both or all",
            ),
            (
                &["--job", "doom"],
                "job is doom: use linpack, kmeans, pagerank, quicksort or all",
            ),
            (&["--intensive", "0"], "intensive is 0: use 1 to 96"),
            (&["--scale", "0"], "scale is 0: use 1 to 1000"),
            (
                &["--propagation-us", "200000"],
                "propagation-us is 200000: use at most 100000",
            ),
            (
                &["--trace", "/nowhere/trace.toml"],
                "trace /nowhere/trace.toml cannot be read: No such file or directory (os error 2)",
            ),
        ];
        for (words, expected) in cases {
            assert_eq!(message(words), *expected, "{words:?}");
        }
    }

    #[test]
    fn ratios_read_as_people_write_them() {
        for (text, value) in [("0.4", 0.4), ("40%", 0.4), ("2/5", 0.4), ("1/8", 0.125)] {
            assert_eq!(ratio("local", text).unwrap(), value);
        }
    }
}
