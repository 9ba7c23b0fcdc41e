//! `muninn profile`: how long a command runs with less and less local memory.
//!
//! The first runs have all memory local and tell the peak; the others have a part of it. The result
//! is a degradation profile (Cluster Far Memory § 4.4.1) that `muninn sim rack --profiles` and the
//! scheduler read, and a chart. Known limit: a command that does something else each time (a cache
//! that is warm the second time) has no profile; repeat and look at the spread.

mod output;

use crate::cmd::run::limit::FLOOR;
use crate::cmd::run::report::Report;
use crate::failure::{Failure, Outcome};
use crate::launched::{self, Launched};
use crate::ui;
use muninn_sys::proc::{self, RealProc};
use muninn_types::{Bytes, Percent};
pub use output::{Measured, Point};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;

/// More points than this say nothing new.
const RATIOS_MAX: usize = 16;
const REPEAT_MAX: u32 = 100;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn profile -- sort --parallel=1 big.txt
  muninn profile --ratios 75%,50%,25% --repeat 3 --name kmeans --out kmeans.toml -- python3 kmeans.py
  muninn sim rack --profiles kmeans.toml --mix kmeans=1

The command runs once more than there are ratios, times --repeat; its output is dropped. It must do
the same each time.")]
pub struct Args {
    /// Shares of the peak that stay local, besides 100%
    #[arg(
        long,
        value_name = "PCT,…",
        value_delimiter = ',',
        default_value = "80%,60%,50%,40%,25%"
    )]
    pub ratios: Vec<Percent>,

    /// Runs at each ratio; their median counts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub repeat: u32,

    /// Name of the job in the profile [default: the program's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Cores the job needs [default: as many as it kept busy]
    #[arg(long, value_name = "N")]
    pub cores: Option<u32>,

    /// File for the profile [default: profile-NAME.toml]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// File for the chart [default: that of the profile, ending in .svg]
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// Servers, separated by commas [default: one of its own for each run]
    #[arg(long, env = "MUNINN_POOL", value_name = "URL,…")]
    pub pool: Option<String>,

    /// File with the key that the servers were started with
    #[arg(long, env = "MUNINN_KEY_FILE", value_name = "PATH")]
    pub key_file: Option<PathBuf>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

pub fn run(args: &Args) -> Outcome {
    let ratios = ratios(args)?;
    let launched = Launched::new(options(args), args.command.clone())?.interruptible()?;
    let bar = ui::progress((ratios.len() as u64 + 1) * u64::from(args.repeat), "");
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let name = args.name.clone();
    let runs = Runs {
        launched: &launched,
        command: &args.command,
        name: name.unwrap_or_else(|| launched::name(&args.command)),
        ratios,
        repeat: args.repeat,
        headroom: Bytes::ZERO,
        cores: args.cores,
    };
    let measured = runs.measure(&|label| bar.set_message(label), &|| bar.inc(1))?;
    bar.finish_and_clear();
    let out = args.out.clone();
    let out =
        out.unwrap_or_else(|| PathBuf::from(format!("profile-{}.toml", measured.file_name())));
    let plot = args
        .plot
        .clone()
        .unwrap_or_else(|| out.with_extension("svg"));
    measured.write(&out, &plot)?;
    if args.json {
        ui::print_json(&measured.report(&out, &plot)?);
    } else {
        ui::print_out(&measured.describe(&out, &plot)?);
    }
    Ok(())
}

/// The runs of which a profile is made.
#[derive(Debug)]
pub struct Runs<'a> {
    pub launched: &'a Launched,
    pub command: &'a [OsString],
    pub name: String,
    /// Shares of the peak, from large to small, all of them below 1.
    pub ratios: Vec<Percent>,
    pub repeat: u32,
    /// Counted as memory of the job beside its peak.
    pub headroom: Bytes,
    pub cores: Option<u32>,
}

