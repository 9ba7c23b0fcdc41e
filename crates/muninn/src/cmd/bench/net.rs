//! `muninn bench net`: what the transports cost beside a bare memcpy and bare sockets.

use super::bare::{self, BarePeer};
use super::{Measurement, median, percentile};
use crate::failure::{Exit, Failure, Outcome};
use crate::ui::{Table, print_json, print_out, progress};
use muninn_net::{Answer, Control};
use muninn_net::{
    Buffer, Key, Lane, NetError, Operation, SessionOptions, Transport, Verb, connect,
};
use muninn_server::{Server, ServerConfig};
use muninn_sys::memory::{HugeAdvice, Mapping, Memfd};
use muninn_sys::{clock, pm_qos};
use muninn_types::{Bytes, Class, GrantId, LaneKind, PAGE_SIZE, SplitMix64};
use muninn_wire::{HEADER_LEN, MAX_SEGS, Seg};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  muninn bench net\n  muninn bench net --memory 512MiB --json")]
pub struct Args {
    /// Memory that reads are spread over; larger than the last-level cache means cold reads
    #[arg(long, default_value = "1GiB")]
    pub memory: Bytes,
    /// Rounds of each measurement; the median is reported
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Only measurements whose name contains this
    #[arg(long)]
    pub only: Option<String>,
    /// Fail (exit code 5) if a target is missed
    #[arg(long)]
    pub check: bool,
    /// Print JSON: one object per measurement
    #[arg(long)]
    pub json: bool,
}

/// CPUs of the client and of the server.
const CLIENT_CPU: usize = 0;
const SERVER_CPU: usize = 1;
/// Page reads in a round, and runs of 64 pages.
const PAGES_PER_ROUND: usize = 4096;
const RUNS_PER_ROUND: usize = 128;
const PINGS_PER_ROUND: usize = 4000;
const GRANT: Bytes = Bytes::mib(64);

type Step = fn(&Bench<'_>) -> Result<Vec<Measurement>, Failure>;

const STEPS: &[(&str, Step)] = &[
    // First: its server is a process of its own, and would inherit the CPU that others bind to.
    ("server", |_| super::scale::measure()),
    ("shm", shm),
    ("tcp.page", tcp_page),
    ("tcp.scatter", tcp_scatter),
    ("tcp.protected", tcp_protected),
    ("demand", demand_under_load),
];

pub fn run(args: &Args) -> Outcome {
    if args.memory < Bytes::mib(64) {
        return Err(Failure::usage(format!(
            "--memory {} is too little to measure with: use 64MiB or more",
            args.memory
        )));
    }
    // Sleeping CPUs would be all that is measured.
    let awake = pm_qos::keep_awake();
    let bench = Bench { args };
    let wanted = |name: &str| {
        args.only
            .as_ref()
            .is_none_or(|only| name.contains(only.as_str()))
    };
    let steps: Vec<_> = STEPS.iter().filter(|(name, _)| wanted(name)).collect();
    if steps.is_empty() {
        let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
        return Err(Failure::usage(format!(
            "--only matches none of: {}",
            names.join(", ")
        )));
    }
    let bar = progress(steps.len() as u64, "bench net");
    let mut all = Vec::new();
    for (name, step) in steps {
        bar.set_message(format!("bench net: {name}"));
        all.extend(step(&bench)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json {
        print_json(&all);
    } else {
        print_table(&all);
        if let Err(error) = awake {
            print_out(&format!(
                "\nCPUs could not be kept awake, latencies are too high: {error}"
            ));
        }
    }
    let missed: Vec<&str> = all
        .iter()
        .filter(|m| m.met == Some(false))
        .map(|m| m.name)
        .collect();
    if args.check && !missed.is_empty() {
        let message = format!("targets missed: {}", missed.join(", "));
        return Err(Failure::new(Exit::CheckFailed, message));
    }
    Ok(())
}

pub fn print_table(all: &[Measurement]) {
    let mut table = Table::new([
        "measurement",
        "value",
        "unit",
        "baseline",
        "ratio",
        "target",
        "",
    ]);
    for m in all {
        let met = match m.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        };
        table.row([
            m.name.to_string(),
            format!("{:.4}", Short(m.value)),
            m.unit.to_string(),
            format!("{} {}", Short(m.baseline), m.against),
            format!("{:.2}", m.ratio),
            m.target.to_string(),
            met.to_string(),
        ]);
    }
    print_out(&table.to_string());
}

/// A number with three or four digits that matter.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = match self.0.abs() {
            v if v >= 100.0 => 0,
            v if v >= 10.0 => 1,
            _ => 2,
        };
        f.write_str(&format!("{:.digits$}", self.0))
    }
}

