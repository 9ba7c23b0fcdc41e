//! Jobs of `muninn run` on this machine: their limits, their processes, where their pages are.

use crate::ui::Table;
use muninn_job::{Found, Job, Snapshot};
use muninn_types::Bytes;
use serde::Serialize;

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
    pub message: Option<String>,
    /// Everything that was counted so far, by processes that have ended as well.
    pub total: Snapshot,
    pub processes: Vec<ProcessShown>,
}

#[derive(Debug, Serialize)]
pub struct ProcessShown {
    pub pid: u32,
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
    let processes = alive.map(|place| ProcessShown {
        pid: place.pid(),
        counters: place.counters().snapshot(),
    });
    Some(JobShown {
        name: config.name,
        launcher: job.launcher().map(|launcher| launcher.pid()),
        launcher_alive: found.launcher_alive,
        limit_bytes: job.limit().0,
        peak_bytes: job.peaks().all.0,
        pool: config.pool.iter().map(ToString::to_string).collect(),
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
        if let Some(message) = &job.message {
            text += &format!("\n{}: {message}", job.name);
        }
    }
    text
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
