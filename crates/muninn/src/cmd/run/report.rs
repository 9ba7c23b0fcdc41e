//! What a run took: four lines for people (`--stats`), all of it for scripts (`--json FILE`).
//!
//! What the run would have taken with all memory here is the time less that in which faults were answered.
//! Known limits: what a thread takes to wake up is not in that, nor what caches lose; for several processes
//! nothing is said, and where threads waited at the same time, or one worked while another waited, it is too
//! little.

use super::supervise::End;
use crate::failure::Failure;
use crate::ui::Table;
use muninn_job::{Job, Message, Snapshot};
use muninn_policy::kinds::{Kinds, MemoryKind};
use muninn_policy::take_over;
use muninn_types::{Bytes, format_duration};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run that took more times what it would have taken is not put into a number.
const SLOWDOWN_MAX: f64 = 20.0;

/// A finished run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub command: Vec<String>,
    pub exit_code: u8,
    /// The signal that ended the program, if one did.
    pub signal: Option<String>,
    pub seconds: f64,
    pub user_s: f64,
    pub system_s: f64,
    /// The limit at the end; `muninn ctl limit` may have changed it.
    pub limit_bytes: u64,
    /// The most memory at one time: near and far together, near, far.
    pub peak_bytes: u64,
    pub local_peak_bytes: u64,
    pub far_peak_bytes: u64,
    /// Processes that had the runtime in them.
    pub processes: u64,
    pub pool: Vec<String>,
    pub embedded: bool,
    pub layout: String,
    /// Pages were sealed before they left.
    pub sealed: bool,
    pub prefetch: String,
    pub evict: String,
    pub threshold: String,
    /// Whether runtimes were told of the limit (`--tune`), and what the first was told, or would have been.
    pub tuned: bool,
    pub advice: Option<String>,
    /// Why a process was ended by Muninn: the last words of its runtime, or what the launcher saw.
    pub message: Option<String>,
    /// The most that was resident of each kind of memory.
    pub kinds: Vec<KindShown>,
    pub counters: Snapshot,
}

/// A kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindShown {
    pub kind: String,
    pub resident_peak_bytes: u64,
    /// Whether it can be far; else it stays near.
    pub paged: bool,
    pub why: String,
}

/// What the report needs that is not in the job's page.
#[derive(Debug)]
pub struct Ran {
    pub command: Vec<String>,
    pub end: End,
    pub time: Duration,
    pub cpu: (Duration, Duration),
    pub embedded: bool,
    /// What was lost with the embedded server.
    pub lost: Option<String>,
    /// The most that all processes were seen to hold of each kind of memory.
    pub kinds: Kinds,
}

impl Report {
    pub fn new(job: &Job, ran: Ran) -> Result<Report, Failure> {
        let config = job.config().map_err(Failure::failed)?;
        let (peaks, counters) = (job.peaks(), job.total());
        Ok(Report {
            command: ran.command,
            exit_code: ran.end.exit_code(),
            signal: ran.end.signal_name(),
            seconds: ran.time.as_secs_f64(),
            user_s: ran.cpu.0.as_secs_f64(),
            system_s: ran.cpu.1.as_secs_f64(),
            limit_bytes: job.limit().0,
            peak_bytes: peaks.all.0,
            local_peak_bytes: peaks.local.0,
            far_peak_bytes: peaks.far.0,
            processes: job.attached(),
            pool: job.pool(&config),
            embedded: ran.embedded,
            layout: config.layout.to_string(),
            sealed: config.seal,
            prefetch: config.prefetch.to_string(),
            evict: config.evict.to_string(),
            threshold: config.threshold.to_string(),
            tuned: config.tune,
            advice: job.advice(),
            message: ran.lost.or_else(|| Some(describe(&job.message()?))),
            kinds: kinds_shown(&ran.kinds, &counters),
            counters,
        })
    }

    /// What `--tune` would have done for a program that had memory far.
    pub fn unheeded_advice(&self) -> Option<&str> {
        let would_help = !self.tuned && self.counters.adopted_bytes > 0;
        self.advice.as_deref().filter(|_| would_help)
    }

    /// The four lines of `--stats`: time, memory, faults, and what limit would have been enough.
    pub fn lines(&self) -> Vec<String> {
        let time = seconds(self.seconds);
        if self.processes == 0 {
            return vec![format!("time    {time}; without far memory")];
        }
        if self.counters.adopted_bytes == 0 {
            let mut lines = vec![format!(
                "time    {time}; it had all of its memory here, as without Muninn"
            )];
            // One that ends at once is not looked at.
            if self.peak_bytes > 0 {
                lines.push(self.memory_line());
            }
            return lines;
        }
        vec![
            self.time_line(),
            self.memory_line(),
            self.faults_line(),
            self.limit_line(),
        ]
    }

