//! Services: memory that several sessions share and may all change, and locks on it.
//!
//! A service has segments of its own, which nobody can cut short, so the server may run functions on
//! them with plain loads and stores while clients have them mapped. Every session that is tied to it
//! has its grants, under the same ids. It ends with the last session that opened it; guests do not
//! keep it.
//!
//! Its first bytes are lock words: 0 free, [`LOCK_ORPHANED`] free but its last holder died in the
//! middle of something, else the holder: 40 bits that say which session (or that it is the server
//! itself), and above them 24 that the session chooses for each of its calls. The server
//! frees what a session holds once the session can touch the memory no more: when it is over, and,
//! if it has the memory mapped, when its process is gone.

use super::memory::{Backing, SegmentMemory};
use super::pool::{Extent, Pool};
use super::registry::{SessionInfo, lock};
use super::shard::Peer;
use muninn_types::{GrantId, PAGE_SIZE, ServiceId, SessionId};
use muninn_wire::{
    ErrorCode, MAX_GRANTS, Refusal, ServiceInfo, ServiceStatus, ShortText, StatusPage, WicsReply,
    WicsRequest,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

/// A lock that nobody holds.
pub const LOCK_FREE: u64 = 0;
/// A lock that nobody holds, but whose last holder did not give it back itself.
pub const LOCK_ORPHANED: u64 = 1;
/// Services of one client at most, so that others can have some.
const SERVICES_OF_CLIENT: usize = StatusPage::MAX_SERVICES / 2;
/// Sessions of one process that are over while it may still touch what they were tied to.
const GHOSTS_OF_PROCESS: usize = 64;
/// The last byte of ids that no session has: shards are fewer.
const NO_SHARD: u64 = 0xff;

/// What a shard asks its surroundings.
pub trait Surroundings: fmt::Debug + Send + Sync {
    /// The number of a function that `owner` may call, or the version that is there instead.
    fn find_wic(&self, owner: &str, name: &str, version: u32) -> Result<u32, Option<u32>>;
    /// What somebody wants of functions that are pushed.
    fn wics(&self, by: &Pusher<'_>, request: &WicsRequest) -> Result<WicsReply, Refusal> {
        let _ = (by, request);
        Err(Refusal::new(ErrorCode::NoWic))
    }
    /// Whether a process could still touch memory that it has mapped.
    fn is_alive(&self, pid: i32) -> bool;
}

/// Somebody who asks about functions that are pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pusher<'a> {
    /// The identity; empty where nobody has one.
    pub owner: &'a str,
    /// Its functions are there for everybody, and it may remove everybody's.
    pub is_operator: bool,
    /// It may have functions of its own, if the server lets clients push.
    pub may_own: bool,
    /// It is a nic, and asks for its clients.
    pub is_server: bool,
}

/// The bits of a lock word that say which session holds it; those above are the session's to choose.
pub(super) const HOLDER_BITS: u32 = 40;
const HOLDER_MASK: u64 = (1 << HOLDER_BITS) - 1;

/// Call `number` of a session as a holder of locks. Never 0 or 1: sessions are counted from 1.
pub const fn holder_of(session: u64, number: u64) -> u64 {
    session & HOLDER_MASK | number << HOLDER_BITS
}

/// The holder that event loop `index` of a server writes into locks.
pub const fn server_holder(index: usize) -> u64 {
    (index as u64) << 8 | NO_SHARD
}

#[derive(Debug)]
pub struct Service<B: Backing> {
    pub info: ServiceInfo,
    pub name: ShortText,
    pub chunks: Vec<(GrantId, Arc<Extent<B>>)>,
    /// The identity that it belongs to; empty where nobody has one.
    pub(super) whose: ShortText,
    /// Where it was opened from first.
    source: Peer,
    pool: Arc<Pool<B>>,
    owner: SessionId,
    /// Sessions that opened it, and all that are tied to it.
    keepers: AtomicU32,
    sessions: AtomicU32,
    ended: AtomicBool,
    pub calls: AtomicU64,
    pub failed: AtomicU64,
    pub accesses: AtomicU64,
}

impl<B: Backing> Drop for Service<B> {
    fn drop(&mut self) {
        self.pool.owner_ended(self.owner);
    }
}

impl<B: Backing> Service<B> {
    fn lock_word(&self, index: u32) -> (&Arc<Extent<B>>, u64) {
        // The table lies in the first grant.
        let extent = &self.chunks[0].1;
        (extent, extent.start() + u64::from(index) * 8)
    }

