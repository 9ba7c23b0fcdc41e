//! Getting a server's memory back.

use crate::common::{Running, place};
use muninn_types::Bytes;
use serde_json::Value;

#[test]
fn a_drain_names_who_holds_on_and_can_be_taken_back() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB"]);
    let socket = format!("unix:{}", place.path("m.sock").display());
    let drain = |args: &[&str]| place.run(&[&["drain", "--pool", &socket], args].concat());
    let client = served.client("holder");
    let grant = client.grant(Bytes::mib(2)).unwrap();

    let ended = drain(&["--within", "100ms"]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    let pid = std::process::id();
    let who = format!(
        " 2.00MiB of {socket} are still held; not to be expected by any time from holder \
         (pid {pid}, 2.00MiB): end the program, or stop the server and let it lose the pages\n"
    );
    assert!(
        ended.err.starts_with("muninn: after ") && ended.err.ends_with(&who),
        "{}",
        ended.err
    );
    assert!(ended.out.contains("holder"), "{}", ended.out);
    let ended = drain(&["--within", "100ms", "--json"]);
    assert_eq!(ended.code, Some(5));
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["drained"], false);
    assert_eq!(report["held_bytes"], 2 << 20);
    assert_eq!(report["holders"][0]["name"], "holder");
    assert_eq!(report["holders"][0]["pid"], pid);

    let status = place.run(&["status", "--pool", &socket]);
    assert!(
        status.out.contains("\n  draining: "),
        "a drain is not shown: {}",
        status.out
    );
    let asked = drain(&["--no-wait", "--within", "1h"]);
    assert_eq!(
        (asked.code, asked.out),
        (
            Some(0),
            format!("{socket} asked its clients for 2.00MiB within 60min\n")
        )
    );
    assert!(client.grant(Bytes::kib(4)).is_err());

    // Past its time, but told to wait: until the last page is back.
    let args = ["drain", "--pool", &socket, "--within", "1ms", "--wait"];
    let waiting = Running::start(place.command(&args));
    client.release(&[grant]).unwrap();
    let ended = waiting.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.out,
        format!(
            "{socket} has all of its memory back; it grants nothing until 'muninn drain --cancel'\n"
        )
    );
    let ended = drain(&["--cancel"]);
    assert_eq!(
        (ended.code, ended.out),
        (Some(0), format!("{socket} grants memory again\n"))
    );
    client.grant(Bytes::kib(4)).unwrap();
}

#[test]
fn not_everyone_may_drain_and_only_one_server_at_a_time() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB"]);
    let ended = place.run(&["drain", "--pool", &served.tcp()]);
    assert_eq!(ended.code, Some(3));
    assert_eq!(
        ended.err,
        format!(
            "muninn: the server at {} refused: not permitted: operator commands need the server's \
             Unix socket and its user, or a key\n",
            served.tcp()
        )
    );
    let ended = place.run(&["drain", "--pool", "127.0.0.1:1,127.0.0.1:2"]);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (
            Some(2),
            "muninn: a drain is for one server, and the pool has 2: name the one with --pool\n"
        )
    );
    let ended = place.run(&["drain", "--pool", "./m.sock", "--within", "0s"]);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (
            Some(2),
            "muninn: --within 0 leaves clients no time: give them some, or end the drain with \
             --cancel\n"
        )
    );
}
