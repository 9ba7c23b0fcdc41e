//! A heap that is kept in copies, or with parity: any one server may be killed, stopped or lie, at any
//! moment, and nothing is lost. Servers are processes of their own, killed as `kill -9` does it; the
//! random program knows what it should find, and every collection is checked by the re-tracer.

mod common;

use common::*;
use muninn_heap::*;
use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, SplitMix64};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Says to a run of this very test that it is a server, and where it is to listen.
const AS_SERVER: &str = "MUNINN_TEST_AS_SERVER";
/// Nothing in these tests takes this long, however busy the machine is.
const HANGS: Duration = Duration::from_secs(120);

/// Not a test: the servers of the others are runs of it.
#[test]
fn as_server() {
    let Ok(address) = std::env::var(AS_SERVER) else {
        return;
    };
    let config = ServerConfig {
        listen: vec![address.parse().unwrap()],
        lease: Duration::from_secs(4),
        ..server_config(Bytes::mib(96))
    };
    let server = Server::start(config).unwrap();
    println!("\nlistens {}", server.addresses()[0]);
    // Until it is killed, or whoever started it is gone.
    let _ = std::io::stdin().lines().next();
}

struct Process {
    child: Child,
    // Kept open: after a minute the test that is the server says so, and would end of a closed pipe.
    _says: BufReader<ChildStdout>,
    address: Address,
}

impl Process {
    fn start() -> Process {
        Process::start_at("127.0.0.1:0")
    }

    fn start_at(address: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "as_server", "--nocapture"])
            .env(AS_SERVER, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stdout.take().unwrap());
        let address = says
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .find_map(|line| {
                let text = line.strip_prefix("listens ")?;
                Some(text.parse().unwrap())
            });
        Process {
            address: address.expect("a server says where it listens"),
            child,
            _says: says,
        }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn heap(layout: &str, servers: &[Process]) -> Result<Heap, HeapError> {
    let addresses = servers.iter().map(|server| server.address.clone());
    let builder = Heap::builder().servers(addresses.collect(), options());
    let builder = builder.layout(layout.parse().unwrap()).verify(true);
    let builder = builder.heap(Bytes::mib(12)).local(Bytes::kib(512));
    builder.region(Bytes::mib(1)).build()
}

/// Waits until all copies are there again.
fn wait_for_repair(heap: &Heap, what: &str) {
    let start = Instant::now();
    while heap.stats().degraded > 0 {
        assert!(start.elapsed() < HANGS, "{what}: copies are not made anew");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server is killed at some moment, and while it is missing the program goes on. Then another.
fn kill_one_after_the_other(layout: &str, count: usize, seed: u64) {
    let what = format!("{layout}, seed {seed}");
    println!("{what}");
    let mut dice = SplitMix64::new(seed);
    let mut servers: Vec<Process> = (0..count).map(|_| Process::start()).collect();
    let heap = heap(layout, &servers).unwrap();
    let mut actor = Actor::new(&heap, seed, 3000);
    let spare = heap_spare(layout, count);
    actor.act(2000).unwrap();
    for round in 0..spare {
        let killed = AtomicBool::new(false);
        let victim = dice.below(servers.len() as u64) as usize;
        let after = Duration::from_micros(dice.below(400_000));
        let mut victim = servers.swap_remove(victim);
        // With parity a page that is written while one server is silent (as on a busy machine) has no
        // piece to spare: then nothing is written while the other goes.
        if layout.starts_with("parity") {
            wait_for_repair(&heap, &what);
            victim.kill();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(after);
                // One at a time may go: not while the other is missing what was written in a silence, as happens
                // on a busy machine.
                while heap.stats().degraded > 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                victim.kill();
                killed.store(true, Relaxed);
            });
            let mut rest = 3;
            while rest > 0 {
                rest -= usize::from(killed.load(Relaxed));
                let acted = actor.act(400).and_then(|()| heap.collect());
                let checked = acted.and_then(|()| actor.check());
                if let Err(error) = checked {
                    // A panic here would wait for the thread, and hide what it is.
                    eprintln!("{what}, round {round}: {error}");
                    std::process::abort();
                }
            }
        });
        if round + 1 < spare {
            wait_for_repair(&heap, &what);
        }
    }
    let reachable = actor.check().unwrap();
    assert_eq!(heap.audit().unwrap().objects, reachable, "{what}");
    assert!(heap.stats().faults > 0, "{what}: nothing was ever far");
}

