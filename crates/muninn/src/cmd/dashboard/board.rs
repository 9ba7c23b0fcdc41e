//! All that the page shows, and what of it is new to somebody who has seen an earlier state.
//!
//! Each change of anything has a number ([`Board::seq`]); who asks says the last one that it knows, with the number
//! of this run, and is given the rows that changed since. Who is from before the last start, or has missed rows that
//! went, is given everything. Everything kept has a bound.

use super::heat::{self, Column, Heat};
use super::life::Life;
use crate::observe::{JobRow, Picture, Rows, ServerRow};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Rows that went and are remembered as gone.
const GONE_MAX: usize = 4096;
/// Outcomes of what was asked for.
const DONE_MAX: usize = 16;
/// Clients that a server's row names; the others are summed up.
const HOLDERS_MAX: usize = 24;

/// A server as the page has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerShown {
    address: String,
    name: String,
    error: Option<String>,
    pool: u64,
    granted: u64,
    wiping: u64,
    sessions: usize,
    drain_ms: Option<u64>,
    requests: f64,
    bytes_in: f64,
    bytes_out: f64,
    holders: Vec<(String, u64)>,
    /// Held by clients that are not named.
    others: u64,
}

/// A job as the page has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobShown {
    pid: u32,
    name: String,
    layout: String,
    limit: u64,
    here: u64,
    far: u64,
    processes: usize,
    faults: f64,
    from_far: f64,
    waiting: f64,
    bytes_in: f64,
    bytes_out: f64,
    /// What somebody should know.
    notes: Vec<String>,
}

/// What came of something that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Done {
    pub id: u64,
    pub ok: bool,
    pub text: String,
}

/// Three digits are all that anybody reads, and what goes on as before stays the same.
fn rounded(rate: f64) -> f64 {
    if rate < 1e-9 {
        return 0.0;
    }
    let unit = 10f64.powi(rate.log10().floor() as i32 - 2);
    (rate / unit).round() * unit
}

impl From<&ServerRow> for ServerShown {
    fn from(row: &ServerRow) -> ServerShown {
        let server = &row.server;
        // A client with many sessions is one to who looks.
        let mut holders: Vec<(String, u64)> = server.holders.clone();
        let others = holders.split_off(holders.len().min(HOLDERS_MAX));
        ServerShown {
            address: server.address.clone(),
            name: server.name.clone(),
            error: server.error.clone(),
            pool: server.pool_bytes,
            granted: server.granted_bytes,
            wiping: server.wiping_bytes,
            sessions: server.sessions,
            // In whole seconds: it is a time that runs, and not a change each time.
            drain_ms: server.drain_left_ms.map(|ms| ms / 1000 * 1000),
            requests: rounded(row.rates.requests),
            bytes_in: rounded(row.rates.bytes_in),
            bytes_out: rounded(row.rates.bytes_out),
            holders,
            others: others.iter().map(|(_, bytes)| bytes).sum(),
        }
    }
}

impl From<&JobRow> for JobShown {
    fn from(row: &JobRow) -> JobShown {
        let job = &row.job;
        let gone = (!job.launcher_alive).then(|| "its launcher is gone".to_string());
        let waits = job.processes.iter().filter_map(|one| one.waits.clone());
        JobShown {
            pid: job.launcher,
            name: job.name.clone(),
            layout: job.layout.clone(),
            limit: job.limit_bytes,
            here: job.here_bytes,
            far: job.far_bytes,
            processes: job.processes.len(),
            faults: rounded(row.rates.faults),
            from_far: rounded(row.rates.far),
            waiting: rounded(row.rates.waiting),
            bytes_in: rounded(row.rates.bytes_in),
            bytes_out: rounded(row.rates.bytes_out),
            notes: gone
                .into_iter()
                .chain(waits)
                .chain(job.message.clone())
                .collect(),
        }
    }
}

/// Rows by their key, each with the number of its last change.
#[derive(Debug)]
struct Kept<K, T> {
    rows: BTreeMap<K, (u64, T)>,
    gone: VecDeque<(u64, K)>,
    /// Of what went before this nothing is known.
    floor: u64,
}

impl<K, T> Default for Kept<K, T> {
    fn default() -> Kept<K, T> {
        Kept {
            rows: BTreeMap::new(),
            gone: VecDeque::new(),
            floor: 0,
        }
    }
}

impl<K: Ord + Clone, T: PartialEq> Kept<K, T> {
    fn replace(&mut self, seq: u64, rows: impl Iterator<Item = (K, T)>) {
        let mut old = std::mem::take(&mut self.rows);
        for (key, row) in rows {
            let changed = match old.remove(&key) {
                Some((changed, before)) if before == row => changed,
                _ => seq,
            };
            self.rows.insert(key, (changed, row));
        }
        for key in old.into_keys() {
            if self.gone.len() >= GONE_MAX
                && let Some((seq, _)) = self.gone.pop_front()
            {
                self.floor = seq;
            }
            self.gone.push_back((seq, key));
        }
    }

