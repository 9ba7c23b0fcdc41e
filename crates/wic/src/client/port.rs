//! Memory over a network: an access is a request, and the function waits for its answer while others
//! run (WICKit's one-sided backend).
//!
//! A function's future asks the [`Port`] for an access and is suspended; the engine posts what was
//! asked on its lanes, and puts answers back. One that is dropped with an access under way leaves it to
//! the engine to see that it is not done later.
//!
//! Of the calls of one client that want the same lock, one asks the server for it; the others know from
//! here that it is taken. If all of them asked in every turn, what the holder does next would wait
//! behind their requests, and with enough of them nobody would get anywhere.

use crate::error::WicError;
use crate::local::{Limits, Why};
use crate::memory::{Addr, Layout, Memory};
use muninn_net::{Answer, Buffer, OpError, Verb};
use muninn_types::GrantId;
use muninn_wire::{MAX_PAYLOAD, Seg};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Bytes of buffers that are kept for the next access.
const SPARE_BYTES: usize = 1024;
const SPARE_MAX: usize = 512;

#[derive(Debug)]
enum State {
    Free,
    /// To be posted.
    Asked(Verb, Buffer),
    /// On this lane.
    Posted(usize),
    Answered(Result<Answer, OpError>, Buffer),
    /// Nobody waits for it any more, and it is still on its lane.
    Dropped,
}

#[derive(Debug)]
struct Slot {
    task: usize,
    state: State,
}

#[derive(Debug, Default)]
struct Inner {
    slots: Vec<Slot>,
    free: Vec<usize>,
    asked: VecDeque<usize>,
    /// Given up while under way: slot and lane.
    given_up: Vec<(usize, usize)>,
    /// Locks whose calls ended without giving them back, and which calls.
    orphans: Vec<(u32, u64)>,
    /// Locks that a call of this client holds or asks for, and which call; few at a time.
    claims: Vec<(u32, u64)>,
    spare: Vec<Buffer>,
}

/// Accesses of all functions that run at this client.
#[derive(Debug)]
pub struct Port {
    pub layout: Layout,
    pub grants: Vec<GrantId>,
    inner: RefCell<Inner>,
    /// The task that is being resumed, and whether it asked for a change.
    pub current: Cell<usize>,
    pub changed: Cell<bool>,
}

impl Port {
    pub fn new(layout: Layout, grants: Vec<GrantId>) -> Rc<Port> {
        Rc::new(Port {
            layout,
            grants,
            inner: RefCell::default(),
            current: Cell::new(usize::MAX),
            changed: Cell::new(false),
        })
    }

    /// A buffer of at least this length.
    pub fn buffer(&self, len: usize) -> Buffer {
        if len > SPARE_BYTES {
            return Buffer::new(len);
        }
        let spare = self.inner.borrow_mut().spare.pop();
        spare.unwrap_or_else(|| Buffer::new(SPARE_BYTES))
    }
    pub fn give_back(&self, buffer: Buffer) {
        let mut inner = self.inner.borrow_mut();
        if buffer.len() == SPARE_BYTES && inner.spare.len() < SPARE_MAX {
            inner.spare.push(buffer);
        }
    }

    fn ask(&self, verb: Verb, data: Buffer) -> usize {
        let mut inner = self.inner.borrow_mut();
        let slot = Slot {
            task: self.current.get(),
            state: State::Asked(verb, data),
        };
        let at = match inner.free.pop() {
            Some(at) => {
                inner.slots[at] = slot;
                at
            }
            None => {
                inner.slots.push(slot);
                inner.slots.len() - 1
            }
        };
        inner.asked.push_back(at);
        at
    }

    fn take_answer(&self, at: usize) -> Option<(Result<Answer, OpError>, Buffer)> {
        let mut inner = self.inner.borrow_mut();
        match std::mem::replace(&mut inner.slots[at].state, State::Free) {
            State::Answered(result, data) => {
                inner.free.push(at);
                Some((result, data))
            }
            other => {
                inner.slots[at].state = other;
                None
            }
        }
    }

    /// The future that waited is gone.
    fn give_up(&self, at: usize) {
        let mut inner = self.inner.borrow_mut();
        match std::mem::replace(&mut inner.slots[at].state, State::Free) {
            State::Posted(lane) => {
                inner.slots[at].state = State::Dropped;
                inner.given_up.push((at, lane));
            }
            State::Asked(..) => {
                inner.asked.retain(|slot| *slot != at);
                inner.free.push(at);
            }
            State::Answered(..) => inner.free.push(at),
            State::Free | State::Dropped => unreachable!("a future gives its access up once"),
        }
    }

    // --- for the engine

