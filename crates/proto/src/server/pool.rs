//! The pool: segments, the chunks cut from them, quotas, drain.
//!
//! A chunk is handed out as an [`Extent`]. Memory goes round in one direction only: *free → extent →
//! wiping → free*. The last reference to an extent puts its chunk on the wipe queue, and only what a
//! driver has wiped can be granted again; so a chunk never shows its old bytes to the next owner,
//! and never while a copy to or from it is still under way.
//!
//! Segments are either *shared* (sessions over tcp cut from them side by side; nobody maps them) or
//! *owned* by one session that maps them. An owned segment that comes free is *retired*: its memory
//! file is truncated, so that a mapping its client kept is worth nothing, and a new file takes its
//! place.
//!
//! A client is charged for what nobody else can have because of it: for chunks of shared segments,
//! and for the whole of a segment that one of its sessions owns, from the moment that it is taken
//! until new memory has taken its place.

mod heritage;

use super::buddy::{Buddy, MAX_ORDER, Order};
use super::ledger::Entry;
use super::memory::{Backing, SegmentMemory};
use super::registry::lock;
use muninn_types::{Bytes, GrantId, Nanos, PAGE_SIZE, SegmentId, SessionId};
use muninn_wire::{ErrorCode, Refusal, ShortText, TICKET_LEN, Transport};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct PoolConfig {
    pub memory: Bytes,
    /// A power of two of pages.
    pub segment: Bytes,
    /// Bytes that one client may hold; the entry `*` is for all that have none of their own.
    pub quotas: HashMap<String, Bytes>,
}

/// A chunk of the pool in use. Dropping the last reference sends it to be wiped.
#[derive(Debug)]
pub struct Extent<B: Backing> {
    pool: Arc<Pool<B>>,
    mem: Arc<B::Segment>,
    segment: SegmentId,
    incarnation: u32,
    frame: u32,
    order: Order,
    /// Who is charged for the chunk; nobody if it lies in a segment that is charged as a whole.
    charged: Option<ShortText>,
    frozen: AtomicBool,
    /// Of a service: no session can release or share it.
    common: bool,
}

impl<B: Backing> Extent<B> {
    /// Whether it belongs to a service.
    pub const fn is_common(&self) -> bool {
        self.common
    }
    pub fn mem(&self) -> &Arc<B::Segment> {
        &self.mem
    }
    pub const fn segment(&self) -> SegmentId {
        self.segment
    }
    pub const fn incarnation(&self) -> u32 {
        self.incarnation
    }
    /// First byte in the segment.
    pub const fn start(&self) -> u64 {
        self.frame as u64 * PAGE_SIZE as u64
    }
    pub const fn bytes(&self) -> u64 {
        (PAGE_SIZE as u64) << self.order
    }
    /// Shared with another session and immutable from then on.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Relaxed)
    }
}

impl<B: Backing> Drop for Extent<B> {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.state);
        let bytes = self.bytes();
        state.granted -= bytes;
        state.wiping += bytes;
        state.segments[self.segment.0 as usize].wiping_frames += 1 << self.order;
        state.extents -= 1;
        if let Some(client) = &self.charged {
            state.discharge(client, bytes);
        }
        let job = Job::Chunk {
            frame: self.frame,
            order: self.order,
        };
        state.wipes.push_back(Wipe {
            segment: self.segment,
            mem: Arc::clone(&self.mem),
            job,
        });
        drop(state);
        self.pool.wipe_waits.notify_one();
    }
}

#[derive(Debug, Clone, Copy)]
enum Job {
    Chunk { frame: u32, order: Order },
    Retire,
}

/// Work for the wiper: zero a chunk, or replace a segment's memory.
#[derive(Debug)]
#[must_use = "memory that is not wiped is never granted again"]
pub struct Wipe<S> {
    segment: SegmentId,
    mem: Arc<S>,
    job: Job,
}

