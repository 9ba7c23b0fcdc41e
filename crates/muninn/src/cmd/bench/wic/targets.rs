//! The ratios that are promised, each with what it is compared to, measured side by side.

use super::super::{Measurement, median, percentile};
use super::load::{App, AppName};
use super::stage::{Over, Spot, Stage, failed};
use super::{Case, Run, wasm};
use crate::failure::Failure;
use crate::ui::Progress;
use muninn_proto::server::{CallerOf, SegmentMemory, Service as Shared};
use muninn_server::{CallFactory, CallHost, MemfdBacking, OnEnd};
use muninn_sys::clock;
use muninn_sys::memory::{HugeAdvice, Mapping};
use muninn_types::{Bytes, Nanos, SplitMix64};
use muninn_wic::apps::list;
use muninn_wic::local::{Chunks, Limits, LocalHosts, LocalMemory, Style, Window};
use muninn_wic::{Addr, Ended, Layout, Reply, Tuning, Wic, WicEntry};
use muninn_wire::{Called, ErrorCode, Refusal};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;
use zerocopy::FromBytes;

pub const ROUNDS: usize = 7;
const WARM_UP: Duration = Duration::from_millis(50);
const TIME: Duration = Duration::from_millis(200);

/// Measurements that are made together, by the names of what comes out.
type Part = (
    &'static [&'static str],
    fn() -> Result<Vec<Measurement>, Failure>,
);

const PARTS: [Part; 7] = [
    (&["resume"], resume),
    (&["async.4-nodes", "async.16-nodes"], window),
    (
        &[
            "server-sync.rate",
            "server-async.rate",
            "server-sync.latency",
            "server-async.latency",
        ],
        against_by_hand,
    ),
    (&["multiplexing", "batching"], multiplexing),
    (
        &[
            "wasm.server",
            "wasm.client",
            "wasm.client.mapped",
            "wasm.nic",
        ],
        wasm::against_built_in,
    ),
    (&["wasm.push", "wasm.first-call"], wasm::cold),
    (
        &[
            "client-vs-server.1-node",
            "client-vs-server.8-nodes",
            "nic-vs-client.2-nodes",
            "nic-vs-client.8-nodes",
            "client-vs-server.mapped",
        ],
        crossing,
    ),
];

fn is_wanted(name: &str, only: Option<&str>) -> bool {
    only.is_none_or(|only| name.starts_with(only))
}

fn wanted_parts(only: Option<&str>) -> impl Iterator<Item = &'static Part> {
    let wanted = move |part: &&Part| part.0.iter().any(|name| is_wanted(name, only));
    PARTS.iter().filter(wanted)
}

fn wanted_automatic(only: Option<&str>) -> impl Iterator<Item = &'static Automatic> {
    AUTOMATIC.iter().filter(move |case| is_wanted(case.0, only))
}

/// Steps of [`measure`], for the progress bar.
pub fn steps(only: Option<&str>) -> u64 {
    (wanted_parts(only).count() + wanted_automatic(only).count()) as u64
}

/// Measures all, or those whose names begin with `only` and what is measured together with them.
pub fn measure(bar: &Progress, only: Option<&str>) -> Result<Vec<Measurement>, Failure> {
    let mut all = Vec::new();
    for (_, part) in wanted_parts(only) {
        all.extend(part()?);
        bar.inc(1);
    }
    if wanted_automatic(only).next().is_some() {
        all.extend(automatic(bar, only)?);
    }
    Ok(all)
}

pub fn base_case() -> Case {
    Case {
        app: AppName::List,
        place: Spot::ServerSync,
        over: Over::Tcp,
        nodes: 4,
        locks: 1,
        in_flight: 64,
        rate: None,
        memory: Bytes::mib(64),
        window: 8,
        wasm: false,
        tuning: Tuning {
            depth: 64,
            ..Tuning::default()
        },
        warm_up: WARM_UP,
        time: TIME,
    }
}

/// Suspends, and is resumed.
struct Yield(bool);

impl Future for Yield {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.0, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        }
    }
}

