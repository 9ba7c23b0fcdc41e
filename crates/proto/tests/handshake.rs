//! Who may come in, and what the others are told, word for word.

mod common;

use common::{Host, pool_config, shared_config};
use muninn_proto::auth::Key;
use muninn_proto::client::{Handshake, Purpose};
use muninn_proto::framing::FrameBuffer;
use muninn_proto::secure::{Operator, Role, UnixTime};
use muninn_proto::server::{Peer, Step};
use muninn_types::{ConnId, LaneId, LaneKind, Nanos, SessionId};
use muninn_wire::{HEADER_LEN, ShortText, Transport, VERSION};

fn key(text: &str) -> Key {
    Key::from_file_contents(text.as_bytes()).unwrap()
}

fn open() -> Purpose {
    Purpose::Open {
        transport: Transport::Tcp,
        name: ShortText::lossy("client", 64),
    }
}

/// What a client with this key reads from a server with that one.
fn told(server: Key, client: &Key, purpose: Purpose) -> String {
    let mut host = Host::with(pool_config(64, 64), shared_config(server), 1);
    let conn = host.accept(Peer::LOOPBACK, 0);
    match host.shake(conn, client, purpose) {
        Ok(_) => "welcome".to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_refusal_at_the_door_says_what_to_do() {
    let ours = key("the key of this server");
    assert_eq!(told(ours.clone(), &ours, open()), "welcome");
    assert_eq!(told(Key::none(), &Key::none(), open()), "welcome");
    assert_eq!(
        told(ours.clone(), &Key::none(), open()),
        "the server requires a key: name the key file it was started with (--key-file)"
    );
    assert_eq!(
        told(ours.clone(), &key("the key of another server"), open()),
        "the server does not know this client's key: use the key file it was started with"
    );
    let shm = Purpose::Open {
        transport: Transport::Shm,
        name: ShortText::lossy("client", 64),
    };
    assert_eq!(
        told(Key::none(), &Key::none(), shm),
        "shared memory is only to be had through the server's Unix socket"
    );
}

/// A server that does not check the server's proof would be told by the server's own check.
#[test]
fn a_wrong_proof_is_refused_by_the_server_too() {
    let ours = key("the key of this server");
    let mut host = Host::with(pool_config(64, 64), shared_config(ours), 1);
    let conn = host.accept(Peer::LOOPBACK, 0);
    let (_, hello) = Handshake::start(Key::none(), open(), [1; 48], 1).unwrap();
    host.feed(conn, &hello);
    host.take_sent(conn);
    let mut prove = Vec::new();
    let proof = [9; 32];
    muninn_wire::Request::Prove {
        proof,
        noise: &[7; 16],
    }
    .encode(
        muninn_types::Class::Control,
        muninn_types::Tag(1),
        &mut prove,
    );
    host.feed(conn, &prove);
    let sent = host.take_sent(conn);
    let mut frames = FrameBuffer::default();
    let header = frames.advance(&mut &sent[..]).unwrap().unwrap();
    let refusal = muninn_wire::Refusal::decode(header.error().unwrap(), frames.body()).unwrap();
    assert_eq!(
        refusal.to_string(),
        "the key does not match the server's: use the key file the server was started with"
    );
    assert!(!host.is_open(conn));
    assert_eq!(host.refused("wrong-key"), 1);
    assert_eq!(host.shards[0].session_count(), 0);
}

fn identity(operator: u8, role: Role, name: &str, quota: Option<u64>) -> Key {
    let operator = Operator::from_seed([operator; 32]);
    let secret = [name.len() as u8 + 1; 32];
    Key::identity(operator.sign(role, name, quota, secret).unwrap())
}

#[test]
fn who_has_an_identity_is_let_in_by_its_role() {
    let server = identity(1, Role::Server, "rack-1", None);
    let client = identity(1, Role::Client, "batch", None);
    assert_eq!(told(server.clone(), &client, open()), "welcome");
    let observe = || Purpose::Observe;
    let operator = identity(1, Role::Operator, "ops", None);
    assert_eq!(told(server.clone(), &operator, observe()), "welcome");
    assert_eq!(
        told(server.clone(), &operator, open()),
        "not permitted: operator commands need the server's Unix socket and its user, or a key (an \
         operator holds no memory: use a client's identity)"
    );
    // Of another operator, or with no more than a shared key, or with none.
    let foreign = identity(2, Role::Client, "batch", None);
    assert_eq!(
        told(server.clone(), &foreign, open()),
        "the server is not to be believed: no operator known here has signed the certificate of \
         'rack-1'"
    );
    let shared = key("the key of this server");
    assert_eq!(
        told(server.clone(), &shared, open()),
        "the server does not know this client's key: use the key file it was started with"
    );
    assert_eq!(
        told(server, &Key::none(), open()),
        "the server requires a key: name the key file it was started with (--key-file)"
    );
    // A client cannot play server.
    let false_server = identity(1, Role::Client, "mallory", None);
    assert_eq!(
        told(false_server, &client, open()),
        "the server is not to be believed: 'mallory' is not a server"
    );
}

#[test]
fn a_client_whose_key_was_revoked_is_told_so() {
    let client = identity(1, Role::Client, "batch", None);
    let operator = Operator::from_seed([1; 32]);
    let mut server = operator
        .sign(Role::Server, "rack-1", None, [9; 32])
        .unwrap();
    let id = client.credentials().unwrap().certificate().id();
    server.revoke(&id);
    assert_eq!(
        told(Key::identity(server), &client, open()),
        "the key does not match the server's: use the key file the server was started with (the \
         key of 'batch' was revoked)"
    );
}

#[test]
fn who_is_in_is_shown_out_when_its_key_expires_or_its_operator_is_distrusted() {
    let (old, new) = (Operator::from_seed([1; 32]), Operator::from_seed([2; 32]));
    let mut server = new.sign(Role::Server, "rack-1", None, [3; 32]).unwrap();
    server.trust(old.public());
    let config = shared_config(Key::identity(server.clone()));
    let mut host = Host::with(pool_config(64, 64), config, 1);
    let until = |operator: &Operator, until, name: &str| {
        let secret = [name.len() as u8; 32];
        let own = operator.sign_until(until, Role::Client, name, None, secret);
        let mut own = own.unwrap();
        own.trust(new.public());
        Key::identity(own)
    };
    let noon = UnixTime(1_800_000_000);
    host.shared.set_time(UnixTime(noon.0 - 1));
    let keys = [
        until(&new, None, "endless"),
        until(&new, Some(noon), "guest"),
        until(&old, None, "by the old one"),
    ];
    let conns = keys.each_ref().map(|key| {
        let conn = host.accept(Peer::LOOPBACK, 0);
        host.shake(conn, key, open()).unwrap();
        conn
    });
    let is_in = |host: &mut Host| {
        host.tick();
        conns.map(|conn| host.is_open(conn))
    };
    assert_eq!(is_in(&mut host), [true; 3]);
    host.shared.set_time(noon);
    assert_eq!(is_in(&mut host), [true, false, true]);
    let conn = host.accept(Peer::LOOPBACK, 0);
    let refused = host.shake(conn, &keys[1], open()).unwrap_err().to_string();
    assert!(
        refused.contains("the key of 'guest' has expired"),
        "{refused}"
    );
    server.distrust(old.public());
    host.shared.set_key(Key::identity(server));
    assert_eq!(is_in(&mut host), [true, false, false]);
    assert_eq!(host.refused("expired") + host.refused("distrusted"), 2);
}

#[test]
fn a_server_whose_key_has_expired_is_not_believed() {
    let operator = Operator::from_seed([1; 32]);
    let noon = UnixTime(1_800_000_000);
    let server = operator.sign_until(Some(noon), Role::Server, "rack-1", None, [3; 32]);
    let client = identity(1, Role::Client, "batch", None);
    let config = shared_config(Key::identity(server.unwrap()));
    let mut host = Host::with(pool_config(64, 64), config, 1);
    let conn = host.accept(Peer::LOOPBACK, 0);
    let started = Handshake::start_at(VERSION, noon, client, open(), [3; 48], 42);
    let (mut handshake, hello) = started.unwrap();
    host.feed(conn, &hello);
    let sent = host.take_sent(conn);
    let mut frames = FrameBuffer::default();
    let header = frames.advance(&mut &sent[..]).unwrap().unwrap();
    let refused = handshake.handle(&header, frames.body()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the server is not to be believed: the key of 'rack-1' has expired"
    );
}

#[test]
fn keys_are_exchanged_while_a_session_goes_on() {
    let (old, new) = (Operator::from_seed([1; 32]), Operator::from_seed([2; 32]));
    let mut server = old.sign(Role::Server, "rack-1", None, [3; 32]).unwrap();
    let client = Key::identity(old.sign(Role::Client, "batch", None, [4; 32]).unwrap());
    let config = shared_config(Key::identity(server.clone()));
    let mut host = Host::with(pool_config(64, 64), config, 1);
    let conn = host.accept(Peer::LOOPBACK, 0);
    let opened = host.shake(conn, &client, open()).unwrap();
    // First both operators are believed, then clients get new certificates, then the old one goes.
    server.trust(new.public());
    host.shared.set_key(Key::identity(server.clone()));
    let mut renewed = new.sign(Role::Client, "batch", None, [5; 32]).unwrap();
    renewed.trust(old.public());
    let renewed = Key::identity(renewed);
    for key in [&client, &renewed] {
        let conn = host.accept(Peer::LOOPBACK, 0);
        assert!(host.shake(conn, key, open()).is_ok());
    }
    server = new.sign(Role::Server, "rack-1", None, [6; 32]).unwrap();
    host.shared.set_key(Key::identity(server));
    let conn = host.accept(Peer::LOOPBACK, 0);
    assert!(host.shake(conn, &client, open()).is_err(), "the old key");
    let conn = host.accept(Peer::LOOPBACK, 0);
    assert!(host.shake(conn, &renewed, open()).is_ok());
    // The session of the old key is still the client's: further lanes come with the new one.
    let attach = Purpose::Attach {
        session: opened.welcome.session,
        secret: opened.secret.unwrap(),
        lane: LaneId(1),
        kind: LaneKind::Bulk,
    };
    let conn = host.accept(Peer::LOOPBACK, 0);
    host.shake(conn, &renewed, attach.clone()).unwrap();
    // And nobody else's, even with its secret.
    let other = new.sign(Role::Client, "mallory", None, [7; 32]).unwrap();
    let conn = host.accept(Peer::LOOPBACK, 0);
    assert!(host.shake(conn, &Key::identity(other), attach).is_err());
}

#[test]
fn a_quota_comes_with_the_certificate() {
    let server = identity(1, Role::Server, "rack-1", None);
    let mut host = Host::with(pool_config(64, 64), shared_config(server), 1);
    let client = identity(1, Role::Client, "batch", Some(8192));
    let conn = host.accept(Peer::LOOPBACK, 0);
    let mut held = host.open_with(conn, &client, "called otherwise");
    held.grant(&mut host, 8192).unwrap();
    let conn = host.accept(Peer::LOOPBACK, 0);
    let mut again = host.open_with(conn, &client, "and otherwise again");
    let refused = again.grant(&mut host, 4096);
    assert_eq!(refused, Err(muninn_wire::ErrorCode::QuotaExceeded));
}

#[test]
fn another_version_is_named_on_both_sides() {
    let mut host = Host::new(pool_config(64, 64));
    let conn = host.accept(Peer::LOOPBACK, 0);
    let (mut handshake, mut hello) = Handshake::start(Key::none(), open(), [1; 48], 1).unwrap();
    hello[2] = 9;
    host.feed(conn, &hello);
    assert!(!host.is_open(conn));
    assert_eq!(host.refused("wrong-version"), 1);
    // The server answers in its own version, with both in the refusal.
    let sent = host.take_sent(conn);
    let mut frames = FrameBuffer::default();
    let header = frames.advance(&mut &sent[..]).unwrap().unwrap();
    let error = handshake.handle(&header, frames.body()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server speaks protocol version 5, this client 9: use the same release of muninn on \
         both sides"
    );
    // And a client that meets a server of another version sees it in the header.
    let mut other = sent.clone();
    other[2] = 7;
    let error = FrameBuffer::default().advance(&mut &other[..]).unwrap_err();
    let error = muninn_proto::client::HandshakeError::from(error);
    assert_eq!(
        error.to_string(),
        "the server speaks protocol version 7, this client 5: use the same release of muninn on \
         both sides"
    );
}

#[test]
fn what_is_no_muninn_server_is_called_that() {
    let http = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    let error = FrameBuffer::default().advance(&mut &http[..]).unwrap_err();
    let error = muninn_proto::client::HandshakeError::from(error);
    assert_eq!(
        error.to_string(),
        "what answers there is not a muninn server (the frame does not start with the bytes of \
         this protocol)"
    );
}

#[test]
fn a_session_that_is_not_there_cannot_be_attached_to() {
    let mut host = Host::with(pool_config(64, 64), shared_config(Key::none()), 2);
    let client = host.open("a");
    let gone = |session| Purpose::Attach {
        session,
        secret: client.secret.clone(),
        lane: LaneId(1),
        kind: LaneKind::Bulk,
    };
    // One that was never opened; one whose shard does not exist; another's with a wrong secret.
    for session in [
        SessionId(client.session.0 + 256),
        SessionId(client.session.0 | 0xff),
    ] {
        let conn = host.accept(Peer::LOOPBACK, 1);
        let error = host.shake(conn, &Key::none(), gone(session)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server does not know the session: its lease ran out or the server was \
             restarted, and what it kept is gone"
        );
    }
    let other = host.open("b");
    let conn = host.accept(Peer::LOOPBACK, 1);
    assert!(host.shake(conn, &Key::none(), gone(other.session)).is_err());
    assert!(host.is_open(other.conn), "a wrong secret shut a lane");
}

#[test]
fn lanes_are_handed_to_the_shard_of_their_session() {
    let mut host = Host::with(pool_config(64, 64), shared_config(Key::none()), 2);
    let mut client = host.open("a");
    let grant = client.grant(&mut host, 4096).unwrap();
    client.write(&mut host, grant, 0, b"over lane 0").unwrap();
    let mut lane = client.attach(&mut host, 1, 1).unwrap();
    assert_eq!(host.conns[&lane.conn].shard, 0);
    assert_eq!(lane.read(&mut host, grant, 5, 6).unwrap(), b"lane 0");
    assert_eq!(host.shards[1].connection_count(), 0);
}

#[test]
fn strangers_are_few_and_do_not_stay() {
    let mut host = Host::new(pool_config(64, 64));
    let shard = &mut host.shards[0];
    let max = common::FakeShard::MAX_STRANGERS_OF_SOURCE as u64;
    let now = host.now;
    for conn in 0..max {
        shard.accepted(ConnId(1000 + conn), Peer::LOOPBACK, now);
        assert_eq!(shard.crowded(ConnId(1000 + conn), now), None);
    }
    // At once, one more is too many; a little later it is the oldest of the silent ones.
    shard.accepted(ConnId(1), Peer::LOOPBACK, now);
    assert_eq!(shard.crowded(ConnId(1), now), Some(ConnId(1)));
    let later = now + Nanos::millis(51);
    assert_eq!(shard.crowded(ConnId(1), later), Some(ConnId(1)));
    shard.closed(ConnId(1));
    shard.accepted(ConnId(2), Peer::LOOPBACK, later);
    assert_eq!(shard.crowded(ConnId(2), later), Some(ConnId(1000)));
    shard.closed(ConnId(1000));
    // Another source is not concerned.
    shard.accepted(ConnId(3), Peer::Unix { uid: 7 }, later);
    assert_eq!(shard.crowded(ConnId(3), later), None);
    shard.closed(ConnId(3));
    host.now += common::FakeShard::HANDSHAKE;
    host.tick();
    assert_eq!(host.shards[0].connection_count(), max as usize);
    host.now += Nanos::millis(52);
    host.tick();
    assert_eq!(host.shards[0].connection_count(), 0);
    assert_eq!(host.refused("handshake-too-slow"), max);
    assert_eq!(host.refused("too-many-strangers"), 3);
    // Those who have said who they are do not count.
    for client in 0..2 * max {
        host.open(&format!("client {client}"));
    }
}

#[test]
fn malformed_input_is_counted_by_reason_and_closes() {
    let mut host = Host::new(pool_config(64, 64));
    let (_, hello) = Handshake::start(Key::none(), open(), [1; 48], 1).unwrap();
    let flip = |at: usize, value: u8| {
        let mut bytes = hello.clone();
        bytes[at] = value;
        bytes
    };
    let cases = [
        (flip(0, b'X'), "bad-magic"),
        (flip(2, 200), "wrong-version"),
        (flip(3, 77), "unknown-message"),
        (flip(4, 99), "unknown-class"),
        (flip(5, 1), "bad-value"),
        (flip(19, 0xff), "body-too-long"),
        (flip(23, 0xff), "payload-too-long"),
        (flip(HEADER_LEN + 2, 0xaa), "bad-check"),
    ];
    for (bytes, reason) in cases {
        let conn = host.accept(Peer::LOOPBACK, 0);
        host.feed(conn, &bytes);
        assert!(!host.is_open(conn), "{reason} leaves the connection open");
        assert_eq!(host.refused(reason), 1, "{reason} was not counted");
        assert!(
            host.take_sent(conn).len() > HEADER_LEN,
            "{reason} is not answered"
        );
    }
    // A request before a hello, and one on a connection that the shard does not know.
    let conn = host.accept(Peer::LOOPBACK, 0);
    let mut heartbeat = Vec::new();
    let request = muninn_wire::Request::Heartbeat;
    request.encode(
        muninn_types::Class::Control,
        muninn_types::Tag(1),
        &mut heartbeat,
    );
    host.feed(conn, &heartbeat);
    assert!(!host.is_open(conn));
    let mut frames = FrameBuffer::default();
    let header = frames.advance(&mut &heartbeat[..]).unwrap().unwrap();
    let step = host.shards[0].handle(ConnId(9999), &header, &[], host.now, &mut host.out);
    assert_eq!(step, Step::ReplyThenClose);
    assert_eq!(host.refused("not-open"), 2);
}
