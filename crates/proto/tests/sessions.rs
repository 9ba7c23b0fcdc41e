//! Leases, cuts and what is done only once.

mod common;

use common::{Client, Host, LEASE, pool_config};
use muninn_proto::client::{Answer, Control, OpError, Verb};
use muninn_proto::server::Peer;
use muninn_types::{Bytes, Nanos, SessionId};
use muninn_wire::{ErrorCode, Notice, Seg, StatusPage, Transport};

fn add(client: &mut Client, grant: muninn_types::GrantId, add: u64) {
    let verb = Verb::FetchAdd {
        grant,
        offset: 0,
        add,
    };
    client.post(verb, Vec::new());
}

#[test]
fn a_lease_runs_out_exactly_when_it_is_over() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    client.grant(&mut host, 4096).unwrap();
    let start = host.now;
    host.close(client.conn);
    host.now = start + LEASE;
    host.tick();
    assert_eq!(
        host.pool.stats().granted,
        Bytes::PAGE,
        "freed before its time"
    );
    // Coming back renews it, and the status says so.
    let mut client = client.attach(&mut host, 0, 0).unwrap();
    assert_eq!(
        host.shared.status(SessionId(0), host.now).sessions[0].lease_left_ms,
        10_000
    );
    host.now += LEASE;
    host.tick();
    assert_eq!(host.pool.stats().granted, Bytes::PAGE);
    client.control(&mut host, Control::Heartbeat).unwrap();
    host.now = host.now + LEASE + Nanos(1);
    host.tick();
    assert_eq!(host.pool.stats().granted, Bytes::ZERO);
    assert_eq!(host.pool.stats().wiping, Bytes::PAGE);
    assert!(!host.is_open(client.conn), "its connection outlived it");
    assert_eq!(host.refused("lease-ran-out"), 1);
    assert!(client.attach(&mut host, 0, 0).is_err());
}

#[test]
fn who_closes_the_last_connection_in_good_order_has_a_moment_to_come_back() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    client.grant(&mut host, 4096).unwrap();
    let lane = client.attach(&mut host, 1, 0).unwrap();
    let moment = Nanos::millis(1_000);
    // One connection is left: nothing happens.
    host.leave(lane.conn);
    host.now += moment + Nanos(1);
    host.tick();
    assert_eq!(host.pool.stats().granted, Bytes::PAGE);
    // None is, but it comes back in time.
    host.leave(client.conn);
    host.now += moment;
    host.tick();
    assert_eq!(host.pool.stats().granted, Bytes::PAGE);
    let client = client.attach(&mut host, 0, 0).unwrap();
    host.now += moment + moment;
    host.tick();
    assert_eq!(host.pool.stats().granted, Bytes::PAGE);
    // It does not.
    host.leave(client.conn);
    host.now += moment + Nanos(1);
    host.tick();
    assert_eq!(host.pool.stats().granted, Bytes::ZERO);
    assert_eq!(host.refused("lease-ran-out"), 0);
}

#[test]
fn what_was_done_is_not_done_again_after_a_cut() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let grant = client.grant(&mut host, 4096).unwrap();
    // All arrive, no answer gets back.
    add(&mut client, grant, 1);
    add(&mut client, grant, 10);
    client.post(Verb::Control(Control::Grant { bytes: 4096 }), Vec::new());
    let swap = Verb::CompareSwap {
        grant,
        offset: 8,
        expect: 0,
        new: 5,
    };
    client.post(swap, Vec::new());
    let bytes = client.bytes();
    host.feed(client.conn, &bytes);
    client.come_back(&mut host);
    client.exchange(&mut host);
    let answers: Vec<Answer> =
        std::iter::from_fn(|| client.lane.pop().map(|done| done.result.unwrap())).collect();
    assert_eq!(answers[..2], [Answer::Old(0), Answer::Old(1)]);
    assert_eq!(answers[3], Answer::Old(0), "the swap was done twice");
    assert_eq!(client.add(&mut host, grant, 0).unwrap(), 11);
    assert_eq!(host.pool.stats().extents, 2, "a grant was made twice");
}

