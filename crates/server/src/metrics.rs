//! Metrics of a server as Prometheus text.

use crate::segment::MemfdBacking;
use muninn_http::{METRICS_TEXT, Method, Page, Request, Response, Site, Token, labels};
use muninn_proto::server::Shared;
use muninn_sys::clock;
use muninn_types::{Class, SessionId};
use std::sync::Arc;

/// All numbers, as text.
pub(crate) fn render(shared: &Shared<MemfdBacking>) -> String {
    let status = shared.status(SessionId(u64::MAX), clock::now()).server;
    let agents = shared.agents.get().map(|agents| agents.totals());
    let agents = agents.unwrap_or_default();
    let mut page = Page::default();
    let gauges = [
        (
            "pool_bytes",
            "Memory this server gives to the pool.",
            status.pool_bytes,
        ),
        (
            "granted_bytes",
            "Memory granted to sessions.",
            status.granted_bytes,
        ),
        (
            "wiping_bytes",
            "Memory freed and not wiped yet.",
            status.wiping_bytes,
        ),
        (
            "largest_free_bytes",
            "Largest grant to be had now.",
            status.largest_free_bytes,
        ),
        ("agents", "Agents of managed heaps.", agents.agents),
        (
            "agent_served_bytes",
            "Memory of managed heaps that agents serve.",
            agents.served_bytes,
        ),
        (
            "agent_metadata_bytes",
            "Memory of the agents themselves.",
            agents.metadata_bytes,
        ),
        ("sessions", "Sessions.", u64::from(status.sessions)),
        ("grants", "Grants.", u64::from(status.grants)),
        ("connections", "Connections.", u64::from(status.connections)),
        (
            "uptime_seconds",
            "Time since the start.",
            status.uptime_ms / 1000,
        ),
        (
            "draining",
            "1 while memory is being given back.",
            u64::from(status.drain_left_ms > 0),
        ),
    ];
    for (name, help, value) in gauges {
        page.one(name, "gauge", help, value);
    }
    let cpu_s = agents.cpu_ms as f64 / 1000.0;
    page.one(
        "agent_cpu_seconds",
        "gauge",
        "CPU time of the agents that run.",
        cpu_s,
    );
    page.build_info();
    let families = [
        ("requests_total", "Requests by class of traffic."),
        (
            "received_bytes_total",
            "Payload bytes received by class of traffic.",
        ),
        (
            "sent_bytes_total",
            "Payload bytes sent by class of traffic.",
        ),
    ];
    for (index, (name, help)) in families.into_iter().enumerate() {
        page.family(name, "counter", help);
        for class in Class::ALL {
            let traffic = &status.traffic[class.index()];
            let value = [traffic.requests, traffic.bytes_in, traffic.bytes_out][index];
            page.sample(name, &labels(&[("class", class.name())]), value);
        }
    }
    let times = status.times.unwrap_or_default();
    page.family(
        "request_seconds",
        "histogram",
        "Time from when a request could be read until its answer was ready, by class of traffic.",
    );
    for class in Class::ALL {
        let own = [("class", class.name())];
        page.histogram("request_seconds", &own, &times.classes[class.index()]);
    }
    page.family(
        "loop_lag_seconds",
        "histogram",
        "Time that a connection with something to read waited for its turn.",
    );
    page.histogram("loop_lag_seconds", &[], &times.lag);
    page.family("refusals_total", "counter", "Refusals by reason.");
    for (reason, count) in &status.refusals {
        page.sample(
            "refusals_total",
            &labels(&[("reason", reason.as_str())]),
            count,
        );
    }
    page.finish()
}

/// What scrapers see of a server.
pub(crate) struct Scraped {
    pub shared: Arc<Shared<MemfdBacking>>,
    pub token: Option<Token>,
}

impl Scraped {
    /// For those who start and end servers, without a token: whether it takes new clients, and nothing else.
    fn health(&self) -> Response {
        let status = self.shared.status(SessionId(u64::MAX), clock::now()).server;
        match status.drain_left_ms > 0 {
            true => Response::text(503, "draining\n"),
            false => Response::text(200, "ok\n"),
        }
    }
}

impl Site for Scraped {
    fn answer(&self, request: &Request<'_>) -> Response {
        if !matches!(request.method, Method::Get | Method::Head) {
            return Response::text(405, "ask with GET\n");
        }
        let permitted = (self.token.as_ref()).is_none_or(|token| token.is_in(request));
        match request.path {
            "/healthz" => self.health(),
            _ if !permitted => {
                self.shared.registry.refused("metrics-token");
                Response::text(401, "a token is needed\n")
            }
            "/metrics" | "/" => Response::new(200, METRICS_TEXT, render(&self.shared).into_bytes()),
            _ => Response::text(404, "ask for /metrics\n"),
        }
    }

    fn crowded(&self) {
        self.shared.registry.refused("too-many-scrapers");
    }
}