struct Bench<'a> {
    args: &'a Args,
}

/// A server in this process and a session at it, with grants over all of its memory.
struct Setup {
    transport: Arc<dyn Transport>,
    grants: Vec<GrantId>,
    _server: Server,
    _dir: TempSocket,
}

/// A socket path of our own; the server removes the socket itself.
struct TempSocket(std::path::PathBuf);

impl TempSocket {
    fn new() -> TempSocket {
        let name = format!("muninn-bench-{:016x}.sock", muninn_sys::rand::u64());
        TempSocket(std::env::temp_dir().join(name))
    }
}

impl Drop for TempSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the bench cannot go on: {error}"))
}

fn options(key: Key) -> SessionOptions {
    // The client spins for as long as it waits, as the bare socket does.
    let spin = Duration::from_millis(10);
    SessionOptions {
        name: "bench".to_string(),
        spin,
        key,
        ..SessionOptions::default()
    }
}

fn start_server(memory: Bytes, socket: &TempSocket, key: Key) -> Result<Server, Failure> {
    let config = ServerConfig {
        name: "bench".to_string(),
        memory,
        segment: Some(GRANT),
        listen: vec![
            muninn_sys::socket::Address::unix(&socket.0).map_err(failed)?,
            std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into(),
        ],
        spin: Duration::from_millis(1),
        cpu: Some(SERVER_CPU),
        key,
        ..ServerConfig::default()
    };
    Server::start(config).map_err(failed)
}

fn setup(memory: Bytes, tcp: bool) -> Result<Setup, Failure> {
    setup_with(memory, tcp, Key::none())
}

fn setup_with(memory: Bytes, tcp: bool, key: Key) -> Result<Setup, Failure> {
    bare::pin(CLIENT_CPU);
    let dir = TempSocket::new();
    let server = start_server(memory, &dir, key.clone())?;
    let address = server.addresses()[usize::from(tcp)].clone();
    let transport = connect(&address, &options(key)).map_err(failed)?;
    let mut grants = Vec::new();
    for _ in 0..memory.0 / GRANT.0 {
        grants.push(grant(transport.as_ref(), GRANT)?);
    }
    // Every page is filled, so that none is the kernel's shared zero page.
    let mut lane = transport.lane(LaneKind::Bulk).map_err(failed)?;
    let mut run = vec![0u8; MAX_SEGS * PAGE_SIZE];
    let mut rng = SplitMix64::new(1);
    rng.fill(&mut run);
    for grant in &grants {
        for at in (0..GRANT.0).step_by(run.len()) {
            let seg = Seg::new(*grant, at as u32, run.len() as u32);
            lane.write_v(Class::Eviction(4), &[seg], &run)
                .map_err(failed)?;
        }
    }
    Ok(Setup {
        transport,
        grants,
        _server: server,
        _dir: dir,
    })
}

fn grant(transport: &dyn Transport, bytes: Bytes) -> Result<GrantId, Failure> {
    let ask = Control::Grant { bytes: bytes.0 };
    match transport
        .call(ask, Duration::from_secs(10))
        .map_err(failed)?
    {
        Answer::Granted(info) => Ok(info.grant),
        other => Err(failed(format!("unexpected answer {other:?}"))),
    }
}

impl Setup {
    /// Page `n` of all grants together.
    fn page(&self, n: usize) -> Seg {
        let per_grant = GRANT.whole_pages() as usize;
        let offset = (n % per_grant) * PAGE_SIZE;
        Seg::new(self.grants[n / per_grant], offset as u32, PAGE_SIZE as u32)
    }
    fn pages(&self) -> usize {
        self.grants.len() * GRANT.whole_pages() as usize
    }
}