    /// The next access to post, as slot, verb and data.
    pub fn next_asked(&self) -> Option<(usize, Verb, Buffer)> {
        let mut inner = self.inner.borrow_mut();
        let at = inner.asked.pop_front()?;
        match std::mem::replace(&mut inner.slots[at].state, State::Posted(usize::MAX)) {
            State::Asked(verb, data) => Some((at, verb, data)),
            _ => unreachable!("only what is asked is in the queue"),
        }
    }
    /// No lane had room for it.
    pub fn ask_again(&self, at: usize, verb: Verb, data: Buffer) {
        let mut inner = self.inner.borrow_mut();
        inner.slots[at].state = State::Asked(verb, data);
        inner.asked.push_front(at);
    }
    pub fn posted(&self, at: usize, lane: usize) {
        self.inner.borrow_mut().slots[at].state = State::Posted(lane);
    }
    /// An answer came; the task to resume, if it still waits.
    pub fn answered(
        &self,
        at: usize,
        result: Result<Answer, OpError>,
        data: Buffer,
    ) -> Option<usize> {
        let mut inner = self.inner.borrow_mut();
        let slot = inner.slots.get_mut(at)?;
        match slot.state {
            State::Posted(_) => {
                slot.state = State::Answered(result, data);
                Some(slot.task)
            }
            State::Dropped => {
                slot.state = State::Free;
                inner.free.push(at);
                None
            }
            _ => None,
        }
    }
    /// Accesses that were given up while under way, as slot and lane; they are free from now on.
    pub fn take_given_up(&self) -> Vec<(usize, usize)> {
        let mut inner = self.inner.borrow_mut();
        let given_up = std::mem::take(&mut inner.given_up);
        let mut still = Vec::new();
        for (at, lane) in given_up {
            // Its answer may have come since.
            if matches!(inner.slots[at].state, State::Dropped) {
                inner.slots[at].state = State::Free;
                inner.free.push(at);
                still.push((at, lane));
            }
        }
        still
    }
    /// A call of this client does not hold a lock any more.
    fn let_go(&self, index: u32, holder: u64) {
        let claims = &mut self.inner.borrow_mut().claims;
        claims.retain(|claim| *claim != (index, holder));
    }
    pub fn take_orphans(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.inner.borrow_mut().orphans)
    }
    pub fn has_loose_ends(&self) -> bool {
        let inner = self.inner.borrow();
        !inner.given_up.is_empty() || !inner.orphans.is_empty()
    }

    /// The segments of a checked range.
    pub fn segs(&self, at: u64, len: usize) -> Vec<Seg> {
        let shift = self.layout.shift;
        let chunk = 1u64 << shift;
        let mut segs = Vec::with_capacity(1);
        let mut done = 0;
        while done < len as u64 {
            let here = at + done;
            let within = here & (chunk - 1);
            let n = (chunk - within).min(len as u64 - done);
            let grant = self.grants[(here >> shift) as usize];
            segs.push(Seg::new(grant, within as u32, n as u32));
            done += n;
        }
        segs
    }
    pub fn word(&self, at: u64) -> (GrantId, u32) {
        let shift = self.layout.shift;
        let within = at & ((1 << shift) - 1);
        (self.grants[(at >> shift) as usize], within as u32)
    }
}

/// Waits for an access.
struct Access<'p> {
    port: &'p Port,
    at: usize,
    waits: bool,
}

impl Future for Access<'_> {
    type Output = (Result<Answer, OpError>, Buffer);
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.port.take_answer(self.at) {
            Some(answer) => {
                self.waits = false;
                Poll::Ready(answer)
            }
            None => {
                crate::local::set_why(Why::Memory);
                Poll::Pending
            }
        }
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.port.give_up(self.at);
        }
    }
}

/// The memory of one call that runs at a client, far from it.
#[derive(Debug)]
pub struct FarMemory {
    port: Rc<Port>,
    holder: u64,
    limits: Limits,
    steps: Cell<u32>,
    accesses: Cell<u32>,
    /// It has asked for a lock.
    claims: Cell<bool>,
}

impl FarMemory {
    pub fn new(port: Rc<Port>, holder: u64, limits: Limits) -> FarMemory {
        FarMemory {
            port,
            holder,
            limits,
            steps: Cell::new(0),
            accesses: Cell::new(0),
            claims: Cell::new(false),
        }
    }
    pub fn accesses(&self) -> u32 {
        self.accesses.get()
    }
    pub fn limits(&self) -> Limits {
        self.limits
    }

    async fn access(&self, verb: Verb, data: Buffer) -> Result<(Answer, Buffer), WicError> {
        self.accesses.set(self.accesses.get() + 1);
        if !matches!(verb, Verb::Read(_)) {
            self.port.changed.set(true);
        }
        let access = Access {
            port: &self.port,
            at: self.port.ask(verb, data),
            waits: true,
        };
        let (result, data) = access.await;
        match result {
            Ok(answer) => Ok((answer, data)),
            Err(error) => Err(WicError::Access(error.to_string())),
        }
    }

