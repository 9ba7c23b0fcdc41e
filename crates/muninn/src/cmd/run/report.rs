//! What a run took: one line for people (`--stats`), all of it for scripts (`--json FILE`).

use super::supervise::End;
use crate::failure::Failure;
use crate::ui::Table;
use muninn_job::{Job, Message, Snapshot};
use muninn_policy::kinds::{Kinds, MemoryKind};
use muninn_types::{Bytes, format_duration};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
            message: ran.lost.or_else(|| Some(describe(&job.message()?))),
            kinds: kinds_shown(&ran.kinds, &counters),
            counters,
        })
    }

    /// The line of `--stats`.
    pub fn line(&self) -> String {
        let c = &self.counters;
        let time = format_duration(Duration::from_secs_f64(self.seconds));
        if self.processes == 0 {
            return format!("{time}; without far memory");
        }
        let head = format!(
            "{time}; peak {}, local {} of {}, far {}",
            Bytes(self.peak_bytes).rounded(),
            Bytes(self.local_peak_bytes).rounded(),
            Bytes(self.limit_bytes).rounded(),
            Bytes(self.far_peak_bytes).rounded(),
        );
        if c.adopted_bytes == 0 {
            return format!("{head}; it stayed local all the time");
        }
        let repaired = match c.extents_repaired {
            0 => String::new(),
            copies => format!("; {copies} extents copied to other servers"),
        };
        let sealed = if self.sealed { " (sealed)" } else { "" };
        format!(
            "{head}{sealed}; faults {} (zero {}, staged {}, buffered {}, far {}, woken {}); prefetched {}, \
             hits {}; out {} (zero {}, clean {}, written {}); blocked {}{repaired}",
            c.faults,
            c.faults_zero,
            c.faults_staged,
            c.faults_buffered,
            c.faults_remote,
            c.faults_woken,
            c.prefetched,
            c.prefetch_hits,
            c.evicted,
            c.evicted_zero,
            c.evicted_clean,
            c.evicted_written,
            format_duration(Duration::from_nanos(c.blocked_ns)),
        )
    }
}

impl Report {
    /// The table of `--stats=full`.
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
                prefetch_hits: 50,
                evicted: 24,
                evicted_zero: 7,
                evicted_clean: 8,
                evicted_written: 9,
                blocked_ns: 1_500_000,
                ..Snapshot::default()
            },
        }
    }

    #[test]
    fn one_line_says_where_the_pages_were() {
        assert_eq!(
            report().line(),
            "2.5s; peak 1.00GiB, local 256MiB of 256MiB, far 768MiB; faults 15 (zero 1, staged 2, \
             buffered 3, far 4, woken 5); prefetched 60, hits 50; out 24 (zero 7, clean 8, written \
             9); blocked 1.5ms"
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
        let mut sealed = report();
        sealed.sealed = true;
        assert!(sealed.line().contains(", far 768MiB (sealed); faults 15"));
        let mut fits = report();
        fits.counters = Snapshot::default();
        assert!(fits.line().ends_with("; it stayed local all the time"));
        fits.processes = 0;
        assert_eq!(fits.line(), "2.5s; without far memory");
        let text = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report());
    }
}
