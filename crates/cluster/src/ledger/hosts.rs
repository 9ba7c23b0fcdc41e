//! The nodes of the book: what each has and has promised, and which of them takes a job.
//!
//! Known limit: to find a node is a walk over all of them, some 10 ns each: 10,000 nodes are 100 µs. Sums over
//! all nodes are kept for one moment of time.

use super::{Far, NODE_SILENT, NodeNews, Request};
use muninn_policy::fit::{Fit, Need, Node};
use muninn_types::{Bytes, Nanos};
use std::collections::HashMap;

#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) node: Node,
    heard: Option<Nanos>,
    /// Nothing is started there, whatever it says.
    pub(super) drained: bool,
    pub(super) jobs: u32,
    /// As it is without what others have.
    memory: Bytes,
    pub(super) others: (u32, Bytes),
    pub(super) donated: Bytes,
    pub(super) granted: Bytes,
}

impl Host {
    pub(super) fn alive(&self, now: Nanos) -> bool {
        self.heard
            .is_some_and(|heard| now.saturating_sub(heard) < NODE_SILENT)
    }
}

/// What nodes that are alive have together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) far: Bytes,
    pub(super) used: Bytes,
    cores: f64,
    bytes: f64,
}

#[derive(Debug, Default)]
pub(super) struct Hosts {
    all: Vec<Host>,
    names: Vec<String>,
    by_name: HashMap<String, usize>,
    /// Σ far memory of all jobs that are placed.
    promised: Bytes,
    /// As they were at that time; `None` when something was said since.
    totals: Option<(Nanos, Totals)>,
}

impl Hosts {
    /// The place of a node, which is made if it was not heard of.
    pub(super) fn of(&mut self, name: &str) -> usize {
        if let Some(&index) = self.by_name.get(name) {
            return index;
        }
        self.all.push(Host {
            node: Node::new(0, 0, Bytes::ZERO),
            heard: None,
            drained: false,
            jobs: 0,
            memory: Bytes::ZERO,
            others: (0, Bytes::ZERO),
            donated: Bytes::ZERO,
            granted: Bytes::ZERO,
        });
        self.names.push(name.to_string());
        self.by_name.insert(name.to_string(), self.all.len() - 1);
        self.all.len() - 1
    }

    pub(super) fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    pub(super) fn get(&self, name: &str) -> Option<&Host> {
        self.by_name.get(name).map(|&index| &self.all[index])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Host)> {
        self.names.iter().map(String::as_str).zip(&self.all)
    }

    /// Changes what is said of a node; what it can promise follows.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Host)) {
        let host = &mut self.all[index];
        let before = host.node.far();
        change(host);
        host.node.memory = host.memory.saturating_sub(host.others.1);
        self.promised -= before;
        self.promised += host.node.far();
        self.totals = None;
    }

    pub(super) fn heard(&mut self, name: &str, news: &NodeNews, now: Nanos) {
        let index = self.of(name);
        self.change(index, |host| {
            host.memory = news.memory;
            host.donated = news.donated;
            host.granted = news.granted;
            host.heard = Some(now);
        });
    }

    pub(super) fn refresh(&mut self, name: &str, now: Nanos) {
        if let Some(&index) = self.by_name.get(name) {
            self.change(index, |host| host.heard = Some(now));
        }
    }

    pub(super) fn set(&mut self, name: &str, cores: u32, others: (u32, Bytes), open: bool) {
        let index = self.of(name);
        self.change(index, |host| {
            host.node.cores = cores.saturating_sub(others.0);
            host.others = others;
            host.drained = !open;
        });
    }

    /// A job is placed there; how much more far memory that promises.
    pub(super) fn add(&mut self, index: usize, need: &Need) -> Bytes {
        let host = &mut self.all[index];
        let before = host.node.far();
        host.node.add(need);
        host.jobs += 1;
        let more = host.node.far() - before;
        self.promised += more;
        more
    }

    pub(super) fn remove(&mut self, index: usize, need: &Need) {
        let host = &mut self.all[index];
        let before = host.node.far();
        host.node.remove(need);
        host.jobs -= 1;
        self.promised -= before - host.node.far();
    }

    pub(super) fn totals(&self, now: Nanos) -> Totals {
        match self.totals {
            Some((at, totals)) if at == now => totals,
            _ => self.sum(now),
        }
    }

    /// Sums for a moment at which more than one question will be asked.
    pub(super) fn settle(&mut self, now: Nanos) {
        self.totals = Some((now, self.totals(now)));
    }

    fn sum(&self, now: Nanos) -> Totals {
        let mut totals = Totals::default();
        for host in self.all.iter().filter(|host| host.alive(now)) {
            totals.far += host.donated;
            totals.used += host.granted;
            totals.cores += f64::from(host.node.cores);
            totals.bytes += host.node.memory.0 as f64;
        }
        totals
    }

    pub(super) fn far(&self, now: Nanos) -> Far {
        let totals = self.totals(now);
        Far {
            total: totals.far,
            promised: self.promised,
            used: totals.used,
        }
    }

    /// The time that waiting work takes at least, in core seconds and byte seconds.
    pub(super) fn drain_s(&self, backlog: (f64, f64), now: Nanos) -> f64 {
        let totals = self.totals(now);
        let bytes = totals.bytes + totals.far.0 as f64;
        (backlog.0 / totals.cores.max(1.0)).max(backlog.1 / bytes.max(1.0))
    }

    /// The nodes that a job may run on: all, or those that it names.
    pub(super) fn for_job<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Iterator<Item = (usize, &'a Host)> {
        let named = request
            .nodes
            .iter()
            .filter_map(|name| self.by_name.get(name).copied());
        let all = match request.nodes.is_empty() {
            true => 0..self.all.len(),
            false => 0..0,
        };
        all.chain(named).map(|index| (index, &self.all[index]))
    }

    /// The first node where all of it is local, else the one that takes the least far memory.
    pub(super) fn find(
        &self,
        request: &Request,
        far_free: Bytes,
        now: Nanos,
    ) -> Option<(usize, Fit)> {
        let need = request.need();
        let mut best: Option<(usize, Bytes)> = None;
        for (index, host) in self.for_job(request) {
            if host.drained || !host.alive(now) {
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
}
