//! `muninn sim evict`: every eviction and prefetch policy on the same page accesses.

use crate::failure::{Failure, Outcome};
use crate::ui;
use muninn_policy::evict::EvictPolicy;
use muninn_policy::prefetch::PrefetchPolicy;
use muninn_sim::evict::trace::TraceKind;
use muninn_sim::evict::{self, Config, EvictSimError, Row, TraceSource, charts, summary};
use muninn_types::Percent;
use serde::Serialize;
use std::path::PathBuf;

/// Up to this many rows are printed one by one; more are summed up in tables.
const ROWS_PRINTED_MAX: usize = 60;
/// Pairs of policies in the last table.
const PAIRS_PRINTED: usize = 8;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn sim evict
  muninn sim evict --trace zipf,loop --local 20%,50%,80% --evict fifo,s3-fifo --prefetch none
  muninn sim evict --trace accesses.txt --json
  muninn sim evict --plot charts/

A trace file has one visit a line, 'PAGE [r|w] [THREAD]', the page as a decimal or 0x number.")]
pub struct Args {
    /// Traces, by name (sequential, loop, zipf, scan-plus-hot, phase-change, random, stride,
    /// interleaved, chase) or as files; 'all' for all names
    #[arg(
        long,
        value_name = "NAME|FILE,…",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub trace: Vec<String>,

    /// Pages of a generated trace
    #[arg(long, value_name = "N", default_value_t = 8_192)]
    pub pages: u32,

    /// Accesses of a generated trace, after each page was touched once
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub accesses: u64,

    /// Local memory, as shares of the pages touched
    #[arg(
        long,
        value_name = "PCT,…",
        value_delimiter = ',',
        default_value = "25%,50%,75%"
    )]
    pub local: Vec<String>,

    /// Eviction policies: fifo, random, segmented-fifo, s3-fifo, sieve; 'all' for all
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub evict: Vec<String>,

    /// Prefetch policies: none, fixed, adaptive, trend, slot; 'all' for all
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub prefetch: Vec<String>,

    /// Share of local memory in which victims wait before they leave; what the pager has if not given
    #[arg(long, value_name = "PCT")]
    pub staging: Option<String>,

    /// Seed of the traces and of random eviction
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,

    /// Write SVG charts into this folder
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    seed: u64,
    pages: u32,
    accesses: u64,
    /// If it is not the pager's own.
    staging_ratio: Option<f64>,
    default_evict: String,
    default_prefetch: String,
    rows: Vec<Row>,
    pairs: Vec<summary::Pair>,
}

pub fn run(args: &Args) -> Outcome {
    let config = config(args)?;
    let bar = ui::progress(evict::cells(&config) as u64, "replaying traces");
    let rows = evict::run(&config, &|| bar.inc(1)).map_err(failure)?;
    bar.finish_and_clear();
    let charts = match &args.plot {
        Some(folder) => charts::write(&rows, folder).map_err(Failure::failed)?,
        None => Vec::new(),
    };
    let pairs = summary::pairs(&rows);
    if args.json {
        ui::print_json(&Report {
            seed: config.seed,
            pages: config.pages,
            accesses: config.accesses,
            staging_ratio: config.staging.map(Percent::ratio),
            default_evict: EvictPolicy::default().to_string(),
            default_prefetch: PrefetchPolicy::default().to_string(),
            rows,
            pairs,
        });
        return Ok(());
    }
    if rows.len() <= ROWS_PRINTED_MAX {
        ui::print_out(&row_table(&rows).to_string());
        ui::print_out(&format!(
            "\nWhich pages the staged hits are: how they had come, and accesses (medians) from then until\n\
             they were staged, and until they were wanted\n\n{}",
            staged_table(&rows)
        ));
    } else {
        print_summary(&rows, &pairs);
    }
    for chart in charts {
        ui::print_out(&format!("wrote {}", chart.display()));
    }
    Ok(())
}

/// A wrong value is the caller's to mend; a trace file that cannot be read as well.
fn failure(error: EvictSimError) -> Failure {
    Failure::usage(error)
}

fn config(args: &Args) -> Result<Config, Failure> {
    let mut traces = Vec::new();
    for name in &args.trace {
        match (name.as_str(), name.parse::<TraceKind>()) {
            ("all", _) => traces.extend(TraceKind::ALL.map(TraceSource::Generated)),
            (_, Ok(kind)) => traces.push(TraceSource::Generated(kind)),
            // Anything that looks like a path, or is one, is a file.
            (text, Err(_)) if text.contains(['/', '.']) || PathBuf::from(text).exists() => {
                traces.push(TraceSource::File(PathBuf::from(text)));
            }
            (_, Err(error)) => {
                return Err(Failure::usage(format!("--trace: {error}, or a file")));
            }
        }
    }
    let local = args.local.iter().map(|text| percent("local", text));
    Ok(Config {
        traces,
        pages: args.pages,
        accesses: args.accesses,
        local: local.collect::<Result<_, _>>()?,
        evict: named("evict", &args.evict, &EvictPolicy::ALL)?,
        prefetch: named("prefetch", &args.prefetch, &PrefetchPolicy::ALL)?,
        staging: args
            .staging
            .as_deref()
            .map(|text| percent("staging", text))
            .transpose()?,
        seed: args.seed,
    })
}

