//! `muninn demo`: everything that works, on servers of its own, with something to see.

mod mirror;
mod program;

use crate::cmd::demo_functions::{self, Functions};
use crate::embedded::{EmbeddedServer, Scratch};
use crate::failure::{Failure, Outcome};
use crate::ui::{Table, print_json, print_out, progress};
use muninn_net::faulty::Link;
use muninn_net::{Grant, NetError, Observer, Pool, PoolOptions};
use muninn_sys::{clock, pm_qos};
use muninn_types::{Bytes, PAGE_SIZE, ServerId, SplitMix64, format_duration};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  muninn demo\n  muninn demo --data 256MiB --json")]
pub struct Args {
    /// How much to move through each server
    #[arg(long, default_value = "64MiB")]
    pub data: Bytes,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// What one server did.
#[derive(Debug, Serialize)]
struct Moved {
    server: String,
    transport: String,
    address: String,
    pages: u64,
    write_mb_per_s: f64,
    read_mb_per_s: f64,
    page_read_us_median: f64,
    wrong_pages: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    servers: Vec<Moved>,
    heap: HeapReport,
    cuts: u64,
    resumes: u64,
    wrong_after_cuts: u64,
    next_owner_saw_old_bytes: bool,
    killed: String,
    error_after_kill: String,
    noticed_after_ms: u64,
    survivor_wrong_pages: u64,
    program: program::Program,
    functions: Functions,
    mirror: mirror::Mirror,
}

/// What a managed heap did.
#[derive(Debug, Serialize)]
struct HeapReport {
    heap: Bytes,
    local: Bytes,
    objects: u64,
    collections: u64,
    pauses: usize,
    pause_ms_max: f64,
    agent_traced_objects: u64,
    moved_bytes: u64,
    wrong_values: u64,
}

/// Short, so that nobody has to wait long for what happens when it runs out.
const LEASE: &str = "2s";
const SINGLE_READS: usize = 2000;

pub fn run(args: &Args) -> Outcome {
    if args.data < Bytes::mib(1) || args.data > Bytes::gib(16) {
        return Err(Failure::usage(format!(
            "--data {}: use 1MiB to 16GiB",
            args.data
        )));
    }
    let say = |text: &str| {
        if !args.json {
            print_out(text);
        }
    };
    let _awake = pm_qos::keep_awake().ok();
    let scratch = Scratch::new()?;
    let socket = scratch.path().join("huginn.sock");
    let memory = Bytes(args.data.0 * 2).max(Bytes::mib(64)).to_string();
    let shared = ["--memory", &memory, "--lease", LEASE];
    say("Two memory servers on this machine: one reached by shared memory, one by tcp.\n");
    let socket = socket.to_string_lossy();
    let near_args = ["--name", "huginn", "--socket", &socket];
    let near_args = near_args.iter().chain(&["--listen", "127.0.0.1:0"]);
    let near = EmbeddedServer::start(shared.iter().chain(near_args))?;
    let far_args = ["--name", "muninn", "--listen", "127.0.0.1:0"];
    let mut far = EmbeddedServer::start(shared.iter().chain(&far_args))?;
    let pool_list = format!("{},{}", near.addresses()[0], far.addresses()[0]);
    let pool = Pool::connect(&pool_list, options()).map_err(failed)?;

    // --- data through both, every page checked
    let bar = progress(4 * args.data.0, "moving pages");
    let mut kept = Vec::new();
    let mut servers = Vec::new();
    for server in [ServerId(0), ServerId(1)] {
        let (moved, grants) = move_data(&pool, server, args.data, &bar)?;
        servers.push(moved);
        kept.push(grants);
    }
    bar.finish_and_clear();
    let mut table = Table::new([
        "server", "over", "pages", "write", "read", "one page", "wrong",
    ]);
    for m in &servers {
        table.row([
            m.server.clone(),
            m.transport.clone(),
            m.pages.to_string(),
            format!("{:.0} MB/s", m.write_mb_per_s),
            format!("{:.0} MB/s", m.read_mb_per_s),
            format_duration(Duration::from_nanos((m.page_read_us_median * 1e3) as u64)),
            m.wrong_pages.to_string(),
        ]);
    }
    say(&format!("{table}\n"));

    // --- freed memory shows nothing to its next owner
    let old_bytes = next_owner_sees(&pool, &pool_list)?;
    say(&format!(
        "A grant was filled, released and granted to somebody else, who {}.",
        if old_bytes {
            "SAW THE OLD BYTES"
        } else {
            "found zeros"
        }
    ));

    // --- cuts
    let direct: SocketAddr = address_of(&far.addresses()[0])?;
    let (cuts, resumes, wrong_after_cuts) = cut_in_mid_transfer(direct)?;
    say(&format!(
        "A connection was cut {cuts} times in mid-transfer: resumed {resumes} times inside the \
         lease, {wrong_after_cuts} wrong pages.\n"
    ));

    // --- a managed heap whose garbage is collected where it lies
    let heap = heap_demo(&near.addresses()[0])?;
    say(&format!(
        "A managed heap of {}, {} of it local: {} objects were made while {} collections ran on the \
         server ({} pauses, the longest {:.2} ms; the agent traced {} objects and moved {}). The \
         program found {} wrong values.\n",
        heap.heap,
        heap.local,
        heap.objects,
        heap.collections,
        heap.pauses,
        heap.pause_ms_max,
        heap.agent_traced_objects,
        Bytes(heap.moved_bytes).rounded(),
        heap.wrong_values,
    ));

    // --- what is there
    let mut observer = Observer::connect(&near.addresses()[0].parse().map_err(failed)?, &options())
        .map_err(failed)?;
    let status = observer.status().map_err(failed)?;
    say(&format!(
        "huginn holds {} of {} for {} session; muninn (process {}) is killed now.",
        Bytes(status.server.granted_bytes).rounded(),
        Bytes(status.server.pool_bytes).rounded(),
        status.server.sessions,
        far.pid()
    ));

    // --- a server dies
    let killed_at = clock::now();
    far.kill();
    let mut page = vec![0; PAGE_SIZE];
    let error = loop {
        match pool.read(&kept[1][0], 0, &mut page) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    let noticed_after = clock::now() - killed_at;
    say(&format!(
        "What its client sees after {noticed_after}, instead of zeros:\n  {error}"
    ));
    let survivor_wrong_pages = verify(&pool, &kept[0], 0)?;
    say(&format!(
        "What huginn keeps is still there: {} pages read again, {survivor_wrong_pages} wrong.\n",
        args.data.whole_pages()
    ));

    // --- a program that knows nothing of it
    let program = program::show()?;
    say(&format!("{}\n", program.describe()));

    // --- a function, here and there
    let functions = demo_functions::show(&near)?;
    say(&functions.describe());

    // --- a server goes, and nobody notices
    let mirror = mirror::show(&program)?;
    say(&format!("{}\n", mirror.describe()));

    let report = Report {
        servers,
        heap,
        cuts,
        resumes,
        wrong_after_cuts,
        next_owner_saw_old_bytes: old_bytes,
        killed: far.addresses()[0].clone(),
        error_after_kill: error.to_string(),
        noticed_after_ms: noticed_after.0 / 1_000_000,
        survivor_wrong_pages,
        program,
        functions,
        mirror,
    };
    if args.json {
        print_json(&report);
    }
    let wrong = report.servers.iter().map(|m| m.wrong_pages).sum::<u64>()
        + report.wrong_after_cuts
        + report.survivor_wrong_pages
        + report.heap.wrong_values
        + u64::from(report.next_owner_saw_old_bytes)
        + u64::from(report.program.wrong())
        + u64::from(report.mirror.wrong())
        + report.functions.wrong_replies();
    if wrong > 0 || !matches!(error, NetError::Lost(..)) {
        return Err(Failure::failed(
            "the demo found wrong bytes: this is a bug, please report it",
        ));
    }
    say("Next: muninn run --help, muninn serve --help, muninn doctor, muninn sim rack --help.");
    Ok(())
}

#[derive(muninn_heap::Managed)]
struct Cell {
    value: u64,
    next: muninn_heap::Ref<Cell>,
}

/// Lists that are made, kept for a while and dropped, while agents at the server collect.
fn heap_demo(server: &str) -> Result<HeapReport, Failure> {
    use muninn_heap::{Heap, Plan};
    const LISTS: u64 = 400;
    const LENGTH: u64 = 2000;
    const KEPT: usize = 40;
    let pool = std::sync::Arc::new(Pool::connect(server, options()).map_err(failed)?);
    let (heap, local) = (Bytes::mib(16), Bytes::mib(4));
    let builder = Heap::builder().plan(Plan::Mako).heap(heap).local(local);
    let managed = builder
        .region(Bytes::mib(1))
        .pool(pool)
        .build()
        .map_err(failed)?;
    let mut mutator = managed.mutator().map_err(failed)?;
    let mut kept = std::collections::VecDeque::new();
    let mut wrong_values = 0;
    for list in 0..LISTS {
        let root = mutator.enter(|s| {
            let mut head: Option<muninn_heap::Local<'_, Cell>> = None;
            for n in 0..LENGTH {
                head = Some(s.alloc(CellInit {
                    value: list * LENGTH + n,
                    next: head,
                })?);
            }
            Ok(head.map(|head| s.root(&head)))
        });
        kept.extend(root.map_err(failed)?.map(|root| (list, root)));
        if kept.len() > KEPT
            && let Some((list, root)) = kept.pop_front()
        {
            let wrong = mutator.enter(|s| {
                let (mut cell, mut wrong) = (Some(s.open(&root)?), 0);
                for n in (0..LENGTH).rev() {
                    let here = cell.as_ref().map(|cell| cell.value());
                    wrong += u64::from(here != Some(list * LENGTH + n));
                    cell = cell.and_then(|cell| cell.next());
                }
                Ok(wrong)
            });
            wrong_values += wrong.map_err(failed)?;
        }
    }
    let stats = managed.stats();
    let pauses = managed.pauses();
    Ok(HeapReport {
        heap,
        local,
        objects: LISTS * LENGTH,
        collections: stats.collections,
        pauses: pauses.len(),
        pause_ms_max: pauses.iter().map(|p| p.length.0).max().unwrap_or(0) as f64 / 1e6,
        agent_traced_objects: stats.agents.iter().map(|agent| agent.traced_objects).sum(),
        moved_bytes: stats.moved.0,
        wrong_values,
    })
}

fn options() -> PoolOptions {
    PoolOptions {
        name: "demo".to_string(),
        ..PoolOptions::default()
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the demo cannot go on: {error}"))
}

fn address_of(text: &str) -> Result<SocketAddr, Failure> {
    text.trim_start_matches("tcp:").parse().map_err(failed)
}

/// The bytes of a page, different for each.
fn fill_page(server: u32, page: u64, into: &mut [u8]) {
    SplitMix64::new(u64::from(server) << 48 | page).fill(into);
}

fn move_data(
    pool: &Pool,
    server: ServerId,
    data: Bytes,
    bar: &crate::ui::Progress,
) -> Result<(Moved, Vec<Grant>), Failure> {
    let transport = pool.transport(server).map_err(failed)?;
    let size = transport.max_grant().min(data);
    let mut grants = Vec::new();
    let (mut write_ns, mut read_ns, mut wrong) = (0, 0, 0);
    let mut run = vec![0u8; 64 * PAGE_SIZE];
    let runs = data.0 / run.len() as u64;
    let place = |grants: &[Grant], n: u64| {
        let per_grant = size.0 / (64 * PAGE_SIZE) as u64;
        (
            grants[(n / per_grant) as usize],
            n % per_grant * (64 * PAGE_SIZE) as u64,
        )
    };
    for n in 0..runs {
        if n * run.len() as u64 >= grants.len() as u64 * size.0 {
            grants.push(pool.grant_at(server, size).map_err(failed)?);
        }
        for (i, page) in run.chunks_mut(PAGE_SIZE).enumerate() {
            fill_page(server.0, n * 64 + i as u64, page);
        }
        let (grant, offset) = place(&grants, n);
        let start = clock::now();
        pool.write(&grant, offset, &run).map_err(failed)?;
        write_ns += (clock::now() - start).0;
        bar.inc(run.len() as u64);
    }
    let mut expected = vec![0u8; PAGE_SIZE];
    for n in 0..runs {
        let (grant, offset) = place(&grants, n);
        let start = clock::now();
        pool.read(&grant, offset, &mut run).map_err(failed)?;
        read_ns += (clock::now() - start).0;
        for (i, page) in run.chunks(PAGE_SIZE).enumerate() {
            fill_page(server.0, n * 64 + i as u64, &mut expected);
            wrong += u64::from(page != expected);
        }
        bar.inc(run.len() as u64);
    }
    let mut rng = SplitMix64::new(9);
    let mut single: Vec<u64> = Vec::with_capacity(SINGLE_READS);
    for _ in 0..SINGLE_READS {
        let (grant, offset) = place(&grants, rng.below(runs));
        let start = clock::now();
        pool.read(&grant, offset, &mut expected).map_err(failed)?;
        single.push((clock::now() - start).0);
    }
    single.sort_unstable();
    let bytes = (runs * run.len() as u64) as f64;
    let moved = Moved {
        server: transport.server_name().to_string(),
        transport: transport.kind().to_string(),
        address: transport.address().to_string(),
        pages: runs * 64,
        write_mb_per_s: bytes * 1e3 / write_ns as f64,
        read_mb_per_s: bytes * 1e3 / read_ns as f64,
        page_read_us_median: single[single.len() / 2] as f64 / 1e3,
        wrong_pages: wrong,
    };
    Ok((moved, grants))
}

/// Reads everything again; how many pages are not what was written.
fn verify(pool: &Pool, grants: &[Grant], server: u32) -> Result<u64, Failure> {
    let mut page = vec![0; PAGE_SIZE];
    let mut expected = vec![0; PAGE_SIZE];
    let mut wrong = 0;
    let mut n = 0;
    for grant in grants {
        for offset in (0..grant.bytes.0).step_by(PAGE_SIZE) {
            pool.read(grant, offset, &mut page).map_err(failed)?;
            fill_page(server, n, &mut expected);
            wrong += u64::from(page != expected);
            n += 1;
        }
    }
    Ok(wrong)
}

/// Whether the next owner of released memory finds anything but zeros in it.
fn next_owner_sees(pool: &Pool, servers: &str) -> Result<bool, Failure> {
    let size = Bytes::mib(1);
    let mut bytes = vec![0x5A; size.0 as usize];
    let mut seen = false;
    for server in [ServerId(0), ServerId(1)] {
        let grant = pool.grant_at(server, size).map_err(failed)?;
        pool.write(&grant, 0, &bytes).map_err(failed)?;
        pool.release(&[grant]).map_err(failed)?;
    }
    let next = Pool::connect(servers, options()).map_err(failed)?;
    for server in [ServerId(0), ServerId(1)] {
        let grant = next.grant_at(server, size).map_err(failed)?;
        next.read(&grant, 0, &mut bytes).map_err(failed)?;
        seen |= bytes.iter().any(|b| *b != 0);
    }
    Ok(seen)
}

/// Writes and reads through a link that is cut again and again: cuts, resumes, wrong pages.
fn cut_in_mid_transfer(server: SocketAddr) -> Result<(u64, u64, u64), Failure> {
    const ROUNDS: u64 = 8;
    let link = Link::to(server)?;
    let pool = Pool::connect(&link.address().to_string(), options()).map_err(failed)?;
    let grant = pool.grant(Bytes::mib(1)).map_err(failed)?;
    let mut data = vec![0u8; grant.bytes.0 as usize];
    let mut wrong = 0;
    for round in 0..ROUNDS {
        SplitMix64::new(round).fill(&mut data);
        let mut back = vec![0; data.len()];
        std::thread::scope(|scope| {
            // The cut falls somewhere into the transfer.
            scope.spawn(|| link.cut());
            pool.write(&grant, 0, &data).map_err(failed)?;
            pool.read(&grant, 0, &mut back).map_err(failed)
        })?;
        let pages = back.chunks(PAGE_SIZE).zip(data.chunks(PAGE_SIZE));
        wrong += pages.filter(|(a, b)| a != b).count() as u64;
    }
    Ok((
        ROUNDS,
        pool.transport(ServerId(0)).map_err(failed)?.resumes(),
        wrong,
    ))
}
