//! What `status` and the metrics read: counters that event loops write without waiting for anyone.

use super::shard::Peer;
use muninn_types::{Class, Nanos, SessionId, Spread};
use muninn_wire::{ClassTraffic, ServerTimes, SessionStatus, ShortText, Transport};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked while holding the lock has already been reported; the data is plain
    // and each update leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counters of one shard. Written by its loop alone, read by anyone.
#[derive(Debug, Default)]
pub struct Counters {
    traffic: [[AtomicU64; 3]; Class::COUNT],
    times: [Times; Class::COUNT],
    lag: Times,
    pub connections: AtomicU32,
}

/// A [`Spread`] that one writes and all read.
#[derive(Debug, Default)]
struct Times {
    counts: [AtomicU64; Spread::BUCKETS],
    sum_ns: AtomicU64,
}

impl Times {
    fn note(&self, took: Nanos, times: u64) {
        Counters::bump(&self.counts[Spread::bucket(took)], times);
        Counters::bump(&self.sum_ns, took.0.wrapping_mul(times));
    }

    fn add_to(&self, sum: &mut Spread) {
        sum.add(&Spread {
            counts: self.counts.each_ref().map(|count| count.load(Relaxed)),
            sum_ns: self.sum_ns.load(Relaxed),
        });
    }
}

impl Counters {
    /// One writer each, so a load and a store do what a slower atomic addition would.
    fn bump(cell: &AtomicU64, by: u64) {
        cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
    }

    pub fn request(&self, class: Class, bytes_in: u64, bytes_out: u64) {
        let cells = &self.traffic[class.index()];
        Counters::bump(&cells[0], 1);
        Counters::bump(&cells[1], bytes_in);
        Counters::bump(&cells[2], bytes_out);
    }

    /// So many requests were answered that long after they could have been read.
    pub fn took(&self, class: Class, took: Nanos, requests: u64) {
        self.times[class.index()].note(took, requests);
    }

    /// A connection that was ready waited so long for its turn.
    pub fn lagged(&self, by: Nanos) {
        self.lag.note(by, 1);
    }
}

/// What all sessions hold together, kept up to date so that nobody has to ask each of them.
#[derive(Debug, Default)]
pub struct Holdings {
    holders: AtomicU32,
    bytes: AtomicU64,
}

/// What is known of a session from outside of its shard.
#[derive(Debug)]
pub struct SessionInfo {
    pub id: SessionId,
    pub name: ShortText,
    /// Who is charged for what it holds: its identity, or else the name it gave.
    pub account: ShortText,
    /// Whose services and shares are its own; empty where nobody has an identity.
    pub owner: ShortText,
    pub is_server: bool,
    /// Where it was opened from.
    pub source: Peer,
    pub transport: Transport,
    pub pid: u32,
    pub connected: AtomicBool,
    pub grants: AtomicU32,
    pub granted_bytes: AtomicU64,
    pub requests: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub lease_ends: AtomicU64,
    pub holdings: Arc<Holdings>,
    /// What its client wants shown.
    pub note: Mutex<ShortText>,
}

impl SessionInfo {
    pub fn count(&self, bytes_in: u64, bytes_out: u64) {
        Counters::bump(&self.requests, 1);
        Counters::bump(&self.bytes_in, bytes_in);
        Counters::bump(&self.bytes_out, bytes_out);
    }

    /// The session's grants became more or fewer.
    pub fn granted(&self, grants: i32, bytes: i64) {
        let before = self.granted_bytes.load(Relaxed);
        let held = before.wrapping_add_signed(bytes);
        self.granted_bytes.store(held, Relaxed);
        self.holdings
            .bytes
            .fetch_add(held.wrapping_sub(before), Relaxed);
        match (before, held) {
            (0, 1..) => self.holdings.holders.fetch_add(1, Relaxed),
            (1.., 0) => self.holdings.holders.fetch_sub(1, Relaxed),
            _ => 0,
        };
        self.grants.store(
            self.grants.load(Relaxed).wrapping_add_signed(grants),
            Relaxed,
        );
    }

    fn status(&self, now: Nanos) -> SessionStatus {
        SessionStatus {
            id: self.id,
            name: self.name.clone(),
            transport: self.transport.to_byte(),
            connected: self.connected.load(Relaxed),
            pid: self.pid,
            grants: self.grants.load(Relaxed),
            granted_bytes: self.granted_bytes.load(Relaxed),
            requests: self.requests.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            lease_left_ms: self.lease_ends.load(Relaxed).saturating_sub(now.0) / 1_000_000,
            note: lock(&self.note).clone(),
        }
    }
}

