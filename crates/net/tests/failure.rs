//! What happens when a client, a server or the way between them dies, stops or goes silent: memory
//! comes back after the lease and not before, and nobody ever reads what is not there any more.

mod common;

use common::*;
use muninn_net::faulty::Link;
use muninn_net::{Grant, NetError, Observer, Pool, PoolOptions, TcpSession};
use muninn_server::ServerConfig;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, GrantId, LaneKind, ServerId};
use muninn_wire::{Seg, Transport as Wire};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_millis(1500);

fn leased(memory: Bytes) -> Local {
    Local::start(ServerConfig {
        lease: LEASE,
        ..config(memory)
    })
}

/// Where children of this program start.
#[test]
fn child() {
    serve_if_asked();
    let Some(role) = role() else { return };
    match role[0].as_str() {
        "holder" => hold(&role[1]),
        "adder" => add(&role[1]),
        _ => {}
    }
}

/// Holds 4 MiB and reads it over and over; says how that ends.
fn hold(address: &str) {
    let pool = Pool::connect(address, options()).unwrap();
    let grants = [0, 1].map(|_| pool.grant(Bytes::mib(2)).unwrap());
    let data = pattern(9, 2 << 20);
    for grant in &grants {
        pool.write(grant, 0, &data).unwrap();
    }
    say("holding");
    let mut back = vec![0; 2 << 20];
    for round in 0u64.. {
        let grant = &grants[round as usize % 2];
        back.fill(0);
        if let Err(error) = pool.read(grant, 0, &mut back) {
            assert!(matches!(error, NetError::Lost(..)), "{error}");
            say(&format!("lost: {error}"));
            return;
        }
        if back != data {
            say("read other bytes than it wrote");
            return;
        }
    }
}

/// Many threads that do nothing but atomic operations: wherever they are stopped, some of them are
/// in the middle of one.
fn add(address: &str) {
    let pool = Pool::connect(address, options()).unwrap();
    let grant = pool.grant(Bytes::mib(2)).unwrap();
    let transport = pool.transport(ServerId(0)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..64 {
            scope.spawn(move || {
                let mut lane = transport.lane(LaneKind::Critical).unwrap();
                for round in 0.. {
                    let done = if round % 2 == 0 {
                        lane.fetch_add(grant.id, thread * 4096, 1)
                    } else {
                        lane.compare_swap(grant.id, thread * 4096, 0, 1)
                    };
                    if let Err(error) = done {
                        assert!(matches!(error, NetError::Lost(..)), "{error}");
                        return;
                    }
                }
            });
        }
        say("adding");
    });
    say("lost");
}

#[test]
fn a_killed_clients_memory_comes_back_long_before_its_lease_is_over() {
    let local = Local::start(ServerConfig {
        lease: Duration::from_secs(3600),
        ..config(Bytes::mib(16))
    });
    let mut clients = local
        .both()
        .map(|address| Process::start("child", &["holder", &address.to_string()]));
    for client in &clients {
        assert_eq!(client.hear(), "holding");
    }
    assert!(local.server.pool().granted >= Bytes::mib(4));
    for client in &mut clients {
        client.kill();
    }
    until("the memory to come back", || local.all_free());
    assert_eq!(local.refused("lease-ran-out"), 0);
    assert!(local.server.is_healthy());
}

/// A client that is stopped has its connections, and its memory until the lease is over.
#[test]
fn a_stopped_clients_memory_comes_back_after_the_lease_and_not_before() {
    let local = leased(Bytes::mib(16));
    let mut clients = local
        .both()
        .map(|address| Process::start("child", &["holder", &address.to_string()]));
    for client in &clients {
        assert_eq!(client.hear(), "holding");
    }
    for client in &mut clients {
        client.stop();
    }
    // The lease as the server has it, after the client's last sign of life.
    let sessions = local.server.status().sessions;
    let asked = Instant::now();
    assert_eq!(sessions.len(), 2);
    let left: Vec<Duration> = sessions
        .iter()
        .map(|session| Duration::from_millis(session.lease_left_ms))
        .collect();
    let latest = *left.iter().max().unwrap();
    assert!(
        latest > LEASE / 3,
        "no time is left to see anything: {left:?}"
    );
    let mut samples = 0;
    until("the memory to come back", || {
        let granted = local.server.pool().granted;
        let elapsed = asked.elapsed();
        if elapsed < latest {
            samples += 1;
            assert!(granted >= Bytes::mib(4), "freed {elapsed:?} of {latest:?}");
        }
        granted == Bytes::ZERO
    });
    assert!(samples > 3, "nobody looked before the lease was over");
    until("it to be wiped", || local.all_free());
    assert_eq!(local.refused("lease-ran-out"), 2);
    assert!(local.server.is_healthy());
    for client in &mut clients {
        client.kill();
    }
}

