//! What every part of a simulation shares: time, chance, events, the network, the shadow.

use super::backing::Files;
use super::network::{End, Network, Way};
use super::shadow::Shadow;
use super::{Options, Sabotage, Summary};
use muninn_types::{ConnId, Nanos, SessionId, SplitMix64, Tag};
use std::collections::{BTreeMap, VecDeque};

/// How many of the last events a failure tells.
const TOLD: usize = 60;

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Arrival(ConnId, Way),
    /// A server has something to send.
    Flush(usize, ConnId),
    Tick(usize, u32),
    Wipe(usize, u32),
    /// A client decides what to do next.
    Step(usize),
    Connect {
        client: usize,
        server: usize,
        generation: u32,
        lane: usize,
    },
    Chaos(Chaos),
    /// A server that was restarted accepts connections.
    Up(usize),
    DrainEnds(usize, u32),
}

#[derive(Clone, Copy, Debug)]
pub enum Chaos {
    Cut,
    Stall,
    Kill,
    Restart,
    Drain,
    /// A client gives up waiting for something.
    Abandon,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Clients work and things break.
    Work,
    /// Nothing breaks any more; what is under way must come to an end.
    Settle,
    /// Everything that is held is read.
    Verify,
    /// Clients go, politely or not.
    Leave,
}

#[derive(Debug)]
pub struct ServerFacts {
    pub epoch: u32,
    pub accepting: bool,
    /// Bytes that each client may hold there.
    pub quota: Option<u64>,
}

#[derive(Debug)]
pub struct Env {
    pub options: Options,
    pub now: Nanos,
    pub rng: SplitMix64,
    pub net: Network,
    pub shadow: Shadow,
    pub summary: Summary,
    pub phase: Phase,
    pub servers: Vec<ServerFacts>,
    /// When a server ended a session, as its driver saw it.
    pub ended: BTreeMap<(usize, SessionId), Nanos>,
    /// For sabotage: writes that nobody sent, whose answers nobody must see.
    pub stale: Vec<(ConnId, Tag)>,
    queue: BTreeMap<(Nanos, u64), Event>,
    sequence: u64,
    failure: Option<String>,
    telling: bool,
    told: VecDeque<String>,
}

impl Env {
    pub fn new(seed: u64, options: &Options, telling: bool) -> Env {
        Env {
            options: options.clone(),
            now: Nanos::ZERO,
            rng: SplitMix64::new(seed),
            net: Network::default(),
            shadow: Shadow::default(),
            summary: Summary::default(),
            phase: Phase::Work,
            servers: Vec::new(),
            ended: BTreeMap::new(),
            stale: Vec::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            failure: None,
            telling,
            told: VecDeque::new(),
        }
    }

    pub fn sabotage(&self, which: Sabotage) -> bool {
        self.options.sabotage == which
    }

    pub fn is_stale(&self, conn: ConnId, tag: Tag) -> bool {
        self.stale.contains(&(conn, tag))
    }

    pub fn at(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), event);
    }
    pub fn after(&mut self, delay: Nanos, event: Event) {
        self.at(self.now + delay, event);
    }
    pub fn next(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        self.summary.events += 1;
        Some(event)
    }

    /// A time spread around this one.
    pub fn about(&mut self, mean: Nanos) -> Nanos {
        Nanos(self.rng.exponential(mean.0 as f64) as u64)
    }

    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.telling {
            if self.told.len() == TOLD {
                self.told.pop_front();
            }
            let line = format!("{:>9.3}ms {}", self.now.0 as f64 / 1e6, what());
            self.told.push_back(line);
        }
    }
    /// Something that must not happen. The first one counts.
    pub fn fail(&mut self, what: impl Into<String>) {
        if self.failure.is_none() {
            let what = what.into();
            self.tell(|| format!("WRONG: {what}"));
            self.failure = Some(what);
        }
    }
    pub fn check(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.fail(what);
        }
    }
    pub fn failure(&self) -> Option<&String> {
        self.failure.as_ref()
    }
    pub fn told(&mut self) -> Vec<String> {
        self.told.drain(..).collect()
    }

    fn wake(&mut self) {
        for (at, conn, way) in std::mem::take(&mut self.net.wakes) {
            self.at(at, Event::Arrival(conn, way));
        }
    }

    pub fn open(&mut self, end: End) -> ConnId {
        self.net.open(end, &mut self.rng)
    }
    pub fn send(&mut self, conn: ConnId, way: Way, bytes: &[u8], files: Files) {
        self.net
            .send(conn, way, bytes, files, self.now, &mut self.rng);
        self.wake();
    }
    /// One end closes; the other learns of it soon, or late, or only by trying.
    pub fn close(&mut self, conn: ConnId, writes: Way) {
        let late = self.rng.chance(0.3) && self.phase == Phase::Work;
        let notice = if late {
            Nanos(self.rng.below(2 * self.options.lease.0))
        } else {
            Nanos(self.rng.below(300_000))
        };
        (self.net).close(conn, writes, notice, self.now, &mut self.rng);
        self.wake();
    }
    pub fn cut(&mut self, conn: ConnId) {
        let mut notice = [0; 2].map(|_| Nanos(self.rng.below(500_000)));
        if self.rng.chance(0.5) {
            let side = self.rng.below(2) as usize;
            notice[side] = Nanos(self.rng.below(3 * self.options.lease.0 / 2));
            self.summary.half_open += 1;
        }
        self.summary.cuts += 1;
        let torn = (self.net).cut(conn, self.now, notice, &mut self.rng);
        self.summary.torn += u64::from(torn);
        self.tell(|| {
            format!(
                "{conn} cut (server learns in {}, client in {})",
                notice[0], notice[1]
            )
        });
        self.wake();
    }
}
