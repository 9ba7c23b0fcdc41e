//! The coordinator's knowledge for people: the whole cluster, and one job.

use super::state::{FIXED, State};
use crate::message::{ClusterState, JobLine, JobState, NodeLine};
use muninn_types::{Bytes, Nanos};
use std::collections::HashSet;

impl State {
    pub(super) fn cluster(&self, now: Nanos) -> ClusterState {
        let far = self.ledger.far(now);
        let nodes = self
            .ledger
            .nodes(now)
            .map(|(name, alive, node, donated, granted, jobs)| {
                let report = self.nodes.get(name).map(|report| &report.state);
                let sum = |of: fn(&JobState) -> Bytes| {
                    let jobs = report.map(|state| state.jobs.iter().map(of).sum());
                    jobs.unwrap_or(Bytes::ZERO)
                };
                NodeLine {
                    name: name.to_string(),
                    alive,
                    cores: node.cores,
                    cores_used: node.cores_used,
                    memory: node.memory,
                    wanted: node.wanted,
                    local: sum(|job| job.limit),
                    far: sum(|job| job.far),
                    donated,
                    granted,
                    jobs: match self.scheduler {
                        true => jobs,
                        false => report.map_or(0, |state| state.jobs.len() as u32),
                    },
                }
            });
        let nodes: Vec<NodeLine> = nodes
            .filter(|node| node.name != FIXED || far.total > Bytes::ZERO)
            .collect();
        let placed = self.ledger.placed().map(|placed| {
            let job = placed.request.job;
            let (local, far) = self.held(&placed.node, job);
            JobLine {
                job,
                name: placed.request.name.clone(),
                user: placed.request.user.clone(),
                state: if placed.running {
                    "running"
                } else {
                    "starting"
                }
                .to_string(),
                node: Some(placed.node.clone()),
                memory: placed.request.memory,
                local,
                far,
                why: placed.why.clone(),
            }
        });
        let waiting = self.ledger.waiting().map(|(request, why)| JobLine {
            job: request.job,
            name: request.name.clone(),
            user: request.user.clone(),
            state: "waiting".to_string(),
            memory: request.memory,
            why: why.to_string(),
            ..JobLine::default()
        });
        let mut jobs: Vec<JobLine> = placed.chain(waiting).collect();
        // Those that no scheduler knows of, as agents tell of them.
        let known: HashSet<u64> = jobs.iter().map(|job| job.job).collect();
        for (name, report) in &self.nodes {
            let unknown =
                |job: &&JobState| !job.away && job.job.is_none_or(|job| !known.contains(&job));
            jobs.extend(report.state.jobs.iter().filter(unknown).map(|job| JobLine {
                job: job.job.unwrap_or(0),
                name: job.name.clone(),
                user: job.uid.to_string(),
                state: "running".to_string(),
                node: Some(name.clone()),
                memory: job.memory,
                local: job.limit,
                far: job.far,
                why: "started by 'muninn run' at its node".to_string(),
            }));
        }
        ClusterState {
            admission: self.ledger.admission().to_string(),
            far_total: far.total,
            far_promised: far.promised,
            far_used: far.used,
            safe_mode: self.safe.clone(),
            nodes,
            jobs,
        }
    }

    /// What a job may hold now at its node, and has far.
    fn held(&self, node: &str, job: u64) -> (Bytes, Bytes) {
        let jobs = self.nodes.get(node).map(|report| &report.state.jobs[..]);
        let mine = jobs
            .unwrap_or_default()
            .iter()
            .filter(|one| one.job == Some(job));
        mine.fold((Bytes::ZERO, Bytes::ZERO), |(local, far), one| {
            (local + one.limit, far + one.far)
        })
    }

    pub(super) fn explain(&self, job: u64, now: Nanos) -> String {
        let Some(mut text) = self.ledger.explain(job, now) else {
            return format!("no job {job} with far memory waits or runs");
        };
        if let Some(placed) = self.ledger.placed_at(job) {
            let (local, far) = self.held(&placed.node, job);
            text += &format!(
                "\nIts agent lets it hold {} now; {} of it are far.",
                local.rounded(),
                far.rounded()
            );
            let jobs = self
                .nodes
                .get(&placed.node)
                .map(|report| &report.state.jobs[..]);
            let mine = jobs
                .unwrap_or_default()
                .iter()
                .find(|one| one.job == Some(job));
            if let Some(one) = mine.filter(|one| one.run_s > 0.0) {
                text += &format!(
                    "\nSo far that cost it {:.1} s of {:.1} s ({:.0} %).",
                    one.waited_s,
                    one.run_s,
                    100.0 * one.waited_s / one.run_s
                );
            }
        } else if let Some(safe) = &self.safe {
            text += &format!("\nNothing is started at the moment: {safe}.");
        }
        text
    }
}