    /// The time, and what of it far memory has cost. Of several processes nobody knows which of their waits
    /// were at the same time.
    fn time_line(&self) -> String {
        let (time, waited_s) = (seconds(self.seconds), self.waited_s());
        let waited = format!("{} of it for pages", seconds(waited_s));
        if self.processes > 1 {
            let waited = format!("{} for pages", seconds(waited_s));
            return format!(
                "time    {time}; its {} processes waited {waited} in all",
                self.processes
            );
        }
        let rest_s = self.seconds - waited_s;
        // More than that would be a guess from too little.
        if rest_s < self.seconds / SLOWDOWN_MAX {
            return format!("time    {time}, {waited}: nearly all");
        }
        format!(
            "time    {time}, {waited}; with all memory here about {} (this was {:.1} times that)",
            seconds(rest_s),
            self.seconds / rest_s
        )
    }

    fn memory_line(&self) -> String {
        let all = Bytes(self.peak_bytes).rounded();
        let here = Bytes(self.local_peak_bytes).rounded();
        let limit = Bytes(self.limit_bytes).rounded();
        let far = match (self.far_peak_bytes, self.sealed) {
            (0, _) => "none far".to_string(),
            (far, false) => format!("{} far", Bytes(far).rounded()),
            (far, true) => format!("{} far, sealed", Bytes(far).rounded()),
        };
        let repaired = match self.counters.extents_repaired {
            0 => String::new(),
            1 => "; 1 extent copied to another server".to_string(),
            copies => format!("; {copies} extents copied to other servers"),
        };
        format!("memory  {all} at most: {here} here (limit {limit}), {far}{repaired}")
    }

    fn faults_line(&self) -> String {
        let c = &self.counters;
        let of = |count: u64, what: &str, ns: u64| {
            format!(
                "{count} {what} ({})",
                format_duration(Duration::from_nanos(ns))
            )
        };
        let staged = c.faults_staged + c.faults_buffered;
        format!(
            "faults  {} in {}: {}, {}, {}; {} pages left",
            c.faults,
            format_duration(Duration::from_nanos(c.fault_ns)),
            of(c.faults_remote, "far", c.fault_far_ns),
            of(staged, "about to leave", c.fault_staged_ns),
            of(c.faults_zero, "first touches", c.fault_zero_ns),
            c.evicted,
        )
    }

    fn limit_line(&self) -> String {
        let enough = take_over::enough_for(Bytes(self.peak_bytes));
        match enough.0 > self.limit_bytes {
            true => format!("limit   --local {enough} would have kept all of it here"),
            // It was lower before, or memory grew too fast to be left alone.
            false => format!(
                "limit   {} is enough for all that it had",
                Bytes(self.limit_bytes).rounded()
            ),
        }
    }

    /// Time in which somebody waited for a page.
    fn waited_s(&self) -> f64 {
        Duration::from_nanos(self.counters.fault_ns).as_secs_f64()
    }
}

fn seconds(s: f64) -> String {
    format_duration(Duration::from_secs_f64(s.max(0.0)))
}

impl Report {
    /// All that was counted and is not 0, for `--stats=full`. The kinds of memory have a table of their own.
    pub fn counters_table(&self) -> Table {
        let mut table = Table::new(["counter", "value"]);
        let counted = self.counters.iter();
        for (name, value) in
            counted.filter(|(name, value)| *value > 0 && !name.starts_with("kind_"))
        {
            table.row([name.to_string(), value.to_string()]);
        }
        table
    }

    /// The kinds of memory, for `--stats=full`.
    pub fn kinds_table(&self) -> Table {
        let mut table = Table::new(["kind", "resident at most", "", "why"]);
        for kind in &self.kinds {
            table.row([
                kind.kind.clone(),
                Bytes(kind.resident_peak_bytes).rounded(),
                if kind.paged { "paged" } else { "near" }.to_string(),
                kind.why.clone(),
            ]);
        }
        table
    }
}

/// What was seen of all processes together, or of one that nobody saw together with the others.
fn kinds_shown(seen: &Kinds, counters: &Snapshot) -> Vec<KindShown> {
    let of_one = counters.kinds_peak();
    let shown = |kind: MemoryKind| KindShown {
        kind: kind.name().to_string(),
        resident_peak_bytes: seen.of(kind).max(of_one.of(kind)),
        paged: kind.is_paged(),
        why: kind.why().to_string(),
    };
    MemoryKind::ALL.map(shown).into()
}

pub fn describe(message: &Message) -> String {
    format!("process {}: {}", message.pid, message.text)
}

/// The file for `--json`, opened before the program starts: that it cannot be written should not
/// come out after hours of work.
#[derive(Debug)]
pub struct JsonFile {
    file: File,
    path: PathBuf,
}

