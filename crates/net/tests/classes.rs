//! Classes of traffic: packets carry their marks, and the server serves what is urgent first,
//! unless it was told that all are equal.

mod common;

use common::*;
use muninn_net::{Answer, Control, SessionOptions, TcpSession, Transport};
use muninn_policy::wrr::Weights;
use muninn_server::ServerConfig;
use muninn_sys::socket::{Marks, Stream};
use muninn_types::{Bytes, Class, LaneKind, Tag};
use muninn_wire::{Request, Transport as Wire, decode_old_value};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Where children of this program start.
#[test]
fn child() {
    serve_if_asked();
}

/// Tcp sockets of this process that are connected to a port (or, at the other end, from it).
fn sockets(port: u16, of_server: bool) -> Vec<Stream> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        // SAFETY: borrowed for one call; if another thread closes it meanwhile, the call says so.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(fd, 0) else {
            continue;
        };
        let port_of = |name: std::io::Result<std::net::SocketAddr>| name.ok().map(|a| a.port());
        if rustix::net::sockopt::socket_type(&copy).is_err()
            || rustix::net::sockopt::socket_domain(&copy) != Ok(rustix::net::AddressFamily::INET)
        {
            continue;
        }
        let stream = std::net::TcpStream::from(copy);
        let (here, there) = (port_of(stream.local_addr()), port_of(stream.peer_addr()));
        let wanted = if of_server { here } else { there };
        if there.is_some() && wanted == Some(port) {
            found.push(Stream::from_fd(OwnedFd::from(stream)).unwrap());
        }
    }
    found
}

fn inode(stream: &Stream) -> u64 {
    rustix::fs::fstat(stream.as_fd()).unwrap().st_ino
}

/// Opens a session and its lanes one after the other; the marks of each new socket, at the client
/// and at the server.
fn marks(local: &Local, options: &SessionOptions) -> Vec<(Marks, Marks)> {
    let port = local.socket_address().port();
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    let mut new_marks = |of_server| {
        let fresh: Vec<Stream> = sockets(port, of_server)
            .into_iter()
            .filter(|stream| seen.insert(inode(stream)))
            .collect();
        assert_eq!(fresh.len(), 1, "one new socket at each end");
        fresh[0].marks()
    };
    let session = TcpSession::open(&local.tcp, options).unwrap();
    let grant = match session.call(Control::Grant { bytes: 4096 }, PATIENCE) {
        Ok(Answer::Granted(info)) => info.grant,
        other => panic!("{other:?}"),
    };
    let mut found = vec![(new_marks(false), new_marks(true))];
    let mut lanes = Vec::new();
    for kind in [LaneKind::Critical, LaneKind::Bulk] {
        let mut lane = session.lane(kind).unwrap();
        let class = match kind {
            LaneKind::Bulk => Class::Prefetch,
            _ => Class::Demand,
        };
        let seg = [muninn_wire::Seg::new(grant, 0, 8)];
        lane.read_v(class, &seg, &mut [0; 8]).unwrap();
        found.push((new_marks(false), new_marks(true)));
        lanes.push(lane);
    }
    found
}

#[test]
fn packets_carry_the_marks_of_their_class() {
    let local = Local::start(config(Bytes::mib(8)));
    let found = marks(&local, &options());
    println!("{found:?}");
    let [control, critical, bulk] = found[..] else {
        panic!("three connections");
    };
    // Class selectors CS7, CS7 and CS4; 7 as a priority needs a permission, 6 does not.
    for (end, priority_7) in [(control.0, 56), (critical.0, 56), (critical.1, 56)] {
        assert_eq!(end.dscp, Some(priority_7));
        assert!(matches!(end.priority, Some(6 | 7)), "{end:?}");
    }
    for end in [bulk.0, bulk.1] {
        assert_eq!((end.dscp, end.priority), (Some(32), Some(4)));
    }
}

#[test]
fn equal_classes_carry_no_marks() {
    let local = Local::start(ServerConfig {
        weights: Weights::equal(),
        ..config(Bytes::mib(8))
    });
    let equal = SessionOptions {
        equal_classes: true,
        ..options()
    };
    let none = Marks {
        dscp: Some(0),
        priority: Some(0),
    };
    for ends in marks(&local, &equal) {
        assert_eq!(ends, (none, none));
    }
}

/// Fills two lanes of one session with additions to the same word while the server is stopped, and
/// lets it go: what each finds there tells in which order they were served. How many of the second
/// lane were served before the last of the first.
fn served_before(ways: &str, first: Class, second: Class) -> usize {
    const COUNT: u64 = 3000;
    let long = Duration::from_secs(60);
    let remote = Remote::start_as("child", Bytes::mib(8), long, 1, ways);
    let mut control = Raw::open(&remote.tcp, Wire::Tcp);
    let grant = control.grant(4096).grant;
    let additions = |class, from: u64, count: u64| {
        let mut frames = Vec::new();
        for tag in from..from + count {
            let request = Request::FetchAdd {
                grant,
                offset: 0,
                add: 1,
            };
            request.encode(class, Tag(tag), &mut frames);
        }
        frames
    };
    let mut lanes = [(1, first), (2, second)].map(|(lane, class)| {
        let mut raw = control.attach(&remote.tcp, lane, class.lane());
        // Now the server knows the lane's class.
        raw.send(&additions(class, 1, 1));
        raw.recv().unwrap();
        (raw, class)
    });
    remote.process.stop();
    // The less urgent first: nothing is gained by being early.
    for (raw, class) in lanes.iter().rev() {
        raw.send(&additions(*class, 10, COUNT));
    }
    remote.process.go_on();
    let [first, second] = lanes.each_mut().map(|(raw, _)| {
        let orders = (0..COUNT).map(|_| decode_old_value(&raw.recv().unwrap().body).unwrap());
        orders.collect::<Vec<u64>>()
    });
    let last = *first.iter().max().unwrap();
    second.iter().filter(|order| **order < last).count()
}

#[test]
fn the_server_serves_what_is_urgent_first() {
    let before = served_before("", Class::Demand, Class::Prefetch);
    println!("{before} of 3000 prefetches were served before the last of 3000 demands");
    // By weight 1 to 16: a sixteenth, about 190. Not none either: nobody starves.
    assert!((1..1000).contains(&before), "{before} of 3000");
    let after = served_before("", Class::Prefetch, Class::Demand);
    println!("{after} of 3000 demands were served before the last of 3000 prefetches");
    assert!(after > 2900, "{after} of 3000");
}

#[test]
fn equal_classes_are_served_alike() {
    let before = served_before("equal", Class::Demand, Class::Prefetch);
    println!("{before} of 3000 prefetches were served before the last of 3000 demands");
    assert!(before > 2000, "{before} of 3000");
}
