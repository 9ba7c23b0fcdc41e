//! Clients and servers of different releases understand each other, as PROTOCOL.md says.
//!
//! The older side is made of bytes, as the release that spoke version 3 wrote them; it must not change with
//! this code.

use muninn_net::{Key, Pool, PoolOptions};
use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_types::Bytes;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const OLD: u8 = 3;
const NEW: u8 = 5;
const HELLO: u8 = 1;
const HEARTBEAT: u8 = 3;

fn server(key: Key, lease: Duration) -> (Server, SocketAddr) {
    let server = Server::start(ServerConfig {
        memory: Bytes::mib(16),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        key,
        lease,
        keep_awake: false,
        ..ServerConfig::default()
    });
    let server = server.unwrap();
    let Address::Tcp(at) = server.addresses()[0] else {
        panic!("it listens elsewhere")
    };
    (server, at)
}

/// The check of a frame, as PROTOCOL.md has it.
fn check(head: &[u8], body: &[u8]) -> u32 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut sum = K ^ body.len() as u64;
    for bytes in [head, body] {
        let mut step = |word: [u8; 8]| {
            sum = (sum ^ u64::from_le_bytes(word))
                .wrapping_mul(K)
                .rotate_left(29);
        };
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| step(*word));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        step(last);
    }
    (sum ^ (sum >> 32)) as u32
}

fn frame(version: u8, kind: u8, status: u16, tag: u64, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut head = vec![b'M', b'N', version, kind, 0, 0];
    head.extend(status.to_le_bytes());
    head.extend(tag.to_le_bytes());
    head.extend((body.len() as u32).to_le_bytes());
    head.extend((payload.len() as u32).to_le_bytes());
    head.extend([0; 4]);
    let sum = check(&head, body);
    [&head[..], &sum.to_le_bytes(), body, payload].concat()
}

/// Header (with its version), body and payload of the next frame.
fn next(stream: &mut TcpStream) -> Option<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut head = vec![0; 32];
    stream.read_exact(&mut head).ok()?;
    let len = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
    let (mut body, mut payload) = (vec![0; len(16)], vec![0; len(20)]);
    stream.read_exact(&mut body).ok()?;
    stream.read_exact(&mut payload).ok()?;
    Some((head, body, payload))
}

/// A client of the old release works with a server of this one, and is answered in its own words.
#[test]
fn an_old_client_is_answered_in_its_version() {
    let (server, at) = server(Key::none(), Duration::from_secs(10));
    // Whatever a newer one would be told.
    server.ask_back(Bytes::mib(4));
    let mut stream = TcpStream::connect(at).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut ask = |kind: u8, tag: u64, body: &[u8], payload: &[u8]| {
        stream
            .write_all(&frame(OLD, kind, 0, tag, body, payload))
            .unwrap();
        let (head, body, payload) = next(&mut stream).unwrap();
        assert_eq!((head[2], head[3]), (OLD, kind | 0x80), "{head:?}");
        assert_eq!(head[6..8], [0, 0], "refused");
        (body, payload)
    };
    let name = b"old";
    let hello = [
        &[7; 16][..],
        &[1, 0, 0, 0],
        &[0, 0, name.len() as u8],
        name,
        &[0],
    ]
    .concat();
    ask(HELLO, 0, &hello, &[]);
    ask(2, 1, &[0; 32], &[]);
    let (grant, _) = ask(5, 2, &(1u64 << 20).to_le_bytes(), &[]);
    let segment = [&grant[..8], &[0, 16, 0, 0], &[0, 16, 0, 0]].concat();
    let page = vec![0x5a; 4096];
    ask(17, 3, &segment, &page);
    let (_, back) = ask(16, 4, &segment, &[]);
    assert!(back == page);
    // One byte, two numbers of eight, one of four: no more was known then.
    let (report, _) = ask(HEARTBEAT, 5, &[], &[]);
    assert_eq!(report.len(), 21);
    assert_eq!(report[..9], [0; 9], "it drains");
    assert_eq!(report[9..17], (1u64 << 20).to_le_bytes());
}