    fn since(&self, seq: u64) -> Vec<&T> {
        let changed = self.rows.values().filter(|(changed, _)| *changed > seq);
        changed.map(|(_, row)| row).collect()
    }

    fn gone_since(&self, seq: u64) -> Vec<&K> {
        let gone = self.gone.iter().filter(|(at, _)| *at > seq);
        let gone = gone.filter(|(_, key)| !self.rows.contains_key(key));
        gone.map(|(_, key)| key).collect()
    }
}

#[derive(Debug, Serialize)]
pub struct Update<'a> {
    /// To be said when asking the next time.
    mark: String,
    /// What the page has is of no use any more.
    full: bool,
    every_ms: u64,
    may_act: bool,
    /// What the columns of the heat map tell apart.
    classes: Vec<&'static str>,
    servers: Vec<&'a ServerShown>,
    gone_servers: Vec<&'a String>,
    jobs: Vec<&'a JobShown>,
    gone_jobs: Vec<&'a u32>,
    heat: Vec<&'a Column>,
    done: Vec<&'a Done>,
}

#[derive(Debug)]
pub struct Board {
    run: u64,
    seq: u64,
    every: Duration,
    last: Option<Picture>,
    last_servers: Vec<ServerRow>,
    servers: Kept<String, ServerShown>,
    jobs: Kept<u32, JobShown>,
    lives: HashMap<u32, (Instant, Life)>,
    heat: Heat,
    done: VecDeque<(u64, Done)>,
}

impl Board {
    pub fn new(run: u64, every: Duration) -> Board {
        Board {
            run,
            seq: 0,
            every,
            last: None,
            last_servers: Vec::new(),
            servers: Kept::default(),
            jobs: Kept::default(),
            lives: HashMap::new(),
            heat: Heat::default(),
            done: VecDeque::new(),
        }
    }

    pub fn handle_picture(&mut self, picture: Picture, unix_s: u64) {
        self.seq += 1;
        let rows = Rows::between(self.last.as_ref(), &picture, &self.last_servers);
        let servers = rows.servers.iter();
        let servers = servers.map(|row| (row.server.address.clone(), ServerShown::from(row)));
        self.servers.replace(self.seq, servers);
        let jobs = rows.jobs.iter();
        let jobs = jobs.map(|row| (row.job.launcher, JobShown::from(row)));
        self.jobs.replace(self.seq, jobs);
        self.heat
            .handle(&picture.servers, &picture.jobs, self.seq, unix_s);
        self.note_lives(&picture);
        self.last_servers = rows.servers;
        self.last = Some(picture);
    }

    fn note_lives(&mut self, picture: &Picture) {
        let mut lives = HashMap::with_capacity(picture.jobs.len());
        for job in &picture.jobs {
            let new = || (picture.taken, Life::default());
            let (first, mut life) = self.lives.remove(&job.launcher).unwrap_or_else(new);
            life.note(job, picture.taken.saturating_duration_since(first));
            lives.insert(job.launcher, (first, life));
        }
        self.lives = lives;
    }

    pub fn note_done(&mut self, done: Done) {
        self.seq += 1;
        if self.done.len() >= DONE_MAX {
            self.done.pop_front();
        }
        self.done.push_back((self.seq, done));
    }

    pub fn life(&self, pid: u32) -> Option<&Life> {
        self.lives.get(&pid).map(|(_, life)| life)
    }

    /// What is new to somebody who knows the state with this mark.
    pub fn since(&self, mark: &str, may_act: bool) -> Update<'_> {
        let known = mark.split_once('.').and_then(|(run, seq)| {
            let seq: u64 = seq.parse().ok()?;
            let floor = self.servers.floor.max(self.jobs.floor);
            let ours = run == format!("{:016x}", self.run) && seq <= self.seq && seq >= floor;
            ours.then_some(seq)
        });
        let seq = known.unwrap_or(0);
        let done = self.done.iter().filter(|(at, _)| *at > seq);
        Update {
            mark: format!("{:016x}.{}", self.run, self.seq),
            full: known.is_none(),
            every_ms: self.every.as_millis() as u64,
            may_act,
            classes: heat::names(),
            servers: self.servers.since(seq),
            gone_servers: self.servers.gone_since(seq),
            jobs: self.jobs.since(seq),
            gone_jobs: self.jobs.gone_since(seq),
            heat: self.heat.since(seq).collect(),
            // Who has just come has asked for nothing.
            done: match known {
                Some(_) => done.map(|(_, done)| done).collect(),
                None => Vec::new(),
            },
        }
    }
}
