//! A server that runs out of open files goes on serving, does not turn in circles, and recovers.

mod common;

use common::*;
use muninn_net::Pool;
use muninn_sys::socket::{Address, Stream, Transfer};
use muninn_types::{Bytes, Class, Tag};
use muninn_wire::{Kind, Transport as Wire};
use std::os::fd::AsFd;
use std::time::Duration;

/// Where children of this program start.
#[test]
fn child() {
    serve_if_asked();
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn running_out_of_descriptors_is_survived() {
    let long = Duration::from_secs(30);
    let mut remote = Remote::start_as("child", Bytes::mib(16), long, 1, "few");
    let unix = remote.unix.clone();
    let pool = Pool::connect(&unix.to_string(), options()).unwrap();
    let grant = pool.grant(Bytes::kib(64)).unwrap();
    pool.write(&grant, 0, b"kept").unwrap();

    // More connections than it can have, from two sources, as one alone gets half: the rest waits at the door.
    let both = [&unix, &remote.tcp].into_iter().cycle();
    let crowd: Vec<Stream> = both
        .take(2 * FEW_DESCRIPTORS as usize)
        .filter_map(|at| Stream::connect(at, Duration::from_millis(200)).ok())
        .collect();
    let open = format!("/proc/{}/fd", remote.process.pid());
    let files = || std::fs::read_dir(&open).unwrap().count() as u64;
    until("the server to have no descriptor left", || {
        files() >= FEW_DESCRIPTORS
    });
    // Its segment is to be replaced by a new file, which cannot be had now.
    pool.release(&[grant]).unwrap();
    let before = cpu_ticks(remote.process.pid());
    let mut asked = 0;
    while asked < 50 {
        asked += 1;
        assert!(remote.is_healthy());
        std::thread::sleep(Duration::from_millis(10));
    }
    let ticks = cpu_ticks(remote.process.pid()) - before;
    println!("{ticks} ticks of the CPU in half a second without descriptors");
    // The session that was there is served: its lease is kept by heartbeats.
    let transport = pool.transport(muninn_types::ServerId(0)).unwrap();
    transport
        .call(muninn_net::Control::Heartbeat, PATIENCE)
        .unwrap();
    assert!(remote.ask("wiping") > 0, "the file was replaced after all");

    drop(crowd);
    until("the memory to come back", || {
        remote.ask("wiping") == 0 && remote.ask("granted") == 0
    });
    let next = Pool::connect(&unix.to_string(), options()).unwrap();
    let grant = next.grant(Bytes::mib(1)).unwrap();
    next.write(&grant, 0, b"again").unwrap();
    let tcp: Address = remote.tcp.clone();
    Pool::connect(&tcp.to_string(), options())
        .unwrap()
        .grant(Bytes::kib(4))
        .unwrap();
    assert!(remote.is_healthy());
}

#[test]
fn descriptors_that_clients_send_are_not_kept() {
    let long = Duration::from_secs(30);
    let mut remote = Remote::start("child", Bytes::mib(16), long, 1);
    let mut raw = Raw::open(&remote.unix, Wire::Tcp);
    let open = format!("/proc/{}/fd", remote.process.pid());
    let files = || std::fs::read_dir(&open).unwrap().count();
    let before = files();
    let file = std::fs::File::open("/dev/null").unwrap();
    let some = [file.as_fd(); 16];
    for tag in 0..200 {
        let frame = sealed(Kind::Heartbeat, Class::Control, Tag(tag), &[], 0);
        let sent = raw.stream.send_fds(&frame, &some);
        assert_eq!(sent, Ok(Transfer::Bytes(frame.len())));
        assert_eq!(raw.recv().unwrap().header.tag, Tag(tag));
    }
    assert_eq!(files(), before, "3200 were sent");
    assert!(remote.is_healthy());
}
