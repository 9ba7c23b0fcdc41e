//! Load: closed (so many calls under way at any time) and open (calls arrive when they arrive).
//!
//! The open generator draws the times between arrivals from an exponential distribution and measures
//! each call from the moment at which it was due, not from the moment at which the generator came to
//! send it; so a side that stalls is charged for everybody whom it kept waiting (no coordinated
//! omission).
//!
//! A process that is stopped for a while by somebody else counts one call in all that time. A closed run
//! in which nothing ended for half of its time is therefore repeated, a few times at most; what comes
//! out last is reported as it is.

use super::stage::failed;
use super::wasm::{Functions, encoded};
use crate::failure::Failure;
use hdrhistogram::Histogram;
use muninn_sys::clock;
use muninn_types::{Bytes, Nanos, SplitMix64};
use muninn_wic::apps::{kv, list, log};
use muninn_wic::{CallError, Finished, Place, Service};
use serde::Serialize;
use std::time::Duration;

/// Keys of the store, half of what fits.
const KEYS: u64 = 100_000;
/// Calls under way at most when more arrive than are served: then the load is too high anyway.
const BACKLOG_MAX: usize = 20_000;
/// How often a run is made in which the machine was elsewhere.
const TRIES_MAX: u32 = 4;

/// An application, its memory filled.
#[derive(Debug)]
pub enum App {
    List {
        ring: list::Ring,
        nodes: u32,
    },
    Log,
    Kv {
        keys: u64,
    },
    /// One of the above, by functions that were pushed.
    Pushed(Box<App>, Functions),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppName {
    List,
    Log,
    Kv,
}

impl AppName {
    pub const fn name(self) -> &'static str {
        match self {
            AppName::List => "list",
            AppName::Log => "log",
            AppName::Kv => "kv",
        }
    }
    /// What it needs unless told otherwise.
    pub const fn bytes(self) -> Bytes {
        match self {
            AppName::List => Bytes::mib(64),
            AppName::Log => Bytes::mib(16),
            AppName::Kv => Bytes::mib(16),
        }
    }
}

impl App {
    /// Fills the memory, at the server where that takes functions: it is fastest there.
    pub fn fill(
        name: AppName,
        service: &Service,
        nodes: u32,
        place: Place,
    ) -> Result<App, Failure> {
        service.set_place(Place::Server);
        let filled = App::fill_here(name, service, nodes);
        service.set_place(place);
        filled
    }

    /// The same, for traversals of another length.
    pub fn with_nodes(mut self, count: u32) -> App {
        match &mut self {
            App::List { nodes, .. } => *nodes = count,
            App::Pushed(app, _) => {
                if let App::List { nodes, .. } = &mut **app {
                    *nodes = count;
                }
            }
            _ => {}
        }
        self
    }

    fn fill_here(name: AppName, service: &Service, nodes: u32) -> Result<App, Failure> {
        let (base, end) = service.range();
        Ok(match name {
            AppName::List => {
                let count = (end.0 - base.0) / list::STRIDE;
                let ring = list::Ring::new(base, count as u32, 1);
                ring.build(service).map_err(failed)?;
                App::List { ring, nodes }
            }
            AppName::Log => App::Log,
            AppName::Kv => {
                let keys = KEYS.min((end.0 - base.0) / 64);
                let app = App::Kv { keys };
                for key in 1..=keys {
                    if service.under_way() >= 64 {
                        let done = service.poll(Duration::from_secs(10));
                        done.map_or(Ok(()), |done| done.result.map(|_| ()))
                            .map_err(failed)?;
                    }
                    service.start(kv::update, &(key, key), key, clock::now());
                }
                while service.under_way() > 0 {
                    let done = service.poll(Duration::from_secs(10));
                    done.map_or(Ok(()), |done| done.result.map(|_| ()))
                        .map_err(failed)?;
                }
                app
            }
        })
    }

    /// Starts one call, as the application's mix has it.
    fn start(&self, service: &Service, rng: &mut SplitMix64, token: u64, due: Nanos) {
        let (app, pushed) = match self {
            App::Pushed(app, functions) => (&**app, Some(functions)),
            app => (app, None),
        };
        macro_rules! start {
            ($built_in:path, $pushed:ident, $args:expr) => {
                match pushed {
                    None => service.start($built_in, $args, token, due),
                    Some(pushed) => {
                        service.start_function(&pushed.$pushed, encoded($args), token, due)
                    }
                }
            };
        }
        match app {
            App::Pushed(..) => unreachable!("one of the others is in it"),
            App::List { ring, nodes } => {
                let start = rng.below(u64::from(ring.count())) as u32;
                start!(list::traverse, traverse, &(ring.address(start).0, *nodes));
            }
            App::Log if rng.below(2) == 0 => start!(log::append, append, &(1u64, token)),
            App::Log => start!(log::read_tail, read_tail, &()),
            App::Kv { keys } => {
                let key = 1 + rng.below(*keys);
                match rng.below(2) {
                    0 => start!(kv::update, update, &(key, token)),
                    _ => start!(kv::query, query, &key),
                }
            }
        }
    }
}

