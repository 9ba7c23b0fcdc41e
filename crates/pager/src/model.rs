//! The engine over a fake kernel and a fake pool, against a plain array.
//!
//! A program of one thread writes and reads pages, gives some back, moves and unmaps some, pins some,
//! while the allowance changes and chunks are evicted in between; the kernel refuses and stops half
//! way as it likes. After every step the invariants are counted out, and every read must see what was
//! last written. With sealed pages the pool looks at what it is given, and lies when it is asked.

use crate::hash::Hasher;
use crate::vault::{Page, Store, Transfer, Vault};
use muninn_pager_core::{
    BATCH_MAX, ChunkNo, Count, Engine, Fatal, Kernel, Mask, Served, Settings, Touch as Wanted,
    Wait, bit, places,
};
use muninn_policy::evict::EvictPolicy;
use muninn_policy::prefetch::PrefetchPolicy;
use muninn_sys::uffd::fake::{Call, FakeFaultDevice, FakeSpace, Script, Touch};
use muninn_sys::uffd::{
    Cause, CopyMode, Event, EventBuffer, FaultDevice, Features, MoveMode, PageRange, Partial,
    RegisterMode, Wake,
};
use muninn_types::{Class, Extent, ExtentId, Nanos, PAGE_SIZE, PageNo, ServerId, SplitMix64};
use muninn_volume::VolumeError;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

const PAGES: u64 = 96;
const FRAMES: u64 = 64;

#[derive(Debug)]
struct FakeKernel {
    space: FakeSpace,
    program: FakeFaultDevice,
    staging: FakeFaultDevice,
    /// Pages of the program that must not leave.
    staying: Mutex<HashSet<PageNo>>,
}

impl Kernel for FakeKernel {
    type Page = Page;
    type Taking = ();
    type Waits<'a> = ();

    fn begin_taking(&self) {}
    fn staying(&self, (): &(), chunk: ChunkNo) -> Mask {
        let staying = self.staying.lock().unwrap();
        let stays = |place: &usize| staying.contains(&chunk.page(*place));
        (0..16)
            .filter(stays)
            .fold(0, |mask, place| mask | bit(place))
    }
    fn take_out(&self, to: PageNo, from: PageRange) -> Result<(), Partial> {
        let staying = self.staying.lock().unwrap();
        assert!(!from.iter().any(|page| staying.contains(&page)));
        let mode = MoveMode {
            wake: Wake::Later,
            allow_holes: false,
        };
        // SAFETY: fake memory.
        let moved = unsafe { self.staging.move_pages(to, from, mode) };
        self.count_untold(moved, to, from)
    }
    fn put_in(&self, to: PageNo, from: PageRange) -> Result<(), Partial> {
        // SAFETY: fake memory.
        let moved = unsafe { self.program.move_pages(to, from, MoveMode::default()) };
        self.count_untold(moved, to, from)
    }
    fn copy_in(&self, to: PageNo, from: &[Page]) -> Result<(), Partial> {
        let range = PageRange::new(to, from.len() as u64);
        let from = from.as_ptr().cast();
        // SAFETY: there are as many pages as are filled.
        unsafe { self.program.copy(range, from, CopyMode::default()) }
    }
    fn fill_new(&self, range: PageRange) -> Result<(), Partial> {
        let zeros = vec![[0; PAGE_SIZE]; range.pages() as usize];
        self.copy_in(range.first(), &zeros)
    }
    fn fill_zero(&self, range: PageRange) -> Result<(), Partial> {
        self.program.zero(range, Wake::Now)
    }
    fn wake(&self, range: PageRange) {
        let _ = self.program.wake(range);
    }
    fn frame(&self, frame: PageNo) -> &Page {
        assert!(self.space.is_present(frame), "{frame:?} is absent");
        let page: *const Page = std::ptr::with_exposed_provenance(frame.addr() as usize);
        // SAFETY: fake memory is mapped as long as the space lives.
        unsafe { &*page }
    }
    fn fill_frame(&self, frame: PageNo, page: &Page) -> Result<(), Partial> {
        let frame = PageRange::one(frame);
        // SAFETY: a page is readable.
        unsafe { self.staging.copy(frame, page.as_ptr(), CopyMode::default()) }
    }
    fn is_changing(&self) -> bool {
        self.program.is_changing()
    }
    fn discard(&self, frames: PageRange) {
        self.space.remove(frames);
    }
    fn present(&self, range: PageRange) -> u64 {
        let there = range.iter().enumerate();
        there
            .filter(|(_, page)| self.space.is_present(*page))
            .fold(0, |mask, (at, _)| mask | 1 << at)
    }
    fn is_mapped(&self, _: PageNo) -> bool {
        false
    }
    fn unshare(&self, _: PageRange) {}
    fn count(&self, _: Count, _: u64) {}
    fn waits(&self, _: Wait, _: Option<Nanos>) {}
}

