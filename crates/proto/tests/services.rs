//! Memory that sessions share: who has it, who holds its locks, and calls that are cut.

mod common;

use common::{Client, Host, LEASE, pool_config};
use muninn_proto::client::{Answer, Control, OpError, Verb};
use muninn_proto::server::{LOCK_ORPHANED, Surroundings};
use muninn_types::{Bytes, GrantId, Nanos, ServiceId};
use muninn_wire::{ErrorCode, GrantInfo, MAX_ARGS, Opening, Seg, ServiceInfo, ShortText};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[derive(Debug)]
struct Around {
    alive: AtomicBool,
}

impl Surroundings for Around {
    fn find_wic(&self, _owner: &str, name: &str, version: u32) -> Result<u32, Option<u32>> {
        match (name, version) {
            ("walk", 2) => Ok(9),
            ("walk", _) => Err(Some(2)),
            _ => Err(None),
        }
    }
    fn is_alive(&self, _pid: i32) -> bool {
        self.alive.load(Relaxed)
    }
}

fn host() -> (Host, Arc<Around>) {
    let host = Host::new(pool_config(1024, 64));
    let around = Arc::new(Around {
        alive: AtomicBool::new(true),
    });
    host.shared
        .services
        .surround(Arc::clone(&around) as Arc<dyn Surroundings>);
    (host, around)
}

fn opening(name: &str, kib: u64) -> Control {
    Control::Open(Opening::Named {
        name: ShortText::new(name).unwrap(),
        bytes: Bytes::kib(kib).0,
        locks: 4,
    })
}

fn open(
    host: &mut Host,
    client: &mut Client,
    name: &str,
    kib: u64,
) -> (ServiceInfo, Vec<GrantInfo>) {
    match client.control(host, opening(name, kib)).unwrap() {
        Answer::Opened(info, grants) => (info, grants),
        other => panic!("{other:?}"),
    }
}

