//! One event loop: its connections, its shard, and the order in which they are served.
//!
//! Ready connections wait in a weighted round-robin by the class of what they last asked for; after
//! each turn the loop looks for what has become ready meanwhile, so a demand read waits for at most
//! one turn of bulk. With nothing to do the loop spins for a bounded time before it sleeps: waking
//! a sleeping CPU costs more than everything else a request needs.

use crate::calls::{CALLS_BATCH, Calls};
use crate::connection::{Connection, HEAD_READ, Turn};
use crate::halt::{Halt, Verdict};
use crate::heirs::Heirs;
use crate::segment::MemfdBacking;
use muninn_policy::wrr::{Weights, Wrr};
use muninn_proto::secure::UnixTime;
use muninn_proto::server::{Out, Peer, Shard};
use muninn_sys::clock::{self, Courtesy};
use muninn_sys::epoll::{Epoll, EventFd, Events, Interest};
use muninn_sys::pm_qos::{self, LatencyGuard};
use muninn_sys::socket::{Listener, Stream};
use muninn_types::{Bytes, ConnId, Nanos};
use muninn_wire::Notice;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Addresses that a server listens at, at most: each has a token of its own, counted down from the first.
pub(crate) const LISTENERS_MAX: usize = 256;
const LISTENER_TOKEN: u64 = u64::MAX;
const MAILBOX_TOKEN: u64 = u64::MAX - LISTENERS_MAX as u64;
/// Bytes for each unit of weight in a round.
const QUANTUM: Bytes = Bytes::kib(4);
/// How many connections can wait for one loop to take them over.
const MAILBOX_MAX: usize = 1024;
/// Connections taken from the kernel's queue in one go.
const ACCEPT_MAX: usize = 64;
/// Small turns between two looks at what has become ready.
const TURNS_BETWEEN_LOOKS: usize = 4;

/// A connection on its way to another loop, with what was read of it.
#[derive(Debug)]
pub(crate) struct Handed {
    pub stream: Stream,
    pub peer: Peer,
    pub bytes: Vec<u8>,
}

/// How other threads reach a loop.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: Mutex<VecDeque<Handed>>,
    bell: EventFd,
    stop: AtomicBool,
    halted: AtomicBool,
    halt: Mutex<Option<Arc<Halt>>>,
}

impl Mailbox {
    pub(crate) fn new() -> Result<Mailbox, rustix::io::Errno> {
        let queue = Mutex::new(VecDeque::new());
        Ok(Mailbox {
            queue,
            bell: EventFd::new()?,
            stop: AtomicBool::new(false),
            halted: AtomicBool::new(false),
            halt: Mutex::new(None),
        })
    }

    /// Has the loop stand still until it is told how to go on.
    pub(crate) fn halt(&self, halt: &Arc<Halt>) {
        *lock(&self.halt) = Some(Arc::clone(halt));
        self.halted.store(true, Relaxed);
        self.bell.notify();
    }

    /// Hands a connection over; dropped, and so closed, when too many wait.
    pub(crate) fn hand(&self, handed: Handed) {
        let mut queue = lock(&self.queue);
        if queue.len() < MAILBOX_MAX {
            queue.push_back(handed);
        }
        drop(queue);
        self.bell.notify();
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.bell.notify();
    }

