//! What an event loop and an agent's thread share: an inbox, a bell, and counters.
//!
//! Invariant: all that waits in an inbox is counted in the agent's allowance before it is taken in.

use super::allowance::{Allowance, Part};
use super::{Piece, refused};
use muninn_heap_agent::bytes::Reader;
use muninn_heap_agent::command::Task;
use muninn_heap_agent::message::{Ask, GhostBatch, Polled, Stats};
use muninn_heap_agent::termination::Flags;
use muninn_sys::memory::guarded_copy;
use muninn_wire::{ErrorCode, Refusal};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The most that one request moves between the scratch grant and the inbox: the event loop waits
/// for it.
const MOVE_MAX: u64 = 1 << 20;
/// The most tasks that wait.
const TASKS_MAX: usize = 64;
/// References for other servers in one batch.
const BATCH_MAX: usize = 1 << 16;
/// References for other servers that may wait for the heap before tracing pauses.
pub(super) const OUTBOX_MAX: usize = 1 << 19;

#[derive(Debug, Default)]
pub(super) struct Inbox {
    input: Vec<u8>,
    pub(super) tasks: VecDeque<(Task, Vec<u8>)>,
    tasks_bytes: usize,
    /// References that others found.
    pub(super) roots: Vec<u64>,
    pub(super) flags: Flags,
    /// Tasks queued or under way.
    pub(super) pending: u32,
    pub(super) result: Vec<u8>,
    pub(super) error: Option<String>,
    /// References for other servers, which the heap takes there; the first is number `taken`.
    outbox: VecDeque<(u32, Vec<u64>)>,
    outbox_words: usize,
    taken: u64,
    /// The trace has found more of them, which are not here yet.
    pub(super) more_ghosts: bool,
}

impl Inbox {
    fn bytes(&self) -> u64 {
        let bytes = self.input.capacity() + self.tasks_bytes + self.result.capacity();
        (bytes + 8 * (self.roots.capacity() + self.outbox_words)) as u64
    }

    pub(super) fn next_task(&mut self) -> Option<(Task, Vec<u8>)> {
        let next = self.tasks.pop_front()?;
        self.tasks_bytes -= next.1.capacity();
        Some(next)
    }

    pub(super) fn outbox_words(&self) -> usize {
        self.outbox_words
    }

    /// The agent gave up: nothing waits for it any more.
    pub(super) fn fail(&mut self, error: String) {
        let taken = self.taken + self.outbox.len() as u64;
        let mut flags = self.flags;
        flags.set_tracing(false);
        flags.set_roots(false);
        flags.set_ghosts(false);
        *self = Inbox {
            flags,
            error: Some(self.error.take().unwrap_or(error)),
            taken,
            ..Inbox::default()
        };
    }
}

#[derive(Debug)]
pub(super) struct Desk {
    inbox: Mutex<Inbox>,
    pub(super) bell: Condvar,
    pub(super) stop: AtomicBool,
    scratch: Piece,
    pub(super) allowance: Allowance,
    pub(super) served_bytes: u64,
    pub(super) cpu_ns: AtomicU64,
    pub(super) metadata_bytes: AtomicU64,
    pub(super) metadata_peak: AtomicU64,
    pub(super) traced_objects: AtomicU64,
    pub(super) moved_bytes: AtomicU64,
    pub(super) discarded: AtomicU64,
}

