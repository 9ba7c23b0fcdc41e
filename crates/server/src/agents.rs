//! Agents of managed heaps: a thread each, over the grants of the session that started it.
//!
//! The event loop only queues and looks; the work is done by the agent's own thread. What is bounded: agents of a server, input and
//! result of a task, and metadata (a share of the regions served, refused at the start). A heap's
//! memory may vanish under its agent, because a client that maps it can cut it: every access is
//! guarded, and the agent then gives up, and nothing else.
//!
//! Invariant: an agent touches only grants of its own session, and lets go of them when the session
//! ends or the agent is detached.

use crate::segment::MemfdBacking;
use muninn_heap_agent::agent::Agent;
use muninn_heap_agent::bytes::{Reader, Short, Writer};
use muninn_heap_agent::command::{DELIVER_MAX, Op, TOKEN_LEN, Task};
use muninn_heap_agent::layout::{Geometry, Mode};
use muninn_heap_agent::termination::Flags;
use muninn_heap_agent::words::{Gone, Words};
use muninn_net::{Key, Observer, SessionOptions};
use muninn_proto::server::{AgentTotals, Agents, Extent, Grants};
use muninn_sys::memory::{guarded_copy, guarded_load, guarded_store};
use muninn_sys::{clock, sigbus};
use muninn_types::{GrantId, Nanos, SessionId};
use muninn_wire::{ErrorCode, Refusal};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

type Piece = Arc<Extent<MemfdBacking>>;
type Token = [u8; TOKEN_LEN];

/// The most input or result of one task.
const BULK_MAX: usize = 1 << 30;
/// The most tasks that wait.
const TASKS_MAX: usize = 64;
/// How long another server may be out of reach before a trace is given up.
const REACH: Duration = Duration::from_secs(20);
/// Objects traced between two looks at the queue.
const TRACE_BUDGET: usize = 2048;

/// References for another server that are worth a delivery while there is more to trace: many
/// messages under way at a time, because each waits for its turn on both servers' processors.
const GHOSTS: usize = 32 * DELIVER_MAX;

/// The regions of a heap at this server, as memory.
#[derive(Debug)]
pub struct GrantWords {
    geometry: Geometry,
    /// Address of each region and tablet; null: not here.
    starts: Vec<*mut u8>,
    // Keeps the memory behind the addresses.
    _pieces: Vec<Piece>,
}

// SAFETY: the addresses are of mappings that `_pieces` keeps; all accesses are guarded copies, which
// may be made from any thread.
unsafe impl Send for GrantWords {}

impl GrantWords {
    fn find(&self, at: u64, len: u64) -> Result<*mut u8, Gone> {
        let geometry = &self.geometry;
        let heap = geometry.heap_bytes();
        let (unit, offset, size) = if at < heap {
            let region = geometry.region_of(at);
            let offset = at - geometry.region_start(region);
            (region as usize, offset, geometry.region_bytes())
        } else {
            let tablet = (at - heap) / geometry.tablet_bytes();
            let offset = at - heap - tablet * geometry.tablet_bytes();
            let unit = u64::from(geometry.regions) + tablet;
            (unit as usize, offset, geometry.tablet_bytes())
        };
        let start = self.starts.get(unit).copied().unwrap_or_default();
        if start.is_null() || offset + len > size || at & 7 != 0 {
            return Err(Gone { at });
        }
        Ok(start.wrapping_add(offset as usize))
    }
}

impl Words for GrantWords {
    fn load(&self, at: u64) -> Result<u64, Gone> {
        let word = self.find(at, 8)?;
        // SAFETY: inside of a mapping that `_pieces` keeps, aligned; the handler was installed when
        // the agent was started.
        unsafe { guarded_load(word.cast()) }.map_err(|_| Gone { at })
    }
    fn store(&self, at: u64, value: u64) -> Result<(), Gone> {
        let word = self.find(at, 8)?;
        // SAFETY: as in `load`; segments are mapped writable.
        unsafe { guarded_store(word.cast(), value) }.map_err(|_| Gone { at })
    }
    fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), Gone> {
        let (source, target) = (self.find(from, len)?, self.find(to, len)?);
        // SAFETY: both ranges are inside of mappings that `_pieces` keeps.
        unsafe { guarded_copy(target, source, len as usize) }
            .map(|_| ())
            .map_err(|_| Gone { at: from })
    }
}

#[derive(Debug, Default)]
struct Inbox {
    input: Vec<u8>,
    tasks: VecDeque<(Task, Vec<u8>)>,
    /// References that others found.
    roots: Vec<u64>,
    flags: Flags,
    /// Tasks queued or under way.
    pending: u32,
    result: Vec<u8>,
    error: Option<String>,
}