/// What a client is known by: where it comes from, and its identity, if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ClientOf {
    Source(Peer),
    Identity(ShortText),
}

impl ClientOf {
    /// Under all names that a session's client has.
    fn all(info: &SessionInfo) -> impl Iterator<Item = ClientOf> + use<> {
        let owner = Some(&info.owner).filter(|owner| !owner.as_str().is_empty());
        let identity = owner.cloned().map(ClientOf::Identity);
        std::iter::once(ClientOf::Source(info.source)).chain(identity)
    }
}

#[derive(Debug, Default)]
pub struct Registry {
    sessions: Mutex<BTreeMap<SessionId, Arc<SessionInfo>>>,
    /// How many sessions each client has.
    clients: Mutex<HashMap<ClientOf, usize>>,
    shards: Mutex<Vec<Arc<Counters>>>,
    holdings: Arc<Holdings>,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
}

impl Registry {
    pub fn add_shard(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        lock(&self.shards).push(Arc::clone(&counters));
        counters
    }
    pub fn shard_count(&self) -> usize {
        lock(&self.shards).len()
    }

    /// Registers a session, unless there are as many as may be, of all or of its client: that limit.
    pub fn add_session(
        &self,
        info: Arc<SessionInfo>,
        max: usize,
        max_of_client: usize,
    ) -> Result<(), usize> {
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= max {
            return Err(max);
        }
        let mut clients = lock(&self.clients);
        let has_all = |client| clients.get(&client).is_some_and(|n| *n >= max_of_client);
        if ClientOf::all(&info).any(has_all) {
            return Err(max_of_client);
        }
        for client in ClientOf::all(&info) {
            *clients.entry(client).or_default() += 1;
        }
        sessions.insert(info.id, info);
        Ok(())
    }
    pub fn remove_session(&self, id: SessionId) {
        let gone = lock(&self.sessions).remove(&id);
        if let Some(info) = gone {
            let mut clients = lock(&self.clients);
            for client in ClientOf::all(&info) {
                if let Some(count) = clients.get_mut(&client) {
                    *count -= 1;
                    if *count == 0 {
                        clients.remove(&client);
                    }
                }
            }
            // Whatever it still held is no longer held by a session.
            let grants = info.grants.load(Relaxed) as i32;
            info.granted(-grants, -(info.granted_bytes.load(Relaxed) as i64));
        }
    }
    pub fn session_count(&self) -> usize {
        lock(&self.sessions).len()
    }

    /// Up to `max` sessions with ids above `after`, in order.
    pub fn sessions(&self, after: SessionId, max: usize, now: Nanos) -> Vec<SessionStatus> {
        let sessions = lock(&self.sessions);
        let range = sessions.range((Bound::Excluded(after), Bound::Unbounded));
        range.take(max).map(|(_, info)| info.status(now)).collect()
    }
    pub(super) fn holdings(&self) -> &Arc<Holdings> {
        &self.holdings
    }
    /// Sessions that hold memory, and how much all of them hold. Every heartbeat asks, so the
    /// answer must not cost more with more sessions.
    pub fn holders(&self) -> (u32, u64) {
        let Holdings { holders, bytes } = &*self.holdings;
        (holders.load(Relaxed), bytes.load(Relaxed))
    }

    pub fn refused(&self, reason: &'static str) {
        *lock(&self.refusals).entry(reason).or_default() += 1;
    }
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        lock(&self.refusals)
            .iter()
            .map(|(reason, count)| (*reason, *count))
            .collect()
    }

    pub fn traffic(&self) -> [ClassTraffic; Class::COUNT] {
        let mut sums = [ClassTraffic::default(); Class::COUNT];
        for shard in lock(&self.shards).iter() {
            for (sum, cells) in sums.iter_mut().zip(&shard.traffic) {
                sum.requests += cells[0].load(Relaxed);
                sum.bytes_in += cells[1].load(Relaxed);
                sum.bytes_out += cells[2].load(Relaxed);
            }
        }
        sums
    }
    pub fn times(&self) -> ServerTimes {
        let mut sums = ServerTimes::default();
        for shard in lock(&self.shards).iter() {
            for (sum, times) in sums.classes.iter_mut().zip(&shard.times) {
                times.add_to(sum);
            }
            shard.lag.add_to(&mut sums.lag);
        }
        sums
    }
    pub fn connections(&self) -> u32 {
        lock(&self.shards)
            .iter()
            .map(|shard| shard.connections.load(Relaxed))
            .sum()
    }
}
