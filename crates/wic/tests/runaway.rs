//! Functions that loop, hoard, panic or wait for ever: they are ended, and nobody else notices.

mod common;
#[path = "common/wics.rs"]
mod wics;

use common::{EVERYWHERE, Over, World};
use muninn_wic::local::{Limits, LocalHosts};
use muninn_wic::{CallError, Place, Ran, Service, Side, WicError};
use std::time::Duration;
use wics::{Older, add, fail_holding, find_orphan, get, hoard, hold, panics, read_on, spin, talk};

#[global_allocator]
static ALLOCATOR: muninn_wic::alloc::Metered = muninn_wic::alloc::Metered;

fn bounded(hosts: LocalHosts) -> LocalHosts {
    LocalHosts {
        limits: Limits {
            steps: 5000,
            allocated: 8 << 20,
            ..Limits::default()
        },
        ..hosts
    }
}

#[test]
fn what_runs_away_is_ended_and_others_go_on() {
    for hosts in [LocalHosts::sync(), LocalHosts::prefetching(8)] {
        let world = World::new(bounded(hosts));
        for over in [Over::Tcp, Over::Shm] {
            let wild = world.open(over, "wild", Place::Server);
            let calm = world.open(over, "calm", Place::Server);
            let before = calm.run(get, ()).unwrap();
            let spun = wild.run(spin, ()).unwrap_err();
            assert_eq!(spun, CallError::Failed(WicError::Steps(5000)));
            let read = wild.run(read_on, ()).unwrap_err();
            assert_eq!(read, CallError::Failed(WicError::Steps(5000)));
            let hoarded = wild.run(hoard, ()).unwrap_err();
            assert_eq!(hoarded, CallError::Failed(WicError::Allocated(8 << 20)));
            let panicked = wild.run(panics, ()).unwrap_err();
            assert_eq!(panicked, CallError::Failed(WicError::Panicked));
            let talked = wild.run(talk, ()).unwrap_err();
            assert_eq!(talked, CallError::Failed(WicError::Reply));
            // The same server, the same thread: others are served as before.
            assert_eq!(calm.run(add, 3).unwrap(), before);
            assert_eq!(calm.run(get, ()).unwrap(), before + 3);
            assert_eq!(wild.run(get, ()).unwrap(), 0);
        }
    }
}

#[test]
fn loops_are_bounded_at_the_client_too() {
    let world = World::new(LocalHosts::sync());
    for over in [Over::Tcp, Over::Shm] {
        let service = world.open(over, "wild", Place::Client);
        let limit = u64::from(Limits::default().steps);
        let spun = service.run(spin, ()).unwrap_err();
        assert_eq!(spun, CallError::Failed(WicError::Steps(limit)));
        assert_eq!(
            service.run(panics, ()).unwrap_err(),
            CallError::Failed(WicError::Panicked)
        );
        assert_eq!(service.run(get, ()).unwrap(), 0);
    }
}

#[test]
fn a_lock_that_was_not_given_back_is_free_and_the_next_holder_is_told() {
    let world = World::new(LocalHosts::sync()).with_nic();
    for (n, (over, place)) in EVERYWHERE.into_iter().enumerate() {
        let service = world.open(over, &format!("orphan-{n}"), place);
        assert!(!service.run(find_orphan, ()).unwrap());
        let failed = service.run(fail_holding, ()).unwrap_err();
        assert_eq!(failed, CallError::Failed(WicError::App(5)));
        assert!(
            service.run(find_orphan, ()).unwrap(),
            "{place:?} over {over:?}"
        );
        assert!(!service.run(find_orphan, ()).unwrap());
    }
}

/// Starts a call that holds the lock until the sign is wiped, on a thread of its own.
fn with_held_lock(world: &World, name: &str, then: impl FnOnce()) {
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let service = world.open(Over::Shm, name, Place::Server);
            service.run(hold, 77).unwrap();
        });
        let watcher = world.open(Over::Shm, name, Place::Client);
        let base = watcher.range().0;
        let mut sign = [0; 8];
        while u64::from_le_bytes(sign) != 77 {
            watcher.read_bulk(base, &mut sign).unwrap();
            std::thread::yield_now();
        }
        then();
        watcher.write_bulk(base, &[0; 8]).unwrap();
        holder.join().unwrap();
    });
}

#[test]
fn a_call_that_waits_for_too_long_fails_where_it_waits() {
    let world = World::new(LocalHosts::sync()).with_nic();
    for (n, (over, place)) in EVERYWHERE.into_iter().enumerate() {
        if place == Place::Auto {
            continue;
        }
        let name = format!("late-{n}");
        with_held_lock(&world, &name, || {
            let mut options = world.options(over, &name, place);
            options.tuning.deadline = Duration::from_millis(200);
            let service = Service::open(options).unwrap();
            let late = service.run(find_orphan, ()).unwrap_err();
            let side = match (place, over) {
                (Place::Nic, _) => Side::Nic,
                (Place::Client, Over::Shm) => Side::Client,
                _ => Side::Server,
            };
            let CallError::Deadline { side: at, ran, .. } = late else {
                panic!("{place:?} over {over:?}: {late}");
            };
            // On a machine that is busy enough it may not even have begun.
            assert!(
                at == side || ran == Ran::No,
                "{place:?} over {over:?}: {late}"
            );
            // It does not wait in secret: nothing takes the lock later.
        });
        let service = world.open(over, &name, place);
        service.run(find_orphan, ()).unwrap();
        assert!(!service.run(find_orphan, ()).unwrap());
    }
}

#[test]
fn sides_that_disagree_on_a_function_say_so_when_they_connect() {
    let world = World::new(LocalHosts::sync()).with_nic();
    let options = || world.options(Over::Tcp, "versions", Place::Server);
    Service::open(options().uses(wics::versioned)).unwrap();
    let refused = Service::open(options().uses(Older)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the server refused the call: the server has version 2 of the function, this client asks for \
         1: build both from the same source (test.versioned)"
    );
    let nic = world.options(Over::Tcp, "versions", Place::Nic);
    assert!(Service::open(nic.uses(Older)).is_err());
    // At the client nobody else needs to know it.
    let own = Service::open(options().place(Place::Client).uses(Older)).unwrap();
    assert_eq!(own.run(Older, ()), Ok(1));
}