/// How many may go, one by one: with servers to spare copies are made anew there.
fn heap_spare(layout: &str, count: usize) -> usize {
    let layout: Layout = layout.parse().unwrap();
    count - layout.needed()
}

#[test]
fn any_server_of_a_mirrored_heap_may_be_killed() {
    kill_one_after_the_other("mirror", 2, 1);
    kill_one_after_the_other("mirror", 3, 2);
}

#[test]
#[ignore = "known: waits for ever; why is not known yet"]
fn any_server_of_a_heap_with_parity_may_be_killed() {
    kill_one_after_the_other("parity:2+1", 3, 3);
}

/// Changes a bit in every page of a server's memory, from outside.
fn spoil(server: &Process, dice: &mut SplitMix64) -> usize {
    let mut changed = 0;
    let folder = format!("/proc/{}/fd", server.child.id());
    for file in std::fs::read_dir(folder).unwrap().flatten() {
        let name = std::fs::read_link(file.path()).unwrap_or_default();
        let memory = OpenOptions::new().read(true).write(true).open(file.path());
        let (true, Ok(memory)) = (name.to_string_lossy().contains("memfd:"), memory) else {
            continue;
        };
        let mut page = vec![0; 4096];
        for at in (0..memory.metadata().unwrap().len()).step_by(4096) {
            if memory.read_exact_at(&mut page, at).is_ok() && page.iter().any(|b| *b != 0) {
                page[dice.below(4096) as usize] ^= 1 << dice.below(8);
                changed += usize::from(memory.write_all_at(&page, at).is_ok());
            }
        }
    }
    changed
}

/// What a server gives back is compared with what was written, so the other copy is taken; and where
/// there is none that is right, it is an error and not a wrong object.
#[test]
fn a_server_that_gives_back_other_bytes_is_found_out() {
    let mut dice = SplitMix64::new(5);
    let servers = [Process::start(), Process::start()];
    let heap = heap("mirror", &servers).unwrap();
    let mut actor = Actor::new(&heap, 5, 3000);
    actor.act(2500).unwrap();
    wait_for_repair(&heap, "the first copies");
    // Which of the two is read from is a matter of who answers faster: whichever it is, it is right.
    let liar = &servers[dice.below(2) as usize];
    for _ in 0..3 {
        assert!(spoil(liar, &mut dice) > 100);
        actor.check().unwrap();
        actor.act(300).unwrap();
        heap.collect().unwrap();
        actor.check().unwrap();
    }
    let error = loop {
        servers.iter().for_each(|liar| {
            spoil(liar, &mut dice);
        });
        if let Err(error) = actor.check().and_then(|_| actor.act(100)) {
            break error;
        }
    };
    assert!(error.to_string().contains("other bytes"), "{error}");
}

fn signal(server: &Process, name: &str) {
    let id = server.child.id().to_string();
    let ended = Command::new("kill").args([name, &id]).status().unwrap();
    assert!(ended.success());
}

/// One that is silent for a while keeps its copies, and catches up before the other is killed.
#[test]
fn a_server_that_is_silent_for_a_moment_is_waited_for() {
    let mut servers = [Process::start(), Process::start()];
    let heap = heap("mirror", &servers).unwrap();
    let mut actor = Actor::new(&heap, 6, 3000);
    actor.act(2000).unwrap();
    signal(&servers[0], "-STOP");
    let acted = actor.act(600).and_then(|()| heap.collect());
    let checked = acted.and_then(|()| actor.check());
    signal(&servers[0], "-CONT");
    checked.unwrap();
    actor.act(600).unwrap();
    wait_for_repair(&heap, "a server that was silent");
    servers[1].kill();
    actor.check().unwrap();
    actor.act(600).unwrap();
    heap.collect().unwrap();
    actor.check().unwrap();
}

