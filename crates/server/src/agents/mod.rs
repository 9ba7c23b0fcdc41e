//! Agents of managed heaps: a thread each, over the grants of the session that started it.
//!
//! The event loop only queues and looks; the work is done by the agent's own thread. A heap's memory
//! may vanish under its agent, because a client that maps it can cut it: every access is guarded,
//! and the agent then gives up, and nothing else.
//!
//! What an agent holds itself is cut from the pool for its session ([`allowance`]); threads are
//! counted until they have ended. An agent connects to nobody: what belongs to another server waits
//! for the heap, which takes it there.
//!
//! Invariant: an agent touches only grants of its own session, and lets go of them when the session
//! ends or the agent is detached.

mod allowance;
mod desk;
mod words;
mod worker;

use crate::segment::MemfdBacking;
use allowance::{Allowance, Part};
use desk::Desk;
use muninn_heap_agent::agent::Agent;
use muninn_heap_agent::layout::Mode;
use muninn_heap_agent::message::{Ask, Attach};
use muninn_proto::server::{AgentTotals, Agents, Client, Extent, Grants, Pool};
use muninn_sys::sigbus;
use muninn_types::{GrantId, SessionId};
use muninn_wire::{ErrorCode, Refusal, ShortText};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use words::GrantWords;
use worker::Worker;

type Piece = Arc<Extent<MemfdBacking>>;

/// The most servers of a heap: a buffer for each is kept while tracing.
const SERVERS_MAX: u32 = 1024;

/// What a server allows its agents.
#[derive(Clone, Copy, Debug)]
pub struct AgentLimits {
    pub agents_max: usize,
    /// Of one client.
    pub agents_per_client: usize,
    /// Share of its time that an agent may spend on tracing in the background.
    pub background_share: f64,
}

impl Default for AgentLimits {
    fn default() -> AgentLimits {
        AgentLimits {
            agents_max: 64,
            agents_per_client: 32,
            background_share: 1.0,
        }
    }
}

/// Agents that run, by client: those whose threads have not ended.
type Counts = Arc<Mutex<HashMap<ShortText, usize>>>;

/// One of them.
#[derive(Debug)]
struct Running {
    counts: Counts,
    client: ShortText,
}

impl Running {
    fn new(counts: &Counts, client: &ShortText, limits: &AgentLimits) -> Result<Running, Refusal> {
        let mut running = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = running.values().sum();
        let own = running.get(client).copied().unwrap_or(0);
        let too_many =
            |whose: &str, most: usize| refused(format!("{whose} {most} agents, as many as it may"));
        if all >= limits.agents_max {
            return Err(too_many("the server runs", limits.agents_max));
        }
        if own >= limits.agents_per_client {
            return Err(too_many("this client has", limits.agents_per_client));
        }
        *running.entry(client.clone()).or_default() += 1;
        Ok(Running {
            counts: Arc::clone(counts),
            client: client.clone(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.client);
            }
        }
    }
}

/// Agents by their session, and their threads.
type Desks = HashMap<SessionId, (Arc<Desk>, JoinHandle<()>)>;

/// All agents of a server.
#[derive(Debug)]
pub(crate) struct AgentHost {
    desks: Mutex<Desks>,
    running: Counts,
    pool: Arc<Pool<MemfdBacking>>,
    limits: AgentLimits,
}

/// How one agent is doing.
#[derive(Clone, Debug, Default)]
pub struct AgentReport {
    pub session: SessionId,
    pub served_bytes: u64,
    pub metadata_bytes: u64,
    pub metadata_peak_bytes: u64,
    /// Cut from the pool for what the agent holds itself.
    pub allowance_bytes: u64,
    pub cpu_ns: u64,
    pub traced_objects: u64,
    pub moved_bytes: u64,
}

fn refused(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(ErrorCode::AgentRefused).remark(&why.to_string())
}