/// Stops a client for longer than its lease while others take its memory; what it says then.
fn stopped_beyond_the_lease(local: &Local, address: &Address, role: &str, first: &str) -> String {
    let mut client = Process::start("child", &[role, &address.to_string()]);
    assert_eq!(client.hear(), first);
    client.stop();
    until("the lease to run out", || local.all_free());
    let others = local.both().map(|address| {
        let pool = Pool::connect(&address.to_string(), options()).unwrap();
        for _ in 0..4 {
            let grant = pool.grant(Bytes::mib(2)).unwrap();
            pool.write(&grant, 0, &vec![0x5C; 2 << 20]).unwrap();
        }
        pool
    });
    client.go_on();
    let said = client.hear();
    let ended = client.end();
    assert!(ended.success(), "the client died: {ended}");
    drop(others);
    until("the others' memory to come back", || local.all_free());
    said
}

#[test]
fn a_client_stopped_beyond_its_lease_gets_an_error_and_lives() {
    let local = leased(Bytes::mib(16));
    for address in local.both() {
        let said = stopped_beyond_the_lease(&local, address, "holder", "holding");
        let lost = format!("lost: the session with the server at {address} is lost: ");
        assert!(said.starts_with(&lost), "{said}");
    }
}

#[test]
fn a_client_stopped_in_the_middle_of_atomic_operations_lives() {
    let local = leased(Bytes::mib(16));
    for _ in 0..2 {
        let said = stopped_beyond_the_lease(&local, &local.unix, "adder", "adding");
        assert_eq!(said, "lost");
    }
}

#[test]
fn a_killed_server_is_an_error_that_names_it() {
    let mut remote = Remote::start("child", Bytes::mib(16), LEASE, 1);
    let data = pattern(3, 1 << 20);
    let pools = [remote.unix.clone(), remote.tcp.clone()].map(|address| {
        let pool = Pool::connect(&address.to_string(), options()).unwrap();
        let grant = pool.grant(Bytes::mib(1)).unwrap();
        pool.write(&grant, 0, &data).unwrap();
        (address, pool, grant)
    });
    remote.process.kill();
    let killed = Instant::now();
    for (address, pool, grant) in &pools {
        let mut back = vec![0; 1 << 20];
        let error = loop {
            back.fill(0);
            match pool.read(grant, 0, &mut back) {
                // What is mapped can be read until the lease is over, and is right.
                Ok(()) => assert!(back == data, "other bytes from {address}"),
                Err(error) => break error,
            }
            assert!(killed.elapsed() < PATIENCE, "{address} is never missed");
        };
        let expected = format!("the session with the server at {address} is lost: ");
        assert!(error.to_string().starts_with(&expected), "{error}");
        // And so does everything after it, at once.
        let again = Instant::now();
        assert!(matches!(pool.grant(Bytes::PAGE), Err(NetError::Lost(..))));
        assert!(pool.write(grant, 0, b"late").is_err());
        assert!(
            again.elapsed() < PATIENCE / 2,
            "a lost session is tried again"
        );
    }
}