/// A pool in memory, with little room.
#[derive(Debug, Default)]
struct FakeFar {
    pages: HashMap<(ExtentId, u32), Box<Page>>,
    granted: u64,
    released: u64,
    grants_max: u64,
    /// Nothing that looks like a page of the program may come here.
    sealed: bool,
    /// Pages as they were before they were written anew.
    older: HashMap<(ExtentId, u32), Vec<Box<Page>>>,
    /// Lies from now on, one page in so many.
    lies: Option<(SplitMix64, u64)>,
    told: u64,
    /// There is a second copy, of which the truth is told.
    mirrored: bool,
    distrusted: u64,
}

/// Bytes of a sealed page that are zero: 16 of 4096 are to be expected. The program's pages are zero but
/// for the first few.
const ZEROS_MAX: usize = 64;

impl FakeFar {
    fn truth(&self, transfer: &Transfer) -> Page {
        *self.pages[&(transfer.extent, transfer.place)]
    }

    /// A page as it is, or another in its place.
    fn answer(&mut self, transfer: &Transfer) -> Page {
        let truth = self.truth(transfer);
        let Some((dice, one_in)) = &mut self.lies else {
            return truth;
        };
        if dice.below(*one_in) != 0 {
            return truth;
        }
        let mut lie = truth;
        match dice.below(3) {
            0 => {}
            1 => {
                let older = self.older.get(&(transfer.extent, transfer.place));
                if let Some(older) = older.filter(|older| !older.is_empty()) {
                    lie = *older[dice.below(older.len() as u64) as usize];
                }
            }
            _ => {
                // The order of a map is not the same twice; which other page it is does not matter.
                let other = dice.below(self.pages.len() as u64) as usize;
                lie = **self.pages.values().nth(other).unwrap();
            }
        }
        if lie == truth {
            lie[dice.below(4096) as usize] ^= 1 << dice.below(8);
        }
        self.told += 1;
        lie
    }
}

impl Store for FakeFar {
    unsafe fn read(&mut self, transfers: &[Transfer], _: Class) -> Result<(), VolumeError> {
        for transfer in transfers {
            // SAFETY: the engine's promise.
            unsafe { *transfer.near = self.answer(transfer) };
        }
        Ok(())
    }
    unsafe fn read_copy(
        &mut self,
        transfer: &Transfer,
        _: Class,
        n: usize,
    ) -> Option<Result<ServerId, VolumeError>> {
        let page = match n {
            0 => self.answer(transfer),
            1 if self.mirrored => self.truth(transfer),
            _ => return None,
        };
        // SAFETY: the engine's promise.
        unsafe { *transfer.near = page };
        Some(Ok(ServerId(n as u32)))
    }
    fn distrust(&mut self, _: ExtentId, server: ServerId) {
        assert_eq!(server, ServerId(0), "the one that told the truth");
        self.distrusted += 1;
    }
    unsafe fn write(&mut self, transfers: &[Transfer], _: Class) -> Result<(), VolumeError> {
        for transfer in transfers {
            let key = (transfer.extent, transfer.place);
            // SAFETY: the engine's promise.
            let page = Box::new(unsafe { *transfer.near });
            let zeros = page.iter().filter(|byte| **byte == 0).count();
            assert_eq!(self.sealed, zeros < ZEROS_MAX, "{zeros} zeros");
            if let Some(before) = self.pages.insert(key, page) {
                self.older.entry(key).or_default().push(before);
            }
        }
        Ok(())
    }
    fn extent(&mut self) -> Result<Extent, VolumeError> {
        if self.granted - self.released == self.grants_max {
            return Err(VolumeError::Full("full".to_string()));
        }
        self.granted += 1;
        Ok(Extent {
            id: ExtentId(self.granted as u32),
            pages: 32,
        })
    }
    fn granted(&mut self) -> Option<Extent> {
        None
    }
    fn replenish(&mut self, _: u64, _: u64) {}
    fn release(&mut self, _: ExtentId) {
        self.released += 1;
    }
}

