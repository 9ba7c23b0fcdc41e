//! A heap's side of its agents: start them, give them tasks, wait for results.
//!
//! What is long goes through one scratch grant at each server. Tasks run on the agents' own
//! threads; this side polls, because the answer to a poll is also what the termination protocol
//! needs. Invariant: an agent that gave up, or whose server is gone, is an error here and never a
//! result.

use crate::error::HeapError;
use crate::pager::wait_a_moment;
use crate::stats::AgentStats;
use muninn_heap_agent::bytes::{Reader, Short, Writer};
use muninn_heap_agent::command::Task;
use muninn_heap_agent::layout::{Geometry, TypeDescriptor};
use muninn_heap_agent::message::{Ask, Attach, GhostBatch, Polled, Stats};
use muninn_net::{Answer, Control, Grant, NetError, Pool};
use muninn_sys::clock;
use muninn_types::{Bytes, Nanos, ServerId};
use muninn_wire::{ErrorCode, MAX_BODY};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Size of a scratch grant.
const SCRATCH: Bytes = Bytes::mib(1);
/// How long an agent may take to answer a call, and for a task.
const CALL: Duration = Duration::from_secs(30);
const TASK: Duration = Duration::from_secs(120);

/// The agents of a heap.
#[derive(Debug)]
pub struct Remote {
    pool: Arc<Pool>,
    scratch: Vec<Grant>,
    /// One conversation at a time with each server; batches of references taken from its agent.
    locks: Vec<Mutex<u64>>,
    carrying: Mutex<()>,
    /// From the start of tasks to their results: an agent keeps the result of the last task alone, and
    /// mutators register types while a collection has tasks of its own.
    results: Mutex<()>,
    detached: AtomicBool,
}

fn unclear(_: Short) -> HeapError {
    HeapError::Agent(
        "a server".to_string(),
        "its answer makes no sense".to_string(),
    )
}

impl Remote {
    /// Starts an agent at every server.
    pub fn attach(
        pool: &Arc<Pool>,
        geometry: &Geometry,
        grants: &[Grant],
    ) -> Result<Remote, HeapError> {
        let servers = pool.len() as u32;
        let mut remote = Remote {
            pool: Arc::clone(pool),
            scratch: Vec::new(),
            locks: (0..servers).map(|_| Mutex::default()).collect(),
            carrying: Mutex::default(),
            results: Mutex::default(),
            detached: AtomicBool::new(false),
        };
        for server in 0..servers {
            let transport = pool.transport(ServerId(server))?;
            let size = SCRATCH.min(transport.max_grant());
            remote.scratch.push(pool.grant_at(ServerId(server), size)?);
        }
        for server in 0..servers {
            let mut list = Writer::default();
            for grant in grants.iter().filter(|grant| grant.server.0 == server) {
                list.u64(grant.id.0);
            }
            let scratch = &remote.scratch[server as usize];
            if list.0.len() as u64 > scratch.bytes.0 {
                return Err(HeapError::Agent(
                    remote.name(server),
                    "the heap has too many regions for it; make them larger".to_string(),
                ));
            }
            pool.write(scratch, 0, &list.0)?;
            let attach = Ask::Attach(Attach {
                geometry: *geometry,
                me: server,
                servers,
                scratch: scratch.id.0,
                list_len: list.0.len() as u32,
            });
            remote.call(server, attach)?;
        }
        Ok(remote)
    }

    pub fn servers(&self) -> u32 {
        self.scratch.len() as u32
    }

    fn lock(&self, server: u32) -> MutexGuard<'_, u64> {
        self.locks[server as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, server: u32) -> String {
        match self.pool.transport(ServerId(server)) {
            Ok(transport) => transport.address().to_string(),
            Err(_) => format!("server {server}"),
        }
    }