    async fn swap(&self, at: u64, expect: u64, new: u64) -> Result<u64, WicError> {
        let (grant, offset) = self.port.word(at);
        let verb = Verb::CompareSwap {
            grant,
            offset,
            expect,
            new,
        };
        self.old(verb).await
    }

    async fn old(&self, verb: Verb) -> Result<u64, WicError> {
        match self.access(verb, Buffer::empty()).await? {
            (Answer::Old(old), _) => Ok(old),
            _ => Err(WicError::Access("an answer of another kind".to_string())),
        }
    }
}

impl Memory for FarMemory {
    fn base(&self) -> Addr {
        Addr(self.port.layout.base)
    }
    fn end(&self) -> Addr {
        Addr(self.port.layout.bytes)
    }

    async fn read_into(&self, at: Addr, into: &mut [u8]) -> Result<(), WicError> {
        self.port.layout.check(at, into.len())?;
        let mut done = 0;
        while done < into.len() {
            let n = (into.len() - done).min(MAX_PAYLOAD);
            self.tick()?;
            let segs = self.port.segs(at.0 + done as u64, n);
            let (_, data) = self.access(Verb::Read(segs), self.port.buffer(n)).await?;
            into[done..done + n].copy_from_slice(&data.as_ref()[..n]);
            self.port.give_back(data);
            done += n;
        }
        Ok(())
    }
    async fn write_from(&self, at: Addr, from: &[u8]) -> Result<(), WicError> {
        self.port.layout.check(at, from.len())?;
        let mut done = 0;
        while done < from.len() {
            let n = (from.len() - done).min(MAX_PAYLOAD);
            self.tick()?;
            let segs = self.port.segs(at.0 + done as u64, n);
            let mut data = self.port.buffer(n);
            data.as_mut()[..n].copy_from_slice(&from[done..done + n]);
            let (_, data) = self.access(Verb::Write(segs), data).await?;
            self.port.give_back(data);
            done += n;
        }
        Ok(())
    }
    async fn compare_swap(&self, at: Addr, expect: u64, new: u64) -> Result<u64, WicError> {
        self.port.layout.check_word(at)?;
        self.tick()?;
        self.swap(at.0, expect, new).await
    }
    async fn fetch_add(&self, at: Addr, add: u64) -> Result<u64, WicError> {
        self.port.layout.check_word(at)?;
        self.tick()?;
        let (grant, offset) = self.port.word(at.0);
        self.old(Verb::FetchAdd { grant, offset, add }).await
    }

    fn locks(&self) -> u32 {
        self.port.layout.locks
    }
    fn tick(&self) -> Result<(), WicError> {
        let steps = self.steps.get() + 1;
        self.steps.set(steps);
        if steps > self.limits.steps {
            return Err(WicError::Steps(u64::from(self.limits.steps)));
        }
        Ok(())
    }
    async fn pause(&self) -> Result<(), WicError> {
        crate::local::suspend(Why::Pause).await;
        Ok(())
    }

    fn holder(&self) -> u64 {
        self.holder
    }
    async fn swap_lock(&self, index: u32, expect: u64, new: u64) -> Result<u64, WicError> {
        let at = self.port.layout.lock_word(index)?;
        if new == self.holder
            && let Err(holder) = self.claim(index)
        {
            return Ok(holder);
        }
        let found = self.swap(at.0, expect, new).await?;
        if expect == self.holder {
            self.port.let_go(index, self.holder);
        }
        Ok(found)
    }
    fn orphan_lock(&self, index: u32) {
        let orphan = (index, self.holder);
        self.port.inner.borrow_mut().orphans.push(orphan);
        self.port.let_go(index, self.holder);
    }
}

impl FarMemory {
    /// Asks for a lock on behalf of this client, or says which of its calls does so already.
    fn claim(&self, index: u32) -> Result<(), u64> {
        let claims = &mut self.port.inner.borrow_mut().claims;
        match claims.iter().find(|(claimed, _)| *claimed == index) {
            Some((_, holder)) if *holder != self.holder => return Err(*holder),
            Some(_) => {}
            None => claims.push((index, self.holder)),
        }
        self.claims.set(true);
        Ok(())
    }
}

impl Drop for FarMemory {
    fn drop(&mut self) {
        // A call that was ended while it waited for a lock leaves that to the next.
        if self.claims.get() {
            let claims = &mut self.port.inner.borrow_mut().claims;
            claims.retain(|(_, holder)| *holder != self.holder);
        }
    }
}
