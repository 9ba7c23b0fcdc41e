//! A server that another process goes on in the place of.

use crate::common::{PATIENCE, Place, Served, options, place};
use muninn_net::{Observer, Pool, SessionOptions};
use muninn_sys::epoll::Interest;
use muninn_sys::socket::{Address, ByteStream, Stream, Transfer};
use muninn_types::Bytes;
use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

const MEMORY: [&str; 4] = ["--memory", "64MiB", "--threads", "2"];

fn page(seed: u8) -> Vec<u8> {
    (0..4096u32).map(|i| (i * 7) as u8 ^ seed).collect()
}

/// A connection on which the server waits for what its heir says.
fn asked(place: &Place) -> Stream {
    let address = Address::unix(place.path("m.sock")).unwrap();
    let observer = Observer::connect(&address, &SessionOptions::default()).unwrap();
    observer.take_over().unwrap()
}

/// The same, with an heir that has said that it listens and gets what there is. A server talks to one at a
/// time, and closes the connection of another that comes meanwhile.
fn listening(place: &Place) -> Stream {
    let ends = Instant::now() + PATIENCE;
    loop {
        let stream = asked(place);
        let said = stream.write(&[IoSlice::new(b"H")]);
        if said == Ok(Transfer::Bytes(1)) && hear(&stream) == Some(b'E') {
            return stream;
        }
        assert!(Instant::now() < ends, "never talked to");
    }
}

fn hear(stream: &Stream) -> Option<u8> {
    let mut word = [0];
    loop {
        match stream.read(&mut [IoSliceMut::new(&mut word)]) {
            Ok(Transfer::Bytes(_)) => return Some(word[0]),
            Ok(Transfer::WouldBlock) => {
                assert!(stream.wait(Interest::READ, Some(PATIENCE)).unwrap())
            }
            Ok(Transfer::Closed) | Err(_) => return None,
        }
    }
}

fn next_process(place: &Place, args: &[&str]) -> Served {
    place.serve(&[&MEMORY[..], &["--take-over"], args].concat())
}

#[test]
fn sessions_go_on_at_the_next_process_and_the_one_after_it() {
    let place = place();
    let mut served = place.serve(&MEMORY);
    let (tcp, unix) = (served.tcp(), served.unix());
    let far = served.client("far");
    let socket = format!("unix:{}", place.path("m.sock").display());
    let near = Pool::connect(&socket, options("near")).unwrap();
    let clients = [&far, &near];
    let grants = clients.map(|client| client.grant(Bytes::mib(2)).unwrap());
    for (seed, (client, grant)) in (0..).zip(clients.iter().zip(&grants)) {
        client.write(grant, 8192, &page(seed)).unwrap();
    }
    // Shared with a session that comes later, at another process.
    let child = far.grant(Bytes::kib(64)).unwrap();
    far.write(&child, 0, &page(9)).unwrap();
    let share = far.share(&[child]).unwrap();
    for round in 0..2 {
        let next = next_process(&place, &[]);
        assert_eq!(next.listening["took_over_bytes"], (4 << 20) + (64 << 10));
        assert_eq!((next.tcp(), next.unix()), (tcp.clone(), unix.clone()));
        let ended = std::mem::replace(&mut served, next).running.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let said = "{\"event\":\"handed-over\",\"held_bytes\":4259840}\n";
        assert_eq!((ended.out.as_str(), ended.err.as_str()), (said, ""));
        for (seed, (client, grant)) in (0..).zip(clients.iter().zip(&grants)) {
            let mut back = vec![0; 4096];
            client.read(grant, 8192, &mut back).unwrap();
            assert!(back == page(seed), "round {round}: other bytes for {seed}");
            // What is new there is not what anybody has.
            let more = client.grant(Bytes::mib(1)).unwrap();
            client.read(&more, 0, &mut back).unwrap();
            assert!(back.iter().all(|byte| *byte == 0), "not wiped");
            client.write(&more, 0, &page(77)).unwrap();
            client.read(grant, 8192, &mut back).unwrap();
            assert!(back == page(seed), "two grants in one place");
            client.release(&[more]).unwrap();
        }
    }
    let later = served.client("far");
    let adopted = later.adopt(&share).unwrap();
    let mut back = vec![0; 4096];
    later.read(&adopted[0], 0, &mut back).unwrap();
    assert!(back == page(9));
    drop((far, near, later));
    let ended = served.stop();
    assert_eq!(ended.out, "{\"event\":\"stopped\",\"held_bytes\":0}\n");
    assert!(!place.path("m.sock").exists(), "the socket was left behind");
}

#[test]
fn an_heir_that_dies_or_says_nothing_changes_nothing() {
    let place = place();
    let served = place.serve(&[&MEMORY[..], &["--lease", "1s"]].concat());
    let client = served.client("stays");
    let grant = client.grant(Bytes::mib(1)).unwrap();
    client.write(&grant, 0, &page(3)).unwrap();
    let check = || {
        let mut back = vec![0; 4096];
        client.read(&grant, 0, &mut back).unwrap();
        assert!(back == page(3));
        let more = client.grant(Bytes::mib(1)).unwrap();
        client.release(&[more]).unwrap();
    };
    // Before it has said a word, before it listens to what it gets, and having heard all of it.
    drop(asked(&place));
    check();
    drop(listening(&place));
    check();
    let slow = listening(&place);
    let said: Vec<u8> = std::iter::from_fn(|| hear(&slow)).collect();
    assert_eq!(said.last(), Some(&b'N'), "{said:?}");
    check();
    let wrong = place.run(&[
        "serve",
        "--socket",
        "m.sock",
        "--memory",
        "32MiB",
        "--take-over",
    ]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert_eq!(
        wrong.err,
        "muninn: cannot take the place of the server that runs: it serves 64MiB, and this process was \
         told 32MiB: give both the same --memory; it goes on\n"
    );
    check();
    assert_eq!(
        served.running.pid(),
        served.listening["pid"].as_u64().unwrap() as u32
    );
    drop(client);
    let ended = served.stop();
    assert_eq!(ended.out, "{\"event\":\"stopped\",\"held_bytes\":0}\n");
    let not = "muninn: not handed over, this server goes on: the other process ";
    let said = [
        "has ended",
        "has ended",
        "did not answer in time",
        "could not: cannot take the place of the server that runs: it serves 64MiB, and this process \
         was told 32MiB: give both the same --memory; it goes on",
    ];
    let said: String = said.map(|why| format!("{not}{why}\n")).concat();
    assert_eq!(ended.err, said);
}

#[test]
fn nobody_there_is_said_and_a_server_starts_as_usual() {
    let place = place();
    let served = next_process(&place, &[]);
    assert!(served.listening["took_over_bytes"].is_null());
    let socket = served.unix();
    let ended = served.stop();
    assert_eq!(
        ended.err,
        format!("muninn: no server runs at {socket}: nothing is taken over\n")
    );
    let far = [
        "serve",
        "--memory",
        "8MiB",
        "--listen",
        "127.0.0.1:0",
        "--take-over",
    ];
    let refused = place.run(&far);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.err.contains("name that with --socket"),
        "{refused:?}"
    );
}