    fn take(&self) -> Option<Handed> {
        lock(&self.queue).pop_front()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopOptions {
    pub spin: Duration,
    pub weights: Weights,
    pub keep_awake: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct EventLoop {
    index: usize,
    epoll: Epoll,
    shard: Shard<MemfdBacking>,
    out: Out<MemfdBacking>,
    connections: HashMap<ConnId, Connection>,
    ready: Wrr<ConnId>,
    /// Connections whose reply did not fit a moment ago; looked at again soon.
    retry: Vec<ConnId>,
    /// Only the first loop has any.
    listeners: Vec<Listener>,
    accept_paused: bool,
    mailboxes: Arc<Vec<Mailbox>>,
    heirs: Arc<Heirs>,
    next_conn: u64,
    next_loop: usize,
    options: LoopOptions,
    awake: Option<LatencyGuard>,
    scratch: Box<[u8; HEAD_READ]>,
    /// Connections to which calls have just been answered.
    answered: Vec<ConnId>,
    /// Connections that have just come.
    fresh: Vec<ConnId>,
    /// When it was last looked what is ready.
    looked: Nanos,
    /// When the last turn was over.
    turned: Nanos,
}

impl EventLoop {
    pub(crate) fn new(
        index: usize,
        shard: Shard<MemfdBacking>,
        listeners: Vec<Listener>,
        mailboxes: Arc<Vec<Mailbox>>,
        heirs: Arc<Heirs>,
        options: LoopOptions,
    ) -> Result<EventLoop, rustix::io::Errno> {
        let epoll = Epoll::new()?;
        epoll.add(&mailboxes[index].bell, MAILBOX_TOKEN, Interest::READ)?;
        for (i, listener) in listeners.iter().enumerate() {
            epoll.add(listener, LISTENER_TOKEN - i as u64, Interest::READ)?;
        }
        Ok(EventLoop {
            index,
            epoll,
            shard,
            out: Out::default(),
            connections: HashMap::new(),
            retry: Vec::new(),
            ready: Wrr::new(options.weights, QUANTUM, usize::MAX),
            listeners,
            accept_paused: false,
            mailboxes,
            heirs,
            next_conn: 1,
            next_loop: 0,
            options,
            awake: None,
            scratch: Box::new([0; HEAD_READ]),
            answered: Vec::new(),
            fresh: Vec::new(),
            looked: Nanos::ZERO,
            turned: Nanos::ZERO,
        })
    }

    /// Runs until told to stop, and calls with it.
    pub(crate) fn run(mut self, mut calls: Calls) {
        let lease = self.shard.shared().config.lease;
        let tick = Nanos((lease.0 / 8).clamp(10_000_000, 250_000_000));
        let mut events = Events::default();
        let mut now = clock::now();
        let mut next_tick = now + tick;
        let mut idle_since = now;
        let mut turns = 0;
        let mut courtesy = Courtesy::default();
        while !self.mailboxes[self.index].stop.load(Relaxed) {
            if self.mailboxes[self.index].halted.load(Relaxed) {
                if let Verdict::End | Verdict::NeverBegin = self.stand_still() {
                    return;
                }
                now = clock::now();
            }
            if self.ready.is_empty() || turns >= TURNS_BETWEEN_LOOKS {
                turns = 0;
                let spinning = now.saturating_sub(idle_since) < Nanos::from(self.options.spin);
                let busy = !self.ready.is_empty() || !self.retry.is_empty();
                let wait = match calls.pace() {
                    _ if busy || spinning => Duration::ZERO,
                    Some(pace) => pace,
                    None => next_tick.saturating_sub(now).into(),
                };
                let found = self.epoll.wait(&mut events, Some(wait));
                self.looked = clock::now();
                self.turned = self.looked;
                match found {
                    Ok(0) if busy => {}
                    Ok(0) => courtesy.pause(),
                    Ok(_) => self.note_ready(&events),
                    Err(error) => panic!("waiting for events failed: {error}"),
                }
                while let Some(id) = self.retry.pop() {
                    self.enqueue(id);
                }
                now = self.looked;
                self.greet(&mut calls, now);
                if now >= next_tick {
                    self.tick(now);
                    next_tick = now + tick;
                }
            }
            if let Some(turn) = self.ready.next() {
                let moved = self.serve(&mut calls, turn.item, turn.budget, now);
                self.ready.charge(turn.class, Bytes(moved as u64));
                // A long turn may have let something urgent arrive.
                turns += if moved > HEAD_READ {
                    TURNS_BETWEEN_LOOKS
                } else {
                    1
                };
                if moved > 0 {
                    idle_since = now;
                }
            }
            // Calls of several connections are run together, but nobody waits for more to come.
            let all_in = self.ready.is_empty() || calls.fresh() >= CALLS_BATCH;
            if all_in && !calls.is_idle() {
                self.run_calls(&mut calls, now);
            }
        }
        self.say_goodbye(&mut calls);
    }

    /// Does nothing until somebody has decided who goes on with the sessions: this process or the next.
    fn stand_still(&mut self) -> Verdict {
        let mailbox = &self.mailboxes[self.index];
        mailbox.halted.store(false, Relaxed);
        let Some(halt) = lock(&mailbox.halt).take() else {
            return Verdict::GoOn;
        };
        let verdict = halt.arrive(|will, listeners| {
            will.add(&self.shard);
            // One that is missing is noticed by whoever counts them.
            let copies = (self.listeners.iter()).filter_map(|listener| {
                Some((listener.address().clone(), listener.duplicate().ok()?))
            });
            listeners.extend(copies);
        });
        match verdict {
            Verdict::GoOn | Verdict::NeverBegin => {}
            Verdict::Begin => self.listeners.iter_mut().for_each(Listener::make_own),
            Verdict::End => self.listeners.iter_mut().for_each(Listener::leave_file),
        }
        self.shard.stood_still(clock::now());
        verdict
    }

    /// Lets calls run for a bounded time and sends what has ended.
    fn run_calls(&mut self, calls: &mut Calls, now: Nanos) {
        let mut answered = std::mem::take(&mut self.answered);
        let connections = &mut self.connections;
        calls.run(&mut self.shard, now, &mut |conn, frames| {
            if let Some(connection) = connections.get_mut(&conn) {
                connection.answer(frames);
                if answered.last() != Some(&conn) {
                    answered.push(conn);
                }
            }
        });
        for id in answered.drain(..) {
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            match connection.send_answers() {
                Turn::Close => {
                    self.shard.closed(id);
                    self.connections.remove(&id);
                }
                Turn::Blocked => self.watch(id, true),
                Turn::More => self.enqueue(id),
                _ => {}
            }
        }
        self.answered = answered;
    }

    /// Looks at once at what those who have just come have sent: who has said hello is not taken for
    /// one who says nothing, however many come together.
    fn greet(&mut self, calls: &mut Calls, now: Nanos) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for id in fresh.drain(..) {
            self.serve(calls, id, QUANTUM, now);
            if let Some(crowded) = self.shard.crowded(id, now) {
                self.shard.closed(crowded);
                self.connections.remove(&crowded);
            }
        }
        self.fresh = fresh;
    }

    fn note_ready(&mut self, events: &Events) {
        for event in events.iter() {
            match event.token {
                MAILBOX_TOKEN => self.take_mail(),
                token if token > MAILBOX_TOKEN => self.accept((LISTENER_TOKEN - token) as usize),
                token => self.enqueue(ConnId(token)),
            }
        }
    }

    fn enqueue(&mut self, id: ConnId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !connection.queued
        {
            connection.queued = true;
            connection.ready_since = self.looked;
            // The queue is bounded by the number of connections: each is in it once.
            let _ = self.ready.push(connection.class, id);
        }
    }

    fn serve(&mut self, calls: &mut Calls, id: ConnId, budget: Bytes, now: Nanos) -> usize {
        let Some(connection) = self.connections.get_mut(&id) else {
            return 0;
        };
        connection.queued = false;
        let since = connection.ready_since;
        let (moved, turn) = connection.serve(
            &mut self.shard,
            &mut self.out,
            calls,
            &mut self.scratch,
            budget.0 as usize,
            now,
        );
        // The last turn's end is this one's beginning: what it takes to tell the time is small, and not nothing.
        let began = std::mem::replace(&mut self.turned, clock::now());
        let counters = self.shard.counters();
        counters.lagged(began.saturating_sub(since));
        let took = self.turned.saturating_sub(since);
        for (class, requests) in connection.take_answered() {
            counters.took(class, took, requests);
        }
        connection.ready_since = self.turned;
        let blocked_since = match turn {
            Turn::Blocked if moved == 0 => *connection.blocked_since.get_or_insert(now),
            _ => now,
        };
        connection.blocked_since = (turn == Turn::Blocked).then_some(blocked_since);
        let turn = match connection.settle() {
            true => turn,
            // Its client may come back; what it had on its way it asks for again.
            false => {
                self.shard.shared().registry.refused("too-much-beside");
                Turn::Close
            }
        };
        match turn {
            Turn::Idle => self.watch(id, false),
            // The kernel tells of room only when there is much of it; a client that takes its
            // reply now is served faster by trying again. One that does not is left to the kernel.
            Turn::Blocked if now - blocked_since < Nanos::from(self.options.spin) => {
                self.retry.push(id);
            }
            Turn::Blocked => self.watch(id, true),
            Turn::More => {
                connection.queued = true;
                self.ready.requeue(connection.class, id);
            }
            Turn::Close => {
                self.shard.closed(id);
                self.connections.remove(&id);
            }
            Turn::Left => {
                self.shard.left(id, now);
                self.connections.remove(&id);
            }
            Turn::Give => {
                self.shard.closed(id);
                if let Some(gone) = self.connections.remove(&id) {
                    let _ = self.epoll.remove(&gone.stream);
                    self.heirs.add(gone.stream);
                }
            }
            Turn::HandOff { shard, bytes } => {
                if let Some(gone) = self.connections.remove(&id) {
                    let _ = self.epoll.remove(&gone.stream);
                    let handed = Handed {
                        stream: gone.stream,
                        peer: gone.peer,
                        bytes,
                    };
                    if let Some(mailbox) = self.mailboxes.get(usize::from(shard)) {
                        mailbox.hand(handed);
                    }
                }
            }
        }
        self.after_shard();
        moved
    }

    /// Watches for room to write only while a reply waits for it; reading waits with it.
    fn watch(&mut self, id: ConnId, write: bool) {
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.watches_write != write
        {
            let interest = if write {
                Interest::WRITE
            } else {
                Interest::READ
            };
            if self
                .epoll
                .modify(&connection.stream, id.0, interest)
                .is_ok()
            {
                connection.watches_write = write;
            }
        }
    }

    /// Carries out what the shard wants done to other connections.
    fn after_shard(&mut self) {
        while let Some(id) = self.out.fenced.pop() {
            self.shard.closed(id);
            self.connections.remove(&id);
        }
        while let Some((id, notice)) = self.out.notices.pop() {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.notify(notice);
                self.enqueue(id);
            }
        }
    }

    fn tick(&mut self, now: Nanos) {
        self.shard.shared().set_time(UnixTime(clock::unix()));
        self.shard.tick(now, &mut self.out);
        self.after_shard();
        if self.accept_paused {
            self.accept_paused = false;
            for i in 0..self.listeners.len() {
                let token = LISTENER_TOKEN - i as u64;
                let _ = self.epoll.modify(&self.listeners[i], token, Interest::READ);
            }
        }
        // CPUs may sleep again once nobody is here.
        if self.shard.session_count() == 0 {
            self.awake = None;
        } else if self.awake.is_none() && self.options.keep_awake {
            self.awake = pm_qos::keep_awake().ok();
        }
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_MAX {
            let Some(listener) = self.listeners.get(listener) else {
                return;
            };
            let stream = match listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(_) => {
                    // Out of descriptors: look away until the next tick instead of turning in
                    // circles.
                    self.shard.shared().registry.refused("out-of-descriptors");
                    self.accept_paused = true;
                    for (i, listener) in self.listeners.iter().enumerate() {
                        let quiet = Interest {
                            read: false,
                            ..Interest::READ
                        };
                        let _ = self
                            .epoll
                            .modify(listener, LISTENER_TOKEN - i as u64, quiet);
                    }
                    return;
                }
            };
            let peer = match (stream.peer_credentials(), stream.peer_address()) {
                (Ok(peer), _) if stream.is_unix() => Peer::Unix { uid: peer.uid },
                (_, Some(from)) => Peer::Tcp { from: from.ip() },
                _ => {
                    // It is gone already, or the kernel does not say who it is.
                    self.shard.shared().registry.refused("unknown-peer");
                    continue;
                }
            };
            let target = self.next_loop;
            self.next_loop = (self.next_loop + 1) % self.mailboxes.len();
            let handed = Handed {
                stream,
                peer,
                bytes: Vec::new(),
            };
            if target == self.index {
                self.adopt(handed);
            } else {
                self.mailboxes[target].hand(handed);
            }
        }
    }

