//! Somebody on the wire between two machines: each packet passes through their hands.
//!
//! Client and server are in network namespaces of their own, which end with the threads that made them.
//! All there is between the two is a tunnel at each end, and this test reads packets out of one and
//! writes them to the other: as they are, or not. What is changed gets a right checksum again, so that
//! no kernel throws it away before anybody looks.

use crate::common::*;
use muninn_net::{Key, Pool, PoolOptions};
use muninn_proto::secure::Role;
use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, SplitMix64};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::UnshareFlags;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CLIENT: &str = "10.99.0.1";
const SERVER: &str = "10.99.0.2";
/// One in so many packets with text is tampered with, on average.
const ONE_IN: u64 = 12;

/// What is done to packets that pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Listen,
    /// A bit of the text is another.
    Flip,
    /// The packet is lost.
    Drop,
    /// It comes twice.
    Repeat,
    /// It comes after the next.
    Reorder,
    /// It comes a quarter of a second later.
    Delay,
    /// Only the beginning of it comes.
    Truncate,
    /// Its text is that of one before, of the same length: a record comes again.
    Replay,
}

/// How late a delayed packet is.
const LATE: Duration = Duration::from_millis(250);

/// From the first bytes of `struct ifreq`.
#[repr(C)]
struct TunnelRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// A tunnel in a namespace of the calling thread's own; why there is none, where the machine has none.
fn tunnel(address: &str) -> Result<File, String> {
    const SET: rustix::ioctl::Opcode = 0x4004_54ca;
    const TUN_WITHOUT_HEAD: u16 = 0x1001;
    // SAFETY: the thread has nothing that belongs to the namespace it leaves.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|error| format!("no right to make a network namespace ({error})"))?;
    let options = File::options().read(true).write(true).open("/dev/net/tun");
    let file = options.map_err(|error| format!("no tunnels on this machine ({error})"))?;
    let mut name = [0; 16];
    name[..4].copy_from_slice(b"wire");
    let request = TunnelRequest {
        name,
        flags: TUN_WITHOUT_HEAD,
        rest: [0; 22],
    };
    // SAFETY: the call takes a request of this shape, and only reads it.
    unsafe {
        let set = rustix::ioctl::Setter::<SET, TunnelRequest>::new(request);
        rustix::ioctl::ioctl(&file, set).map_err(|error| format!("no tunnel ({error})"))?;
    }
    let address = format!("{address}/24");
    for args in [
        &["address", "add", &address, "dev", "wire"][..],
        &["link", "set", "wire", "up"],
    ] {
        let ended = Command::new("ip").args(args).output();
        let ended = ended.map_err(|error| format!("no ip command ({error})"))?;
        assert!(ended.status.success(), "{ended:?}");
    }
    Ok(file)
}

/// Where the text of a TCP packet over IPv4 begins.
fn text_at(packet: &[u8]) -> Option<usize> {
    let is_tcp = packet.first()? >> 4 == 4 && *packet.get(9)? == 6;
    let head = usize::from(packet[0] & 15) * 4;
    let offset = usize::from(packet.get(head + 12)? >> 4) * 4;
    (is_tcp && head + offset <= packet.len()).then_some(head + offset)
}

/// Makes the checksum right again.
fn seal(packet: &mut [u8]) {
    let head = usize::from(packet[0] & 15) * 4;
    packet[head + 16..head + 18].fill(0);
    let add = |sum: u32, bytes: &[u8]| {
        let words = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
        words.fold(sum, |sum, word| sum + word)
    };
    let mut sum = add(6 + (packet.len() - head) as u32, &packet[12..20]);
    sum = add(sum, &packet[head..]);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let check = !(sum as u16);
    packet[head + 16..head + 18].copy_from_slice(&check.to_be_bytes());
}

/// Cuts the text of a packet short; how long the packet is then.
fn shorten(packet: &mut [u8], at: usize, text: usize) -> usize {
    let len = at + text;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[10..12].fill(0);
    let head = packet[..usize::from(packet[0] & 15) * 4].chunks_exact(2);
    let words = head.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let check = !(((sum & 0xffff) + (sum >> 16)) as u16);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    seal(&mut packet[..len]);
    len
}

