//! The thread of an agent: tasks one after the other, and a bit of tracing in between.

use super::allowance::Part;
use super::desk::{Desk, OUTBOX_MAX};
use super::words::GrantWords;
use super::{AgentLimits, Running};
use muninn_heap_agent::agent::Agent;
use muninn_sys::clock;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Objects traced between two looks at the queue.
const TRACE_BUDGET: usize = 2048;
/// References for another server that are worth a batch while there is more to trace.
const GHOSTS: usize = 4096;

pub(super) struct Worker {
    pub(super) desk: Arc<Desk>,
    pub(super) agent: Agent<GrantWords>,
    pub(super) limits: AgentLimits,
    /// The agent counts as running until its thread has let go of everything.
    pub(super) _running: Running,
}

impl Worker {
    pub(super) fn run(&mut self) {
        while !self.desk.stop.load(Acquire) {
            let started = clock::thread_cpu();
            let worked = self.turn();
            let spent = clock::thread_cpu().saturating_sub(started);
            let worked = worked.and_then(|worked| self.report(spent.0).map(|()| worked));
            match worked {
                Ok(true) => {}
                Ok(false) => self.sleep(),
                Err(error) => {
                    self.agent.trace = None;
                    let mut inbox = self.desk.lock();
                    inbox.fail(error);
                    // Fewer than before are never refused.
                    let _ = self.desk.count(&inbox, 0);
                }
            }
        }
    }

    fn report(&mut self, spent_ns: u64) -> Result<(), String> {
        let (now, peak) = self.agent.memory_bytes();
        let desk = &self.desk;
        desk.cpu_ns.fetch_add(spent_ns, Relaxed);
        desk.metadata_bytes.store(now, Relaxed);
        desk.metadata_peak.store(peak, Relaxed);
        desk.traced_objects
            .store(self.agent.traced_objects, Relaxed);
        desk.moved_bytes.store(self.agent.moved_bytes, Relaxed);
        desk.discarded.store(self.agent.discarded_traces, Relaxed);
        let most = Agent::<GrantWords>::memory_max(self.agent.geometry(), self.agent.me());
        let kept = desk.allowance.set_when_wiped(Part::Kept, now.max(most));
        kept.map_err(|refusal| refusal.to_string())
    }

    fn sleep(&self) {
        let inbox = self.desk.lock();
        let paused = self.agent.trace.as_ref().is_some_and(|t| !t.is_idle());
        let idle = inbox.tasks.is_empty() && inbox.roots.is_empty();
        if idle && !(paused && inbox.outbox_words() < OUTBOX_MAX) && !self.desk.stop.load(Acquire) {
            let pause = Duration::from_millis(100);
            drop(self.desk.bell.wait_timeout(inbox, pause));
        }
    }

    /// One thing at a time: a task, or a bit of tracing. Whether there was anything to do.
    fn turn(&mut self) -> Result<bool, String> {
        let (task, roots) = {
            let mut inbox = self.desk.lock();
            let task = inbox.next_task();
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
            let mut room = &self.desk.allowance;
            let result = self.agent.run(task, &input, &mut room);
            let result = result.map_err(|e| e.to_string());
            drop(input);
            if let Ok(result) = &result {
                let room = self.desk.allowance.make_room(result.capacity() as u64);
                room.map_err(|refusal| refusal.to_string())?;
            }
            let mut inbox = self.desk.lock();
            inbox.pending -= 1;
            match result {
                Ok(result) => {
                    inbox.result = Vec::new();
                    let counted = self.desk.count(&inbox, result.capacity() as u64);
                    counted.map_err(|refusal| refusal.to_string())?;
                    inbox.result = result;
                }
                Err(error) => {
                    inbox.error.get_or_insert(error);
                }
            }
            drop(inbox);
            // What the task took is free again, or counted elsewhere by now.
            let _ = self.desk.allowance.set(Part::Task, 0);
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
        // While the heap does not take what others are to get, no more is looked for.
        let taken = self.desk.lock().outbox_words() < OUTBOX_MAX;
        let budget = if taken { TRACE_BUDGET } else { 0 };
        let more = self.agent.trace_some(budget).map_err(|e| e.to_string())?;
        let Some(trace) = &mut self.agent.trace else {
            return Ok(false);
        };
        let more = more || !trace.is_idle();
        let mut sent = false;
        let waits = |ghosts: &Vec<u64>| !ghosts.is_empty();
        for server in 0..trace.ghosts.len() {
            let count = trace.ghosts[server].len();
            // Many at a time; the rest when there is nothing else to do.
            let due = count >= GHOSTS || count > 0 && (!more || trace.is_full());
            if taken && due {
                let words = trace.take_ghosts(server);
                let room = self.desk.allowance.make_room(8 * words.len() as u64);
                room.map_err(|refusal| refusal.to_string())?;
                let mut inbox = self.desk.lock();
                inbox.more_ghosts = trace.ghosts.iter().any(waits);
                let told = self.desk.send(&mut inbox, server as u32, &words);
                told.map_err(|refusal| refusal.to_string())?;
                sent = true;
            }
        }
        if trace.is_stuck() {
            // One object refers to more than may wait.
            trace.ghosts_max *= 2;
            let room = 16 * trace.ghosts_max as u64;
            let held = self.desk.allowance.set_when_wiped(Part::Task, room);
            held.map_err(|refusal| refusal.to_string())?;
        }
        let left = trace.ghosts.iter().any(waits);
        let mut inbox = self.desk.lock();
        inbox.more_ghosts = left;
        let ghosts = left || inbox.outbox_words() > 0;
        inbox.flags.set_ghosts(ghosts);
        if !more && inbox.roots.is_empty() {
            inbox.flags.set_tracing(false);
        }
        Ok(taken && (more || left || sent))
    }

    /// A region traced ahead of time, and a rest in proportion.
    fn background(&mut self) -> Result<bool, String> {
        let bytes = self.agent.geometry().region_bytes();
        // A stack of a word for each granule at most.
        let room = self.desk.allowance.set_when_wiped(Part::Task, bytes);
        room.map_err(|refusal| refusal.to_string())?;
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