    fn take_mail(&mut self) {
        self.mailboxes[self.index].bell.drain();
        while let Some(handed) = self.mailboxes[self.index].take() {
            self.adopt(handed);
        }
    }

    fn adopt(&mut self, handed: Handed) {
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        let now = clock::now();
        let Some(entry) = self.shard.shared().ledger.connect(handed.peer) else {
            self.shard.shared().registry.refused("too-many-connections");
            return;
        };
        if self
            .epoll
            .add(&handed.stream, id.0, Interest::READ)
            .is_err()
        {
            return;
        }
        self.shard.accepted(id, handed.peer, now);
        let equal = self.options.weights == Weights::equal();
        if let Ok(peer) = handed.stream.peer_credentials()
            && handed.stream.is_unix()
        {
            self.shard.comes_from(id, peer.pid);
        }
        let mut connection = Connection::new(id, handed.stream, handed.peer, entry, !equal);
        connection.preload(handed.bytes);
        connection.ready_since = now;
        self.connections.insert(id, connection);
        self.fresh.push(id);
    }

    /// Tells every session that the server ends, as far as their sockets take it at once.
    fn say_goodbye(&mut self, calls: &mut Calls) {
        self.shard.notify(Notice::Stopping, &mut self.out);
        let now = clock::now();
        for (id, notice) in std::mem::take(&mut self.out.notices) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.notify(notice);
                let budget = 1 << 20;
                connection.serve(
                    &mut self.shard,
                    &mut self.out,
                    calls,
                    &mut self.scratch,
                    budget,
                    now,
                );
            }
        }
    }
}