/// What it costs to suspend a function and to resume the next.
fn resume() -> Result<Vec<Measurement>, Failure> {
    const YIELDS: u64 = 200_000;
    // The least disturbed round: what disturbs is not what is asked for.
    let ns = (0..2 * ROUNDS)
        .map(|_| {
            let mut window = Window::new(8, 1 << 20);
            for _ in 0..8 {
                let running = Box::pin(async {
                    for _ in 0..YIELDS {
                        Yield(false).await;
                    }
                    Ended {
                        result: Ok(Reply::from_bytes(&[])),
                        accesses: 0,
                    }
                });
                window.push(running, (), Nanos(u64::MAX));
            }
            let begin = clock::now();
            while !window.is_empty() {
                window.run(clock::now(), |(), _| {});
            }
            (clock::now() - begin).0 as f64 / (8 * YIELDS) as f64
        })
        .fold(f64::MAX, f64::min);
    let may_be = (10.0, "ns, what may be");
    Ok(vec![Measurement::new("resume", (ns, "ns"), may_be, "<= 1")])
}

/// A ring in memory of this process, far larger than any cache.
fn far_larger_than_cache(bytes: Bytes) -> Result<(Rc<Chunks>, list::Ring), Failure> {
    let options = Mapping::options().huge(HugeAdvice::Wanted);
    let map = options.anonymous(bytes).map_err(failed)?;
    let layout = Layout {
        base: 4096,
        bytes: bytes.0,
        locks: 1,
        shift: bytes.0.ilog2() as u8,
    };
    let starts = vec![map.as_ptr()];
    // SAFETY: the mapping is `bytes` long, a power of two, writable, and kept with the chunks; no
    // reference into it exists.
    let chunks = unsafe { Chunks::new(layout, starts, Box::new(map)) };
    let count = (bytes.0 - layout.base) / list::STRIDE;
    let ring = list::Ring::new(Addr(layout.base), count as u32, 3);
    ring.fill(|at, image| chunks.write(at, image))
        .map_err(failed)?;
    Ok((Rc::new(chunks), ring))
}

/// Traversals a second by an executor, without a network in front of it.
pub fn executor_rate(
    chunks: &Rc<Chunks>,
    ring: &list::Ring,
    (style, size): (Style, usize),
    nodes: u32,
) -> f64 {
    const CALLS: u32 = 20_000;
    let entry = const { WicEntry::of::<list::traverse>() };
    let mut rng = SplitMix64::new(5);
    let limits = Limits::default();
    let mut window: Window<()> = Window::new(size, limits.allocated);
    let begin = clock::now();
    let mut pushed = 0;
    while pushed < CALLS || !window.is_empty() {
        // As calls come from a network: some at a time.
        while pushed < CALLS && window.len() < 64 {
            let start = ring.address(rng.below(u64::from(ring.count())) as u32);
            let args = postcard_args(start.0, nodes);
            let memory = LocalMemory::new(Rc::clone(chunks), style, 255, limits);
            if let Ok(running) = (entry.start)(memory, &args) {
                window.push(running, (), Nanos(u64::MAX));
            }
            pushed += 1;
        }
        window.run(clock::now(), |(), _| {});
    }
    f64::from(CALLS) * 1e9 / (clock::now() - begin).0 as f64
}

fn postcard_args(start: u64, nodes: u32) -> Vec<u8> {
    let args: <list::traverse as Wic>::Args = (start, nodes);
    Reply::encode(&args)
        .map(|encoded| encoded.bytes().to_vec())
        .unwrap_or_default()
}

/// The list of the window's measurement, and windows beside 8.
pub fn big_list() -> Result<(Rc<Chunks>, list::Ring), Failure> {
    far_larger_than_cache(Bytes::gib(1))
}

