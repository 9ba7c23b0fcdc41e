//! The local cache of the heap: every page has a fixed home in a grant, and the thread that touches
//! an absent page brings it itself (userfaultfd in SIGBUS mode).
//!
//! ```text
//!            first touch                       write
//!  Init ─────────────────────► Dirty ◄─────────────────── Clean (write-protected)
//!                                │  ──── write back ─────►  ▲
//!                                └─── evict ──► Evicted ────┘ fetch
//! ```
//!
//! A page that is being changed is *Busy*, and whoever needs it waits; so a page is written back
//! from where it lies, protected against writes, and readers go on meanwhile. Invariants: the bytes
//! of a Clean page are those at its home; a page is mapped exactly if it is Clean or Dirty (or
//! Lost); nobody waits for a Busy page while holding a lock or another Busy page, except for room.
//!
//! Known limits: a system call that touches an absent page of the heap fails with EFAULT, so bytes
//! are copied out of the heap before they are given to one. What is hot is learnt where the cache is
//! smaller than the heap (see `touch`).

pub(crate) mod copies;
mod fetch;
mod registry;
mod touch;
mod write_back;

use crate::alarm::Alarm;
use crate::error::HeapError;
use muninn_heap_agent::layout::Geometry;
use muninn_net::{Grant, Lane, Pool};
use muninn_policy::evict::{Evict, EvictPolicy, PageIndex};
use muninn_policy::prefetch::{Prefetch, PrefetchPolicy};
use muninn_sys::alt_stack;
use muninn_sys::memory::{HugeAdvice, Mapping};
use muninn_sys::sigbus;
use muninn_sys::uffd::{FaultDevice, Features, PageRange, RegisterMode, Userfaultfd};
use muninn_types::{Bytes, LaneKind, PAGE_SHIFT, PAGE_SIZE, PageNo, ServerId};
use muninn_volume::Census;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

// States of a page. Marks lie above and below them (see `touch`), so that one comparison tells whether
// a page can be touched.
const INIT: u8 = 0x00;
const EVICTED: u8 = 0x10;
const CLEAN: u8 = 0x20;
const DIRTY: u8 = 0x30;
const BUSY: u8 = 0x40;
const LOST: u8 = 0x50;

/// Lanes to each server; threads share them by number.
const LANES: usize = 4;
/// A signal stack on which a page can be fetched over a network.
const SIGNAL_STACK: Bytes = Bytes::kib(256);
/// Pages that leave together when there is no room.
const BATCH: u32 = 64;
/// Pages that are looked at for some that were not touched of late.
const LOOKS_MAX: u32 = 4 * BATCH;

/// A lane and a buffer for what arrives on it.
struct LaneSlot {
    lane: Box<dyn Lane>,
    buffer: Box<[u8]>,
}

/// What the pager has done.
#[derive(Debug, Default)]
pub struct Counters {
    pub faults: AtomicU64,
    pub write_faults: AtomicU64,
    pub fetched_pages: AtomicU64,
    pub prefetched_pages: AtomicU64,
    pub written_pages: AtomicU64,
    pub dropped_clean_pages: AtomicU64,
    pub refreshed_pages: AtomicU64,
}

struct Policies {
    evict: Box<dyn Evict>,
    prefetch: Box<dyn Prefetch>,
    recent: touch::Recent,
}

pub struct Pager {
    map: Mapping,
    uffd: Userfaultfd,
    geometry: Geometry,
    states: Box<[AtomicU8]>,
    /// Home of each region, then of each tablet. None where copies are kept.
    homes: Vec<Grant>,
    servers: Vec<Vec<Mutex<LaneSlot>>>,
    mapped: Vec<bool>,
    copies: Option<copies::Copies>,
    policies: Mutex<Policies>,
    cached_pages: AtomicU64,
    limit_pages: AtomicU64,
    /// Pages are likely to be absent: it is worth to look before they are touched.
    is_tight: bool,
    /// Regions that are the tail of a humongous object: they have no head of their own.
    tails: Box<[AtomicBool]>,
    /// Version of each region's tag; empty where the plan uses none.
    versions: Box<[AtomicU32]>,
    pub alarm: Arc<Alarm>,
    pub counters: Counters,
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cached = self.cached_pages.load(Relaxed);
        write!(f, "Pager({cached} pages cached)")
    }
}

/// What a pager is made from.
#[derive(Debug)]
pub struct PagerConfig {
    pub geometry: Geometry,
    pub homes: Vec<Grant>,
    /// Instead of homes.
    pub copies: Option<copies::Keep>,
    pub local: Bytes,
    /// Write a tag ⟨dirty, version⟩ before and after pages leave for a region (Semeru §4.2).
    pub tags: bool,
    pub evict: EvictPolicy,
    pub prefetch: PrefetchPolicy,
}

