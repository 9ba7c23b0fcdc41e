//! A heap: its parts, how it is built, and what its mutators share.

use crate::alarm::{Alarm, LOST};
use crate::error::HeapError;
use crate::inside;
use crate::mutator::Mutator;
use crate::pager::copies::Keep;
use crate::pager::{Pager, PagerConfig};
use crate::phase::{Observer, Phase};
use crate::plan::{self, Plan, PlanState};
use crate::regions::{Bumps, Regions, Use};
use crate::roots::Roots;
use crate::stats::{Footprint, Log, Pause, PauseKind, Stats};
use crate::world::{Bump, Context, PARKED, Stopped, World};
use muninn_heap_agent::evacuate::Order;
use muninn_heap_agent::layout::{
    Geometry, Mode, REGION_HEAD, REGION_SHIFTS, TypeDescriptor, Types,
};
use muninn_net::{Grant, Pool, PoolOptions};
use muninn_policy::evict::EvictPolicy;
use muninn_policy::layout::Layout;
use muninn_policy::prefetch::PrefetchPolicy;
use muninn_sys::clock;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, ServerId};
use std::any::TypeId;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// How a heap is to be.
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) plan: Plan,
    pub(crate) heap: Bytes,
    pub(crate) local: Bytes,
    pub(crate) region: Bytes,
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) servers: Option<(Vec<Address>, PoolOptions)>,
    pub(crate) layout: Layout,
    pub(crate) order: Order,
    pub(crate) verify: bool,
    pub(crate) barriers: bool,
    pub(crate) observer: Observer,
    pub(crate) evict: EvictPolicy,
    pub(crate) prefetch: PrefetchPolicy,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            plan: Plan::Local,
            heap: Bytes::mib(256),
            local: Bytes::mib(64),
            region: Bytes::mib(4),
            pool: None,
            servers: None,
            layout: Layout::Single,
            order: Order::Depth,
            verify: false,
            barriers: true,
            observer: Observer::default(),
            evict: EvictPolicy::default(),
            prefetch: PrefetchPolicy::default(),
        }
    }
}

impl Builder {
    pub fn plan(mut self, plan: Plan) -> Builder {
        self.plan = plan;
        self
    }
    /// Size of the heap, at all servers together.
    pub fn heap(mut self, heap: Bytes) -> Builder {
        self.heap = heap;
        self
    }
    /// How much of it may be cached here.
    pub fn local(mut self, local: Bytes) -> Builder {
        self.local = local;
        self
    }
    /// Size of a region: a power of two from 64 KiB to 64 MiB.
    pub fn region(mut self, region: Bytes) -> Builder {
        self.region = region;
        self
    }
    pub fn pool(mut self, pool: Arc<Pool>) -> Builder {
        self.pool = Some(pool);
        self
    }
    /// The servers, in place of a pool that is connected: for a heap that is kept in copies, which
    /// connects itself to servers that come and go.
    pub fn servers(mut self, servers: Vec<Address>, options: PoolOptions) -> Builder {
        self.servers = Some((servers, options));
        self
    }
    /// How pages are kept: once, in copies, or with parity, so that servers may go and nothing is lost.
    /// Anything but once is for the plan `local`, and for a heap that was given
    /// [`servers`](Builder::servers).
    pub fn layout(mut self, layout: Layout) -> Builder {
        self.layout = layout;
        self
    }
    /// In which order collections lay objects down.
    pub fn order(mut self, order: Order) -> Builder {
        self.order = order;
        self
    }
    /// Compare the heap with a shadow copy around each collection; slow.
    pub fn verify(mut self, verify: bool) -> Builder {
        self.verify = verify;
        self
    }
    /// Without barriers: to measure what they cost. Such a heap cannot be collected by a plan that
    /// needs them; it is an error when it is full.
    pub fn without_barriers(mut self) -> Builder {
        self.barriers = false;
        self
    }
    /// Is told of each phase of a collection before it begins.
    pub fn observe(mut self, observer: impl Fn(Phase) + Send + Sync + 'static) -> Builder {
        self.observer = Observer(Some(Arc::new(observer)));
        self
    }
    pub fn evict(mut self, evict: EvictPolicy) -> Builder {
        self.evict = evict;
        self
    }
    pub fn prefetch(mut self, prefetch: PrefetchPolicy) -> Builder {
        self.prefetch = prefetch;
        self
    }