/// A share; the % sign may be left out.
fn percent(field: &str, text: &str) -> Result<Percent, Failure> {
    let text = text.trim();
    let with_sign = format!("{}%", text.trim_end_matches('%').trim_end());
    let parsed = with_sign.parse();
    parsed.map_err(|_| {
        Failure::usage(format!(
            "--{field}: '{text}' is not a percentage: write a number from 0 to 100 and a % sign, such as 50%"
        ))
    })
}

fn named<T>(field: &str, names: &[String], all: &[T]) -> Result<Vec<T>, Failure>
where
    T: std::str::FromStr<Err: std::fmt::Display> + Copy,
{
    let mut chosen = Vec::new();
    for name in names {
        if name == "all" {
            chosen.extend_from_slice(all);
        } else {
            let parsed = name.parse();
            chosen.push(parsed.map_err(|e| Failure::usage(format!("--{field}: {e}")))?);
        }
    }
    Ok(chosen)
}

fn row_table(rows: &[Row]) -> ui::Table {
    let mut table = ui::Table::new([
        "trace",
        "local",
        "evict",
        "prefetch",
        "misses",
        "miss %",
        "÷ optimum",
        "staged hits",
        "accuracy",
        "coverage",
        "pages in",
        "pages out",
        "run",
        "ns shm",
        "ns tcp",
    ]);
    for r in rows {
        table.row([
            r.trace.clone(),
            format!("{}%", r.local_ratio * 100.0),
            r.evict.clone(),
            r.prefetch.clone(),
            r.misses.to_string(),
            format!("{:.2}", r.miss_ratio * 100.0),
            optional(r.ratio_to_optimum),
            r.staged_hits.to_string(),
            optional(r.prefetch_accuracy),
            optional(r.prefetch_coverage),
            r.pages_in.to_string(),
            r.pages_out.to_string(),
            optional(r.run_pages_mean),
            format!("{:.0}", r.ns_per_access_shm),
            format!("{:.0}", r.ns_per_access_tcp),
        ]);
    }
    table
}

fn staged_table(rows: &[Row]) -> ui::Table {
    let mut table = ui::Table::new([
        "trace",
        "local",
        "evict",
        "prefetch",
        "staged hits",
        "first touch",
        "from far",
        "ahead",
        "staged hit",
        "to write",
        "stayed",
        "waited",
    ]);
    for r in rows {
        let staged = &r.staged;
        let share = |part: u64| match r.staged_hits {
            0 => "-".to_string(),
            all => format!("{:.0}%", 100.0 * part as f64 / all as f64),
        };
        let median = |age: Option<u64>| age.map_or("-".to_string(), |age| format!("≤ {age}"));
        table.row([
            r.trace.clone(),
            format!("{}%", r.local_ratio * 100.0),
            r.evict.clone(),
            r.prefetch.clone(),
            r.staged_hits.to_string(),
            share(staged.first_touch),
            share(staged.demand),
            share(staged.prefetch),
            share(staged.staged_hit),
            share(staged.writes),
            median(staged.stayed_median),
            median(staged.waited_median),
        ]);
    }
    table
}

fn optional(value: Option<f64>) -> String {
    value.map_or("-".to_string(), |v| format!("{v:.2}"))
}