/// A request that was never answered stays known however often the client comes back and gives up
/// what it had asked for beside it.
#[test]
fn an_unanswered_request_is_remembered_through_many_cuts() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let grant = client.grant(&mut host, 4096).unwrap();
    add(&mut client, grant, 1_000_000);
    for _ in 0..6 {
        let mut tags = Vec::new();
        for _ in 0..15 {
            let verb = Verb::FetchAdd {
                grant,
                offset: 8,
                add: 1,
            };
            let operation = muninn_proto::client::Operation {
                verb,
                class: muninn_types::Class::Demand,
                data: Vec::new(),
                token: 0,
            };
            tags.push(client.lane.post(operation).unwrap());
        }
        let bytes = client.bytes();
        host.feed(client.conn, &bytes);
        tags.into_iter().for_each(|tag| client.lane.abandon(tag));
        client.come_back(&mut host);
    }
    client.exchange(&mut host);
    assert_eq!(client.lane.pop().unwrap().result, Ok(Answer::Old(0)));
    assert!(
        client.lane.pop().is_none(),
        "an abandoned request was answered"
    );
    assert_eq!(client.add(&mut host, grant, 0).unwrap(), 1_000_000);
    let word = client.read(&mut host, grant, 8, 8).unwrap();
    assert_eq!(
        word,
        90u64.to_le_bytes(),
        "an abandoned request was done twice"
    );
}

#[test]
fn a_lane_sends_again_in_the_order_of_its_tags() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let grant = client.grant(&mut host, 4096).unwrap();
    // Slots are reused out of order: the order must come from the tags.
    for round in 0..5u8 {
        client.post(Verb::Write(vec![Seg::new(grant, 0, 8)]), vec![round; 8]);
    }
    client.exchange(&mut host);
    while client.lane.pop().is_some() {}
    for value in 10..20u8 {
        let segs = vec![Seg::new(grant, 0, 8)];
        client.post(Verb::Write(segs), vec![value; 8]);
        if value % 3 == 0 {
            let bytes = client.bytes();
            host.feed(client.conn, &bytes[..bytes.len() - 3]);
            client.come_back(&mut host);
        }
    }
    client.exchange(&mut host);
    let done = std::iter::from_fn(|| client.lane.pop());
    let values: Vec<u8> = done.map(|done| done.operation.data[0]).collect();
    assert_eq!(values, (10..20).collect::<Vec<u8>>());
    assert_eq!(client.read(&mut host, grant, 0, 8).unwrap(), [19; 8]);
}

#[test]
fn a_lane_that_came_back_is_deaf_to_its_old_connection() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let grant = client.grant(&mut host, 4096).unwrap();
    client.post(Verb::Write(vec![Seg::new(grant, 0, 64)]), vec![1; 64]);
    let bytes = client.bytes();
    let old = client.conn;
    host.feed(old, &bytes[..bytes.len() - 32]);
    // In the middle of a payload nothing can be shared: it is still changing.
    let mut other = client.attach(&mut host, 1, 0).unwrap();
    assert_eq!(other.share(&mut host, &[grant]), Err(ErrorCode::TryAgain));
    client.come_back(&mut host);
    assert!(!host.is_open(old));
    client.exchange(&mut host);
    client.lane.pop().unwrap().result.unwrap();
    client.write(&mut host, grant, 0, &[2; 64]).unwrap();
    host.feed(old, &bytes[bytes.len() - 32..]);
    assert_eq!(client.read(&mut host, grant, 0, 64).unwrap(), [2; 64]);
    // The half write is no longer under way.
    other.share(&mut host, &[grant]).unwrap();
}

#[test]
fn memory_comes_back_from_payloads_that_never_end() {
    for how in 0..4 {
        let mut host = Host::new(pool_config(64, 64));
        let mut client = host.open("a");
        let grant = client.grant(&mut host, 4096).unwrap();
        let mut data = client.attach(&mut host, 1, 0).unwrap();
        data.post(Verb::Write(vec![Seg::new(grant, 0, 64)]), vec![1; 64]);
        let bytes = data.bytes();
        host.feed(data.conn, &bytes[..bytes.len() - 1]);
        match how {
            0 => {
                // Released while its payload arrives: freed when the payload is in.
                client.release(&mut host, &[grant]).unwrap();
                assert_eq!(host.pool.stats().granted, Bytes::PAGE);
                host.feed(data.conn, &bytes[bytes.len() - 1..]);
                data.lane.receive(&host.take_sent(data.conn)).unwrap();
                assert_eq!(data.lane.pop().unwrap().result, Ok(Answer::Done));
            }
            1 => {
                client.release(&mut host, &[grant]).unwrap();
                host.close(data.conn);
            }
            2 => {
                host.now += LEASE + Nanos(1);
                host.tick();
            }
            _ => {
                client.control(&mut host, Control::Goodbye).unwrap();
                assert!(!host.is_open(data.conn));
            }
        }
        assert_eq!(host.pool.stats().granted, Bytes::ZERO, "case {how}");
        host.pool.wipe_all().unwrap();
        assert_eq!(host.pool.stats().largest_free, Bytes::kib(64), "case {how}");
    }
}

