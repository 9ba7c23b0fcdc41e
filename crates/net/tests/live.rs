//! A real client and a real server, over both transports.

use muninn_net::faulty::Link;
use muninn_net::{Answer, Buffer, Key, NetError, Observer, Operation, Pool, PoolOptions, Verb};
use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, LaneKind, ServerId, SplitMix64};
use muninn_wire::{ErrorCode, Seg};
use std::path::Path;
use std::time::{Duration, Instant};

fn config(memory: Bytes) -> ServerConfig {
    ServerConfig {
        memory,
        lease: Duration::from_secs(2),
        ..ServerConfig::default()
    }
}

fn start(dir: &Path, mut config: ServerConfig) -> (Server, String, String) {
    let socket = dir.join("muninn.sock");
    config.listen = vec![
        Address::unix(&socket).unwrap(),
        "127.0.0.1:0".parse::<Address>().unwrap(),
    ];
    let server = Server::start(config).unwrap();
    let tcp = server.addresses()[1].to_string();
    (server, format!("unix:{}", socket.display()), tcp)
}

fn options() -> PoolOptions {
    PoolOptions {
        deadline: Duration::from_secs(5),
        ..PoolOptions::default()
    }
}

/// Waits for something that another thread brings about, at most five seconds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let ends = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(
            Instant::now() < ends,
            "{what} did not come about within 5 s"
        );
        std::thread::yield_now();
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SplitMix64::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn both_transports_read_back_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    for threads in [1, 2] {
        let (server, shm, tcp) = start(
            dir.path(),
            ServerConfig {
                threads,
                ..config(Bytes::mib(64))
            },
        );
        for address in [&shm, &tcp] {
            let pool = Pool::connect(address, options()).unwrap();
            let grant = pool.grant(Bytes::mib(2)).unwrap();
            assert_eq!(grant.bytes, Bytes::mib(2));
            let mut fresh = vec![1; 2 << 20];
            pool.read(&grant, 0, &mut fresh).unwrap();
            assert!(
                fresh.iter().all(|b| *b == 0),
                "a fresh grant does not read as zeros"
            );
            let data = pattern(7, 2 << 20);
            pool.write(&grant, 0, &data).unwrap();
            let mut back = vec![0; 2 << 20];
            pool.read(&grant, 0, &mut back).unwrap();
            assert!(back == data, "{address}: other bytes came back");

            assert_eq!(pool.compare_swap(&grant, 0, 0, 1).unwrap(), {
                u64::from_le_bytes(data[..8].try_into().unwrap())
            });
            pool.write(&grant, 64, &5u64.to_le_bytes()).unwrap();
            assert_eq!(pool.fetch_add(&grant, 64, 3).unwrap(), 5);
            assert_eq!(pool.compare_swap(&grant, 64, 8, 80).unwrap(), 8);
            assert_eq!(pool.fetch_add(&grant, 64, 0).unwrap(), 80);

            let error = pool.read(&grant, (2 << 20) - 1, &mut [0; 2]).unwrap_err();
            assert_eq!(
                error.to_string(),
                "2B at offset 2097151 go past the end of a grant of 2MiB"
            );
            pool.release(&[grant]).unwrap();
            let gone = pool.read(&grant, 0, &mut [0; 8]).unwrap_err();
            assert!(gone.is_refusal(ErrorCode::NoGrant), "{gone}");
        }
        until("the memory to come back", || {
            let pool = server.pool();
            pool.granted == Bytes::ZERO && pool.wiping == Bytes::ZERO
        });
        assert!(server.is_healthy());
    }
}

#[test]
fn freed_memory_never_shows_its_old_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, shm, tcp) = start(dir.path(), config(Bytes::mib(8)));
    let mut page = vec![0; 4096];
    for round in 0..30 {
        let address = if round % 2 == 0 { &shm } else { &tcp };
        let pool = Pool::connect(address, options()).unwrap();
        // All of it, so that every frame changes hands each round.
        let mut grants = Vec::new();
        for _ in 0..4 {
            grants.push(pool.grant(Bytes::mib(2)).unwrap());
        }
        for grant in &grants {
            for at in (0..grant.bytes.0).step_by(4096) {
                pool.read(grant, at, &mut page).unwrap();
                assert!(
                    page.iter().all(|b| *b == 0),
                    "round {round}: old bytes at {at}"
                );
            }
            pool.write(grant, 0, &vec![0xA5; grant.bytes.0 as usize])
                .unwrap();
        }
        if round % 3 == 0 {
            pool.release(&grants).unwrap();
        }
    }
}