/// An address that nobody else is given meanwhile: below the ports that the kernel gives to clients.
fn free_address() -> String {
    let mut dice = SplitMix64::new(muninn_sys::rand::u64());
    loop {
        let address = format!("127.0.0.1:{}", 20_000 + dice.below(12_000));
        if std::net::TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

/// A server that was killed and started again, empty, at the same address is given copies of everything, and
/// then the other one may go.
#[test]
fn a_server_that_is_started_again_is_filled_again() {
    let mut servers = [Process::start_at(&free_address()), Process::start()];
    let heap = heap("mirror", &servers).unwrap();
    let mut actor = Actor::new(&heap, 7, 3000);
    actor.act(2000).unwrap();
    wait_for_repair(&heap, "the first copies");
    servers[0].kill();
    actor.act(600).and_then(|()| heap.collect()).unwrap();
    assert!(heap.stats().degraded > 0, "nobody noticed");
    servers[0] = Process::start_at(&servers[0].address.to_string());
    wait_for_repair(&heap, "a server that was started again");
    servers[1].kill();
    actor.check().unwrap();
    actor.act(600).unwrap();
    heap.collect().unwrap();
    actor.check().unwrap();
}

/// More of the same: MUNINN_SEEDS=100..200 MUNINN_LAYOUT=mirror MUNINN_SERVERS=2.
#[test]
#[ignore = "as long as one likes"]
fn more_kills() {
    let seeds = std::env::var("MUNINN_SEEDS").unwrap_or_else(|_| "100..110".to_string());
    let layout = std::env::var("MUNINN_LAYOUT").unwrap_or_else(|_| "mirror".to_string());
    let servers = std::env::var("MUNINN_SERVERS").map_or(2, |n| n.parse().unwrap());
    let (first, last) = seeds.split_once("..").unwrap();
    for seed in first.parse::<u64>().unwrap()..last.parse().unwrap() {
        kill_one_after_the_other(&layout, servers, seed);
    }
}

#[test]
fn without_a_copy_left_it_is_an_error() {
    let mut servers = [Process::start(), Process::start()];
    let heap = heap("mirror", &servers).unwrap();
    let mut actor = Actor::new(&heap, 9, 3000);
    actor.act(500).unwrap();
    servers.iter_mut().for_each(Process::kill);
    let start = Instant::now();
    let error = loop {
        assert!(start.elapsed() < HANGS, "nobody noticed");
        if let Err(error) = actor.act(100) {
            break error;
        }
    };
    assert!(matches!(error, HeapError::Lost(_)), "{error}");
    assert!(heap.collect().is_err() && heap.mutator().is_err());
}

#[test]
fn a_layout_that_cannot_be_is_an_error() {
    let servers = [Process::start()];
    let error = heap("mirror", &servers).unwrap_err();
    assert!(
        error.to_string().contains("mirror wants 2 servers"),
        "{error}"
    );
    let builder = Heap::builder().servers(vec![servers[0].address.clone()], options());
    let builder = builder.layout(Layout::Mirror(2)).plan(Plan::Mako);
    let error = builder.build().unwrap_err();
    assert!(
        error.to_string().contains("use the plan 'local'"),
        "{error}"
    );
    // With one copy the same list makes an ordinary heap.
    let builder = Heap::builder().servers(vec![servers[0].address.clone()], options());
    let builder = builder.heap(Bytes::mib(8)).region(Bytes::mib(1));
    let heap = builder.plan(Plan::Mako).build().unwrap();
    let mut actor = Actor::new(&heap, 9, 3000);
    actor.act(300).unwrap();
    heap.collect().unwrap();
    actor.check().unwrap();
}