impl<S> Wipe<S> {
    /// Whether it replaces the memory of a whole segment.
    pub fn is_retirement(&self) -> bool {
        matches!(self.job, Job::Retire)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    Shared,
    Owned(SessionId),
    Retiring,
}

#[derive(Debug)]
struct Segment<S> {
    mem: Arc<S>,
    incarnation: u32,
    bytes: Bytes,
    buddy: Buddy,
    /// Freed and not yet wiped.
    wiping_frames: u32,
    used: Use,
    /// Some of it was shared with another session: nothing more is cut from it.
    closed: bool,
    /// Its owner's session is over. Its chunks are not zeroed one by one, which a client that does
    /// not know yet would read as its data; it is revoked as a whole.
    orphaned: bool,
    /// Its memory cannot be revoked: a service's.
    lasting: bool,
    /// Who is charged for all of it, while a session owns it and until its memory is replaced.
    charged: Option<ShortText>,
}

/// Grants on their way from one session to another.
#[derive(Debug)]
pub(super) struct Ticket<B: Backing> {
    pub owner: SessionId,
    /// Whose it is; only they can adopt it.
    pub whose: ShortText,
    pub transport: Transport,
    pub grants: Vec<(GrantId, Arc<Extent<B>>)>,
    /// None while the owner lives.
    pub ends: Option<Nanos>,
    /// What it takes, for as long as it is there.
    pub entry: Entry,
}

#[derive(Debug)]
struct State<B: Backing> {
    segments: Vec<Segment<B::Segment>>,
    free_segments: BTreeSet<u32>,
    /// Shared segments by the order of their largest free chunk.
    shared_by_order: [BTreeSet<u32>; MAX_ORDER as usize + 1],
    owned: HashMap<SessionId, Vec<u32>>,
    held: HashMap<ShortText, u64>,
    /// Quotas that came with certificates.
    certified: HashMap<ShortText, u64>,
    granted: u64,
    wiping: u64,
    extents: u32,
    wipes: VecDeque<Wipe<B::Segment>>,
    /// Ordered, so that what expires together is wiped in the same order in every simulation.
    tickets: BTreeMap<[u8; TICKET_LEN], Ticket<B>>,
    tickets_by_owner: HashMap<SessionId, Vec<[u8; TICKET_LEN]>>,
    drain: Option<Nanos>,
    drain_changes: u64,
    stopping: bool,
    /// The machine is short of memory: nothing more is granted.
    short: bool,
    /// Nothing is granted beyond this, whatever there is.
    ceiling: u64,
}

#[derive(Debug)]
pub struct Pool<B: Backing> {
    backing: B,
    config: PoolConfig,
    state: Mutex<State<B>>,
    wipe_waits: Condvar,
}

/// The pool at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    pub memory: Bytes,
    pub granted: Bytes,
    pub wiping: Bytes,
    pub largest_free: Bytes,
    pub extents: u32,
}

fn order_bytes(order: Order) -> u64 {
    (PAGE_SIZE as u64) << order
}

impl<B: Backing> State<B> {
    fn empty() -> State<B> {
        State {
            segments: Vec::new(),
            free_segments: BTreeSet::new(),
            shared_by_order: Default::default(),
            owned: HashMap::new(),
            held: HashMap::new(),
            certified: HashMap::new(),
            granted: 0,
            wiping: 0,
            extents: 0,
            wipes: VecDeque::new(),
            tickets: BTreeMap::new(),
            tickets_by_owner: HashMap::new(),
            drain: None,
            drain_changes: 0,
            stopping: false,
            short: false,
            ceiling: u64::MAX,
        }
    }

    /// Files a shared segment under its largest free chunk, after its buddy changed.
    fn refile(&mut self, index: u32, before: Option<Order>) {
        let segment = &self.segments[index as usize];
        if segment.used != Use::Shared {
            return;
        }
        if let Some(order) = before {
            self.shared_by_order[usize::from(order)].remove(&index);
        }
        if let Some(order) = segment.buddy.largest() {
            self.shared_by_order[usize::from(order)].insert(index);
        }
    }