#[test]
fn a_server_that_took_another_ones_place_is_not_taken_for_it() {
    let long = Duration::from_secs(30);
    let mut remote = Remote::start("child", Bytes::mib(16), long, 1);
    let over_socket = TcpSession::open(&remote.unix, &options()).unwrap();
    let old = [
        Pool::new(vec![Arc::new(over_socket)], options()).unwrap(),
        Pool::connect(&remote.unix.to_string(), options()).unwrap(),
    ];
    let grants = old.each_ref().map(|pool| {
        let grant = pool.grant(Bytes::kib(64)).unwrap();
        pool.write(&grant, 0, b"of the old one").unwrap();
        grant
    });
    remote.replace();
    // The new one counts its grants from the start again: the ids are the same.
    let next = TcpSession::open(&remote.unix, &options()).unwrap();
    let next = Pool::new(vec![Arc::new(next)], options()).unwrap();
    let mut ids = Vec::new();
    for _ in 0..4 {
        let grant = next.grant(Bytes::kib(64)).unwrap();
        next.write(&grant, 0, b"of the new one").unwrap();
        ids.push(grant.id);
    }
    assert!(
        grants.iter().all(|grant| ids.contains(&grant.id)),
        "{ids:?}"
    );
    for (pool, grant) in old.iter().zip(&grants) {
        let mut back = [0; 14];
        let error = loop {
            match pool.read(grant, 0, &mut back) {
                // Mapped memory is there until the lease is over or the loss is known.
                Ok(()) => assert_eq!(&back, b"of the old one"),
                Err(error) => break error,
            }
            // The next word with the server tells.
            let _ = pool.grant(Bytes::PAGE);
        };
        assert!(matches!(error, NetError::Lost(..)), "{error}");
        assert!(pool.write(grant, 0, b"over the new!!").is_err());
    }
    let mut back = [0; 14];
    for id in ids {
        let grant = Grant {
            server: ServerId(0),
            id,
            bytes: Bytes::kib(64),
        };
        next.read(&grant, 0, &mut back).unwrap();
        assert_eq!(&back, b"of the new one");
    }
}

#[test]
fn a_drained_server_gets_its_memory_back() {
    let local = leased(Bytes::mib(16));
    let pools = local
        .both()
        .map(|address| Pool::connect(&address.to_string(), options()).unwrap());
    let grants = pools
        .each_ref()
        .map(|pool| pool.grant(Bytes::mib(2)).unwrap());
    let mut operator = Observer::connect(&local.unix, &options()).unwrap();
    let report = operator.drain(Some(Duration::from_secs(60))).unwrap();
    assert!(report.draining && report.left_ms > 30_000, "{report:?}");
    assert_eq!((report.holders, report.held_bytes), (2, 4 << 20));
    for (pool, grant) in pools.iter().zip(&grants) {
        let told = pool.transport(ServerId(0)).unwrap();
        until("the session to be told", || told.drain_left().is_some());
        // Still good until it is released.
        pool.write(grant, 0, b"moved elsewhere").unwrap();
        pool.release(&[*grant]).unwrap();
        assert!(Pool::is_full(&pool.grant(Bytes::PAGE).unwrap_err()));
    }
    until("the memory to come back", || local.all_free());
    let report = operator.progress().unwrap();
    assert_eq!((report.holders, report.held_bytes), (0, 0));
    // One that dies instead of moving away is waited for no longer than its lease.
    operator.drain(None).unwrap();
    let mut client = Process::start("child", &["holder", &local.unix.to_string()]);
    client.hear();
    operator.drain(Some(Duration::from_secs(60))).unwrap();
    client.kill();
    until("the dead to be counted out", || {
        operator.progress().unwrap().holders == 0
    });
    until("the memory to come back", || local.all_free());
}

#[test]
fn a_connection_that_went_silent_holds_nothing_beyond_the_lease() {
    let local = leased(Bytes::mib(16));
    let link = Link::to(local.socket_address()).unwrap();
    let brief = PoolOptions {
        deadline: Duration::from_millis(300),
        ..options()
    };
    let pool = Pool::connect(&link.address().to_string(), brief).unwrap();
    let grant = pool.grant(Bytes::mib(1)).unwrap();
    pool.write(&grant, 0, b"here").unwrap();
    // Neither side is told anything: no end, no reset.
    link.stop();
    let error = pool.read(&grant, 0, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, NetError::Timeout(..)), "{error}");
    until("the lease to run out", || local.all_free());
    link.go_on();
    until("the client to learn of it", || {
        let mut back = *b"none";
        match pool.read(&grant, 0, &mut back) {
            Ok(()) => panic!("read {back:?} of a grant that is gone"),
            Err(error) => matches!(error, NetError::Lost(..)),
        }
    });
}

/// Half of a write: its head, and half of its payload.
fn half_write(grant: GrantId, len: u32, fill: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let body = seg_bytes(&[Seg::new(grant, 0, len)]);
    let segs = muninn_wire::Segs::decode(&body).unwrap();
    let request = muninn_wire::Request::Write(segs);
    request.encode(Class::Eviction(4), muninn_types::Tag(9), &mut frame);
    frame.resize(frame.len() + len as usize / 2, fill);
    frame
}

