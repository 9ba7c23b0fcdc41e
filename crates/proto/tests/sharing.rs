//! Sharing after a fork, and quotas.

mod common;

use common::{Host, LEASE, pool_config};
use muninn_proto::client::Control;
use muninn_proto::server::Peer;
use muninn_types::{Bytes, GrantId, Nanos};
use muninn_wire::{ErrorCode, Transport};

#[test]
fn what_is_shared_can_be_read_by_both_and_written_by_none() {
    let mut host = Host::new(pool_config(64, 64));
    let (mut parent, mut child) = (host.open("parent"), host.open("child"));
    let grant = parent.grant(&mut host, 4096).unwrap();
    let kept = parent.grant(&mut host, 4096).unwrap();
    parent
        .write(&mut host, grant, 0, b"before the fork")
        .unwrap();
    assert_eq!(child.read(&mut host, grant, 0, 15), Err(ErrorCode::NoGrant));
    let ticket = parent.share(&mut host, &[grant]).unwrap();
    assert_eq!(child.adopt(&mut host, ticket), Ok(1));
    assert_eq!(
        child.adopt(&mut host, ticket),
        Err(ErrorCode::NoTicket),
        "used twice"
    );
    assert_eq!(
        child.read(&mut host, grant, 0, 15).unwrap(),
        b"before the fork"
    );
    for client in [&mut parent, &mut child] {
        assert_eq!(
            client.write(&mut host, grant, 0, b"x"),
            Err(ErrorCode::Frozen)
        );
        assert_eq!(client.add(&mut host, grant, 1), Err(ErrorCode::Frozen));
    }
    assert_eq!(child.read(&mut host, kept, 0, 1), Err(ErrorCode::NoGrant));
    parent.write(&mut host, kept, 0, b"still mine").unwrap();
    // The last one to hold it decides.
    parent.release(&mut host, &[grant]).unwrap();
    assert_eq!(parent.read(&mut host, grant, 0, 1), Err(ErrorCode::NoGrant));
    assert_eq!(child.read(&mut host, grant, 0, 6).unwrap(), b"before");
    child.release(&mut host, &[grant]).unwrap();
    assert_eq!(host.pool.stats().wiping, Bytes::PAGE);
}

#[test]
fn a_refused_share_or_release_changes_nothing() {
    let mut host = Host::new(pool_config(64, 64));
    let (mut a, mut b) = (host.open("a"), host.open("b"));
    let mine = a.grant(&mut host, 4096).unwrap();
    let theirs = b.grant(&mut host, 4096).unwrap();
    assert_eq!(a.share(&mut host, &[mine, theirs]), Err(ErrorCode::NoGrant));
    assert_eq!(
        a.release(&mut host, &[mine, theirs]),
        Err(ErrorCode::NoGrant)
    );
    a.write(&mut host, mine, 0, b"not frozen").unwrap();
    b.write(&mut host, theirs, 0, b"not frozen").unwrap();
    assert_eq!(a.adopt(&mut host, [9; 16]), Err(ErrorCode::NoTicket));
}

#[test]
fn a_ticket_lives_one_lease_longer_than_its_owner() {
    for late in [false, true] {
        let mut host = Host::new(pool_config(64, 64));
        let mut parent = host.open("parent");
        let grant = parent.grant(&mut host, 4096).unwrap();
        parent.write(&mut host, grant, 0, b"left behind").unwrap();
        let ticket = parent.share(&mut host, &[grant]).unwrap();
        parent.control(&mut host, Control::Goodbye).unwrap();
        host.now += LEASE;
        if !late {
            host.now = Nanos(host.now.0 - 1);
        }
        host.tick();
        let mut child = host.open("child");
        if late {
            assert_eq!(child.adopt(&mut host, ticket), Err(ErrorCode::NoTicket));
            assert_eq!(host.pool.stats().granted, Bytes::ZERO);
        } else {
            assert_eq!(child.adopt(&mut host, ticket), Ok(1));
            assert_eq!(child.read(&mut host, grant, 0, 11).unwrap(), b"left behind");
        }
    }
}

#[test]
fn tickets_are_bounded_and_free_their_place_when_used() {
    let mut host = Host::new(pool_config(64, 64));
    let (mut parent, mut child) = (host.open("parent"), host.open("child"));
    let grant = parent.grant(&mut host, 4096).unwrap();
    let tickets: Vec<_> = (0..64)
        .map(|_| parent.share(&mut host, &[grant]).unwrap())
        .collect();
    assert_eq!(
        parent.share(&mut host, &[grant]),
        Err(ErrorCode::TooManyTickets)
    );
    child.adopt(&mut host, tickets[5]).unwrap();
    parent.share(&mut host, &[grant]).unwrap();
    // Shared so often, held by two, counted once each; and free when both have gone.
    parent.control(&mut host, Control::Goodbye).unwrap();
    child.control(&mut host, Control::Goodbye).unwrap();
    assert_eq!(
        host.pool.stats().granted,
        Bytes::PAGE,
        "the tickets hold it"
    );
    host.now += LEASE;
    host.tick();
    assert_eq!(host.pool.stats().granted, Bytes::ZERO);
}

