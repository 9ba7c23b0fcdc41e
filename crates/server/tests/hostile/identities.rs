//! Clients that each have an identity: what is one's is not the other's.

use crate::common::*;
use muninn_net::Key;
use muninn_proto::client::Purpose;
use muninn_proto::secure::{Operator, Role};
use muninn_server::ServerConfig;
use muninn_types::{Bytes, ServiceId};
use muninn_wire::{
    ErrorCode, GrantInfo, GrantList, Opening, Request, ServiceInfo, ShortText, TICKET_LEN,
    Transport,
};

struct Pool {
    operator: Operator,
    local: Local,
}

impl Pool {
    fn start() -> Pool {
        let operator = Operator::from_seed(muninn_sys::rand::bytes());
        let secret = muninn_sys::rand::bytes();
        let server = operator.sign(Role::Server, "rack-1", None, secret).unwrap();
        let local = Local::start(ServerConfig {
            key: Key::identity(server),
            ..config(Bytes::mib(64))
        });
        Pool { operator, local }
    }

    fn key(&self, role: Role, name: &str) -> Key {
        let secret = muninn_sys::rand::bytes();
        Key::identity(self.operator.sign(role, name, None, secret).unwrap())
    }

    /// Over the Unix socket, where frames are not in records and can be made by hand.
    fn open(&self, name: &str) -> Raw {
        let mut raw = Raw::stranger(&self.local.unix);
        let purpose = Purpose::Open {
            transport: Transport::Tcp,
            name: ShortText::lossy("whatever", 64),
        };
        raw.shake_with(self.key(Role::Client, name), purpose)
            .unwrap();
        raw
    }
}

fn service(raw: &mut Raw, opening: Opening) -> Result<ServiceInfo, ErrorCode> {
    let reply = raw.ask(&Request::Open(opening), &[]);
    match reply.code() {
        None => Ok(ServiceInfo::decode(&reply.body).unwrap()),
        Some(code) => Err(code),
    }
}

fn named(bytes: u64) -> Opening {
    Opening::Named {
        name: ShortText::lossy("accounts", 64),
        bytes,
        locks: 1,
    }
}

#[test]
fn a_service_is_its_identitys_alone() {
    let pool = Pool::start();
    let (mut alice, mut mallory) = (pool.open("alice"), pool.open("mallory"));
    let hers = service(&mut alice, named(1 << 20)).unwrap();
    // By its number, by all numbers that were counted up once, and by its name.
    assert_eq!(
        service(&mut mallory, Opening::Guest(hers.service)).unwrap_err(),
        ErrorCode::NoService
    );
    for id in 0..100 {
        let guess = Opening::Guest(ServiceId(id));
        assert_eq!(
            service(&mut mallory, guess).unwrap_err(),
            ErrorCode::NoService
        );
    }
    let own = service(&mut mallory, named(1 << 20)).unwrap();
    assert_ne!(own.service, hers.service, "it is hers under the same name");
    // She herself finds it again.
    let mut again = pool.open("alice");
    let found = service(&mut again, named(1 << 20)).unwrap();
    assert_eq!(found.service, hers.service);
    service(&mut again, Opening::Guest(hers.service)).unwrap();
}

#[test]
fn a_share_is_its_identitys_alone() {
    let pool = Pool::start();
    let (mut alice, mut mallory) = (pool.open("alice"), pool.open("mallory"));
    let grant = alice.grant(4096).grant;
    let list = list(&[grant]);
    let reply = alice.ask(&Request::Share(GrantList::decode(&list).unwrap()), &[]);
    let ticket: [u8; TICKET_LEN] = reply.body[..].try_into().unwrap();
    let stolen = mallory.ask(&Request::Adopt { ticket }, &[]);
    assert_eq!(stolen.code(), Some(ErrorCode::NoTicket));
    let mut again = pool.open("alice");
    let adopted = again.ask(&Request::Adopt { ticket }, &[]);
    assert_eq!(adopted.code(), None);
    assert_eq!(GrantInfo::decode(&adopted.payload).unwrap().grant, grant);
}

#[test]
fn a_client_cannot_drain_and_an_operator_holds_no_memory() {
    let pool = Pool::start();
    // Over tcp: at the Unix socket the server's own user may do what it likes.
    let observe = |role, name| {
        let options = muninn_net::SessionOptions {
            key: pool.key(role, name),
            ..options()
        };
        muninn_net::Observer::connect(&pool.local.tcp, &options).unwrap()
    };
    let within = Some(PATIENCE);
    assert!(observe(Role::Client, "mallory").drain(within).is_err());
    assert!(observe(Role::Server, "rack-2").drain(within).is_err());
    assert!(observe(Role::Operator, "ops").drain(within).is_ok());
    assert!(observe(Role::Operator, "ops").drain(None).is_ok());
    let options = muninn_net::SessionOptions {
        key: pool.key(Role::Operator, "ops"),
        ..options()
    };
    let refused = muninn_net::TcpSession::open(&pool.local.tcp, &options).unwrap_err();
    assert!(refused.to_string().contains("not permitted"), "{refused}");
}
