//! `muninn nic`, real processes: calls go there, it is killed, and a function that does not come back
//! ends it.

use crate::common::{PATIENCE, Place, Running, Served, place};
use muninn_types::Bytes;
use muninn_wic::apps::{list, log};
use muninn_wic::{Place as Where, Service, ServiceOptions};
use rustix::process::Signal;
use serde_json::Value;

fn nic(place: &Place, server: &Served) -> Running {
    assert!(
        server.listening["listen"][0]
            .as_str()
            .unwrap()
            .starts_with("unix:")
    );
    let at = server.listening["listen"][0].as_str().unwrap();
    let args = ["nic", "--server", at, "--listen", "127.0.0.1:0", "--json"];
    Running::start(place.command(&args))
}

fn options(server: &Served, nic_at: &str, at: Where) -> ServiceOptions {
    let mut options = ServiceOptions::new(&server.tcp(), "log", Bytes::mib(1));
    options.session.name = "log-client".to_string();
    options.session.deadline = PATIENCE;
    options.tuning.deadline = PATIENCE;
    options.place(at).nic(nic_at)
}

#[test]
fn calls_go_to_a_nic_and_survive_its_death() {
    let place = place();
    let server = place.serve(&["--memory", "64MiB", "--lease", "60s"]);
    let first = nic(&place, &server);
    let listening = first.json();
    assert_eq!(listening["functions"], 5);
    let at = listening["listen"][0].as_str().unwrap();
    let service = Service::open(options(&server, at, Where::Nic).uses(log::append)).unwrap();
    for value in 0..10 {
        assert_eq!(service.run(log::append, (1, value)), Ok(value));
    }
    first.signal(Signal::KILL);
    assert_eq!(first.end().code, None);
    // What can be repeated is, at the server.
    assert_eq!(service.run(log::read_tail, ()), Ok(Some((9, 1, 9))));
    assert_eq!(service.run(log::append, (1, 10)), Ok(10));
}

#[test]
fn a_nic_ends_with_its_server_and_says_why() {
    let place = place();
    let server = place.serve(&["--memory", "64MiB"]);
    let beside = nic(&place, &server);
    beside.json();
    server.stop();
    let ended = beside.end();
    assert_eq!(ended.code, Some(3));
    assert!(
        ended
            .err
            .contains("is lost: the server was stopped; the nic ends"),
        "{}",
        ended.err
    );
}

#[test]
fn what_a_nic_cannot_start_with_is_said() {
    let place = place();
    let ended = place.run(&["nic", "--server", "127.0.0.1:1", "--listen", "127.0.0.1:0"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.err.contains("a nic maps the server's memory"),
        "{}",
        ended.err
    );
    let ended = place.run(&[
        "nic",
        "--server",
        "unix:none.sock",
        "--listen",
        "127.0.0.1:0",
    ]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let ended = place.run(&["nic", "--server", "unix:none.sock"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("Say --listen ADDR"), "{}", ended.err);
}

#[test]
fn status_shows_services_and_where_functions_run() {
    let place = place();
    let server = place.serve(&["--memory", "64MiB", "--lease", "60s", "--wic", "async"]);
    let mut options = ServiceOptions::new(&server.tcp(), "ring", Bytes::mib(1));
    options.session.name = "walker".to_string();
    let service = Service::open(options.place(Where::Auto)).unwrap();
    let ring = list::Ring::new(service.range().0, 100, 1);
    ring.build(&service).unwrap();
    // The note is sent about once a second.
    let ends = std::time::Instant::now() + PATIENCE;
    let status = loop {
        assert_eq!(
            service.run(list::traverse, (ring.address(3).0, 2)),
            Ok(ring.walk(3, 2))
        );
        let ended = place.run(&["status", "--pool", &server.tcp(), "--json"]);
        let status: Value = serde_json::from_str(&ended.out).unwrap();
        let found = &status["servers"][0];
        if found["sessions"][0]["note"].is_string() {
            break found.clone();
        }
        assert!(std::time::Instant::now() < ends, "no note: {found}");
    };
    assert_eq!(status["services"][0]["name"], "ring");
    assert_eq!(status["services"][0]["sessions"], 1);
    assert!(status["services"][0]["calls"].as_u64().unwrap() > 0);
    let note = status["sessions"][0]["note"].as_str().unwrap();
    assert!(
        note.starts_with("muninn-wic.traverse@1: server for"),
        "{note}"
    );
    let ended = place.run(&["status", "--pool", &server.tcp()]);
    assert!(
        ended.out.contains("walker says: muninn-wic.traverse@1"),
        "{}",
        ended.out
    );
}