#[test]
fn a_quota_counts_for_the_name_that_asked_until_the_memory_is_free() {
    let mut config = pool_config(256, 64);
    config.quotas.insert("small".to_string(), Bytes::kib(8));
    config.quotas.insert("*".to_string(), Bytes::kib(16));
    let mut host = Host::new(config);
    let (mut one, mut two) = (host.open("small"), host.open("small"));
    let mut other = host.open("other");
    let grant = one.grant(&mut host, 4096).unwrap();
    two.grant(&mut host, 4096).unwrap();
    let refused = one
        .control(&mut host, Control::Grant { bytes: 1 })
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the quota is used up: this client holds 8KiB of 8KiB; release grants or raise its \
         --quota at the server"
    );
    other.grant(&mut host, 16 << 10).unwrap();
    assert_eq!(other.grant(&mut host, 1), Err(ErrorCode::QuotaExceeded));
    // Shared memory stays on the account of the one who asked for it.
    let ticket = one.share(&mut host, &[grant]).unwrap();
    other.adopt(&mut host, ticket).unwrap();
    one.release(&mut host, &[grant]).unwrap();
    assert_eq!(one.grant(&mut host, 1), Err(ErrorCode::QuotaExceeded));
    other.release(&mut host, &[grant]).unwrap();
    one.grant(&mut host, 1).unwrap();
}

#[test]
fn a_full_pool_says_what_it_has_or_to_try_again() {
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let grant = client.grant(&mut host, 32 << 10).unwrap();
    let refused = client
        .control(&mut host, Control::Grant { bytes: 40 << 10 })
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the pool is full: 64KiB were asked for and the largest free piece is 32KiB; free \
         memory, add a server, or start this one with more --memory"
    );
    let refused = client
        .control(&mut host, Control::Grant { bytes: 1 << 20 })
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a grant is 1 page to 64KiB, in powers of two; 1MiB was asked for"
    );
    client.grant(&mut host, 32 << 10).unwrap();
    client.release(&mut host, &[grant]).unwrap();
    assert_eq!(client.grant(&mut host, 32 << 10), Err(ErrorCode::TryAgain));
    // The same request, sent again after a cut, is looked at anew.
    host.pool.wipe_all().unwrap();
    client.grant(&mut host, 32 << 10).unwrap();
}

#[test]
fn a_request_that_was_told_to_try_again_is_not_remembered() {
    use muninn_proto::client::{Answer, Verb};
    let mut host = Host::new(pool_config(64, 64));
    let mut client = host.open("a");
    let grant = client.grant(&mut host, 64 << 10).unwrap();
    client.release(&mut host, &[grant]).unwrap();
    client.post(Verb::Control(Control::Grant { bytes: 4096 }), Vec::new());
    let bytes = client.bytes();
    host.feed(client.conn, &bytes);
    host.pool.wipe_all().unwrap();
    client.come_back(&mut host);
    client.exchange(&mut host);
    let answer = client.lane.pop().unwrap().result;
    assert!(matches!(answer, Ok(Answer::Granted(_))), "{answer:?}");
}

#[test]
fn mapped_segments_are_shared_whole_and_only_when_nothing_else_is_in_them() {
    let mut host = Host::new(pool_config(256, 64));
    let peer = Peer::Unix { uid: 5 };
    let mut parent = host.open_as("parent", Transport::Shm, peer);
    let mut child = host.open_as("child", Transport::Shm, peer);
    let mut tcp = host.open("tcp");
    let grants: Vec<GrantId> = (0..3)
        .map(|_| parent.grant(&mut host, 4096).unwrap())
        .collect();
    assert_eq!(
        parent.share(&mut host, &grants[..2]),
        Err(ErrorCode::ShareWhole)
    );
    // What was released and not yet wiped would be seen by the child.
    parent.release(&mut host, &grants[2..]).unwrap();
    assert_eq!(
        parent.share(&mut host, &grants[..2]),
        Err(ErrorCode::TryAgain)
    );
    host.pool.wipe_all().unwrap();
    let ticket = parent.share(&mut host, &grants[..2]).unwrap();
    assert_eq!(
        tcp.adopt(&mut host, ticket),
        Err(ErrorCode::NoTicket),
        "of another transport"
    );
    assert_eq!(child.adopt(&mut host, ticket), Ok(2));
    // Nothing new goes where others look.
    let fresh = parent.grant(&mut host, 4096).unwrap();
    parent.share(&mut host, &[fresh]).unwrap();
    // What the parent released but the child keeps alive was the parent's, and cannot change: a
    // third may see it along with the rest.
    parent.release(&mut host, &grants[..1]).unwrap();
    parent.share(&mut host, &grants[1..2]).unwrap();
}
