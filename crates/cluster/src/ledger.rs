//! What the coordinator knows and promises, and which job may start where. Pure: events in, decisions out.
//!
//! Invariants: the far memory promised is never more than what donors give whatever happens; the smallest
//! shares of a node's jobs are never more than its memory; a promise that nobody begins to use within
//! [`PROMISE_KEPT`] is taken back. Who fits is `policy::fit`'s to say, who comes first
//! `policy::admission`'s; here is only the book.
//!
//! Known limit: of a long queue the [`LOOK_MAX`] oldest jobs are considered, as Slurm's own backfill does.

use muninn_policy::admission::Admission;
use muninn_policy::fit::{Fit, Need, Node};
use muninn_types::{Bytes, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

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

#[derive(Clone, Debug)]
struct Host {
    name: String,
    node: Node,
    /// As it is without what others have.
    memory: Bytes,
    others: (u32, Bytes),
    donated: Bytes,
    granted: Bytes,
    heard: Option<Nanos>,
    /// Nothing is started there, whatever it says.
    drained: bool,
    jobs: u32,
}

impl Host {
    fn alive(&self, now: Nanos) -> bool {
        self.heard
            .is_some_and(|heard| now.saturating_sub(heard) < NODE_SILENT)
    }
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
    hosts: Vec<Host>,
    by_name: HashMap<String, usize>,
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
            hosts: Vec::new(),
            by_name: HashMap::new(),
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

    fn host(&mut self, name: &str) -> usize {
        if let Some(&index) = self.by_name.get(name) {
            return index;
        }
        self.hosts.push(Host {
            name: name.to_string(),
            node: Node::new(0, 0, Bytes::ZERO),
            memory: Bytes::ZERO,
            others: (0, Bytes::ZERO),
            donated: Bytes::ZERO,
            granted: Bytes::ZERO,
            heard: None,
            drained: false,
            jobs: 0,
        });
        self.by_name.insert(name.to_string(), self.hosts.len() - 1);
        self.hosts.len() - 1
    }

    /// An agent has spoken.
    pub fn heard(&mut self, name: &str, news: &NodeNews, now: Nanos) {
        let index = self.host(name);
        let host = &mut self.hosts[index];
        host.memory = news.memory;
        host.donated = news.donated;
        host.granted = news.granted;
        host.heard = Some(now);
        host.node.memory = host.memory.saturating_sub(host.others.1);
    }

    /// As if a node that was heard of once had spoken again.
    pub fn refresh(&mut self, name: &str, now: Nanos) {
        if let Some(&index) = self.by_name.get(name) {
            self.hosts[index].heard = Some(now);
        }
    }

    /// What a scheduler says of a node: its cores, what jobs have there that are not ours, and whether
    /// jobs may start there.
    pub fn set_node(&mut self, name: &str, cores: u32, others: (u32, Bytes), open: bool) {
        let index = self.host(name);
        let host = &mut self.hosts[index];
        host.node.cores = cores.saturating_sub(others.0);
        host.others = others;
        host.drained = !open;
        host.node.memory = host.memory.saturating_sub(others.1);
    }

    pub fn others(&self, name: &str) -> Bytes {
        self.by_name
            .get(name)
            .map_or(Bytes::ZERO, |&index| self.hosts[index].others.1)
    }

    /// A job waits. Its number is its place in the queue. Known ones are left as they are.
    pub fn submit(&mut self, request: Request) {
        let job = request.job;
        if self.placed.contains_key(&job) || self.waiting.contains_key(&job) {
            return;
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
        let index = self.host(node);
        let host = &mut self.hosts[index];
        let before = host.node.far();
        host.node.add(&request.need());
        host.jobs += 1;
        let far = host.node.far() - before;
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
            let index = self.host(&placed.node);
            let host = &mut self.hosts[index];
            host.node.remove(&placed.request.need());
            host.jobs -= 1;
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
        let mut far = Far::default();
        for host in &self.hosts {
            far.promised += host.node.far();
            if host.alive(now) {
                far.total += host.donated;
                far.used += host.granted;
            }
        }
        far
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
        let far = self.far(now);
        let far_free = far.total.saturating_sub(far.promised);
        let drain_s = self.drain_s(far.total, now);
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
            if let Some((index, fit)) = self.find(request, far_free, now) {
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

    fn drain_s(&self, far: Bytes, now: Nanos) -> f64 {
        let (mut cores, mut bytes) = (0.0, far.0 as f64);
        for host in self.hosts.iter().filter(|host| host.alive(now)) {
            cores += f64::from(host.node.cores);
            bytes += host.node.memory.0 as f64;
        }
        (self.backlog.0 / f64::max(cores, 1.0)).max(self.backlog.1 / f64::max(bytes, 1.0))
    }

    /// The first node where all of it is local, else the one that takes the least far memory.
    fn find(&self, request: &Request, far_free: Bytes, now: Nanos) -> Option<(usize, Fit)> {
        let need = request.need();
        let mut best: Option<(usize, Bytes)> = None;
        for (index, host) in self.hosts.iter().enumerate() {
            let named = request.nodes.is_empty() || request.nodes.contains(&host.name);
            if host.drained || !named || !host.alive(now) {
                continue;
            }
            match host.node.fit(&need, far_free) {
                Fit::Local => return Some((index, Fit::Local)),
                Fit::Far(more) if best.is_none_or(|(_, least)| more < least) => {
                    best = Some((index, more));
                }
                Fit::Far(_) | Fit::No => {}
            }
        }
        best.map(|(index, more)| (index, Fit::Far(more)))
    }

    fn promise(&mut self, request: Request, index: usize, fit: Fit, now: Nanos) -> Start {
        let need = request.need();
        let node = self.hosts[index].name.clone();
        let far = match fit {
            Fit::Far(more) => more,
            _ => Bytes::ZERO,
        };
        let why = match fit {
            Fit::Far(more) => format!(
                "all of its {} do not fit at {node}, but the smallest shares of all jobs there do, and \
                 far memory holds {} more",
                need.memory.rounded(),
                more.rounded()
            ),
            _ => format!(
                "{node} had {} for it, all of it near",
                need.memory.rounded()
            ),
        };
        let start = Start {
            job: request.job,
            node: node.clone(),
            local: need.floor,
            far,
        };
        self.put(request, &node, now, false, why);
        start
    }

    /// What it would take.
    fn why_not(&self, request: &Request, far_free: Bytes, now: Nanos) -> String {
        let need = request.need();
        let (mut away, mut cores, mut floors, mut far, mut named) = (0, 0, 0, 0, 0);
        let mut least = Bytes(u64::MAX);
        for host in &self.hosts {
            if !request.nodes.is_empty() && !request.nodes.contains(&host.name) {
                continue;
            }
            named += 1;
            if host.drained || !host.alive(now) {
                away += 1;
            } else if host.node.cores_used + need.cores > host.node.cores {
                cores += 1;
            } else if host.node.floor.0 + need.floor.0 > host.node.memory.0 {
                floors += 1;
            } else {
                far += 1;
                let wanted = Bytes(host.node.wanted.0 + need.memory.0);
                let more = wanted.saturating_sub(host.node.memory).0 - host.node.far().0;
                least = least.min(Bytes(more));
            }
        }
        let mut text = format!(
            "needs {} cores and {}, of which at least {} near",
            need.cores,
            need.memory.rounded(),
            need.floor.rounded()
        );
        let _ = write!(text, "; of {named} nodes");
        for (count, what) in [
            (away, "is away or drained"),
            (cores, "has too few free cores"),
            (floors, "cannot shrink its jobs so far"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        if far > 0 {
            let _ = write!(
                text,
                ", {far} would need {} more far memory, and {} is left",
                least.rounded(),
                far_free.rounded()
            );
        }
        text
    }

    /// Everything about one job, for people.
    pub fn explain(&self, job: u64, now: Nanos) -> Option<String> {
        if let Some(placed) = self.placed.get(&job) {
            let need = placed.request.need();
            let host = &self.hosts[*self.by_name.get(&placed.node)?];
            let state = if placed.running {
                "runs"
            } else {
                "is to start"
            };
            return Some(format!(
                "job {job} ({}) {state} at {}: {}.\nIt asked for {} and {} cores; no less than {} of it \
                 is ever meant to be near.\nThe node has {} for jobs, which want {} together and cannot be \
                 shrunk below {}; {} of them {} far.",
                placed.request.name,
                placed.node,
                placed.why,
                need.memory.rounded(),
                need.cores,
                need.floor.rounded(),
                host.node.memory.rounded(),
                host.node.wanted.rounded(),
                host.node.floor.rounded(),
                host.node.far().rounded(),
                if host.alive(now) {
                    "is"
                } else {
                    "was (the node is silent)"
                },
            ));
        }
        let request = self.waiting.get(&job)?;
        let far = self.far(now);
        let why =
            self.why.get(&job).cloned().unwrap_or_else(|| {
                self.why_not(request, far.total.saturating_sub(far.promised), now)
            });
        let ahead = self.waiting.range(..job).count();
        Some(format!(
            "job {job} ({}) waits, {ahead} before it: {why}.\nFar memory: {} given by donors, {} promised.",
            request.name,
            far.total.rounded(),
            far.promised.rounded()
        ))
    }

    /// Each node with its book: name, whether it is alive and open, what fits where, and its jobs.
    pub fn nodes(
        &self,
        now: Nanos,
    ) -> impl Iterator<Item = (&str, bool, &Node, Bytes, Bytes, u32)> {
        self.hosts.iter().map(move |host| {
            let alive = host.alive(now) && !host.drained;
            let name = host.name.as_str();
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