impl Desk {
    pub(super) fn new(scratch: Piece, allowance: Allowance, served_bytes: u64) -> Desk {
        Desk {
            inbox: Mutex::default(),
            bell: Condvar::new(),
            stop: AtomicBool::new(false),
            scratch,
            allowance,
            served_bytes,
            cpu_ns: AtomicU64::new(0),
            metadata_bytes: AtomicU64::new(0),
            metadata_peak: AtomicU64::new(0),
            traced_objects: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what the inbox holds, and `more` that is about to come.
    pub(super) fn count(&self, inbox: &Inbox, more: u64) -> Result<(), Refusal> {
        self.allowance.set(Part::Inbox, inbox.bytes() + more)
    }

    /// Puts references for another server where the heap finds them.
    pub(super) fn send(
        &self,
        inbox: &mut Inbox,
        server: u32,
        words: &[u64],
    ) -> Result<(), Refusal> {
        self.count(inbox, 8 * words.len() as u64)?;
        inbox.outbox_words += words.len();
        let batch = BATCH_MAX.min(self.scratch.bytes() as usize / 8);
        let batches = words.chunks(batch);
        inbox
            .outbox
            .extend(batches.map(|batch| (server, batch.to_vec())));
        inbox.flags.set_ghosts(true);
        Ok(())
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            metadata_bytes: self.metadata_bytes.load(Relaxed),
            metadata_peak_bytes: self.metadata_peak.load(Relaxed),
            served_bytes: self.served_bytes,
            cpu_ns: self.cpu_ns.load(Relaxed),
            traced_objects: self.traced_objects.load(Relaxed),
            moved_bytes: self.moved_bytes.load(Relaxed),
            discarded_traces: self.discarded.load(Relaxed),
        }
    }

    /// A request that needs nothing but this desk.
    pub(super) fn answer(&self, ask: Ask<'_>) -> Result<Vec<u8>, Refusal> {
        let mut inbox = self.lock();
        match ask {
            Ask::Append { len } => {
                let (len, had) = (u64::from(len), inbox.input.len());
                if len > MOVE_MAX.min(self.scratch.bytes()) {
                    let most = MOVE_MAX.min(self.scratch.bytes());
                    return Err(Refusal::with(ErrorCode::OutOfBounds, len, most));
                }
                // A list that is full takes twice as much next.
                self.count(&inbox, had as u64 + len)?;
                inbox.input.resize(had + len as usize, 0);
                read_scratch(&self.scratch, &mut inbox.input[had..])
                    .inspect_err(|_| inbox.input.truncate(had))?;
            }
            Ask::Run { task, input } => {
                if inbox.tasks.len() >= TASKS_MAX {
                    return Err(refused("too many tasks wait"));
                }
                self.count(&inbox, (inbox.input.len() + input.len()) as u64)?;
                let mut whole = std::mem::take(&mut inbox.input);
                whole.extend_from_slice(input);
                inbox.pending += 1;
                if task == Task::TraceStart {
                    inbox.flags.set_tracing(true);
                }
                inbox.tasks_bytes += whole.capacity();
                inbox.tasks.push_back((task, whole));
                self.bell.notify_all();
            }
            Ask::Roots => {
                let more = inbox.input.len() + 8 * inbox.roots.len();
                self.count(&inbox, 2 * more as u64)?;
                let input = std::mem::take(&mut inbox.input);
                let words = Reader::new(&input).words().map_err(refused)?;
                inbox.roots.extend(words);
                inbox.flags.set_roots(true);
                self.bell.notify_all();
            }
            Ask::Poll => {
                let polled = Polled {
                    flags: inbox.flags.poll(),
                    pending: inbox.pending,
                    result_len: inbox.result.len() as u64,
                    error: inbox.error.clone().unwrap_or_default(),
                };
                return Ok(polled.encode());
            }
            Ask::Fetch { offset } => {
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                let rest = inbox.result.get(offset..).unwrap_or(&[]);
                let len = rest.len().min(MOVE_MAX.min(self.scratch.bytes()) as usize);
                write_scratch(&self.scratch, &rest[..len])?;
                return Ok((len as u64).to_le_bytes().to_vec());
            }
            Ask::Ghosts { taken } => return self.ghosts(&mut inbox, taken),
            Ask::Stats => return Ok(self.stats().encode()),
            Ask::Attach(_) | Ask::Detach => return Err(refused("not for an agent")),
        }
        Ok(Vec::new())
    }

    /// The batch after those that have been handed over. Asked again for the same one, after a cut,
    /// it gives the same one.
    fn ghosts(&self, inbox: &mut Inbox, taken: u64) -> Result<Vec<u8>, Refusal> {
        while inbox.taken < taken {
            let Some((_, words)) = inbox.outbox.pop_front() else {
                return Err(refused("there were not so many references"));
            };
            inbox.taken += 1;
            inbox.outbox_words -= words.len();
        }
        // Only now: whoever they were for has set its own flag.
        if inbox.outbox.is_empty() {
            let more = inbox.more_ghosts;
            inbox.flags.set_ghosts(more);
        }
        self.bell.notify_all();
        let (server, words) = match inbox.outbox.front() {
            Some((server, words)) => (*server, words.as_slice()),
            None => (0, &[][..]),
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        write_scratch(&self.scratch, &bytes)?;
        let words = words.len() as u32;
        Ok(GhostBatch { server, words }.encode())
    }
}

/// The first bytes of a scratch grant, which must be as long.
pub(super) fn read_scratch(scratch: &Piece, into: &mut [u8]) -> Result<(), Refusal> {
    let from = scratch.mem().at(scratch.start(), into.len() as u64);
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
