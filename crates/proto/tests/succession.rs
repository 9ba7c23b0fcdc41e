//! A server's sessions, in the hands of the next process.

mod common;

use common::*;
use muninn_proto::auth::Key;
use muninn_proto::client::{Answer, Control, Lane, Operation, Purpose, Verb};
use muninn_proto::server::{FakeBacking, Inherited, Peer, Shard, Will};
use muninn_types::{Class, Nanos, SplitMix64};
use muninn_wire::{ErrorCode, Estate, EstateError, LeftUse, Transport};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const POOL: (u64, u64) = (256, 64);

fn estate_of(host: &Host) -> Estate {
    let mut will = Will::default();
    for shard in &host.shards {
        will.add(shard);
    }
    let estate = will.finish(&host.shared);
    // As it travels.
    Estate::decode(&estate.encode()).unwrap()
}

fn succeed(host: &Host, estate: &Estate) -> Result<Host, EstateError> {
    let config = pool_config(POOL.0, POOL.1);
    let shared = shared_config(Key::none());
    let memory = host.pool.memory();
    let inherited = Inherited::<FakeBacking>::new(FakeBacking, config, shared, memory, estate)?;
    let mut next = Host::new(pool_config(POOL.0, POOL.1));
    next.now = host.now;
    next.pool = Arc::clone(&inherited.shared.pool);
    next.shared = Arc::clone(&inherited.shared);
    let mut rng = SplitMix64::new(99);
    let entropy = Box::new(move |bytes: &mut [u8]| rng.fill(bytes));
    let mut shard = Shard::new(0, Arc::clone(&inherited.shared), entropy);
    inherited.settle(&mut shard, estate, host.now)?;
    next.shards = vec![shard];
    Ok(next)
}

#[test]
fn memory_that_was_on_its_way_to_be_wiped_is_wiped_by_the_next_process() {
    let mut host = Host::new(pool_config(POOL.0, POOL.1));
    let mut one = host.open("one");
    let kept = one.grant(&mut host, 8192).unwrap();
    let gone = one.grant(&mut host, 16384).unwrap();
    one.write(&mut host, kept, 0, &[7; 4096]).unwrap();
    one.write(&mut host, gone, 0, &[9; 16384]).unwrap();
    one.release(&mut host, &[gone]).unwrap();
    let mut mapper = host.open_as("mapper", Transport::Shm, Peer::Unix { uid: 1 });
    mapper.grant(&mut host, 4096).unwrap();
    let before = host.pool.stats();
    assert_eq!((before.granted.0, before.wiping.0), (8192 + 4096, 16384));
    let estate = estate_of(&host);
    let mut next = succeed(&host, &estate).unwrap();
    let after = next.pool.stats();
    assert_eq!(
        (after.granted, after.wiping),
        (before.granted, before.wiping)
    );
    assert_eq!(after.extents, before.extents);
    next.pool.wipe_all().unwrap();
    assert_eq!(next.pool.stats().wiping.0, 0);
    one.come_back(&mut next);
    assert_eq!(one.read(&mut next, kept, 0, 4096).unwrap(), vec![7; 4096]);
    // All that is free can be had, and none of it shows what was there.
    let mut new = next.open("new");
    while let Ok(grant) = new.grant(&mut next, 4096) {
        assert!(grant != kept && grant != gone, "a number twice");
        let bytes = new.read(&mut next, grant, 0, 4096).unwrap();
        assert_eq!(bytes, vec![0; 4096]);
    }
    assert_eq!(one.read(&mut next, kept, 0, 4096).unwrap(), vec![7; 4096]);
}

#[test]
fn what_was_done_is_not_done_again() {
    let mut host = Host::new(pool_config(POOL.0, POOL.1));
    let mut one = host.open("one");
    let grant = one.grant(&mut host, 4096).unwrap();
    let verb = Verb::FetchAdd {
        grant,
        offset: 8,
        add: 5,
    };
    one.post(verb, Vec::new());
    // Done, and the answer is lost with the process.
    let bytes = one.bytes();
    host.feed(one.conn, &bytes);
    assert!(!host.take_sent(one.conn).is_empty());
    let estate = estate_of(&host);
    let mut next = succeed(&host, &estate).unwrap();
    one.come_back(&mut next);
    one.exchange(&mut next);
    let done = one.lane.pop().expect("an answer");
    assert_eq!(done.result.unwrap(), Answer::Old(0));
    let word = one.read(&mut next, grant, 8, 8).unwrap();
    assert_eq!(word, 5u64.to_le_bytes());
}