    pub fn build(self) -> Result<Heap, HeapError> {
        Heap::build(self)
    }
}

static NEXT_HEAP: AtomicU64 = AtomicU64::new(1);

/// Types by their Rust type, and by number.
#[derive(Debug, Default)]
struct TypeTable {
    by_rust: HashMap<TypeId, u16>,
    /// The numbers in it.
    of_rust: HashSet<u16>,
    types: Arc<Types>,
}

/// What all handles of a heap share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub id: u64,
    pub geometry: Geometry,
    pub config: Builder,
    /// None where copies are kept.
    pub pool: Option<Arc<Pool>>,
    pub pager: Arc<Pager>,
    pub alarm: Arc<Alarm>,
    types: RwLock<TypeTable>,
    regions: Mutex<Regions>,
    pub bumps: Bumps,
    pub world: World,
    pub roots: Mutex<Roots>,
    pub log: Log,
    /// One collection at a time.
    collecting: Mutex<()>,
    /// Counts collections, so that a mutator does not ask for what another just did.
    pub epoch: AtomicU64,
    pub state: PlanState,
    grants: Vec<Grant>,
}

/// A managed heap. Clones are the same heap; it ends with the last of them, its mutators and roots.
#[derive(Clone, Debug)]
pub struct Heap {
    pub(crate) inner: Arc<Inner>,
    // Stops the daemon when the last handle goes.
    _daemon: Arc<plan::Daemon>,
}

/// Most that a mutator maps ahead of what it allocates.
const POPULATE: u64 = 128 << 10;

impl Heap {
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn build(config: Builder) -> Result<Heap, HeapError> {
        let (pool, copies) = far_memory(&config)?;
        let bad = |why| HeapError::BadSize {
            heap: config.heap,
            region: config.region,
            why,
        };
        let shift = config.region.0.trailing_zeros();
        if !config.region.0.is_power_of_two() || !REGION_SHIFTS.contains(&shift) {
            return Err(bad("a region is a power of two from 64KiB to 64MiB"));
        }
        // To a heap that is kept in copies the volume is one server.
        let servers = pool.as_ref().map_or(1, |pool| pool.len()) as u64;
        let per_server = config.heap.0.div_ceil(config.region.0 * servers);
        if per_server < 2 || per_server * servers > 1 << 20 {
            return Err(bad("a heap has 2 to 1048576 regions at each server"));
        }
        let mode = match config.plan {
            Plan::Mako => Mode::Indirect,
            _ => Mode::Direct,
        };
        let geometry = Geometry {
            region_shift: shift,
            regions: (per_server * servers) as u32,
            regions_per_server: per_server as u32,
            mode,
        };
        let grants = match &pool {
            Some(pool) => take_grants(pool, &geometry, config.heap)?,
            None => Vec::new(),
        };
        let far = (pool.clone(), grants.clone(), copies);
        let built = Inner::new(config, far, geometry);
        if let (Err(_), Some(pool)) = (&built, pool) {
            // What was taken for a heap that does not come to be goes back.
            let _ = pool.release(&grants);
        }
        let inner = Arc::new(built?);
        let _daemon = Arc::new(plan::Daemon::start(&inner)?);
        Ok(Heap { inner, _daemon })
    }

    /// A mutator: the right to use the heap from one thread at a time.
    pub fn mutator(&self) -> Result<Mutator, HeapError> {
        Mutator::new(self.clone())
    }

    /// Collects everything that cannot be reached. Inside of a scope it is an error, as the
    /// collection would wait for that scope; there it is [`Scope::collect`](crate::Scope::collect).
    pub fn collect(&self) -> Result<(), HeapError> {
        inside::check()?;
        self.inner.collect(None, true)
    }