fn window() -> Result<Vec<Measurement>, Failure> {
    let (chunks, ring) = big_list()?;
    let mut all = Vec::new();
    for (name, nodes) in [("async.4-nodes", 4), ("async.16-nodes", 16)] {
        let (mut sync, mut windowed) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            sync.push(executor_rate(&chunks, &ring, (Style::Sync, 1), nodes));
            windowed.push(executor_rate(&chunks, &ring, (Style::Prefetch, 8), nodes));
        }
        all.push(Measurement::new(
            name,
            (median(&mut windowed), "calls/s"),
            (median(&mut sync), "calls/s, sync"),
            ">= 1.5",
        ));
    }
    Ok(all)
}

/// A traversal written by hand into the server's request loop: no future, no executor, no registry.
#[derive(Debug)]
struct ByHand;

struct ByHandHost(Vec<(CallerOf, Result<u64, Refusal>)>);

impl CallFactory for ByHand {
    fn find(&self, _owner: &str, _name: &str, _version: u32) -> Result<u32, Option<u32>> {
        Ok(0)
    }
    fn host(&self, _index: usize) -> Box<dyn CallHost> {
        Box::new(ByHandHost(Vec::new()))
    }
}

fn walk(service: &Shared<MemfdBacking>, start: u64, nodes: u32) -> Result<u64, Refusal> {
    let (mut at, mut value) = (start, 0);
    for _ in 0..nodes {
        let mut bytes = [0; 16];
        let out = || Refusal::with(ErrorCode::OutOfBounds, at, 0);
        if at < service.info.base || at.saturating_add(16) > service.info.bytes {
            return Err(out());
        }
        let (_, extent) = service
            .chunks
            .get((at >> service.info.shift) as usize)
            .ok_or_else(out)?;
        let within = at & ((1 << service.info.shift) - 1);
        extent.mem().read(extent.start() + within, &mut bytes);
        let node = list::Node::read_from_bytes(&bytes).map_err(|_| out())?;
        (value, at) = (node.value, node.next.0);
    }
    Ok(value)
}

impl CallHost for ByHandHost {
    fn submit(
        &mut self,
        caller: &CallerOf,
        service: Option<&Arc<Shared<MemfdBacking>>>,
        args: &[u8],
        _now: Nanos,
    ) -> Result<(), Refusal> {
        let service = service.ok_or(Refusal::new(ErrorCode::NoService))?;
        let args: Option<(u64, u32)> = Reply::from_bytes(args).decode();
        let (start, nodes) = args.ok_or(Refusal::new(ErrorCode::Malformed))?;
        self.0.push((*caller, walk(service, start, nodes)));
        Ok(())
    }
    fn run(&mut self, _now: Nanos, end: &mut OnEnd<'_>) -> bool {
        for (caller, result) in self.0.drain(..) {
            let encoded = result.map(|value| Reply::encode(&value));
            match encoded {
                Ok(Ok(reply)) => {
                    let called = Called {
                        accesses: 4,
                        took_ns: 0,
                        reply: reply.bytes(),
                    };
                    end(&caller, &Ok(called));
                }
                Ok(Err(_)) => end(&caller, &Err(Refusal::new(ErrorCode::Internal))),
                Err(refusal) => end(&caller, &Err(refusal)),
            }
        }
        true
    }
    fn under_way(&self) -> usize {
        self.0.len()
    }
}

/// Rounds of several cases in turn, so that what disturbs the machine disturbs all of them alike.
pub fn in_turn(cases: &[(&Stage, Case)], rounds: usize) -> Result<Vec<Vec<Run>>, Failure> {
    let mut ready = Vec::new();
    for (stage, case) in cases {
        let service = case.open(stage)?;
        let app = case.fill(stage, &service)?;
        ready.push((service, app, case));
    }
    let mut found: Vec<Vec<Run>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((service, app, case), runs) in ready.iter().zip(&mut found) {
            runs.push(case.measure_on(service, app)?);
        }
    }
    Ok(found)
}

/// The upper quartile: whatever else a machine does only ever takes from a rate, and a single lucky
/// round is none.
pub fn rates(runs: &[Run]) -> f64 {
    let mut rates: Vec<f64> = runs.iter().map(|r| r.throughput_per_s).collect();
    percentile(&mut rates, 0.75)
}
fn p50s(runs: &[Run]) -> f64 {
    median(&mut runs.iter().map(|r| r.latency_us.p50).collect::<Vec<_>>())
}

