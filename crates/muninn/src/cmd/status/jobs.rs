//! Jobs of `muninn run` on this machine: their limits, their processes, where their pages are.

use crate::ui::Table;
use muninn_job::{Found, Job, Snapshot};
use muninn_sys::clock;
use muninn_types::{Bytes, format_duration};
use serde::Serialize;
use std::time::Duration;

/// A job as it is shown.
#[derive(Debug, Serialize)]
pub struct JobShown {
    pub name: String,
    pub launcher: Option<u32>,
    /// False when the launcher was killed and processes of the job live on.
    pub launcher_alive: bool,
    pub limit_bytes: u64,
    pub peak_bytes: u64,
    pub pool: Vec<String>,
    pub layout: String,
    pub message: Option<String>,
    /// Everything that was counted so far, by processes that have ended as well.
    pub total: Snapshot,
    pub processes: Vec<ProcessShown>,
}

#[derive(Debug, Serialize)]
pub struct ProcessShown {
    pub pid: u32,
    /// What it waits for, and how long it has, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_ms: Option<u64>,
    #[serde(skip)]
    pub(crate) waits: Option<String>,
    #[serde(flatten)]
    pub counters: Snapshot,
}

/// All jobs that this user may see.
pub fn look() -> Vec<JobShown> {
    let mut jobs: Vec<JobShown> = muninn_job::find_all().iter().filter_map(shown).collect();
    jobs.sort_by_key(|job| job.launcher);
    jobs
}

fn shown(found: &Found) -> Option<JobShown> {
    let job: &Job = &found.job;
    // One that ends at this moment, or is damaged, is not worth an error here.
    let config = job.config().ok()?;
    let alive = job.places().filter(|place| place.is_alive());
    let processes = alive.map(|place| {
        let waiting = place.waiting();
        let waited = |since| Duration::from(clock::now().saturating_sub(since));
        ProcessShown {
            pid: place.pid(),
            waiting_for: waiting.map(|(reason, _)| reason.name()),
            waiting_ms: waiting.map(|(_, since)| waited(since).as_millis() as u64),
            waits: waiting.map(|(reason, since)| {
                format!(
                    "process {} has waited {} for {}",
                    place.pid(),
                    format_duration(waited(since)),
                    reason.describe()
                )
            }),
            counters: place.counters().snapshot(),
        }
    });
    Some(JobShown {
        launcher: job.launcher().map(|launcher| launcher.pid()),
        launcher_alive: found.launcher_alive,
        limit_bytes: job.limit().0,
        peak_bytes: job.peaks().all.0,
        pool: job.pool(&config),
        layout: config.layout.to_string(),
        name: config.name,
        message: job
            .message()
            .map(|message| crate::cmd::run::report::describe(&message)),
        total: job.total(),
        processes: processes.collect(),
    })
}

pub fn describe(jobs: &[JobShown]) -> String {
    if jobs.is_empty() {
        return "no jobs: 'muninn run --local SIZE -- CMD' starts one".to_string();
    }
    let mut table = Table::new([
        "job",
        "pid",
        "limit",
        "local",
        "far",
        "share",
        "faults",
        "far faults",
        "in",
        "out",
    ]);
    for job in jobs {
        let mut name = job.name.clone();
        if !job.launcher_alive {
            name += " (its launcher is gone)";
        }
        let launcher = job.launcher.map_or(String::new(), |pid| pid.to_string());
        let limit = Bytes(job.limit_bytes).rounded();
        table.row(row(&name, &launcher, &limit, "", &job.total));
        for process in &job.processes {
            let c = &process.counters;
            let share = Bytes(c.limit_share_bytes).rounded();
            table.row(row("  process", &process.pid.to_string(), "", &share, c));
        }
    }
    let mut text = table.to_string();
    for job in jobs {
        text += &extents(job);
        for waits in job.processes.iter().filter_map(|p| p.waits.as_ref()) {
            text += &format!("\n{}: {waits}", job.name);
        }
        if let Some(message) = &job.message {
            text += &format!("\n{}: {message}", job.name);
        }
    }
    text
}

/// Extents by their state, where not all of them are well.
fn extents(job: &JobShown) -> String {
    let total = &job.total;
    let (degraded, leaving) = (total.extents_degraded, total.extents_leaving);
    if degraded + leaving == 0 {
        return String::new();
    }
    let all = total.grants.max(degraded + leaving);
    let waiting = match total.extents_waiting {
        0 => String::new(),
        waiting => format!(" ({waiting} of them wait for room, or for servers that answer)"),
    };
    format!(
        "\n{}: of {all} extents {} are well, {degraded} lack a copy, {leaving} go to other servers{waiting}; {} \
         were copied so far",
        job.name,
        all - degraded - leaving,
        total.extents_repaired
    )
}

fn row(name: &str, pid: &str, limit: &str, share: &str, c: &Snapshot) -> [String; 10] {
    [
        name.to_string(),
        pid.to_string(),
        limit.to_string(),
        Bytes(c.resident_bytes).rounded(),
        Bytes(c.far_bytes).rounded(),
        share.to_string(),
        c.faults.to_string(),
        c.faults_remote.to_string(),
        Bytes(c.bytes_in).rounded(),
        Bytes(c.bytes_out).rounded(),
    ]
}