    /// A segment already in use by the session's kind of access that 2^order frames can be cut from.
    fn begun(&self, session: SessionId, transport: Transport, order: Order) -> Option<u32> {
        match transport {
            Transport::Tcp => self.shared_by_order[usize::from(order)..]
                .iter()
                .find_map(|segments| segments.first().copied()),
            Transport::Shm => {
                let mut own = self.owned.get(&session).into_iter().flatten().copied();
                own.find(|&i| {
                    let segment = &self.segments[i as usize];
                    let open = !segment.closed && segment.used == Use::Owned(session);
                    open && segment.buddy.largest() >= Some(order)
                })
            }
        }
    }

    /// A free segment that is large enough.
    fn fresh(&self, order: Order) -> Option<u32> {
        let mut free = self.free_segments.iter().copied();
        free.find(|&i| self.segments[i as usize].buddy.largest() >= Some(order))
    }

    /// Takes a free segment for the session's kind of access.
    fn take(&mut self, fresh: u32, session: SessionId, client: &ShortText, transport: Transport) {
        self.free_segments.remove(&fresh);
        match transport {
            Transport::Tcp => {
                self.segments[fresh as usize].used = Use::Shared;
                self.refile(fresh, None);
            }
            Transport::Shm => {
                let segment = &mut self.segments[fresh as usize];
                segment.used = Use::Owned(session);
                segment.charged = Some(client.clone());
                let bytes = segment.bytes.0;
                *self.held.entry(client.clone()).or_default() += bytes;
                self.owned.entry(session).or_default().push(fresh);
            }
        }
    }

    fn discharge(&mut self, client: &ShortText, bytes: u64) {
        if let Some(held) = self.held.get_mut(client) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(client);
            }
        }
    }

    /// A segment is nobody's any more.
    fn discharge_segment(&mut self, index: u32) {
        let segment = &mut self.segments[index as usize];
        let bytes = segment.bytes.0;
        if let Some(client) = segment.charged.take() {
            self.discharge(&client, bytes);
        }
    }

    /// What a client is charged for but has given up: it is free as soon as it is wiped.
    fn leaving(&self, client: &ShortText) -> u64 {
        let given_up = |segment: &&Segment<B::Segment>| {
            let frames = segment.buddy.free_frames() + segment.wiping_frames;
            let empty = u64::from(frames) == segment.bytes.whole_pages();
            segment.charged.as_ref() == Some(client) && empty
        };
        let segments = self.segments.iter().filter(given_up);
        segments.map(|segment| segment.bytes.0).sum()
    }

    fn remove_ticket(&mut self, key: &[u8; TICKET_LEN]) -> Option<Ticket<B>> {
        let ticket = self.tickets.remove(key)?;
        if let Some(keys) = self.tickets_by_owner.get_mut(&ticket.owner) {
            keys.retain(|k| k != key);
            if keys.is_empty() {
                self.tickets_by_owner.remove(&ticket.owner);
            }
        }
        Some(ticket)
    }

    /// Whether 2^order frames may be had once all that is being wiped is free. A small chunk can be
    /// what a large one lacks, so it is the segments that count, not the bytes being wiped.
    fn fits_soon(&self, session: SessionId, transport: Transport, order: Order) -> bool {
        self.segments.iter().any(|segment| {
            let free = segment.buddy.free_frames() + segment.wiping_frames;
            let begun = match transport {
                Transport::Tcp => segment.used == Use::Shared,
                Transport::Shm => segment.used == Use::Owned(session) && !segment.closed,
            };
            let whole = u64::from(free) == segment.bytes.whole_pages();
            let changes = segment.wiping_frames > 0 || segment.used == Use::Retiring;
            changes && (begun || whole) && free >= 1 << order
        })
    }

    fn largest_whole(&self) -> Option<Order> {
        let whole = self.free_segments.iter();
        let whole = whole.map(|&i| &self.segments[i as usize].buddy);
        whole.filter_map(Buddy::largest).max()
    }
    fn largest_shared(&self) -> Option<Order> {
        let mut orders = (0..=MAX_ORDER).rev();
        orders.find(|&o| !self.shared_by_order[usize::from(o)].is_empty())
    }
    fn largest_free(&self) -> u64 {
        let largest = self.largest_whole().max(self.largest_shared());
        largest.map_or(0, order_bytes)
    }
    /// The largest that this session could have: the free parts of segments that others map, or
    /// that are not mapped, are of no use to one that maps its own.
    fn largest_for(&self, session: SessionId, transport: Transport) -> u64 {
        let begun = match transport {
            Transport::Tcp => self.largest_shared(),
            Transport::Shm => {
                let own = self.owned.get(&session).into_iter().flatten();
                let own = own.map(|&i| &self.segments[i as usize]);
                let open = own.filter(|segment| !segment.closed);
                open.filter_map(|segment| segment.buddy.largest()).max()
            }
        };
        self.largest_whole().max(begun).map_or(0, order_bytes)
    }
}