/// What the one in between has seen and done.
#[derive(Default)]
struct Seen {
    recorded: Mutex<Vec<u8>>,
    tampered: AtomicU64,
    over: AtomicBool,
}

/// Passes packets on until it is over.
fn between(mut ends: [File; 2], way: Way, seen: &Seen) {
    let mut dice = SplitMix64::new(way as u64);
    let mut packet = vec![0; 64 << 10];
    let mut held: [Option<Vec<u8>>; 2] = [None, None];
    // By direction and length: the text that passed last.
    let mut texts: HashMap<(usize, usize), Vec<u8>> = HashMap::new();
    let mut passed = 0;
    // Packets on their way to an end, and when they are to get there.
    let mut delayed: VecDeque<(Instant, usize, Vec<u8>)> = VecDeque::new();
    while !seen.over.load(Relaxed) {
        let ready: Vec<bool> = {
            let mut list = ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            let _ = poll(&mut list, Some(&wait));
            list.iter().map(|fd| !fd.revents().is_empty()).collect()
        };
        while let Some((_, to, late)) = delayed.pop_front_if(|(due, ..)| *due <= Instant::now()) {
            let _ = ends[to].write(&late);
        }
        for from in 0..2 {
            let Some(late) = held[from].take_if(|_| !ready[from]) else {
                continue;
            };
            // Nobody waits for ever for what is held back.
            let _ = ends[1 - from].write(&late);
        }
        for from in (0..2).filter(|from| ready[*from]) {
            let Ok(len @ 1..) = ends[from].read(&mut packet) else {
                continue;
            };
            let packet = &mut packet[..len];
            let Some(at) = text_at(packet).filter(|at| *at < len) else {
                let _ = ends[1 - from].write(packet);
                continue;
            };
            let (text, own) = (packet[at..].to_vec(), (from, len - at));
            seen.recorded.lock().unwrap().extend_from_slice(&text);
            passed += 1;
            // The first connection is let through, so that there is something to attack.
            let strikes = way != Way::Listen && passed > 20 && dice.below(ONE_IN) == 0;
            seen.tampered.fetch_add(u64::from(strikes), Relaxed);
            match way {
                Way::Flip if strikes => {
                    let bit = at + dice.below((len - at) as u64) as usize;
                    packet[bit] ^= 1 << dice.below(8);
                    seal(packet);
                }
                Way::Replay if strikes => {
                    if let Some(before) = texts.get(&own) {
                        packet[at..].copy_from_slice(before);
                        seal(packet);
                    }
                }
                Way::Truncate if strikes => {
                    let left = 1 + dice.below((len - at) as u64) as usize;
                    let len = shorten(packet, at, left);
                    let _ = ends[1 - from].write(&packet[..len]);
                    continue;
                }
                Way::Delay if strikes => {
                    delayed.push_back((Instant::now() + LATE, 1 - from, packet.to_vec()));
                    continue;
                }
                Way::Drop if strikes => continue,
                Way::Repeat if strikes => _ = ends[1 - from].write(packet),
                Way::Reorder if strikes && held[from].is_none() => {
                    held[from] = Some(packet.to_vec());
                    continue;
                }
                _ => {}
            }
            let _ = ends[1 - from].write(packet);
            if let Some(late) = held[from].take() {
                let _ = ends[1 - from].write(&late);
            }
            texts.insert(own, text);
        }
    }
}

/// Makes one side's namespace and hands its tunnel over.
fn side(address: &str, tunnels: &Sender<Result<File, String>>) -> bool {
    let made = tunnel(address);
    let good = made.is_ok();
    tunnels.send(made).unwrap();
    good
}