impl Pager {
    pub fn new(
        pool: Option<&Pool>,
        config: PagerConfig,
        alarm: Arc<Alarm>,
    ) -> Result<Arc<Pager>, HeapError> {
        let geometry = config.geometry;
        let space = Bytes(geometry.space_bytes());
        let cannot = |what: String| HeapError::Machine(what);
        let map = Mapping::options().no_reserve().huge(HugeAdvice::Never);
        let map = map.anonymous(space).map_err(|e| cannot(e.to_string()))?;
        let required = Features::SIGBUS | Features::PAGEFAULT_FLAG_WP;
        let uffd = Userfaultfd::open_user_mode_only(required, Features::NONE)
            .map_err(|e| cannot(e.to_string()))?;
        let range = PageRange::of_bytes(map.addr(), map.len() as u64)
            .ok_or_else(|| cannot("a mapping starts at a page".to_string()))?;
        // SAFETY: the mapping is fresh; only this pager and the accessors of the heap, which expect
        // its faults, know of it.
        unsafe { uffd.register(range, RegisterMode::MISSING_AND_WRITE_PROTECT) }
            .map_err(|e| cannot(e.to_string()))?;
        let (mut servers, mut mapped) = (Vec::new(), Vec::new());
        for (pool, server) in pool
            .iter()
            .flat_map(|pool| (0..pool.len() as u32).map(move |server| (pool, ServerId(server))))
        {
            let transport = pool.transport(server)?;
            mapped.push(transport.kind() == muninn_net::Kind::Shm);
            let lanes = (0..LANES).map(|_| {
                let lane = transport.lane(LaneKind::Critical)?;
                let buffer = vec![0; muninn_wire::MAX_PAYLOAD].into_boxed_slice();
                Ok(Mutex::new(LaneSlot { lane, buffer }))
            });
            servers.push(lanes.collect::<Result<Vec<_>, HeapError>>()?);
        }
        let copies = config.copies.as_ref();
        let copies = copies.map(|keep| copies::Copies::new(keep, space));
        let copies = copies.transpose()?;
        let pages = (space.0 >> PAGE_SHIFT) as u32;
        let limit = config.local.whole_pages().max(2 * u64::from(BATCH));
        let regions = geometry.regions as usize;
        let versions = if config.tags { regions } else { 0 };
        let pager = Arc::new(Pager {
            map,
            uffd,
            geometry,
            states: (0..pages).map(|_| AtomicU8::new(INIT)).collect(),
            homes: config.homes,
            servers,
            mapped,
            copies,
            policies: Mutex::new(Policies {
                evict: config.evict.build(pages, 1),
                prefetch: config.prefetch.build(),
                recent: touch::Recent::default(),
            }),
            cached_pages: AtomicU64::new(0),
            limit_pages: AtomicU64::new(limit),
            is_tight: limit < geometry.heap_bytes() >> PAGE_SHIFT,
            tails: (0..regions).map(|_| AtomicBool::new(false)).collect(),
            versions: (0..versions).map(|_| AtomicU32::new(0)).collect(),
            alarm,
            counters: Counters::default(),
        });
        sigbus::set_resolver(registry::resolve).map_err(|e| cannot(e.to_string()))?;
        registry::add(&pager)?;
        Ok(pager)
    }

    /// Makes the calling thread able to answer its own faults.
    pub fn prepare_thread() -> Result<(), HeapError> {
        alt_stack::ensure(SIGNAL_STACK).map_err(|e| HeapError::Machine(e.to_string()))
    }

    /// Address of a place of the linear space.
    #[inline(always)]
    pub fn address(&self, at: u64) -> *mut u8 {
        debug_assert!(at < self.map.len() as u64);
        self.map.as_ptr().wrapping_add(at as usize)
    }

    /// The place of an address inside of the heap.
    #[inline(always)]
    pub fn place(&self, address: *const u8) -> u64 {
        (address.addr() as u64).wrapping_sub(self.map.addr())
    }

    pub fn space_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    pub fn cached_pages(&self) -> u64 {
        self.cached_pages.load(Relaxed)
    }

    pub fn limit_pages(&self) -> u64 {
        self.limit_pages.load(Relaxed)
    }

    /// Memory of this pager besides the cache itself.
    pub fn memory_bytes(&self) -> u64 {
        let copies = self
            .copies
            .as_ref()
            .map_or(0, |copies| copies.memory_bytes());
        copies + self.states.len() as u64 + self.lock_policies().evict.memory_bytes() as u64
    }

    pub fn pages_of(&self, places: Range<u64>) -> Range<u32> {
        let first = places.start >> PAGE_SHIFT;
        let last = places.end.div_ceil(PAGE_SIZE as u64);
        first as u32..last as u32
    }

