//! One function, every place, every transport: the same replies.

mod common;
#[path = "common/wics.rs"]
mod wics;

use common::{EVERYWHERE, Over, World};
use muninn_sys::clock;
use muninn_types::SplitMix64;
use muninn_wic::apps::list::{Ring, traverse};
use muninn_wic::apps::log;
use muninn_wic::local::LocalHosts;
use muninn_wic::{Place, Service};
use std::time::Duration;

fn walk(service: &Service, ring: &Ring, rng: &mut SplitMix64, calls: u32) {
    for _ in 0..calls {
        let start = rng.below(u64::from(ring.count())) as u32;
        let hops = 1 + rng.below(16) as u32;
        let found = service
            .run(traverse, (ring.address(start).0, hops))
            .unwrap();
        assert_eq!(found, ring.walk(start, hops), "{hops} nodes from {start}");
    }
}

#[test]
fn a_list_is_walked_at_every_place() {
    for hosts in [LocalHosts::sync(), LocalHosts::prefetching(8)] {
        let world = World::new(hosts).with_nic();
        let keeper = world.open(Over::Shm, "list", Place::Client);
        let ring = Ring::new(keeper.range().0, 1000, 7);
        ring.build(&keeper).unwrap();
        let mut rng = SplitMix64::new(11);
        for (over, place) in EVERYWHERE {
            let service = world.open(over, "list", place);
            walk(&service, &ring, &mut rng, 50);
        }
    }
}

#[test]
fn many_calls_are_under_way_at_once() {
    let world = World::new(LocalHosts::prefetching(8)).with_nic();
    for (over, place) in EVERYWHERE {
        let service = world.open(over, "list", place);
        let ring = Ring::new(service.range().0, 1000, 7);
        ring.build(&service).unwrap();
        let walks: Vec<_> = (0..200)
            .map(|i| (i, service.call(traverse, (ring.address(i).0, 1 + i % 7))))
            .collect();
        service.block_on(async {
            // Started together, awaited one after the other.
            let mut walks: Vec<_> = walks.into_iter().map(|(i, w)| (i, Box::pin(w))).collect();
            for (_, walk) in &mut walks {
                std::future::poll_fn(|cx| {
                    let _ = walk.as_mut().poll(cx);
                    std::task::Poll::Ready(())
                })
                .await;
            }
            for (i, walk) in walks {
                assert_eq!(walk.await.unwrap(), ring.walk(i, 1 + i % 7));
            }
        });
    }
}

#[test]
fn calls_of_one_client_do_not_fight_for_a_lock() {
    const CALLS: u64 = 100;
    let world = World::new(LocalHosts::sync());
    let service = world.open(Over::Tcp, "log", Place::Client);
    let accesses = |tokens: std::ops::Range<u64>| {
        let count = tokens.end - tokens.start;
        for token in tokens {
            service.start(log::append, &(1, token), token, clock::now());
        }
        let one = |_| {
            service
                .poll(Duration::from_secs(60))
                .expect("a call that ended")
        };
        let ended: Vec<_> = (0..count).map(one).collect();
        assert!(ended.iter().all(|call| call.result.is_ok()), "{ended:?}");
        ended.iter().map(|call| call.accesses).max().unwrap()
    };
    let alone = accesses(1..2);
    // Whoever waits asks the server for nothing, so each makes as many accesses as one that is alone.
    assert_eq!(accesses(2..2 + CALLS), alone);
    assert_eq!(service.run(log::append, (1, 0)), Ok(CALLS + 1));
}

#[test]
fn a_server_that_may_choose_how_gives_the_same_replies() {
    let world = World::new(LocalHosts::adaptive(8));
    let service = world.open(Over::Tcp, "list", Place::Server);
    let ring = Ring::new(service.range().0, 1000, 7);
    ring.build(&service).unwrap();
    // Long enough for a trial of the other way, and one call after the other.
    walk(&service, &ring, &mut SplitMix64::new(12), 300);
}

#[test]
fn calls_that_wait_at_the_server_leave_room_for_the_one_that_holds_the_lock_here() {
    const CALLS: u64 = 200;
    let world = World::new(LocalHosts::sync());
    let watcher = world.open(Over::Shm, "held", Place::Client);
    let service = world.open(Over::Tcp, "held", Place::Client);
    service.start(wics::hold, &77, 0, clock::now());
    let mut sign = [0; 8];
    while u64::from_le_bytes(sign) != 77 {
        assert!(service.poll(Duration::ZERO).is_none(), "it holds on");
        watcher.read_bulk(watcher.range().0, &mut sign).unwrap();
    }
    service.set_place(Place::Server);
    for token in 1..=CALLS {
        service.start(wics::find_orphan, &(), token, clock::now());
    }
    // As many as can be are on their way; none of them can end before the one here.
    for _ in 0..100 {
        assert!(service.poll(Duration::ZERO).is_none(), "the lock is held");
    }
    watcher.write_bulk(watcher.range().0, &[0; 8]).unwrap();
    for _ in 0..=CALLS {
        let ended = service.poll(Duration::from_secs(60));
        let ended = ended.expect("a call that ended");
        assert!(ended.result.is_ok(), "{ended:?}");
    }
}
