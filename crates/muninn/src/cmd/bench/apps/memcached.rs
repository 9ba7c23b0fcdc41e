//! `memcached` with more than fits, asked by `memcslap`, the load generator of libmemcached.
//!
//! It sets keys with values of its own, then each of its threads asks for all of them. Its values are not
//! to be foreseen, so what is compared is that none was missed.

use super::client::{Server, Step, finish, step};
use super::program::{Measured, Program, works};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_types::Bytes;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// What an item of the load generator's takes in the server.
const ITEM: u64 = 2700;
const THREADS: &str = "4";

#[derive(Debug, Default)]
pub struct Memcached {
    items: u64,
    room: Bytes,
}

impl Program for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn prepare(&mut self, _: &Arena, size: Bytes) -> Result<(), String> {
        for program in ["memcached", "memcslap", "memcstat"] {
            works(program, &["--version"])
                .map_err(|error| format!("{error} (Debian: memcached, libmemcached-tools)"))?;
        }
        self.items = size.0 / ITEM;
        self.room = Bytes(size.0 * 2);
        Ok(())
    }

    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure> {
        let socket = arena.dir().join("memcached.sock");
        let _ = std::fs::remove_file(&socket);
        let (path, room) = (socket.to_string_lossy(), (self.room.0 >> 20).to_string());
        let mut words = ["memcached", "-t", "2", "-s", &path, "-m", &room].to_vec();
        if rustix::process::geteuid().is_root() {
            words.extend(["-u", "root"]);
        }
        let job = Job {
            patience,
            ..Job::new(words)
        };
        let running = arena.start(backend, limit, &job)?;
        let server = Server {
            arena,
            running: &running,
            until: Instant::now() + patience,
        };
        let results = self.ask(&server, &socket);
        finish("memcached", running, results)
    }
}

impl Memcached {
    fn ask(&self, server: &Server, socket: &Path) -> Step<Vec<Measured>> {
        step!(server.wait_until_up(|| UnixStream::connect(socket).is_ok()));
        let servers = format!("--servers={}", socket.display());
        let mut slap = Command::new("memcslap");
        slap.arg(&servers).arg(format!("--concurrency={THREADS}"));
        slap.arg("--test=get")
            .arg(format!("--execute-number={}", self.items));
        let said = step!(server.ask(&mut slap, None));
        let Some((set, get)) = rates(&said) else {
            return Ok(Err(format!("memcslap said: {}", said.trim())));
        };
        let stats = step!(server.ask(Command::new("memcstat").arg(&servers), None));
        let result = |app: &str, rate: f64| Measured {
            ops_per_s: Some(rate),
            checksum: Some(checked(&stats)),
            ..Measured::new(app)
        };
        Ok(Ok(vec![
            result("memcached-set", set),
            result("memcached-get", get),
        ]))
    }
}

/// Of lines such as `Time to set            1000 keys:                     0.037 seconds.` and
/// `Time to get            2000 keys by    2 threads:     0.033 seconds.`
fn rates(said: &str) -> Option<(f64, f64)> {
    let rate = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(what))?;
        let (keys, time) = line.split_once(':')?;
        let keys: f64 = keys.split_whitespace().next()?.parse().ok()?;
        let seconds: f64 = time.split_whitespace().next()?.parse().ok()?;
        (seconds > 0.0).then(|| keys / seconds)
    };
    Some((rate("Time to set")?, rate("Time to get")?))
}

/// That all were found, by the server's own count.
fn checked(stats: &str) -> String {
    let wanted = ["get_hits", "get_misses", "evictions"];
    let of = |name: &str| {
        let line = stats
            .lines()
            .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
        format!("{name} {}", line.unwrap_or("unknown").trim())
    };
    wanted.map(of).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_generator_is_understood() {
        let said = "Time to generate       1000 test keys:                0.245 seconds.\n\
                    Time to set            1000 keys:                     0.050 seconds.\n\
                    Time to start             2 threads:                  0.000 seconds.\n\
                    ----\n\
                    Time to get            2000 keys by    2 threads:     0.500 seconds.\n";
        assert_eq!(rates(said), Some((20_000.0, 4_000.0)));
        assert_eq!(rates("Time to set"), None);
        let stats = "Server: s (0)\n\tget_hits: 2000\n\tget_misses: 0\n\tslab_evictions: 7\n\tevictions: 1\n";
        assert_eq!(checked(stats), "get_hits 2000, get_misses 0, evictions 1");
    }
}