/// The ways to run the same calls on the same memory: two services would lie on pages of different luck.
#[derive(Debug)]
struct Switch {
    /// Which of the ways takes the next call. Changed only while none is under way.
    way: Arc<AtomicUsize>,
    ways: Vec<Arc<dyn CallFactory>>,
}

struct SwitchHost {
    way: Arc<AtomicUsize>,
    hosts: Vec<Box<dyn CallHost>>,
}

impl CallFactory for Switch {
    fn find(&self, owner: &str, name: &str, version: u32) -> Result<u32, Option<u32>> {
        // By hand there is one function, whatever its number.
        let last = self.ways.last();
        last.map_or(Err(None), |way| way.find(owner, name, version))
    }
    fn host(&self, index: usize) -> Box<dyn CallHost> {
        Box::new(SwitchHost {
            way: Arc::clone(&self.way),
            hosts: self.ways.iter().map(|way| way.host(index)).collect(),
        })
    }
}

impl CallHost for SwitchHost {
    fn submit(
        &mut self,
        caller: &CallerOf,
        service: Option<&Arc<Shared<MemfdBacking>>>,
        args: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        self.hosts[self.way.load(Relaxed)].submit(caller, service, args, now)
    }
    fn run(&mut self, now: Nanos, end: &mut OnEnd<'_>) -> bool {
        self.hosts[self.way.load(Relaxed)].run(now, end)
    }
    fn under_way(&self) -> usize {
        self.hosts[self.way.load(Relaxed)].under_way()
    }
}

fn against_by_hand() -> Result<Vec<Measurement>, Failure> {
    let case = base_case();
    let alone = Case {
        in_flight: 1,
        ..case
    };
    let way = Arc::new(AtomicUsize::new(0));
    let switch = Switch {
        way: Arc::clone(&way),
        ways: vec![
            Arc::new(ByHand),
            Arc::new(LocalHosts::sync()),
            Arc::new(LocalHosts::prefetching(8)),
        ],
    };
    let stage = Stage::new(case.memory, Arc::new(switch), false)?;
    let service = case.open(&stage)?;
    let app = App::fill(case.app, &service, case.nodes, case.place.place())?;
    let (mut loaded, mut unloaded) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for _ in 0..ROUNDS {
        for at in 0..3 {
            way.store(at, Relaxed);
            loaded[at].push(case.measure_on(&service, &app)?);
            unloaded[at].push(alone.measure_on(&service, &app)?);
        }
    }
    let rate = |at: usize, what| (rates(&loaded[at]), what);
    let time = |at: usize, what| (p50s(&unloaded[at]), what);
    let (hand, per_s) = ("by hand", "calls/s");
    Ok(vec![
        Measurement::new("server-sync.rate", rate(1, per_s), rate(0, hand), ">= 1"),
        Measurement::new("server-async.rate", rate(2, per_s), rate(0, hand), ">= 1"),
        Measurement::new(
            "server-sync.latency",
            time(1, "us"),
            time(0, hand),
            "<= 1.1",
        ),
        Measurement::new(
            "server-async.latency",
            time(2, "us"),
            time(0, hand),
            "<= 1.1",
        ),
    ])
}

fn multiplexing() -> Result<Vec<Measurement>, Failure> {
    let client = Case {
        place: Spot::Client,
        ..base_case()
    };
    let alone = Tuning {
        multiplex: 1,
        ..client.tuning
    };
    let single = Tuning {
        batch: 1,
        ..client.tuning
    };
    let stage = Stage::new(client.memory, Arc::new(LocalHosts::sync()), false)?;
    let cases = [client.tuning, alone, single].map(|tuning| Case { tuning, ..client });
    let found = in_turn(&cases.map(|case| (&stage, case)), ROUNDS)?;
    let rate = (rates(&found[0]), "calls/s");
    let one = (rates(&found[1]), "one at a time");
    let each = (rates(&found[2]), "each sent alone");
    Ok(vec![
        Measurement::new("multiplexing", rate, one, ">= 5"),
        Measurement::new("batching", rate, each, ">= 1.5"),
    ])
}

