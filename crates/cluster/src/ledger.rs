//! What the coordinator knows and promises, and which job may start where. Pure: events in, decisions out.
//!
//! Invariants: the far memory promised is never more than what donors give whatever happens; the smallest
//! shares of a node's jobs are never more than its memory; a promise that nobody begins to use within
//! [`PROMISE_KEPT`] is taken back. Who fits is `policy::fit`'s to say, who comes first
//! `policy::admission`'s; here is only the book.
//!
//! Known limit: of a long queue the [`LOOK_MAX`] oldest jobs are considered, as Slurm's own backfill does.

mod hosts;
mod words;

use crate::node::SHARE_MIN;
use crate::profiles::Known;
use hosts::Hosts;
use muninn_policy::admission::Admission;
use muninn_policy::fit::{Fit, Need, Node};
use muninn_types::{Bytes, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Waiting jobs that one decision considers.
pub const LOOK_MAX: usize = 512;
/// Kinds of job that one decision finds no room for before it gives up.
const MISSES_MAX: usize = 8;
/// A promise is taken back when its job has not begun by then.
pub const PROMISE_KEPT: Nanos = Nanos::secs(60);
/// A node that says nothing for so long gets no jobs, and its donor counts for nothing.
pub const NODE_SILENT: Nanos = Nanos::secs(10);

/// How much far memory a job may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// As much as its profile bears.
    #[default]
    Auto,
    Most(Bytes),
    None,
}

/// What is asked for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub job: u64,
    pub name: String,
    pub user: String,
    /// The same as a number; what is learned of jobs is kept by it.
    #[serde(default)]
    pub uid: u32,
    pub cores: u32,
    pub memory: Bytes,
    /// Local memory below which its profile does not let it be planned.
    pub floor: Bytes,
    pub wish: Wish,
    /// Run time with all memory near.
    pub run_s: f64,
    /// Nodes it may run on; empty: any.
    #[serde(default)]
    pub nodes: Vec<String>,
}

impl Request {
    /// Plans with a profile instead of a guess.
    pub fn plan_with(&mut self, known: &Known) {
        let floor = Bytes((self.memory.0 as f64 * known.min_ratio).ceil() as u64);
        self.floor = floor.max(SHARE_MIN).min(self.memory);
        self.run_s = known.full_s;
    }

    pub fn need(&self) -> Need {
        let floor = match self.wish {
            Wish::Auto => self.floor,
            Wish::Most(far) => self.floor.max(self.memory.saturating_sub(far)),
            Wish::None => self.memory,
        };
        Need {
            cores: self.cores,
            memory: self.memory,
            floor: floor.min(self.memory),
        }
    }
}

/// A promise, or a job that runs on one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    pub request: Request,
    pub node: String,
    /// Far memory that came to be promised with it.
    pub far: Bytes,
    pub running: bool,
    /// Why there, in words.
    pub why: String,
    #[serde(skip)]
    pub since: Nanos,
}

/// Start this job there.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub job: u64,
    pub node: String,
    /// What a scheduler is to reserve: less is never given.
    pub local: Bytes,
    pub far: Bytes,
}

/// A node as it is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeNews {
    pub memory: Bytes,
    pub donated: Bytes,
    pub granted: Bytes,
}

/// The totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Far {
    pub total: Bytes,
    pub promised: Bytes,
    pub used: Bytes,
}

#[derive(Debug)]
pub struct Ledger {
    admission: Admission,
    hosts: Hosts,
    waiting: BTreeMap<u64, Request>,
    placed: BTreeMap<u64, Placed>,
    /// Why a job still waited when it was last considered.
    why: HashMap<u64, String>,
    /// Work that waits: core seconds and byte seconds.
    backlog: (f64, f64),
    /// Raised whenever something is promised or given back.
    version: u64,
}