    fn call(&self, server: u32, ask: Ask<'_>) -> Result<Vec<u8>, HeapError> {
        let transport = self.pool.transport(ServerId(server))?;
        match transport.call(Control::Agent(ask.encode()), CALL) {
            Ok(Answer::Agent(answer)) => Ok(answer),
            Ok(_) => Err(unclear(Short)),
            // One that does not know the request closes the connection for it.
            Err(NetError::Refused(address, refusal))
                if matches!(refusal.code, ErrorCode::NoAgent | ErrorCode::Malformed) =>
            {
                Err(HeapError::NoAgent(address.to_string()))
            }
            Err(NetError::Refused(address, refusal)) if refusal.code == ErrorCode::AgentRefused => {
                Err(HeapError::Agent(
                    address.to_string(),
                    refusal.remark.to_string(),
                ))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Puts input into an agent's hands.
    fn send(&self, server: u32, input: &[u8]) -> Result<(), HeapError> {
        let scratch = &self.scratch[server as usize];
        for chunk in input.chunks(scratch.bytes.0 as usize) {
            self.pool.write(scratch, 0, chunk)?;
            let len = chunk.len() as u32;
            self.call(server, Ask::Append { len })?;
        }
        Ok(())
    }

    /// Starts a task.
    pub fn start(&self, server: u32, task: Task, input: &[u8]) -> Result<(), HeapError> {
        let _mine = self.lock(server);
        let mut rest = input;
        if input.len() >= MAX_BODY - 8 {
            self.send(server, input)?;
            rest = &[];
        }
        self.call(server, Ask::Run { task, input: rest })
            .map(|_| ())
    }

    /// More to trace.
    pub fn roots(&self, server: u32, words: &[u64]) -> Result<(), HeapError> {
        let _mine = self.lock(server);
        let mut input = Writer::default();
        input.words(words);
        self.send(server, &input.0)?;
        self.call(server, Ask::Roots).map(|_| ())
    }

    pub fn poll(&self, server: u32) -> Result<Polled, HeapError> {
        let answer = self.call(server, Ask::Poll)?;
        let polled = Polled::decode(&answer).map_err(unclear)?;
        if !polled.error.is_empty() {
            return Err(HeapError::Agent(self.name(server), polled.error));
        }
        if polled.flags.ghosts {
            self.carry_ghosts(server)?;
        }
        Ok(polled)
    }

    /// Takes references that an agent found to the servers that they belong to. Servers do not know
    /// each other; what one has found is acknowledged when the other has taken it.
    fn carry_ghosts(&self, server: u32) -> Result<(), HeapError> {
        // One at a time: a batch is acknowledged by asking for the one after it.
        let _carrying = self.carrying.lock();
        loop {
            let mut taken = self.lock(server);
            let answer = self.call(server, Ask::Ghosts { taken: *taken })?;
            let batch = GhostBatch::decode(&answer).map_err(unclear)?;
            if batch.words == 0 {
                return Ok(());
            }
            let scratch = &self.scratch[server as usize];
            let fits = u64::from(batch.words) * 8 <= scratch.bytes.0;
            if !fits || batch.server >= self.servers() || batch.server == server {
                return Err(unclear(Short));
            }
            let mut bytes = vec![0; batch.words as usize * 8];
            self.pool.read(scratch, 0, &mut bytes)?;
            *taken += 1;
            drop(taken);
            let words = bytes.as_chunks::<8>().0.iter();
            let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
            self.roots(batch.server, &words)?;
        }
    }

    /// Has an agent do one task; the result.
    pub fn one(&self, server: u32, task: Task, input: &[u8]) -> Result<Vec<u8>, HeapError> {
        let _mine = self.results.lock();
        self.start(server, task, input)?;
        self.wait(server)
    }

    /// Waits until an agent has done all its tasks; the result of the last.
    fn wait(&self, server: u32) -> Result<Vec<u8>, HeapError> {
        let ends = clock::now() + Nanos::from(TASK);
        let mut spins = 0;
        let len = loop {
            let polled = self.poll(server)?;
            if polled.pending == 0 {
                break polled.result_len;
            }
            if clock::now() > ends {
                let why = format!("it did not finish a task within {TASK:?}");
                return Err(HeapError::Agent(self.name(server), why));
            }
            nap(&mut spins);
        };
        let _mine = self.lock(server);
        let scratch = &self.scratch[server as usize];
        let mut result = Vec::with_capacity(len as usize);
        while (result.len() as u64) < len {
            let offset = result.len() as u64;
            let answer = self.call(server, Ask::Fetch { offset })?;
            let got = Reader::new(&answer).u64().map_err(unclear)? as usize;
            if got == 0 {
                return Err(unclear(Short));
            }
            let had = result.len();
            result.resize(had + got, 0);
            self.pool.read(scratch, 0, &mut result[had..])?;
        }
        Ok(result)
    }

    /// Gives every server its input and waits for all; the results in order.
    pub fn all(&self, task: Task, inputs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, HeapError> {
        let _mine = self.results.lock();
        for (server, input) in (0..).zip(inputs) {
            self.start(server, task, input)?;
        }
        (0..self.servers())
            .map(|server| self.wait(server))
            .collect()
    }

    pub fn add_type(&self, descriptor: &TypeDescriptor) -> Result<(), HeapError> {
        let mut input = Writer::default();
        descriptor.encode(&mut input);
        let inputs = vec![input.0; self.servers() as usize];
        self.all(Task::Types, &inputs).map(|_| ())
    }

    pub fn stats(&self) -> Vec<AgentStats> {
        let ask = |server| -> Result<AgentStats, HeapError> {
            let answer = self.call(server, Ask::Stats)?;
            let stats = Stats::decode(&answer).map_err(unclear)?;
            Ok(AgentStats {
                server: self.name(server),
                metadata: Bytes(stats.metadata_bytes),
                metadata_peak: Bytes(stats.metadata_peak_bytes),
                served: Bytes(stats.served_bytes),
                cpu_seconds: stats.cpu_ns as f64 / 1e9,
                traced_objects: stats.traced_objects,
                moved: Bytes(stats.moved_bytes),
                discarded_traces: stats.discarded_traces,
            })
        };
        // One that does not answer has nothing to report.
        (0..self.servers())
            .filter_map(|server| ask(server).ok())
            .collect()
    }

    pub fn detach(&self) {
        if self.detached.swap(true, Relaxed) {
            return;
        }
        for server in 0..self.servers() {
            let _ = self.call(server, Ask::Detach);
        }
        let _ = self.pool.release(&self.scratch);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Looks again soon at first, then more and more rarely: a look costs the server as much as it costs
/// us, and where both share processors with the agent it is the agent that is kept from its work.
/// Eight looks for each doubling, so that no more than an eighth of a wait is waited in vain.
pub fn nap(spins: &mut u32) {
    const SOON: u32 = 8;
    const LOOKS: u32 = 8;
    if *spins < SOON {
        wait_a_moment(spins);
    } else {
        *spins += 1;
        let doublings = ((*spins - SOON) / LOOKS).min(7);
        std::thread::sleep(Duration::from_micros(16 << doublings));
    }
}