#[test]
fn tickets_quotas_and_the_count_of_sessions_go_on() {
    let mut host = Host::new(pool_config(POOL.0, POOL.1));
    let mut one = host.open("one");
    let grant = one.grant(&mut host, 4096).unwrap();
    one.write(&mut host, grant, 0, &[3; 4096]).unwrap();
    let ticket = one.share(&mut host, &[grant]).unwrap();
    let estate = estate_of(&host);
    let mut next = succeed(&host, &estate).unwrap();
    let mut two = next.open("two");
    assert_ne!(two.session, one.session);
    assert_eq!(two.session.0 >> 40, one.session.0 >> 40, "another boot");
    assert_eq!(two.adopt(&mut next, ticket), Ok(1));
    assert_eq!(two.read(&mut next, grant, 0, 4096).unwrap(), vec![3; 4096]);
    assert!(two.write(&mut next, grant, 0, &[4; 8]).is_err(), "frozen");
    // Who does not come back loses what it has, a lease after the change.
    next.now = next.now + LEASE + Nanos(1);
    next.tick();
    assert!(one.attach(&mut next, 0, 0).is_err());
}

#[test]
fn an_estate_that_contradicts_itself_is_refused() {
    let mut host = Host::new(pool_config(POOL.0, POOL.1));
    let mut one = host.open("one");
    one.grant(&mut host, 8192).unwrap();
    let good = estate_of(&host);
    assert!(succeed(&host, &good).is_ok());
    let spoil: [fn(&mut Estate); 8] = [
        |e| e.extents[0].frame = 1,
        |e| e.extents[0].order = 40,
        |e| e.extents[0].segment = 99,
        |e| e.extents.push(e.extents[0].clone()),
        |e| e.segments[0].free.push((0, 0)),
        |e| e.segments[0].used = LeftUse::Free,
        |e| e.sessions[0].grants[0].1 = 7,
        |e| drop(e.segments.pop()),
    ];
    for (number, spoil) in spoil.iter().enumerate() {
        let mut bad = good.clone();
        spoil(&mut bad);
        let refused = succeed(&host, &bad);
        let contradiction = matches!(refused, Err(EstateError::Contradiction(_)));
        assert!(contradiction, "{number} was believed");
    }
}

#[test]
fn only_the_servers_own_user_and_root_may_take_over_and_only_on_this_machine() {
    let mut host = Host::new(pool_config(POOL.0, POOL.1));
    let own = host.shared.config.uid;
    let mut ask = |peer: Peer, hands_over: bool| {
        host.shared.hands_over.store(hands_over, Relaxed);
        let conn = host.accept(peer, 0);
        host.shake(conn, &Key::none(), Purpose::Observe).unwrap();
        let mut lane = Lane::<Vec<u8>>::new(8);
        let operation = Operation {
            verb: Verb::Control(Control::TakeOver),
            class: Class::Control,
            data: Vec::new(),
            token: 0,
        };
        assert!(lane.post(operation).is_ok());
        let mut bytes = Vec::new();
        lane.transmit(&mut bytes).unwrap();
        host.feed(conn, &bytes);
        lane.receive(&host.take_sent(conn)).unwrap();
        lane.pop().expect("an answer").result.map_err(code)
    };
    for uid in [own, 0] {
        assert_eq!(ask(Peer::Unix { uid }, true), Ok(Answer::Done));
        let nobody_looks = ask(Peer::Unix { uid }, false);
        assert_eq!(nobody_looks, Err(ErrorCode::NotPermitted));
    }
    for peer in [Peer::Unix { uid: own + 1 }, Peer::LOOPBACK] {
        assert_eq!(ask(peer, true), Err(ErrorCode::NotPermitted));
    }
    // A session may not, whoever has it.
    let mut client = host.open_as("one", Transport::Shm, Peer::Unix { uid: own });
    let refused = client.control(&mut host, Control::TakeOver);
    assert_eq!(refused.map_err(code), Err(ErrorCode::NotPermitted));
}