/// A newer version than a server knows is refused with the latest that it does know.
#[test]
fn a_version_to_come_is_refused_with_the_latest_known() {
    let (_server, at) = server(Key::none(), Duration::from_secs(10));
    for version in [0, 2, NEW + 1, 255] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream
            .write_all(&frame(version, HELLO, 0, 0, &[0; 30], &[]))
            .unwrap();
        let (head, body, _) = next(&mut stream).unwrap();
        assert_eq!((head[2], head[6]), (OLD, 3), "everybody reads that");
        assert_eq!(body[..8], u64::from(NEW).to_le_bytes());
        assert_eq!(body[8..16], u64::from(version).to_le_bytes());
        assert!(next(&mut stream).is_none(), "it is closed");
    }
}

#[derive(Default)]
struct Seen {
    refused: AtomicUsize,
    /// Versions and kinds of what a client sent that was let through.
    frames: Mutex<Vec<(u8, u8)>>,
}

/// Stands before a server and behaves as one of the old release: refuses another version as that did, and
/// lets the rest through.
fn old_server(at: SocketAddr, seen: Arc<Seen>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (seen, server) = (Arc::clone(&seen), TcpStream::connect(at).unwrap());
            std::thread::spawn(move || stand_between(client, server, &seen));
        }
    });
    address
}

fn stand_between(mut client: TcpStream, mut server: TcpStream, seen: &Seen) {
    let (mut back, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut back);
        let _ = back.shutdown(std::net::Shutdown::Both);
    });
    while let Some((head, body, payload)) = next(&mut client) {
        if head[2] != OLD {
            seen.refused.fetch_add(1, SeqCst);
            let detail = [u64::from(OLD), u64::from(head[2])]
                .map(u64::to_le_bytes)
                .concat();
            let refusal = frame(OLD, 0x81, 3, 0, &[&detail[..], &[0]].concat(), &[]);
            let _ = client.write_all(&refusal);
            let _ = client.shutdown(std::net::Shutdown::Both);
            return;
        }
        seen.frames.lock().unwrap().push((head[2], head[3]));
        if server.write_all(&[head, body, payload].concat()).is_err() {
            return;
        }
    }
    let _ = server.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_client_speaks_the_version_of_an_old_server() {
    let (_server, at) = server(Key::none(), Duration::from_millis(400));
    let seen = Arc::new(Seen::default());
    let old = old_server(at, Arc::clone(&seen));
    let pool = Pool::connect(&old.to_string(), PoolOptions::default()).unwrap();
    let grant = pool.grant(Bytes::mib(1)).unwrap();
    pool.write(&grant, 4096, b"as ever").unwrap();
    let beats = || {
        let frames = seen.frames.lock().unwrap();
        frames.iter().filter(|(_, kind)| *kind == HEARTBEAT).count()
    };
    let ends = std::time::Instant::now() + Duration::from_secs(20);
    while beats() < 3 {
        assert!(std::time::Instant::now() < ends, "no heartbeats");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut back = [0; 7];
    pool.read(&grant, 4096, &mut back).unwrap();
    assert_eq!(&back, b"as ever");
    assert!(
        seen.refused.load(SeqCst) >= 1,
        "it asked for no newer version"
    );
    let frames = seen.frames.lock().unwrap();
    assert!(frames.iter().all(|(version, _)| *version == OLD));
}

/// With a key nobody in between can change the version of a hello: both sides prove what they read.
#[test]
fn the_version_of_a_hello_cannot_be_changed_on_its_way() {
    let key = || Key::from_file_contents(&[b'k'; 32]).unwrap();
    let (_server, at) = server(key(), Duration::from_secs(10));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut server = TcpStream::connect(at).unwrap();
            let Some((mut head, body, _)) = next(&mut client) else {
                continue;
            };
            assert_eq!(head[2], NEW);
            head[2] = OLD;
            let sum = check(&head[..28], &body);
            head[28..].copy_from_slice(&sum.to_le_bytes());
            server.write_all(&[head, body].concat()).unwrap();
            let mut back = client.try_clone().unwrap();
            let mut from = server.try_clone().unwrap();
            std::thread::spawn(move || std::io::copy(&mut from, &mut back));
            std::thread::spawn(move || std::io::copy(&mut client, &mut server));
        }
    });
    let connect = |at: SocketAddr| {
        let options = PoolOptions {
            key: key(),
            ..PoolOptions::default()
        };
        Pool::connect(&at.to_string(), options)
    };
    connect(at).unwrap();
    assert!(connect(between).is_err(), "nobody noticed");
}