impl Ledger {
    pub fn new(admission: Admission) -> Ledger {
        Ledger {
            admission,
            hosts: Hosts::default(),
            waiting: BTreeMap::new(),
            placed: BTreeMap::new(),
            why: HashMap::new(),
            backlog: (0.0, 0.0),
            version: 0,
        }
    }

    pub fn admission(&self) -> Admission {
        self.admission
    }

    /// Differs when there is something new to save.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// An agent has spoken.
    pub fn heard(&mut self, name: &str, news: &NodeNews, now: Nanos) {
        self.hosts.heard(name, news, now);
    }

    /// As if a node that was heard of once had spoken again.
    pub fn refresh(&mut self, name: &str, now: Nanos) {
        self.hosts.refresh(name, now);
    }

    /// What a scheduler says of a node: its cores, what jobs have there that are not ours, and whether
    /// jobs may start there.
    pub fn set_node(&mut self, name: &str, cores: u32, others: (u32, Bytes), open: bool) {
        self.hosts.set(name, cores, others, open);
    }

    pub fn others(&self, name: &str) -> Bytes {
        self.hosts
            .get(name)
            .map_or(Bytes::ZERO, |host| host.others.1)
    }

    /// A job waits. Its number is its place in the queue. One that is known to wait, or to start soon, is left
    /// as it is; one that ran was put into the queue again, as its node is gone.
    pub fn submit(&mut self, request: Request) {
        let job = request.job;
        match self.placed.get(&job) {
            Some(placed) if placed.running => self.ended(job),
            Some(_) => return,
            None if self.waiting.contains_key(&job) => return,
            None => {}
        }
        self.add_backlog(&request, 1.0);
        self.waiting.insert(job, request);
    }

    fn add_backlog(&mut self, request: &Request, sign: f64) {
        self.backlog.0 += sign * f64::from(request.cores) * request.run_s;
        self.backlog.1 += sign * request.memory.0 as f64 * request.run_s;
        if self.waiting.is_empty() && sign < 0.0 {
            self.backlog = (0.0, 0.0);
        }
    }

    /// It has begun, where it was promised, or (as far as this book is concerned) anywhere.
    pub fn begun(&mut self, request: Request, node: &str, now: Nanos) {
        let job = request.job;
        if let Some(placed) = self.placed.get_mut(&job)
            && placed.node == node
        {
            self.version += u64::from(!placed.running);
            placed.running = true;
            return;
        }
        self.ended(job);
        let why = "it was started there by its scheduler, not by a promise of this book";
        self.put(request, node, now, true, why.to_string());
    }

    fn put(&mut self, request: Request, node: &str, now: Nanos, running: bool, why: String) {
        let index = self.hosts.of(node);
        let far = self.hosts.add(index, &request.need());
        let placed = Placed {
            node: node.to_string(),
            far,
            running,
            why,
            since: now,
            request,
        };
        self.why.remove(&placed.request.job);
        self.placed.insert(placed.request.job, placed);
        self.version += 1;
    }

    /// It has ended, was cancelled, or is not to be started any more.
    pub fn ended(&mut self, job: u64) {
        self.why.remove(&job);
        if let Some(request) = self.waiting.remove(&job) {
            self.add_backlog(&request, -1.0);
        }
        if let Some(placed) = self.placed.remove(&job) {
            let index = self.hosts.of(&placed.node);
            self.hosts.remove(index, &placed.request.need());
            self.version += 1;
        }
    }

    /// Jobs of which it knows, with whether they run or are to.
    pub fn known(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        let waiting = self.waiting.keys().map(|job| (*job, false));
        waiting.chain(self.placed.keys().map(|job| (*job, true)))
    }

    pub fn placed(&self) -> impl Iterator<Item = &Placed> {
        self.placed.values()
    }

    pub fn placed_at(&self, job: u64) -> Option<&Placed> {
        self.placed.get(&job)
    }

    pub fn waiting(&self) -> impl Iterator<Item = (&Request, &str)> {
        self.waiting.values().map(|request| {
            let why = self.why.get(&request.job);
            (request, why.map_or("not considered yet", String::as_str))
        })
    }

