//! PostgreSQL: `pgbench`, and a sort and a join in memory that do not fit.
//!
//! A cluster of its own is made in a folder of its own and removed with it. What the server shares between
//! its processes stays near under Muninn, so that is kept small, and what a query needs for itself is
//! large (`work_mem`): the sort holds all rows, the join a hash table of one side. Nothing is written
//! safely (`fsync=off`): disks are not what is measured. Root cannot run PostgreSQL; then it runs as the
//! user `postgres`.

use super::client::{Server, Step, finish, step};
use super::program::{Measured, Program, works};
use crate::cmd::bench::arena::{Arena, Backend, Job};
use crate::failure::Failure;
use muninn_sys::signal::PidFd;
use muninn_types::Bytes;
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A row of the sort in memory, with what the server puts around it.
const SORT_ROW: u64 = 200;
/// A row of the join's hash table.
const JOIN_ROW: u64 = 110;
/// Of each of four clients.
const TRANSACTIONS: &str = "1500";
/// A row of these is 15 MB on the disk; they stay few, so that their pages are shared.
const SCALE: &str = "2";
const SHARED: &str = "24MB";

const SORT: &str = "select md5(string_agg(md5(v), '' order by n)) from \
    (select v, row_number() over (order by v desc) as n from lines) s where n % 1000 = 0";
const JOIN: &str = "select count(*), sum(a.x # b.y) from left_side a join right_side b using (k)";

#[derive(Debug, Default)]
pub struct Postgres {
    /// Where `initdb` and `postgres` are; they need not be in the PATH.
    programs: PathBuf,
    folder: Folder,
}

/// The cluster's folder, gone with it.
#[derive(Debug, Default)]
struct Folder(PathBuf);

/// What a killed server's processes may take to end.
const FAREWELL: Duration = Duration::from_secs(10);

impl Folder {
    /// Ends those that work in this folder: a server's processes are groups of their own, and one that is
    /// in the middle of a query does not notice that its server is gone.
    fn clear(&self) {
        let Ok(own) = self.0.join("data").canonicalize() else {
            return;
        };
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes {
            let works_here =
                || std::fs::read_link(process.path().join("cwd")).ok() == Some(own.clone());
            let Some(pid) = process
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // Looked at once more with a handle in hand: then it is still the same process.
            if works_here()
                && let Ok(handle) = PidFd::open(pid)
                && works_here()
            {
                let _ = handle.send(Signal::KILL);
                let _ = handle.wait_end(Some(FAREWELL));
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            self.clear();
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Words that go before a program that must not be root's.
fn as_user() -> Vec<&'static str> {
    match rustix::process::geteuid().is_root() {
        true => vec![
            "setpriv",
            "--reuid=postgres",
            "--regid=postgres",
            "--clear-groups",
        ],
        false => Vec::new(),
    }
}

fn find_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
    let versions = versions.into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders
        .into_iter()
        .rev()
        .find(|folder| folder.join("initdb").exists())
}

impl Postgres {
    fn program(&self, name: &str) -> String {
        self.programs.join(name).to_string_lossy().into_owned()
    }

    fn make(&mut self) -> Result<(), String> {
        let name = format!(
            "muninn-bench-pg-{}-{:08x}",
            std::process::id(),
            muninn_sys::rand::u64() as u32
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder)
            .map_err(|error| format!("no folder for a cluster: {error}"))?;
        self.folder = Folder(folder);
        let path = self.folder.0.to_string_lossy().into_owned();
        if rustix::process::geteuid().is_root() {
            works("chown", &["postgres:postgres", &path])?;
        }
        let initdb = self.program("initdb");
        let data = format!("{path}/data");
        let made = [
            "-D",
            &data,
            "-A",
            "trust",
            "-U",
            "bench",
            "--locale=C",
            "--encoding=UTF8",
            "--no-sync",
        ];
        let mut words = as_user();
        words.push(&initdb);
        words.extend(made);
        works(words[0], &words[1..])
    }

    fn server_words(&self, work_mem: Bytes) -> Vec<String> {
        let path = self.folder.0.to_string_lossy().into_owned();
        let mut words: Vec<String> = as_user().into_iter().map(str::to_string).collect();
        words.push(self.program("postgres"));
        words.extend([
            "-D".to_string(),
            format!("{path}/data"),
            "-k".to_string(),
            path,
        ]);
        for setting in [
            "listen_addresses=",
            "fsync=off",
            "jit=off",
            "max_parallel_workers_per_gather=0",
            "autovacuum=off",
            "hash_mem_multiplier=1",
            &format!("shared_buffers={SHARED}"),
            &format!("work_mem={}kB", work_mem.0 >> 10),
        ] {
            words.extend(["-c".to_string(), setting.to_string()]);
        }
        words
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.program(program));
        command.arg("-h").arg(&self.folder.0).args(["-U", "bench"]);
        command
    }

    fn query(&self, text: &str) -> Command {
        let mut command = self.client("psql");
        command.args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            "postgres",
            "-c",
            text,
        ]);
        command
    }

    fn answers(&self) -> bool {
        let mut command = self.query("select 1");
        let quiet = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    }

    /// Fills the tables, with a server that is not limited.
    fn fill(&self, arena: &Arena, size: Bytes) -> Step<()> {
        let words = self.server_words(Bytes::mib(64));
        let job = Job {
            patience: Duration::from_secs(600),
            ..Job::new(words)
        };
        let running = arena.start(Backend::Plain, Bytes(u64::MAX >> 1), &job)?;
        let server = Server {
            arena,
            running: &running,
            until: Instant::now() + job.patience,
        };
        step!(server.wait_until_up(|| self.answers()));
        let mut pgbench = self.client("pgbench");
        pgbench.args(["-i", "-q", "-s", SCALE, "postgres"]);
        step!(server.ask(&mut pgbench, None));
        let (rows, sides) = (size.0 * 3 / 4 / SORT_ROW, size.0 * 3 / 4 / JOIN_ROW);
        let fill = format!(
            "create table lines as select md5(i::text) || md5((i * 7)::text) as v from generate_series(1, {rows}) i; \
             create table left_side as select i as k, i * 31 as x from generate_series(1, {sides}) i; \
             create table right_side as select (i::bigint * 48271 % {sides})::int + 1 as k, i as y \
             from generate_series(1, {sides}) i; \
             vacuum analyze; checkpoint"
        );
        for statement in fill.split("; ") {
            step!(server.ask(&mut self.query(statement), None));
        }
        running.stop()?;
        Ok(Ok(()))
    }

    fn ask(&self, server: &Server) -> Step<Vec<Measured>> {
        step!(server.wait_until_up(|| self.answers()));
        let mut results = Vec::new();
        for (app, query) in [("postgres-sort", SORT), ("postgres-join", JOIN)] {
            let begun = Instant::now();
            // A hash join by all means; the other ways sort.
            let text = format!("set enable_mergejoin = off; set enable_nestloop = off; {query}");
            let said = step!(server.ask(&mut self.query(&text), None));
            results.push(Measured {
                seconds: Some(begun.elapsed().as_secs_f64()),
                checksum: Some(said.trim().to_string()),
                ..Measured::new(app)
            });
        }
        let mut pgbench = self.client("pgbench");
        pgbench.args(["-n", "-c", "4", "-j", "1", "-t", TRANSACTIONS, "postgres"]);
        let said = step!(server.ask(&mut pgbench, None));
        let Some((rate, failed)) = tps(&said) else {
            return Ok(Err(format!("pgbench said: {}", said.trim())));
        };
        results.push(Measured {
            ops_per_s: Some(rate),
            checksum: Some(format!("{failed} failed")),
            ..Measured::new("postgres-pgbench")
        });
        Ok(Ok(results))
    }
}

