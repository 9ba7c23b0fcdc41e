//! One way of running the queue: the rack is set up for it, the queue runs, and everything is removed.

use super::near_far::{Far, Meter, Moment};
use super::queue::{Queue, Ran};
use super::services::{Services, plug_in_pieces};
use super::{Bench, kinds};
use crate::failure::{Exit, Failure};
use crate::slurm_rack::{Layout, SlurmRack};
use crate::ui::Progress;
use clap::ValueEnum;
use muninn_sim::rack::{Config, Rack as SimRack};
use muninn_sys::cgroup::{Hierarchy, MemoryCgroup, Version};
use muninn_sys::swap::{SwapArea, SwapOn, Zram};
use muninn_types::Bytes;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Between two looks at the queue.
const LOOK: Duration = Duration::from_millis(100);
/// Zram is taken to hold so many times the memory that it has.
const ZRAM_PACKS: f64 = 2.0;
/// A swap file's worth of room in it beyond that: what is not there is not used.
const ZRAM_ROOM: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Slurm by itself
    Alone,
    /// Slurm by itself, with --more memory in each node
    More,
    /// Slurm with --more memory in each node, which is zram that jobs swap to
    Zram,
    /// Slurm with Muninn: one node gives way to far memory, of that node's size and --more
    Muninn,
}

/// The memory of the rack in one way.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    pub nodes: u32,
    /// What jobs of a node may hold, and what Slurm believes it has.
    pub near_mib: u64,
    pub told_mib: u64,
    /// Zram of a node, if it packs as it is taken to.
    pub zram_mib: u64,
    pub far_mib: u64,
    /// All of it.
    pub total_mib: u64,
}

/// A way that was gone to its end.
#[derive(Debug, Serialize)]
pub struct Run {
    pub way: Way,
    pub memory: Memory,
    pub jobs: Vec<Ran>,
    /// Memory in use over time.
    pub moments: Vec<Moment>,
    /// Of the services, where there are any.
    pub services: Option<super::services::Costs>,
    /// Far memory that somebody still held at the end.
    pub left_behind: u64,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Alone => "alone",
            Way::More => "more",
            Way::Zram => "zram",
            Way::Muninn => "muninn",
        }
    }

    /// What the simulator calls it; it knows nothing of zram.
    pub fn config(self, bench: &Bench) -> Option<Config> {
        let more_pct = bench.rack.more_pct;
        match self {
            Way::Alone => Some(Config::NOFAR),
            Way::More => Some(Config::NoFar { more_pct }),
            Way::Zram => None,
            Way::Muninn => Some(Config::Far { more_pct }),
        }
    }

    fn memory(self, bench: &Bench) -> Result<Memory, Failure> {
        let shape = |way: Way| {
            let config = way.config(bench).unwrap_or(Config::NOFAR);
            config.shape(&sim_rack(bench)).map_err(Failure::usage)
        };
        let (plain, more) = (shape(Way::Alone)?, shape(Way::More)?);
        let mib = |bytes: Bytes| bytes.0 >> 20;
        let shape = shape(self)?;
        let (near_mib, far_mib) = match self {
            Way::Zram => (mib(plain.memory), 0),
            _ => (mib(shape.memory), mib(shape.far)),
        };
        let zram_mib = match self {
            Way::Zram => mib(more.memory) - near_mib,
            _ => 0,
        };
        Ok(Memory {
            nodes: shape.machines,
            near_mib,
            told_mib: near_mib + (zram_mib as f64 * ZRAM_PACKS) as u64,
            zram_mib,
            far_mib,
            total_mib: u64::from(shape.machines) * (near_mib + zram_mib) + far_mib,
        })
    }
}

/// The rack as the simulator wants it. Pages are moved by the jobs themselves: no core is kept for that.
pub fn sim_rack(bench: &Bench) -> SimRack {
    SimRack {
        machines: bench.rack.nodes,
        cores: bench.rack.cores,
        memory: Bytes::mib(bench.rack.memory_mib),
        reclaim_cores: 0,
    }
}