/// Nanoseconds for each of `n` calls.
fn time(n: usize, mut work: impl FnMut(usize)) -> f64 {
    let start = clock::now();
    for i in 0..n {
        work(i);
    }
    (clock::now() - start).0 as f64 / n as f64
}

/// A mapping of the same kind as a segment, filled, to copy from with nothing around it.
fn bare_memory(memory: Bytes) -> Result<Mapping, Failure> {
    let file = Memfd::create("muninn-bench", memory).map_err(failed)?;
    let options = Mapping::options().shared().huge(HugeAdvice::Wanted);
    let map = options.file(&file, 0, memory).map_err(failed)?;
    let mut page = vec![0; PAGE_SIZE];
    let mut rng = SplitMix64::new(2);
    for at in (0..memory.0).step_by(PAGE_SIZE) {
        rng.fill(&mut page[..64]);
        map.write_at(at, &page).map_err(failed)?;
    }
    Ok(map)
}

fn shm(bench: &Bench<'_>) -> Result<Vec<Measurement>, Failure> {
    let memory = Bytes(bench.args.memory.0 / GRANT.0 * GRANT.0);
    let setup = setup(memory, false)?;
    let map = bare_memory(memory)?;
    let mut lane = setup.transport.lane(LaneKind::Critical).map_err(failed)?;
    let mut rng = SplitMix64::new(3);
    let mut page = vec![0u8; PAGE_SIZE];
    let mut run = vec![0u8; MAX_SEGS * PAGE_SIZE];
    let mut sums: [Vec<f64>; 5] = Default::default();
    let mut errors: Option<NetError> = None;
    for _ in 0..bench.args.rounds {
        let any: Vec<usize> = (0..PAGES_PER_ROUND)
            .map(|_| rng.below(setup.pages() as u64) as usize)
            .collect();
        sums[0].push(time(any.len(), |i| {
            bare::copy(&map, any[i] * PAGE_SIZE, &mut page)
        }));
        sums[1].push(time(any.len(), |i| {
            let seg = setup.page(any[i]);
            errors = lane
                .read_v(Class::Demand, &[seg], &mut page)
                .err()
                .or(errors.take());
        }));
        sums[4].push(time(any.len(), |i| {
            let seg = setup.page(any[i]);
            errors = lane
                .write_v(Class::Eviction(4), &[seg], &page)
                .err()
                .or(errors.take());
        }));
        let runs: Vec<usize> = (0..RUNS_PER_ROUND)
            .map(|_| rng.below((setup.pages() / MAX_SEGS) as u64) as usize * MAX_SEGS)
            .collect();
        let per_page = MAX_SEGS as f64;
        let bare_run = time(runs.len(), |i| {
            bare::copy(&map, runs[i] * PAGE_SIZE, &mut run)
        });
        sums[2].push(bare_run / per_page);
        let far_run = time(runs.len(), |i| {
            let mut seg = setup.page(runs[i]);
            seg.len = run.len() as u32;
            errors = lane
                .read_v(Class::Prefetch, &[seg], &mut run)
                .err()
                .or(errors.take());
        });
        sums[3].push(far_run / per_page);
    }
    if let Some(error) = errors {
        return Err(failed(error));
    }
    let [bare_page, far_page, bare_run, far_run, write] = &mut sums;
    let bare_page = median(bare_page);
    Ok(vec![
        Measurement::new(
            "shm.read.page",
            (median(far_page), "ns"),
            (bare_page, "ns memcpy, cold"),
            "<= 1.5",
        ),
        Measurement::new(
            "shm.read.run64",
            (median(far_run), "ns/page"),
            (median(bare_run), "ns/page memcpy, cold"),
            "<= 1.15",
        ),
        Measurement::new(
            "shm.write.page",
            (median(write), "ns"),
            (bare_page, "ns memcpy, cold"),
            "",
        ),
    ])
}

