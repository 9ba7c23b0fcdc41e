//! What the coordinator knows: the book, what agents said, what was learned of jobs.

use super::{FORGOTTEN, NODES_MAX, Seen};
use crate::ledger::{Ledger, NodeNews, Request};
use crate::message::{FromCoordinator, NodeState, clean_name};
use crate::profiles::{Known, Measured};
use muninn_types::{Bytes, Nanos};
use std::collections::{BTreeMap, HashSet};

/// Name of the node that stands for servers without an agent.
pub(super) const FIXED: &str = "(servers)";

/// Names of jobs of which it remembers how they bear far memory.
const LEARNED_MAX: usize = 4096;

pub(super) struct NodeReport {
    pub(super) state: NodeState,
    heard: Nanos,
}

pub(super) struct State {
    pub(super) ledger: Ledger,
    pub(super) nodes: BTreeMap<String, NodeReport>,
    /// By node: they are in the pool as long as the node is not forgotten, silent or not.
    pub(super) servers: BTreeMap<String, Vec<String>>,
    pub(super) fixed: Vec<String>,
    pub(super) started: Nanos,
    pub(super) settle: Nanos,
    pub(super) safe: Option<String>,
    pub(super) scheduler: bool,
    /// Profiles of jobs: what was measured, and what agents learned, by user and name.
    pub(super) measured: Measured,
    pub(super) learned: BTreeMap<String, Known>,
    pub(super) changed: bool,
}

impl State {
    pub(super) fn settled(&self, now: Nanos) -> bool {
        now.saturating_sub(self.started) >= self.settle
    }

    /// Servers without an agent are a node of which nothing is heard and that gives all the same.
    pub(super) fn give_fixed(&mut self, far: Bytes, now: Nanos) {
        if far > Bytes::ZERO {
            let news = NodeNews {
                donated: far,
                ..NodeNews::default()
            };
            self.ledger.heard(FIXED, &news, now);
            self.ledger.set_node(FIXED, 0, (0, Bytes::ZERO), false);
        }
    }

    pub(super) fn forget(&mut self, now: Nanos) {
        let before = self.nodes.len();
        self.nodes
            .retain(|_, node| now.saturating_sub(node.heard) < FORGOTTEN);
        if self.nodes.len() != before
            || self.settled(now) && now.saturating_sub(self.started) > FORGOTTEN
        {
            let nodes = &self.nodes;
            let servers = self.servers.len();
            self.servers.retain(|name, _| nodes.contains_key(name));
            self.changed |= self.servers.len() != servers;
        }
        self.ledger.refresh(FIXED, now);
    }

    pub(super) fn take(&mut self, seen: Seen, now: Nanos) {
        for node in &seen.nodes {
            self.ledger
                .set_node(&node.name, node.cores, node.others, node.open);
        }
        let there: HashSet<u64> = seen.jobs.iter().map(|(request, _)| request.job).collect();
        let gone = self.ledger.known().map(|(job, _)| job);
        let gone: Vec<u64> = gone.filter(|job| !there.contains(job)).collect();
        for job in gone {
            self.ledger.ended(job);
        }
        for (mut request, node) in seen.jobs {
            if let Some(known) = self.known(&request) {
                request.plan_with(&known);
            }
            match node {
                Some(node) => self.ledger.begun(request, &node, now),
                None => self.ledger.submit(request),
            }
        }
    }

    pub(super) fn report(&mut self, mut node: NodeState, now: Nanos) -> FromCoordinator {
        node.name = clean_name(&node.name);
        if node.name.is_empty() || node.name == FIXED {
            let why = "a node needs a name".to_string();
            return FromCoordinator::Refused { why };
        }
        if !self.nodes.contains_key(&node.name) && self.nodes.len() >= NODES_MAX {
            let why = format!("there are {NODES_MAX} nodes already");
            return FromCoordinator::Refused { why };
        }
        let news = NodeNews {
            memory: node.memory,
            donated: if node.servers.is_empty() {
                Bytes::ZERO
            } else {
                node.donate
            },
            granted: node.granted,
        };
        self.ledger.heard(&node.name, &news, now);
        self.learn(&node);
        if self.servers.get(&node.name) != Some(&node.servers) {
            self.servers.insert(node.name.clone(), node.servers.clone());
            self.changed = true;
        }
        let mut pool = self.fixed.clone();
        for (name, servers) in &self.servers {
            if *name != node.name {
                pool.extend(servers.iter().cloned());
            }
        }
        let plan = FromCoordinator::Plan {
            pool,
            whole: self.settled(now),
            others: self.ledger.others(&node.name),
        };
        let name = node.name.clone();
        self.nodes.insert(
            name,
            NodeReport {
                state: node,
                heard: now,
            },
        );
        plan
    }

    /// What is known of such jobs: measured, or learned at some node.
    fn known(&self, request: &Request) -> Option<Known> {
        let measured = self.measured.get(&request.name).map(Known::from);
        measured.or_else(|| self.learned.get(&key(request.uid, &request.name)).copied())
    }

    /// Takes over what an agent has learned of jobs.
    fn learn(&mut self, node: &NodeState) {
        for job in node.jobs.iter().filter(|job| job.profiled) {
            let known = Known {
                min_ratio: job.min_ratio,
                full_s: job.full_s,
            };
            let key = key(job.uid, &clean_name(&job.name));
            if !known.is_sane() || self.learned.get(&key) == Some(&known) {
                continue;
            }
            if self.learned.len() >= LEARNED_MAX && !self.learned.contains_key(&key) {
                self.learned.pop_first();
            }
            self.learned.insert(key, known);
            self.changed = true;
        }
    }
}

fn key(uid: u32, name: &str) -> String {
    format!("{uid}:{name}")
}
