//! Eight clients at once, at different places: the log loses and duplicates nothing, and the store is
//! linearizable.

mod common;

use common::{EVERYWHERE, Over, World};
use muninn_sys::clock;
use muninn_types::{Nanos, SplitMix64};
use muninn_wic::apps::{kv, log};
use muninn_wic::local::LocalHosts;
use muninn_wic::{Place, Service};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

const CLIENTS: usize = 8;

#[test]
fn the_log_loses_and_duplicates_nothing() {
    let world = World::new(LocalHosts::prefetching(8)).with_nic();
    let keeper = world.open(Over::Shm, "log", Place::Client);
    const EACH: u64 = 60;
    let told: Vec<Vec<(u64, u64)>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let world = &world;
                scope.spawn(move || {
                    let (over, place) = EVERYWHERE[client];
                    let service = world.open(over, "log", place);
                    let mut told = Vec::new();
                    for value in 0..EACH {
                        let number = service.run(log::append, (client as u64, value)).unwrap();
                        told.push((number, value));
                        let (last, ..) = service.run(log::read_tail, ()).unwrap().unwrap();
                        assert!(last >= number, "an entry was there and is gone");
                    }
                    told
                })
            })
            .collect();
        clients.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let (base, end) = keeper.range();
    let mut count = [0; 8];
    keeper.read_bulk(base, &mut count).unwrap();
    assert_eq!(u64::from_le_bytes(count), EACH * CLIENTS as u64);
    let mut seen = BTreeSet::new();
    for number in 0..EACH * CLIENTS as u64 {
        let mut bytes = [0; 64];
        let at = log::address_of(base, end, number);
        keeper.read_bulk(at, &mut bytes).unwrap();
        let entry = log::Entry::read_from_bytes(&bytes).unwrap();
        assert_eq!(entry.number, number);
        assert_eq!(entry.rest, [entry.value; 5], "entry {number} is torn");
        assert!(
            seen.insert((entry.writer, entry.value)),
            "entry {number} is there twice"
        );
        let told = &told[entry.writer as usize];
        assert!(
            told.contains(&(number, entry.value)),
            "nobody was told of entry {number}"
        );
    }
}

/// One operation on one key, as its client saw it.
#[derive(Clone, Copy, Debug)]
struct Event {
    begin: Nanos,
    end: Nanos,
    /// The value it wrote, if it wrote.
    wrote: Option<u64>,
    /// The value that was there: before an update, or found by a query.
    found: Option<u64>,
}

/// Whether the operations on one key can be put in an order that explains every reply and in which
/// nothing comes after what began later than it ended.
///
/// Every update writes a value of its own and is told the one before, so the replies say in which order
/// the updates came: each has at most one successor. A query belongs behind the update whose value it
/// found. What is left to check is that this order agrees with time.
fn explain(events: &[Event]) -> Result<(), String> {
    let mut after: BTreeMap<Option<u64>, &Event> = BTreeMap::new();
    let updates = events.iter().filter(|event| event.wrote.is_some());
    for update in updates.clone() {
        if after.insert(update.found, update).is_some() {
            return Err(format!("two updates replaced {:?}", update.found));
        }
    }
    let mut order = BTreeMap::from([(None, 0usize)]);
    let mut value = None;
    while let Some(update) = after.get(&value) {
        value = update.wrote;
        if order.insert(value, order.len()).is_some() {
            return Err(format!("{value:?} was written twice"));
        }
    }
    if order.len() != updates.count() + 1 {
        return Err("updates that do not follow on each other".to_string());
    }
    // An update stands before the queries that found its value.
    let position = |event: &Event| match event.wrote {
        Some(value) => order.get(&Some(value)).map(|at| (*at, 0)),
        None => order.get(&event.found).map(|at| (*at, 1)),
    };
    for a in events {
        let at = position(a).ok_or_else(|| format!("{:?} was never written", a.found))?;
        for b in events {
            if a.end < b.begin && position(b).is_some_and(|before| before < at) {
                return Err(format!("{b:?} took effect before {a:?}, which had ended"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let event = |begin, end, wrote, found| Event {
        begin: Nanos(begin),
        end: Nanos(end),
        wrote,
        found,
    };
    let good = [
        event(0, 5, Some(1), None),
        event(3, 9, Some(2), Some(1)),
        event(4, 8, None, Some(1)),
        event(10, 11, None, Some(2)),
    ];
    explain(&good).unwrap();
    let stale = [good[0], good[1], event(10, 11, None, Some(1))];
    assert!(explain(&stale).is_err());
    let lost = [good[0], event(3, 9, Some(2), None)];
    assert!(explain(&lost).is_err());
    let from_nowhere = [good[0], event(10, 11, None, Some(7))];
    assert!(explain(&from_nowhere).is_err());
    let backwards = [event(0, 5, Some(1), Some(2)), event(6, 7, Some(2), None)];
    assert!(explain(&backwards).is_err());
    let early = [event(0, 5, None, Some(1)), event(6, 7, Some(1), None)];
    assert!(explain(&early).is_err());
}

fn history(service: &Service, client: u64, ops: u64, keys: u64, seed: u64) -> Vec<(u64, Event)> {
    let mut rng = SplitMix64::new(seed ^ client);
    let mut events = Vec::new();
    for op in 0..ops {
        let key = 1 + rng.below(keys);
        let begin = clock::now();
        let (wrote, found) = if rng.below(2) == 0 {
            let value = client << 32 | op;
            (Some(value), service.run(kv::update, (key, value)).unwrap())
        } else {
            (None, service.run(kv::query, key).unwrap())
        };
        let end = clock::now();
        events.push((
            key,
            Event {
                begin,
                end,
                wrote,
                found,
            },
        ));
    }
    events
}

#[test]
fn the_store_is_linearizable() {
    const SEED: u64 = 77;
    let world = World::new(LocalHosts::prefetching(8)).with_nic();
    for (name, locks, keys, kib) in [
        ("one", 1, 6, 64),
        ("many", 32, 6, 64),
        ("tight", 16, 200, 6),
    ] {
        let options = |over, place| {
            let mut options = world.options(over, name, place).locks(locks);
            options.bytes = muninn_types::Bytes::kib(kib);
            options
        };
        let _keeper = Service::open(options(Over::Shm, Place::Client)).unwrap();
        let histories: Vec<Vec<(u64, Event)>> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (over, place) = EVERYWHERE[client];
                    let options = options(over, place);
                    scope.spawn(move || {
                        let service = Service::open(options).unwrap();
                        history(&service, client as u64 + 1, 80, keys, SEED)
                    })
                })
                .collect();
            clients.into_iter().map(|c| c.join().unwrap()).collect()
        });
        let mut by_key: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
        for (key, event) in histories.into_iter().flatten() {
            by_key.entry(key).or_default().push(event);
        }
        for (key, events) in by_key {
            if let Err(why) = explain(&events) {
                panic!("'{name}', key {key}, seed {SEED}: {why}");
            }
        }
    }
}