impl Runs<'_> {
    /// All memory local first, which tells the peak, then each share of it. `next` hears what is run, `done`
    /// of each run that is over.
    pub fn measure(&self, next: &dyn Fn(String), done: &dyn Fn()) -> Result<Measured, Failure> {
        let all = proc::meminfo(&RealProc).map_err(Failure::failed)?.total;
        let full = self.at(all, "all memory local".to_string(), next, done)?;
        let peak = full.iter().map(|report| report.peak_bytes).max();
        let peak = Bytes(peak.unwrap_or(0)) + self.headroom;
        check_peak(peak, &self.ratios)?;
        let mut points = vec![Point::new(1.0, &full)];
        for ratio in &self.ratios {
            let label = format!("{ratio} of memory local");
            let reports = self.at(ratio.of(peak), label, next, done)?;
            points.push(Point::new(ratio.ratio(), &reports));
        }
        let words = self.command.iter();
        Ok(Measured {
            name: self.name.clone(),
            command: words.map(|w| w.to_string_lossy().into()).collect(),
            peak,
            cores: self.cores.unwrap_or_else(|| points[0].cores_busy()),
            points,
        })
    }

    fn at(
        &self,
        limit: Bytes,
        label: String,
        next: &dyn Fn(String),
        done: &dyn Fn(),
    ) -> Result<Vec<Report>, Failure> {
        next(label);
        let mut reports = Vec::new();
        for _ in 0..self.repeat {
            let report = self.launched.run(&limit.to_string(), Stdio::null())?;
            reports.push(succeeded(report, limit)?);
            done();
        }
        Ok(reports)
    }
}

/// From large to small, each once.
fn ratios(args: &Args) -> Result<Vec<Percent>, Failure> {
    let mut ratios = args.ratios.clone();
    ratios.retain(|ratio| *ratio != Percent::FULL);
    ratios.sort_by(|a, b| b.cmp(a));
    ratios.dedup();
    if ratios.is_empty() || ratios.len() > RATIOS_MAX {
        return Err(Failure::usage(format!(
            "--ratios names {} shares below 100%: a profile needs from 1 to {RATIOS_MAX}, such as \
             75%,50%,25%",
            ratios.len()
        )));
    }
    if ratios.iter().any(|ratio| ratio.ratio() == 0.0) {
        return Err(Failure::usage(
            "--ratios names 0%: with no memory at all nothing runs",
        ));
    }
    if args.repeat == 0 || args.repeat > REPEAT_MAX {
        return Err(Failure::usage(format!(
            "--repeat {}: use 1 to {REPEAT_MAX}",
            args.repeat
        )));
    }
    Ok(ratios)
}

fn options(args: &Args) -> Vec<OsString> {
    let mut options = Vec::new();
    if let Some(pool) = &args.pool {
        options.extend(["--pool".into(), pool.into()]);
    }
    if let Some(path) = &args.key_file {
        options.extend(["--key-file".into(), path.into()]);
    }
    options
}

fn succeeded(report: Report, limit: Bytes) -> Result<Report, Failure> {
    if report.exit_code == 0 && report.message.is_none() {
        return Ok(report);
    }
    let how = match &report.signal {
        Some(signal) => format!("was ended by {signal}"),
        None => format!("ended with code {}", report.exit_code),
    };
    let message = report
        .message
        .map_or(String::new(), |message| format!(" ({message})"));
    Err(Failure::failed(format!(
        "the command {how}{message} with {} local: a profile needs one that succeeds; try it with \
         'muninn run --local {limit}'",
        limit.rounded()
    )))
}

fn check_peak(peak: Bytes, ratios: &[Percent]) -> Result<(), Failure> {
    let smallest = ratios.last().copied().unwrap_or(Percent::FULL);
    if smallest.of(peak) >= FLOOR {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the command's peak is {}, and {smallest} of that is less than the {FLOOR} that are needed: \
         give it more to do, or leave out the smallest --ratios",
        peak.rounded()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Args {
        let words = [&["profile"], words, &["--", "sort", "x"]].concat();
        Cli::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{e}"))
            .args
    }

    #[test]
    fn ratios_are_put_in_order_and_nonsense_is_refused() {
        let of = |words: &[&str]| ratios(&parse(words)).map_err(|failure| failure.message);
        let shown: Vec<String> = of(&["--ratios", "25%,100%,50%,25%"])
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown, ["50%", "25%"]);
        assert_eq!(of(&[]).unwrap().len(), 5);
        assert_eq!(
            of(&["--ratios", "100%"]).unwrap_err(),
            "--ratios names 0 shares below 100%: a profile needs from 1 to 16, such as 75%,50%,25%"
        );
        assert_eq!(
            of(&["--ratios", "0%"]).unwrap_err(),
            "--ratios names 0%: with no memory at all nothing runs"
        );
        assert_eq!(
            of(&["--repeat", "0"]).unwrap_err(),
            "--repeat 0: use 1 to 100"
        );
        assert_eq!(
            check_peak(Bytes::mib(40), &[Percent::from_ratio(0.25).unwrap()])
                .unwrap_err()
                .message,
            "the command's peak is 40.0MiB, and 25% of that is less than the 16MiB that are needed: \
             give it more to do, or leave out the smallest --ratios"
        );
    }
}
