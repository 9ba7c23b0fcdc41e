//! What is said: by launchers and people to an agent, by agents and people to the coordinator.
//!
//! Words of others are claims. What counts is checked where it arrives: who somebody is by the kernel
//! or by a handshake, and every size against a bound.

use muninn_types::Bytes;
use serde::{Deserialize, Serialize};

/// Names longer than this are cut.
pub const NAME_MAX: usize = 64;

/// To an agent, over its socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToAgent {
    /// A launcher has a job. Said first on a connection, which then stands for the job: its end is the
    /// job's end.
    Arrive(Arrival),
    /// How the job does, every now and then.
    Doing(Doing),
    /// What is the state of the node?
    State,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arrival {
    /// What the job is called; its profile is kept under it.
    pub name: String,
    /// All it will need, near and far; 0: not known.
    pub memory: Bytes,
    /// The limit that it runs with already, when its agent was away; 0: it has not begun.
    pub limit: Bytes,
    /// The job of a scheduler that it belongs to.
    pub job: Option<u64>,
}

/// Sums since the job began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Doing {
    pub resident: Bytes,
    pub far: Bytes,
    /// The most that it ever had, near and far.
    pub peak: Bytes,
    /// Time in which it waited for its pages, and all of its time.
    pub waited_s: f64,
    pub run_s: f64,
}

/// From an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum FromAgent {
    Welcome {
        limit: Bytes,
        /// A file with the servers, which is kept up to date.
        pool: String,
        /// The pool's key, if there is one: who may read it may have it.
        key_file: Option<String>,
    },
    Limit {
        limit: Bytes,
    },
    Refused {
        why: String,
    },
    State(Box<NodeState>),
}

/// A node as its agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeState {
    pub name: String,
    /// Memory for jobs, of this node.
    pub memory: Bytes,
    /// Given to the pool whatever happens.
    pub donate: Bytes,
    /// What of `memory` jobs have that do not run under Muninn.
    pub others: Bytes,
    /// What jobs may hold now, together.
    pub limits: Bytes,
    pub policy: String,
    /// Addresses of this node's memory server, how much it may grant now, and how much it has.
    pub servers: Vec<String>,
    pub ceiling: Bytes,
    pub granted: Bytes,
    /// Some job has less than its floor: more was started than fits.
    pub squeezed: bool,
    /// The coordinator answers.
    pub coordinated: bool,
    pub rebalances: u64,
    pub rebalance_us_max: u64,
    pub jobs: Vec<JobState>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    pub pid: u32,
    pub uid: u32,
    pub name: String,
    pub job: Option<u64>,
    /// What is planned with: what it asked for, or what it was seen to have, if that is more.
    pub memory: Bytes,
    pub limit: Bytes,
    pub floor: Bytes,
    pub resident: Bytes,
    pub far: Bytes,
    pub run_s: f64,
    pub waited_s: f64,
    /// The profile was measured, or comes from runs before, and is no guess.
    pub profiled: bool,
    /// By that profile: the share below which it is not planned, and its run time with all memory near.
    pub min_ratio: f64,
    pub full_s: f64,
    /// Its launcher has not come back since the agent was started again.
    pub away: bool,
}

/// To the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum ToCoordinator {
    /// An agent says how its node is; answered with a plan.
    Node(Box<NodeState>),
    /// For people.
    Cluster,
    Explain {
        job: u64,
    },
}

/// From the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum FromCoordinator {
    Plan {
        /// All servers of the pool, but for those of this node.
        pool: Vec<String>,
        /// These are all. Else there may be others that it has not heard of yet.
        whole: bool,
        /// What jobs outside of Muninn have of this node.
        others: Bytes,
    },
    Cluster(Box<ClusterState>),
    Explained {
        text: String,
    },
    Refused {
        why: String,
    },
}

/// The cluster as its coordinator sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterState {
    pub admission: String,
    pub far_total: Bytes,
    pub far_promised: Bytes,
    pub far_used: Bytes,
    /// Why nothing is admitted now, if that is so.
    pub safe_mode: Option<String>,
    pub nodes: Vec<NodeLine>,
    pub jobs: Vec<JobLine>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeLine {
    pub name: String,
    pub alive: bool,
    pub cores: u32,
    pub cores_used: u32,
    pub memory: Bytes,
    pub wanted: Bytes,
    pub local: Bytes,
    pub far: Bytes,
    pub donated: Bytes,
    pub granted: Bytes,
    pub jobs: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobLine {
    pub job: u64,
    pub name: String,
    pub user: String,
    pub state: String,
    pub node: Option<String>,
    pub memory: Bytes,
    pub local: Bytes,
    pub far: Bytes,
    pub why: String,
}

/// As much of a name as is kept, without anything that a terminal would act upon.
pub fn clean_name(text: &str) -> String {
    let clean = text.chars().filter(|c| !c.is_control());
    let mut name: String = clean.take(NAME_MAX).collect();
    while name.len() > NAME_MAX {
        name.pop();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_harmless() {
        assert_eq!(clean_name("a\x1b[31mb\n"), "a[31mb");
        assert!(clean_name(&"é".repeat(100)).len() <= NAME_MAX);
    }

    #[test]
    fn what_is_missing_has_a_meaning() {
        let said = r#"{"say":"arrive","name":"sort"}"#;
        let arrival = Arrival {
            name: "sort".to_string(),
            ..Arrival::default()
        };
        assert_eq!(
            serde_json::from_str::<ToAgent>(said).unwrap(),
            ToAgent::Arrive(arrival)
        );
    }
}
