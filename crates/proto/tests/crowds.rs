//! Crowds: whatever one client asks for many of, others still get some.
//!
//! One client is one source (a user of the machine, an address), or, where it has one, an identity,
//! from however many addresses it comes.

mod common;

use common::{Host, pool_config, shared_config};
use muninn_proto::auth::Key;
use muninn_proto::client::{Control, Purpose};
use muninn_proto::secure::{Operator, Role};
use muninn_proto::server::{FakeBacking, Peer, Shard, SharedConfig, Surroundings};
use muninn_types::Bytes;
use muninn_wire::{ErrorCode, Opening, ShortText, StatusPage, Transport};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

fn at(last: u8) -> Peer {
    let from = IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    Peer::Tcp { from }
}

struct Pool {
    operator: Operator,
    host: Host,
}

impl Pool {
    fn new(config: impl FnOnce(SharedConfig) -> SharedConfig) -> Pool {
        let operator = Operator::from_seed([1; 32]);
        let server = operator.sign(Role::Server, "rack-1", None, [2; 32]);
        let own = config(shared_config(Key::identity(server.unwrap())));
        let host = Host::with(pool_config(4096, 64), own, 1);
        Pool { operator, host }
    }

    fn key(&self, role: Role, name: &str) -> Key {
        let secret = [name.len() as u8 + 7; 32];
        Key::identity(self.operator.sign(role, name, None, secret).unwrap())
    }

    /// Who may observe; why not else.
    fn observe(&mut self, key: &Key, peer: Peer) -> Result<(), String> {
        let conn = self.host.accept(peer, 0);
        let shaken = self.host.shake(conn, key, Purpose::Observe);
        shaken.map(|_| ()).map_err(|why| why.to_string())
    }

    fn session(&mut self, key: &Key, peer: Peer) -> bool {
        let conn = self.host.accept(peer, 0);
        let name = ShortText::lossy("somebody", 64);
        let transport = Transport::Tcp;
        let purpose = Purpose::Open { transport, name };
        self.host.shake(conn, key, purpose).is_ok()
    }
}

#[test]
fn observers_keep_no_operator_out() {
    let mut pool = Pool::new(|config| config);
    let (mallory, alice) = (
        pool.key(Role::Client, "mallory"),
        pool.key(Role::Client, "alice"),
    );
    let most = Shard::<FakeBacking>::MAX_OBSERVERS;
    let from_one = (0..most)
        .filter(|_| pool.observe(&mallory, at(1)).is_ok())
        .count();
    assert!(from_one < most / 2, "{from_one} of {most} from one address");
    // From wherever else it comes, it is the same one.
    assert!(pool.observe(&mallory, at(2)).is_err());
    assert!(pool.observe(&alice, at(3)).is_ok());
    // With as many identities as there are places, each from an address of its own.
    for n in 0..most {
        let key = pool.key(Role::Client, &"x".repeat(n % 60 + 1));
        let _ = pool.observe(&key, at(n as u8));
    }
    let ops = pool.key(Role::Operator, "ops");
    assert_eq!(pool.observe(&ops, at(250)), Ok(()));
}

#[test]
fn an_identity_is_one_client_from_wherever_it_comes() {
    let mut pool = Pool::new(|config| SharedConfig {
        max_sessions: 20,
        max_sessions_of_source: 8,
        ..config
    });
    let mallory = pool.key(Role::Client, "mallory");
    let taken = (0..40).filter(|n| pool.session(&mallory, at(*n))).count();
    assert_eq!(taken, 8);
    let alice = pool.key(Role::Client, "alice");
    assert!(pool.session(&alice, at(1)), "she is kept out");
}

#[test]
fn a_machine_is_one_source_however_it_calls_itself() {
    let names = [
        "127.0.0.1",
        "127.0.0.2",
        "127.255.3.4",
        "::1",
        "::ffff:127.9.9.9",
    ];
    let sources = names.map(|name| {
        let from = name.parse().unwrap();
        Peer::Tcp { from }.source()
    });
    assert_eq!(sources, [Peer::LOOPBACK; 5]);
    let other = "128.0.0.1".parse().unwrap();
    assert_ne!(Peer::Tcp { from: other }.source(), Peer::LOOPBACK);
}

#[derive(Debug)]
struct AllAlive;

impl Surroundings for AllAlive {
    fn find_wic(&self, _: &str, _: &str, _: u32) -> Result<u32, Option<u32>> {
        Err(None)
    }
    fn is_alive(&self, _: i32) -> bool {
        true
    }
}

fn opening(name: &str) -> Control {
    Control::Open(Opening::Named {
        name: ShortText::new(name).unwrap(),
        bytes: Bytes::kib(4).0,
        locks: 4,
    })
}

/// Who lives on is looked after at each tick, for as long as it lives.
#[test]
fn sessions_of_a_process_that_lives_on_leave_nothing_behind() {
    let mut host = Host::new(pool_config(1024, 64));
    host.shared.services.surround(Arc::new(AllAlive));
    for _ in 0..500 {
        let mut client = host.open_shm_process("mallory", 4321);
        client.control(&mut host, Control::Goodbye).unwrap();
    }
    assert_eq!(host.shared.services.count(), 0, "for nothing at all");
    // With a service, which another session keeps.
    let mut keeper = host.open("mallory");
    keeper.control(&mut host, opening("bait")).unwrap();
    let mut refused = 0;
    for _ in 0..500 {
        let mut client = host.open_shm_process("mallory", 4321);
        refused += u32::from(client.control(&mut host, opening("bait")).is_err());
        client.control(&mut host, Control::Goodbye).unwrap();
    }
    let count = host.shared.services.count();
    assert!(count < 100, "{count} are looked after");
    assert!(refused > 400, "{refused}");
    // Another process goes on.
    let mut other = host.open_shm_process("mallory", 77);
    other.control(&mut host, opening("bait")).unwrap();
}

#[test]
fn one_client_cannot_have_all_services() {
    let mut host = Host::new(pool_config(4096, 64));
    let open = |host: &mut Host, peer, name: &str| {
        let mut client = host.open_as("whoever", Transport::Tcp, peer);
        let opened = client.control(host, opening(name));
        opened.map(|_| ()).map_err(common::code)
    };
    let mut taken = 0;
    let refused = loop {
        assert!(taken < StatusPage::MAX_SERVICES, "all of them");
        match open(&mut host, at(1), &format!("service {taken}")) {
            Ok(()) => taken += 1,
            Err(code) => break code,
        }
    };
    assert_eq!(refused, ErrorCode::TooManyServices);
    assert!(taken >= StatusPage::MAX_SERVICES / 2);
    open(&mut host, at(2), "another").unwrap();
}