impl JsonFile {
    pub fn create(path: &Path) -> Result<JsonFile, Failure> {
        if path == Path::new("-") {
            return Err(Failure::usage(
                "--json - would mix with the program's own output: name a file, such as \
                 --json run.json",
            ));
        }
        let file = File::create(path).map_err(|error| {
            Failure::usage(format!(
                "cannot write {}: {error}; name another file with --json",
                path.display()
            ))
        })?;
        Ok(JsonFile {
            file,
            path: path.to_path_buf(),
        })
    }

    pub fn write(mut self, report: &Report) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(report).map_err(Failure::failed)?;
        writeln!(self.file, "{text}").map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            command: vec!["sort".to_string()],
            exit_code: 0,
            signal: None,
            seconds: 2.5,
            user_s: 2.0,
            system_s: 0.25,
            limit_bytes: 256 << 20,
            peak_bytes: 1 << 30,
            local_peak_bytes: 256 << 20,
            far_peak_bytes: 768 << 20,
            processes: 1,
            pool: vec!["unix:/run/m.sock".to_string()],
            embedded: true,
            layout: "single".to_string(),
            sealed: false,
            prefetch: "adaptive".to_string(),
            evict: "s3-fifo".to_string(),
            threshold: "adaptive".to_string(),
            tuned: false,
            advice: None,
            message: None,
            kinds: kinds_shown(&Kinds([3 << 20; 13]), &Snapshot::default()),
            counters: Snapshot {
                adopted_bytes: 1,
                faults: 15,
                faults_zero: 1,
                faults_staged: 2,
                faults_buffered: 3,
                faults_remote: 4,
                faults_woken: 5,
                prefetched: 60,
                fault_ns: 500_000_000,
                fault_far_ns: 450_000_000,
                fault_staged_ns: 30_000_000,
                fault_zero_ns: 15_000_000,
                evicted: 24,
                evicted_zero: 7,
                evicted_clean: 8,
                evicted_written: 9,
                ..Snapshot::default()
            },
        }
    }

    #[test]
    fn four_lines_say_what_it_meant() {
        assert_eq!(
            report().lines(),
            [
                "time    2.5s, 500ms of it for pages; with all memory here about 2s (this was 1.2 times that)",
                "memory  1.00GiB at most: 256MiB here (limit 256MiB), 768MiB far",
                "faults  15 in 500ms: 4 far (450ms), 5 about to leave (30ms), 1 first touches (15ms); 24 pages left",
                "limit   --local 1092MiB would have kept all of it here",
            ]
        );
        let full = report().counters_table().to_string();
        assert!(
            full.lines()
                .any(|line| line.starts_with("evicted_written") && line.ends_with(" 9"))
        );
        assert!(
            !full.contains("remaps"),
            "what did not happen is left out: {full}"
        );
        let table = report().kinds_table().to_string();
        let shared = table.lines().find(|line| line.contains("shared memory"));
        let words: Vec<&str> = shared.unwrap().split_whitespace().collect();
        assert_eq!(
            words[..4],
            ["shared", "memory", "3.00MiB", "near"],
            "{table}"
        );
        assert!(
            table.lines().any(|line| line.contains("  paged  brk")),
            "{table}"
        );
        let mut other = report();
        other.sealed = true;
        other.counters.extents_repaired = 3;
        other.processes = 2;
        other.limit_bytes = 2 << 30;
        let lines = other.lines();
        assert_eq!(
            lines[0],
            "time    2.5s; its 2 processes waited 500ms for pages in all"
        );
        let memory = ", 768MiB far, sealed; 3 extents copied to other servers";
        assert!(lines[1].ends_with(memory), "{lines:?}");
        let limit = "limit   2.00GiB is enough for all that it had";
        assert_eq!(lines[3], limit);
        let mut slow = report();
        slow.counters.fault_ns = 2_450_000_000;
        assert_eq!(
            slow.lines()[0],
            "time    2.5s, 2.45s of it for pages: nearly all"
        );
        let mut advised = report();
        assert_eq!(advised.unheeded_advice(), None);
        advised.advice = Some("with --tune, less".to_string());
        assert_eq!(advised.unheeded_advice(), Some("with --tune, less"));
        advised.counters.adopted_bytes = 0;
        assert_eq!(advised.unheeded_advice(), None, "it stayed local");
        advised = report();
        (advised.tuned, advised.advice) = (true, Some("it was given less".to_string()));
        assert_eq!(advised.unheeded_advice(), None, "that was said already");
        let mut fits = report();
        fits.counters = Snapshot::default();
        fits.far_peak_bytes = 0;
        assert_eq!(
            fits.lines(),
            [
                "time    2.5s; it had all of its memory here, as without Muninn",
                "memory  1.00GiB at most: 256MiB here (limit 256MiB), none far",
            ]
        );
        fits.processes = 0;
        assert_eq!(fits.lines(), ["time    2.5s; without far memory"]);
        let text = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report());
    }
}
