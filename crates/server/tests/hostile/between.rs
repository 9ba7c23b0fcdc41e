//! Somebody in between: reads, changes, leaves out, repeats and adds, and gets nothing but a broken
//! connection.

use crate::common::*;
use muninn_net::{Key, Pool, PoolOptions};
use muninn_proto::secure::{Operator, Role};
use muninn_server::ServerConfig;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, SplitMix64, Tag};
use muninn_wire::{ErrorCode, HEADER_LEN, Header, Kind, Refusal, seal_frame};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is done to bytes that pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Listen,
    Flip,
    Drop,
    Repeat,
    Swap,
    /// A refusal that the server did not send.
    Refuse,
}

/// Bytes of a connection that pass untouched before anything is done: the handshake.
const HANDSHAKE: usize = 1200;
/// One in so many pieces is tampered with, on average.
const ONE_IN: u64 = 12;

struct Between {
    address: SocketAddr,
    recorded: Arc<Mutex<Vec<u8>>>,
    tampered: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Between {
    fn start(server: SocketAddr, way: Way) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let between = Between {
            address,
            recorded: Arc::default(),
            tampered: Arc::default(),
            over: Arc::default(),
        };
        let (recorded, tampered) = (between.recorded.clone(), between.tampered.clone());
        let over = between.over.clone();
        std::thread::spawn(move || {
            let mut seed = 0;
            for client in listener.incoming() {
                if over.load(Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else {
                    continue;
                };
                for (from, to, down) in [(&client, &server, false), (&server, &client, true)] {
                    seed += 1;
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (recorded, tampered) = (recorded.clone(), tampered.clone());
                    let dice = SplitMix64::new(seed);
                    std::thread::spawn(move || {
                        pass(from, to, way, down, dice, &recorded, &tampered);
                    });
                }
            }
        });
        between
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn forged() -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    Refusal::new(ErrorCode::NoSession).encode(&mut frame);
    let mut header = Header::new(Kind::ReadReply, Class::Demand, Tag(1));
    header.status = ErrorCode::NoSession as u16;
    seal_frame(&mut frame, header, 0);
    frame
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    way: Way,
    down: bool,
    mut dice: SplitMix64,
    recorded: &Mutex<Vec<u8>>,
    tampered: &AtomicU64,
) {
    let (mut passed, mut held) = (0, Vec::new());
    let mut bytes = vec![0; 8 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let piece = &mut bytes[..n];
        recorded.lock().unwrap().extend_from_slice(piece);
        passed += n;
        let strikes = way != Way::Listen && passed > HANDSHAKE && dice.below(ONE_IN) == 0;
        tampered.fetch_add(u64::from(strikes), Relaxed);
        let sent = match way {
            Way::Flip if strikes => {
                let at = dice.below(n as u64) as usize;
                piece[at] ^= 1 << dice.below(8);
                to.write_all(piece)
            }
            Way::Drop if strikes => Ok(()),
            Way::Repeat if strikes => to.write_all(piece).and_then(|()| to.write_all(piece)),
            Way::Swap if strikes && held.is_empty() => {
                held = piece.to_vec();
                // Nobody waits for ever for what is held back.
                let next = from.read(&mut bytes).unwrap_or(0);
                to.write_all(&bytes[..next])
                    .and_then(|()| to.write_all(&held))
            }
            Way::Refuse if strikes && down => {
                to.write_all(&forged()).and_then(|()| to.write_all(piece))
            }
            _ => to.write_all(piece),
        };
        if sent.is_err() {
            break;
        }
        held.clear();
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A server's key and a client's: shared, or two identities.
fn keys(shared: bool) -> (Key, Key) {
    if shared {
        let key = Key::from_file_contents(b"the key of this very pool").unwrap();
        return (key.clone(), key);
    }
    let operator = Operator::from_seed(muninn_sys::rand::bytes());
    let sign = |role, name| {
        let secret = muninn_sys::rand::bytes();
        Key::identity(operator.sign(role, name, None, secret).unwrap())
    };
    (sign(Role::Server, "rack-1"), sign(Role::Client, "batch"))
}

fn again<E: std::fmt::Display>(way: Way, mut action: impl FnMut() -> Result<(), E>) {
    let mut failures = Vec::new();
    for _ in 0..20 {
        match action() {
            Ok(()) => return,
            Err(error) => failures.push(error.to_string()),
        }
    }
    panic!("{way:?}: {failures:?}");
}

/// Pages written and read through somebody in between: always the right ones, whatever is done.
fn work(way: Way, shared: bool, rounds: u64) -> (Local, Between) {
    let (server, client) = keys(shared);
    let local = Local::start(ServerConfig {
        key: server,
        lease: PATIENCE,
        ..config(Bytes::mib(16))
    });
    let between = Between::start(local.socket_address(), way);
    let at = Address::Tcp(between.address).to_string();
    let options = PoolOptions {
        key: client,
        deadline: Duration::from_millis(250),
        ..options()
    };
    // The handshake of a lane may be what is broken: then it is made again.
    let pool = (0..20).find_map(|_| Pool::connect(&at, options.clone()).ok());
    let pool = pool.expect("a connection in twenty attempts");
    let grant = (0..20).find_map(|_| pool.grant(Bytes::mib(1)).ok());
    let grant = grant.expect("a grant in twenty attempts");
    for round in 0..rounds {
        let page = pattern(round, 4096);
        let offset = (round % 256) * 4096;
        // What is kept back is waited for, then asked for again: that is loss of service, and all.
        again(way, || pool.write(&grant, offset, &page));
        let mut found = vec![0; 4096];
        again(way, || pool.read(&grant, offset, &mut found));
        assert!(found == page, "{way:?}, round {round}: another page");
    }
    drop(pool);
    (local, between)
}

#[test]
fn who_listens_learns_nothing_of_a_page() {
    for shared in [true, false] {
        let (_local, between) = work(Way::Listen, shared, 64);
        let recorded = between.recorded.lock().unwrap();
        assert!(recorded.len() > 2 * 64 * 4096, "nothing passed there");
        for round in (0..64).step_by(8) {
            let page = pattern(round, 4096);
            for part in page.chunks_exact(512).map(|chunk| &chunk[..16]) {
                let seen = recorded.windows(16).any(|bytes| bytes == part);
                assert!(!seen, "page {round} can be read");
            }
        }
    }
}

#[test]
fn without_a_key_all_can_be_read_which_is_why_there_is_one() {
    let local = Local::start(config(Bytes::mib(16)));
    let between = Between::start(local.socket_address(), Way::Listen);
    let at = Address::Tcp(between.address).to_string();
    let pool = Pool::connect(&at, options()).unwrap();
    let grant = pool.grant(Bytes::mib(1)).unwrap();
    let page = pattern(7, 4096);
    pool.write(&grant, 0, &page).unwrap();
    drop(pool);
    let recorded = between.recorded.lock().unwrap();
    assert!(recorded.windows(64).any(|bytes| bytes == &page[..64]));
}

#[test]
fn who_tampers_gets_a_broken_connection_and_no_more() {
    for way in [Way::Flip, Way::Drop, Way::Repeat, Way::Swap, Way::Refuse] {
        // What is kept back is waited for each time.
        let rounds = if matches!(way, Way::Drop | Way::Swap) {
            40
        } else {
            150
        };
        let (local, between) = work(way, way == Way::Flip, rounds);
        let tampered = between.tampered.load(Relaxed);
        assert!(tampered > 0, "{way:?}: nothing was done");
        println!(
            "{way:?}: {tampered} times, {} forged records seen by the server",
            local.refused("forged-record")
        );
    }
}