/// Three tables: misses against the optimum, cost by prefetch policy, and the best pairs.
fn print_summary(rows: &[Row], pairs: &[summary::Pair]) {
    let traces = charts::distinct(rows.iter().map(|r| r.trace.as_str()));
    let evicts = charts::distinct(rows.iter().map(|r| r.evict.as_str()));
    let prefetches = charts::distinct(rows.iter().map(|r| r.prefetch.as_str()));
    let of = |trace: &str, evict: &str, prefetch: &str| -> Vec<&Row> {
        let fits = |r: &&Row| r.trace == trace && r.evict == evict && r.prefetch == prefetch;
        rows.iter().filter(fits).collect()
    };
    let none = PrefetchPolicy::None.name();
    let policy = EvictPolicy::default().name();
    let evict = if evicts.contains(&policy) {
        policy
    } else {
        evicts[0]
    };

    if prefetches.contains(&none) {
        let head = ["trace"].into_iter().chain(evicts.iter().copied());
        let mut table = ui::Table::new(head.chain(["(lru)"]));
        for trace in &traces {
            let mean = |ratios: Vec<f64>| {
                let mean = summary::geometric_mean(ratios.into_iter());
                optional(Some(mean).filter(|m| m.is_finite()))
            };
            let ratio = |evict: &&str| {
                let cells = of(trace, evict, none);
                mean(cells.iter().filter_map(|r| r.ratio_to_optimum).collect())
            };
            let lru = of(trace, evicts[0], none);
            let lru = lru.iter().filter(|r| r.optimum_misses > 0);
            let lru = mean(
                lru.map(|r| r.lru_misses as f64 / r.optimum_misses as f64)
                    .collect(),
            );
            let cells = evicts.iter().map(ratio).chain([lru]);
            table.row([trace.to_string()].into_iter().chain(cells));
        }
        ui::print_out(&format!(
            "Misses relative to the offline optimum, without prefetching; (lru) would have to see every\n\
             access\n\n{table}\n"
        ));
    }

    let mut table = ui::Table::new(std::iter::once("trace").chain(prefetches.iter().copied()));
    for trace in &traces {
        let cost = |prefetch: &&str| {
            let cells = of(trace, evict, prefetch);
            let shm = charts::mean(cells.iter().map(|r| r.ns_per_access_shm));
            let tcp = charts::mean(cells.iter().map(|r| r.ns_per_access_tcp));
            format!("{shm:.0} / {tcp:.0}")
        };
        table.row(std::iter::once(trace.to_string()).chain(prefetches.iter().map(cost)));
    }
    ui::print_out(&format!(
        "Estimated ns for each access, shm / tcp, with {evict}\n\n{table}\n"
    ));

    let mut table = ui::Table::new([
        "evict", "prefetch", "score", "shm", "tcp", "worst", "ns shm", "ns tcp",
    ]);
    for pair in pairs.iter().take(PAIRS_PRINTED) {
        table.row([
            pair.evict.clone(),
            pair.prefetch.clone(),
            format!("{:.3}", pair.score),
            format!("{:.3}", pair.score_shm),
            format!("{:.3}", pair.score_tcp),
            format!("{:.2}", pair.worst),
            format!("{:.0}", pair.time_ns_shm),
            format!("{:.0}", pair.time_ns_tcp),
        ]);
    }
    ui::print_out(&format!(
        "Best pairs: time relative to the best pair of each trace and local ratio, and time for each\n\
         access (100 ns of its own included); geometric means\n\n{table}\n\n\
         The pager's defaults: {} and {}. --json has every row.",
        EvictPolicy::default(),
        PrefetchPolicy::default()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn message(line: &[&str]) -> String {
        let line = Line::parse_from(std::iter::once(&"evict").chain(line));
        let failed = run(&line.args).unwrap_err();
        assert_eq!(failed.exit, crate::failure::Exit::Usage);
        failed.message
    }

    #[test]
    fn wrong_values_are_named_by_field() {
        assert_eq!(
            message(&["--trace", "zigzag"]),
            "--trace: 'zigzag' is not a trace: use sequential, loop, zipf, scan-plus-hot, phase-change, random, stride, interleaved or chase, or a file"
        );
        assert_eq!(
            message(&["--trace", "/no/such/trace"]),
            "--trace: cannot read /no/such/trace: No such file or directory (os error 2)"
        );
        assert_eq!(
            message(&["--pages", "0"]),
            "--pages: 0 is not between 1 and 16777216"
        );
        assert_eq!(
            message(&["--accesses", "0"]),
            "--accesses: 0 is not between 1 and 268435456"
        );
        for bad in ["101%", "-5%", "NaN", "half"] {
            assert_eq!(
                message(&[&format!("--local={bad}")]),
                format!(
                    "--local: '{bad}' is not a percentage: write a number from 0 to 100 and a % sign, such as 50%"
                )
            );
        }
        assert_eq!(
            message(&["--local", "0%"]),
            "--local: 0% of 8192 pages is less than one page"
        );
        assert_eq!(
            message(&["--evict", "lru"]),
            "--evict: 'lru' is not an eviction policy: use fifo, random, segmented-fifo, s3-fifo or sieve"
        );
        assert_eq!(
            message(&["--prefetch", "fixed,psychic"]),
            "--prefetch: 'psychic' is not a prefetch policy: use none, fixed, adaptive, trend or slot"
        );
        assert_eq!(
            message(&["--staging", "95%"]),
            "--staging: 95% leaves nothing for the program: give at most 90%"
        );
    }

    #[test]
    fn a_trace_file_with_a_bad_line_is_refused_by_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.txt");
        std::fs::write(&path, "1\n2 w\nthree\n").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(
            message(&["--trace", path]),
            format!("--trace: {path} line 3: 'three' is not a page number")
        );
    }

    #[test]
    fn a_chart_that_cannot_be_written_names_its_path() {
        let line = [
            "evict",
            "--trace=zipf",
            "--pages=100",
            "--accesses=100",
            "--plot=/dev/null/x",
        ];
        let line = Line::parse_from(line);
        let failed = run(&line.args).unwrap_err();
        assert_eq!(
            failed.message,
            "cannot write the chart /dev/null/x/evict-misses-zipf.svg: Not a directory (os error 20)"
        );
    }
}
