//! Servers that mean harm to whoever asks them something.

use crate::common::*;
use muninn_net::{Observer, Pool, PoolOptions};
use muninn_proto::framing::FrameBuffer;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, SessionId, SplitMix64};
use muninn_wire::{
    Challenge, HEADER_LEN, Header, Kind, Lock, SessionStatus, ShortText, StatusPage, VERSION_MIN,
    Welcome,
};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

fn reply(asked: &Header, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    frame.extend_from_slice(body);
    let header = Header::new(asked.kind.reply(), asked.class, asked.tag);
    muninn_wire::seal_frame(&mut frame, header, payload.len() as u32);
    frame.extend_from_slice(payload);
    frame
}

/// A page full of sessions, with as many after it as `next` says.
fn page(after: SessionId, next: impl Fn(SessionId) -> SessionId) -> Vec<u8> {
    let session = |n: u64| SessionStatus {
        id: SessionId(after.0 + n),
        name: ShortText::lossy("x", 64),
        ..SessionStatus::default()
    };
    let page = StatusPage {
        sessions: (1..=StatusPage::MAX_SESSIONS as u64).map(session).collect(),
        next: Some(next(after)),
        ..StatusPage::default()
    };
    let mut bytes = Vec::new();
    page.encode(VERSION_MIN, &mut bytes);
    bytes
}

/// Answers until its client has had enough: how many pages of status it sent.
fn serve(mut stream: TcpStream, next: impl Fn(SessionId) -> SessionId) -> u64 {
    let (mut frame, mut pages) = (FrameBuffer::default(), 0);
    loop {
        let mut bytes = [0; 4096];
        let n = stream.read(&mut bytes).unwrap_or(0);
        if n == 0 {
            return pages;
        }
        let mut input = &bytes[..n];
        while let Some(header) = frame.advance(&mut input).unwrap() {
            let mut body = Vec::new();
            let mut payload = Vec::new();
            match header.kind {
                Kind::Hello => Challenge {
                    nonce: [0; 16],
                    lock: Lock::Open,
                    noise: Vec::new(),
                }
                .encode(&mut body),
                Kind::Prove => Welcome {
                    session: SessionId(0),
                    lease_ms: 0,
                    max_grant_bytes: 0,
                    server: ShortText::lossy("liar", 64),
                    secret: [0; 32],
                }
                .encode(&mut body),
                _ => {
                    let after = u64::from_le_bytes(frame.body()[..8].try_into().unwrap());
                    payload = page(SessionId(after), &next);
                    pages += 1;
                }
            }
            frame.clear();
            if stream.write_all(&reply(&header, &body, &payload)).is_err() {
                return pages;
            }
        }
    }
}

#[test]
fn a_status_without_end_is_not_listened_to_for_ever() {
    fn on(after: SessionId) -> SessionId {
        SessionId(after.0 + 1000)
    }
    fn again(after: SessionId) -> SessionId {
        after
    }
    fn back(_: SessionId) -> SessionId {
        SessionId(1)
    }
    for (next, most) in [
        (on as fn(SessionId) -> SessionId, 300),
        (again, 2),
        (back, 2),
    ] {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = Address::Tcp(door.local_addr().unwrap());
        let server = std::thread::spawn(move || serve(door.accept().unwrap().0, next));
        let mut observer = Observer::connect(&at, &options()).unwrap();
        let status = observer.status().unwrap();
        assert_eq!(status.sessions[0].name.as_str(), "x");
        drop(observer);
        let pages = server.join().unwrap();
        assert!((1..=most).contains(&pages), "{pages} pages");
    }
}

/// The length of the frame at the start of some bytes, once all of it is there.
fn whole_frame(bytes: &[u8]) -> Option<usize> {
    let header = Header::decode(bytes.first_chunk::<HEADER_LEN>()?).ok()?;
    let len = HEADER_LEN + header.body_len as usize + header.payload_len as usize;
    (bytes.len() >= len).then_some(len)
}

/// One in so many frames of the server's is another when it arrives.
const ONE_IN: u64 = 10;

