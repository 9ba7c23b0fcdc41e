//! A social graph on two memory servers, and who is how far from whom.
//!
//!     cargo run --release -p muninn-heap --example graph

use muninn_heap::{Heap, HeapError, Local, Managed, Plan, Ref};
use muninn_net::Pool;
use muninn_server::{Server, ServerConfig};
use muninn_types::{Bytes, SplitMix64};
use std::sync::Arc;

#[derive(Managed)]
struct Person {
    id: u32,
    distance: u32,
    friends: Ref<[Ref<Person>]>,
}

fn main() -> Result<(), HeapError> {
    let start = |_| {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        Server::start(ServerConfig {
            listen,
            ..ServerConfig::default()
        })
        .expect("a server")
    };
    let servers: Vec<Server> = (0..2).map(start).collect();
    let names: Vec<String> = servers
        .iter()
        .map(|s| s.addresses()[0].to_string())
        .collect();
    let pool = Arc::new(Pool::connect(&names.join(","), Default::default())?);
    let heap = Heap::builder()
        .plan(Plan::Semeru)
        .heap(Bytes::mib(64))
        .local(Bytes::mib(8));
    let heap = heap.region(Bytes::mib(1)).pool(pool).build()?;
    let mut mutator = heap.mutator()?;
    let mut rng = SplitMix64::new(1);
    let everybody = mutator.enter(|s| {
        let all = s.alloc_refs::<Person>(20_000)?;
        for id in 0..all.len() {
            let friends = s.alloc_refs::<Person>(8)?;
            let person = PersonInit {
                id: id as u32,
                distance: u32::MAX,
                friends: Some(friends),
            };
            all.set(id, Some(&s.alloc(person)?));
        }
        for person in (0..all.len()).filter_map(|id| all.get(id)) {
            let Some(friends) = person.friends() else {
                continue;
            };
            for place in 0..friends.len() {
                friends.set(
                    place,
                    all.get(rng.below(all.len() as u64) as usize).as_ref(),
                );
            }
        }
        Ok(s.root(&all))
    })?;
    let reached = mutator.enter(|s| {
        let first = s.open(&everybody)?.get(0).expect("somebody");
        first.set_distance(0);
        let mut queue: std::collections::VecDeque<Local<'_, Person>> = [first].into();
        let mut by_distance = [0u32; 16];
        while let Some(person) = queue.pop_front() {
            let distance = person.distance();
            by_distance[distance as usize] += 1;
            let Some(friends) = person.friends() else {
                continue;
            };
            for friend in (0..friends.len()).filter_map(|i| friends.get(i)) {
                if friend.distance() == u32::MAX {
                    friend.set_distance(distance + 1);
                    queue.push_back(friend);
                }
            }
        }
        Ok(by_distance)
    })?;
    println!("people by distance from the first: {reached:?}");
    heap.collect()?;
    println!("{:?}", heap.stats());
    Ok(())
}
