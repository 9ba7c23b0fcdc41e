//! Jobs of `muninn run` on this machine: their limits, their processes, where their pages are.

use muninn_job::{Job, Snapshot};
use muninn_sys::clock;
use muninn_types::{Spread, format_duration};
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
    /// How long faults took: first touches, pages about to leave, far pages.
    #[serde(skip)]
    pub(crate) times: [Spread; 3],
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
    let found = muninn_job::find_all();
    let jobs = found.iter();
    let jobs = jobs.filter_map(|found| shown(&found.job, found.launcher_alive));
    let mut jobs: Vec<JobShown> = jobs.collect();
    jobs.sort_by_key(|job| job.launcher);
    jobs
}

/// A job whose launcher this is: the one that `muninn run` has made.
pub fn of_launcher(job: &Job) -> Option<JobShown> {
    shown(job, true)
}

fn shown(job: &Job, launcher_alive: bool) -> Option<JobShown> {
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
        launcher_alive,
        limit_bytes: job.limit().0,
        peak_bytes: job.peaks().all.0,
        pool: job.pool(&config),
        layout: config.layout.to_string(),
        name: config.name,
        message: job
            .message()
            .map(|message| crate::cmd::run::report::describe(&message)),
        total: job.total(),
        times: job.times(),
        processes: processes.collect(),
    })
}
