//! Metrics as Prometheus text, over the smallest HTTP that a scraper needs.

use crate::segment::MemfdBacking;
use muninn_proto::server::Shared;
use muninn_sys::clock;
use muninn_sys::epoll::Interest;
use muninn_sys::socket::{ByteStream, Listener, Stream, Transfer};
use muninn_types::{Class, SessionId};
use std::fmt::Write;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A scraper gets this long to ask and to take the answer.
const PATIENCE: Duration = Duration::from_secs(1);
const REQUEST_MAX: usize = 4096;

/// All numbers, as text.
pub fn render(shared: &Shared<MemfdBacking>) -> String {
    let status = shared.status(SessionId(u64::MAX), clock::now()).server;
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: u64| {
        let _ = writeln!(text, "# HELP muninn_{name} {help}");
        let _ = writeln!(text, "# TYPE muninn_{name} gauge\nmuninn_{name} {value}");
    };
    gauge(
        "pool_bytes",
        "Memory this server gives to the pool.",
        status.pool_bytes,
    );
    gauge(
        "granted_bytes",
        "Memory granted to sessions.",
        status.granted_bytes,
    );
    gauge(
        "wiping_bytes",
        "Memory freed and not wiped yet.",
        status.wiping_bytes,
    );
    gauge(
        "largest_free_bytes",
        "Largest grant to be had now.",
        status.largest_free_bytes,
    );
    let agents = shared.agents.get().map(|agents| agents.totals());
    let agents = agents.unwrap_or_default();
    gauge("agents", "Agents of managed heaps.", agents.agents);
    gauge(
        "agent_served_bytes",
        "Memory of managed heaps that agents serve.",
        agents.served_bytes,
    );
    gauge(
        "agent_metadata_bytes",
        "Memory of the agents themselves.",
        agents.metadata_bytes,
    );
    gauge(
        "agent_cpu_ms",
        "CPU time of the agents that run.",
        agents.cpu_ms,
    );
    gauge("sessions", "Sessions.", u64::from(status.sessions));
    gauge("grants", "Grants.", u64::from(status.grants));
    gauge("connections", "Connections.", u64::from(status.connections));
    gauge(
        "uptime_seconds",
        "Time since the start.",
        status.uptime_ms / 1000,
    );
    gauge(
        "draining",
        "1 while memory is being given back.",
        u64::from(status.drain_left_ms > 0),
    );
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
        let _ = writeln!(
            text,
            "# HELP muninn_{name} {help}\n# TYPE muninn_{name} counter"
        );
        for class in Class::ALL {
            let traffic = &status.traffic[class.index()];
            let value = [traffic.requests, traffic.bytes_in, traffic.bytes_out][index];
            let _ = writeln!(text, "muninn_{name}{{class=\"{class}\"}} {value}");
        }
    }
    let _ = writeln!(text, "# HELP muninn_refusals_total Refusals by reason.");
    let _ = writeln!(text, "# TYPE muninn_refusals_total counter");
    for (reason, count) in &status.refusals {
        let _ = writeln!(text, "muninn_refusals_total{{reason=\"{reason}\"}} {count}");
    }
    text
}

/// Answers scrapers, one after the other, until told to stop.
pub fn serve(listener: &Listener, shared: &Arc<Shared<MemfdBacking>>, stop: &AtomicBool) {
    let look = Duration::from_millis(200);
    while !stop.load(Relaxed) {
        let waited = muninn_sys::epoll::wait_for(listener, Interest::READ, Some(look));
        if waited == Ok(true)
            && let Ok(Some(stream)) = listener.accept()
        {
            // A scraper that breaks off is its own affair.
            let _ = answer(&stream, shared);
        }
    }
}

fn answer(stream: &Stream, shared: &Shared<MemfdBacking>) -> Option<()> {
    let ends = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > REQUEST_MAX {
            return None;
        }
        let mut chunk = [0; 1024];
        match stream.read(&mut [IoSliceMut::new(&mut chunk)]).ok()? {
            Transfer::Bytes(n) => request.extend_from_slice(&chunk[..n]),
            Transfer::Closed => return None,
            Transfer::WouldBlock => wait(stream, Interest::READ, ends)?,
        }
    }
    let (code, body) = if request.starts_with(b"GET /metrics ") || request.starts_with(b"GET / ") {
        ("200 OK", render(shared))
    } else {
        ("404 Not Found", "ask for /metrics\n".to_string())
    };
    let answer = format!(
        "HTTP/1.1 {code}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        match stream.write(&[IoSlice::new(rest)]).ok()? {
            Transfer::Bytes(n) => rest = &rest[n..],
            Transfer::Closed => return None,
            Transfer::WouldBlock => wait(stream, Interest::WRITE, ends)?,
        }
    }
    Some(())
}

fn wait(stream: &Stream, interest: Interest, ends: Instant) -> Option<()> {
    let left = ends.checked_duration_since(Instant::now())?;
    stream.wait(interest, Some(left)).ok()?.then_some(())
}
