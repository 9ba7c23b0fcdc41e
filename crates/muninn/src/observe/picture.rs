//! What there is at a moment: servers as they tell of themselves, and the jobs of this machine.

use super::jobs;
use muninn_job::Snapshot;
use muninn_sys::socket::Address;
use muninn_types::{Class, Spread};
use muninn_wire::{ServerTimes, StatusPage};
use std::time::Instant;

/// A shorter wait is part of every fault, and no news.
const WORTH_SAYING_MS: u64 = 1000;

/// Everything at a moment.
#[derive(Clone, Debug)]
pub struct Picture {
    pub taken: Instant,
    pub servers: Vec<ServerNow>,
    pub jobs: Vec<JobNow>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerNow {
    pub address: String,
    /// When it said this; None if it never did.
    pub taken: Option<Instant>,
    /// Why it gave no status; then the rest is empty.
    pub error: Option<String>,
    pub name: String,
    pub pool_bytes: u64,
    pub granted_bytes: u64,
    pub wiping_bytes: u64,
    pub sessions: usize,
    /// Milliseconds that clients still have to move away.
    pub drain_left_ms: Option<u64>,
    pub requests: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Bytes in both directions, by class.
    pub classes: [u64; Class::COUNT],
    /// Who holds what, the most first.
    pub holders: Vec<(String, u64)>,
    /// How long requests took there, ever; servers of before do not say.
    pub times: Option<Box<ServerTimes>>,
}

/// What only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub faults: u64,
    pub far: u64,
    pub waited_ns: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobNow {
    pub name: String,
    pub launcher: u32,
    pub launcher_alive: bool,
    pub layout: String,
    pub limit_bytes: u64,
    pub here_bytes: u64,
    pub far_bytes: u64,
    pub totals: Totals,
    pub message: Option<String>,
    pub processes: Vec<ProcessNow>,
    /// How long faults took, ever: first touches, pages about to leave, far pages.
    pub times: [Spread; 3],
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessNow {
    pub pid: u32,
    pub here_bytes: u64,
    pub far_bytes: u64,
    pub totals: Totals,
    /// What it waits for, in words.
    pub waits: Option<String>,
}

impl From<&Snapshot> for Totals {
    fn from(c: &Snapshot) -> Totals {
        Totals {
            faults: c.faults,
            far: c.faults_remote,
            waited_ns: c.fault_ns,
            bytes_in: c.bytes_in,
            bytes_out: c.bytes_out,
        }
    }
}

impl From<jobs::JobShown> for JobNow {
    fn from(job: jobs::JobShown) -> JobNow {
        let processes = job.processes.iter().map(|process| ProcessNow {
            pid: process.pid,
            here_bytes: process.counters.resident_bytes,
            far_bytes: process.counters.far_bytes,
            totals: Totals::from(&process.counters),
            waits: process
                .waits
                .clone()
                .filter(|_| process.waiting_ms >= Some(WORTH_SAYING_MS)),
        });
        JobNow {
            launcher: job.launcher.unwrap_or(0),
            launcher_alive: job.launcher_alive,
            layout: job.layout,
            limit_bytes: job.limit_bytes,
            here_bytes: job.total.resident_bytes,
            far_bytes: job.total.far_bytes,
            totals: Totals::from(&job.total),
            processes: processes.collect(),
            times: job.times,
            message: job.message,
            name: job.name,
        }
    }
}

impl ServerNow {
    pub fn answered(address: &Address, page: StatusPage) -> ServerNow {
        let server = page.server;
        let traffic = &server.traffic;
        let mut holders: Vec<(String, u64)> = page
            .sessions
            .iter()
            .filter(|session| session.granted_bytes > 0)
            .map(|session| {
                let name = format!("{} ({})", session.name, session.pid);
                (name, session.granted_bytes)
            })
            .collect();
        holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        ServerNow {
            address: address.to_string(),
            taken: Some(Instant::now()),
            error: None,
            name: server.name.to_string(),
            pool_bytes: server.pool_bytes,
            granted_bytes: server.granted_bytes,
            wiping_bytes: server.wiping_bytes,
            sessions: page.sessions.len(),
            drain_left_ms: server.drain_left_ms.checked_sub(1),
            requests: traffic.iter().map(|class| class.requests).sum(),
            bytes_in: traffic.iter().map(|class| class.bytes_in).sum(),
            bytes_out: traffic.iter().map(|class| class.bytes_out).sum(),
            classes: Class::ALL.map(|class| {
                let of_class = &traffic[class.index()];
                of_class.bytes_in + of_class.bytes_out
            }),
            holders,
            times: server.times,
        }
    }
}
