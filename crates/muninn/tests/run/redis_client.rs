//! A client of `redis-server` that speaks just enough to fill it and to read everything back.

use crate::harness::PATIENCE;
use muninn_types::SplitMix64;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const VALUE: usize = 1000;
/// Requests under way at a time.
const BATCH: u64 = 200;

pub fn value(key: u64) -> Vec<u8> {
    let mut bytes = vec![0; VALUE];
    SplitMix64::new(key).fill(&mut bytes);
    bytes
}

/// A connection.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Waits until the server listens.
    pub fn connect(socket: &Path, mut alive: impl FnMut() -> bool) -> Client {
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

    pub fn send(&mut self, words: &[&[u8]]) {
        let mut message = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            message.extend(format!("${}\r\n", word.len()).bytes());
            message.extend_from_slice(word);
            message.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&message).unwrap();
    }

    pub fn answer(&mut self) -> Vec<u8> {
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

    pub fn ask(&mut self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.send(&words);
        String::from_utf8_lossy(&self.answer()).into_owned()
    }

    pub fn load(&mut self, keys: u64) {
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
    pub fn read_back(&mut self, keys: u64) {
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

    pub fn until_saved(&mut self) {
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

pub fn server_words<'a>(socket: &'a str, dir: &'a str) -> Vec<&'a str> {
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