impl<B: Backing> Pool<B> {
    /// Makes every segment; none of them takes real memory before it is used, unless the backing
    /// says so.
    pub fn new(backing: B, mut config: PoolConfig) -> io::Result<Arc<Pool<B>>> {
        assert!(
            config.segment.whole_pages().is_power_of_two(),
            "segments are powers of two"
        );
        let mut segments = Vec::new();
        // A part of a page at the end cannot be granted and does not count.
        config.memory = Bytes::pages(config.memory.whole_pages());
        let mut left = config.memory;
        while left > Bytes::ZERO {
            let bytes = left.min(config.segment);
            let id = SegmentId(segments.len() as u32);
            segments.push(Segment {
                mem: Arc::new(backing.create(id, bytes)?),
                incarnation: 0,
                bytes,
                buddy: Buddy::new(bytes.whole_pages() as u32),
                wiping_frames: 0,
                used: Use::Free,
                closed: false,
                orphaned: false,
                lasting: false,
                charged: None,
            });
            left -= bytes;
        }
        let state = State {
            free_segments: (0..segments.len() as u32).collect(),
            segments,
            ..State::empty()
        };
        let wipe_waits = Condvar::new();
        Ok(Arc::new(Pool {
            backing,
            config,
            state: Mutex::new(state),
            wipe_waits,
        }))
    }

    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// What an operator's certificate lets a client hold.
    pub(super) fn set_quota(&self, client: &ShortText, bytes: Option<u64>) {
        let certified = &mut lock(&self.state).certified;
        match bytes {
            Some(bytes) => certified.insert(client.clone(), bytes),
            None => certified.remove(client),
        };
    }

    /// The server's own word goes before an operator's, and that before what is for all.
    fn quota(&self, state: &State<B>, client: &ShortText) -> Option<u64> {
        let quotas = &self.config.quotas;
        let own = quotas.get(client.as_str()).map(|bytes| bytes.0);
        let certified = state.certified.get(client).copied();
        own.or(certified)
            .or_else(|| quotas.get("*").map(|bytes| bytes.0))
    }

    /// Cuts a chunk of at least `bytes`.
    pub fn alloc(
        self: &Arc<Pool<B>>,
        session: SessionId,
        client: &ShortText,
        transport: Transport,
        bytes: u64,
    ) -> Result<Arc<Extent<B>>, Refusal> {
        self.cut(session, client, transport, bytes, false)
    }

    /// Cuts a chunk for a service, from segments that are `owner`'s alone and cannot be revoked.
    pub(super) fn alloc_lasting(
        self: &Arc<Pool<B>>,
        owner: SessionId,
        client: &ShortText,
        bytes: u64,
    ) -> Result<Arc<Extent<B>>, Refusal> {
        self.cut(owner, client, Transport::Shm, bytes, true)
    }