#[test]
fn a_cut_connection_resumes_inside_the_lease_with_nothing_lost() {
    let dir = tempfile::tempdir().unwrap();
    for threads in [1, 2] {
        let (_server, _, tcp) = start(
            dir.path(),
            ServerConfig {
                threads,
                ..config(Bytes::mib(8))
            },
        );
        let link = Link::to(tcp.trim_start_matches("tcp:").parse().unwrap()).unwrap();
        let pool = Pool::connect(&link.address().to_string(), options()).unwrap();
        let grant = pool.grant(Bytes::mib(1)).unwrap();
        let data = pattern(1, 1 << 20);
        pool.write(&grant, 0, &data).unwrap();
        pool.write(&grant, 0, &[0; 8]).unwrap();
        for round in 0..20u64 {
            link.cut();
            assert_eq!(
                pool.fetch_add(&grant, 0, 1).unwrap(),
                round,
                "an addition was lost or done twice"
            );
            let mut back = vec![0; 1 << 20];
            pool.read(&grant, 0, &mut back).unwrap();
            assert!(
                back[8..] == data[8..],
                "round {round}: other bytes came back"
            );
        }
        let transport = pool.transport(ServerId(0)).unwrap();
        assert!(
            transport.resumes() > 10,
            "only {} resumes",
            transport.resumes()
        );
        assert_eq!(transport.lost(), None);
    }
}

#[test]
fn cuts_in_the_middle_of_transfers_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _, tcp) = start(dir.path(), config(Bytes::mib(64)));
    let link = Link::to(tcp.trim_start_matches("tcp:").parse().unwrap()).unwrap();
    let pool = Pool::connect(&link.address().to_string(), options()).unwrap();
    let grant = pool.grant(Bytes::mib(4)).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                link.cut();
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        for round in 0..40 {
            let data = pattern(round, 4 << 20);
            pool.write(&grant, 0, &data).unwrap();
            let mut back = vec![0; 4 << 20];
            pool.read(&grant, 0, &mut back).unwrap();
            assert!(back == data, "round {round}: other bytes came back");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(pool.transport(ServerId(0)).unwrap().resumes() > 5);
}

#[test]
fn a_session_cut_off_for_longer_than_its_lease_is_lost_loudly() {
    let dir = tempfile::tempdir().unwrap();
    let lease = Duration::from_millis(400);
    let (server, _, tcp) = start(
        dir.path(),
        ServerConfig {
            lease,
            ..config(Bytes::mib(8))
        },
    );
    let link = Link::to(tcp.trim_start_matches("tcp:").parse().unwrap()).unwrap();
    let pool = Pool::connect(&link.address().to_string(), options()).unwrap();
    let grant = pool.grant(Bytes::mib(1)).unwrap();
    pool.write(&grant, 0, b"soon gone").unwrap();
    let cut = Instant::now();
    link.close();
    // Not before the lease...
    until("the lease to run out", || {
        let freed = server.pool().granted == Bytes::ZERO;
        assert!(
            !freed || cut.elapsed() > lease / 2,
            "freed after {:?}",
            cut.elapsed()
        );
        freed
    });
    link.open();
    // ...and after it never zeros or old bytes, but an error that names the server.
    let error = pool.read(&grant, 0, &mut [0; 9]).unwrap_err();
    assert!(matches!(error, NetError::Lost(..)), "{error}");
    assert!(error.to_string().starts_with(&format!(
        "the session with the server at {} is lost: ",
        pool.transport(ServerId(0)).unwrap().address()
    )));
}

#[test]
fn a_server_that_stops_is_an_error_not_zeros() {
    let dir = tempfile::tempdir().unwrap();
    for over_tcp in [false, true] {
        let (server, shm, tcp) = start(dir.path(), config(Bytes::mib(8)));
        let pool = Pool::connect(if over_tcp { &tcp } else { &shm }, options()).unwrap();
        let grant = pool.grant(Bytes::mib(1)).unwrap();
        pool.write(&grant, 0, b"kept").unwrap();
        server.stop();
        until("the client to notice", || {
            let mut bytes = [0; 4];
            match pool.read(&grant, 0, &mut bytes) {
                Ok(()) => {
                    assert_eq!(&bytes, b"kept", "over_tcp: {over_tcp}");
                    false
                }
                Err(error) => {
                    assert!(matches!(error, NetError::Lost(..)), "{error}");
                    true
                }
            }
        });
    }
}

