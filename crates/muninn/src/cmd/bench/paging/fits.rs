//! What Muninn costs a program that does not need it.
//!
//! The same program with and without `muninn run`, in turn, with a limit that it never nears. Its own
//! time is compared (from its first page to its last access); what the launcher takes to start is
//! told apart. Medians, because the difference to be seen is below the noise of one run.

use super::{job, why};
use crate::cmd::bench::arena::{Arena, Backend};
use crate::cmd::bench::median;
use crate::cmd::workload::paging::{Pattern, Report};
use crate::failure::Failure;
use crate::ui::Progress;
use muninn_types::Bytes;
use serde::Serialize;
use std::fmt;

/// Many passes over memory that is there: the time is the program's, not the start's.
const PASSES: f64 = 60.0;

#[derive(Clone, Debug, Serialize)]
pub struct Fits {
    pub rounds: u32,
    pub plain_seconds: f64,
    pub muninn_seconds: f64,
    /// muninn ÷ plain.
    pub ratio: f64,
    /// What `muninn run` takes before and after the program.
    pub launch_ms: f64,
    /// Memory that was taken over; nothing should be.
    pub adopted_bytes: Option<f64>,
}

impl fmt::Display for Fits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "everything fits: {:.3} s with Muninn, {:.3} s without (medians of {}): {:+.2} %, \
             and {:.0} ms to start and end",
            self.muninn_seconds,
            self.plain_seconds,
            self.rounds,
            (self.ratio - 1.0) * 100.0,
            self.launch_ms,
        )
    }
}

pub fn measure(arena: &Arena, size: Bytes, rounds: u32, bar: &Progress) -> Result<Fits, Failure> {
    let job = job(Pattern::RandRead, size, 1, PASSES)?;
    // Far from the threshold, which lies a little below the limit.
    let limit = Bytes(size.0 * 2 + (128 << 20));
    let mut times = [Vec::new(), Vec::new()];
    let mut around = [Vec::new(), Vec::new()];
    let mut adopted = None;
    for round in 0..rounds {
        // Each goes first as often as the other.
        let mut order = [(0, Backend::Plain), (1, Backend::Shm)];
        if round % 2 == 1 {
            order.reverse();
        }
        for (n, backend) in order {
            bar.set_message(format!("everything fits, {}", backend.name()));
            let ran = arena.run(backend, limit, &job)?;
            bar.inc(1);
            let report: Report = match serde_json::from_str(&ran.out) {
                Ok(report) if ran.end.is_good() => report,
                _ => {
                    let (name, why) = (backend.name(), why(&ran));
                    return Err(Failure::failed(format!(
                        "the program that fits failed on {name}: {why}"
                    )));
                }
            };
            times[n].push(report.seconds);
            around[n].push(ran.seconds - report.seconds);
            adopted = ran.counter("adopted_bytes").or(adopted);
        }
    }
    let [plain, muninn] = &mut times;
    let (plain, muninn) = (median(plain), median(muninn));
    let [alone, launched] = &mut around;
    Ok(Fits {
        rounds,
        plain_seconds: plain,
        muninn_seconds: muninn,
        ratio: muninn / plain,
        launch_ms: (median(launched) - median(alone)) * 1e3,
        adopted_bytes: adopted,
    })
}
