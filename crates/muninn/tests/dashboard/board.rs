//! A dashboard that runs.

use crate::common::{Place, Running, Served};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Board {
    pub served: Served,
}

impl Board {
    pub fn start(place: &Place, args: &[&str]) -> Board {
        let all = [&["dashboard", "--listen", "127.0.0.1:0", "--json"], args].concat();
        let served = Served::start(place.command(&all));
        assert_eq!(served.listening["event"], "listening");
        Board { served }
    }

    pub fn url(&self) -> &str {
        self.served.listening["url"].as_str().unwrap()
    }

    /// The token that was made.
    pub fn token(&self) -> &str {
        self.served.listening["token"].as_str().unwrap_or_default()
    }

    pub fn at(&self) -> SocketAddr {
        let url = self.url().strip_prefix("http://").unwrap();
        url.split('/').next().unwrap().parse().unwrap()
    }

    /// Sends these bytes, and all that comes back.
    pub fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.at()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        // It may have heard enough before all is said.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A request with these further lines, each with its end.
    pub fn ask(&self, first: &str, lines: &str, body: &str) -> String {
        let length = body.len();
        let at = self.at();
        self.send(
            format!(
                "{first} HTTP/1.1\r\nHost: {at}\r\n{lines}Content-Length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    }

    /// As the page does.
    pub fn authorized(&self, first: &str, lines: &str, body: &str) -> String {
        let lines = format!(
            "Authorization: Bearer {}\r\nContent-Type: application/json\r\n{lines}",
            self.token()
        );
        self.ask(first, &lines, body)
    }

    pub fn state(&self) -> Value {
        let answer = self.authorized("GET /api/state", "", "");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        serde_json::from_str(body).unwrap()
    }
}

/// A program that does nothing, under `muninn run`.
pub fn job(place: &Place, args: &[&str]) -> Running {
    let all = [&["run", "--local", "64MiB"], args, &["--", "sleep", "600"]].concat();
    Running::start(place.command(&all))
}
