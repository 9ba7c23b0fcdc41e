//! Clients, nics and servers that go away in the middle.
//!
//! Clients that are to be killed are processes: this test program, started again with a task.

mod common;
#[path = "common/wics.rs"]
mod wics;

use common::{Over, World, session};
use muninn_net::Observer;
use muninn_net::faulty::Link;
use muninn_types::{Bytes, SplitMix64};
use muninn_wic::apps::{kv, log};
use muninn_wic::local::LocalHosts;
use muninn_wic::{CallError, Place, Service, ServiceOptions, Side};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wics::{add, find_orphan, get, hold};
use zerocopy::FromBytes;

/// Short, as a dead client over tcp is only noticed when its lease is over.
const LEASE: Duration = Duration::from_secs(5);
/// Shorter still, where a whole server goes.
const SHORT_LEASE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client process does until it is killed.
const TASK: &str = "MUNINN_TEST_TASK";
const SERVER: &str = "MUNINN_TEST_SERVER";

/// Not a test: the body of a client process.
#[test]
fn client_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let server = std::env::var(SERVER).unwrap();
    let mut options = ServiceOptions::new(&server, "shared", Bytes::mib(1));
    options.session = session();
    let service = Service::open(options.place(Place::Client)).unwrap();
    let mut out = std::io::stdout();
    let mut tell = |n: u64| {
        writeln!(out, "done {n}").unwrap();
        out.flush().unwrap();
    };
    match task.as_str() {
        "hold" => service.run(hold, 77).unwrap(),
        "append" => {
            for value in 0.. {
                let number = service.run(log::append, (9, value)).unwrap();
                tell(number);
            }
        }
        "update" => {
            for value in 1.. {
                service.run(kv::update, (5, value)).unwrap();
                tell(value);
            }
        }
        other => panic!("no task {other}"),
    }
}

/// A client process, killed when dropped.
struct Client(Child);

