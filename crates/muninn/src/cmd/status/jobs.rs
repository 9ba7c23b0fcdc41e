//! Jobs of this machine as a table.

use crate::observe::jobs::JobShown;
use crate::ui::Table;
use muninn_job::Snapshot;
use muninn_types::Bytes;

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