/// One call at a time, by nodes: where each place is best.
fn crossing() -> Result<Vec<Measurement>, Failure> {
    let at = |place, over, nodes| Case {
        place,
        over,
        nodes,
        in_flight: 1,
        ..base_case()
    };
    let stage = Stage::usual(Bytes::mib(64), Spot::Auto, 8)?;
    let cases = [
        at(Spot::Client, Over::Tcp, 1),
        at(Spot::ServerSync, Over::Tcp, 1),
        at(Spot::Client, Over::Tcp, 2),
        at(Spot::Nic, Over::Tcp, 2),
        at(Spot::Client, Over::Tcp, 8),
        at(Spot::Nic, Over::Tcp, 8),
        at(Spot::Client, Over::Shm, 4),
        at(Spot::ServerSync, Over::Shm, 4),
        at(Spot::ServerSync, Over::Tcp, 8),
    ];
    let found = in_turn(&cases.map(|case| (&stage, case)), ROUNDS)?;
    let time = |i: usize| (p50s(&found[i]), "us");
    let of = |i: usize, what| (p50s(&found[i]), what);
    Ok(vec![
        Measurement::new("client-vs-server.1-node", time(0), of(1, "server"), ""),
        Measurement::new("client-vs-server.8-nodes", time(4), of(8, "server"), ""),
        Measurement::new("nic-vs-client.2-nodes", time(3), of(2, "client"), "<= 1"),
        Measurement::new("nic-vs-client.8-nodes", time(5), of(4, "client"), "<= 1"),
        Measurement::new("client-vs-server.mapped", time(6), of(7, "server"), "<= 1"),
    ])
}

/// Loads and lengths at which the best place differs: name, way, nodes, calls under way.
type Automatic = (&'static str, Over, u32, u32);
const AUTOMATIC: [Automatic; 7] = [
    ("auto.tcp.1-node.alone", Over::Tcp, 1, 1),
    ("auto.tcp.4-nodes.alone", Over::Tcp, 4, 1),
    ("auto.tcp.16-nodes.alone", Over::Tcp, 16, 1),
    ("auto.tcp.1-node.loaded", Over::Tcp, 1, 64),
    ("auto.tcp.4-nodes.loaded", Over::Tcp, 4, 64),
    ("auto.shm.4-nodes.alone", Over::Shm, 4, 1),
    ("auto.shm.16-nodes.loaded", Over::Shm, 16, 64),
];

/// Muninn's choice against the best place.
fn automatic(bar: &Progress, only: Option<&str>) -> Result<Vec<Measurement>, Failure> {
    let stage = Stage::usual(Bytes::mib(64), Spot::Auto, 8)?;
    let sync = Stage::usual(Bytes::mib(64), Spot::ServerSync, 8)?;
    let windowed = Stage::usual(Bytes::mib(64), Spot::ServerAsync, 8)?;
    let stages = [
        (Spot::Client, &stage),
        (Spot::ServerSync, &sync),
        (Spot::ServerAsync, &windowed),
        (Spot::Nic, &stage),
        (Spot::Auto, &stage),
    ];
    // Keep the memory from one case to the next.
    let keepers = stages.map(|(_, stage)| base_case().open(stage));
    let _keepers: Vec<_> = keepers.into_iter().collect::<Result<_, _>>()?;
    let mut all = Vec::new();
    for &(name, over, nodes, in_flight) in wanted_automatic(only) {
        let cases = stages.map(|(place, stage)| {
            let case = Case {
                place,
                over,
                nodes,
                in_flight,
                ..base_case()
            };
            (stage, case)
        });
        let found = in_turn(&cases, ROUNDS)?;
        let best = found[..4]
            .iter()
            .map(|runs| rates(runs))
            .fold(0.0, f64::max);
        let auto = (rates(&found[4]), "calls/s");
        all.push(Measurement::new(name, auto, (best, "best place"), ">= 0.9"));
        bar.inc(1);
    }
    Ok(all)
}
