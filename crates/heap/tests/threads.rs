//! Several mutators at once, each with a graph of its own, under every plan.

mod common;

use common::*;
use muninn_heap::*;
use muninn_types::Bytes;

fn run(plan: Plan, seed: u64) {
    let servers = servers(2, Bytes::mib(64), Over::Shm);
    let builder = Heap::builder().plan(plan).pool(servers.pool.clone());
    let builder = builder.heap(Bytes::mib(20)).local(Bytes::mib(3));
    let heap = builder.region(Bytes::mib(1)).build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let heap = heap.clone();
            scope.spawn(move || {
                let mut actor = Actor::new(&heap, seed + thread, 3000);
                for _ in 0..4 {
                    actor.act(2500).unwrap();
                    actor
                        .check()
                        .unwrap_or_else(|e| panic!("plan {plan}, seed {seed}: {e}"));
                }
            });
        }
    });
    heap.collect().unwrap();
    heap.collect().unwrap();
    let stats = heap.stats();
    assert!(stats.collections > 2, "{stats:?}");
    assert_eq!(
        stats.free_regions, stats.regions,
        "plan {plan}, seed {seed}: a leak"
    );
}

#[test]
fn mutators_of_plan_local() {
    run(Plan::Local, 61);
}

#[test]
fn mutators_of_plan_semeru() {
    run(Plan::Semeru, 71);
}

#[test]
fn mutators_of_plan_mako() {
    run(Plan::Mako, 81);
}

#[test]
fn a_root_may_be_opened_by_another_mutator() {
    let servers = servers(1, Bytes::mib(32), Over::Shm);
    let heap = Heap::builder().pool(servers.pool.clone());
    let heap = heap
        .heap(Bytes::mib(8))
        .region(Bytes::mib(1))
        .build()
        .unwrap();
    let root = heap
        .mutator()
        .unwrap()
        .enter(|s| Ok(s.root(&s.alloc_str("here")?)))
        .unwrap();
    let text = std::thread::scope(|scope| {
        let there = scope.spawn(|| heap.mutator().unwrap().enter(|s| Ok(s.open(&root)?.text())));
        there.join().unwrap().unwrap()
    });
    assert_eq!(text, "here");
}
