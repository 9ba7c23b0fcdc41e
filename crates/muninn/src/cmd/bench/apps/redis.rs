//! `redis-server` with a data set that does not fit, asked at random by `redis-benchmark`.
//!
//! Keys are loaded in order with values that no compressor makes smaller; then GETs over all keys,
//! the digest of the whole data set, and SETs over all keys. Known limit: the benchmark's own SET
//! writes one value to every key, so pages become compressible by the end, which helps zram.

use super::client::{Server, Step, finish, step};
use super::program::{Measured, Program, quoted, works};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_types::{Bytes, SplitMix64};
use std::io::{BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const VALUE: usize = 1024;
/// What a key with its value takes in the server.
const ENTRY: u64 = 1024 + 256 + 120;
const CLIENTS: &str = "16";

#[derive(Debug, Default)]
pub struct Redis {
    keys: u64,
    load: PathBuf,
}

fn write_load(path: &Path, keys: u64) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    let mut dice = SplitMix64::new(5);
    let mut value = [0u8; VALUE];
    for key in 0..keys {
        dice.fill(&mut value);
        // Named as redis-benchmark names the keys that it asks for.
        write!(
            out,
            "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${VALUE}\r\n"
        )?;
        out.write_all(&value)?;
        out.write_all(b"\r\n")?;
    }
    out.flush()
}

impl Program for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn prepare(&mut self, arena: &Arena, size: Bytes) -> Result<(), String> {
        for program in ["redis-server", "redis-benchmark", "redis-cli"] {
            works(program, &["--version"])
                .map_err(|error| format!("{error} (Debian: redis-server, redis-tools)"))?;
        }
        self.keys = size.0 / ENTRY;
        self.load = arena.dir().join("load.resp");
        write_load(&self.load, self.keys).map_err(|error| format!("no load file: {error}"))
    }

    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure> {
        let socket = arena.dir().join("redis.sock");
        let _ = std::fs::remove_file(&socket);
        let path = socket.to_string_lossy().into_owned();
        let dir = arena.dir().to_string_lossy().into_owned();
        let words = [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            &path,
            "--save",
            "",
            "--appendonly",
            "no",
            "--enable-debug-command",
            "yes",
            "--dir",
            &dir,
        ];
        let job = Job {
            patience,
            ..Job::new(words)
        };
        let running = arena.start(backend, limit, &job)?;
        let session = Session {
            server: Server {
                arena,
                running: &running,
                until: Instant::now() + patience,
            },
            socket: &socket,
        };
        let results = session.measure(self);
        finish("redis", running, results)
    }

    fn script(&self) -> Option<String> {
        let load = quoted(&[self.load.to_str()?]);
        let (keys, requests) = (self.keys, (self.keys / 2).clamp(1000, 200_000));
        Some(format!(
            r#"redis-server --port 0 --unixsocket "$PLACE/s" --save "" --appendonly no --enable-debug-command yes \
    --dir "$PLACE" > "$PLACE/log" &
until redis-cli -s "$PLACE/s" ping > "$PLACE/ping" 2>&1; do sleep 0.1; done
redis-cli -s "$PLACE/s" --pipe < {load} > "$PLACE/loaded"
redis-benchmark -s "$PLACE/s" -n {requests} -r {keys} -c 4 --csv -t get > "$PLACE/asked"
redis-cli -s "$PLACE/s" debug digest
redis-cli -s "$PLACE/s" shutdown nosave
wait"#
        ))
    }
}

struct Session<'a> {
    server: Server<'a>,
    socket: &'a Path,
}

impl Session<'_> {
    fn measure(&self, redis: &Redis) -> Step<Vec<Measured>> {
        step!(
            self.server
                .wait_until_up(|| UnixStream::connect(self.socket).is_ok())
        );
        let begun = Instant::now();
        let input = std::fs::File::open(&redis.load)?;
        let said = step!(self.ask("redis-cli", &["--pipe"], Some(input)));
        if !said.contains("errors: 0") {
            return Ok(Err(format!("loading said: {}", said.trim())));
        }
        let loaded = begun.elapsed().as_secs_f64();
        let keys = redis.keys.to_string();
        let requests = (redis.keys / 2).clamp(10_000, 200_000).to_string();
        let ask = ["-n", &requests, "-r", &keys, "-c", CLIENTS, "--csv", "-t"];
        let get = step!(self.ask("redis-benchmark", &[&ask[..], &["get"]].concat(), None));
        let digest = step!(self.ask("redis-cli", &["debug", "digest"], None));
        let value = VALUE.to_string();
        let set = [&ask[..], &["set", "-d", &value]].concat();
        let set = step!(self.ask("redis-benchmark", &set, None));
        let mut results = vec![Measured {
            seconds: Some(loaded),
            checksum: Some(digest.trim().to_string()),
            ..Measured::new("redis-load")
        }];
        for (app, said) in [("redis-get", get), ("redis-set", set)] {
            let Some((rate, p99)) = csv(&said) else {
                return Ok(Err(format!("redis-benchmark said: {}", said.trim())));
            };
            results.push(Measured {
                ops_per_s: Some(rate),
                p99_us: Some(p99),
                ..Measured::new(app)
            });
        }
        Ok(Ok(results))
    }

    fn ask(&self, program: &str, args: &[&str], input: Option<std::fs::File>) -> Step<String> {
        let mut command = Command::new(program);
        command.arg("-s").arg(self.socket).args(args);
        self.server.ask(&mut command, input)
    }
}

/// Rate and 99th percentile in microseconds, of a line such as
/// `"GET","90000.00","0.150","0.040","0.143","0.207","0.311","1.247"` (rps, then milliseconds: avg,
/// min, p50, p95, p99, max).
fn csv(said: &str) -> Option<(f64, f64)> {
    let line = said
        .lines()
        .rfind(|line| line.starts_with('"') && !line.contains("rps"))?;
    let cells: Vec<f64> = line
        .split(',')
        .skip(1)
        .map_while(|cell| cell.trim_matches('"').parse().ok())
        .collect();
    Some((*cells.first()?, cells.get(5)? * 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_benchmark_is_understood() {
        let said = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET\",\"90000.00\",\"0.150\",\"0.040\",\"0.143\",\"0.207\",\"0.311\",\"1.247\"\n";
        assert_eq!(csv(said), Some((90000.0, 311.0)));
        assert_eq!(csv("ERROR"), None);
    }

    #[test]
    fn the_load_is_what_redis_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("load");
        write_load(&path, 2).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let begin = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n";
        assert!(bytes.starts_with(begin));
        let head = "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n$1024\r\n".len();
        assert_eq!(bytes.len(), 2 * (head + VALUE + 2));
    }
}