#[test]
fn goodbye_is_answered_before_the_connection_goes() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let data = client.attach(&mut host, 1, 0).unwrap();
    client.grant(&mut host, 4096).unwrap();
    assert_eq!(
        client.control(&mut host, Control::Goodbye),
        Ok(Answer::Done)
    );
    assert!(!host.is_open(data.conn));
    assert_eq!(host.shards[0].session_count(), 0);
    assert_eq!(host.shards[0].connection_count(), 0);
    assert_eq!(host.shared.registry.holders(), (0, 0));
    // A client that heard no answer asks again and learns that it is gone.
    assert!(client.attach(&mut host, 0, 0).is_err());
    client.post(Verb::Control(Control::Heartbeat), Vec::new());
    client.lane.fail("it said goodbye");
    let lost = client.lane.pop().unwrap().result.unwrap_err();
    assert_eq!(lost, OpError::SessionLost("it said goodbye".to_string()));
    assert_eq!(lost.to_string(), "the session is lost: it said goodbye");
}

#[test]
fn a_status_of_many_sessions_comes_in_pages() {
    let mut host = Host::new(pool_config(64, 64));
    let mut clients: Vec<Client> = (0..1300).map(|i| host.open(&format!("c{i}"))).collect();
    let mut seen = Vec::new();
    let mut after = SessionId(0);
    let mut pages = 0;
    loop {
        let asked = clients[0].control(&mut host, Control::Status { after });
        let Ok(Answer::Status(page)) = asked else {
            panic!("{asked:?}");
        };
        assert!(page.sessions.len() <= StatusPage::MAX_SESSIONS);
        assert_eq!(page.server.sessions, 1300);
        seen.extend(page.sessions.iter().map(|session| session.id));
        pages += 1;
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(pages, 6);
    let all: Vec<SessionId> = clients.iter().map(|client| client.session).collect();
    assert_eq!(seen, all);
}

/// Totals are kept up to date, not added up when asked: they must stay right through everything.
#[test]
fn a_heartbeat_reports_what_all_sessions_hold() {
    let mut host = Host::new(pool_config(256, 64));
    let report =
        |host: &mut Host, client: &mut Client| match client.control(host, Control::Heartbeat) {
            Ok(Answer::Report(report)) => (report.holders, report.held_bytes >> 12),
            other => panic!("{other:?}"),
        };
    let (mut a, mut b) = (host.open("a"), host.open("b"));
    assert_eq!(report(&mut host, &mut a), (0, 0));
    let grant = a.grant(&mut host, 4096).unwrap();
    let second = a.grant(&mut host, 8192).unwrap();
    assert_eq!(report(&mut host, &mut a), (1, 3));
    let ticket = a.share(&mut host, &[grant]).unwrap();
    b.adopt(&mut host, ticket).unwrap();
    assert_eq!(report(&mut host, &mut a), (2, 4));
    // Adopting what one has already changes nothing.
    let ticket = a.share(&mut host, &[grant, second]).unwrap();
    a.adopt(&mut host, ticket).unwrap();
    assert_eq!(report(&mut host, &mut a), (2, 4));
    a.release(&mut host, &[grant, second]).unwrap();
    assert_eq!(report(&mut host, &mut a), (1, 1));
    b.control(&mut host, Control::Goodbye).unwrap();
    assert_eq!(report(&mut host, &mut a), (0, 0));
    assert_eq!(host.pool.stats().granted, Bytes::ZERO);
}

#[test]
fn a_ticket_that_nobody_will_use_is_revoked_by_its_owner_alone() {
    let mut host = Host::new(pool_config(256, 64));
    let (mut a, mut b) = (host.open("a"), host.open("b"));
    let grant = a.grant(&mut host, 4096).unwrap();
    for _ in 0..1000 {
        let ticket = a.share(&mut host, &[grant]).unwrap();
        a.control(&mut host, Control::Revoke { ticket }).unwrap();
        assert_eq!(b.adopt(&mut host, ticket), Err(ErrorCode::NoTicket));
    }
    let ticket = a.share(&mut host, &[grant]).unwrap();
    a.release(&mut host, &[grant]).unwrap();
    b.control(&mut host, Control::Revoke { ticket }).unwrap();
    assert_eq!(
        host.pool.stats().granted,
        Bytes(4096),
        "it is not b's to revoke"
    );
    a.control(&mut host, Control::Revoke { ticket }).unwrap();
    assert_eq!(host.pool.stats().granted, Bytes::ZERO);
    // Once used, there is nothing to revoke, and what was adopted stays.
    let grant = a.grant(&mut host, 4096).unwrap();
    let ticket = a.share(&mut host, &[grant]).unwrap();
    b.adopt(&mut host, ticket).unwrap();
    a.control(&mut host, Control::Revoke { ticket }).unwrap();
    a.release(&mut host, &[grant]).unwrap();
    assert_eq!(host.pool.stats().granted, Bytes(4096));
}

#[test]
fn a_drain_is_announced_refuses_grants_and_can_be_called_off() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let grant = client.grant(&mut host, 4096).unwrap();
    assert_eq!(
        common::code(
            client
                .control(&mut host, Control::Drain { deadline_ms: 50 })
                .unwrap_err()
        ),
        ErrorCode::NotPermitted
    );
    host.pool.set_drain(Some(host.now + Nanos::secs(3)));
    host.tick();
    let (conn, notice) = host.out.notices.pop().unwrap();
    assert_eq!(
        (conn, notice),
        (client.conn, Notice::Drain { left_ms: 3000 })
    );
    host.tick();
    assert!(host.out.notices.is_empty(), "announced twice");
    let refused = client
        .control(&mut host, Control::Grant { bytes: 4096 })
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the server is giving its memory back and grants no more; use another server"
    );
    // What is there can still be used, moved away and released.
    client.read(&mut host, grant, 0, 8).unwrap();
    client.release(&mut host, &[grant]).unwrap();
    host.pool.set_drain(None);
    host.tick();
    assert_eq!(host.out.notices.pop().unwrap().1, Notice::DrainCancelled);
    client.grant(&mut host, 4096).unwrap();
    host.pool.stop();
    assert_eq!(client.grant(&mut host, 4096), Err(ErrorCode::Stopping));
}