    /// As it was saved.
    pub fn restore(&mut self, placed: Vec<Placed>, now: Nanos) {
        for one in placed {
            self.ended(one.request.job);
            self.put(one.request, &one.node, now, one.running, one.why);
        }
    }

    pub fn far(&self, now: Nanos) -> Far {
        self.hosts.far(now)
    }

    /// Promises whose jobs have not begun in time are taken back; these jobs.
    pub fn expire(&mut self, now: Nanos) -> Vec<u64> {
        let late =
            |placed: &&Placed| !placed.running && now.saturating_sub(placed.since) >= PROMISE_KEPT;
        let late: Vec<u64> = self
            .placed
            .values()
            .filter(late)
            .map(|p| p.request.job)
            .collect();
        for &job in &late {
            let request = self.placed.get(&job).map(|placed| placed.request.clone());
            self.ended(job);
            if let Some(request) = request {
                self.submit(request);
            }
        }
        late
    }

    /// The next job to start, if any can. Promised from now on.
    pub fn decide(&mut self, now: Nanos) -> Option<Start> {
        self.hosts.settle(now);
        let far = self.far(now);
        let far_free = far.total.saturating_sub(far.promised);
        let drain_s = self.hosts.drain_s(self.backlog, now);
        let waiting = self.waiting.len() as u32;
        let mut turns: Vec<(f64, u64)> = self
            .waiting
            .values()
            .take(LOOK_MAX)
            .enumerate()
            .map(|(ahead, request)| {
                let ahead = ahead as u32;
                let turn = self
                    .admission
                    .turn_s(ahead, waiting, drain_s, request.run_s);
                (turn, request.job)
            })
            .collect();
        turns.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut misses: Vec<Need> = Vec::new();
        let (mut missed, mut behind) = (Vec::new(), Vec::new());
        for (_, job) in turns {
            let request = &self.waiting[&job];
            let need = request.need();
            let hopeless = |miss: &Need| {
                need.cores >= miss.cores && need.memory >= miss.memory && need.floor >= miss.floor
            };
            if request.nodes.is_empty() && misses.iter().any(hopeless) {
                behind.push(job);
                continue;
            }
            if let Some((index, fit)) = self.hosts.find(request, far_free, now) {
                let request = self.waiting.remove(&job).expect("it was just looked at");
                self.add_backlog(&request, -1.0);
                return Some(self.promise(request, index, fit, now));
            }
            missed.push(job);
            if request.nodes.is_empty() {
                misses.push(need);
            }
            if misses.len() >= MISSES_MAX {
                break;
            }
        }
        // Told once, when nothing more can start.
        for job in missed {
            let why = self.why_not(&self.waiting[&job], far_free, now);
            self.why.insert(job, why);
        }
        for job in behind {
            let why = "waits behind jobs that need no more than it and do not fit either";
            self.why.insert(job, why.to_string());
        }
        None
    }

    fn promise(&mut self, request: Request, index: usize, fit: Fit, now: Nanos) -> Start {
        let need = request.need();
        let node = self.hosts.name(index).to_string();
        let far = match fit {
            Fit::Far(more) => more,
            _ => Bytes::ZERO,
        };
        let why = words::why_there(&need, fit, &node);
        let start = Start {
            job: request.job,
            node: node.clone(),
            local: need.floor,
            far,
        };
        self.put(request, &node, now, false, why);
        start
    }

    /// Each node with its book: name, whether it is alive and open, what fits where, and its jobs.
    pub fn nodes(
        &self,
        now: Nanos,
    ) -> impl Iterator<Item = (&str, bool, &Node, Bytes, Bytes, u32)> {
        self.hosts.iter().map(move |(name, host)| {
            let alive = host.alive(now) && !host.drained;
            (
                name,
                alive,
                &host.node,
                host.donated,
                host.granted,
                host.jobs,
            )
        })
    }
}

#[cfg(test)]
mod tests;