    /// What the heap has done so far.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }
    pub fn pauses(&self) -> Vec<Pause> {
        self.inner.log.pauses()
    }
    pub fn footprints(&self) -> Vec<Footprint> {
        self.inner.log.footprints()
    }
    pub fn geometry(&self) -> Geometry {
        self.inner.geometry
    }
    pub fn plan(&self) -> Plan {
        self.inner.config.plan
    }

    /// Registers a type at run time: for implementers of languages.
    pub fn register(&self, descriptor: TypeDescriptor) -> Result<u16, HeapError> {
        self.inner.add_type(None, descriptor)
    }

    /// Objects that are reachable, found by a walk of its own, with the world stopped. Checks that
    /// every reference leads to an object.
    pub fn audit(&self) -> Result<crate::verify::Audit, HeapError> {
        inside::check()?;
        Pager::prepare_thread()?;
        let _one = self.inner.lock_collecting();
        let stopped = self.inner.world.stop();
        crate::verify::audit(&self.inner, &stopped)
    }

    /// A reference that was given a name with [`Scope::name`](crate::Scope::name).
    pub fn find<T: crate::typed::Referent + ?Sized>(
        &self,
        name: &str,
    ) -> Result<crate::roots::Root<T>, HeapError> {
        let asked = self.inner.rust_type::<T>()?;
        crate::roots::Root::find(&self.inner, name, asked)
    }
}

/// A pool whose servers have the pages, or what is needed to keep copies of them.
fn far_memory(config: &Builder) -> Result<(Option<Arc<Pool>>, Option<Keep>), HeapError> {
    if config.layout == Layout::Single {
        return match (&config.pool, &config.servers) {
            (Some(pool), _) => Ok((Some(Arc::clone(pool)), None)),
            (None, Some((servers, options))) => {
                let sessions = servers.iter().map(|at| muninn_net::connect(at, options));
                let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
                let pool = Pool::new(sessions, options.clone())?;
                Ok((Some(Arc::new(pool)), None))
            }
            (None, None) => Err(muninn_net::NetError::NoServers.into()),
        };
    }
    if config.plan != Plan::Local {
        return Err(HeapError::BadLayout(config.layout, config.plan));
    }
    let (servers, options) = config
        .servers
        .clone()
        .ok_or(muninn_net::NetError::NoServers)?;
    let keep = Keep {
        servers,
        options,
        layout: config.layout,
    };
    Ok((None, Some(keep)))
}

fn take_grants(pool: &Pool, geometry: &Geometry, heap: Bytes) -> Result<Vec<Grant>, HeapError> {
    let mut grants = Vec::new();
    let mut take = |region: u32, bytes: u64| {
        let server = ServerId(geometry.server_of(region));
        pool.grant_at(server, Bytes(bytes))
            .map(|grant| grants.push(grant))
    };
    let all = (0..geometry.regions).try_for_each(|region| take(region, geometry.region_bytes()));
    let all = match geometry.mode {
        Mode::Direct => all,
        Mode::Indirect => all.and_then(|()| {
            (0..geometry.regions).try_for_each(|tablet| take(tablet, geometry.tablet_bytes()))
        }),
    };
    if let Err(error) = all {
        let _ = pool.release(&grants);
        let full = Pool::is_full(&error) || error.is_refusal(muninn_wire::ErrorCode::BadSize);
        return Err(if full {
            HeapError::PoolTooSmall {
                heap,
                why: error.to_string(),
            }
        } else {
            error.into()
        });
    }
    Ok(grants)
}

