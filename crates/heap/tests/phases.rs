//! A server that is stopped, cut off or slow at the very moment at which a phase of a collection
//! begins, for every phase of every plan: the heap goes on or says that it is lost. It never hands
//! out a wrong object (the random program looks at everything it meets) and never hangs.

mod common;

use common::*;
use muninn_heap::*;
use muninn_net::faulty::Link;
use muninn_net::{Pool, PoolOptions};
use muninn_server::{Server, ServerConfig};
use muninn_types::Bytes;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// What happens to the second server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// It says farewell and ends.
    Stopped,
    /// Nobody can reach it any more; after its lease it counts as gone.
    CutOff,
    /// Nothing comes through for a while.
    Slow,
}

/// Nothing in these tests takes this long, however busy the machine is.
const HANGS: Duration = Duration::from_secs(240);
/// So long it may take until a server counts as gone; long enough not to run out by chance.
const LEASE: Duration = Duration::from_secs(6);
const SLOWNESS: Duration = Duration::from_millis(60);

/// Two servers behind links that can be disturbed.
struct Far {
    links: [Link; 2],
    servers: [Mutex<Option<Server>>; 2],
    pool: Arc<Pool>,
}

impl Far {
    fn new(fate: Fate) -> Far {
        let lease = match fate {
            Fate::Slow => Duration::from_secs(120),
            _ => LEASE,
        };
        let servers = [(); 2].map(|()| {
            let config = ServerConfig {
                listen: vec!["127.0.0.1:0".parse().unwrap()],
                lease,
                ..server_config(Bytes::mib(32))
            };
            Server::start(config).unwrap()
        });
        let links = [0, 1].map(|n: usize| {
            let address = servers[n].addresses()[0].to_string();
            let address: SocketAddr = address.trim_start_matches("tcp:").parse().unwrap();
            Link::to(address).unwrap()
        });
        let names = format!("{},{}", links[0].address(), links[1].address());
        let options = PoolOptions {
            deadline: Duration::from_secs(120),
            ..options()
        };
        let pool = Arc::new(Pool::connect(&names, options).unwrap());
        Far {
            links,
            servers: servers.map(|server| Mutex::new(Some(server))),
            pool,
        }
    }

    fn befall(self: &Arc<Far>, fate: Fate) {
        match fate {
            Fate::Stopped => drop(self.servers[1].lock().unwrap().take()),
            Fate::CutOff => self.links[1].close(),
            Fate::Slow => {
                self.links[1].stop();
                let far = Arc::clone(self);
                std::thread::spawn(move || {
                    std::thread::sleep(SLOWNESS);
                    far.links[1].go_on();
                });
            }
        }
    }
}

/// Runs a program; at the first time of a phase something happens to a server. What came of it.
fn run(plan: Plan, phase: Phase, fate: Fate, seed: u64) -> Result<(), HeapError> {
    let far = Arc::new(Far::new(fate));
    let happened = Arc::new(AtomicBool::new(false));
    let observer = {
        let (far, happened) = (Arc::clone(&far), Arc::clone(&happened));
        move |now| {
            if now == phase && !happened.swap(true, SeqCst) {
                far.befall(fate);
            }
        }
    };
    let heap = Heap::builder()
        .plan(plan)
        .pool(Arc::clone(&far.pool))
        .heap(Bytes::mib(12))
        .local(Bytes::kib(1200))
        .region(Bytes::mib(1))
        .observe(observer)
        .build()?;
    let mut actor = Actor::new(&heap, seed, 3000);
    // Until it has happened, and then until it must have been noticed.
    for round in 0.. {
        actor.act(400)?;
        // Every phase comes in a full collection of a heap in which something has died.
        heap.collect()?;
        if happened.load(SeqCst) && fate == Fate::Slow {
            actor.check()?;
            return Ok(());
        }
        assert!(
            round < 200 || happened.load(SeqCst),
            "{plan}: no {phase:?} in 200 collections"
        );
    }
    Ok(())
}

/// All phases of a plan, beside each other, as most of the time is spent waiting.
fn every_phase(plan: Plan, fate: Fate) {
    let (done, results) = mpsc::channel();
    let mut waiting = Phase::of(plan).to_vec();
    for (phase, seed) in waiting.clone().into_iter().zip(500..) {
        let done = done.clone();
        std::thread::spawn(move || {
            let result = std::panic::catch_unwind(|| run(plan, phase, fate, seed));
            let _ = done.send((phase, seed, result));
        });
    }
    drop(done);
    while !waiting.is_empty() {
        let (phase, seed, result) = match results.recv_timeout(HANGS) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => panic!("{plan}, {fate:?}: {waiting:?} hang"),
            Err(error) => panic!("{plan}, {fate:?}: {error}"),
        };
        waiting.retain(|other| *other != phase);
        let what = format!("{plan}, {fate:?} in {phase:?}, seed {seed}");
        match (fate, result) {
            (_, Err(_)) => panic!("{what}: the program found something wrong"),
            (Fate::Slow, Ok(result)) => {
                result.unwrap_or_else(|e| panic!("{what}: slow is not lost: {e}"));
            }
            (_, Ok(Err(HeapError::Lost(_) | HeapError::Net(_) | HeapError::Agent(..)))) => {}
            (_, Ok(other)) => panic!("{what}: {other:?}"),
        }
    }
}

fn every_plan(fate: Fate) {
    std::thread::scope(|scope| {
        for plan in Plan::ALL {
            scope.spawn(move || every_phase(plan, fate));
        }
    });
}

#[test]
fn a_server_that_stops_in_any_phase_is_an_error() {
    every_plan(Fate::Stopped);
}

#[test]
fn a_server_cut_off_in_any_phase_is_an_error() {
    every_plan(Fate::CutOff);
}

#[test]
fn a_slow_server_is_waited_for_in_any_phase() {
    every_plan(Fate::Slow);
}

/// A page that could not be written home stays dirty. It must not stay protected too: the thread
/// that writes it would fault for ever, and never get to see that the heap is lost.
#[test]
fn a_write_to_a_page_that_could_not_go_home_ends() {
    let far = Arc::new(Far::new(Fate::Stopped));
    let builder = Heap::builder().plan(Plan::Mako).pool(far.pool.clone());
    let builder = builder.heap(Bytes::mib(8)).region(Bytes::mib(1));
    let heap = builder.local(Bytes::mib(8)).build().unwrap();
    let mut mutator = heap.mutator().unwrap();
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || {
        let ended: Result<(), HeapError> = mutator.enter(|s| {
            let values = s.alloc_filled(100_000, 1u64)?;
            far.befall(Fate::Stopped);
            *far.servers[0].lock().unwrap() = None;
            let heap = heap.clone();
            let collector = std::thread::spawn(move || heap.collect());
            // Until the collector has tried to write the pages home.
            for at in (0..100_000).cycle() {
                values.set(at, at as u64);
            }
            let _ = collector.join();
            Ok(())
        });
        let _ = done.send(ended);
    });
    let ended = result.recv_timeout(HANGS).expect("the write hangs");
    assert!(matches!(ended, Err(HeapError::Lost(_))), "{ended:?}");
}
