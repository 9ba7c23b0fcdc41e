//! Random programs under every plan, with small caches and small regions, compared with a shadow.

mod common;

use common::*;
use muninn_heap::*;
use muninn_types::Bytes;

fn run(plan: Plan, over: Over, seed: u64, steps: usize) {
    run_in(4, 12_000, (plan, over, seed), steps);
}

/// Does so many steps in so many rounds, with a collection and a look at everything after each.
fn run_in(rounds: usize, most_nodes: usize, (plan, over, seed): (Plan, Over, u64), steps: usize) {
    println!("plan {plan}, {over:?}, seed {seed}");
    let servers = servers(2, Bytes::mib(64), over);
    let builder = Heap::builder().plan(plan).pool(servers.pool.clone());
    let builder = builder.heap(Bytes::mib(12)).local(Bytes::kib(1200));
    let heap = builder.region(Bytes::mib(1)).verify(true).build().unwrap();
    let mut actor = Actor::new(&heap, seed, most_nodes);
    for _ in 0..rounds {
        actor.act(steps / rounds).unwrap();
        actor.check().unwrap();
        heap.collect().unwrap();
        let reachable = actor.check().unwrap();
        let audit = heap.audit().unwrap();
        assert_eq!(
            audit.objects, reachable,
            "seed {seed}: the re-tracer found something else"
        );
    }
    let stats = heap.stats();
    println!("{stats:?}, at most {} nodes", actor.most_nodes);
    assert!(stats.faults > 0, "seed {seed}: nothing was ever far");
    actor.drop_roots();
    heap.collect().unwrap();
    heap.collect().unwrap();
    let stats = heap.stats();
    assert_eq!(stats.free_regions, stats.regions, "seed {seed}: a leak");
    drop(actor);
    drop(heap);
    // An agent lets go of its memory when its thread has seen that it is over.
    let ends = std::time::Instant::now() + std::time::Duration::from_secs(60);
    for server in &servers.servers {
        while server.pool().granted > Bytes::ZERO {
            assert!(
                std::time::Instant::now() < ends,
                "seed {seed}: grants were not released"
            );
            std::thread::yield_now();
        }
    }
}

#[test]
fn local_over_shared_memory() {
    for seed in 1..=2 {
        run(Plan::Local, Over::Shm, seed, 40_000);
    }
}

#[test]
fn local_over_tcp() {
    run(Plan::Local, Over::Tcp, 11, 10_000);
}

#[test]
fn semeru_over_shared_memory() {
    for seed in 21..=22 {
        run(Plan::Semeru, Over::Shm, seed, 40_000);
    }
}

#[test]
fn semeru_over_tcp() {
    run(Plan::Semeru, Over::Tcp, 31, 10_000);
}

#[test]
fn mako_over_shared_memory() {
    for seed in 41..=42 {
        run(Plan::Mako, Over::Shm, seed, 40_000);
    }
}

#[test]
fn mako_over_tcp() {
    run(Plan::Mako, Over::Tcp, 51, 10_000);
}

/// The long form: `MUNINN_TEST_FULL=1` makes it a million operations under each plan. Every
/// collection on the way is checked by the re-tracer.
#[test]
fn a_million_operations_under_every_plan() {
    let is_full = std::env::var("MUNINN_TEST_FULL").is_ok_and(|v| v == "1");
    let (rounds, steps) = if is_full { (50, 1_000_000) } else { (2, 4_000) };
    let chosen = std::env::var("MUNINN_PLAN").ok();
    for (plan, seed) in Plan::ALL.into_iter().zip(71..) {
        if chosen.as_deref().is_none_or(|name| name == plan.name()) {
            run_in(rounds, 8_000, (plan, Over::Shm, seed), steps);
        }
    }
}

/// More of the same, for whoever looks for trouble: MUNINN_SEEDS=100..200 MUNINN_PLAN=semeru.
#[test]
#[ignore = "as long as one likes"]
fn more_seeds() {
    let seeds = std::env::var("MUNINN_SEEDS").unwrap_or_else(|_| "100..110".to_string());
    let plan: Plan = std::env::var("MUNINN_PLAN").map_or(Plan::Semeru, |p| p.parse().unwrap());
    let over = match std::env::var("MUNINN_OVER").as_deref() {
        Ok("tcp") => Over::Tcp,
        _ => Over::Shm,
    };
    let steps = std::env::var("MUNINN_STEPS").map_or(20_000, |n| n.parse().unwrap());
    let (first, last) = seeds.split_once("..").unwrap();
    for seed in first.parse::<u64>().unwrap()..last.parse().unwrap() {
        run(plan, over, seed, steps);
    }
}