impl Inner {
    fn new(
        config: Builder,
        (pool, grants, copies): (Option<Arc<Pool>>, Vec<Grant>, Option<Keep>),
        geometry: Geometry,
    ) -> Result<Inner, HeapError> {
        let alarm = Arc::new(Alarm::default());
        let pager_config = PagerConfig {
            geometry,
            homes: grants.clone(),
            copies,
            local: config.local,
            tags: config.plan == Plan::Semeru,
            evict: config.evict,
            prefetch: config.prefetch,
        };
        let pager = Pager::new(pool.as_deref(), pager_config, Arc::clone(&alarm))?;
        let state = PlanState::new(&config, pool.as_ref(), &geometry, &grants)?;
        Ok(Inner {
            id: NEXT_HEAP.fetch_add(1, Relaxed),
            geometry,
            pool,
            pager,
            world: World::new(Arc::clone(&alarm)),
            alarm,
            types: RwLock::default(),
            regions: Mutex::new(Regions::new(geometry)),
            bumps: Regions::new_bumps(&geometry),
            roots: Mutex::default(),
            log: Log::default(),
            collecting: Mutex::default(),
            epoch: AtomicU64::new(0),
            state,
            config,
            grants,
        })
    }

    pub fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub fn roots(&self) -> MutexGuard<'_, Roots> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub fn lock_collecting(&self) -> MutexGuard<'_, ()> {
        self.collecting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
    pub fn types(&self) -> Arc<Types> {
        let table = self.types.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table.types)
    }

    pub fn lost(&self) -> Result<(), HeapError> {
        match self.alarm.has(LOST) {
            false => Ok(()),
            true => Err(self.lost_error()),
        }
    }

    /// What a mutator of a lost heap is told.
    #[cold]
    pub fn lost_error(&self) -> HeapError {
        let why = self.alarm.lost().unwrap_or("a server");
        HeapError::Lost(why.to_string())
    }

    /// Whether the heap is lost and the thread unwinds already, so that it cannot be unwound.
    #[cold]
    pub fn is_void(&self) -> bool {
        self.alarm.has(LOST) && std::thread::panicking()
    }

    /// Whether typed accessors rely on what objects of this type hold.
    pub fn is_rust_type(&self, type_id: u16) -> bool {
        let table = self.types.read().unwrap_or_else(PoisonError::into_inner);
        table.of_rust.contains(&type_id)
    }

    /// The number of a Rust type, registered when it is first used.
    pub fn rust_type<T: crate::typed::Referent + ?Sized>(&self) -> Result<u16, HeapError> {
        let key = TypeId::of::<T::Key>();
        {
            let table = self.types.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(number) = table.by_rust.get(&key) {
                return Ok(*number);
            }
        }
        self.add_type(Some(key), T::describe())
    }

    fn add_type(&self, key: Option<TypeId>, descriptor: TypeDescriptor) -> Result<u16, HeapError> {
        let mut table = self.types.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = key.and_then(|key| table.by_rust.get(&key)) {
            return Ok(*number);
        }
        if !descriptor.is_sane() {
            return Err(HeapError::BadType(descriptor.name));
        }
        // Agents know a type before there is an object of it.
        self.state.add_type(&descriptor)?;
        let number = Arc::make_mut(&mut table.types).add(descriptor);
        let number = number.ok_or(HeapError::TooManyTypes)?;
        if let Some(key) = key {
            table.by_rust.insert(key, number);
            table.of_rust.insert(number);
        }
        Ok(number)
    }

    // --- allocation

    /// Room for an object: its place. May collect; all references must be in slots.
    #[inline]
    pub fn room(&self, context: &Context, size: u64) -> Result<u64, HeapError> {
        let mut bump = context.bump.get();
        if bump.at == 0 || bump.at + size > bump.end {
            if size > self.geometry.humongous_bytes() {
                return self.humongous(context, size);
            }
            self.refill(context, size)?;
            bump = context.bump.get();
        }
        let at = bump.at;
        bump.at += size;
        if bump.at > bump.ready {
            bump.ready = (bump.at + POPULATE).min(bump.end);
            self.pager.populate(at..bump.ready);
        }
        context.bump.set(bump);
        let used = bump.at - self.geometry.region_start(bump.region);
        self.bumps[bump.region as usize].store(used, Release);
        Ok(at)
    }

