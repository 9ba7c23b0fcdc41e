//! A pool of a hundred servers, ten of which are dead: half refuse, half never answer.
//!
//! Those who are dead are the very ones that would be asked first.

use muninn_net::Transport;
use muninn_net::fake::FakeTransport;
use muninn_policy::layout::Layout;
use muninn_policy::placement::Placement;
use muninn_sys::socket::{Address, Knock};
use muninn_types::{Bytes, ServerId};
use muninn_volume::{Attempt, Clerk, Roster, Volume};
use rustix::net::{AddressFamily, SocketType};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SERVERS: usize = 100;
const DEAD: usize = 10;
const READY: Duration = Duration::from_secs(1);
/// Connections that a listener is filled with, at most.
const FILL_MAX: usize = 8192;

/// Listens, and never answers: its queue is full, so that the kernel drops who comes.
struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _fill: Vec<Box<dyn Send>>,
}

impl BlackHole {
    fn new() -> BlackHole {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The queue of a socket that listens already can be made shorter.
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut fill: Vec<Box<dyn Send>> = Vec::new();
        for _ in 0..FILL_MAX {
            let knock = Knock::begin(&address, Duration::from_secs(600)).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            match knock.poll() {
                Ok(stream) => fill.push(Box::new(stream.unwrap())),
                Err(knock) => {
                    fill.push(Box::new(knock));
                    return BlackHole {
                        address,
                        _listener: listener,
                        _fill: fill,
                    };
                }
            }
        }
        panic!("the queue of {address} does not fill");
    }
}

/// A place that is taken, and where nobody listens.
fn refusing() -> (OwnedFd, SocketAddr) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap();
    (socket, address.try_into().unwrap())
}

#[test]
fn ten_dead_servers_of_a_hundred_hold_nobody_up() {
    let ids: Vec<ServerId> = (0..SERVERS as u32).map(ServerId).collect();
    let placement = Placement::new(0, 7, &ids);
    let dead: Vec<ServerId> = placement.sequence().take(DEAD).collect();
    let (mut alive, mut holes, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    let mut address = |id: &ServerId| {
        let at = dead.iter().position(|server| server == id);
        match at {
            Some(at) if at % 2 == 0 => {
                let hole = BlackHole::new();
                let address = hole.address;
                holes.push(hole);
                address
            }
            Some(_) => {
                let (socket, address) = refusing();
                refusals.push(socket);
                address
            }
            None => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                alive.push(listener);
                address
            }
        }
    };
    let addresses: Vec<Address> = ids.iter().map(|id| Address::Tcp(address(id))).collect();
    let connect = |_: &Address, attempt: Attempt| -> Result<Arc<dyn Transport>, String> {
        assert!(attempt.connected.is_some(), "nobody is waited for");
        Ok(Arc::new(FakeTransport::new(Bytes::mib(64))))
    };
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let saying = Arc::clone(&said);
    let tell = move |text: &str| saying.lock().unwrap().push(text.to_string());
    let roster = Roster::new(&addresses, Box::new(connect), Box::new(tell));
    let roster = Arc::new(roster);
    let clerk = Arc::new(Clerk::new(Arc::clone(&roster), Layout::Mirror(3), 0, 7));
    let running = Arc::clone(&clerk);
    let start = Instant::now();
    let thread = std::thread::spawn(move || running.run());
    let mut volume = Volume::new(roster, Arc::clone(&clerk));
    volume.extent().unwrap();
    let took = start.elapsed();
    assert!(took <= READY, "{took:?}; {:?}", said.lock().unwrap());
    let holders = volume.holders();
    assert_eq!(holders.len(), 3);
    assert!(holders.iter().all(|server| !dead.contains(server)));
    // Nor do they hold up what comes later: all are tried again and again, at once.
    let told = |what: &str| {
        let said = said.lock().unwrap();
        said.iter().filter(|line| line.contains(what)).count()
    };
    let noticed = Instant::now() + Duration::from_secs(20);
    while told("no answer within") < DEAD / 2 {
        assert!(Instant::now() < noticed, "{:?}", said.lock().unwrap());
        let start = Instant::now();
        let extent = volume.extent().unwrap();
        assert!(start.elapsed() <= READY, "{:?}", start.elapsed());
        volume.release(extent.id);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(told("nobody listens there"), DEAD / 2);
    clerk.stop();
    thread.join().unwrap();
}

/// Most of those that would be asked first take connections and then say nothing, as stopped processes do.
#[test]
fn many_that_say_nothing_are_not_waited_for_one_by_one() {
    const SILENT: usize = 30;
    let ids: Vec<ServerId> = (0..40).map(ServerId).collect();
    let placement = Placement::new(0, 7, &ids);
    let silent: Vec<ServerId> = placement.sequence().take(SILENT).collect();
    let listeners: Vec<TcpListener> = ids
        .iter()
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let address = |id: &ServerId| Address::Tcp(listeners[id.0 as usize].local_addr().unwrap());
    let addresses: Vec<Address> = ids.iter().map(address).collect();
    let silent: Vec<Address> = silent.iter().map(address).collect();
    let connect = move |address: &Address, attempt: Attempt| {
        if silent.contains(address) {
            std::thread::sleep(attempt.patience);
            return Err("it says nothing".to_string());
        }
        Ok(Arc::new(FakeTransport::new(Bytes::mib(64))) as Arc<dyn Transport>)
    };
    let roster = Roster::new(&addresses, Box::new(connect), Box::new(|_: &str| {}));
    let roster = Arc::new(roster);
    // Nobody's thread finds out beside this one.
    let clerk = Arc::new(Clerk::new(Arc::clone(&roster), Layout::Mirror(2), 0, 7));
    let mut volume = Volume::new(roster, clerk);
    let start = Instant::now();
    volume.extent().unwrap();
    let took = start.elapsed();
    // One by one it would be a quarter of a minute.
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(volume.holders().len(), 2);
}