/// What a load came to.
#[derive(Debug)]
pub struct Loaded {
    pub calls: u64,
    pub failed: u64,
    pub error: Option<CallError>,
    pub elapsed: Duration,
    /// The longest time in which no call ended.
    pub gap: Duration,
    pub accesses: u64,
    pub latency: Histogram<u64>,
}

impl Loaded {
    fn new() -> Loaded {
        Loaded {
            calls: 0,
            failed: 0,
            error: None,
            elapsed: Duration::ZERO,
            gap: Duration::ZERO,
            accesses: 0,
            // A tenth of a microsecond to a hundred seconds, to three digits.
            latency: Histogram::new_with_bounds(1, 100_000_000_000, 3)
                .expect("the bounds are a constant"),
        }
    }
    fn take(&mut self, finished: Finished, counts: bool) {
        if !counts {
            return;
        }
        self.accesses += u64::from(finished.accesses);
        self.latency.saturating_record(finished.took().0);
        self.calls += 1;
        if let Err(error) = finished.result {
            self.failed += 1;
            self.error = Some(error);
        }
    }
    pub fn per_second(&self) -> f64 {
        self.calls as f64 / self.elapsed.as_secs_f64()
    }
    pub fn us(&self, percentile: f64) -> f64 {
        self.latency.value_at_percentile(percentile) as f64 / 1e3
    }
    pub fn mean_us(&self) -> f64 {
        self.latency.mean() / 1e3
    }
    pub fn accesses_per_call(&self) -> f64 {
        self.accesses as f64 / self.calls.max(1) as f64
    }
}

/// `in_flight` calls at any time, for `time` after a warm-up; again if the machine was elsewhere.
pub fn closed(
    service: &Service,
    app: &App,
    in_flight: usize,
    times: (Duration, Duration),
) -> Result<Loaded, Failure> {
    let mut tries = 1;
    loop {
        let loaded = closed_once(service, app, in_flight, times)?;
        if loaded.gap < times.1 / 2 || tries >= TRIES_MAX {
            return Ok(loaded);
        }
        tries += 1;
    }
}

fn closed_once(
    service: &Service,
    app: &App,
    in_flight: usize,
    (warm_up, time): (Duration, Duration),
) -> Result<Loaded, Failure> {
    let mut loaded = Loaded::new();
    let mut rng = SplitMix64::new(7);
    let mut token = 0;
    let mut start_one = |service: &Service| {
        token = (token + 1) & 0x3fff_ffff;
        app.start(service, &mut rng, token, clock::now());
    };
    let begin = clock::now() + Nanos::from(warm_up);
    let ends = begin + Nanos::from(time);
    for _ in 0..in_flight {
        start_one(service);
    }
    let mut before = begin;
    loop {
        let finished = service.poll(Duration::from_secs(30));
        let finished = finished.ok_or_else(|| failed("no call ended for 30 s"))?;
        let at = finished.ended;
        loaded.gap = loaded.gap.max(at.saturating_sub(before).into());
        before = before.max(at);
        loaded.take(finished, at >= begin);
        if at >= ends {
            loaded.elapsed = (at - begin).into();
            break;
        }
        start_one(service);
    }
    empty(service)?;
    Ok(loaded)
}

/// `rate` calls a second, at random times, for `time` after a warm-up.
pub fn open(
    service: &Service,
    app: &App,
    rate: f64,
    (warm_up, time): (Duration, Duration),
) -> Result<Loaded, Failure> {
    let mut loaded = Loaded::new();
    let mut rng = SplitMix64::new(7);
    let mut token = 0;
    let begin = clock::now() + Nanos::from(warm_up);
    let ends = begin + Nanos::from(time);
    let mut due = clock::now();
    loop {
        let now = clock::now();
        if now >= ends {
            break;
        }
        while due <= now && service.under_way() < BACKLOG_MAX {
            token = (token + 1) & 0x3fff_ffff;
            app.start(service, &mut rng, token, due);
            let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            due += Nanos((-(1.0 - uniform).ln() * 1e9 / rate) as u64);
        }
        while let Some(finished) = service.poll(Duration::ZERO) {
            let counts = finished.started >= begin;
            loaded.take(finished, counts);
            if due <= clock::now() {
                break;
            }
        }
    }
    loaded.elapsed = time;
    let (done, accesses) = (loaded.calls, loaded.accesses);
    // Those that are still under way were due, too.
    while service.under_way() > 0 {
        let finished = service.poll(Duration::from_secs(30));
        let finished = finished.ok_or_else(|| failed("no call ended for 30 s"))?;
        loaded.take(finished, true);
    }
    while service.poll(Duration::ZERO).is_some() {}
    (loaded.calls, loaded.accesses) = (done.max(1), accesses);
    Ok(loaded)
}

/// Waits for all that is under way, and takes what has ended.
fn empty(service: &Service) -> Result<(), Failure> {
    while service.under_way() > 0 {
        let finished = service.poll(Duration::from_secs(30));
        finished.ok_or_else(|| failed("no call ended for 30 s"))?;
    }
    while service.poll(Duration::ZERO).is_some() {}
    Ok(())
}