#[test]
fn only_an_operator_may_drain() {
    use muninn_proto::auth::Key;
    use muninn_proto::client::{Lane, Purpose};
    let key = Key::from_file_contents(b"sixteen bytes or more").unwrap();
    let cases = [
        (Key::none(), Peer::LOOPBACK, false),
        (Key::none(), Peer::Unix { uid: 1001 }, false),
        (Key::none(), Peer::Unix { uid: 1000 }, true),
        (Key::none(), Peer::Unix { uid: 0 }, true),
        (key, Peer::LOOPBACK, true),
    ];
    for (key, peer, allowed) in cases {
        let mut host = Host::with(pool_config(64, 64), common::shared_config(key.clone()), 1);
        let conn = host.accept(peer, 0);
        host.shake(conn, &key, Purpose::Observe).unwrap();
        let secret = host.open("a").secret;
        let mut operator = Client {
            session: SessionId(0),
            secret,
            conn,
            lane_id: 0,
            lane: Lane::new(4),
        };
        let drained = operator.control(&mut host, Control::Drain { deadline_ms: 1000 });
        assert_eq!(drained.is_ok(), allowed, "{peer:?}");
        assert_eq!(host.pool.drain().0.is_some(), allowed);
        let grant = operator.control(&mut host, Control::Grant { bytes: 4096 });
        assert_eq!(common::code(grant.unwrap_err()), ErrorCode::NotOpen);
    }
}

#[test]
fn sessions_that_map_memory_are_not_served_by_message() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open_as("a", Transport::Shm, Peer::Unix { uid: 5 });
    let grant = client.grant(&mut host, 4096).unwrap();
    assert_eq!(
        client.read(&mut host, grant, 0, 8),
        Err(ErrorCode::WrongTransport)
    );
    assert_eq!(
        client.write(&mut host, grant, 0, &[1]),
        Err(ErrorCode::WrongTransport)
    );
}

#[test]
fn observers_are_bounded_in_number_and_in_silence() {
    use muninn_proto::auth::Key;
    use muninn_proto::client::Purpose;
    use muninn_proto::server::{FakeBacking, Shard};
    let max = Shard::<FakeBacking>::MAX_OBSERVERS;
    let mut host = Host::new(pool_config(64, 64));
    let mut conns = Vec::new();
    for n in 0..max {
        // No more than its part for each.
        let uid = 2000 + (n / Shard::<FakeBacking>::MAX_OBSERVERS_OF_CLIENT) as u32;
        let conn = host.accept(Peer::Unix { uid }, 0);
        host.shake(conn, &Key::none(), Purpose::Observe).unwrap();
        conns.push(conn);
    }
    let late = host.accept(Peer::LOOPBACK, 0);
    let refused = host
        .shake(late, &Key::none(), Purpose::Observe)
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the server answers 256 connections without a session already; try again later"
    );
    host.now += Shard::<FakeBacking>::OBSERVER_IDLE;
    host.tick();
    assert!(host.is_open(conns[0]), "closed too early");
    host.now += Nanos(1);
    host.tick();
    assert!(
        conns.iter().all(|conn| !host.is_open(*conn)),
        "a silent observer stays"
    );
    assert_eq!(host.refused("observer-idle"), max as u64);
}