    fn word(&self, index: u32) -> u64 {
        let (extent, at) = self.lock_word(index);
        let mut bytes = [0; 8];
        extent.mem().read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Frees what a session holds, and leaves a sign that it did not do so itself.
    pub fn free_locks_of(&self, session: u64) -> u32 {
        let mut freed = 0;
        for index in 0..self.info.locks {
            let word = self.word(index);
            if word > LOCK_ORPHANED && word & HOLDER_MASK == session & HOLDER_MASK {
                let (extent, at) = self.lock_word(index);
                extent.mem().compare_swap(at, word, LOCK_ORPHANED);
                freed += 1;
            }
        }
        freed
    }

    /// Nobody keeps it any more: its guests are to leave.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    fn status(&self) -> ServiceStatus {
        let held = |i: &u32| self.word(*i) > LOCK_ORPHANED;
        ServiceStatus {
            name: self.name.clone(),
            bytes: self.info.bytes,
            sessions: self.sessions.load(Relaxed),
            locks: self.info.locks,
            locks_held: (0..self.info.locks).filter(held).count() as u32,
            calls: self.calls.load(Relaxed),
            failed: self.failed.load(Relaxed),
            accesses: self.accesses.load(Relaxed),
        }
    }
}

/// A session that is over, but whose process may still have the memory mapped.
#[derive(Debug)]
struct Ghost<B: Backing> {
    pid: i32,
    holder: u64,
    services: Vec<Arc<Service<B>>>,
}

#[derive(Debug)]
struct Table<B: Backing> {
    /// By whose they are, and their names.
    by_name: BTreeMap<(ShortText, ShortText), Arc<Service<B>>>,
    ghosts: Vec<Ghost<B>>,
    next: u64,
}

/// All services of a server.
#[derive(Debug)]
pub struct Services<B: Backing> {
    table: Mutex<Table<B>>,
    surroundings: OnceLock<Arc<dyn Surroundings>>,
}

impl<B: Backing> Default for Services<B> {
    fn default() -> Self {
        Services {
            table: Mutex::new(Table {
                by_name: BTreeMap::new(),
                ghosts: Vec::new(),
                next: 1,
            }),
            surroundings: OnceLock::new(),
        }
    }
}

impl<B: Backing> Services<B> {
    /// Who answers for functions and processes. Without, there are none of either.
    pub fn surround(&self, surroundings: Arc<dyn Surroundings>) {
        let _ = self.surroundings.set(surroundings);
    }
    pub(super) fn wics(
        &self,
        by: &Pusher<'_>,
        request: &WicsRequest,
    ) -> Result<WicsReply, Refusal> {
        match self.surroundings.get() {
            Some(around) => around.wics(by, request),
            None => Err(Refusal::new(ErrorCode::NoWic)),
        }
    }
    pub(super) fn find_wic(&self, owner: &str, name: &str, version: u32) -> Result<u32, Refusal> {
        let found = match self.surroundings.get() {
            Some(around) => around.find_wic(owner, name, version),
            None => Err(None),
        };
        found.map_err(|here| {
            let here = u64::from(here.unwrap_or(0));
            Refusal::with(ErrorCode::NoWic, here, u64::from(version)).remark(name)
        })
    }
    /// A process is known to be gone.
    pub(super) fn has_ended(&self, pid: i32) -> bool {
        self.surroundings.get().is_some_and(|s| !s.is_alive(pid))
    }

    pub(super) fn is_alive(&self, pid: i32) -> bool {
        self.surroundings.get().is_some_and(|s| s.is_alive(pid))
    }

