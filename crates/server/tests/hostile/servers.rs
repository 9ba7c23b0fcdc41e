//! Servers that mean harm to whoever asks them something.

use crate::common::*;
use muninn_net::Observer;
use muninn_proto::framing::FrameBuffer;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, SessionId};
use muninn_wire::{
    Challenge, Header, Kind, Lock, SessionStatus, ShortText, StatusPage, VERSION_MIN, Welcome,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn reply(asked: &Header, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; muninn_wire::HEADER_LEN];
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
                    max_grant_bytes: Bytes::ZERO.0,
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