    fn cut(
        self: &Arc<Pool<B>>,
        session: SessionId,
        client: &ShortText,
        transport: Transport,
        bytes: u64,
        lasting: bool,
    ) -> Result<Arc<Extent<B>>, Refusal> {
        let max = self.config.segment.0.min(order_bytes(MAX_ORDER));
        if bytes == 0 || bytes > max {
            return Err(Refusal::with(ErrorCode::BadSize, bytes, max));
        }
        let order = Bytes(bytes).pages_up().next_power_of_two().ilog2() as Order;
        let bytes = order_bytes(order);
        let mut state = lock(&self.state);
        if state.stopping {
            return Err(Refusal::new(ErrorCode::Stopping));
        }
        if state.drain.is_some() {
            return Err(Refusal::new(ErrorCode::Draining));
        }
        if state.short {
            let refusal = Refusal::with(ErrorCode::PoolFull, bytes, 0);
            return Err(refusal.remark("its machine is short of memory"));
        }
        if state.granted + bytes > state.ceiling {
            let left = state.ceiling.saturating_sub(state.granted);
            let refusal = Refusal::with(ErrorCode::PoolFull, bytes, left);
            return Err(refusal.remark("its machine needs the rest itself"));
        }
        let begun = state.begun(session, transport, order);
        let fresh = begun.is_none().then(|| state.fresh(order)).flatten();
        let charge = match (transport, begun, fresh) {
            (Transport::Tcp, ..) => bytes,
            (Transport::Shm, Some(_), _) => 0,
            (Transport::Shm, None, Some(fresh)) => state.segments[fresh as usize].bytes.0,
            (Transport::Shm, None, None) => self.config.segment.0,
        };
        let held = state.held.get(client).copied().unwrap_or(0);
        if let Some(quota) = self.quota(&state, client)
            && held + charge > quota
        {
            if held - state.leaving(client) + charge <= quota {
                return Err(Refusal::new(ErrorCode::TryAgain));
            }
            let refusal = Refusal::with(ErrorCode::QuotaExceeded, held, quota);
            return Err(if charge > bytes {
                let segment = Bytes(charge);
                refusal.remark(&format!(
                    "mapped memory is counted in segments of {segment}"
                ))
            } else {
                refusal
            });
        }
        if let Some(fresh) = fresh {
            state.take(fresh, session, client, transport);
        }
        let Some(index) = begun.or(fresh) else {
            let code = if state.fits_soon(session, transport, order) {
                ErrorCode::TryAgain
            } else {
                ErrorCode::PoolFull
            };
            let largest = state.largest_for(session, transport);
            return Err(Refusal::with(code, bytes, largest));
        };
        let before = state.segments[index as usize].buddy.largest();
        let segment = &mut state.segments[index as usize];
        if lasting && !segment.lasting {
            // Only just taken for its new owner: nobody has its memory.
            match self.backing.create_lasting(SegmentId(index), segment.bytes) {
                Ok(made) => {
                    segment.mem = Arc::new(made);
                    segment.incarnation += 1;
                    segment.lasting = true;
                }
                Err(_) => {
                    segment.used = Use::Free;
                    state.discharge_segment(index);
                    state.free_segments.insert(index);
                    if let Some(owned) = state.owned.get_mut(&session) {
                        owned.retain(|i| *i != index);
                    }
                    let refusal = Refusal::new(ErrorCode::Internal);
                    return Err(refusal.remark("no memory file to be had"));
                }
            }
        }
        let frame = segment
            .buddy
            .alloc(order)
            .expect("the segment was chosen because it fits");
        let (mem, incarnation) = (Arc::clone(&segment.mem), segment.incarnation);
        state.refile(index, before);
        state.granted += bytes;
        state.extents += 1;
        let charged = (transport == Transport::Tcp).then(|| client.clone());
        if let Some(client) = &charged {
            *state.held.entry(client.clone()).or_default() += bytes;
        }
        Ok(Arc::new(Extent {
            pool: Arc::clone(self),
            mem,
            segment: SegmentId(index),
            incarnation,
            frame,
            order,
            charged,
            frozen: AtomicBool::new(false),
            common: lasting,
        }))
    }

    /// Makes an extent immutable, and closes its segment if its owner maps it.
    pub(super) fn freeze(&self, extent: &Extent<B>) {
        extent.frozen.store(true, Relaxed);
        lock(&self.state).segments[extent.segment.0 as usize].closed = true;
    }

    /// What a segment still holds: frames of live extents, and frames that wait to be wiped.
    pub(super) fn in_segment(&self, id: SegmentId) -> (u32, u32) {
        let state = lock(&self.state);
        let segment = &state.segments[id.0 as usize];
        let taken = segment.bytes.whole_pages() as u32 - segment.buddy.free_frames();
        (taken - segment.wiping_frames, segment.wiping_frames)
    }

