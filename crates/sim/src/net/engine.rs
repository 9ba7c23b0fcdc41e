//! One run: the event loop that joins jobs and network.
//!
//! Reads, writes and acknowledgements: a write travels as packets and is answered by a message too
//! short to queue; a read request is such a message, and its answer is a burst of packets, of which
//! the program waits for the first (the page it touched; the rest is read ahead). Reads travel as
//! [`Class::Demand`] whatever the module, so that what is compared is the order of evictions only.

use super::calendar::Calendar;
use super::config::{Config, JobKind};
use super::fabric::{Fabric, Hop, Packet};
use super::job::{BATCH, Due, Flow, HEADROOM_MIN, Job};
use super::report::{Histogram, Report};
use super::topology::Tier;
use super::trace::{Shape, Trace};
use muninn_policy::threshold::{Params, Threshold};
use muninn_policy::urgency::{EQUAL, PriorityMap, Urgency};
use muninn_policy::wrr::Weights;
use muninn_types::{Bytes, Class, Nanos, SplitMix64};
use std::collections::VecDeque;
use std::sync::Arc;

/// What an eviction core and the answer to a read send as one piece.
pub const PACKET: Bytes = Bytes::pages(4);
/// What a blocked program sends before it waits for the acknowledgement: a page.
pub const URGENT_PACKET: Bytes = Bytes::PAGE;
/// Jobs begin within this time of each other, before scaling.
const STARTS_WITHIN: Nanos = Nanos::millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Hop(Hop),
    /// The program has computed until it needs memory, or to its end.
    Computed(u32, Due),
    /// The core of a blocked program has prepared a page.
    UrgentPrepared(u32),
    /// An eviction core has prepared a batch.
    RegularPrepared(u32),
    UrgentAcknowledged(u32, u32),
    RegularAcknowledged(u32, u32),
    /// A read request has reached the server that has the page.
    Asked(u32, u16),
}

impl From<Hop> for Event {
    fn from(hop: Hop) -> Event {
        Event::Hop(hop)
    }
}

/// What a packet carries, as a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cargo {
    Urgent(u32),
    Regular(u32),
    ReadFirst(u32),
    ReadAhead,
}

impl Cargo {
    fn tag(self) -> u32 {
        match self {
            Cargo::Urgent(job) => job << 2,
            Cargo::Regular(job) => (job << 2) | 1,
            Cargo::ReadFirst(job) => (job << 2) | 2,
            Cargo::ReadAhead => 3,
        }
    }
    fn of(tag: u32) -> Cargo {
        match tag & 3 {
            0 => Cargo::Urgent(tag >> 2),
            1 => Cargo::Regular(tag >> 2),
            2 => Cargo::ReadFirst(tag >> 2),
            _ => Cargo::ReadAhead,
        }
    }
}

/// A server's eviction cores and the jobs that wait for one, in the order in which they asked.
#[derive(Clone, Debug, Default)]
struct EvictCores {
    busy: u32,
    waiting: VecDeque<u32>,
}

struct Engine<'a> {
    config: &'a Config,
    events: Calendar<Event>,
    fabric: Fabric,
    jobs: Vec<Job>,
    /// `None` where all evictions are alike.
    urgency: Option<Urgency>,
    cores: Vec<EvictCores>,
    /// Servers that have memory to give.
    pool: Vec<u16>,
    prepare_page: Nanos,
    prepare_batch: Nanos,
    unfinished: usize,
    uef_count: u64,
    ref_count: u64,
    fct: Histogram,
}

/// Simulates until every job has been finished once. The configuration must have been checked.
pub fn run(config: &Config) -> Report {
    let mut engine = Engine::new(config);
    engine.run();
    engine.report()
}

