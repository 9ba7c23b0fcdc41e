//! `muninn trace`: which pages a program touches, as far as they go far.
//!
//! The program runs with a small window of local memory, and every page fault of its own is written down
//! with its page, in order, by the kernel and from outside ([`muninn_sys::perf`]). Known limits: a page that
//! stays in the window is not seen again, so a trace tells about local memory that is several times larger
//! than the window; a page that is read first and written later counts as read; memory that is given
//! back and taken again counts as if it had been kept.

mod sheet;

use crate::cmd::run::limit::FLOOR;
use crate::failure::{Exit, Failure, Outcome};
use crate::launched::Launched;
use crate::ui;
use muninn_sys::perf::{PerfError, Recorder};
use muninn_types::Bytes;
use serde::Serialize;
use sheet::Sheet;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the rings are emptied: they hold 50,000 faults of each CPU.
const DRAIN: Duration = Duration::from_millis(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muninn trace --out sort.trace -- sort --parallel=1 big.txt
  muninn trace --out pagerank.trace -- java -Xmx400m -cp . PageRank
  muninn sim evict --trace sort.trace --local 50%,25% --prefetch none

The program runs slowly: nearly every page that it comes back to is a fault. Needs root.")]
pub struct Args {
    /// File for the trace, which 'muninn sim evict --trace' reads
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,

    /// Local memory of the program: what it touches inside of this is not seen
    #[arg(long, value_name = "SIZE", default_value_t = FLOOR)]
    pub window: Bytes,

    /// Faults that are kept (24 bytes each); of a longer run the begin
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub most: usize,

    /// Print one JSON object instead of a line
    #[arg(long)]
    pub json: bool,

    /// The program and its arguments; its output is dropped
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Serialize)]
struct Traced {
    file: PathBuf,
    visits: usize,
    pages: usize,
    writes: usize,
    threads: usize,
    /// Not in the file: the kernel had no room for them, or `--most` was reached.
    lost: u64,
    dropped: u64,
    seconds: f64,
    exit_code: u8,
}

pub fn run(args: &Args) -> Outcome {
    let file = File::create(&args.out).map_err(|error| {
        let path = args.out.display();
        Failure::usage(format!(
            "cannot write {path}: {error}; name another file with --out"
        ))
    })?;
    // Whatever is fetched ahead, or kept because it was wanted once, would not be seen.
    let options = ["--prefetch", "none", "--evict", "fifo", "--no-seal"];
    let options = options.map(OsString::from).to_vec();
    let launched = Launched::new(options, args.command.clone())?.interruptible()?;
    let mut recorder = Recorder::of_children().map_err(unsupported)?;
    let bar = ui::progress(1, "the program runs, slowly");
    let ended = AtomicBool::new(false);
    let (report, sheet, lost) = std::thread::scope(|scope| {
        let recording = scope.spawn(|| {
            let mut sheet = Sheet::new(args.most);
            loop {
                // Asked first: what came before its end is there then.
                let last = ended.load(Ordering::Acquire);
                recorder.drain(|record| sheet.hear(record));
                if last {
                    return (sheet, recorder.lost());
                }
                std::thread::sleep(DRAIN);
            }
        });
        let report = launched.run(&args.window.to_string(), Stdio::null());
        ended.store(true, Ordering::Release);
        let (sheet, lost) = recording.join().expect("recording does not panic");
        (report, sheet, lost)
    });
    bar.finish_and_clear();
    let report = report?;
    let dropped = sheet.dropped;
    let visits = sheet.visits();
    sheet::write(&visits, &mut BufWriter::new(file))?;
    let distinct =
        |of: fn(&sheet::Visit) -> u64| visits.iter().map(of).collect::<HashSet<_>>().len();
    let traced = Traced {
        file: args.out.clone(),
        visits: visits.len(),
        pages: distinct(|visit| visit.page),
        writes: visits.iter().filter(|visit| visit.write).count(),
        threads: distinct(|visit| u64::from(visit.thread)),
        lost,
        dropped,
        seconds: report.seconds,
        exit_code: report.exit_code,
    };
    if args.json {
        ui::print_json(&traced);
    } else {
        ui::print_out(&line(&traced));
    }
    match report.exit_code {
        0 => Ok(()),
        code => Err(Failure::failed(format!(
            "the program ended with {code}; the trace is of what it did until then"
        ))),
    }
}

fn unsupported(error: PerfError) -> Failure {
    Failure::new(Exit::Unsupported, error)
}

fn line(traced: &Traced) -> String {
    let Traced {
        visits,
        pages,
        writes,
        threads,
        lost,
        dropped,
        ..
    } = traced;
    let file = traced.file.display();
    let missing = match lost + dropped {
        0 => String::new(),
        missing => format!("; {missing} more are not in it"),
    };
    format!(
        "wrote {file}: {visits} faults ({writes} to write) on {pages} pages by {threads} threads{missing}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_missing() {
        let mut traced = Traced {
            file: PathBuf::from("a.trace"),
            visits: 10,
            pages: 5,
            writes: 4,
            threads: 1,
            lost: 0,
            dropped: 0,
            seconds: 1.0,
            exit_code: 0,
        };
        let whole = "wrote a.trace: 10 faults (4 to write) on 5 pages by 1 threads";
        assert_eq!(line(&traced), whole);
        (traced.lost, traced.dropped) = (1, 2);
        assert_eq!(line(&traced), format!("{whole}; 3 more are not in it"));
    }
}
