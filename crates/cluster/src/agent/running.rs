//! A job of the node: what it asked for, what it does, and what it may hold.

use crate::message::{Arrival, Doing, JobState};
use crate::node::planned;
use crate::profiles::{Learned, min_ratio};
use muninn_policy::profile::Profile;
use muninn_policy::profile::catalogue::JobKind;
use muninn_sys::proc::ProcessId;
use muninn_types::Bytes;

/// How jobs of a name are known to be.
pub(super) struct Shape {
    memory: Bytes,
    profile: Profile,
    min_ratio: f64,
    profiled: bool,
}

impl Shape {
    /// As measured, else as learned.
    pub(super) fn of(measured: Option<&JobKind>, learned: &Learned) -> Shape {
        if let Some(kind) = measured {
            return Shape {
                memory: kind.memory,
                profile: kind.profile.clone(),
                min_ratio: kind.min_ratio,
                profiled: true,
            };
        }
        let (profile, profiled) = learned.profile();
        Shape {
            memory: learned.memory,
            min_ratio: min_ratio(&profile),
            profile,
            profiled,
        }
    }
}

/// A job that is here.
pub(super) struct Running {
    pub(super) process: Option<ProcessId>,
    pub(super) uid: u32,
    pub(super) name: String,
    pub(super) job: Option<u64>,
    pub(super) said: Bytes,
    pub(super) doing: Doing,
    pub(super) limit: Bytes,
    /// What the launcher was told last.
    pub(super) told: Bytes,
    pub(super) profile: Profile,
    pub(super) profiled: bool,
    pub(super) min_ratio: f64,
    pub(super) run: Learned,
    /// It was here before this agent was.
    pub(super) back: bool,
}

impl Running {
    pub(super) fn memory(&self) -> Bytes {
        planned(self.said, self.doing.peak)
    }

    pub(super) fn progress(&self) -> f64 {
        // What it waited for was no progress. Never all: nobody knows that it is done.
        let worked = self.doing.run_s - self.doing.waited_s;
        (worked / self.profile.full_s()).clamp(0.0, 0.95)
    }

    pub(super) fn new(
        process: Option<ProcessId>,
        uid: u32,
        name: String,
        arrival: &Arrival,
        shape: Shape,
    ) -> Running {
        Running {
            process,
            uid,
            name,
            job: arrival.job,
            said: match arrival.memory {
                Bytes::ZERO => shape.memory,
                said => said,
            },
            doing: Doing::default(),
            limit: arrival.limit,
            told: arrival.limit,
            profile: shape.profile,
            profiled: shape.profiled,
            min_ratio: shape.min_ratio,
            run: Learned::default(),
            back: arrival.limit > Bytes::ZERO,
        }
    }

    pub(super) fn state(&self) -> JobState {
        JobState {
            pid: self.process.map_or(0, ProcessId::pid),
            uid: self.uid,
            name: self.name.clone(),
            job: self.job,
            memory: self.memory(),
            limit: self.limit,
            floor: Bytes((self.memory().0 as f64 * self.min_ratio) as u64),
            resident: self.doing.resident,
            far: self.doing.far,
            run_s: self.doing.run_s,
            waited_s: self.doing.waited_s,
            profiled: self.profiled,
            min_ratio: self.min_ratio,
            full_s: self.profile.full_s(),
            away: false,
        }
    }
}