    #[cold]
    fn refill(&self, context: &Context, size: u64) -> Result<(), HeapError> {
        let most = self.geometry.region_bytes() - REGION_HEAD;
        debug_assert!(size <= most);
        self.retire(context);
        self.state.pace(self, context);
        for attempt in 0..plan::ATTEMPTS {
            self.retire(context);
            let epoch = self.epoch.load(Acquire);
            let taken = self.state.take_region(self, context, size);
            if let Some(region) = taken {
                let start = self.geometry.region_start(region);
                let at = start + self.bumps[region as usize].load(Acquire);
                context.bump.set(Bump {
                    region,
                    at,
                    end: start + self.geometry.region_bytes(),
                    ready: at,
                });
                return Ok(());
            }
            self.make_space(context, epoch, attempt)?;
        }
        Err(self.full(size))
    }

    /// The mutator allocates no more in its region.
    pub fn retire(&self, context: &Context) {
        let bump = context.bump.take();
        if bump.at != 0 {
            self.state.retire(context);
            self.regions().get_mut(bump.region).use_ = Use::Used;
        }
    }

    fn humongous(&self, context: &Context, size: u64) -> Result<u64, HeapError> {
        let most = u64::from(self.geometry.regions_per_server) * self.geometry.region_bytes();
        if size + REGION_HEAD > most {
            return Err(HeapError::TooLarge {
                asked: Bytes(size),
                most: Bytes(most),
            });
        }
        let count = self.geometry.regions_for(size);
        for attempt in 0..plan::ATTEMPTS {
            let epoch = self.epoch.load(Acquire);
            if let Some(first) = self.state.take_run(self, count) {
                for tail in first + 1..first + count {
                    self.pager.set_tail(tail, true);
                }
                let at = self.geometry.region_start(first) + REGION_HEAD;
                self.bumps[first as usize].store(REGION_HEAD + size, Release);
                self.pager.populate(at..at + size);
                return Ok(at);
            }
            self.make_space(context, epoch, attempt)?;
        }
        Err(self.full(size))
    }

    fn full(&self, asked: u64) -> HeapError {
        HeapError::Full {
            asked: Bytes(asked),
            live: self.regions().used(&self.bumps),
            heap: Bytes(self.geometry.heap_bytes()),
        }
    }

    /// There was no room: collect, or wait for the collection that runs.
    fn make_space(&self, context: &Context, epoch: u64, attempt: u32) -> Result<(), HeapError> {
        self.lost()?;
        self.world.leave(context, PARKED);
        let made = if self.state.is_concurrent() {
            let start = clock::now();
            let waited = self.state.wait_for_cycle(self, epoch);
            self.log.pause(PauseKind::Stall, start);
            waited
        } else if self.epoch.load(Acquire) != epoch {
            // Another mutator's collection came between.
            Ok(())
        } else {
            self.collect(Some(epoch), attempt > 0)
        };
        self.world.enter(context, PARKED);
        self.poll_slow(context);
        made
    }

    // --- collection

    /// A phase of a collection begins.
    pub fn begin(&self, phase: Phase) {
        if let Some(observer) = &self.config.observer.0 {
            let _busy = inside::observe();
            observer(phase);
        }
    }

    /// Collects, unless somebody has since `seen`. The caller must not be inside.
    pub fn collect(&self, seen: Option<u64>, full: bool) -> Result<(), HeapError> {
        Pager::prepare_thread()?;
        self.lost()?;
        if self.state.is_concurrent() {
            return self.state.full_cycle(self);
        }
        let _one = self.lock_collecting();
        if seen.is_some_and(|seen| self.epoch.load(Acquire) != seen) {
            return Ok(());
        }
        let start = clock::now();
        let stopped = self.world.stop();
        self.retire_all(&stopped);
        let before = self.regions().used(&self.bumps);
        let shadow = match self.config.verify {
            true => Some(crate::verify::audit(self, &stopped)?),
            false => None,
        };
        let faults = self.pager.counters.faults.load(Relaxed);
        // Only an observer can panic here.
        let collect = AssertUnwindSafe(|| self.state.collect(self, &stopped, full));
        let result = std::panic::catch_unwind(collect)
            .unwrap_or_else(|_| Err(HeapError::Lost("the collector panicked".to_string())));
        if let Err(error) = &result {
            // Half a collection leaves a heap that nothing can be said about.
            self.alarm
                .lose(|| format!("a collection did not finish: {error}"));
        }
        if let (Some(shadow), Ok(_)) = (shadow, &result) {
            let now = crate::verify::audit(self, &stopped)?;
            if shadow != now {
                self.alarm
                    .lose(|| format!("a collection changed the heap: {shadow:?} became {now:?}"));
            }
        }
        let after = self.regions().used(&self.bumps);
        self.epoch.fetch_add(1, Release);
        drop(stopped);
        let kind = match &result {
            Ok(kind) => *kind,
            Err(_) => PauseKind::Full,
        };
        let spent = clock::now().saturating_sub(start).0;
        self.log.pause(kind, start);
        self.log.footprint(before, after);
        Log::add(&self.log.collections, 1);
        Log::add(&self.log.collector_ns, spent);
        let faults = self.pager.counters.faults.load(Relaxed) - faults;
        Log::add(&self.log.collector_faults, faults);
        if kind == PauseKind::Full {
            Log::add(&self.log.full_collections, 1);
        }
        result.map(|_| ())?;
        self.lost()
    }