impl Client {
    fn start(server: &str, task: &str) -> Client {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program)
            .args(["--exact", "client_process", "--nocapture"])
            .env(TASK, task)
            .env(SERVER, server)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Client(child)
    }

    /// Kills it when it has told of `count` things done; all that it told.
    fn kill_after(mut self, count: usize, delay: Duration) -> Vec<u64> {
        let out = BufReader::new(self.0.stdout.take().unwrap());
        let told = out.lines().map_while(Result::ok);
        let mut told = told.filter_map(|line| line.rsplit_once("done ")?.1.parse::<u64>().ok());
        let mut all: Vec<u64> = told.by_ref().take(count).collect();
        // Somewhere in the middle of the next.
        let until = Instant::now() + delay;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        all.extend(told);
        all
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn locks_held(world: &World) -> u32 {
    let address = world.unix.parse().unwrap();
    let mut observer = Observer::connect(&address, &session()).unwrap();
    let status = observer.status().unwrap();
    status.server.services.iter().map(|s| s.locks_held).sum()
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let ends = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < ends, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn shared(world: &World, over: Over, place: Place) -> Service {
    world.open(over, "shared", place)
}

#[test]
fn the_lock_of_a_client_that_was_killed_is_freed() {
    let world = World::with_lease(LocalHosts::sync(), LEASE);
    for over in [Over::Shm, Over::Tcp] {
        let keeper = shared(&world, Over::Shm, Place::Server);
        let server = match over {
            Over::Shm => &world.unix,
            Over::Tcp => &world.tcp,
        };
        let client = Client::start(server, "hold");
        wait_for("the client takes the lock", || locks_held(&world) == 1);
        drop(client);
        // The call waits for as long as it takes.
        assert!(keeper.run(find_orphan, ()).unwrap(), "over {over:?}");
        assert!(!keeper.run(find_orphan, ()).unwrap());
    }
}

#[test]
fn an_append_of_a_client_that_was_killed_is_whole_or_not_there() {
    let world = World::with_lease(LocalHosts::sync(), LEASE);
    let keeper = shared(&world, Over::Shm, Place::Server);
    let mut rng = SplitMix64::new(3);
    for (round, over) in [Over::Shm, Over::Shm, Over::Shm, Over::Shm, Over::Tcp]
        .into_iter()
        .enumerate()
    {
        let server = match over {
            Over::Shm => &world.unix,
            Over::Tcp => &world.tcp,
        };
        let before = keeper.run(log::append, (0, 0)).unwrap();
        let client = Client::start(server, "append");
        let delay = Duration::from_micros(rng.below(300));
        let told = client.kill_after(20, delay);
        let ours = keeper.run(log::append, (1, round as u64)).unwrap();
        let (base, end) = keeper.range();
        let mut by_client = BTreeSet::new();
        for number in before..=ours {
            let mut bytes = [0; 64];
            keeper
                .read_bulk(log::address_of(base, end, number), &mut bytes)
                .unwrap();
            let entry = log::Entry::read_from_bytes(&bytes).unwrap();
            assert_eq!(entry.number, number);
            assert_eq!(entry.rest, [entry.value; 5], "entry {number} is torn");
            if entry.writer == 9 {
                by_client.insert(number);
            }
        }
        let told: BTreeSet<u64> = told.into_iter().collect();
        assert!(
            told.is_subset(&by_client),
            "an append that was told is gone"
        );
        // At most the one that was under way was done without being told.
        assert!(by_client.len() <= told.len() + 1);
    }
}

#[test]
fn an_update_of_a_client_that_was_killed_is_whole_or_not_there() {
    let world = World::with_lease(LocalHosts::sync(), LEASE);
    let mut rng = SplitMix64::new(4);
    for over in [Over::Shm, Over::Shm, Over::Shm, Over::Shm, Over::Tcp] {
        let keeper = shared(&world, Over::Shm, Place::Server);
        let server = match over {
            Over::Shm => &world.unix,
            Over::Tcp => &world.tcp,
        };
        let client = Client::start(server, "update");
        let delay = Duration::from_micros(rng.below(300));
        let told = client.kill_after(20, delay);
        let last = *told.last().unwrap();
        let found = keeper.run(kv::query, 5).unwrap().unwrap();
        assert!(
            found == last || found == last + 1,
            "{found} is there, {last} was told, over {over:?}"
        );
        assert_eq!(keeper.run(kv::update, (5, 1)).unwrap(), Some(found));
        assert_eq!(keeper.run(kv::query, 5).unwrap(), Some(1));
    }
}

#[test]
fn a_connection_that_is_cut_again_and_again_does_nothing_twice() {
    let world = World::new(LocalHosts::sync());
    let direct = world.tcp.trim_start_matches("tcp:").parse().unwrap();
    for place in [Place::Client, Place::Server] {
        let link = Link::to(direct).unwrap();
        let mut options = world.options(Over::Tcp, &format!("cut-{place:?}"), place);
        options.server = link.address().to_string();
        let service = Service::open(options).unwrap();
        let mut sum = 0;
        for round in 0..12 {
            std::thread::scope(|scope| {
                scope.spawn(|| link.cut());
                for n in 1..=8 {
                    assert_eq!(service.run(add, n).unwrap(), sum, "round {round}");
                    sum += n;
                }
            });
        }
        assert_eq!(service.run(get, ()).unwrap(), sum);
        assert!(service.transport().resumes() > 0, "no cut was noticed");
    }
}

#[test]
fn without_its_nic_a_call_that_may_be_repeated_goes_to_the_server() {
    let mut world = World::new(LocalHosts::sync()).with_nic();
    let service = shared(&world, Over::Tcp, Place::Nic);
    assert_eq!(service.run(add, 4).unwrap(), 0);
    world.nic.take().unwrap().stop();
    assert_eq!(service.run(get, ()).unwrap(), 4);
    // The nic is known to be gone: nothing has run there, so this one may go elsewhere too.
    assert_eq!(service.run(add, 1).unwrap(), 4);
    assert_eq!(service.run(get, ()).unwrap(), 5);
    let mut options = world.options(Over::Tcp, "shared", Place::Auto);
    options.nic = None;
    let auto = Service::open(options);
    assert_eq!(auto.unwrap().run(get, ()).unwrap(), 5);
}

#[test]
fn a_lost_server_is_named_at_every_place() {
    for (over, place) in [
        (Over::Tcp, Place::Client),
        (Over::Tcp, Place::Server),
        (Over::Tcp, Place::Nic),
        (Over::Tcp, Place::Auto),
        (Over::Shm, Place::Client),
    ] {
        let mut world = World::with_lease(LocalHosts::sync(), SHORT_LEASE).with_nic();
        let service = shared(&world, over, place);
        assert_eq!(service.run(add, 4).unwrap(), 0);
        world.server.take().unwrap().stop();
        // Who has the memory mapped may go on for a moment, as if the server had died after; but not
        // for longer than the lease.
        let mut error = None;
        wait_for("the loss is noticed", || {
            error = service.run(add, 1).err();
            error.is_some()
        });
        let error = error.unwrap();
        let CallError::Lost { side, .. } = &error else {
            panic!("{place:?} over {over:?}: {error}");
        };
        assert_eq!(*side, Side::Server, "{place:?} over {over:?}: {error}");
    }
}