struct World {
    engine: Engine<FakeKernel, Vault<FakeFar>>,
    space: FakeSpace,
    /// What each page must hold; `None` where nothing is mapped.
    model: Vec<Option<u64>>,
    next_value: u64,
}

impl World {
    fn new(evict: EvictPolicy, prefetch: PrefetchPolicy, grants_max: u64, seal: bool) -> World {
        let space = FakeSpace::new(PAGES + FRAMES).unwrap();
        let events = Features::EVENT_REMAP | Features::EVENT_REMOVE | Features::EVENT_UNMAP;
        let program = space.open(events);
        let staging = space.open(Features::SIGBUS);
        let frames = PageRange::new(space.page(PAGES), FRAMES);
        // SAFETY: fake memory.
        unsafe { program.register(PageRange::new(space.page(0), PAGES), RegisterMode::MISSING) }
            .unwrap();
        // SAFETY: fake memory.
        unsafe { staging.register(frames, RegisterMode::MISSING) }.unwrap();
        let kernel = FakeKernel {
            space: space.clone(),
            program,
            staging,
            staying: Mutex::default(),
        };
        let far = FakeFar {
            grants_max,
            sealed: seal,
            ..FakeFar::default()
        };
        let settings = Settings {
            evict,
            prefetch,
            // So few that pages are moved together.
            spare_slots: 4,
            ..Settings::default()
        };
        let vault = Vault::new(far, Hasher::random(), seal);
        let scratch = vec![[0; PAGE_SIZE]; BATCH_MAX].into_boxed_slice();
        World {
            engine: Engine::new(kernel, vault, frames, scratch, &settings),
            space,
            model: vec![Some(0); PAGES as usize],
            next_value: 0,
        }
    }

    /// Reads events and serves faults until nobody waits.
    fn settle(&mut self) {
        let mut events = EventBuffer::new();
        let mut faults = Vec::new();
        for _ in 0..100 {
            self.engine.kernel.program.read_events(&mut events).unwrap();
            while let Some(event) = events.pop() {
                match event {
                    Event::Fault(fault) => faults.push(fault),
                    Event::Remove(range) => self.engine.handle_remove(range),
                    Event::Unmap(range) => self.engine.handle_unmap(range).unwrap(),
                    Event::Remap { from, to } => self.engine.handle_remap(from, to).unwrap(),
                    Event::Fork(_) => unreachable!("nobody forks here"),
                }
            }
            faults.retain(|fault| {
                let wanted = Wanted {
                    page: fault.page(),
                    write: fault.write,
                    thread: fault.thread,
                };
                self.engine.serve(&wanted).unwrap() == Served::Later
            });
            if faults.is_empty() && self.engine.kernel.program.pending() == 0 {
                return;
            }
        }
        panic!("a fault is never served: {faults:?}");
    }

    /// Touches a page until it is there.
    fn touch(&mut self, page: PageNo, value: Option<u64>) {
        for _ in 0..20 {
            let touch = match value {
                Some(value) => self.space.store(1, page, &value.to_le_bytes()),
                None => self.space.touch(1, page, false),
            };
            match touch {
                Touch::Done => return,
                Touch::Waits => self.settle(),
                other => panic!("{page:?}: {other:?}"),
            }
        }
        panic!("{page:?} never comes");
    }

    fn check(&mut self, at: usize) {
        let page = self.space.page(at as u64);
        self.touch(page, None);
        let bytes = self.space.load(page);
        let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(Some(found), self.model[at], "page {at}");
    }