#[test]
fn grants_are_shared_read_only_and_outlive_their_owner() {
    let dir = tempfile::tempdir().unwrap();
    for over_tcp in [false, true] {
        let (server, shm, tcp) = start(dir.path(), config(Bytes::mib(64)));
        let address = if over_tcp { &tcp } else { &shm };
        let parent = Pool::connect(address, options()).unwrap();
        let one = parent.grant(Bytes::mib(1)).unwrap();
        let two = parent.grant(Bytes::kib(4)).unwrap();
        let data = pattern(3, 1 << 20);
        parent.write(&one, 0, &data).unwrap();
        parent.write(&two, 0, b"second").unwrap();
        if !over_tcp {
            let error = parent.share(&[one]).unwrap_err();
            assert!(error.is_refusal(ErrorCode::ShareWhole), "{error}");
        }
        let share = parent.share(&[one, two]).unwrap();
        assert!(
            parent
                .write(&one, 0, b"late")
                .unwrap_err()
                .is_refusal(ErrorCode::Frozen)
        );
        assert!(
            parent
                .fetch_add(&one, 0, 1)
                .unwrap_err()
                .is_refusal(ErrorCode::Frozen)
        );

        let child = Pool::connect(address, options()).unwrap();
        assert_eq!(child.adopt(&share).unwrap(), [one, two]);
        let again = child.adopt(&share).unwrap_err();
        assert!(again.is_refusal(ErrorCode::NoTicket), "{again}");
        drop(parent);
        let mut back = vec![0; 1 << 20];
        child.read(&one, 0, &mut back).unwrap();
        assert!(back == data);
        assert!(
            child
                .write(&two, 0, b"no")
                .unwrap_err()
                .is_refusal(ErrorCode::Frozen)
        );
        drop(child);
        until("all memory to come back", || {
            server.pool().granted == Bytes::ZERO && server.pool().wiping == Bytes::ZERO
        });
    }
}

#[test]
fn quotas_full_pools_and_drains_are_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = config(Bytes::mib(8));
    settings.quotas.insert("greedy".to_string(), Bytes::mib(1));
    settings.segment = Some(Bytes::mib(4));
    let (server, shm, tcp) = start(dir.path(), settings);
    let greedy = PoolOptions {
        name: "greedy".to_string(),
        ..options()
    };
    let pool = Pool::connect(&tcp, greedy).unwrap();
    pool.grant(Bytes::mib(1)).unwrap();
    let at = pool.transport(ServerId(0)).unwrap().address().to_string();
    assert_eq!(
        pool.grant(Bytes::kib(4)).unwrap_err().to_string(),
        format!(
            "the server at {at} refused: the quota is used up: this client holds 1MiB of 1MiB; \
             release grants or raise its --quota at the server"
        )
    );
    let other = Pool::connect(&tcp, options()).unwrap();
    assert_eq!(
        other.grant(Bytes::mib(8)).unwrap_err().to_string(),
        format!(
            "the server at {at} refused: a grant is 1 page to 4MiB, in powers of two; 8MiB was \
             asked for"
        )
    );
    let all = [
        other.grant(Bytes::mib(4)).unwrap(),
        other.grant(Bytes::mib(2)).unwrap(),
    ];
    assert_eq!(
        other.grant(Bytes::mib(2)).unwrap_err().to_string(),
        format!(
            "the server at {at} refused: the pool is full: 2MiB were asked for and the largest \
             free piece is 1MiB; free memory, add a server, or start this one with more --memory"
        )
    );
    assert!(Pool::is_full(&other.grant(Bytes::mib(2)).unwrap_err()));
    // Over tcp without a key nobody may drain; through the socket the server's user may.
    let session = PoolOptions {
        deadline: Duration::from_secs(5),
        ..options()
    };
    let mut stranger = Observer::connect(&tcp.parse().unwrap(), &session).unwrap();
    assert!(
        stranger
            .drain(Some(Duration::from_secs(9)))
            .unwrap_err()
            .is_refusal(ErrorCode::NotPermitted)
    );
    let mut operator = Observer::connect(&shm.parse().unwrap(), &session).unwrap();
    let report = operator.drain(Some(Duration::from_secs(9))).unwrap();
    assert!(
        report.draining && report.holders == 2 && report.held_bytes == 7 << 20,
        "{report:?}"
    );
    assert!(
        other
            .grant(Bytes::kib(4))
            .unwrap_err()
            .is_refusal(ErrorCode::Draining)
    );
    let told = other.transport(ServerId(0)).unwrap();
    until("the session to be told", || told.drain_left().is_some());
    other.release(&all).unwrap();
    let report = operator.progress().unwrap();
    assert!(
        report.holders == 1 && report.held_bytes == 1 << 20,
        "{report:?}"
    );
    assert!(!operator.drain(None).unwrap().draining);
    other.grant(Bytes::kib(4)).unwrap();
    drop(server);
}

