//! The applications against plain models: equal replies and equal memory at every place, and when
//! calls move between places in the middle.

mod common;

use common::{EVERYWHERE, Over, World};
use muninn_types::SplitMix64;
use muninn_wic::apps::{kv, list, log};
use muninn_wic::local::LocalHosts;
use muninn_wic::{Addr, CallError, Place, Service, WicError};
use std::collections::BTreeMap;

const SEED: u64 = 20_261_115;

/// Where each operation of a run goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    Always(Place),
    /// Another place for every operation.
    Moving,
}

fn go(service: &Service, way: Way, rng: &mut SplitMix64) {
    if let Way::Moving = way {
        let places = [Place::Client, Place::Server, Place::Nic, Place::Auto];
        service.set_place(places[rng.below(4) as usize]);
    }
}

fn memory_of(service: &Service) -> Vec<u8> {
    let (base, end) = service.range();
    let mut bytes = vec![0; (end.0 - base.0) as usize];
    service.read_bulk(base, &mut bytes).unwrap();
    bytes
}

/// Runs one application everywhere, each time on a service of its own, and compares the memory.
fn everywhere(name: &str, locks: u32, hosts: LocalHosts, run: impl Fn(&Service, &mut dyn FnMut())) {
    let world = World::new(hosts).with_nic();
    let mut first: Option<Vec<u8>> = None;
    let ways = EVERYWHERE
        .into_iter()
        .map(|(over, place)| (over, Way::Always(place)))
        .chain([(Over::Tcp, Way::Moving), (Over::Shm, Way::Moving)]);
    for (n, (over, way)) in ways.enumerate() {
        let place = match way {
            Way::Always(place) => place,
            Way::Moving => Place::Server,
        };
        let options = world
            .options(over, &format!("{name}-{n}"), place)
            .locks(locks);
        let service = Service::open(options).unwrap();
        let mut rng = SplitMix64::new(SEED + n as u64);
        run(&service, &mut || go(&service, way, &mut rng));
        let memory = memory_of(&service);
        let first = first.get_or_insert_with(|| memory.clone());
        assert!(
            *first == memory,
            "memory differs after {way:?} over {over:?}, seed {SEED}"
        );
    }
}

#[test]
fn the_list_gives_equal_replies_everywhere() {
    everywhere("list", 1, LocalHosts::prefetching(8), |service, step| {
        let ring = list::Ring::new(service.range().0, 500, SEED);
        ring.build(service).unwrap();
        let mut rng = SplitMix64::new(SEED);
        for _ in 0..60 {
            step();
            let (start, hops) = (rng.below(500) as u32, rng.below(17) as u32);
            let found = service.run(list::traverse, (ring.address(start).0, hops));
            assert_eq!(found, Ok(ring.walk(start, hops)), "seed {SEED}");
        }
    });
}

#[test]
fn the_log_is_a_list_of_values_everywhere() {
    everywhere("log", 1, LocalHosts::sync(), |service, step| {
        let mut rng = SplitMix64::new(SEED);
        let mut model: Vec<(u64, u64)> = Vec::new();
        for _ in 0..150 {
            step();
            if rng.below(2) == 0 {
                let (writer, value) = (rng.below(9), rng.next_u64());
                let number = service.run(log::append, (writer, value));
                assert_eq!(number, Ok(model.len() as u64), "seed {SEED}");
                model.push((writer, value));
            } else {
                let last = model.last();
                let last = last.map(|(w, v)| (model.len() as u64 - 1, *w, *v));
                assert_eq!(service.run(log::read_tail, ()), Ok(last), "seed {SEED}");
            }
        }
    });
}

fn store(name: &str, locks: u32, hosts: LocalHosts) {
    everywhere(name, locks, hosts, |service, step| {
        let mut rng = SplitMix64::new(SEED);
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for _ in 0..150 {
            step();
            let key = 1 + rng.below(60);
            if rng.below(2) == 0 {
                let value = rng.next_u64();
                let old = service.run(kv::update, (key, value));
                assert_eq!(old, Ok(model.insert(key, value)), "seed {SEED}");
            } else {
                let found = service.run(kv::query, key);
                assert_eq!(found, Ok(model.get(&key).copied()), "seed {SEED}");
            }
        }
    });
}

#[test]
fn the_store_is_a_map_everywhere_under_one_lock() {
    store("kv", 1, LocalHosts::prefetching(8));
}

#[test]
fn the_store_is_a_map_everywhere_under_many_locks() {
    store("kv-striped", 64, LocalHosts::sync());
}

/// A table that is filled to the brim, so that keys have to move.
#[test]
fn keys_make_room_for_each_other_until_the_store_is_full() {
    let world = World::new(LocalHosts::sync()).with_nic();
    for (n, locks) in [(0, 1), (1, 16)] {
        let mut options = world.options(Over::Tcp, &format!("full-{n}"), Place::Server);
        options.bytes = muninn_types::Bytes::kib(20);
        let service = Service::open(options.locks(locks)).unwrap();
        let (base, end) = service.range();
        let slots = kv::Table::new(base, end, locks).unwrap().slots();
        let mut rng = SplitMix64::new(SEED);
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let full = loop {
            let (key, value) = (1 + rng.below(1 << 40), rng.next_u64());
            go(&service, Way::Moving, &mut rng);
            match service.run(kv::update, (key, value)) {
                Ok(old) => assert_eq!(old, model.insert(key, value)),
                Err(error) => break error,
            }
        };
        assert_eq!(full, CallError::Failed(WicError::App(kv::FULL)));
        // With two buckets of four a table fills to well over nine tenths.
        let filled = model.len() as f64 / slots as f64;
        assert!(filled > 0.9, "only {filled} full, seed {SEED}");
        service.set_place(Place::Server);
        for (key, value) in &model {
            assert_eq!(
                service.run(kv::query, *key),
                Ok(Some(*value)),
                "seed {SEED}"
            );
        }
    }
}

#[test]
fn a_key_of_zero_and_addresses_out_of_bounds_are_errors_everywhere() {
    let world = World::new(LocalHosts::sync()).with_nic();
    for (over, place) in EVERYWHERE {
        let service = world.open(over, "errors", place);
        let (base, end) = service.range();
        let refused = service.run(kv::update, (0, 1)).unwrap_err();
        assert_eq!(refused, CallError::Failed(WicError::App(kv::NO_KEY)));
        for bad in [Addr(0), base.plus(u64::MAX), end, Addr(u64::MAX)] {
            let refused = service.run(list::traverse, (bad.0, 1)).unwrap_err();
            assert_eq!(
                refused,
                CallError::Failed(WicError::Bounds(bad.0)),
                "{place:?}"
            );
        }
    }
}