fn word(host: &mut Host, client: &mut Client, grant: GrantId, expect: u64, new: u64) -> u64 {
    let verb = Verb::CompareSwap {
        grant,
        offset: 8,
        expect,
        new,
    };
    match client.call(host, verb, Vec::new()).unwrap().0 {
        Answer::Old(old) => old,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sessions_see_each_others_changes_and_the_last_keeper_ends_it() {
    let (mut host, _) = host();
    let mut one = host.open("one");
    let mut two = host.open("two");
    let (info, grants) = open(&mut host, &mut one, "log", 100);
    // 100 KiB behind a page of locks, in segments of 64 KiB.
    assert_eq!((info.shift, grants.len(), info.base), (16, 2, 4096));
    let (same, again) = open(&mut host, &mut two, "log", 100);
    assert_eq!(same, info);
    assert_eq!(again[1].grant, grants[1].grant);
    let seg = vec![Seg::new(grants[1].grant, 40, 4)];
    one.call(&mut host, Verb::Write(seg.clone()), b"seen".to_vec())
        .unwrap();
    let (_, read) = two
        .call(&mut host, Verb::Read(seg.clone()), vec![0; 4])
        .unwrap();
    assert_eq!(read, b"seen");

    // Nobody can give it away.
    for control in [
        Control::Release(vec![grants[0].grant]),
        Control::Share(vec![grants[0].grant]),
    ] {
        let refused = two.control(&mut host, control).unwrap_err();
        assert!(matches!(refused, OpError::Refused(r) if r.code == ErrorCode::NotPermitted));
    }
    let status = host.shared.status(Default::default(), host.now).server;
    assert_eq!(status.services[0].sessions, 2);

    let close = Control::Close {
        service: info.service,
    };
    one.control(&mut host, close.clone()).unwrap();
    assert!(
        one.call(&mut host, Verb::Read(seg.clone()), vec![0; 4])
            .is_err()
    );
    two.call(&mut host, Verb::Read(seg), vec![0; 4]).unwrap();
    two.control(&mut host, close).unwrap();
    host.pool.wipe_all().unwrap();
    assert_eq!(host.pool.stats().granted, Bytes::ZERO);
    assert_eq!(host.pool.free_bytes(), Bytes::mib(1));
    // A new one of the same name knows nothing of the old.
    let (fresh, grants) = open(&mut host, &mut two, "log", 100);
    assert_ne!(fresh.service, info.service);
    let seg = vec![Seg::new(grants[1].grant, 40, 4)];
    let (_, read) = two.call(&mut host, Verb::Read(seg), vec![7; 4]).unwrap();
    assert_eq!(read, [0; 4]);
}

#[test]
fn a_name_with_another_size_and_a_service_that_is_not_there_are_refused() {
    let (mut host, _) = host();
    let mut one = host.open("one");
    open(&mut host, &mut one, "log", 100);
    let refused = one.control(&mut host, opening("log", 50)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a service of that name is there with 100KiB and 4 locks: open it with the same, or choose \
         another name"
    );
    let guest = Control::Open(Opening::Guest(ServiceId(77)));
    let refused = one.control(&mut host, guest).unwrap_err();
    assert!(matches!(refused, OpError::Refused(r) if r.code == ErrorCode::NoService));
    let refused = one
        .control(&mut host, opening("huge", 1 << 20))
        .unwrap_err();
    assert!(matches!(refused, OpError::Refused(r) if r.code == ErrorCode::BadSize));
    let refused = one.control(&mut host, opening("more", 2000)).unwrap_err();
    assert!(matches!(refused, OpError::Refused(r) if r.code == ErrorCode::PoolFull));
    host.pool.wipe_all().unwrap();
    open(&mut host, &mut one, "rest", 800);
}

#[test]
fn functions_are_found_by_name_and_version() {
    let (mut host, _) = host();
    let mut one = host.open("one");
    let mut ask = |name: &str, version| {
        let name = ShortText::new(name).unwrap();
        one.control(&mut host, Control::Resolve { name, version })
    };
    assert_eq!(ask("walk", 2).unwrap(), Answer::Resolved(9));
    assert_eq!(
        ask("walk", 3).unwrap_err().to_string(),
        "the server has version 2 of the function, this client asks for 3: build both from the same \
         source (walk)"
    );
    assert!(
        ask("run", 1)
            .unwrap_err()
            .to_string()
            .contains("no function of that name")
    );
}

#[test]
fn locks_of_a_session_that_ends_are_freed() {
    let (mut host, _) = host();
    let mut one = host.open("one");
    let mut two = host.open("two");
    let (_, grants) = open(&mut host, &mut one, "log", 8);
    open(&mut host, &mut two, "log", 8);
    let lock = grants[0].grant;
    let holder = one.session.0;
    assert_eq!(word(&mut host, &mut one, lock, 0, holder), 0);
    assert_eq!(word(&mut host, &mut two, lock, 0, 99), holder);
    let locked = host.shared.status(Default::default(), host.now).server;
    assert_eq!(locked.services[0].locks_held, 1);
    host.close(one.conn);
    host.now += LEASE;
    two.control(&mut host, Control::Heartbeat).unwrap();
    host.now += Nanos::millis(1);
    host.tick();
    assert_eq!(word(&mut host, &mut two, lock, 0, 99), LOCK_ORPHANED);
}

#[test]
fn locks_of_a_process_that_has_the_memory_mapped_wait_for_its_end() {
    let (mut host, around) = host();
    let mut two = host.open("two");
    let (_, grants) = open(&mut host, &mut two, "log", 8);
    let lock = grants[0].grant;
    for lease_first in [true, false] {
        around.alive.store(true, Relaxed);
        let mut mapped = host.open_shm_process("mapped", 4242);
        open(&mut host, &mut mapped, "log", 8);
        let holder = mapped.session.0;
        let before = word(&mut host, &mut two, lock, u64::MAX, 0);
        assert_eq!(word(&mut host, &mut two, lock, before, holder), before);
        host.close(mapped.conn);
        if lease_first {
            host.now += LEASE;
            two.control(&mut host, Control::Heartbeat).unwrap();
            host.now += Nanos::millis(1);
        }
        host.tick();
        // It may be stopped in the middle of a copy.
        assert_eq!(word(&mut host, &mut two, lock, 0, 99), holder);
        around.alive.store(false, Relaxed);
        host.tick();
        assert_eq!(word(&mut host, &mut two, lock, 0, 99), LOCK_ORPHANED);
    }
}

fn call(idempotent: bool) -> Verb {
    Verb::Call {
        service: ServiceId(1),
        wic: 9,
        deadline_us: 1000,
        idempotent,
        args_len: 3,
    }
}

#[test]
fn a_call_is_answered_out_of_order_and_not_done_twice_after_a_cut() {
    let (mut host, _) = host();
    let one = host.open("one");
    let mut lane = one.attach(&mut host, 1, 0).unwrap();
    let mut data = b"abc".to_vec();
    data.resize(MAX_ARGS, 0);
    lane.post(call(false), data.clone());
    lane.post(Verb::Control(Control::Heartbeat), Vec::new());
    lane.exchange(&mut host);
    assert_eq!(host.calls.len(), 1);
    assert_eq!(host.calls[0].1, b"abc");
    assert!(matches!(
        lane.lane.pop().unwrap().result,
        Ok(Answer::Report(_))
    ));

    // Cut and asked again while it runs: the answer goes to the new connection.
    lane.cut_and_attach(&mut host);
    lane.exchange(&mut host);
    assert_eq!(host.calls.len(), 1, "it was begun twice");
    host.end_call(Ok(b"reply"));
    lane.exchange(&mut host);
    let done = lane.lane.pop().unwrap();
    let called = Answer::Called {
        reply_len: 5,
        accesses: 3,
        took_ns: 0,
    };
    assert_eq!(done.result, Ok(called));
    assert_eq!(&done.operation.data[..5], b"reply");

    // Ended, but the reply was lost: it comes again, and nothing is run.
    lane.post(call(false), data.clone());
    lane.exchange(&mut host);
    host.end_call(Ok(b"once"));
    lane.cut_and_attach(&mut host);
    lane.exchange(&mut host);
    assert!(host.calls.is_empty());
    let done = lane.lane.pop().unwrap();
    assert_eq!(&done.operation.data[..4], b"once");

    // One that may be done twice is.
    lane.post(call(true), data);
    lane.exchange(&mut host);
    lane.cut_and_attach(&mut host);
    lane.exchange(&mut host);
    assert_eq!(host.calls.len(), 2);
    host.end_call(Ok(b"first"));
    host.end_call(Ok(b"again"));
    lane.exchange(&mut host);
    let done = lane.lane.pop().unwrap();
    assert_eq!(&done.operation.data[..5], b"again");
    assert!(lane.lane.pop().is_none());
}
