//! Metrics as Prometheus text, over the smallest HTTP that a scraper needs.

use crate::segment::MemfdBacking;
use muninn_proto::server::Shared;
use muninn_sys::clock;
use muninn_sys::epoll::{Epoll, Events, Interest};
use muninn_sys::socket::{ByteStream, Listener, Stream, Transfer};
use muninn_types::{Class, SessionId};
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A scraper gets this long to ask and to take the answer.
const PATIENCE: Duration = Duration::from_secs(1);
const REQUEST_MAX: usize = 4096;
/// Scrapers that are answered side by side.
const SCRAPERS_MAX: usize = 64;
/// How often it is looked at whether the server is to stop.
const LOOK: Duration = Duration::from_millis(200);
const VERSION: &str = env!("CARGO_PKG_VERSION");
const LISTENER: u64 = u64::MAX;
const BEARER: &[u8] = b"Authorization: Bearer ";
const TOKEN_MIN: usize = 16;
const TOKEN_MAX: usize = 256;

/// All numbers, as text.
pub(crate) fn render(shared: &Shared<MemfdBacking>) -> String {
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
    let mut other = |name: &str, help: &str, value: &dyn fmt::Display| {
        let _ = writeln!(text, "# HELP muninn_{name} {help}");
        let _ = writeln!(text, "# TYPE muninn_{name} gauge\nmuninn_{value}");
    };
    let cpu_s = agents.cpu_ms as f64 / 1000.0;
    other(
        "agent_cpu_seconds",
        "CPU time of the agents that run.",
        &format_args!("agent_cpu_seconds {cpu_s}"),
    );
    other(
        "build_info",
        "Which release this is; always 1.",
        &format_args!("build_info{{version=\"{VERSION}\"}} 1"),
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

/// Who may ask.
#[derive(Clone, PartialEq, Eq)]
pub struct MetricsToken(String);

impl MetricsToken {
    /// The contents of a file, without white space at its ends.
    pub fn from_file_contents(contents: &str) -> Option<MetricsToken> {
        let token = contents.trim();
        let fits = (TOKEN_MIN..=TOKEN_MAX).contains(&token.len());
        (fits && token.bytes().all(|b| b.is_ascii_graphic()))
            .then(|| MetricsToken(token.to_string()))
    }

    /// Takes the same time wherever the first difference is.
    fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let pairs = own.iter().zip(given);
        let differ = pairs.fold(0, |differ, (a, b)| differ | (a ^ b));
        own.len() == given.len() && differ == 0
    }
}

impl fmt::Debug for MetricsToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsToken(…)")
    }
}

/// A scraper that is being answered.
struct Scraper {
    stream: Stream,
    until: Instant,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

enum Wants {
    Read,
    Write,
    Nothing,
}

impl Scraper {
    /// Goes on as far as it can without waiting.
    fn advance(&mut self, shared: &Shared<MemfdBacking>, token: Option<&MetricsToken>) -> Wants {
        while self.answer.is_empty() {
            let mut chunk = [0; 1024];
            match self.stream.read(&mut [IoSliceMut::new(&mut chunk)]) {
                Ok(Transfer::Bytes(n)) => self.request.extend_from_slice(&chunk[..n]),
                Ok(Transfer::WouldBlock) => return Wants::Read,
                Ok(Transfer::Closed) | Err(_) => return Wants::Nothing,
            }
            if self.request.windows(4).any(|end| end == b"\r\n\r\n") {
                self.answer = answer(&self.request, shared, token);
            } else if self.request.len() > REQUEST_MAX {
                return Wants::Nothing;
            }
        }
        while self.sent < self.answer.len() {
            let rest = IoSlice::new(&self.answer[self.sent..]);
            match self.stream.write(&[rest]) {
                Ok(Transfer::Bytes(n)) => self.sent += n,
                Ok(Transfer::WouldBlock) => return Wants::Write,
                Ok(Transfer::Closed) | Err(_) => return Wants::Nothing,
            }
        }
        Wants::Nothing
    }
}

/// Answers scrapers until told to stop. Nobody waits for one that says nothing: they are served side
/// by side, and when there are too many the one that came first makes room.
pub(crate) fn serve(
    listener: &Listener,
    shared: &Arc<Shared<MemfdBacking>>,
    token: Option<&MetricsToken>,
    stop: &AtomicBool,
) {
    let Ok(epoll) = Epoll::new() else {
        eprintln!("muninn: the metrics port is closed: no descriptor left");
        return;
    };
    if epoll.add(listener, LISTENER, Interest::READ).is_err() {
        return;
    }
    let mut scrapers: VecDeque<(u64, Scraper)> = VecDeque::new();
    let mut next = 0;
    let mut events = Events::default();
    while !stop.load(Relaxed) {
        if epoll.wait(&mut events, Some(LOOK)).is_err() {
            return;
        }
        let now = Instant::now();
        for event in events.iter() {
            if event.token != LISTENER {
                let found = scrapers.iter().position(|(id, _)| *id == event.token);
                let Some(at) = found else { continue };
                match scrapers[at].1.advance(shared, token) {
                    Wants::Nothing => drop(scrapers.remove(at)),
                    Wants::Read => {}
                    Wants::Write => {
                        let _ = epoll.modify(&scrapers[at].1.stream, event.token, Interest::WRITE);
                    }
                }
                continue;
            }
            // A few at a time: those who are here already are looked at in between.
            for _ in 0..SCRAPERS_MAX / 2 {
                let Ok(Some(stream)) = listener.accept() else {
                    break;
                };
                if epoll.add(&stream, next, Interest::READ).is_err() {
                    continue;
                }
                if scrapers.len() >= SCRAPERS_MAX {
                    shared.registry.refused("too-many-scrapers");
                    scrapers.pop_front();
                }
                let scraper = Scraper {
                    stream,
                    until: now + PATIENCE,
                    request: Vec::new(),
                    answer: Vec::new(),
                    sent: 0,
                };
                scrapers.push_back((next, scraper));
                next += 1;
            }
        }
        scrapers.retain(|(_, scraper)| scraper.until > now);
    }
}

/// For those who start and end servers, without a token: whether it takes new clients, and nothing else.
fn health(shared: &Shared<MemfdBacking>) -> (&'static str, String) {
    let status = shared.status(SessionId(u64::MAX), clock::now()).server;
    match status.drain_left_ms > 0 {
        true => ("503 Service Unavailable", "draining\n".to_string()),
        false => ("200 OK", "ok\n".to_string()),
    }
}

fn answer(request: &[u8], shared: &Shared<MemfdBacking>, token: Option<&MetricsToken>) -> Vec<u8> {
    let asked = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET / ");
    let permitted = token.is_none_or(|token| {
        let mut lines = request.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
        lines.any(|line| match line.split_at_checked(BEARER.len()) {
            Some((head, given)) => {
                head.eq_ignore_ascii_case(BEARER) && token.is(given.trim_ascii())
            }
            None => false,
        })
    });
    let (code, body) = match (permitted, asked) {
        _ if request.starts_with(b"GET /healthz ") => health(shared),
        (false, _) => {
            shared.registry.refused("metrics-token");
            ("401 Unauthorized", "a token is needed\n".to_string())
        }
        (true, true) => ("200 OK", render(shared)),
        (true, false) => ("404 Not Found", "ask for /metrics\n".to_string()),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}