    /// What the engine counts is what there is.
    fn count_out(&self) {
        let engine = &self.engine;
        let (mut resident, mut staged, mut far) = (0, 0, 0);
        for chunk in engine.chunks() {
            assert!(!chunk.is_empty());
            assert_eq!(chunk.resident & chunk.staged, 0, "{chunk:?}");
            assert_eq!(chunk.staged & !chunk.far, 0, "{chunk:?}");
            resident += chunk.resident.count_ones();
            staged += chunk.staged.count_ones();
            far += chunk.far.count_ones();
            for place in 0..16 {
                let there = self.space.is_present(chunk.number.page(place));
                let known = chunk.resident & bit(place) != 0;
                let gone = (chunk.staged | chunk.remote()) & bit(place) != 0;
                assert!(
                    !known || there,
                    "a resident page is absent: {chunk:?} {place}"
                );
                assert!(
                    !gone || !there,
                    "a page is in two places: {chunk:?} {place}"
                );
            }
        }
        assert_eq!(engine.resident(), u64::from(resident));
        assert_eq!(engine.gauges().staged, u64::from(staged));
        assert_eq!(engine.gauges().slots, u64::from(far));
        let frames = PageRange::new(self.space.page(PAGES), FRAMES);
        let used = frames.iter().filter(|page| self.space.is_present(*page));
        assert_eq!(used.count() as u64, engine.held() - engine.resident());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Zero(usize),
    Read(usize),
    Evict,
    Allow(u64),
    Remove(usize, usize),
    Remap(usize, usize, usize),
    Pin(usize, bool),
    Stay(usize, bool),
    Quiesce,
    /// A program in a hurry, several threads at once.
    Manner(bool),
    Ward(bool),
    Compact,
    Refuse(Call, Script),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let page = 0..PAGES as usize;
    let refusals = prop_oneof![
        Just(Script::Fail(Cause::Again)),
        Just(Script::Fail(Cause::Busy)),
        Just(Script::Fail(Cause::Invalid)),
        Just(Script::StopAfter(1)),
        Just(Script::StopAfter(3)),
        Just(Script::StopUntold(1)),
        Just(Script::StopUntold(3)),
    ];
    let copies = prop_oneof![Just(Script::Fail(Cause::Again)), Just(Script::StopAfter(1))];
    let step = prop_oneof![
        6 => page.clone().prop_map(Step::Write),
        1 => page.clone().prop_map(Step::Zero),
        6 => page.clone().prop_map(Step::Read),
        4 => Just(Step::Evict),
        1 => (2..PAGES).prop_map(Step::Allow),
        1 => (page.clone(), 1..20usize).prop_map(|(at, len)| Step::Remove(at, len)),
        1 => (page.clone(), page.clone(), 1..12usize).prop_map(|(a, b, n)| Step::Remap(a, b, n)),
        1 => (page.clone(), any::<bool>()).prop_map(|(at, pin)| Step::Pin(at, pin)),
        2 => (page, any::<bool>()).prop_map(|(at, stay)| Step::Stay(at, stay)),
        1 => Just(Step::Quiesce),
        1 => any::<bool>().prop_map(Step::Manner),
        1 => any::<bool>().prop_map(Step::Ward),
        2 => Just(Step::Compact),
        1 => refusals.prop_map(|script| Step::Refuse(Call::Move, script)),
        1 => copies.prop_map(|script| Step::Refuse(Call::Copy, script)),
    ];
    prop::collection::vec(step, 1..250)
}

fn run(world: &mut World, steps: &[Step]) {
    for step in steps {
        match *step {
            Step::Write(at) if world.model[at].is_some() => {
                world.next_value += 1;
                let value = world.next_value;
                world.touch(world.space.page(at as u64), Some(value));
                world.model[at] = Some(value);
            }
            Step::Zero(at) if world.model[at].is_some() => {
                world.touch(world.space.page(at as u64), Some(0));
                world.model[at] = Some(0);
            }
            Step::Read(at) if world.model[at].is_some() => world.check(at),
            Step::Evict => {
                world.engine.evict_some(false).unwrap();
                world.engine.shrink();
            }
            Step::Allow(pages) => world.engine.set_allowed(pages),
            Step::Remove(at, len) => {
                let len = len.min(PAGES as usize - at);
                if world.model[at..at + len].iter().all(Option::is_some) {
                    let range = PageRange::new(world.space.page(at as u64), len as u64);
                    world.space.remove(range);
                    world.model[at..at + len].fill(Some(0));
                    world.settle();
                }
            }
            Step::Remap(from, to, len) => {
                let len = len.min(PAGES as usize - from.max(to));
                let apart = from + len <= to || to + len <= from;
                if apart && world.model[from..from + len].iter().all(Option::is_some) {
                    let target = PageRange::new(world.space.page(to as u64), len as u64);
                    world.space.unmap(target);
                    let source = PageRange::new(world.space.page(from as u64), len as u64);
                    world.space.remap(source, target.first());
                    world.model.copy_within(from..from + len, to);
                    world.model[from..from + len].fill(None);
                    world.settle();
                }
            }
            Step::Pin(at, pin) => {
                let page = PageRange::one(world.space.page(at as u64));
                world.space.set_busy(page, pin);
            }
            Step::Stay(at, stay) => {
                let page = world.space.page(at as u64);
                let mut staying = world.engine.kernel.staying.lock().unwrap();
                match stay {
                    true => staying.insert(page),
                    false => staying.remove(&page),
                };
            }
            Step::Quiesce => world.engine.freeze(),
            Step::Compact => {
                world.engine.compact_some().unwrap();
            }
            Step::Ward(true) => world.engine.pin(),
            Step::Ward(false) => world.engine.pin_only(std::iter::empty()),
            Step::Manner(hurry) => {
                world.engine.set_hurry(hurry);
            }
            Step::Refuse(call, script) => {
                world.engine.kernel.program.script(call, script);
                if call == Call::Move {
                    world.engine.kernel.staging.script(call, script);
                }
            }
            _ => {}
        }
        world.count_out();
    }
    for at in 0..PAGES as usize {
        if world.model[at].is_some() {
            world.check(at);
        }
    }
}

fn evict_policy() -> impl Strategy<Value = EvictPolicy> {
    prop::sample::select(EvictPolicy::ALL.to_vec())
}
fn prefetch_policy() -> impl Strategy<Value = PrefetchPolicy> {
    prop::sample::select(PrefetchPolicy::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_program_sees_what_it_wrote(
        evict in evict_policy(),
        prefetch in prefetch_policy(),
        allowed in 2..PAGES,
        steps in steps(),
    ) {
        let mut world = World::new(evict, prefetch, 100, false);
        world.engine.set_allowed(allowed);
        run(&mut world, &steps);
    }

    #[test]
    fn sealed_pages_come_back(
        evict in evict_policy(),
        prefetch in prefetch_policy(),
        allowed in 2..PAGES,
        steps in steps(),
    ) {
        let mut world = World::new(evict, prefetch, 100, true);
        world.engine.set_allowed(allowed);
        run(&mut world, &steps);
    }

    /// Compaction and reading ahead included.
    #[test]
    fn a_lie_is_found_and_the_other_copy_asked(
        prefetch in prefetch_policy(),
        allowed in 2..PAGES,
        one_in in 1u64..4,
        seed: u64,
        steps in steps(),
    ) {
        let mut world = World::new(EvictPolicy::default(), prefetch, 100, true);
        world.engine.far.store.mirrored = true;
        world.engine.far.store.lies = Some((SplitMix64::new(seed), one_in));
        world.engine.set_allowed(allowed);
        run(&mut world, &steps);
        prop_assert!(one_in > 1 || world.engine.far.store.told == 2 * world.engine.far.store.distrusted);
    }

    #[test]
    fn a_lie_about_the_only_copy_is_the_end(
        prefetch in prefetch_policy(),
        allowed in 2..PAGES,
        seed: u64,
        steps in steps(),
    ) {
        let mut world = World::new(EvictPolicy::default(), prefetch, 100, true);
        world.engine.set_allowed(allowed);
        run(&mut world, &steps);
        world.engine.far.store.lies = Some((SplitMix64::new(seed), 1));
        // The page that is touched comes alone.
        world.engine.set_hurry(false);
        let remote: Vec<PageNo> = world.engine.chunks()
            .flat_map(|chunk| places(chunk.remote()).map(|place| chunk.number.page(place)))
            .collect();
        for page in remote {
            let wanted = Wanted { page, thread: 1, write: false };
            // What stands in its way (the kernel refuses to evict) is another thing.
            match world.engine.serve(&wanted) {
                Err(Fatal::Changed(at, _)) => prop_assert_eq!(at, page.addr()),
                Ok(Served::Later) => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn a_full_pool_loses_nothing(allowed in 8..PAGES, steps in steps()) {
        let mut world = World::new(EvictPolicy::default(), PrefetchPolicy::default(), 1, false);
        world.engine.set_allowed(allowed);
        run(&mut world, &steps);
    }
}