    /// How many pages of a range are cached.
    pub fn cached_in(&self, places: Range<u64>) -> u64 {
        let cached = |page: &u32| matches!(self.look(*page), CLEAN | DIRTY);
        self.pages_of(places).filter(cached).count() as u64
    }

    /// A region becomes, or is no longer, the tail of a humongous object.
    pub fn set_tail(&self, region: u32, is_tail: bool) {
        self.tails[region as usize].store(is_tail, Relaxed);
    }

    fn state(&self, page: u32) -> &AtomicU8 {
        &self.states[page as usize]
    }

    /// What a page is now, touched or not.
    fn look(&self, page: u32) -> u8 {
        self.state(page).load(Acquire) & touch::STATE
    }

    fn lock_policies(&self) -> MutexGuard<'_, Policies> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn range(&self, first: u32, pages: u32) -> PageRange {
        let first = PageNo::of_addr(self.map.addr()).0 + u64::from(first);
        PageRange::new(PageNo(first), u64::from(pages))
    }

    /// Home of a page: the grant, and where in it.
    fn home(&self, page: u32) -> (&Grant, u32) {
        let at = u64::from(page) << PAGE_SHIFT;
        let heap = self.geometry.heap_bytes();
        if at < heap {
            let region = self.geometry.region_of(at);
            let offset = at - self.geometry.region_start(region);
            (&self.homes[region as usize], offset as u32)
        } else {
            let tablet = ((at - heap) / self.geometry.tablet_bytes()) as u32;
            let offset = at - self.geometry.tablet_start(tablet);
            let home = (self.geometry.regions + tablet) as usize;
            (&self.homes[home], offset as u32)
        }
    }

    fn is_tablet(&self, page: u32) -> bool {
        u64::from(page) << PAGE_SHIFT >= self.geometry.heap_bytes()
    }

    fn lane(&self, server: ServerId) -> MutexGuard<'_, LaneSlot> {
        let lanes = &self.servers[server.0 as usize];
        let mine = registry::thread_number() as usize % LANES;
        // One's own if it is free, else any that is, else wait for one's own.
        for at in 0..LANES {
            if let Ok(lane) = lanes[(mine + at) % LANES].try_lock() {
                return lane;
            }
        }
        lanes[mine].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The region of a page that has a tag; none for tablets, tails, and plans without tags.
    fn tagged_region(&self, page: u32) -> Option<u32> {
        let region = self.geometry.region_of(u64::from(page) << PAGE_SHIFT);
        let tagged = !self.versions.is_empty()
            && region < self.geometry.regions
            && !self.tails[region as usize].load(Relaxed);
        tagged.then_some(region)
    }

    fn is_lost(&self) -> bool {
        self.alarm.has(crate::alarm::LOST)
    }

    fn lose(&self, page: u32, error: &dyn std::fmt::Display) {
        if self.copies.is_some() {
            self.alarm
                .lose(|| format!("page {page} of the heap cannot be had: {error}"));
            return;
        }
        let (grant, offset) = self.home(page);
        self.alarm.lose(|| {
            let region = self.geometry.region_of(u64::from(page) << PAGE_SHIFT);
            let server = grant.server;
            format!("page at {offset:#x} of region {region} on {server} cannot be had: {error}")
        });
    }

    /// Looks after the servers of a heap that is kept in copies; what is said of them.
    pub fn attend(&self) -> Census {
        let Some(copies) = &self.copies else {
            return Census::default();
        };
        copies.attend().unwrap_or_else(|why| {
            self.alarm.lose(|| why);
            Census::default()
        })
    }
    pub fn keeps_copies(&self) -> bool {
        self.copies.is_some()
    }

    /// Waits until a page is not being changed, and takes it.
    fn take(&self, page: u32, wanted: impl Fn(u8) -> bool) -> Option<u8> {
        let state = self.state(page);
        let mut spins = 0;
        loop {
            let now = state.load(Acquire);
            let is = now & touch::STATE;
            if is == BUSY {
                wait_a_moment(&mut spins);
                continue;
            }
            if !wanted(is) {
                return None;
            }
            if state.compare_exchange(now, BUSY, AcqRel, Acquire).is_ok() {
                return Some(is);
            }
        }
    }

    /// Takes a page only if that needs no waiting.
    fn try_take(&self, page: u32, wanted: impl Fn(u8) -> bool) -> Option<u8> {
        let state = self.state(page);
        let now = state.load(Acquire);
        let is = now & touch::STATE;
        (is != BUSY && wanted(is) && state.compare_exchange(now, BUSY, AcqRel, Acquire).is_ok())
            .then_some(is)
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        registry::remove(self);
    }
}

/// Spins a little, then lets others run.
pub(crate) fn wait_a_moment(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

fn index(page: u32) -> PageIndex {
    PageIndex(page)
}