impl AgentHost {
    pub(crate) fn new(pool: Arc<Pool<MemfdBacking>>, limits: AgentLimits) -> AgentHost {
        AgentHost {
            desks: Mutex::default(),
            running: Counts::default(),
            pool,
            limits,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desks> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reports(&self) -> Vec<AgentReport> {
        let desks = self.lock();
        let reports = desks.iter().map(|(session, (desk, _))| {
            let stats = desk.stats();
            AgentReport {
                session: *session,
                served_bytes: stats.served_bytes,
                metadata_bytes: stats.metadata_bytes,
                metadata_peak_bytes: stats.metadata_peak_bytes,
                allowance_bytes: desk.allowance.bytes().0,
                cpu_ns: stats.cpu_ns,
                traced_objects: stats.traced_objects,
                moved_bytes: stats.moved_bytes,
            }
        });
        let mut reports: Vec<AgentReport> = reports.collect();
        reports.sort_by_key(|report| report.session);
        reports
    }

    fn attach(&self, from: &Client<'_, MemfdBacking>, asked: &Attach) -> Result<(), Refusal> {
        let (geometry, me) = (asked.geometry, asked.me);
        if me >= asked.servers || asked.servers > SERVERS_MAX {
            return Err(refused("it names a server that the heap does not have"));
        }
        let own = geometry.own_regions(me);
        let units = match geometry.mode {
            Mode::Direct => own.len(),
            Mode::Indirect => own.len() * 2,
        };
        let scratch = find(from.grants, asked.scratch)?;
        let list_len = u64::from(asked.list_len);
        if list_len != units as u64 * 8 || list_len > scratch.bytes() {
            return Err(refused("the list of grants does not fit the heap's shape"));
        }
        let mut desks = self.lock();
        if desks.contains_key(&from.session) {
            return Err(refused("the session has an agent already"));
        }
        let running = Running::new(&self.running, from.name, &self.limits)?;
        // Before anything is allocated: all that an agent of this shape keeps, and the list here.
        let allowance = Allowance::new(&self.pool, from.session, from.name);
        let most = Agent::<GrantWords>::memory_max(&geometry, me);
        allowance.set(Part::Kept, most + 4 * list_len)?;
        let mut list = vec![0; list_len as usize];
        desk::read_scratch(&scratch, &mut list)?;
        let mut pieces = Vec::with_capacity(units);
        let mut served_bytes = 0;
        for (index, id) in list.as_chunks::<8>().0.iter().enumerate() {
            let piece = find(from.grants, u64::from_le_bytes(*id))?;
            let size = if index < own.len() {
                geometry.region_bytes()
            } else {
                geometry.tablet_bytes()
            };
            if piece.bytes() < size {
                return Err(Refusal::with(ErrorCode::OutOfBounds, 0, piece.bytes()));
            }
            served_bytes += size;
            pieces.push(piece);
        }
        sigbus::install().map_err(refused)?;
        let desk = Arc::new(Desk::new(scratch, allowance, served_bytes));
        let (limits, servers, its) = (self.limits, asked.servers, Arc::clone(&desk));
        let work = move || {
            let words = GrantWords::new(geometry, own, pieces);
            let mut worker = Worker {
                desk: its,
                agent: Agent::new(geometry, words, me, servers),
                limits,
                _running: running,
            };
            worker.run();
        };
        let thread = std::thread::Builder::new().name("muninn-agent".to_string());
        let thread = thread.spawn(work).map_err(refused)?;
        desks.insert(from.session, (desk, thread));
        Ok(())
    }

    /// Stops an agent. Its thread lets go of the memory when it has seen it.
    fn detach(&self, session: SessionId) {
        if let Some((desk, _)) = self.lock().remove(&session) {
            desk.stop.store(true, Release);
            desk.bell.notify_all();
        }
    }

    /// Stops all agents and waits for them.
    pub(crate) fn stop(&self) {
        let all: Vec<_> = self.lock().drain().collect();
        for (_, (desk, thread)) in all {
            desk.stop.store(true, Release);
            desk.bell.notify_all();
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn find(grants: &Grants<MemfdBacking>, id: u64) -> Result<Piece, Refusal> {
    let found = grants.get(&GrantId(id)).cloned();
    found.ok_or_else(|| Refusal::with(ErrorCode::NoGrant, id, 0))
}

impl Agents<MemfdBacking> for AgentHost {
    fn call(&self, from: &Client<'_, MemfdBacking>, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        match Ask::decode(body).map_err(refused)? {
            Ask::Attach(attach) => self.attach(from, &attach).map(|()| Vec::new()),
            Ask::Detach => {
                self.detach(from.session);
                Ok(Vec::new())
            }
            ask => {
                let desk = self.lock().get(&from.session).map(|d| Arc::clone(&d.0));
                let desk = desk.ok_or_else(|| refused("the session has no agent"))?;
                desk.answer(ask)
            }
        }
    }

    fn totals(&self) -> AgentTotals {
        let mut totals = AgentTotals::default();
        for report in self.reports() {
            totals.agents += 1;
            totals.served_bytes += report.served_bytes;
            totals.metadata_bytes += report.metadata_bytes;
            totals.cpu_ms += report.cpu_ns / 1_000_000;
        }
        totals
    }

    fn session_ended(&self, session: SessionId) {
        self.detach(session);
    }
}
