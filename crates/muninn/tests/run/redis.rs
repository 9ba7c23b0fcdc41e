//! `redis-server` at a quarter of its memory: everything reads back, and a dump that it writes by
//! forking is good for a plain server.

use crate::common::{Place, place};
use crate::harness::{cannot_run, full, program, start};
use crate::redis_client::{Client, server_words, value};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// A server without Muninn; ended when dropped.
struct Plain(Child);

impl Plain {
    fn start(place: &Place, words: &[&str]) -> Plain {
        let mut command = place.command_of(Path::new(words[0]), &words[1..]);
        Plain(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn everything_reads_back_and_the_dump_is_good() {
    if cannot_run() || program(&["redis-server"]).is_none() {
        return;
    }
    let place = place();
    // Prime to the stride of reading; about 1.3 KiB each in the server.
    let (keys, local) = if full() {
        (1_000_000, "330MiB")
    } else {
        (60_000, "24MiB")
    };
    let path = |name: &str| -> PathBuf { place.path(name) };
    let (socket, dir) = (path("r.sock"), path(""));
    let (socket_text, dir) = (socket.to_str().unwrap(), dir.to_str().unwrap());
    let run = start(&place, &["--local", local], &server_words(socket_text, dir));
    let mut client = Client::connect(&socket, || run.is_alive());
    client.load(keys);
    client.read_back(keys);
    let answer = client.ask(&["BGSAVE"]);
    assert!(answer.contains("Background saving started"), "{answer}");
    // What changes during the dump is not in it: the child sees what was.
    for key in (0..keys).step_by(17) {
        client.send(&[b"SET", format!("key:{key}").as_bytes(), b"changed"]);
        assert_eq!(client.answer(), b"OK");
    }
    client.until_saved();
    for key in (0..keys).step_by(17) {
        client.send(&[b"SET", format!("key:{key}").as_bytes(), &value(key)]);
        assert_eq!(client.answer(), b"OK");
    }
    client.read_back(keys);
    let digest = client.ask(&["DEBUG", "DIGEST"]);
    client.send(&[b"SHUTDOWN", b"NOSAVE"]);
    let ran = run.end();
    ran.assert_good_and_far();
    assert!(
        ran.counter("forks") >= 1 || ran.report["processes"].as_u64() >= Some(1),
        "{ran:#?}"
    );

    let again = path("plain.sock");
    let mut plain = Plain::start(&place, &server_words(again.to_str().unwrap(), dir));
    let mut client = Client::connect(&again, || matches!(plain.0.try_wait(), Ok(None)));
    while client.ask(&["DBSIZE"]).contains("LOADING") {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.ask(&["DBSIZE"]), keys.to_string());
    client.read_back(keys);
    assert_eq!(client.ask(&["DEBUG", "DIGEST"]), digest);
}