    /// A session is over: what it maps is revoked once nothing in it is used any more.
    pub(super) fn owner_ended(&self, session: SessionId) {
        let mut state = lock(&self.state);
        for index in state.owned.remove(&session).unwrap_or_default() {
            state.segments[index as usize].orphaned = true;
        }
    }

    pub fn segment_bytes(&self, id: SegmentId) -> Bytes {
        lock(&self.state).segments[id.0 as usize].bytes
    }

    /// A chunk or a segment to wipe, if there is one. Wipe it with [`Pool::wipe`].
    pub fn take_wipe(&self) -> Option<Wipe<B::Segment>> {
        lock(&self.state).wipes.pop_front()
    }

    /// Waits for something to wipe, at most this long.
    pub fn wait_wipe(&self, at_most: Duration) -> Option<Wipe<B::Segment>> {
        let state = lock(&self.state);
        let waited = self
            .wipe_waits
            .wait_timeout_while(state, at_most, |s| s.wipes.is_empty());
        waited
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0
            .wipes
            .pop_front()
    }

    /// Wipes and puts the memory back among the free. Done outside of the lock: a large chunk takes
    /// milliseconds. After an error the work is in the queue again.
    pub fn wipe(&self, wipe: Wipe<B::Segment>) -> io::Result<()> {
        let index = wipe.segment.0;
        match wipe.job {
            Job::Chunk { frame, order } => {
                let orphaned = lock(&self.state).segments[index as usize].orphaned;
                if !orphaned {
                    wipe.mem
                        .wipe(u64::from(frame) * PAGE_SIZE as u64, order_bytes(order));
                }
                let mut state = lock(&self.state);
                let segment = &mut state.segments[index as usize];
                let before = segment.buddy.largest();
                segment.buddy.free(frame, order);
                segment.wiping_frames -= 1 << order;
                let (empty, used) = (segment.buddy.is_empty(), segment.used);
                match used {
                    Use::Shared if empty => {
                        if let Some(order) = before {
                            state.shared_by_order[usize::from(order)].remove(&index);
                        }
                        state.segments[index as usize].used = Use::Free;
                        state.segments[index as usize].closed = false;
                        state.free_segments.insert(index);
                    }
                    Use::Owned(session) if empty => {
                        // Its bytes count as being wiped until the new memory file is there.
                        let bytes = state.segments[index as usize].bytes.0;
                        state.wiping += bytes;
                        state.segments[index as usize].used = Use::Retiring;
                        if let Some(owned) = state.owned.get_mut(&session) {
                            owned.retain(|&i| i != index);
                            if owned.is_empty() {
                                state.owned.remove(&session);
                            }
                        }
                        state.wipes.push_back(Wipe {
                            job: Job::Retire,
                            ..wipe
                        });
                    }
                    _ => state.refile(index, before),
                }
                state.wiping -= order_bytes(order);
            }
            Job::Retire => {
                wipe.mem.revoke();
                let bytes = lock(&self.state).segments[index as usize].bytes;
                let fresh = match self.backing.create(wipe.segment, bytes) {
                    Ok(fresh) => fresh,
                    Err(error) => {
                        // Tried again with the next wipe; the memory must not be lost for good.
                        lock(&self.state).wipes.push_back(wipe);
                        return Err(error);
                    }
                };
                let mut state = lock(&self.state);
                state.wiping -= bytes.0;
                state.discharge_segment(index);
                let segment = &mut state.segments[index as usize];
                segment.mem = Arc::new(fresh);
                segment.incarnation += 1;
                segment.used = Use::Free;
                segment.closed = false;
                segment.orphaned = false;
                segment.lasting = false;
                state.free_segments.insert(index);
            }
        }
        Ok(())
    }

    /// Wipes all that waits, on this thread. For tests and simulation.
    pub fn wipe_all(&self) -> io::Result<()> {
        while let Some(wipe) = self.take_wipe() {
            self.wipe(wipe)?;
        }
        Ok(())
    }