/// What event loops and the agent's thread share.
#[derive(Debug)]
struct Desk {
    inbox: Mutex<Inbox>,
    bell: Condvar,
    stop: AtomicBool,
    scratch: Piece,
    token: Token,
    served_bytes: u64,
    cpu_ns: AtomicU64,
    metadata_bytes: AtomicU64,
    metadata_peak: AtomicU64,
    traced_objects: AtomicU64,
    moved_bytes: AtomicU64,
    discarded: AtomicU64,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server allows its agents.
#[derive(Clone, Copy, Debug)]
pub struct AgentLimits {
    pub agents_max: usize,
    /// Share of its time that an agent may spend on tracing in the background.
    pub background_share: f64,
}

impl Default for AgentLimits {
    fn default() -> AgentLimits {
        AgentLimits {
            agents_max: 64,
            background_share: 1.0,
        }
    }
}

/// Agents by their session, and their threads.
type Desks = HashMap<SessionId, (Arc<Desk>, Option<JoinHandle<()>>)>;

/// All agents of a server.
#[derive(Debug)]
pub struct AgentHost {
    desks: Mutex<Desks>,
    key: Key,
    limits: AgentLimits,
}

/// How one agent is doing.
#[derive(Clone, Debug, Default)]
pub struct AgentReport {
    pub session: SessionId,
    pub served_bytes: u64,
    pub metadata_bytes: u64,
    pub metadata_peak_bytes: u64,
    pub cpu_ns: u64,
    pub traced_objects: u64,
    pub moved_bytes: u64,
}

fn refused(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(ErrorCode::AgentRefused).remark(&why.to_string())
}

impl AgentHost {
    pub fn new(key: Key, limits: AgentLimits) -> AgentHost {
        AgentHost {
            desks: Mutex::default(),
            key,
            limits,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Desks> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn reports(&self) -> Vec<AgentReport> {
        let mut reports: Vec<AgentReport> = self
            .lock()
            .iter()
            .map(|(session, (desk, _))| AgentReport {
                session: *session,
                served_bytes: desk.served_bytes,
                metadata_bytes: desk.metadata_bytes.load(Relaxed),
                metadata_peak_bytes: desk.metadata_peak.load(Relaxed),
                cpu_ns: desk.cpu_ns.load(Relaxed),
                traced_objects: desk.traced_objects.load(Relaxed),
                moved_bytes: desk.moved_bytes.load(Relaxed),
            })
            .collect();
        reports.sort_by_key(|report| report.session);
        reports
    }

    fn attach(
        &self,
        session: SessionId,
        grants: &Grants<MemfdBacking>,
        r: &mut Reader<'_>,
    ) -> Result<(), Refusal> {
        let geometry = Geometry::decode(r).map_err(refused)?;
        let mut number = || r.u32().map_err(refused);
        let (me, servers) = (number()?, number()?);
        let token: Token = r
            .take(TOKEN_LEN)
            .map_err(refused)?
            .try_into()
            .map_err(|_| refused(Short))?;
        let find = |id: u64| {
            let found = grants.get(&GrantId(id));
            found
                .cloned()
                .ok_or_else(|| Refusal::with(ErrorCode::NoGrant, id, 0))
        };
        let scratch = find(r.u64().map_err(refused)?)?;
        let list_len = r.u32().map_err(refused)? as usize;
        let mut list = vec![0; list_len.min(scratch.bytes() as usize)];
        read_scratch(&scratch, 0, &mut list)?;
        let mut list = Reader::new(&list);
        let mine = |unit: u32| geometry.server_of(unit) == me;
        let units = match geometry.mode {
            Mode::Direct => geometry.regions,
            Mode::Indirect => geometry.regions * 2,
        };
        let (mut starts, mut pieces) = (vec![std::ptr::null_mut(); units as usize], Vec::new());
        let mut served_bytes = 0;
        for unit in 0..units {
            let (number, size) = if unit < geometry.regions {
                (unit, geometry.region_bytes())
            } else {
                (unit - geometry.regions, geometry.tablet_bytes())
            };
            if !mine(number) {
                continue;
            }
            let piece = find(list.u64().map_err(refused)?)?;
            if piece.bytes() < size {
                return Err(Refusal::with(ErrorCode::OutOfBounds, 0, piece.bytes()));
            }
            starts[unit as usize] = piece.mem().at(piece.start(), size);
            pieces.push(piece);
            served_bytes += size;
        }
        let mut peers = Vec::new();
        for _ in 0..servers {
            peers.push(list.text().map_err(refused)?);
        }
        sigbus::install().map_err(refused)?;
        let mut desks = self.lock();
        if desks.len() >= self.limits.agents_max {
            let most = self.limits.agents_max;
            return Err(refused(format!(
                "the server runs {most} agents, as many as it may"
            )));
        }
        if desks.contains_key(&session) {
            return Err(refused("the session has an agent already"));
        }
        let words = GrantWords {
            geometry,
            starts,
            _pieces: pieces,
        };
        let desk = Arc::new(Desk {
            inbox: Mutex::default(),
            bell: Condvar::new(),
            stop: AtomicBool::new(false),
            scratch,
            token,
            served_bytes,
            cpu_ns: AtomicU64::new(0),
            metadata_bytes: AtomicU64::new(0),
            metadata_peak: AtomicU64::new(0),
            traced_objects: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
        });
        let mut worker = Worker {
            desk: Arc::clone(&desk),
            agent: Agent::new(geometry, words, me, servers),
            links: Links {
                peers,
                open: HashMap::new(),
                key: self.key.clone(),
                token,
                desk: Arc::clone(&desk),
            },
            limits: self.limits,
        };
        let thread = std::thread::Builder::new()
            .name("muninn-agent".to_string())
            .spawn(move || worker.run())
            .map_err(refused)?;
        desks.insert(session, (desk, Some(thread)));
        Ok(())
    }

    /// Stops an agent. Its thread lets go of the memory when it has seen it.
    fn detach(&self, session: SessionId) -> bool {
        match self.lock().remove(&session) {
            Some((desk, _)) => {
                desk.stop.store(true, Release);
                desk.bell.notify_all();
                true
            }
            None => false,
        }
    }

    /// Stops all agents and waits for them.
    pub fn stop(&self) {
        let all: Vec<_> = self.lock().drain().collect();
        for (_, (desk, thread)) in all {
            desk.stop.store(true, Release);
            desk.bell.notify_all();
            if let Some(thread) = thread {
                // One that panicked has said so.
                let _ = thread.join();
            }
        }
    }

    fn deliver(&self, r: &mut Reader<'_>) -> Result<(), Refusal> {
        let token = r.take(TOKEN_LEN).map_err(refused)?;
        let words = r.words().map_err(refused)?;
        let desks = self.lock();
        let desk = desks
            .values()
            .map(|(desk, _)| desk)
            .find(|d| d.token == *token);
        let desk = desk.ok_or_else(|| refused("there is no such heap here"))?;
        let mut inbox = desk.lock();
        inbox.roots.extend(words);
        inbox.flags.set_roots(true);
        desk.bell.notify_all();
        Ok(())
    }
}

fn read_scratch(scratch: &Piece, at: u64, into: &mut [u8]) -> Result<(), Refusal> {
    if at + into.len() as u64 > scratch.bytes() {
        return Err(Refusal::with(ErrorCode::OutOfBounds, 0, scratch.bytes()));
    }
    let from = scratch.mem().at(scratch.start() + at, into.len() as u64);
    // SAFETY: inside of the extent, which `scratch` keeps; the target is a slice of our own.
    unsafe { guarded_copy(into.as_mut_ptr(), from, into.len()) }
        .map(|_| ())
        .map_err(refused)
}

fn write_scratch(scratch: &Piece, bytes: &[u8]) -> Result<(), Refusal> {
    let to = scratch.mem().at(scratch.start(), bytes.len() as u64);
    // SAFETY: as in `read_scratch`; `at` checks the range.
    unsafe { guarded_copy(to, bytes.as_ptr(), bytes.len()) }
        .map(|_| ())
        .map_err(refused)
}

impl Agents<MemfdBacking> for AgentHost {
    fn call(
        &self,
        session: Option<(SessionId, &Grants<MemfdBacking>)>,
        body: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let mut r = Reader::new(body);
        let op = r.u8().and_then(Op::from_byte).map_err(refused)?;
        let mut out = Writer::default();
        if op == Op::Deliver {
            self.deliver(&mut r)?;
            return Ok(out.0);
        }
        let (session, grants) = session.ok_or_else(|| Refusal::new(ErrorCode::NotOpen))?;
        if op == Op::Attach {
            self.attach(session, grants, &mut r)?;
            return Ok(out.0);
        }
        if op == Op::Detach {
            self.detach(session);
            return Ok(out.0);
        }
        let desk = self
            .lock()
            .get(&session)
            .map(|(desk, _)| Arc::clone(desk))
            .ok_or_else(|| refused("the session has no agent"))?;
        let mut inbox = desk.lock();
        match op {
            Op::Append => {
                let len = r.u32().map_err(refused)? as usize;
                let had = inbox.input.len();
                if had + len > BULK_MAX {
                    return Err(refused("the input is too long"));
                }
                inbox.input.resize(had + len, 0);
                read_scratch(&desk.scratch, 0, &mut inbox.input[had..])?;
            }
            Op::Run => {
                let task = r.u8().and_then(Task::from_byte).map_err(refused)?;
                if inbox.tasks.len() >= TASKS_MAX {
                    return Err(refused("too many tasks wait"));
                }
                let mut input = std::mem::take(&mut inbox.input);
                input.extend_from_slice(r.rest());
                inbox.pending += 1;
                if task == Task::TraceStart {
                    inbox.flags.set_tracing(true);
                }
                inbox.tasks.push_back((task, input));
                desk.bell.notify_all();
            }
            Op::Roots => {
                let input = std::mem::take(&mut inbox.input);
                let words = Reader::new(&input).words().map_err(refused)?;
                inbox.roots.extend(words);
                inbox.flags.set_roots(true);
                desk.bell.notify_all();
            }
            Op::Poll => {
                let flags = inbox.flags.poll();
                out.u8(flags.to_byte());
                out.u32(inbox.pending);
                out.u64(inbox.result.len() as u64);
                let error = inbox.error.clone().unwrap_or_default();
                out.text(&error.chars().take(200).collect::<String>());
            }
            Op::Fetch => {
                let offset = r.u64().map_err(refused)? as usize;
                let rest = inbox.result.get(offset..).unwrap_or(&[]);
                let len = rest.len().min(desk.scratch.bytes() as usize);
                write_scratch(&desk.scratch, &rest[..len])?;
                out.u64(len as u64);
            }
            Op::Stats => {
                for number in [
                    desk.metadata_bytes.load(Relaxed),
                    desk.metadata_peak.load(Relaxed),
                    desk.served_bytes,
                    desk.cpu_ns.load(Relaxed),
                    desk.traced_objects.load(Relaxed),
                    desk.moved_bytes.load(Relaxed),
                    desk.discarded.load(Relaxed),
                ] {
                    out.u64(number);
                }
            }
            Op::Attach | Op::Detach | Op::Deliver => {}
        }
        Ok(out.0)
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

/// Ways to the agents of other servers.
#[derive(Debug)]
struct Links {
    peers: Vec<String>,
    open: HashMap<u32, Observer>,
    key: Key,
    token: Token,
    desk: Arc<Desk>,
}

impl Links {
    /// Hands references over; they are acknowledged when this returns.
    fn deliver(&mut self, server: u32, words: &[u64]) -> Result<(), String> {
        let bodies: Vec<Vec<u8>> = words
            .chunks(DELIVER_MAX)
            .map(|some| {
                let mut w = Writer::default();
                w.u8(Op::Deliver as u8);
                w.0.extend_from_slice(&self.token);
                w.words(some);
                w.0
            })
            .collect();
        // A connection may be cut, or closed because it was idle: again, with a new one, for as long
        // as a server may be out of reach. To be told twice of a reference does no harm.
        let ends = clock::now() + Nanos::from(REACH);
        while let Err(error) = self.try_deliver(server, &bodies) {
            if clock::now() > ends || self.desk.stop.load(Acquire) {
                return Err(format!("server {server} did not take references: {error}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn try_deliver(&mut self, server: u32, bodies: &[Vec<u8>]) -> Result<(), String> {
        let told = self.link(server)?.agent_all(bodies.to_vec());
        if told.is_err() {
            self.open.remove(&server);
        }
        told.map_err(|error| error.to_string())
    }

    fn link(&mut self, server: u32) -> Result<&mut Observer, String> {
        if !self.open.contains_key(&server) {
            let name = self
                .peers
                .get(server as usize)
                .ok_or("there is no such server")?;
            let address = name.parse().map_err(|e| format!("{e}"))?;
            let options = SessionOptions {
                key: self.key.clone(),
                deadline: Duration::from_secs(10),
                ..SessionOptions::default()
            };
            let observer = Observer::connect(&address, &options).map_err(|e| e.to_string())?;
            self.open.insert(server, observer);
        }
        self.open.get_mut(&server).ok_or_else(String::new)
    }
}

/// The thread of an agent.
struct Worker {
    desk: Arc<Desk>,
    agent: Agent<GrantWords>,
    links: Links,
    limits: AgentLimits,
}

impl Worker {
    fn run(&mut self) {
        while !self.desk.stop.load(Acquire) {
            let started = clock::thread_cpu();
            let worked = self.turn();
            let spent = clock::thread_cpu().saturating_sub(started);
            self.report(spent.0);
            match worked {
                Ok(true) => {}
                Ok(false) => self.sleep(),
                Err(error) => {
                    let mut inbox = self.desk.lock();
                    inbox.error.get_or_insert(error);
                    inbox.tasks.clear();
                    inbox.pending = 0;
                    inbox.roots.clear();
                    self.agent.trace = None;
                    inbox.flags.set_tracing(false);
                    inbox.flags.set_roots(false);
                    inbox.flags.set_ghosts(false);
                }
            }
        }
    }

    fn report(&mut self, spent_ns: u64) {
        let (now, peak) = self.agent.memory_bytes();
        let desk = &self.desk;
        desk.cpu_ns.fetch_add(spent_ns, Relaxed);
        desk.metadata_bytes.store(now, Relaxed);
        desk.metadata_peak.store(peak, Relaxed);
        desk.traced_objects
            .store(self.agent.traced_objects, Relaxed);
        desk.moved_bytes.store(self.agent.moved_bytes, Relaxed);
        desk.discarded.store(self.agent.discarded_traces, Relaxed);
    }

    fn sleep(&self) {
        let inbox = self.desk.lock();
        if inbox.tasks.is_empty() && inbox.roots.is_empty() && !self.desk.stop.load(Acquire) {
            let pause = Duration::from_millis(100);
            drop(self.desk.bell.wait_timeout(inbox, pause));
        }
    }

    /// One thing at a time: a task, or a bit of tracing. Whether there was anything to do.
    fn turn(&mut self) -> Result<bool, String> {
        let (task, roots) = {
            let mut inbox = self.desk.lock();
            let task = inbox.tasks.pop_front();
            let roots = std::mem::take(&mut inbox.roots);
            if !roots.is_empty() {
                // In this order: at no moment does it look as if nothing were to be done.
                inbox.flags.set_tracing(true);
            }
            inbox.flags.set_roots(false);
            (task, roots)
        };
        let mut worked = task.is_some() || !roots.is_empty();
        if let Some((task, input)) = task {
            let result = self.agent.run(task, &input).map_err(|e| e.to_string());
            let mut inbox = self.desk.lock();
            inbox.pending -= 1;
            match result {
                Ok(result) => inbox.result = result,
                Err(error) => {
                    inbox.error.get_or_insert(error);
                }
            }
        }
        for word in roots {
            self.agent.visit(word);
        }
        if self.agent.trace.is_some() {
            worked |= self.trace_on()?;
        } else if !worked && self.agent.has_schedule() {
            worked = self.background()?;
        }
        Ok(worked)
    }

    /// A bit of the trace of everything, and what it found for others.
    fn trace_on(&mut self) -> Result<bool, String> {
        let more = self
            .agent
            .trace_some(TRACE_BUDGET)
            .map_err(|e| e.to_string())?;
        let ghosts: Vec<(u32, Vec<u64>)> = match &mut self.agent.trace {
            // Full buffers at once, others when there is nothing else to do.
            Some(trace) => (0..)
                .zip(&mut trace.ghosts)
                .filter(|(_, ghosts)| ghosts.len() >= GHOSTS || (!more && !ghosts.is_empty()))
                .map(|(server, ghosts)| (server, std::mem::take(ghosts)))
                .collect(),
            None => Vec::new(),
        };
        if !ghosts.is_empty() {
            self.desk.lock().flags.set_ghosts(true);
            for (server, words) in &ghosts {
                self.links.deliver(*server, words)?;
            }
        }
        let left = self
            .agent
            .trace
            .as_ref()
            .is_some_and(|t| t.ghosts.iter().any(|g| !g.is_empty()));
        let mut inbox = self.desk.lock();
        inbox.flags.set_ghosts(left);
        if !more && inbox.roots.is_empty() {
            inbox.flags.set_tracing(false);
        }
        Ok(more || left || !ghosts.is_empty())
    }

    /// A region traced ahead of time, and a rest in proportion.
    fn background(&mut self) -> Result<bool, String> {
        let started = clock::now();
        let worked = self.agent.trace_next_region().map_err(|e| e.to_string())?;
        let share = self.limits.background_share.clamp(0.01, 1.0);
        let spent = clock::now().saturating_sub(started).0 as f64;
        let rest = spent * (1.0 / share - 1.0);
        if rest > 0.0 {
            std::thread::sleep(Duration::from_nanos(rest as u64));
        }
        Ok(worked)
    }
}
