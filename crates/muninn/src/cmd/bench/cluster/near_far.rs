//! Memory in use over time: what the jobs hold near, and what of theirs is elsewhere.

use muninn_cluster::channel::Channel;
use muninn_cluster::message::{ClusterState, FromCoordinator, ToCoordinator};
use muninn_proto::auth::Key;
use muninn_sys::cgroup::CpuCgroup;
use muninn_sys::proc::{self, StatmReader};
use muninn_sys::socket::Address;
use muninn_sys::swap::Zram;
use muninn_types::Bytes;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// The coordinator gets so long to answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Moment {
    pub at_s: f64,
    pub near_mib: f64,
    /// Pages that are far, or memory that zram takes.
    pub far_mib: f64,
    pub running: u32,
}

/// Who knows what is not near.
pub enum Far<'a> {
    None,
    Zram(&'a Zram),
    Coordinator(&'a Address),
}

pub struct Meter<'a> {
    far: Far<'a>,
    channel: Option<Channel>,
    begun: Instant,
    looked: Option<Instant>,
    moments: Vec<Moment>,
}

impl<'a> Meter<'a> {
    pub fn new(far: Far<'a>) -> Meter<'a> {
        Meter {
            far,
            channel: None,
            begun: Instant::now(),
            looked: None,
            moments: Vec::new(),
        }
    }

    /// Looks, if it is time.
    pub fn look<'g>(&mut self, groups: impl Iterator<Item = &'g CpuCgroup>) {
        if self.looked.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        self.looked = Some(Instant::now());
        let (mut near, mut running) = (Bytes::ZERO, 0);
        for group in groups {
            let members = group.members().unwrap_or_default();
            near += resident(&members);
            running += u32::from(!members.is_empty());
        }
        let far = self.far();
        let mib = |bytes: Bytes| bytes.0 as f64 / f64::from(1 << 20);
        self.moments.push(Moment {
            at_s: self.begun.elapsed().as_secs_f64(),
            near_mib: mib(near),
            far_mib: mib(far),
            running,
        });
    }

    pub fn moments(self) -> Vec<Moment> {
        self.moments
    }

    fn far(&mut self) -> Bytes {
        match &self.far {
            Far::None => Bytes::ZERO,
            Far::Zram(zram) => zram.used().unwrap_or_default(),
            Far::Coordinator(address) => {
                let asked = ask(&mut self.channel, address);
                if asked.is_none() {
                    self.channel = None;
                }
                asked.unwrap_or_default()
            }
        }
    }
}

fn ask(channel: &mut Option<Channel>, address: &Address) -> Option<Bytes> {
    let state = cluster(channel, address)?;
    Some(state.nodes.iter().map(|node| node.far).sum())
}

/// What the coordinator knows, over a connection that is made if there is none.
pub fn cluster(channel: &mut Option<Channel>, address: &Address) -> Option<ClusterState> {
    if channel.is_none() {
        *channel = Channel::connect(address, &Key::none(), PATIENCE).ok();
    }
    let channel = channel.as_mut()?;
    channel.send(&ToCoordinator::Cluster, PATIENCE).ok()?;
    match channel.receive(PATIENCE).ok()? {
        FromCoordinator::Cluster(state) => Some(*state),
        _ => None,
    }
}

/// Private memory of a job's processes; what two of them share as one counts once.
fn resident(members: &[i32]) -> Bytes {
    let mut sum = Bytes::ZERO;
    for (at, pid) in members.iter().enumerate() {
        let again = members[..at]
            .iter()
            .any(|other| proc::share_memory(*other as u32, *pid as u32) == Some(true));
        if again {
            continue;
        }
        let memory = StatmReader::of(*pid)
            .ok()
            .and_then(|reader| reader.read().ok());
        sum += memory.map_or(Bytes::ZERO, |memory| memory.private_resident());
    }
    sum
}
