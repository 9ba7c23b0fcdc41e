//! What happens in a second: two pictures, compared.

use super::picture::{JobNow, Picture, ServerNow, Totals};
use muninn_types::Class;
use std::collections::HashMap;

/// What happens in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub faults: f64,
    pub far: f64,
    /// Part of the time in which somebody waited for a page; more than 1 with several processes.
    pub waiting: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
}

impl Rates {
    fn between(before: &Totals, now: &Totals, seconds: f64) -> Rates {
        // Less than before: it is another one by the same name.
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            faults: rate(before.faults, now.faults),
            far: rate(before.far, now.far),
            waiting: rate(before.waited_ns, now.waited_ns) / 1e9,
            bytes_in: rate(before.bytes_in, now.bytes_in),
            bytes_out: rate(before.bytes_out, now.bytes_out),
        }
    }

    pub fn add(&mut self, other: &Rates) {
        self.faults += other.faults;
        self.far += other.far;
        self.waiting += other.waiting;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerRates {
    pub requests: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    pub classes: [f64; Class::COUNT],
}

/// A job with what it does, and the same for each of its processes.
#[derive(Clone, Debug)]
pub struct JobRow {
    pub job: JobNow,
    pub rates: Rates,
    pub processes: Vec<Rates>,
}

#[derive(Clone, Debug)]
pub struct ServerRow {
    pub server: ServerNow,
    pub rates: ServerRates,
}

/// Everything in a picture, with what it does.
#[derive(Debug, Default)]
pub struct Rows {
    pub jobs: Vec<JobRow>,
    pub servers: Vec<ServerRow>,
    /// Between the two pictures; 0 for the first.
    pub seconds: f64,
}

impl Rows {
    /// `old` are the servers' rows of the picture before.
    pub fn between(before: Option<&Picture>, now: &Picture, old: &[ServerRow]) -> Rows {
        let passed = |before: &Picture| now.taken.saturating_duration_since(before.taken);
        let seconds = before.map_or(0.0, |before| passed(before).as_secs_f64());
        let known = before.filter(|_| seconds > 0.0);
        let old_jobs: HashMap<u32, &JobNow> = known.map_or_else(HashMap::new, |picture| {
            let jobs = picture.jobs.iter();
            jobs.map(|job| (job.launcher, job)).collect()
        });
        let old_servers: HashMap<&str, &ServerNow> = known.map_or_else(HashMap::new, |picture| {
            let servers = picture.servers.iter();
            servers
                .map(|server| (server.address.as_str(), server))
                .collect()
        });
        let old_rows: HashMap<&str, &ServerRow> = old
            .iter()
            .map(|row| (row.server.address.as_str(), row))
            .collect();
        let jobs = now.jobs.iter().map(|job| {
            let old = old_jobs.get(&job.launcher);
            job_row(job, old.copied(), seconds)
        });
        let servers = now.servers.iter().map(|server| {
            let address = server.address.as_str();
            let before = old_servers.get(address).copied();
            server_row(server, before, old_rows.get(address).copied())
        });
        Rows {
            jobs: jobs.collect(),
            servers: servers.collect(),
            seconds,
        }
    }
}

fn job_row(job: &JobNow, before: Option<&JobNow>, seconds: f64) -> JobRow {
    let rates = before.map(|before| Rates::between(&before.totals, &job.totals, seconds));
    let processes = job.processes.iter().map(|process| {
        let before = before.and_then(|job| job.processes.iter().find(|one| one.pid == process.pid));
        let rates = before.map(|before| Rates::between(&before.totals, &process.totals, seconds));
        rates.unwrap_or_default()
    });
    JobRow {
        processes: processes.collect(),
        rates: rates.unwrap_or_default(),
        job: job.clone(),
    }
}

/// A server answers at times of its own: what it said is compared by these.
fn server_row(
    server: &ServerNow,
    before: Option<&ServerNow>,
    old: Option<&ServerRow>,
) -> ServerRow {
    let before = before.filter(|before| before.error.is_none() && server.error.is_none());
    let seconds = match (before.and_then(|before| before.taken), server.taken) {
        (Some(before), Some(now)) => now.saturating_duration_since(before).as_secs_f64(),
        _ => 0.0,
    };
    if seconds == 0.0 {
        // Nothing new: it goes on as it did.
        let rates = old.filter(|_| before.is_some()).map(|row| row.rates);
        return ServerRow {
            rates: rates.unwrap_or_default(),
            server: server.clone(),
        };
    }
    let rates = before.map(|before| {
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        ServerRates {
            requests: rate(before.requests, server.requests),
            bytes_in: rate(before.bytes_in, server.bytes_in),
            bytes_out: rate(before.bytes_out, server.bytes_out),
            classes: std::array::from_fn(|at| rate(before.classes[at], server.classes[at])),
        }
    });
    ServerRow {
        rates: rates.unwrap_or_default(),
        server: server.clone(),
    }
}