#[test]
fn memory_comes_back_from_transfers_that_never_end() {
    let local = leased(Bytes::mib(64));
    let mut kept = Vec::new();
    for address in local.both() {
        // Cut in the middle of a payload.
        let mut cut = Raw::open(address, Wire::Tcp);
        let grant = cut.grant(1 << 20);
        cut.send(&half_write(grant.grant, 256 << 10, 1));
        drop(cut);
        // Silent in the middle of a payload, with the connection open.
        let mut silent = Raw::open(address, Wire::Tcp);
        let grant = silent.grant(1 << 20);
        silent.send(&half_write(grant.grant, 256 << 10, 2));
        kept.push(silent);
        // Asks for more than its socket takes, and never reads.
        let mut deaf = Raw::open(address, Wire::Tcp);
        let grant = deaf.grant(1 << 20);
        let body = seg_bytes(&[Seg::new(grant.grant, 0, 256 << 10)]);
        let mut frame = Vec::new();
        for tag in 100..164 {
            let segs = muninn_wire::Segs::decode(&body).unwrap();
            let tag = muninn_types::Tag(tag);
            muninn_wire::Request::Read(segs).encode(Class::Prefetch, tag, &mut frame);
        }
        deaf.send(&frame);
        kept.push(deaf);
    }
    assert!(local.server.pool().granted >= Bytes::mib(4));
    until("all memory to come back", || local.all_free());
    for raw in &mut kept {
        until("the connection to be closed", || raw.is_closed());
    }
    until("the connections to be forgotten", || {
        local.server.status().server.connections == 0
    });
    assert_eq!(local.server.status().server.sessions, 0);
}

#[test]
fn a_lane_that_came_back_is_safe_from_its_old_connection() {
    let local = leased(Bytes::mib(16));
    let mut control = Raw::open(&local.tcp, Wire::Tcp);
    let grant = control.grant(1 << 20).grant;
    const LEN: u32 = 64 << 10;
    for round in 0..20u8 {
        let old = control.attach(&local.tcp, 1, LaneKind::Bulk);
        let half = half_write(grant, LEN, 0xAA);
        old.send(&half);
        let mut new = control.attach(&local.tcp, 1, LaneKind::Bulk);
        let fresh = vec![round; LEN as usize];
        assert_eq!(new.write(&[Seg::new(grant, 0, LEN)], &fresh).code(), None);
        // The rest of the old write arrives now, if anybody still listens.
        old.try_send(&vec![0xAA; LEN as usize / 2]);
        let reply = new.read(&[Seg::new(grant, 0, LEN)]);
        assert!(reply.payload == fresh, "round {round}: a late write won");
    }
    drop(control);
    until("all memory to come back", || local.all_free());
}

#[test]
fn a_call_that_timed_out_leaves_nothing_behind() {
    // The server is stopped while a grant is asked for: the client gives up, the server does it
    // later. Neither is that memory lost, nor does the client miss the file that came with it.
    let long = Duration::from_secs(30);
    let mut remote = Remote::start("child", Bytes::mib(16), long, 1);
    for address in [remote.unix.clone(), remote.tcp.clone()] {
        let brief = PoolOptions {
            deadline: Duration::from_millis(200),
            ..options()
        };
        let pool = Pool::connect(&address.to_string(), brief).unwrap();
        remote.process.stop();
        let error = pool.grant(Bytes::kib(64)).unwrap_err();
        assert!(matches!(error, NetError::Timeout(..)), "{error}");
        remote.process.go_on();
        let mut grants = Vec::new();
        until("the server to answer again", || {
            match pool.grant(Bytes::kib(64)) {
                Ok(grant) => grants.push(grant),
                Err(NetError::Timeout(..)) => {}
                Err(error) => panic!("{error}"),
            }
            grants.len() == 3
        });
        let mut back = [0; 5];
        for grant in &grants {
            pool.write(grant, 0, b"usual").unwrap();
            pool.read(grant, 0, &mut back).unwrap();
            assert_eq!(&back, b"usual");
        }
        until("the grants to be released", || {
            match pool.release(&grants) {
                Ok(()) => true,
                Err(NetError::Timeout(..)) => false,
                // Done already, by a call that was not waited for.
                Err(error) => error.is_refusal(muninn_wire::ErrorCode::NoGrant),
            }
        });
        until("nothing to be held by a session that lives", || {
            remote.ask("granted") == 0
        });
        assert_eq!(remote.ask("sessions"), 1);
        drop(pool);
        until("the session to end", || remote.ask("sessions") == 0);
    }
    assert!(remote.is_healthy());
}
