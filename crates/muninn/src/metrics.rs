//! Metrics of jobs, and of a node: what `run --metrics` and `agent --metrics` serve to Prometheus.

use crate::failure::{Exit, Failure};
use crate::key_file;
use crate::observe::jobs::{self, JobShown};
use muninn_cluster::message::NodeState;
use muninn_http::{
    Limits, METRICS_TEXT, Method, Page, Request, Response, Site, Token, labels, serve,
};
use muninn_sys::socket::{Address, Listener};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

#[derive(Debug, clap::Args)]
pub struct MetricsArgs {
    /// Serve metrics for Prometheus here, such as 127.0.0.1:9101
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,

    /// File with a token that scrapers must send; needed for metrics beyond this machine
    #[arg(long, value_name = "PATH", requires = "metrics")]
    pub metrics_token_file: Option<PathBuf>,
}

/// A port that is listened at, and not answered yet.
#[derive(Debug)]
pub struct Metrics {
    listener: Listener,
    token: Option<Token>,
}

struct Scraped<F> {
    page: F,
    token: Option<Token>,
}

impl<F: Fn() -> Page> Site for Scraped<F> {
    fn answer(&self, request: &Request<'_>) -> Response {
        let permitted = (self.token.as_ref()).is_none_or(|token| token.is_in(request));
        match request.path {
            _ if !matches!(request.method, Method::Get | Method::Head) => {
                Response::text(405, "ask with GET\n")
            }
            "/healthz" => Response::text(200, "ok\n"),
            _ if !permitted => Response::text(401, "a token is needed\n"),
            "/metrics" | "/" => {
                Response::new(200, METRICS_TEXT, (self.page)().finish().into_bytes())
            }
            _ => Response::text(404, "ask for /metrics\n"),
        }
    }
}

impl MetricsArgs {
    /// Listens, if that is wanted.
    pub fn listen(&self) -> Result<Option<Metrics>, Failure> {
        let Some(at) = self.metrics else {
            return Ok(None);
        };
        let token = self.metrics_token_file.as_deref();
        let token = token.map(key_file::metrics_token).transpose()?;
        if token.is_none() && !at.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "refusing to show metrics at {at} to everybody: name a file with a token \
                 (--metrics-token-file PATH) that scrapers are to send as 'Authorization: Bearer TOKEN'"
            )));
        }
        let listener =
            Listener::bind(&Address::Tcp(at)).map_err(|error| Failure::new(Exit::Failed, error))?;
        Ok(Some(Metrics { listener, token }))
    }
}

impl Metrics {
    pub fn url(&self) -> String {
        match self.listener.address() {
            Address::Tcp(at) => format!("http://{at}/metrics"),
            Address::Unix(path) => path.display().to_string(),
        }
    }

    /// Answers for as long as the process lives.
    pub fn serve(self, page: impl Fn() -> Page + Send + 'static) {
        let site = Scraped {
            page,
            token: self.token,
        };
        let listener = self.listener;
        std::thread::spawn(move || {
            let never = AtomicBool::new(false);
            if let Err(error) = serve(&listener, &site, &Limits::SMALL, &never) {
                eprintln!("muninn: the metrics port is closed: {error}");
            }
        });
    }
}

/// The kinds of faults, in the order of [`JobShown::times`].
const FAULTS: [&str; 3] = ["first-touch", "leaving", "far"];

type Gauge = (
    &'static str,
    &'static str,
    &'static str,
    fn(&JobShown) -> u64,
);

/// One number each, for each job.
const NUMBERS: [Gauge; 14] = [
    ("job_limit_bytes", "gauge", "What may stay local.", |job| {
        job.limit_bytes
    }),
    (
        "job_resident_bytes",
        "gauge",
        "Memory on this machine.",
        |job| job.total.resident_bytes,
    ),
    (
        "job_far_bytes",
        "gauge",
        "Memory at servers alone.",
        |job| job.total.far_bytes,
    ),
    (
        "job_peak_bytes",
        "gauge",
        "The most there was at one time, here and far.",
        |job| job.peak_bytes,
    ),
    (
        "job_processes",
        "gauge",
        "Processes with far memory.",
        |job| job.processes.len() as u64,
    ),
    (
        "job_waiting_processes",
        "gauge",
        "Processes that wait for a server, a grant or a full pool.",
        |job| {
            job.processes
                .iter()
                .filter(|one| one.waiting_for.is_some())
                .count() as u64
        },
    ),
    (
        "job_degraded_extents",
        "gauge",
        "Extents that lack a copy.",
        |job| job.total.extents_degraded,
    ),
    (
        "job_evicted_pages_total",
        "counter",
        "Pages that left.",
        |job| job.total.evicted,
    ),
    (
        "job_prefetched_pages_total",
        "counter",
        "Pages fetched before they were asked for.",
        |job| job.total.prefetched,
    ),
    (
        "job_wasted_prefetches_total",
        "counter",
        "Those that nobody asked for.",
        |job| job.total.prefetch_wasted,
    ),
    (
        "job_direct_reclaims_total",
        "counter",
        "Evictions that somebody waited for.",
        |job| job.total.direct_reclaims,
    ),
    (
        "job_received_bytes_total",
        "counter",
        "From servers.",
        |job| job.total.bytes_in,
    ),
    ("job_sent_bytes_total", "counter", "To servers.", |job| {
        job.total.bytes_out
    }),
    (
        "job_repaired_extents_total",
        "counter",
        "Copies made anew.",
        |job| job.total.extents_repaired,
    ),
];

