//! A server from its start to its end.

use crate::common::{Running, Served, options, place};
use muninn_net::Pool;
use muninn_types::Bytes;
use rustix::process::Signal;

#[test]
fn one_process_serves_a_socket_and_a_port() {
    let place = place();
    let served = place.serve(&["--memory", "64MiB", "--name", "raven", "--threads", "2"]);
    let said = &served.listening;
    assert_eq!(said["event"], "listening");
    assert_eq!(said["name"], "raven");
    assert_eq!(said["memory_bytes"], 64 << 20);
    assert_eq!(said["lease_ms"], 10_000);
    assert_eq!(said["key"], false);
    let socket = format!("unix:{}", place.path("m.sock").display());
    let shm = Pool::connect(&socket, options("near")).unwrap();
    let tcp = served.client("far");
    for pool in [&shm, &tcp] {
        let grant = pool.grant(Bytes::mib(1)).unwrap();
        pool.write(&grant, 4096, b"kept by another process")
            .unwrap();
        let mut back = [0; 23];
        pool.read(&grant, 4096, &mut back).unwrap();
        assert_eq!(&back, b"kept by another process");
    }
    drop((shm, tcp));
    let ended = served.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.out, "{\"event\":\"stopped\",\"held_bytes\":0}\n");
    assert_eq!(ended.err, "");
    assert!(!place.path("m.sock").exists(), "the socket was left behind");
}

#[test]
fn a_person_reads_where_it_listens_and_that_the_socket_is_the_default() {
    let place = place();
    let args = [
        "serve", "--memory", "8MiB", "--name", "raven", "--lease", "5s",
    ];
    let running = Running::start(place.command(&args));
    let said: Vec<String> = (0..3).map(|_| running.line().unwrap()).collect();
    assert_eq!(
        said,
        [
            "serving 8MiB as 'raven', lease 5s, no key".to_string(),
            format!(
                "listening at unix:{} (shared memory; the default, as none was named)",
                place.path("muninn.sock").display()
            ),
            "stop with ctrl-c".to_string(),
        ]
    );
    // Clients look at the same place.
    let status = place.run(&["status"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.out, "stopped; no client held memory here\n");
}

#[test]
fn clients_get_time_to_move_away_before_it_stops() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB", "--stop-grace", "1h"]);
    let client = served.client("mover");
    let grant = client.grant(Bytes::mib(1)).unwrap();
    served.running.signal(Signal::TERM);
    let said = served.running.json();
    assert_eq!(said["event"], "draining");
    assert_eq!(said["held_bytes"], 1 << 20);
    client.release(&[grant]).unwrap();
    let ended = served.running.end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.out, "{\"event\":\"stopped\",\"held_bytes\":0}\n");
    assert_eq!(ended.err, "");
}

#[test]
fn a_second_signal_stops_at_once_and_names_who_loses_what() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB", "--stop-grace", "1h"]);
    let client = served.client("stayer");
    client.grant(Bytes::mib(1)).unwrap();
    served.running.signal(Signal::TERM);
    assert_eq!(served.running.json()["event"], "draining");
    served.running.signal(Signal::INT);
    let ended = served.running.end();
    assert_eq!(ended.code, Some(0));
    assert_eq!(
        ended.out,
        "{\"event\":\"stopped\",\"held_bytes\":1048576}\n"
    );
    let pid = std::process::id();
    assert_eq!(
        ended.err,
        format!("muninn: stayer (pid {pid}) still holds 1MiB\n")
    );
}

#[test]
fn grace_ends() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB", "--stop-grace", "100ms"]);
    let client = served.client("stayer");
    client.grant(Bytes::mib(1)).unwrap();
    let ended = served.stop();
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.out.ends_with("\"held_bytes\":1048576}\n"),
        "{ended:?}"
    );
}

#[test]
fn clients_hear_that_it_stopped_without_waiting_for_their_lease() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB", "--lease", "1h"]);
    let socket = format!("unix:{}", place.path("m.sock").display());
    let near = Pool::connect(&socket, options("near")).unwrap();
    let far = served.client("far");
    let tcp = served.tcp();
    assert_eq!(served.stop().code, Some(0));
    for (client, address) in [(near, socket), (far, tcp)] {
        assert_eq!(
            client.grant(Bytes::mib(1)).unwrap_err().to_string(),
            format!(
                "the session with the server at {address} is lost: the server was stopped; what it \
                 kept is gone"
            )
        );
    }
}

#[test]
fn open_files_are_raised_to_the_hard_limit() {
    let place = place();
    let mut command = place.command(&[]);
    let script = "ulimit -Sn 64 && exec \"$0\" serve --memory 8MiB --socket m.sock --json";
    let binary = command.get_program().to_os_string();
    command = {
        let mut shell = place.command_of("sh".as_ref(), &["-c", script]);
        shell.arg(binary);
        shell
    };
    let served = Served::start(command);
    let files = served.listening["open_files_max"].as_u64();
    assert!(files.is_none_or(|max| max > 64), "{files:?}");
    assert_eq!(served.stop().code, Some(0));
}

#[test]
fn a_killed_server_leaves_a_socket_that_the_next_one_takes_over() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB"]);
    served.running.signal(Signal::KILL);
    assert_eq!(served.running.end().code, None);
    assert!(place.path("m.sock").exists());
    let next = place.serve(&["--memory", "8MiB"]);
    assert_eq!(next.stop().code, Some(0));
}