impl Program for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn prepare(&mut self, arena: &Arena, size: Bytes) -> Result<(), String> {
        self.programs =
            find_programs().ok_or("initdb is not there (Debian: postgresql)".to_string())?;
        for program in ["postgres", "psql", "pgbench"] {
            works(&self.program(program), &["--version"])
                .map_err(|error| format!("{error} (Debian: postgresql, postgresql-contrib)"))?;
        }
        self.make()?;
        self.fill(arena, size)
            .unwrap_or_else(|failure| Err(failure.message))
    }

    fn measure(
        &self,
        arena: &Arena,
        backend: Backend,
        limit: Bytes,
        patience: Duration,
    ) -> Result<Vec<Measured>, Failure> {
        // A server that was killed leaves it.
        let _ = std::fs::remove_file(self.folder.0.join("data/postmaster.pid"));
        let job = Job {
            patience,
            ..Job::new(self.server_words(Bytes::gib(2)))
        };
        let running = arena.start(backend, limit, &job)?;
        let server = Server {
            arena,
            running: &running,
            until: Instant::now() + patience,
        };
        let results = self.ask(&server);
        let results = finish("postgres", running, results);
        self.folder.clear();
        results
    }
}

/// Transactions a second, and how many failed.
fn tps(said: &str) -> Option<(f64, u64)> {
    let after = |what: &str| said.lines().find_map(|line| line.trim().strip_prefix(what));
    let rate = after("tps = ")?.split_whitespace().next()?.parse().ok()?;
    // Before version 15 it does not say.
    let failed = after("number of failed transactions: ").and_then(|rest| rest.split(' ').next());
    Some((rate, failed.map_or(Some(0), |n| n.parse().ok())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbench_is_understood() {
        let said = "number of transactions actually processed: 6000/6000\n\
                    number of failed transactions: 0 (0.000%)\n\
                    latency average = 1.2 ms\n\
                    tps = 3333.25 (without initial connection time)\n";
        assert_eq!(tps(said), Some((3333.25, 0)));
        assert_eq!(tps("pgbench: error"), None);
    }

    #[test]
    fn the_clusters_folder_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster");
        std::fs::create_dir_all(path.join("data")).unwrap();
        let mut sleeper = Command::new("sleep");
        let mut sleeper = sleeper
            .arg("600")
            .current_dir(path.join("data"))
            .spawn()
            .unwrap();
        drop(Folder(path.clone()));
        assert!(!path.exists());
        assert!(!sleeper.wait().unwrap().success(), "it was ended");
        drop(Folder::default());
    }
}
