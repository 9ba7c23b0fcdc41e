//! Everything that a person, a script or a stranger on the network can get wrong, word for word.

use crate::common::{options, place};
use muninn_net::Pool;
use muninn_sys::proc::{RealProc, sysctl};
use muninn_testing::skip;
use muninn_types::{Bytes, Class, Tag};
use muninn_wire::{HEADER_LEN, Header, Kind, Refusal, seal_frame};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// A whole frame without a body, of another version.
fn frame_of_version(kind: Kind, version: u8) -> [u8; HEADER_LEN] {
    let mut frame = [0; HEADER_LEN];
    seal_frame(&mut frame, Header::new(kind, Class::Control, Tag(0)), 0);
    frame[2] = version;
    frame
}

/// Answers the first connection with these bytes.
fn impostor(answer: Vec<u8>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; HEADER_LEN];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&answer).unwrap();
        // Until the client has read it and gone.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (at, thread)
}

#[test]
fn a_client_of_another_version_is_told_so_and_counted() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB"]);
    let mut stream = TcpStream::connect(served.tcp()).unwrap();
    stream.write_all(&frame_of_version(Kind::Hello, 6)).unwrap();
    let mut head = [0; HEADER_LEN];
    stream.read_exact(&mut head).unwrap();
    let header = Header::decode(&head).unwrap();
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).unwrap();
    let refusal = Refusal::decode(header.error().unwrap(), &body).unwrap();
    assert_eq!(
        refusal.to_string(),
        "the server speaks protocol version 5, this client 6: use the same release of muninn on \
         both sides"
    );
    let ended = place.run(&["status", "--pool", &served.tcp(), "--json"]);
    let status: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(status["servers"][0]["refusals"]["wrong-version"], 1);
}

#[test]
fn a_server_of_another_version_or_none_at_all_is_recognised() {
    let place = place();
    let (at, thread) = impostor(frame_of_version(Kind::HelloReply, 9).to_vec());
    let ended = place.run(&["status", "--pool", &at.to_string()]);
    assert_eq!(ended.code, Some(3));
    assert_eq!(
        ended.out,
        format!(
            "{at}\n  the server at {at} refused: the server speaks protocol version 9, this client \
             5: use the same release of muninn on both sides\n"
        )
    );
    thread.join().unwrap();
    let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let (at, thread) = impostor(http.to_vec());
    let ended = place.run(&["status", "--pool", &at.to_string()]);
    assert_eq!(ended.code, Some(3));
    assert_eq!(
        ended.out,
        format!(
            "{at}\n  the server at {at} refused: what answers there is not a muninn server (the \
             frame does not start with the bytes of this protocol)\n"
        )
    );
    thread.join().unwrap();
}

#[test]
fn a_full_pool_an_exceeded_quota_and_too_many_sessions_say_what_to_do() {
    let place = place();
    let served = place.serve(&[
        "--memory",
        "8MiB",
        "--segment",
        "4MiB",
        "--quota",
        "greedy=1MiB",
        "--max-sessions",
        "2",
    ]);
    let at = served.tcp();
    let greedy = served.client("greedy");
    greedy.grant(Bytes::mib(1)).unwrap();
    assert_eq!(
        greedy.grant(Bytes::kib(4)).unwrap_err().to_string(),
        format!(
            "the server at {at} refused: the quota is used up: this client holds 1MiB of 1MiB; \
             release grants or raise its --quota at the server"
        )
    );
    let other = served.client("other");
    other.grant(Bytes::mib(4)).unwrap();
    assert_eq!(
        other.grant(Bytes::mib(4)).unwrap_err().to_string(),
        format!(
            "the server at {at} refused: the pool is full: 4MiB were asked for and the largest \
             free piece is 2MiB; free memory, add a server, or start this one with more --memory"
        )
    );
    assert_eq!(
        Pool::connect(&at, options("third"))
            .unwrap_err()
            .to_string(),
        format!(
            "the server at {at} refused: the server has 2 sessions, as many as it accepts: start \
             it with a larger --max-sessions or use another server"
        )
    );
    let ended = place.run(&["status", "--pool", &at, "--json"]);
    let status: Value = serde_json::from_str(&ended.out).unwrap();
    let refusals = &status["servers"][0]["refusals"];
    for reason in ["quota-exceeded", "pool-full", "too-many-sessions"] {
        assert_eq!(refusals[reason], 1, "{refusals}");
    }
}