impl<'a> Engine<'a> {
    fn new(config: &'a Config) -> Engine<'a> {
        let servers = config.topology.servers();
        // Spread evenly: a server is intensive when the running share passes a whole number.
        let share =
            |s: u32| u64::from(s) * u64::from(config.intensive_servers) / u64::from(servers);
        let is_intensive = |server: u32| share(server + 1) > share(server);
        let mut rng = SplitMix64::new(config.seed);
        let mut jobs = Vec::new();
        for server in 0..servers {
            let mut tasks = rng.fork();
            let intensive = is_intensive(server);
            let (trace, started) = work(config, intensive, &mut tasks);
            for _ in 0..config.jobs_per_server {
                let trace = Arc::clone(&trace);
                let rng = tasks.fork();
                jobs.push(job(config, server, intensive, trace, started, rng));
            }
        }
        // Memory is lent by the servers that have some to spare; by all where those are too few.
        let mut pool: Vec<u16> = (0..servers)
            .filter(|&server| !is_intensive(server))
            .map(|server| server as u16)
            .collect();
        if pool.len() < 2 {
            pool = (0..servers as u16).collect();
        }
        let by_urgency = config.module.schedules_by_urgency();
        // What the cluster knows of itself: how long the headroom of each job lasts on average.
        let history: Vec<Nanos> = jobs.iter().map(Job::exhaustion_mean).collect();
        let weights = if by_urgency {
            Weights::default()
        } else {
            Weights::equal()
        };
        let prepare = |bytes: Bytes| Nanos((bytes.0 as f64 * 1e3 / config.evict_mb_s) as u64);
        Engine {
            config,
            events: Calendar::new(),
            fabric: Fabric::new(config.topology, config.bandwidth, weights),
            unfinished: jobs.len(),
            jobs,
            urgency: by_urgency.then(|| Urgency::new(PriorityMap::from_history(&history))),
            cores: vec![EvictCores::default(); servers as usize],
            pool,
            prepare_page: prepare(URGENT_PACKET),
            prepare_batch: prepare(BATCH),
            uef_count: 0,
            ref_count: 0,
            fct: Histogram::default(),
        }
    }

    fn run(&mut self) {
        for job in 0..self.jobs.len() as u32 {
            self.compute(self.jobs[job as usize].started, job);
        }
        while self.unfinished > 0 {
            let Some((now, event)) = self.events.take() else {
                unreachable!("a job waits for something that never comes");
            };
            match event {
                Event::Hop(hop) => {
                    if let Some(packet) = self.fabric.handle(&mut self.events, hop) {
                        self.delivered(now, packet);
                    }
                }
                Event::Computed(job, Due::Charge) => self.charge(now, job),
                Event::Computed(job, Due::End) => self.finish(now, job),
                Event::UrgentPrepared(job) => self.send_urgent(job),
                Event::RegularPrepared(job) => self.send_regular(job),
                Event::UrgentAcknowledged(job, bytes) => self.urgent_acknowledged(now, job, bytes),
                Event::RegularAcknowledged(job, bytes) => {
                    self.regular_acknowledged(now, job, bytes);
                }
                Event::Asked(job, at) => self.answer_read(job, at),
            }
        }
        self.fabric.check_conservation();
    }

    fn compute(&mut self, now: Nanos, job: u32) {
        let (time, due) = self.jobs[job as usize].compute();
        self.events.add(now + time, Event::Computed(job, due));
    }

    fn finish(&mut self, now: Nanos, job: u32) {
        let state = &mut self.jobs[job as usize];
        if state.finished.is_none() {
            state.finished = Some(now);
            self.unfinished -= 1;
        }
        state.restart();
        self.compute(now, job);
    }

    fn charge(&mut self, now: Nanos, job: u32) {
        let state = &mut self.jobs[job as usize];
        if !state.has_room() {
            let flow = self.flow(now, job, true);
            self.jobs[job as usize].urgent = Some(flow);
            let at = now + self.prepare_page;
            self.events.add(at, Event::UrgentPrepared(job));
            return;
        }
        state.charge(now);
        let read = state.due_is_miss;
        self.ask_for_core(now, job);
        if read {
            let state = &mut self.jobs[job as usize];
            state.wait_began = now;
            let at = other_than(&self.pool, state.server, &mut state.rng);
            let travel = self.fabric.routes().short_message(state.server, at);
            self.events.add(now + travel, Event::Asked(job, at));
        } else {
            self.compute(now, job);
        }
    }

    /// Begins an eviction: where it goes and how urgent it is.
    fn flow(&mut self, now: Nanos, job: u32, blocked: bool) -> Flow {
        let state = &mut self.jobs[job as usize];
        let class = match &self.urgency {
            Some(urgency) => urgency.class(&state.pressure(blocked)),
            None => EQUAL,
        };
        Flow {
            class,
            to: other_than(&self.pool, state.server, &mut state.rng),
            spine: state.rng.below(u64::from(self.config.topology.spines)) as u16,
            began: now,
            unsent: BATCH,
        }
    }

    fn send_urgent(&mut self, job: u32) {
        let state = &mut self.jobs[job as usize];
        let flow = state.urgent.as_mut().expect("the program is blocked");
        let bytes = URGENT_PACKET.min(flow.unsent);
        flow.unsent -= bytes;
        let packet = packet(bytes, state.server, flow, Cargo::Urgent(job));
        self.fabric.send(&mut self.events, packet);
    }

    fn urgent_acknowledged(&mut self, now: Nanos, job: u32, bytes: u32) {
        let state = &mut self.jobs[job as usize];
        state.acknowledged(Bytes(u64::from(bytes)));
        let flow = state.urgent.expect("the program is blocked");
        if flow.unsent > Bytes::ZERO {
            let at = now + self.prepare_page;
            self.events.add(at, Event::UrgentPrepared(job));
            return;
        }
        state.urgent = None;
        let took = now - flow.began;
        if state.finished.is_none() {
            state.blocked += took;
            if state.intensive {
                self.uef_count += 1;
                self.fct.add(took);
            }
        }
        self.charge(now, job);
    }

    fn ask_for_core(&mut self, now: Nanos, job: u32) {
        let state = &mut self.jobs[job as usize];
        if state.asked_at.is_some() || !state.wants_eviction() {
            return;
        }
        state.asked_at = Some(now);
        let server = usize::from(state.server);
        self.cores[server].waiting.push_back(job);
        self.give_cores(now, server);
    }

    fn give_cores(&mut self, now: Nanos, server: usize) {
        while self.cores[server].busy < self.config.evict_cores {
            let Some(job) = self.cores[server].waiting.pop_front() else {
                return;
            };
            self.cores[server].busy += 1;
            let flow = self.flow(now, job, false);
            self.jobs[job as usize].regular = Some(flow);
            let at = now + self.prepare_batch;
            self.events.add(at, Event::RegularPrepared(job));
        }
    }

    /// A prepared batch goes out at once.
    fn send_regular(&mut self, job: u32) {
        let state = &mut self.jobs[job as usize];
        let mut flow = state.regular.take().expect("a core has prepared a batch");
        let from = state.server;
        state.regular_unacknowledged = flow.unsent;
        if state.intensive && state.finished.is_none() {
            self.ref_count += 1;
        }
        while flow.unsent > Bytes::ZERO {
            let bytes = PACKET.min(flow.unsent);
            flow.unsent -= bytes;
            let packet = packet(bytes, from, &flow, Cargo::Regular(job));
            self.fabric.send(&mut self.events, packet);
        }
    }

    /// When all of a batch is acknowledged the core is free for the next.
    fn regular_acknowledged(&mut self, now: Nanos, job: u32, bytes: u32) {
        let bytes = Bytes(u64::from(bytes));
        let state = &mut self.jobs[job as usize];
        state.acknowledged(bytes);
        state.regular_unacknowledged -= bytes;
        if state.regular_unacknowledged > Bytes::ZERO {
            return;
        }
        // What the job had of the eviction: from asking for a core to having the memory.
        let asked_at = state.asked_at.take().expect("a core works for the job");
        state.threshold.handle_evicted(BATCH, now - asked_at);
        let server = usize::from(state.server);
        self.cores[server].busy -= 1;
        self.ask_for_core(now, job);
        self.give_cores(now, server);
    }

    fn answer_read(&mut self, job: u32, at: u16) {
        let state = &mut self.jobs[job as usize];
        let mut flow = Flow {
            class: Class::Demand,
            to: state.server,
            spine: state.rng.below(u64::from(self.config.topology.spines)) as u16,
            began: Nanos::ZERO,
            unsent: BATCH,
        };
        let mut cargo = Cargo::ReadFirst(job);
        while flow.unsent > Bytes::ZERO {
            let bytes = PACKET.min(flow.unsent);
            flow.unsent -= bytes;
            self.fabric
                .send(&mut self.events, packet(bytes, at, &flow, cargo));
            cargo = Cargo::ReadAhead;
        }
    }

    fn delivered(&mut self, now: Nanos, packet: Packet) {
        let back = self.fabric.routes().short_message(packet.to, packet.from);
        match Cargo::of(packet.tag) {
            Cargo::Urgent(job) => {
                let event = Event::UrgentAcknowledged(job, packet.bytes);
                self.events.add(now + back, event);
            }
            Cargo::Regular(job) => {
                let event = Event::RegularAcknowledged(job, packet.bytes);
                self.events.add(now + back, event);
            }
            Cargo::ReadFirst(job) => {
                let state = &mut self.jobs[job as usize];
                if state.finished.is_none() {
                    state.reading += now - state.wait_began;
                }
                self.compute(now, job);
            }
            Cargo::ReadAhead => {}
        }
    }

    fn report(&self) -> Report {
        let elapsed = self.events.now();
        let mean_s = |intensive: bool, value: fn(&Job) -> Nanos| {
            let jobs = self.jobs.iter().filter(|job| job.intensive == intensive);
            let (count, sum_ns) = jobs.fold((0u64, 0u128), |(count, sum), job| {
                (count + 1, sum + u128::from(value(job).0))
            });
            sum_ns as f64 / 1e9 / count.max(1) as f64
        };
        let jct = |job: &Job| job.jct().expect("every job is done");
        Report {
            jct_s: mean_s(true, jct),
            others_jct_s: mean_s(false, jct),
            blocked_s: mean_s(true, |job| job.blocked),
            reading_s: mean_s(true, |job| job.reading),
            uef_count: self.uef_count,
            ref_count: self.ref_count,
            fct_us_mean: self.fct.mean_us(),
            fct_us_p99: self.fct.quantile_us(0.99),
            tiers: Tier::ALL.map(|tier| self.fabric.load(tier, elapsed)),
            delivered: self.fabric.delivered(),
        }
    }
}

/// What the jobs of a server do, and when they begin. They are the tasks of one piece of work, in
/// step with each other as the phases of an analytics job are.
fn work(config: &Config, intensive: bool, rng: &mut SplitMix64) -> (Arc<Trace>, Nanos) {
    let trace = match &config.trace {
        Some(trace) if intensive => Arc::clone(trace),
        _ if intensive => Arc::new(Shape::of(config.job).trace(config.scale, false, rng)),
        _ => Arc::new(Shape::of(JobKind::Other).trace(config.scale, true, rng)),
    };
    let started = Nanos((rng.unit() * STARTS_WITHIN.0 as f64 / config.scale) as u64);
    (trace, started)
}

fn job(
    config: &Config,
    server: u32,
    intensive: bool,
    trace: Arc<Trace>,
    started: Nanos,
    rng: SplitMix64,
) -> Job {
    let (ratio, scale) = if intensive {
        (config.local_ratio, config.scale)
    } else {
        (Config::OTHER_LOCAL_RATIO, 1.0)
    };
    let limit = Bytes(((trace.working_set.0 as f64 * ratio) as u64).max(2 * HEADROOM_MIN.0));
    let headroom = Bytes((Config::HEADROOM.0 as f64 / scale) as u64).max(HEADROOM_MIN);
    let mut params = Params::for_limit(limit, headroom);
    params.lower = if config.module.adapts_threshold() {
        let lower = (limit.0 as f64 * Config::THRESHOLD_LOWER_SHARE) as u64;
        Bytes(lower).min(params.upper)
    } else {
        params.upper
    };
    // About 32 cycles to fill the local memory once.
    params.cycle_charges = (limit.0 / BATCH.0 / 32).clamp(4, 1024) as u32;
    params.evict_rate_initial = config.evict_mb_s * 1e6;
    let threshold = Threshold::new(params);
    Job::new(
        server as u16,
        intensive,
        limit,
        threshold,
        trace,
        started,
        rng,
    )
}

fn packet(bytes: Bytes, from: u16, flow: &Flow, cargo: Cargo) -> Packet {
    Packet {
        bytes: bytes.0 as u32,
        from,
        to: flow.to,
        spine: flow.spine,
        class: flow.class,
        tag: cargo.tag(),
    }
}

/// A random server of the pool, but not this one.
fn other_than(pool: &[u16], server: u16, rng: &mut SplitMix64) -> u16 {
    let index = rng.below(pool.len() as u64) as usize;
    if pool[index] == server {
        pool[(index + 1) % pool.len()]
    } else {
        pool[index]
    }
}
