//! Connections of the real kernel: partial writes, closed peers, marks, credentials, deadlines.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::time::Duration;

use muninn_sys::epoll::Interest;
use muninn_sys::memory::Mapping;
use muninn_sys::socket::{Address, ByteStream, ConnectError, Listener, Piece, Stream, Transfer};
use muninn_testing::skip;
use muninn_types::{Bytes, Class};
use rustix::net::sockopt;

const SOON: Duration = Duration::from_secs(10);

fn connected(address: &str) -> (Stream, Stream) {
    let listener = Listener::bind(&address.parse().unwrap()).unwrap();
    let client = Stream::connect(listener.address(), SOON).unwrap();
    assert!(muninn_sys::epoll::wait_for(&listener, Interest::READ, Some(SOON)).unwrap());
    let server = listener.accept().unwrap().expect("a connection waits");
    assert!(listener.accept().unwrap().is_none());
    (client, server)
}

#[test]
fn lists_of_pieces_travel_in_both_directions() {
    let (client, server) = connected("127.0.0.1:0");
    assert!(sockopt::tcp_nodelay(client.as_fd()).unwrap());
    assert!(sockopt::tcp_nodelay(server.as_fd()).unwrap());
    assert_eq!(
        client.write(&[IoSlice::new(b"head"), IoSlice::new(b"body")]),
        Ok(Transfer::Bytes(8))
    );
    assert!(server.wait(Interest::READ, Some(SOON)).unwrap());
    let (mut a, mut b) = ([0; 2], [0; 30]);
    let got = server.read(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)]);
    assert_eq!(got, Ok(Transfer::Bytes(8)));
    assert_eq!((&a, &b[..6]), (b"he", &b"adbody"[..]));
    assert_eq!(
        server.read(&mut [IoSliceMut::new(&mut a)]),
        Ok(Transfer::WouldBlock)
    );
}

#[test]
fn pages_travel_by_address_and_a_full_socket_says_so() {
    let (client, server) = connected("127.0.0.1:0");
    let granted = client.set_buffers(Bytes::kib(64), Bytes::kib(64)).unwrap();
    assert!(granted.send >= Bytes::kib(64));
    let len = 8 << 20;
    let from = Mapping::anonymous(Bytes(len as u64)).unwrap();
    let into = Mapping::anonymous(Bytes(len as u64)).unwrap();
    let pattern: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
    from.write_at(0, &pattern).unwrap();
    let (mut sent, mut got, mut blocked) = (0, 0, 0);
    while got < len {
        while sent < len {
            // SAFETY: the range lies in a mapping that lives on.
            let wrote =
                unsafe { client.write_pieces(&[Piece::new(from.as_ptr().add(sent), len - sent)]) };
            match wrote.unwrap() {
                Transfer::Bytes(n) => sent += n,
                Transfer::WouldBlock => {
                    blocked += 1;
                    break;
                }
                Transfer::Closed => panic!("closed"),
            }
        }
        // SAFETY: the range lies in a mapping that lives on, to which no references exist.
        let read = unsafe { server.read_pieces(&[Piece::new(into.as_ptr().add(got), len - got)]) };
        match read.unwrap() {
            Transfer::Bytes(n) => got += n,
            Transfer::WouldBlock => assert!(server.wait(Interest::READ, Some(SOON)).unwrap()),
            Transfer::Closed => panic!("closed"),
        }
    }
    assert!(blocked > 0, "8 MiB fit into a buffer of 64 KiB");
    let mut arrived = vec![0; len];
    into.read_at(0, &mut arrived).unwrap();
    assert!(arrived == pattern);
}

#[test]
fn a_closed_peer_is_an_answer_and_no_signal() {
    for (client, server) in [connected("127.0.0.1:0"), Stream::pair().unwrap()] {
        drop(server);
        let deadline = std::time::Instant::now() + SOON;
        // TCP notices at the answer to the first write.
        while client.write(&[IoSlice::new(b"anybody?")]) != Ok(Transfer::Closed) {
            assert!(std::time::Instant::now() < deadline);
            client.wait(Interest::READ, Some(SOON)).unwrap();
        }
        let mut byte = [0];
        assert_eq!(
            client.read(&mut [IoSliceMut::new(&mut byte)]),
            Ok(Transfer::Closed)
        );
    }
}

#[test]
fn classes_are_marked_in_packets() {
    let (client, _server) = connected("127.0.0.1:0");
    for class in Class::ALL {
        let marks = client.set_class(class);
        assert_eq!(marks.dscp, Some(class.priority() << 3));
        assert_eq!(
            sockopt::ip_tos(client.as_fd()).unwrap(),
            class.priority() << 5
        );
        assert!(matches!(marks.priority, Some(p) if p == class.priority().min(6) || p == 7));
    }
    println!(
        "busy poll granted: {}",
        client.set_busy_poll(Duration::from_micros(50))
    );
    client.set_dead_after(Duration::from_secs(5)).unwrap();
    client.set_nodelay(false).unwrap();
    assert!(!sockopt::tcp_nodelay(client.as_fd()).unwrap());
    let (unix, _other) = Stream::pair().unwrap();
    assert_eq!(unix.set_class(Class::Demand).dscp, None);
}

#[test]
fn ipv6_carries_the_mark_too() {
    let Ok(listener) = Listener::bind(&"[::1]:0".parse().unwrap()) else {
        skip("this machine has no IPv6");
        return;
    };
    let client = Stream::connect(listener.address(), SOON).unwrap();
    assert_eq!(client.set_class(Class::Demand).dscp, Some(56));
    assert_eq!(sockopt::ipv6_tclass(client.as_fd()).unwrap(), 224);
    assert_eq!(
        Address::from(client.peer_address().unwrap()),
        *listener.address()
    );
}

#[test]
fn a_unix_peer_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::unix(dir.path().join("s")).unwrap();
    let listener = Listener::bind(&address).unwrap();
    let client = Stream::connect(&address, SOON).unwrap();
    let server = listener.accept().unwrap().unwrap();
    for end in [&client, &server] {
        let peer = end.peer_credentials().unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    }
    assert!(client.is_unix() && client.peer_address().is_none());
    let again = Stream::from_fd(client.into_fd()).unwrap();
    assert!(again.is_unix());
    again.shutdown();
    let mut byte = [0];
    assert_eq!(
        server.read(&mut [IoSliceMut::new(&mut byte)]),
        Ok(Transfer::Closed)
    );
}

#[test]
fn connecting_fails_with_the_reason_and_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = Address::unix(dir.path().join("none")).unwrap();
    assert_eq!(
        Stream::connect(&nobody, SOON).unwrap_err(),
        ConnectError::Refused(nobody)
    );
    let gone = Listener::bind(&"127.0.0.1:0".parse().unwrap())
        .unwrap()
        .address()
        .clone();
    let error = Stream::connect(&gone, SOON).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot connect to {gone}: nobody listens there; is the server running?")
    );
}

#[test]
fn a_server_that_does_not_accept_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("busy");
    // A queue of one, made by hand, that nobody empties.
    let fd = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&fd, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&fd, 0).unwrap();
    let address = Address::unix(&path).unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        match Stream::connect(&address, Duration::from_millis(50)) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10);
    };
    assert!(matches!(refused, ConnectError::TimedOut(..)), "{refused}");
}