    /// With the world stopped: nobody allocates in a region any more.
    pub fn retire_all(&self, stopped: &Stopped<'_>) {
        for context in stopped.mutators.iter() {
            self.retire(context);
        }
    }

    /// A region is empty: its pages, its room and its grant are free for others.
    pub fn release_region(&self, region: u32) {
        let mut regions = self.regions();
        let count = match regions.get(region).use_ {
            Use::Free => return,
            Use::Humongous(count) => count,
            _ => 1,
        };
        let start = self.geometry.region_start(region);
        let end = self.geometry.region_start(region + count);
        self.pager.forget(start..end);
        for region in region..region + count {
            self.bumps[region as usize].store(REGION_HEAD, Release);
            self.pager.set_tail(region, false);
        }
        regions.release(region);
        Log::add(&self.log.freed_regions, u64::from(count));
    }

    // --- safepoints

    /// The alarm is set: do what it asks for. True where the heap is lost and the thread unwinds
    /// already: then what the access found is nothing.
    #[cold]
    pub fn poll_slow(&self, context: &Context) -> bool {
        loop {
            if self.alarm.has(LOST) {
                if std::thread::panicking() {
                    return true;
                }
                std::panic::resume_unwind(Box::new(crate::mutator::LostSignal));
            }
            self.state.answer(self, context);
            if !self.alarm.has(crate::alarm::STOP) {
                return false;
            }
            self.world.leave(context, PARKED);
            self.world.enter(context, PARKED);
        }
    }

    pub fn stats(&self) -> Stats {
        let counters = &self.pager.counters;
        let log = &self.log;
        let census = self.pager.attend();
        let (free_regions, used) = {
            let regions = self.regions();
            (regions.free_regions(), regions.used(&self.bumps))
        };
        Stats {
            regions: self.geometry.regions,
            free_regions,
            used,
            cached: Bytes::pages(self.pager.cached_pages()),
            metadata: Bytes(self.pager.memory_bytes() + self.state.memory_bytes()),
            collections: log.collections.load(Relaxed),
            full_collections: log.full_collections.load(Relaxed),
            collector_seconds: log.collector_ns.load(Relaxed) as f64 / 1e9,
            moved: Bytes(log.moved_bytes.load(Relaxed)),
            faults: counters.faults.load(Relaxed),
            collector_faults: log.collector_faults.load(Relaxed),
            write_faults: counters.write_faults.load(Relaxed),
            fetched_pages: counters.fetched_pages.load(Relaxed),
            prefetched_pages: counters.prefetched_pages.load(Relaxed),
            written_pages: counters.written_pages.load(Relaxed),
            refreshed_pages: counters.refreshed_pages.load(Relaxed),
            degraded: census.degraded,
            repaired: census.repaired,
            agents: self.state.agent_stats(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.state.detach();
        // A server that is gone has them already.
        if let Some(pool) = &self.pool {
            let _ = pool.release(&self.grants);
        }
    }
}