#[test]
fn keys_are_checked_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let key = |text: &str| Key::from_file_contents(text.as_bytes()).unwrap();
    let right = key("the right key, long enough");
    let (_server, shm, tcp) = start(
        dir.path(),
        ServerConfig {
            key: right.clone(),
            ..config(Bytes::mib(8))
        },
    );
    for address in [&shm, &tcp] {
        let with = |key| Pool::connect(address, PoolOptions { key, ..options() });
        with(right.clone()).unwrap().grant(Bytes::kib(4)).unwrap();
        let at = address.parse::<Address>().unwrap();
        assert_eq!(
            with(Key::none()).unwrap_err().to_string(),
            format!(
                "the server at {at} refused: the server requires a key: name the key file it was \
                 started with (--key-file)"
            )
        );
        assert_eq!(
            with(key("some other key, long too"))
                .unwrap_err()
                .to_string(),
            format!(
                "the server at {at} refused: the server does not know this client's key: use the \
                 key file it was started with"
            )
        );
    }
}

#[test]
fn a_stopped_link_is_a_timeout_that_names_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _, tcp) = start(dir.path(), config(Bytes::mib(8)));
    let link = Link::to(tcp.trim_start_matches("tcp:").parse().unwrap()).unwrap();
    let brief = PoolOptions {
        deadline: Duration::from_millis(300),
        ..options()
    };
    let pool = Pool::connect(&link.address().to_string(), brief).unwrap();
    let grant = pool.grant(Bytes::mib(1)).unwrap();
    pool.write(&grant, 0, b"here").unwrap();
    link.stop();
    let error = pool.read(&grant, 0, &mut [0; 4]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the server at {} did not answer within 300ms",
            link.address()
        )
    );
    link.go_on();
    let mut back = [0; 4];
    until("the link to be usable", || {
        pool.read(&grant, 0, &mut back).is_ok()
    });
    assert_eq!(&back, b"here");
}

#[test]
fn a_timeout_gives_up_one_operation_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _, tcp) = start(dir.path(), config(Bytes::mib(8)));
    let link = Link::to(tcp.trim_start_matches("tcp:").parse().unwrap()).unwrap();
    let brief = PoolOptions {
        deadline: Duration::from_millis(200),
        ..options()
    };
    let pool = Pool::connect(&link.address().to_string(), brief).unwrap();
    let grant = pool.grant(Bytes::kib(64)).unwrap();
    let mut lane = pool
        .transport(ServerId(0))
        .unwrap()
        .lane(LaneKind::Critical)
        .unwrap();
    let word = Seg::new(grant.id, 0, 8);
    lane.read_v(Class::Demand, &[word], &mut [0; 8]).unwrap();
    link.stop();
    for token in 0..5 {
        let verb = Verb::FetchAdd {
            grant: grant.id,
            offset: 0,
            add: 1,
        };
        let data = Buffer::empty();
        lane.post(Operation {
            verb,
            class: Class::Demand,
            data,
            token,
        })
        .unwrap();
    }
    let error = lane
        .read_v(Class::Demand, &[word], &mut [0; 8])
        .unwrap_err();
    assert!(matches!(error, NetError::Timeout(..)), "{error}");
    assert_eq!(lane.under_way(), 5);
    link.go_on();
    for token in 0..5 {
        let done = lane
            .poll(Duration::from_secs(5))
            .expect("the operation is still under way");
        assert_eq!(done.operation.token, token);
        assert_eq!(
            done.result.unwrap(),
            Answer::Old(token),
            "done twice or not at all"
        );
    }
}
