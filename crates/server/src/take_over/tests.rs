//! Either process dies at the worst moment, for real.

use super::*;
use muninn_net::{Observer, Pool, PoolOptions, SessionOptions};
use muninn_sys::epoll::wait_for;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const SOCKET: &str = "MUNINN_TEST_SOCKET";

fn config(socket: &Path) -> ServerConfig {
    ServerConfig {
        memory: Bytes::mib(16),
        listen: vec![Address::unix(socket).unwrap()],
        hands_over: true,
        ..ServerConfig::default()
    }
}

/// Runs one of the tests below in a process of its own.
fn start(name: &str, socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("take_over::tests::{name}"), "--exact"])
        .env(SOCKET, socket)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

fn own_socket() -> Option<Address> {
    let socket = std::env::var_os(SOCKET)?;
    Some(Address::unix(Path::new(&socket)).unwrap())
}

fn ask(address: &Address) -> Stream {
    let ends = Instant::now() + PATIENCE;
    loop {
        match Observer::connect(address, &SessionOptions::default()) {
            Ok(observer) => return observer.take_over().unwrap(),
            Err(error) => assert!(Instant::now() < ends, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn client(socket: &Path) -> Pool {
    let ends = Instant::now() + PATIENCE;
    let address = format!("unix:{}", socket.display());
    loop {
        match Pool::connect(&address, PoolOptions::default()) {
            Ok(pool) => return pool,
            Err(error) => assert!(Instant::now() < ends, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn next_heir(server: &Server) -> Stream {
    loop {
        assert!(wait_for(server.heirs(), Interest::READ, Some(PATIENCE)).unwrap());
        if let Some(heir) = server.next_heir() {
            return heir;
        }
    }
}

/// An heir that dies when it has everything and is told to begin.
#[test]
fn heir_that_dies() {
    let Some(address) = own_socket() else {
        return;
    };
    let talk = Talk::new(ask(&address), PATIENCE);
    receive(&talk).unwrap();
    talk.say(&[READY]).unwrap();
    assert_eq!(talk.word().unwrap(), YOURS);
    std::process::abort();
}

#[test]
fn the_old_process_goes_on_when_its_heir_dies_before_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut server = Server::start(config(&socket)).unwrap();
    let client = client(&socket);
    let grant = client.grant(Bytes::mib(1)).unwrap();
    client.write(&grant, 0, b"still here").unwrap();
    let mut heir = start("heir_that_dies", &socket);
    let stream = next_heir(&server);
    let refused = server.hand_over(stream).unwrap_err();
    assert!(matches!(refused, NotHandedOver::Gone), "{refused}");
    heir.wait().unwrap();
    let mut back = [0; 10];
    client.read(&grant, 0, &mut back).unwrap();
    assert_eq!(&back, b"still here");
    client.grant(Bytes::mib(1)).unwrap();
    assert!(server.is_healthy());
}

/// An heir that begins, changes what there is, and dies before it says so.
#[test]
fn heir_that_serves_and_dies() {
    let Some(address) = own_socket() else {
        return;
    };
    let Address::Unix(path) = &address else {
        return;
    };
    let talk = Talk::new(ask(&address), PATIENCE);
    let (estate, token, fds) = receive(&talk).unwrap();
    let gate = Arc::default();
    let (server, loops) = prepare(config(path), &estate, fds, &gate).unwrap();
    talk.say(&[READY]).unwrap();
    assert_eq!(talk.word().unwrap(), YOURS);
    assert!(token.take());
    let before = server.pool().granted;
    loops.end_with(Verdict::Begin);
    while server.pool().granted == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::process::abort();
}

/// What was granted meanwhile is known to nobody any more: it would be granted twice.
#[test]
fn the_old_process_does_not_go_on_with_what_its_heir_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut server = Server::start(config(&socket)).unwrap();
    let client = client(&socket);
    let grant = client.grant(Bytes::mib(1)).unwrap();
    client.write(&grant, 0, b"mine").unwrap();
    let mut heir = start("heir_that_serves_and_dies", &socket);
    let stream = next_heir(&server);
    // Somebody asks for more all the time.
    let asking = std::thread::spawn(move || {
        while client.grant(Bytes::PAGE).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    server.hand_over(stream).unwrap();
    // Clients stay with it until it is gone.
    drop(server);
    heir.wait().unwrap();
    // It waits until its lease is over.
    drop(asking);
}

/// An heir that gets everything and is told to begin too late.
#[test]
fn heir_that_is_slow() {
    let Some(address) = own_socket() else {
        return;
    };
    let Address::Unix(path) = &address else {
        return;
    };
    let talk = Talk::new(ask(&address), PATIENCE);
    let (estate, token, fds) = receive(&talk).unwrap();
    let gate = Arc::default();
    let (server, loops) = prepare(config(path), &estate, fds, &gate).unwrap();
    talk.say(&[READY]).unwrap();
    assert_eq!(talk.word().unwrap(), YOURS);
    // The old one goes on after five seconds without a word.
    while talk.word().unwrap_or(YOURS) != TOO_LATE {}
    assert!(!token.take(), "two processes would serve");
    server.stop.store(true, Relaxed);
    loops.end_with(Verdict::NeverBegin);
}

#[test]
fn the_old_process_goes_on_when_its_heir_says_nothing_and_the_heir_never_begins() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut server = Server::start(config(&socket)).unwrap();
    let client = client(&socket);
    let grant = client.grant(Bytes::mib(1)).unwrap();
    let mut heir = start("heir_that_is_slow", &socket);
    let stream = next_heir(&server);
    let refused = server.hand_over(stream).unwrap_err();
    assert!(matches!(refused, NotHandedOver::Silent), "{refused}");
    assert!(heir.wait().unwrap().success(), "it began as well");
    client.write(&grant, 0, b"served").unwrap();
    assert!(server.is_healthy());
}

/// A server that dies when it has sent everything and was told that it arrived.
#[test]
fn old_that_dies() {
    let Some(Address::Unix(socket)) = own_socket() else {
        return;
    };
    let server = Server::start(config(&socket)).unwrap();
    let talk = Talk::new(next_heir(&server), PATIENCE);
    assert_eq!(talk.word().unwrap(), LISTENS);
    let _still = lock(&server.gate);
    let loops = Standstill::new();
    server.mailboxes.iter().for_each(|m| m.halt(&loops.halt));
    let left = loops.wait(server.mailboxes.len(), PATIENCE).unwrap();
    server.give(&talk, left, &Token::new().unwrap()).unwrap();
    std::process::abort();
}

#[test]
fn the_heir_begins_when_the_old_process_dies_after_it_gave_everything() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut old = start("old_that_dies", &socket);
    let client = client(&socket);
    let grant = client.grant(Bytes::mib(1)).unwrap();
    client.write(&grant, 0, b"still here").unwrap();
    let stream = ask(&Address::unix(&socket).unwrap());
    let server = Server::take_over(config(&socket), stream).unwrap();
    assert!(!old.wait().unwrap().success());
    let mut back = [0; 10];
    client.read(&grant, 0, &mut back).unwrap();
    assert_eq!(&back, b"still here");
    client.grant(Bytes::mib(1)).unwrap();
    assert_eq!(server.pool().granted, Bytes::mib(2));
}