fn tcp_page(bench: &Bench<'_>) -> Result<Vec<Measurement>, Failure> {
    let setup = setup(Bytes::mib(256).min(bench.args.memory), true)?;
    let ask = HEADER_LEN + Seg::LEN;
    let answer = HEADER_LEN + PAGE_SIZE;
    let mut peer = BarePeer::ping_pong(SERVER_CPU, ask, answer).map_err(failed)?;
    let mut lane = setup.transport.lane(LaneKind::Critical).map_err(failed)?;
    let mut rng = SplitMix64::new(4);
    let (mut page, mut reply, request) = (vec![0; PAGE_SIZE], vec![0; answer], vec![0; ask]);
    let (mut bare_ns, mut read_ns, mut add_ns) = (Vec::new(), Vec::new(), Vec::new());
    let mut error = None;
    let mut bare_error = None;
    let word = grant(setup.transport.as_ref(), Bytes::kib(4)).ok();
    for _ in 0..bench.args.rounds {
        // The bare peer spins on the server's CPU only while it is measured.
        bare_ns.push(time(PINGS_PER_ROUND, |_| {
            let asked = bare::write_spinning(&mut peer.stream, &request);
            let answered = asked.and_then(|()| bare::read_spinning(&mut peer.stream, &mut reply));
            bare_error = answered.err().or(bare_error.take());
        }));
        drop(peer);
        read_ns.push(time(PINGS_PER_ROUND, |_| {
            let seg = setup.page(rng.below(setup.pages() as u64) as usize);
            error = lane
                .read_v(Class::Demand, &[seg], &mut page)
                .err()
                .or(error.take());
        }));
        add_ns.push(time(PINGS_PER_ROUND, |_| {
            let target = word.unwrap_or(setup.grants[0]);
            error = lane.fetch_add(target, 0, 1).err().or(error.take());
        }));
        peer = BarePeer::ping_pong(SERVER_CPU, ask, answer).map_err(failed)?;
    }
    if let Some(error) = error {
        return Err(failed(error));
    }
    if let Some(error) = bare_error {
        return Err(failed(error));
    }
    let bare = median(&mut bare_ns);
    let against = "ns bare ping-pong, same sizes, both spin";
    Ok(vec![
        Measurement::new(
            "tcp.read.page",
            (median(&mut read_ns), "ns"),
            (bare, against),
            "<= 1.3",
        ),
        Measurement::new(
            "tcp.fetch_add",
            (median(&mut add_ns), "ns"),
            (bare, against),
            "",
        ),
    ])
}

/// What records cost: the same requests with a key and without, in turn.
fn tcp_protected(bench: &Bench<'_>) -> Result<Vec<Measurement>, Failure> {
    const RUNS: usize = 512;
    const DEPTH: usize = 3;
    let memory = Bytes::mib(128).min(bench.args.memory);
    let key = Key::from_file_contents(&muninn_sys::rand::bytes::<32>().map(|b| b | 0x80));
    let setups = [
        setup(memory, true)?,
        setup_with(memory, true, key.map_err(failed)?)?,
    ];
    let mut rng = SplitMix64::new(8);
    let mut page = vec![0; PAGE_SIZE];
    let (mut page_ns, mut rates): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    for _ in 0..bench.args.rounds {
        for (which, setup) in setups.iter().enumerate() {
            let mut lane = setup.transport.lane(LaneKind::Critical).map_err(failed)?;
            let mut error = None;
            let mut any = || setup.page(rng.below(setup.pages() as u64) as usize);
            page_ns[which].push(time(PINGS_PER_ROUND, |_| {
                let read = lane.read_v(Class::Demand, &[any()], &mut page);
                error = read.err().or(error.take());
            }));
            if let Some(error) = error {
                return Err(failed(error));
            }
            let mut lane = setup.transport.lane(LaneKind::Bulk).map_err(failed)?;
            let mut scattered = |list: &mut Vec<Seg>| list.extend((0..MAX_SEGS).map(|_| any()));
            let (verb, class) = (Verb::Read, Class::Prefetch);
            let start = clock::now();
            pump(lane.as_mut(), RUNS, DEPTH, verb, class, &mut scattered)?;
            let bytes = (RUNS * MAX_SEGS * PAGE_SIZE) as f64;
            rates[which].push(bytes / (clock::now() - start).0 as f64);
        }
    }
    let [mut plain_ns, mut protected_ns] = page_ns;
    let [mut plain_rate, mut protected_rate] = rates;
    Ok(vec![
        Measurement::new(
            "tcp.protected.read.page",
            (median(&mut protected_ns), "ns"),
            (median(&mut plain_ns), "ns unprotected"),
            "<= 1.3",
        ),
        Measurement::new(
            "tcp.protected.read.scattered",
            (median(&mut protected_rate), "GB/s"),
            (median(&mut plain_rate), "GB/s unprotected"),
            "",
        ),
    ])
}

