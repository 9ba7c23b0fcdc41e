//! `redis-server` at a quarter of its memory: everything reads back, and a dump that it writes by
//! forking is good for a plain server.

use crate::common::{Place, place};
use crate::harness::{PATIENCE, cannot_run, full, program, start};
use muninn_types::SplitMix64;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const VALUE: usize = 1000;
/// Requests under way at a time.
const BATCH: u64 = 200;

fn value(key: u64) -> Vec<u8> {
    let mut bytes = vec![0; VALUE];
    SplitMix64::new(key).fill(&mut bytes);
    bytes
}

/// A client that speaks just enough.
struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Waits until the server listens.
    fn connect(socket: &Path, mut alive: impl FnMut() -> bool) -> Client {
        let start = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return Client {
                    stream: BufReader::new(stream),
                };
            }
            assert!(alive(), "the server ended before it listened");
            assert!(start.elapsed() < PATIENCE, "the server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn send(&mut self, words: &[&[u8]]) {
        let mut message = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            message.extend(format!("${}\r\n", word.len()).bytes());
            message.extend_from_slice(word);
            message.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&message).unwrap();
    }

    fn answer(&mut self) -> Vec<u8> {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let line = line.trim_end();
        match line.split_at_checked(1) {
            Some(("$", "-1")) => b"(nil)".to_vec(),
            Some(("$", length)) => {
                let mut bytes = vec![0; length.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                bytes
            }
            Some((_, rest)) => rest.as_bytes().to_vec(),
            None => panic!("the server closed the connection"),
        }
    }

    fn ask(&mut self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.send(&words);
        String::from_utf8_lossy(&self.answer()).into_owned()
    }

    fn load(&mut self, keys: u64) {
        for first in (0..keys).step_by(BATCH as usize) {
            let last = (first + BATCH).min(keys);
            for key in first..last {
                self.send(&[b"SET", format!("key:{key}").as_bytes(), &value(key)]);
            }
            for _ in first..last {
                assert_eq!(self.answer(), b"OK");
            }
        }
    }

    /// Every key, in another order than they were written in.
    fn read_back(&mut self, keys: u64) {
        let stride = 7_919;
        let order: Vec<u64> = (0..keys).map(|n| n * stride % keys).collect();
        for batch in order.chunks(BATCH as usize) {
            for key in batch {
                self.send(&[b"GET", format!("key:{key}").as_bytes()]);
            }
            for key in batch {
                assert!(self.answer() == value(*key), "key {key} has another value");
            }
        }
    }

    fn until_saved(&mut self) {
        let start = Instant::now();
        loop {
            let info = self.ask(&["INFO", "persistence"]);
            if info.contains("rdb_bgsave_in_progress:0") {
                assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
                return;
            }
            assert!(start.elapsed() < PATIENCE, "the dump is never done: {info}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn server_words<'a>(socket: &'a str, dir: &'a str) -> Vec<&'a str> {
    vec![
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        socket,
        "--dir",
        dir,
        "--dbfilename",
        "dump.rdb",
        "--save",
        "",
        "--appendonly",
        "no",
        "--enable-debug-command",
        "yes",
    ]
}

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
