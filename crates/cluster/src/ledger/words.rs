//! What the book says to people: why a job is where it is, or why it waits.

use super::{Ledger, Request};
use muninn_policy::fit::{Fit, Need};
use muninn_types::{Bytes, Nanos};
use std::fmt::Write;

/// Why a job starts at a node.
pub(super) fn why_there(need: &Need, fit: Fit, node: &str) -> String {
    match fit {
        Fit::Far(more) => format!(
            "all of its {} do not fit at {node}, but the smallest shares of all jobs there do, and far memory \
             holds {} more",
            need.memory.rounded(),
            more.rounded()
        ),
        _ => format!(
            "{node} had {} for it, all of it near",
            need.memory.rounded()
        ),
    }
}

impl Ledger {
    /// What it would take.
    pub(super) fn why_not(&self, request: &Request, far_free: Bytes, now: Nanos) -> String {
        let need = request.need();
        let (mut away, mut cores, mut floors, mut far, mut named) = (0, 0, 0, 0, 0);
        let mut least = Bytes(u64::MAX);
        for (_, host) in self.hosts.for_job(request) {
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
            let host = self.hosts.get(&placed.node)?;
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
}