/// All numbers of these jobs.
pub fn of_jobs(jobs: &[JobShown]) -> Page {
    let mut page = Page::default();
    page.build_info();
    add_jobs(&mut page, jobs);
    page
}

fn add_jobs(page: &mut Page, jobs: &[JobShown]) {
    let pids: Vec<String> = jobs
        .iter()
        .map(|job| job.launcher.unwrap_or(0).to_string())
        .collect();
    let named = |at: usize| [("job", jobs[at].name.as_str()), ("pid", pids[at].as_str())];
    for (name, kind, help, value) in NUMBERS {
        page.family(name, kind, help);
        for (at, job) in jobs.iter().enumerate() {
            page.sample(name, &labels(&named(at)), value(job));
        }
    }
    page.family(
        "job_fault_seconds",
        "histogram",
        "Time in which faults were answered, by kind: first touches, pages about to leave, far pages.",
    );
    for (at, job) in jobs.iter().enumerate() {
        for (kind, times) in FAULTS.into_iter().zip(&job.times) {
            let [name, pid] = named(at);
            page.histogram("job_fault_seconds", &[name, pid, ("kind", kind)], times);
        }
    }
}

/// A node: what its agent says, and the jobs on it.
pub fn of_node(state: Option<&NodeState>) -> Page {
    let mut page = Page::default();
    page.build_info();
    page.one(
        "node_up",
        "gauge",
        "1 if the agent answers.",
        u8::from(state.is_some()),
    );
    if let Some(state) = state {
        let sizes = [
            (
                "node_memory_bytes",
                "Memory that is for jobs.",
                state.memory,
            ),
            (
                "node_limits_bytes",
                "What jobs may hold of it, together.",
                state.limits,
            ),
            (
                "node_others_bytes",
                "Memory of this machine that others hold.",
                state.others,
            ),
            (
                "node_ceiling_bytes",
                "The most that is lent to the pool.",
                state.ceiling,
            ),
            ("node_granted_bytes", "What of that is used.", state.granted),
        ];
        for (name, help, bytes) in sizes {
            page.one(name, "gauge", help, bytes.0);
        }
        page.family(
            "node_job_waited_seconds_total",
            "counter",
            "Time that a job waited for pages.",
        );
        for job in &state.jobs {
            let pid = job.pid.to_string();
            let own = labels(&[("job", &job.name), ("pid", &pid)]);
            page.sample("node_job_waited_seconds_total", &own, job.waited_s);
        }
    }
    add_jobs(&mut page, &jobs::look());
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_types::{Nanos, Spread};

    #[test]
    fn jobs_may_have_any_name() {
        let mut times = [Spread::default(); 3];
        times[2].note(Nanos(20_000));
        let job = JobShown {
            name: "a\"b\nc".to_string(),
            launcher: Some(7),
            launcher_alive: true,
            limit_bytes: 1 << 20,
            peak_bytes: 0,
            pool: Vec::new(),
            layout: "single".to_string(),
            message: None,
            total: Default::default(),
            processes: Vec::new(),
            times,
        };
        let text = of_jobs(&[job]).finish();
        for line in [
            "muninn_job_limit_bytes{job=\"a\\\"b\\nc\",pid=\"7\"} 1048576",
            "muninn_job_fault_seconds_count{job=\"a\\\"b\\nc\",pid=\"7\",kind=\"far\"} 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert!(
            of_jobs(&[])
                .finish()
                .contains("# TYPE muninn_job_far_bytes gauge")
        );
    }
}