/// Changes a frame of a server's; most have a right check again, so that they are believed.
fn twist(frame: &mut Vec<u8>, dice: &mut SplitMix64) {
    let header = Header::decode(frame.first_chunk().expect("a whole frame")).expect("a frame");
    let body = header.body_len as usize;
    match dice.below(8) {
        // Somewhere in the body: numbers, lengths, names.
        0..4 if body > 0 => {
            for _ in 0..1 + dice.below(3) {
                let at = HEADER_LEN + dice.below(body as u64) as usize;
                let values = [0, 1, 0x7f, 0x80, 0xff, dice.next_u64() as u8];
                frame[at] = values[dice.below(6) as usize];
            }
        }
        4 => frame[3] = Kind::ALL[dice.below(Kind::ALL.len() as u64) as usize] as u8,
        5 => frame[6] = dice.next_u64() as u8,
        6 => {
            let field = [8, 16, 20][dice.below(3) as usize];
            let lengths = [0, 1, 40, 4096, 262_144, u32::MAX];
            let length = lengths[dice.below(6) as usize];
            frame[field..field + 4].copy_from_slice(&length.to_le_bytes());
        }
        _ => {
            let at = dice.below(frame.len() as u64) as usize;
            frame.truncate(at);
        }
    }
    let Some(head) = frame.first_chunk::<HEADER_LEN>() else {
        return;
    };
    if let Ok(header) = Header::decode(head)
        && dice.below(10) > 0
    {
        let end = (HEADER_LEN + header.body_len as usize).min(frame.len());
        muninn_wire::seal_frame(&mut frame[..end], header, header.payload_len);
    }
}

/// Passes on what a server says, not always as it said it.
fn pass_on(mut from: TcpStream, mut to: TcpStream, mut dice: SplitMix64) {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    'all: while let Ok(n @ 1..) = from.read(&mut piece) {
        bytes.extend_from_slice(&piece[..n]);
        while let Some(len) = whole_frame(&bytes) {
            let mut frame: Vec<u8> = bytes.drain(..len).collect();
            if dice.below(ONE_IN) == 0 {
                twist(&mut frame, &mut dice);
            }
            if to.write_all(&frame).is_err() {
                break 'all;
            }
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A server that lies about everything, as one would who has taken a good one over.
fn liar(server: SocketAddr, seed: u64) -> SocketAddr {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = door.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut dice = SplitMix64::new(seed);
        for client in door.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else {
                continue;
            };
            let dice = dice.fork();
            let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut up, &mut down);
                let _ = down.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || pass_on(server, client, dice));
        }
    });
    at
}

/// All that a client may ask for. How much of it was answered.
fn ask_for_all(at: &Address, dice: &mut SplitMix64) -> u64 {
    let options = PoolOptions {
        deadline: Duration::from_millis(40),
        connect_timeout: Duration::from_millis(150),
        ..options()
    };
    let mut answered = 0;
    if let Ok(mut observer) = Observer::connect(at, &options) {
        answered += u64::from(observer.status().is_ok());
        answered += u64::from(observer.progress().is_ok());
    }
    let Ok(pool) = Pool::connect(&at.to_string(), options) else {
        return answered;
    };
    let mut grants = Vec::new();
    for _ in 0..12 {
        if grants.len() < 3 {
            grants.extend(pool.grant(Bytes::kib(64)));
        }
        let Some(grant) = grants.last() else { continue };
        let mut page = [0; 4096];
        let offset = dice.below(16) * 4096;
        let all = [
            pool.write(grant, offset, &page).is_ok(),
            pool.read(grant, offset, &mut page).is_ok(),
            pool.fetch_add(grant, offset, 1).is_ok(),
            dice.below(4) == 0
                && pool
                    .share(&grants)
                    .is_ok_and(|share| pool.adopt(&share).is_ok()),
            dice.below(4) == 0 && pool.release(&[grants.remove(0)]).is_ok(),
        ];
        answered += all.iter().map(|done| u64::from(*done)).sum::<u64>();
    }
    answered
}

/// Whatever a server answers, its clients neither end nor hang nor grow.
#[test]
fn answers_that_are_not_right_end_no_client() {
    let seed = match std::env::var("MUNINN_GARBAGE_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => muninn_sys::rand::u64(),
    };
    println!("MUNINN_GARBAGE_SEED={seed}");
    let rounds = match std::env::var_os("MUNINN_TEST_FULL") {
        Some(_) => 4000,
        None => 40,
    };
    let local = Local::start(muninn_server::ServerConfig {
        max_sessions_of_source: Some(4096),
        ..config(Bytes::mib(256))
    });
    let at = Address::Tcp(liar(local.socket_address(), seed));
    let dice = &mut SplitMix64::new(!seed);
    let answered: u64 = std::thread::scope(|scope| {
        let clients = [(); 4].map(|()| {
            let (mut dice, at) = (dice.fork(), &at);
            scope.spawn(move || -> u64 {
                let one = |_| {
                    let began = Instant::now();
                    let answered = ask_for_all(at, &mut dice);
                    assert!(began.elapsed() < PATIENCE, "a client that hangs");
                    answered
                };
                (0..rounds).map(one).sum()
            })
        });
        clients.map(|client| client.join().unwrap()).iter().sum()
    });
    println!("{answered} answers were taken for good ones");
    assert!(
        answered > rounds,
        "only {answered} of anything was answered"
    );
}