/// Keeps `depth` runs of 64 scattered pages under way until `runs` are done.
fn pump(
    lane: &mut dyn Lane,
    runs: usize,
    depth: usize,
    verb: impl Fn(Vec<Seg>) -> Verb,
    class: Class,
    mut segs: impl FnMut(&mut Vec<Seg>),
) -> Result<(), Failure> {
    let mut posted = 0;
    let mut finished = 0;
    let mut spare: Vec<(Vec<Seg>, Buffer)> = (0..depth)
        .map(|_| (Vec::new(), Buffer::new(MAX_SEGS * PAGE_SIZE)))
        .collect();
    while finished < runs {
        while posted < runs
            && let Some((mut list, data)) = spare.pop()
        {
            list.clear();
            segs(&mut list);
            let op = Operation {
                verb: verb(list),
                class,
                data,
                token: posted as u64,
            };
            lane.post(op).map_err(|_| failed("the window is full"))?;
            posted += 1;
        }
        let done = lane
            .poll(Duration::from_secs(10))
            .ok_or_else(|| failed("no answer"))?;
        done.result.map_err(failed)?;
        finished += 1;
        if let Verb::Read(list) | Verb::Write(list) = done.operation.verb {
            spare.push((list, done.operation.data));
        }
    }
    Ok(())
}

fn tcp_scatter(bench: &Bench<'_>) -> Result<Vec<Measurement>, Failure> {
    const RUNS: usize = 1024;
    const DEPTH: usize = 3;
    let setup = setup(Bytes::mib(256).min(bench.args.memory), true)?;
    let chunk = MAX_SEGS * PAGE_SIZE;
    let mut lane = setup.transport.lane(LaneKind::Bulk).map_err(failed)?;
    let mut rng = SplitMix64::new(5);
    let mut scattered = |list: &mut Vec<Seg>| {
        list.extend((0..MAX_SEGS).map(|_| setup.page(rng.below(setup.pages() as u64) as usize)));
    };
    let mut any_run = SplitMix64::new(7);
    let mut contiguous = |list: &mut Vec<Seg>| {
        let run = any_run.below((setup.pages() / MAX_SEGS) as u64) as usize * MAX_SEGS;
        let mut seg = setup.page(run);
        seg.len = chunk as u32;
        list.push(seg);
    };
    let mut rates: [Vec<f64>; 4] = Default::default();
    let mut sink = vec![0; chunk];
    let gigabytes = (RUNS * chunk) as f64;
    for _ in 0..bench.args.rounds {
        let total = setup.pages() * PAGE_SIZE;
        let mut peer = BarePeer::stream(SERVER_CPU, chunk, total).map_err(failed)?;
        bare::read_spinning(&mut peer.stream, &mut sink).map_err(failed)?;
        let mut result = Ok(());
        let bare_ns = time(RUNS, |_| {
            let read = bare::read_spinning(&mut peer.stream, &mut sink);
            result = read.and(std::mem::replace(&mut result, Ok(())));
        });
        result.map_err(failed)?;
        drop(peer);
        rates[0].push(chunk as f64 / bare_ns);
        let start = clock::now();
        pump(
            lane.as_mut(),
            RUNS,
            DEPTH,
            Verb::Read,
            Class::Prefetch,
            &mut scattered,
        )?;
        rates[1].push(gigabytes / (clock::now() - start).0 as f64);
        let start = clock::now();
        pump(
            lane.as_mut(),
            RUNS,
            DEPTH,
            Verb::Read,
            Class::Prefetch,
            &mut contiguous,
        )?;
        rates[3].push(gigabytes / (clock::now() - start).0 as f64);
        let start = clock::now();
        pump(
            lane.as_mut(),
            RUNS,
            DEPTH,
            Verb::Write,
            Class::Eviction(4),
            &mut scattered,
        )?;
        rates[2].push(gigabytes / (clock::now() - start).0 as f64);
    }
    let [bare, read, write, run] = &mut rates;
    let bare = median(bare);
    let against = "GB/s bare loopback stream";
    Ok(vec![
        Measurement::new(
            "tcp.read.scatter64",
            (median(read), "GB/s"),
            (bare, against),
            ">= 0.8",
        ),
        Measurement::new("tcp.read.run64", (median(run), "GB/s"), (bare, against), ""),
        Measurement::new(
            "tcp.write.scatter64",
            (median(write), "GB/s"),
            (bare, against),
            "",
        ),
    ])
}

