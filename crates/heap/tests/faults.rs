//! Servers that are cut off, slow, stopped, or run no agents: the heap says so, and never hands out
//! a wrong object. The random program checks everything it sees, so a wrong one would panic.

mod common;

use common::*;
use muninn_heap::*;
use muninn_net::faulty::Link;
use muninn_net::{Pool, PoolOptions};
use muninn_server::{Server, ServerConfig};
use muninn_types::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

fn heap(plan: Plan, pool: &Arc<Pool>) -> Result<Heap, HeapError> {
    let builder = Heap::builder().plan(plan).pool(pool.clone());
    builder
        .heap(Bytes::mib(12))
        .local(Bytes::mib(1))
        .region(Bytes::mib(1))
        .build()
}

fn tcp_server() -> Server {
    let config = ServerConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        ..server_config(Bytes::mib(64))
    };
    Server::start(config).unwrap()
}

/// A server is stopped at some moment of a program that collects all the time.
fn stop_in_the_middle(plan: Plan, seed: u64) {
    // A short lease: so long it may take until a server counts as gone.
    let config = ServerConfig {
        lease: Duration::from_secs(10),
        ..server_config(Bytes::mib(64))
    };
    let mut servers = servers_with(2, Over::Shm, config);
    let heap = heap(plan, &servers.pool).unwrap();
    let victim = servers.servers.remove(1);
    let started = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        let program = scope.spawn(|| {
            let mut actor = Actor::new(&heap, seed, 3000);
            loop {
                if let Err(error) = actor.act(500) {
                    return error;
                }
                started.store(true, Relaxed);
            }
        });
        while !started.load(Relaxed) {
            std::thread::yield_now();
        }
        victim.stop();
        program.join().unwrap()
    });
    let text = error.to_string();
    assert!(
        matches!(
            error,
            HeapError::Lost(_) | HeapError::Net(_) | HeapError::Agent(..)
        ),
        "{text}"
    );
    // And it stays lost.
    let again = heap.mutator().map(|_| ()).and_then(|()| heap.collect());
    assert!(
        again.is_err(),
        "{plan}, seed {seed}: a lost heap works again"
    );
}

#[test]
fn a_stopped_server_is_an_error_under_every_plan() {
    for (plan, seed) in Plan::ALL.into_iter().zip(1..) {
        stop_in_the_middle(plan, seed);
    }
}

/// Connections that are cut again and again are repaired, and nothing is lost or done twice.
fn cut_again_and_again(plan: Plan, seed: u64) {
    let servers = [tcp_server(), tcp_server()];
    let links: Vec<Link> = servers
        .iter()
        .map(|s| {
            Link::to(
                s.addresses()[0]
                    .to_string()
                    .trim_start_matches("tcp:")
                    .parse()
                    .unwrap(),
            )
        })
        .collect::<Result<_, _>>()
        .unwrap();
    let names: Vec<String> = links.iter().map(|l| l.address().to_string()).collect();
    let pool = Arc::new(Pool::connect(&names.join(","), options()).unwrap());
    let heap = heap(plan, &pool).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut cuts = 0;
            while !over.load(Relaxed) {
                links[cuts % 2].cut();
                cuts += 1;
                std::thread::sleep(Duration::from_millis(40));
            }
        });
        let mut actor = Actor::new(&heap, seed, 3000);
        for _ in 0..4 {
            let acted = actor
                .act(1000)
                .and_then(|()| heap.collect())
                .and_then(|()| actor.check());
            over.fetch_or(acted.is_err(), Relaxed);
            acted.unwrap_or_else(|e| panic!("{plan}, seed {seed}: {e}"));
        }
        over.store(true, Relaxed);
    });
}

#[test]
fn cut_connections_are_repaired_under_every_plan() {
    for (plan, seed) in Plan::ALL.into_iter().zip(101..) {
        cut_again_and_again(plan, seed);
    }
}

#[test]
fn a_server_without_agents_is_told_apart() {
    let config = ServerConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        agents: None,
        ..server_config(Bytes::mib(64))
    };
    let server = Server::start(config).unwrap();
    let pool = Pool::connect(&server.addresses()[0].to_string(), PoolOptions::default()).unwrap();
    let pool = Arc::new(pool);
    let error = heap(Plan::Mako, &pool).unwrap_err();
    assert!(error.to_string().contains("runs no agents"), "{error}");
    // The baseline needs none; and what was taken for the other heap went back.
    drop(heap(Plan::Local, &pool).unwrap());
    assert_eq!(server.pool().granted, Bytes::ZERO);
}

#[test]
fn several_heaps_share_a_server_and_metadata_is_bounded() {
    let servers = servers(1, Bytes::mib(128), Over::Shm);
    let names = servers.servers[0].addresses()[0].to_string();
    let pools: Vec<Arc<Pool>> = (0..2)
        .map(|_| Arc::new(Pool::connect(&names, options()).unwrap()))
        .collect();
    for (plan, pool) in [(Plan::Semeru, &pools[0]), (Plan::Mako, &pools[1])] {
        let builder = Heap::builder().plan(plan).pool(pool.clone());
        let heap = builder
            .heap(Bytes::mib(32))
            .local(Bytes::mib(4))
            .region(Bytes::mib(1));
        let heap = heap.build().unwrap();
        let mut actor = Actor::new(&heap, 7, 30_000);
        actor.act(12_000).unwrap();
        heap.collect().unwrap();
        actor.check().unwrap();
        let stats = heap.stats();
        let agent = &stats.agents[0];
        assert!(
            agent.metadata_peak.0 * 100 <= agent.served.0 * 3,
            "{plan}: {agent:?}"
        );
        assert!(
            stats.metadata.0 * 100 <= 2 * heap.geometry().heap_bytes(),
            "{plan}: {stats:?}"
        );
        assert_eq!(servers.servers[0].agents().len(), 1);
    }
}
