//! Pools of a few servers, each of which can be hurt.

use crate::common::{Place, Served};
use crate::harness::{LOCAL, Run, SIZE, checker, start};
use muninn_sys::signal::PidFd;
use rustix::process::Signal;

/// Servers with short leases.
pub struct Pool {
    pub servers: Vec<Served>,
}

pub fn pool(place: &Place, servers: usize, memory: &str) -> Pool {
    pool_with(place, servers, memory, &[])
}

pub fn pool_with(place: &Place, servers: usize, memory: &str, more: &[&str]) -> Pool {
    let serve = |at: usize| {
        let socket = place.path(&format!("m{at}.sock"));
        let socket = socket.to_str().unwrap();
        let name = format!("server{at}");
        let usual = [
            "serve",
            "--socket",
            socket,
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--memory",
            memory,
            "--lease",
            "3s",
            "--insecure",
            "--name",
            &name,
        ];
        Served::start(place.command(&[&usual[..], more].concat()))
    };
    Pool {
        servers: (0..servers).map(serve).collect(),
    }
}

impl Pool {
    pub fn addresses(&self) -> String {
        let all: Vec<String> = self.servers.iter().map(Served::tcp).collect();
        all.join(",")
    }

    pub fn sockets(&self) -> String {
        let all: Vec<String> = self.servers.iter().map(Served::unix).collect();
        all.join(",")
    }

    pub fn signal(&self, server: usize, signal: Signal) {
        let pid = self.servers[server].listening["pid"].as_u64().unwrap();
        let process = PidFd::open(pid as i32).unwrap();
        process.send(signal).unwrap();
    }
}

impl Pool {
    /// To one that may be gone.
    pub fn signal_quietly(&self, server: usize, signal: Signal) {
        let pid = self.servers[server].listening["pid"].as_u64().unwrap();
        let _ = PidFd::open(pid as i32).and_then(|process| process.send(signal));
    }
}

/// Starts a program that works on far memory for a while and checks all of it.
pub fn working(place: &Place, pool: &str, layout: &str, seconds: u32) -> Run {
    working_with(place, pool, layout, seconds, &[])
}

pub fn working_with(place: &Place, pool: &str, layout: &str, seconds: u32, more: &[&str]) -> Run {
    let seconds = seconds.to_string();
    let options = ["--local", LOCAL, "--pool", pool, "--layout", layout];
    let options = [&options[..], more].concat();
    let words = [checker(), "pressure", "--seconds", &seconds, "--size", SIZE];
    start(place, &options, &words)
}