    pub fn stats(&self) -> PoolStats {
        let state = lock(&self.state);
        PoolStats {
            memory: self
                .config
                .memory
                .min(Bytes(state.ceiling.max(state.granted))),
            granted: Bytes(state.granted),
            wiping: Bytes(state.wiping),
            largest_free: Bytes(
                (state.largest_free()).min(state.ceiling.saturating_sub(state.granted)),
            ),
            extents: state.extents,
        }
    }

    /// Everything that is neither granted nor waiting to be wiped, in pieces of any size.
    pub fn free_bytes(&self) -> Bytes {
        let state = lock(&self.state);
        let free = |segment: &Segment<B::Segment>| match segment.used {
            Use::Retiring => Bytes::ZERO,
            _ => Bytes::pages(u64::from(segment.buddy.free_frames())),
        };
        state.segments.iter().map(free).sum()
    }

    /// Starts (or moves, or with None cancels) giving memory back.
    pub fn set_drain(&self, deadline: Option<Nanos>) {
        let mut state = lock(&self.state);
        state.drain = deadline;
        state.drain_changes += 1;
    }
    /// The drain's deadline, and a number that changes whenever it does.
    pub fn drain(&self) -> (Option<Nanos>, u64) {
        let state = lock(&self.state);
        (state.drain, state.drain_changes)
    }
    /// While the machine is short of memory, nothing more is granted.
    pub fn set_short(&self, short: bool) {
        lock(&self.state).short = short;
    }
    /// From now on nothing is granted that would make it more than this in all.
    pub fn set_ceiling(&self, ceiling: Bytes) {
        lock(&self.state).ceiling = ceiling.0;
    }
    /// No more grants: the server is about to end.
    pub fn stop(&self) {
        lock(&self.state).stopping = true;
    }
    pub fn is_stopping(&self) -> bool {
        lock(&self.state).stopping
    }

    pub(super) fn put_ticket(&self, key: [u8; TICKET_LEN], ticket: Ticket<B>) {
        let mut state = lock(&self.state);
        (state.tickets_by_owner.entry(ticket.owner).or_default()).push(key);
        let before = state.tickets.insert(key, ticket);
        // Dropping an extent takes the lock again.
        drop(state);
        drop(before);
    }
    pub(super) fn take_ticket(
        &self,
        key: &[u8; TICKET_LEN],
        whose: &ShortText,
        transport: Transport,
    ) -> Option<Ticket<B>> {
        let mut state = lock(&self.state);
        let ticket = state.tickets.get(key)?;
        if ticket.transport != transport || ticket.whose != *whose {
            return None;
        }
        state.remove_ticket(key)
    }
    /// Forgets a ticket, if it is this session's and was not used.
    pub(super) fn revoke_ticket(&self, key: &[u8; TICKET_LEN], owner: SessionId) {
        let mut state = lock(&self.state);
        let is_own = |ticket: &Ticket<B>| ticket.owner == owner && ticket.ends.is_none();
        let revoked = match state.tickets.get(key).is_some_and(is_own) {
            true => state.remove_ticket(key),
            false => None,
        };
        // Dropping an extent takes the lock again.
        drop(state);
        drop(revoked);
    }
    pub(super) fn tickets_of(&self, owner: SessionId) -> usize {
        let state = lock(&self.state);
        state.tickets_by_owner.get(&owner).map_or(0, Vec::len)
    }
    /// The owner is gone: its tickets stay good for one more lease.
    pub(super) fn orphan_tickets(&self, owner: SessionId, ends: Nanos) {
        let mut state = lock(&self.state);
        for key in state.tickets_by_owner.remove(&owner).unwrap_or_default() {
            if let Some(ticket) = state.tickets.get_mut(&key) {
                ticket.ends = Some(ends);
            }
        }
    }
    pub(super) fn expire_tickets(&self, now: Nanos) {
        let mut state = lock(&self.state);
        if state.tickets.is_empty() {
            return;
        }
        let over = |t: &mut Ticket<B>| t.ends.is_some_and(|ends| ends <= now);
        let expired: Vec<_> = state.tickets.extract_if(.., |_, t| over(t)).collect();
        // Dropping an extent takes the lock again.
        drop(state);
        drop(expired);
    }
}