#[test]
fn a_port_or_a_socket_that_is_taken_is_left_alone() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB"]);
    let serve = |args: &[&str]| place.run(&[&["serve", "--memory", "8MiB"], args].concat());
    let ended = serve(&["--listen", &served.tcp()]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.err,
        format!(
            "muninn: cannot listen at {}: the address is in use; end the other server or choose \
             another\n",
            served.tcp()
        )
    );
    let ended = serve(&["--socket", "m.sock"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.err,
        "muninn: cannot listen at unix:m.sock: the address is in use; end the other server or \
         choose another\n"
    );
    let file = place.write("file", "mine");
    let ended = serve(&["--socket", "file"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.err,
        "muninn: cannot listen at unix:file: a file that is not a socket is in the way; it was \
         left alone\n"
    );
    assert_eq!(std::fs::read(file).unwrap(), b"mine");
    let ended = serve(&["--socket", "no/such/folder/m.sock"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.err,
        "muninn: cannot listen at unix:no/such/folder/m.sock: No such file or directory (os error \
         2); this host has no such address or directory\n"
    );
    assert_eq!(served.stop().code, Some(0));
}

#[test]
fn nonsense_on_the_command_line_says_what_to_write() {
    let place = place();
    let more = "\n\nFor more information, try '--help'.\n";
    let by_clap: [(&[&str], &str); 7] = [
        (
            &["--memory", "lots"],
            "invalid value 'lots' for '--memory <SIZE>': 'lots' is not a size: write a number and \
             a unit, such as 512MiB or 4GiB",
        ),
        (
            &["--memory", "99999PiB"],
            "invalid value '99999PiB' for '--memory <SIZE>': '99999PiB' is larger than this \
             machine can count (16 EiB)",
        ),
        (
            &["--memory", "4parsecs"],
            "invalid value '4parsecs' for '--memory <SIZE>': '4parsecs' has no unit that is known \
             here: use B, KiB, MiB, GiB, TiB (or KB, MB, GB, TB)",
        ),
        (
            &["--memory", "8MiB", "--lease", "10"],
            "invalid value '10' for '--lease <DURATION>': '10' is not a duration: write a number \
             and a unit, such as 250ms, 10s or 2m",
        ),
        (
            &["--memory", "8MiB", "--quota", "batch"],
            "invalid value 'batch' for '--quota <NAME=SIZE>': write a client's name and a size, \
             such as batch=8GiB",
        ),
        (
            &["--memory", "8MiB", "--listen", "7000"],
            "invalid value '7000' for '--listen <ADDR>': '7000' is not an address: write HOST:PORT \
             (such as 10.0.0.5:7000 or [::1]:7000) or unix:PATH",
        ),
        (
            &["--memory", "8MiB", "--listen", "/run/m.sock"],
            "invalid value '/run/m.sock' for '--listen <ADDR>': that is a path: for a Unix socket \
             use --socket /run/m.sock",
        ),
    ];
    for (args, message) in by_clap {
        let ended = place.run(&[&["serve", "--socket", "m.sock"], args].concat());
        assert_eq!(ended.code, Some(2));
        assert_eq!(ended.err, format!("error: {message}{more}"));
    }
    let by_us: [(&[&str], &str); 8] = [
        (
            &[],
            "how much memory to give to the pool? Say --memory SIZE, such as 64GiB",
        ),
        (
            &["--memory", "0"],
            "0B is too little memory for a server: give it at least 4KiB",
        ),
        (
            &["--memory", "64MiB", "--segment", "3MiB"],
            "a segment of 3MiB cannot be: use a power of two from 4KiB to 1GiB",
        ),
        (
            &["--memory", "64MiB", "--segment", "2GiB"],
            "a segment of 2GiB cannot be: use a power of two from 4KiB to 1GiB",
        ),
        (
            &["--memory", "8MiB", "--threads", "0"],
            "a server has 1 to 64 threads, not 0",
        ),
        (
            &["--memory", "8MiB", "--lease", "1ms"],
            "a lease of 1ms is too short to keep: use 100ms or more",
        ),
        (
            &["--memory", "8MiB", "--spin", "2s"],
            "spinning of 2s is too long: use 1s or less",
        ),
        (
            &["--memory", "8MiB", "--listen", "0.0.0.0:0"],
            "refusing to listen at 0.0.0.0:0 without a key, as others could reach this memory: \
             name a key file (--key-file PATH; 'muninn keygen PATH' makes one), or say --insecure \
             if the network is trusted",
        ),
    ];
    for (args, message) in by_us {
        let ended = place.run(&[&["serve", "--socket", "m.sock"], args].concat());
        assert_eq!(ended.code, Some(2), "{args:?}");
        assert_eq!(ended.err, format!("muninn: {message}\n"));
        assert_eq!(ended.out, "");
    }
    let ended = place.run(&["serve", "--memory", "8PiB", "--socket", "m.sock"]);
    assert_eq!(ended.code, Some(2));
    let (start, end) = (
        "muninn: 8PiB are more than this machine has (",
        "): give the pool less\n",
    );
    assert!(
        ended.err.starts_with(start) && ended.err.ends_with(end),
        "{}",
        ended.err
    );
    assert!(!place.path("m.sock").exists(), "a socket was left behind");
}

#[test]
fn told_so_it_listens_beyond_this_machine_without_a_key() {
    let place = place();
    let args = [
        "serve",
        "--memory",
        "8MiB",
        "--listen",
        "0.0.0.0:0",
        "--insecure",
        "--json",
    ];
    let served = crate::common::Served::start(place.command(&args));
    assert!(served.tcp().starts_with("0.0.0.0:"));
    assert_eq!(served.stop().code, Some(0));
}

#[test]
fn huge_pages_that_are_not_there_say_how_to_get_them() {
    if sysctl(&RealProc, "vm.nr_hugepages").is_ok_and(|pages| pages > 0) {
        skip("this machine has huge pages in reserve");
        return;
    }
    let place = place();
    let ended = place.run(&[
        "serve",
        "--memory",
        "64MiB",
        "--socket",
        "m.sock",
        "--huge-pages",
        "required",
    ]);
    assert_eq!(ended.code, Some(4));
    assert!(
        ended.err.starts_with(
            "muninn: cannot reserve 64MiB for the pool: cannot create the memory file"
        ) && ended
            .err
            .ends_with("reserve them with 'sysctl vm.nr_hugepages=2' or run without huge pages\n"),
        "{}",
        ended.err
    );
}