    /// The service of this name, made if there is none.
    pub(super) fn open(
        &self,
        pool: &Arc<Pool<B>>,
        next_grant: &AtomicU64,
        id: ServiceId,
        by: &SessionInfo,
        (name, bytes, locks): (&ShortText, u64, u32),
    ) -> Result<Arc<Service<B>>, Refusal> {
        let (client, whose) = (&by.account, &by.owner);
        let mut table = lock(&self.table);
        let place = (whose.clone(), name.clone());
        if let Some(there) = table.by_name.get(&place) {
            let (has, base) = (there.info.bytes, there.info.base);
            if has - base != bytes || there.info.locks != locks {
                let locks = u64::from(there.info.locks);
                return Err(Refusal::with(ErrorCode::ServiceDiffers, has - base, locks));
            }
            return Ok(Arc::clone(there));
        }
        let too_many = |max: usize| Refusal::with(ErrorCode::TooManyServices, max as u64, 0);
        if table.by_name.len() >= StatusPage::MAX_SERVICES {
            return Err(too_many(StatusPage::MAX_SERVICES));
        }
        // An identity's, from wherever it comes; else those from one place.
        let its = |service: &&Arc<Service<B>>| match whose.as_str() {
            "" => service.source == by.source,
            _ => service.whose == *whose,
        };
        if table.by_name.values().filter(its).count() >= SERVICES_OF_CLIENT {
            return Err(too_many(SERVICES_OF_CLIENT));
        }
        // Random, so that nobody can count up to another's; owners of memory are counted.
        let owner = SessionId(table.next << 8 | NO_SHARD);
        let page = PAGE_SIZE as u64;
        let base = (u64::from(locks) * 8).next_multiple_of(page);
        let max = pool.config().segment.0;
        let total = bytes.checked_add(base).filter(|total| *total > base);
        let total = total.filter(|total| total.div_ceil(max) <= MAX_GRANTS as u64 && base <= max);
        let total = total.ok_or(Refusal::with(
            ErrorCode::BadSize,
            bytes,
            max * MAX_GRANTS as u64,
        ))?;
        let chunk = total.next_power_of_two().clamp(page, max);
        let mut chunks = Vec::new();
        for _ in 0..total.div_ceil(chunk) {
            // On failure those that were had go back to be wiped when they are dropped.
            let extent = pool.alloc_lasting(owner, client, chunk).inspect_err(|_| {
                pool.owner_ended(owner);
            })?;
            chunks.push((GrantId(next_grant.fetch_add(1, Relaxed)), extent));
        }
        table.next += 1;
        let service = Arc::new(Service {
            info: ServiceInfo {
                service: id,
                bytes: total,
                shift: chunk.ilog2() as u8,
                locks,
                base,
            },
            name: name.clone(),
            chunks,
            whose: whose.clone(),
            source: by.source,
            pool: Arc::clone(pool),
            owner,
            keepers: AtomicU32::new(0),
            sessions: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            accesses: AtomicU64::new(0),
        });
        table.by_name.insert(place, Arc::clone(&service));
        Ok(service)
    }

    pub(super) fn find(&self, id: ServiceId) -> Result<Arc<Service<B>>, Refusal> {
        let table = lock(&self.table);
        let found = table.by_name.values().find(|s| s.info.service == id);
        found
            .cloned()
            .ok_or(Refusal::with(ErrorCode::NoService, id.0, 0))
    }

    /// Whether a process may be tied to one more: what its sessions leave behind is looked after for as long
    /// as it lives.
    pub(super) fn may_tie(&self, pid: Option<i32>) -> Result<(), Refusal> {
        let table = lock(&self.table);
        let its = |ghost: &&Ghost<B>| Some(ghost.pid) == pid;
        match table.ghosts.iter().filter(its).count() < GHOSTS_OF_PROCESS {
            true => Ok(()),
            false => {
                let max = GHOSTS_OF_PROCESS as u64;
                Err(Refusal::with(ErrorCode::TooManyServices, max, 0))
            }
        }
    }

    /// A session is tied to it.
    pub(super) fn tie(&self, service: &Service<B>, keeps: bool) {
        service.keepers.fetch_add(u32::from(keeps), Relaxed);
        service.sessions.fetch_add(1, Relaxed);
    }
    /// A session is no longer tied to it; the last keeper ends it.
    pub(super) fn untie(&self, service: &Arc<Service<B>>, keeps: bool) {
        let mut table = lock(&self.table);
        service.sessions.fetch_sub(1, Relaxed);
        let last = keeps && service.keepers.fetch_sub(1, Relaxed) == 1;
        let place = (service.whose.clone(), service.name.clone());
        let gone = last.then(|| table.by_name.remove(&place));
        service.ended.fetch_or(last, Relaxed);
        drop(table);
        drop(gone);
    }

    /// A session is over. `pid`: a process that has the memory mapped.
    pub(super) fn ended(&self, holder: u64, pid: Option<i32>, services: Vec<Arc<Service<B>>>) {
        if services.is_empty() {
            return;
        }
        if let Some(pid) = pid
            && self.is_alive(pid)
        {
            let ghost = Ghost {
                pid,
                holder,
                services,
            };
            lock(&self.table).ghosts.push(ghost);
            return;
        }
        for service in services {
            service.free_locks_of(holder);
        }
    }

    /// To be called now and then: frees the locks of processes that have ended since.
    pub(super) fn bury(&self) {
        let mut table = lock(&self.table);
        if table.ghosts.is_empty() {
            return;
        }
        let gone = |ghost: &mut Ghost<B>| !self.is_alive(ghost.pid);
        let dead: Vec<_> = table.ghosts.extract_if(.., gone).collect();
        drop(table);
        for ghost in dead {
            for service in ghost.services {
                service.free_locks_of(ghost.holder);
            }
        }
    }

    /// How many there are, with those that processes of sessions that are over may still touch.
    pub fn count(&self) -> usize {
        let table = lock(&self.table);
        table.by_name.len() + table.ghosts.len()
    }

    pub(super) fn status(&self) -> Vec<ServiceStatus> {
        let services: Vec<_> = lock(&self.table).by_name.values().cloned().collect();
        services.iter().map(|service| service.status()).collect()
    }
}