/// Demand reads while evictions keep the server busy: one thread posts both, so that what is
/// measured is the server's order and not the client's scheduler.
fn demand_under_load(bench: &Bench<'_>) -> Result<Vec<Measurement>, Failure> {
    const READS: usize = 4000;
    const DEPTH: usize = 8;
    let setup = setup(Bytes::mib(256).min(bench.args.memory), true)?;
    let mut critical = setup.transport.lane(LaneKind::Critical).map_err(failed)?;
    let mut bulk = setup.transport.lane(LaneKind::Bulk).map_err(failed)?;
    let mut rng = SplitMix64::new(6);
    let mut page = vec![0; PAGE_SIZE];
    let (mut idle, mut loaded) = (Vec::new(), Vec::new());
    let mut moved = 0u64;
    let mut loaded_ns = 0;
    for _ in 0..bench.args.rounds {
        for _ in 0..READS / 4 {
            let seg = setup.page(rng.below(setup.pages() as u64) as usize);
            let start = clock::now();
            critical
                .read_v(Class::Demand, &[seg], &mut page)
                .map_err(failed)?;
            idle.push((clock::now() - start).0 as f64);
        }
        let mut spare: Vec<Buffer> = (0..DEPTH)
            .map(|_| Buffer::new(MAX_SEGS * PAGE_SIZE))
            .collect();
        let began = clock::now();
        for _ in 0..READS / 4 {
            // The bulk lane is always full: the server has evictions to take whenever it looks.
            while let Some(done) = bulk.poll(Duration::ZERO) {
                done.result.map_err(failed)?;
                moved += (MAX_SEGS * PAGE_SIZE) as u64;
                spare.push(done.operation.data);
            }
            while let Some(data) = spare.pop() {
                let run = rng.below((setup.pages() / MAX_SEGS) as u64) as usize * MAX_SEGS;
                let mut seg = setup.page(run);
                seg.len = (MAX_SEGS * PAGE_SIZE) as u32;
                let verb = Verb::Write(vec![seg]);
                let op = Operation {
                    verb,
                    class: Class::Eviction(4),
                    data,
                    token: 0,
                };
                bulk.post(op).map_err(|_| failed("the window is full"))?;
            }
            let seg = setup.page(rng.below(setup.pages() as u64) as usize);
            let start = clock::now();
            critical
                .read_v(Class::Demand, &[seg], &mut page)
                .map_err(failed)?;
            loaded.push((clock::now() - start).0 as f64);
        }
        loaded_ns += (clock::now() - began).0;
        while bulk.under_way() > 0 {
            bulk.poll(Duration::from_secs(10))
                .ok_or_else(|| failed("no answer"))?;
        }
    }
    let p99 = (percentile(&mut idle, 0.99), percentile(&mut loaded, 0.99));
    let p50 = (percentile(&mut idle, 0.5), percentile(&mut loaded, 0.5));
    Ok(vec![
        Measurement::new(
            "demand.p99.under-eviction",
            (p99.1 / 1e3, "µs"),
            (p99.0 / 1e3, "µs p99 idle"),
            "<= 3",
        ),
        Measurement::new(
            "demand.p50.under-eviction",
            (p50.1 / 1e3, "µs"),
            (p50.0 / 1e3, "µs p50 idle"),
            "",
        ),
        Measurement::new(
            "eviction.rate.beside-demand",
            (moved as f64 / loaded_ns as f64, "GB/s"),
            (1.0, "GB/s"),
            "",
        ),
    ])
}