pub fn run(bench: &Bench, way: Way, bar: &Progress) -> Result<Run, Failure> {
    bar.set_message(format!("{}: setting up", way.name()));
    let memory = way.memory(bench)?;
    let folder = bench.arena.dir().join(way.name());
    std::fs::create_dir(&folder)?;
    // Removed in this order: jobs before the groups and the swap that hold their pages.
    let zram = match way {
        Way::Zram => Some(Swapping::start(&memory)?),
        _ => None,
    };
    let pieces = match way {
        Way::Muninn => Some(plug_in_pieces(&folder, &memory)?),
        _ => None,
    };
    let slurm = SlurmRack::start(&Layout {
        folder: folder.clone(),
        nodes: memory.nodes,
        cores: bench.rack.cores,
        memory_mib: memory.told_mib,
        pieces,
    })?;
    let mut services = match way {
        Way::Muninn => Some(Services::start(bench, &folder, &memory, &slurm)?),
        _ => None,
    };
    let far = match (&zram, &services) {
        (Some(swapping), _) => Far::Zram(&swapping.zram),
        (_, Some(services)) => Far::Coordinator(services.coordinator()),
        _ => Far::None,
    };
    let groups = zram.as_ref().map(|swapping| swapping.prefix.as_path());
    let mut queue = Queue::new(bench, way, &folder, groups.unwrap_or(Path::new("")))?;
    let mut meter = Meter::new(far);
    bar.set_message(way.name());
    while !queue.is_over() {
        let ended = queue.turn(&slurm)?;
        bar.inc(ended);
        meter.look(queue.groups());
        bench.arena.pause(LOOK)?;
    }
    let moments = meter.moments();
    let jobs = queue.ran()?;
    drop(queue);
    let (mut costs, mut left_behind) = (None, 0);
    if let Some(services) = &mut services {
        costs = Some(services.costs());
        left_behind = services.left_behind(&bench.arena)?;
    }
    drop(services);
    drop(slurm);
    Ok(Run {
        way,
        memory,
        jobs,
        moments,
        services: costs,
        left_behind,
    })
}

/// Zram as swap, and a memory group for each node with the limit of what is not zram's.
struct Swapping {
    /// What the groups' paths begin with; the node's name follows.
    prefix: std::path::PathBuf,
    _groups: Vec<MemoryCgroup>,
    _on: SwapOn,
    zram: Zram,
}

impl Swapping {
    fn start(memory: &Memory) -> Result<Swapping, Failure> {
        let unsupported = |error: &dyn std::fmt::Display| Failure::new(Exit::Unsupported, error);
        let hierarchy = Hierarchy::find().map_err(|error| unsupported(&error))?;
        if hierarchy.version() != Version::V1 {
            let why = "a job is to be in one group for its CPU and another for its node's memory, which needs \
                       version 1 of cgroups";
            return Err(unsupported(&why));
        }
        let name = format!("muninn-bench-{}-", std::process::id());
        let mut groups = Vec::new();
        for node in 1..=memory.nodes {
            let group = hierarchy.create(&format!("{name}n{node}"));
            let group = group.map_err(|error| unsupported(&error))?;
            group
                .set_limits(Some(Bytes::mib(memory.near_mib)), None)
                .map_err(|error| unsupported(&error))?;
            groups.push(group);
        }
        let room = u64::from(memory.nodes) * (memory.told_mib - memory.near_mib) * ZRAM_ROOM;
        let zram =
            Zram::create(Bytes::mib(room.max(64)), None).map_err(|error| unsupported(&error))?;
        let on = zram.on().map_err(|error| unsupported(&error))?;
        Ok(Swapping {
            prefix: hierarchy.root().join(name),
            _groups: groups,
            _on: on,
            zram,
        })
    }
}

/// What a job is to ask Slurm for.
pub fn options(way: Way, kind: &kinds::Kind) -> Vec<String> {
    let minutes = (kind.alone_s() / 60.0).ceil().max(1.0) as u64;
    let mut options = vec![
        format!("--mem={}", kind.memory_mib),
        format!("--time={minutes}"),
    ];
    if way == Way::Muninn {
        options.push("--far-memory=auto".to_string());
        options.push(format!("--far-profile={}", kind.name));
    }
    options
}
