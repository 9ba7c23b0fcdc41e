//! What is simulated: one run's parameters, and what is wrong with them.

use super::job::BATCH;
use super::topology::Topology;
use super::trace::Trace;
use muninn_types::Bytes;
use std::fmt;
use std::sync::Arc;

/// A value that cannot be simulated; the message names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: {remedy}")]
pub struct InputError {
    pub field: String,
    pub value: String,
    pub remedy: String,
}

impl InputError {
    pub fn new(
        field: impl fmt::Display,
        value: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> InputError {
        InputError {
            field: field.to_string(),
            value: value.to_string(),
            remedy: remedy.to_string(),
        }
    }
}

/// Which of Glitter's parts are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Module {
    /// Neither: Fastswap's fixed threshold, and all evictions alike.
    Fixed,
    /// A-ETAM alone.
    Threshold,
    /// EFSM alone.
    Urgency,
    Both,
}

impl Module {
    pub const ALL: [Module; 4] = [
        Module::Fixed,
        Module::Threshold,
        Module::Urgency,
        Module::Both,
    ];
    pub const fn name(self) -> &'static str {
        match self {
            Module::Fixed => "fixed",
            Module::Threshold => "threshold",
            Module::Urgency => "urgency",
            Module::Both => "both",
        }
    }
    pub const fn adapts_threshold(self) -> bool {
        matches!(self, Module::Threshold | Module::Both)
    }
    pub const fn schedules_by_urgency(self) -> bool {
        matches!(self, Module::Urgency | Module::Both)
    }
}

/// What the memory-intensive servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    Linpack,
    Kmeans,
    Pagerank,
    Quicksort,
    /// What the servers run that are not short of memory.
    Other,
}

impl JobKind {
    /// The memory-intensive ones.
    pub const ALL: [JobKind; 4] = [
        JobKind::Linpack,
        JobKind::Kmeans,
        JobKind::Pagerank,
        JobKind::Quicksort,
    ];
    pub const fn name(self) -> &'static str {
        match self {
            JobKind::Linpack => "linpack",
            JobKind::Kmeans => "kmeans",
            JobKind::Pagerank => "pagerank",
            JobKind::Quicksort => "quicksort",
            JobKind::Other => "other",
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Config {
    pub topology: Topology,
    /// All links have this share of their rate.
    pub bandwidth: f64,
    pub module: Module,
    pub job: JobKind,
    /// A recorded trace in the place of the job's synthetic one, scaled already.
    pub trace: Option<Arc<Trace>>,
    /// Local memory of the memory-intensive jobs, as a share of the working set.
    pub local_ratio: f64,
    pub jobs_per_server: u32,
    /// Servers that run memory-intensive jobs, spread evenly.
    pub intensive_servers: u32,
    /// Eviction cores of a server, which its jobs share.
    pub evict_cores: u32,
    /// What one core can evict.
    pub evict_mb_s: f64,
    /// Memory and time of the memory-intensive jobs are divided by this; rates are not.
    pub scale: f64,
    pub seed: u64,
}

impl Default for Config {
    /// The published size, shortened.
    fn default() -> Config {
        Config {
            topology: Topology::default(),
            bandwidth: 1.0,
            module: Module::Fixed,
            job: JobKind::Linpack,
            trace: None,
            local_ratio: 0.4,
            jobs_per_server: 5,
            intensive_servers: 32,
            evict_cores: 3,
            evict_mb_s: 287.0,
            scale: 64.0,
            seed: 1,
        }
    }
}

impl Config {
    /// Fastswap's distance of the threshold from the limit, before scaling.
    pub const HEADROOM: Bytes = Bytes(8_000_000);
    /// Local memory of the jobs that are not memory-intensive.
    pub const OTHER_LOCAL_RATIO: f64 = 0.5;
    /// T_lower as a share of the limit; Glitter does not publish it.
    pub const THRESHOLD_LOWER_SHARE: f64 = 0.8;

    pub fn check(&self) -> Result<(), InputError> {
        self.topology.check()?;
        share("bandwidth", self.bandwidth, 0.001)?;
        share("local", self.local_ratio, 0.01)?;
        let count = |field, value: u32, low, high| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                let remedy = format!("use {low} to {high}");
                Err(InputError::new(field, value, remedy))
            }
        };
        count("jobs-per-server", self.jobs_per_server, 1, 1000)?;
        count("evict-cores", self.evict_cores, 1, 1000)?;
        let servers = self.topology.servers();
        if servers < 2 {
            return Err(InputError::new(
                "servers",
                servers,
                "far memory needs at least 2",
            ));
        }
        count("intensive", self.intensive_servers, 1, servers)?;
        if !(1.0..=1e6).contains(&self.evict_mb_s) {
            return Err(InputError::new(
                "evict-mb-s",
                self.evict_mb_s,
                "use 1 to 1000000",
            ));
        }
        if !(1.0..=1000.0).contains(&self.scale) {
            return Err(InputError::new("scale", self.scale, "use 1 to 1000"));
        }
        if let Some(trace) = &self.trace {
            let least = Bytes(8 * BATCH.0);
            if trace.working_set < least {
                return Err(InputError::new(
                    "trace: working_set ÷ scale",
                    trace.working_set,
                    format!("use at least {least}"),
                ));
            }
        }
        Ok(())
    }
}

/// A share above 0 and up to 1; NaN is neither.
fn share(field: &str, value: f64, least: f64) -> Result<(), InputError> {
    if (least..=1.0).contains(&value) {
        Ok(())
    } else {
        Err(InputError::new(
            field,
            value,
            format!("use a ratio from {least} to 1"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_names_the_field() {
        let message = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        Config::default().check().unwrap();
        assert_eq!(
            message(|c| c.topology.servers_per_leaf = 0),
            "servers-per-leaf is 0: use 1 to 256"
        );
        assert_eq!(
            message(|c| c.topology.spines = 0),
            "spines is 0: use 1 to 64"
        );
        assert_eq!(
            message(|c| c.topology.fabric_gbps = f64::NAN),
            "fabric-gbps is NaN: use 0.01 to 10000"
        );
        assert_eq!(
            message(|c| c.local_ratio = 1.5),
            "local is 1.5: use a ratio from 0.01 to 1"
        );
        assert_eq!(
            message(|c| c.bandwidth = f64::NAN),
            "bandwidth is NaN: use a ratio from 0.001 to 1"
        );
        assert_eq!(
            message(|c| c.jobs_per_server = 0),
            "jobs-per-server is 0: use 1 to 1000"
        );
        assert_eq!(
            message(|c| c.intensive_servers = 97),
            "intensive is 97: use 1 to 96"
        );
        assert_eq!(
            message(|c| c.evict_mb_s = 0.0),
            "evict-mb-s is 0: use 1 to 1000000"
        );
        assert_eq!(message(|c| c.scale = 0.5), "scale is 0.5: use 1 to 1000");
        assert_eq!(
            message(|c| {
                c.topology.leaves = 1;
                c.topology.servers_per_leaf = 1;
            }),
            "servers is 1: far memory needs at least 2"
        );
    }
}