/// The server, until the client is done; how many records it saw that were not the client's.
fn serve(
    key: Key,
    tunnels: &Sender<Result<File, String>>,
    ready: &Sender<Address>,
    done: &Receiver<()>,
) -> u64 {
    if !side(SERVER, tunnels) {
        return 0;
    }
    let server = Server::start(ServerConfig {
        listen: vec![format!("{SERVER}:0").parse().unwrap()],
        key,
        lease: PATIENCE,
        ..config(Bytes::mib(16))
    })
    .unwrap();
    ready.send(server.addresses()[0].clone()).unwrap();
    let _ = done.recv();
    let status = server.status().server;
    let forged = status
        .refusals
        .iter()
        .find(|(name, _)| name.as_str() == "forged-record");
    let count = forged.map_or(0, |(_, count)| *count);
    server.stop();
    count
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

/// Writes pages and reads them back: always the right ones, whatever is done on the way.
fn work(way: Way, key: Key, at: &Address, rounds: u64) {
    let options = PoolOptions {
        key,
        deadline: Duration::from_secs(1),
        ..options()
    };
    let pool = (0..20).find_map(|_| Pool::connect(&at.to_string(), options.clone()).ok());
    let pool = pool.expect("a connection in twenty attempts");
    let grant = (0..20).find_map(|_| pool.grant(Bytes::mib(1)).ok());
    let grant = grant.expect("a grant in twenty attempts");
    for round in 0..rounds {
        let (page, mut found) = (pattern(round, 4096), vec![0; 4096]);
        let offset = (round % 256) * 4096;
        again(way, || pool.write(&grant, offset, &page));
        again(way, || pool.read(&grant, offset, &mut found));
        assert!(found == page, "{way:?}, round {round}: another page");
    }
}

/// One way, from the beginning to the end. None: this machine cannot.
fn attack(way: Way, rounds: u64) -> Option<(Arc<Seen>, u64)> {
    let (tunnels, made) = channel();
    let (ready, listening) = channel();
    let (finish, done) = channel::<()>();
    let seen = Arc::<Seen>::default();
    let server = {
        let tunnels = tunnels.clone();
        let key = test_identity(Role::Server, "rack-1");
        std::thread::spawn(move || serve(key, &tunnels, &ready, &done))
    };
    let server_end = made.recv().unwrap();
    let server_end = server_end.map_err(muninn_testing::skip).ok()?;
    let (go, wait) = channel::<Address>();
    let client = std::thread::spawn(move || {
        assert!(side(CLIENT, &tunnels), "one namespace could be made");
        let key = test_identity(Role::Client, "batch");
        if let Ok(at) = wait.recv() {
            work(way, key, &at, rounds);
        }
    });
    let client_end = made.recv().unwrap().unwrap();
    let middle = {
        let seen = Arc::clone(&seen);
        std::thread::spawn(move || between([client_end, server_end], way, &seen))
    };
    go.send(listening.recv().unwrap()).unwrap();
    let worked = client.join();
    drop(finish);
    let forged = server.join().unwrap();
    seen.over.store(true, Relaxed);
    middle.join().unwrap();
    worked.unwrap();
    Some((seen, forged))
}

#[test]
fn a_recording_of_all_packets_holds_no_page() {
    let Some((seen, _)) = attack(Way::Listen, 64) else {
        return;
    };
    let recorded = seen.recorded.lock().unwrap();
    assert!(recorded.len() > 2 * 64 * 4096, "nothing passed there");
    for round in (0..64).step_by(8) {
        let page = pattern(round, 4096);
        for part in page.chunks_exact(512).map(|chunk| &chunk[..16]) {
            let seen = recorded.windows(16).any(|bytes| bytes == part);
            assert!(!seen, "page {round} can be read");
        }
    }
}

#[test]
fn whoever_has_the_wire_gets_a_broken_connection_and_no_more() {
    let ways = [
        Way::Flip,
        Way::Replay,
        Way::Drop,
        Way::Repeat,
        Way::Reorder,
        Way::Delay,
        Way::Truncate,
    ];
    let times = match std::env::var_os("MUNINN_TEST_FULL") {
        Some(_) => 50,
        None => 1,
    };
    for way in ways {
        // What is lost is sent again by the kernels, after a while.
        let rounds = match way {
            Way::Drop | Way::Delay | Way::Truncate => 20 * times,
            _ => 60 * times,
        };
        let Some((seen, forged)) = attack(way, rounds) else {
            return;
        };
        let tampered = seen.tampered.load(Relaxed);
        println!("{way:?}: {tampered} packets, {forged} forged records seen by the server");
        assert!(tampered > 0, "{way:?}: nothing was done");
        // The kernels mend what is lost, repeated or late. What is changed, nobody mends.
        match way {
            Way::Flip | Way::Replay => assert!(forged > 0, "{way:?}: nobody noticed"),
            _ => assert_eq!(forged, 0, "{way:?}"),
        }
    }
}
