//! A volume over servers that stop, die, come back, drain, lag and lie, against a shadow model.
//!
//! At any time no more servers are hurt than the layout can spare, and the next is hurt only when every
//! extent has all of its copies again: then nothing may ever fail, and every page must read as it was
//! last written. Steps come from a seed, which a failure prints.
//!
//! Most runs are simulated: in a time of their own, so that a seed decides all that happens. A few take place in
//! the machine's time, where threads really run at once. `MUNINN_TEST_SEEDS` runs more of both, `MUNINN_TEST_SEED`
//! one alone.

mod puppet;
mod stage;

use muninn_policy::layout::Layout;
use muninn_policy::stripe::Stripes;
use muninn_types::{Bytes, Class, Nanos, PAGE_SIZE, SplitMix64};
use muninn_volume::{Clerk, Extent, ExtentId, Listed, Page, Roster, Transfer, Volume};
use puppet::Puppet;
use stage::{Stage, StageTime};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// What it takes at most until a server that went is missed: its heartbeat.
const NOTICED: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hurt {
    Stopped,
    Dead,
    Slow,
    Draining,
    Lying,
    /// It answers heartbeats, and does nothing with data.
    Deaf,
    /// It wants half of its memory back.
    Asking,
}

/// Servers that join a pool in the middle of a run, at most.
const JOIN_MAX: usize = 2;

/// The list of servers, and its version.
type List = Arc<Mutex<(u64, Vec<Listed>)>>;

struct World {
    stage: Stage,
    /// Those that were ever on the list.
    puppets: Vec<Puppet>,
    /// Those that may join.
    others: Vec<Puppet>,
    list: List,
    hurt: Vec<Option<Hurt>>,
    clerk: Arc<Clerk>,
    volume: Volume,
    layout: Layout,
    extents: Vec<Extent>,
    shadow: BTreeMap<(ExtentId, u32), u64>,
    next: u64,
    said: Arc<Mutex<Vec<String>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn page_of(value: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = value.wrapping_mul(at as u64 + 1).to_le_bytes();
    }
    page
}

impl World {
    fn new(servers: usize, layout: Layout, stage: Stage) -> World {
        World::in_racks(servers, layout, stage, |_| None)
    }

    fn in_racks(
        servers: usize,
        layout: Layout,
        stage: Stage,
        rack: impl Fn(usize) -> Option<&'static str>,
    ) -> World {
        let all = (0..servers + JOIN_MAX).map(|at| Puppet::new(at, &stage));
        let mut puppets: Vec<Puppet> = all.collect();
        let all = puppets.clone();
        let others = puppets.split_off(servers);
        let addresses = puppets.iter().map(Puppet::address);
        let listed = addresses.enumerate().map(|(at, address)| Listed {
            rack: rack(at).map(str::to_string),
            ..Listed::from(&address)
        });
        let listed = listed.collect();
        let list: List = Arc::new(Mutex::new((1, listed)));
        let known = Arc::clone(&list);
        let source = move |seen: u64| {
            let (version, list) = &*known.lock().unwrap();
            (seen != *version).then(|| (*version, list.clone()))
        };
        let connect = move |address: &_, _| {
            let found = all.iter().find(|puppet| puppet.address() == *address);
            found.expect("one of them").connect()
        };
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let saying = Arc::clone(&said);
        let tell = move |text: &str| saying.lock().unwrap().push(text.to_string());
        let roster = Roster::new(&[], Box::new(connect), Box::new(tell));
        let roster = roster.following(Box::new(source));
        let roster = Arc::new(roster.in_time(Box::new(StageTime::new(&stage))));
        let clerk = Arc::new(Clerk::new(Arc::clone(&roster), layout, 0, 7));
        let running = Arc::clone(&clerk);
        let clerks_stage = stage.clone();
        World {
            hurt: vec![None; servers],
            volume: Volume::new(roster, Arc::clone(&clerk)),
            thread: Some(std::thread::spawn(move || {
                clerks_stage.run_clerk(|| running.run());
            })),
            stage,
            puppets,
            others,
            list,
            clerk,
            layout,
            extents: Vec::new(),
            shadow: BTreeMap::new(),
            next: 1,
            said,
        }
    }

    fn listed(&self) -> Vec<bool> {
        let list = &self.list.lock().unwrap().1;
        list.iter().map(|server| !server.left).collect()
    }

    fn join(&mut self) {
        if let Some(puppet) = self.others.pop() {
            let mut list = self.list.lock().unwrap();
            list.0 += 1;
            list.1.push(Listed::from(&puppet.address()));
            self.puppets.push(puppet);
            self.hurt.push(None);
        }
    }

    fn set_left(&mut self, server: usize, left: bool) {
        let mut list = self.list.lock().unwrap();
        list.0 += 1;
        list.1[server].left = left;
    }

    /// Takes a server off the list, if there are enough others.
    fn leave(&mut self, dice: &mut SplitMix64) {
        let listed = self.listed();
        let there: Vec<usize> = (0..listed.len()).filter(|at| listed[*at]).collect();
        // As many must be left as are needed while others are hurt.
        if there.len() >= self.layout.members() + self.layout.spare() {
            let server = there[dice.below(there.len() as u64) as usize];
            self.set_left(server, true);
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let start = self.stage.now();
        loop {
            self.attend();
            if done(self) {
                return;
            }
            assert!(
                self.stage.now() < start + PATIENCE.into(),
                "{what}: not in time; {:?}; {:?}; {:?}",
                self.volume.census(),
                self.hurt,
                self.said.lock().unwrap()
            );
            self.stage.sleep(Duration::from_millis(1));
        }
    }

    fn attend(&mut self) {
        self.volume.attend();
        if let Some((extent, why)) = self.volume.take_lost() {
            panic!("{extent} is lost: {why}; {:?}", self.hurt);
        }
    }

    /// A new extent; while servers are away or drain there may be no room for a moment.
    fn extent(&mut self) -> Extent {
        let ends = self.stage.now() + PATIENCE.into();
        loop {
            match self.volume.extent() {
                Ok(extent) => return extent,
                Err(why) => assert!(self.stage.now() < ends, "{why}; {:?}", self.hurt),
            }
            self.attend();
            self.stage.sleep(Duration::from_millis(1));
        }
    }

    fn write(&mut self, dice: &mut SplitMix64) {
        if self.extents.is_empty() {
            return;
        }
        let count = 1 + dice.below(24) as usize;
        let mut pages: BTreeMap<(ExtentId, u32), Box<Page>> = BTreeMap::new();
        for _ in 0..count {
            let extent = self.extents[dice.below(self.extents.len() as u64) as usize];
            let place = dice.below(u64::from(extent.pages)) as u32;
            self.next += 1;
            self.shadow.insert((extent.id, place), self.next);
            pages.insert((extent.id, place), Box::new(page_of(self.next)));
        }
        let transfers: Vec<Transfer> = pages
            .iter_mut()
            .map(|((extent, place), page)| Transfer {
                extent: *extent,
                place: *place,
                near: &raw mut **page,
            })
            .collect();
        // On both lanes: nothing is known of their order.
        let class = match dice.below(2) {
            0 => Class::UrgentEviction,
            _ => Class::Eviction(4),
        };
        // SAFETY: the pages are ours.
        let written = unsafe { self.volume.write(&transfers, class) };
        written.unwrap_or_else(|why| panic!("{why}; {:?}", self.hurt));
    }

    fn read(&mut self, keys: &[(ExtentId, u32)]) {
        let mut pages: Vec<Box<Page>> = keys.iter().map(|_| Box::new([0xa5; PAGE_SIZE])).collect();
        let transfers: Vec<Transfer> = keys
            .iter()
            .zip(&mut pages)
            .map(|((extent, place), page)| Transfer {
                extent: *extent,
                place: *place,
                near: &raw mut **page,
            })
            .collect();
        // SAFETY: the pages are ours.
        let read = unsafe { self.volume.read(&transfers, Class::Demand) };
        read.unwrap_or_else(|why| panic!("{why}; {:?}", self.hurt));
        for (key, page) in keys.iter().zip(&pages) {
            let expected = page_of(self.shadow[key]);
            if **page != expected {
                self.read_other_copy(*key, &expected);
            }
        }
    }

    /// As the pager does with a page that is not what it wrote.
    fn read_other_copy(&mut self, (extent, place): (ExtentId, u32), expected: &Page) {
        let lies = self.hurt.contains(&Some(Hurt::Lying));
        assert!(lies, "{extent} {place} holds something else");
        let mut page = Box::new([0; PAGE_SIZE]);
        let near = &raw mut *page;
        let transfer = Transfer {
            extent,
            place,
            near,
        };
        let (mut wrong, mut errors) = (Vec::new(), Vec::new());
        for n in 0.. {
            // SAFETY: the page is ours.
            let read = unsafe { self.volume.read_copy(&transfer, Class::Demand, n) };
            let read = read.unwrap_or_else(|| {
                let said = self.said.lock().unwrap().clone();
                let extent = self.volume.describe(extent);
                panic!(
                    "{extent} {place}: no copy is right; {:?}; {said:#?}; {errors:?}",
                    self.hurt
                )
            });
            match read {
                Ok(_) if *page == *expected => break,
                Ok(server) => wrong.push(server),
                Err(why) => errors.push(why),
            }
        }
        for server in wrong {
            let name = self.puppets[server.0 as usize].address();
            let guilty = self.hurt[server.0 as usize] == Some(Hurt::Lying);
            assert!(guilty, "{name} did not lie");
            self.volume.distrust(extent, server);
        }
    }

    fn read_some(&mut self, dice: &mut SplitMix64) {
        let known: Vec<_> = self.shadow.keys().copied().collect();
        if known.is_empty() {
            return;
        }
        let count = 1 + dice.below(100) as usize;
        let pick = |_| known[dice.below(known.len() as u64) as usize];
        let keys: Vec<_> = (0..count).map(pick).collect();
        self.read(&keys);
    }

    fn read_all(&mut self) {
        let all: Vec<_> = self.shadow.keys().copied().collect();
        for keys in all.chunks(200) {
            self.read(keys);
        }
    }

    /// Waits until all that has happened to servers was noticed and mended.
    fn settle(&mut self) {
        let noticed = self.stage.now() + NOTICED.into();
        self.until("all copies are there", |world| {
            let mut puppets = world.puppets.iter().zip(world.listed());
            let met = puppets.all(|(puppet, listed)| puppet.is_met() || !listed);
            let census = world.volume.census();
            let well = (census.degraded, census.leaving) == (0, 0);
            met && world.stage.now() >= noticed && well
        });
    }

    /// The same, with one that nobody waits for.
    fn settle_but(&mut self, dead: usize) {
        let noticed = self.stage.now() + NOTICED.into();
        self.until("all copies are there", |world| {
            let census = world.volume.census();
            let gone = world.puppets[dead].sessions() == 0;
            let well = (census.degraded, census.leaving) == (0, 0);
            gone && world.stage.now() >= noticed && well
        });
    }

    fn hurt_one(&mut self, dice: &mut SplitMix64) {
        let already = self.hurt.iter().flatten().count();
        if already >= self.layout.spare() {
            return;
        }
        self.settle();
        let victim = dice.below(self.puppets.len() as u64) as usize;
        if self.hurt[victim].is_some() {
            return;
        }
        let how = match dice.below(7) {
            0 => Hurt::Stopped,
            1 => Hurt::Dead,
            2 => Hurt::Slow,
            3 => Hurt::Lying,
            4 => Hurt::Asking,
            5 => Hurt::Deaf,
            _ => Hurt::Draining,
        };
        let puppet = &self.puppets[victim];
        match how {
            Hurt::Stopped => puppet.stop(),
            Hurt::Dead => puppet.kill(),
            Hurt::Slow => puppet.be_slow(Duration::from_millis(5)),
            Hurt::Draining => puppet.drain(true),
            Hurt::Lying => puppet.lie(true),
            Hurt::Deaf => puppet.be_deaf(true),
            Hurt::Asking => puppet.keep(Some(puppet.grants() / 2)),
        }
        self.hurt[victim] = Some(how);
    }

    fn heal(&mut self) {
        for at in 0..self.puppets.len() {
            let puppet = &self.puppets[at];
            match self.hurt[at].take() {
                None => {}
                Some(Hurt::Stopped) => puppet.go_on(),
                Some(Hurt::Dead) => puppet.start_again(),
                Some(Hurt::Slow) => puppet.be_slow(Duration::ZERO),
                Some(Hurt::Draining) => puppet.drain(false),
                Some(Hurt::Lying) => puppet.lie(false),
                Some(Hurt::Deaf) => puppet.be_deaf(false),
                Some(Hurt::Asking) => puppet.keep(None),
            }
        }
    }

    fn run(&mut self, seed: u64) {
        let mut dice = SplitMix64::new(seed);
        // Who comes and goes does not change what else happens.
        let mut list_dice = SplitMix64::new(!seed);
        for _ in 0..100 {
            self.attend();
            match list_dice.below(60) {
                0 => self.join(),
                1 => self.leave(&mut list_dice),
                _ => {}
            }
            match dice.below(20) {
                0..2 if self.extents.len() < 6 => {
                    let extent = self.extent();
                    assert!(self.extents.iter().all(|known| known.id != extent.id));
                    self.extents.push(extent);
                }
                2 if self.extents.len() > 3 => {
                    let at = dice.below(self.extents.len() as u64) as usize;
                    let extent = self.extents.swap_remove(at);
                    self.shadow.retain(|(id, _), _| *id != extent.id);
                    self.volume.release(extent.id);
                }
                3 => self.hurt_one(&mut dice),
                4 => self.heal(),
                5..12 => self.write(&mut dice),
                _ => self.read_some(&mut dice),
            }
        }
        self.heal();
        self.settle();
        let listed = self.listed();
        self.until("who left is empty, and without a session", |world| {
            let mut puppets = world.puppets.iter().zip(&listed);
            puppets
                .all(|(puppet, listed)| *listed || (puppet.grants(), puppet.sessions()) == (0, 0))
        });
        // Whoever has a copy now has the right one.
        let all: Vec<_> = self.shadow.keys().copied().collect();
        let there = (0..listed.len()).filter(|at| listed[*at]);
        for server in there.take(self.layout.spare()) {
            self.puppets[server].kill();
        }
        for keys in all.chunks(200) {
            self.read(keys);
        }
        for extent in std::mem::take(&mut self.extents) {
            self.volume.release(extent.id);
        }
        self.until("all memory is given back", |world| {
            world.puppets.iter().all(|puppet| puppet.grants() == 0)
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.clerk.stop();
        self.stage.await_end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Seeds of each simulation, and of each run in the machine's time.
const SIMULATED: u64 = 340;
const REAL: u64 = 2;

/// As many seeds as are wanted, of each layout.
fn seeds(usual: u64) -> u64 {
    let seeds = std::env::var("MUNINN_TEST_SEEDS").ok();
    seeds.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn run_seeds(servers: usize, layout: Layout, first: u64, count: u64, stage: fn() -> Stage) {
    let only = std::env::var("MUNINN_TEST_SEED").ok();
    let only: Option<u64> = only.and_then(|text| text.parse().ok());
    for seed in (first..first + count).filter(|seed| only.is_none_or(|only| only == *seed)) {
        let ran = std::panic::catch_unwind(|| World::new(servers, layout, stage()).run(seed));
        if let Err(why) = ran {
            eprintln!("seed {seed}, {servers} servers, {layout}");
            std::panic::resume_unwind(why);
        }
    }
}

fn parity(data: u8, parity: u8) -> Layout {
    Layout::Parity(Stripes::new(data, parity).unwrap())
}

fn simulate(servers: usize, layout: Layout, first: u64) {
    run_seeds(servers, layout, first, seeds(SIMULATED), Stage::simulated);
}

#[test]
fn two_servers_with_two_copies() {
    simulate(2, Layout::Mirror(2), 100_000);
}

#[test]
fn four_servers_with_two_copies() {
    simulate(4, Layout::Mirror(2), 200_000);
}

#[test]
fn four_servers_with_three_copies() {
    simulate(4, Layout::Mirror(3), 300_000);
}

#[test]
fn three_servers_with_two_and_one() {
    simulate(3, parity(2, 1), 400_000);
}

#[test]
fn six_servers_with_four_and_one() {
    simulate(6, parity(4, 1), 500_000);
}

#[test]
fn seven_servers_with_four_and_two() {
    simulate(7, parity(4, 2), 600_000);
}

#[test]
fn a_seed_decides_all_that_happens() {
    let said = || {
        let mut world = World::new(4, parity(2, 1), Stage::simulated());
        world.run(7);
        let said = world.said.lock().unwrap().clone();
        (said, world.volume.census(), world.stage.now())
    };
    assert_eq!(said(), said());
}

/// Threads that really run at the same time.
#[test]
fn in_real_time() {
    for (servers, layout) in [
        (2, Layout::Mirror(2)),
        (4, Layout::Mirror(3)),
        (4, parity(2, 1)),
        (7, parity(4, 2)),
    ] {
        run_seeds(servers, layout, 1000, seeds(REAL), || Stage::Real);
    }
}

#[test]
fn a_server_that_is_silent_costs_a_delay_once() {
    let mut world = World::new(2, Layout::Mirror(2), Stage::Real);
    let extent = world.volume.extent().unwrap();
    let mut page = Box::new(page_of(1));
    let near = &raw mut *page;
    let at = |place| Transfer {
        extent: extent.id,
        place,
        near,
    };
    for place in 0..8 {
        // SAFETY: the page is ours.
        unsafe { world.volume.write(&[at(place)], Class::Demand) }.unwrap();
    }
    for victim in [0, 1] {
        world.until("all copies are there", |world| {
            world.volume.census().degraded == 0
        });
        world.puppets[victim].stop();
        let started = Instant::now();
        for place in 0..8 {
            // SAFETY: as above.
            unsafe { world.volume.read(&[at(place)], Class::Demand) }.unwrap();
            // SAFETY: as above.
            unsafe { world.volume.write(&[at(place)], Class::Demand) }.unwrap();
        }
        let took = started.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        world.puppets[victim].go_on();
    }
}

/// Several extents with contents, on as many servers as the layout needs and some more.
fn world_with_contents(layout: Layout, more: usize, dice: &mut SplitMix64) -> World {
    let mut world = World::new(layout.members() + more, layout, Stage::simulated());
    for _ in 0..3 {
        let extent = world.extent();
        world.extents.push(extent);
    }
    for _ in 0..6 {
        world.write(dice);
    }
    world.settle();
    world
}

fn silences(test: impl Fn(Layout, u64)) {
    let layouts = [
        Layout::Mirror(2),
        Layout::Mirror(3),
        parity(2, 1),
        parity(4, 2),
    ];
    for layout in layouts {
        let only = std::env::var("MUNINN_TEST_SEED").ok();
        let only: Option<u64> = only.and_then(|text| text.parse().ok());
        for seed in (0..seeds(40)).filter(|seed| only.is_none_or(|only| only == *seed)) {
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(layout, seed)));
            if let Err(why) = ran {
                eprintln!("seed {seed}, {layout}");
                std::panic::resume_unwind(why);
            }
        }
    }
}

/// What was written while a server was silent is on its way there, and arrives when it goes on: others
/// may go before.
#[test]
fn a_short_silence_costs_no_copy() {
    silences(|layout, seed| {
        let mut dice = SplitMix64::new(seed);
        let mut world = world_with_contents(layout, 0, &mut dice);
        let members = layout.members() as u64;
        let silent = dice.below(members) as usize;
        world.puppets[silent].stop();
        for _ in 0..1 + dice.below(12) {
            world.write(&mut dice);
        }
        let after = Duration::from_millis(dice.below(300));
        world.puppets[silent].go_on_in(after);
        for at in 1..=layout.spare() {
            let other = (silent + at) % layout.members();
            world.puppets[other].kill();
        }
        // It may be that it is silent still, and that the others are known to be gone.
        if dice.below(2) == 0 {
            world.stage.sleep(Duration::from_millis(dice.below(250)));
            world.attend();
        }
        for _ in 0..dice.below(4) {
            world.write(&mut dice);
        }
        world.read_all();
    });
}

/// A server that missed more than can be on its way gets that, and nothing else.
#[test]
fn a_server_gets_what_it_missed() {
    silences(|layout, seed| {
        let mut dice = SplitMix64::new(seed);
        let mut world = world_with_contents(layout, 0, &mut dice);
        let members = layout.members() as u64;
        let silent = dice.below(members) as usize;
        let (repaired, held) = (
            world.volume.census().repaired,
            world.puppets[silent].grants(),
        );
        world.puppets[silent].stop();
        for _ in 0..60 {
            world.write(&mut dice);
            world.read_some(&mut dice);
            world.attend();
        }
        assert!(world.volume.census().degraded > 0);
        world.puppets[silent].go_on();
        // The mover is not alone.
        for _ in 0..20 {
            world.write(&mut dice);
            world.read_some(&mut dice);
            world.attend();
        }
        world.settle();
        assert_eq!(world.volume.census().repaired, repaired);
        assert_eq!(world.puppets[silent].grants(), held);
        for at in 1..=layout.spare() {
            world.puppets[(silent + at) % layout.members()].kill();
        }
        world.read_all();
    });
}

/// Nobody but the mover writes to a member that gets what it missed: what the mover read before a page was
/// written again may arrive after that.
#[test]
fn what_was_missed_is_brought_by_the_mover_alone() {
    silences(|layout, seed| {
        let mut dice = SplitMix64::new(seed);
        let mut world = world_with_contents(layout, 0, &mut dice);
        let silent = dice.below(layout.members() as u64) as usize;
        world.puppets[silent].stop();
        for _ in 0..60 {
            world.write(&mut dice);
            world.attend();
        }
        world.puppets[silent].go_on();
        // The mover reads from those who take their time; what it brings arrives quickly.
        for at in (0..layout.members()).filter(|at| *at != silent) {
            world.puppets[at].be_slow(Duration::from_millis(1 + dice.below(6)));
        }
        for _ in 0..60 {
            world.write(&mut dice);
            world.read_some(&mut dice);
            world.attend();
        }
        world.settle();
        world.read_all();
    });
}

/// A server lies and another is silent: what has to be asked of a third costs the silence once, not
/// for each page.
#[test]
fn a_liar_and_a_silence_cost_a_delay_once() {
    silences(|layout, seed| {
        if layout.spare() < 2 {
            return;
        }
        let mut dice = SplitMix64::new(seed);
        let mut world = world_with_contents(layout, 0, &mut dice);
        let members = layout.members() as u64;
        let liar = dice.below(members) as usize;
        let silent = (liar + 1 + dice.below(members - 1) as usize) % members as usize;
        world.puppets[liar].lie(true);
        world.hurt[liar] = Some(Hurt::Lying);
        world.puppets[silent].stop();
        let start = world.stage.now();
        world.read_all();
        let took = world.stage.now().saturating_sub(start);
        assert!(took < Nanos::secs(1), "{took:?}");
    });
}

/// One that answers heartbeats and does nothing else is replaced as well, and is not given the next extents.
#[test]
fn one_that_only_says_that_it_is_there_is_replaced() {
    silences(|layout, seed| {
        let mut dice = SplitMix64::new(seed);
        let mut world = world_with_contents(layout, 1, &mut dice);
        let held = |world: &World| world.puppets.iter().position(|p| p.grants() == 3);
        let deaf = held(&world).expect("one has a member of each");
        world.puppets[deaf].be_deaf(true);
        for _ in 0..20 {
            world.write(&mut dice);
            world.read_some(&mut dice);
        }
        world.settle();
        world.until("it has nothing any more", |world| {
            world.puppets[deaf].grants() == 0
        });
        for _ in 0..2 {
            let extent = world.extent();
            world.extents.push(extent);
            world.write(&mut dice);
            assert_eq!(world.puppets[deaf].grants(), 0, "{:?}", world.said);
        }
        world.settle();
        // Nobody needs it.
        world.puppets[deaf].kill();
        let others = (0..world.puppets.len()).filter(|at| *at != deaf);
        others
            .take(layout.spare())
            .for_each(|at| world.puppets[at].kill());
        world.read_all();
    });
}

/// Where it is the first that would be asked for a copy, others are asked.
#[test]
fn a_repair_does_not_wait_for_one_that_only_says_that_it_is_there() {
    for layout in [Layout::Mirror(2), Layout::Mirror(3), parity(2, 1)] {
        // Whichever it is that would be asked first.
        for which in [0, 1] {
            let mut dice = SplitMix64::new(8);
            let mut world = world_with_contents(layout, 2, &mut dice);
            let held = |puppet: &Puppet| puppet.grants() > 0;
            let holder = world.puppets.iter().position(held).unwrap();
            let mut empty = (0..world.puppets.len()).filter(|at| !held(&world.puppets[*at]));
            let deaf = empty.nth(which).expect("two have nothing");
            world.puppets[deaf].be_deaf(true);
            world.puppets[holder].kill();
            world.settle_but(holder);
            world.read_all();
        }
    }
}

/// Half of a large pool falls silent at the same moment: those that answer keep their leases.
#[test]
fn a_crowd_of_silent_servers_costs_nobody_the_lease() {
    let mut dice = SplitMix64::new(2);
    let mut world = World::new(48, Layout::Mirror(2), Stage::simulated());
    world.puppets.iter().for_each(|puppet| puppet.limit(1));
    for _ in 0..24 {
        let extent = world.extent();
        world.extents.push(extent);
        world.write(&mut dice);
    }
    world.settle();
    let good = |at: &usize| at.is_multiple_of(2);
    (0..48)
        .filter(|at| !good(at))
        .for_each(|at| world.puppets[at].stop());
    let ends = world.stage.now() + Nanos::secs(3);
    while world.stage.now() < ends {
        world.attend();
        world.stage.sleep(Duration::from_millis(5));
    }
    let unbeaten = |at: usize| (world.puppets[at].longest_unbeaten(), at);
    let worst = (0..48).filter(good).map(unbeaten).max().unwrap();
    assert!(worst.0 < Nanos::millis(200), "{worst:?}: the lease ran out");
    world.puppets.iter().for_each(Puppet::go_on);
    world.settle();
    world.read_all();
}

/// However many servers there are, it is one line that can be read.
#[test]
fn a_full_pool_is_told_of_in_a_line() {
    let mut world = World::new(40, Layout::Mirror(2), Stage::simulated());
    world.puppets.iter().for_each(|puppet| puppet.limit(0));
    let why = world.volume.extent().unwrap_err().to_string();
    assert!(why.contains("and 37 more give nothing"), "{why}");
    assert!(why.lines().count() == 1 && why.len() < 700, "{why}");
}

/// Whoever gives less than was asked for would have all extents as small as it likes, or of no size.
#[test]
fn a_server_that_gives_crumbs_is_passed_over() {
    for crumbs in [
        Bytes::ZERO,
        Bytes(1),
        Bytes(4096),
        Bytes::kib(128),
        Bytes(1 << 44),
    ] {
        for layout in [Layout::Single, Layout::Mirror(2), parity(2, 1)] {
            let mut dice = SplitMix64::new(6);
            let mut world = World::new(layout.members() + 1, layout, Stage::simulated());
            // Whoever would be asked first.
            let extent = world.extent();
            world.extents.push(extent);
            let pages = extent.pages;
            let miser = world.puppets.iter().position(|p| p.grants() > 0).unwrap();
            world.puppets[miser].give_crumbs(crumbs);
            for _ in 0..3 {
                let extent = world.extent();
                world.extents.push(extent);
                assert_eq!(extent.pages, pages, "{layout} {crumbs}");
                world.write(&mut dice);
            }
            world.settle();
            world.read_all();
            let given = crumbs >= Bytes::kib(256);
            assert_eq!(
                world.puppets[miser].grants() > 1,
                given,
                "{layout} {crumbs}"
            );
        }
    }
}

/// The pool gets full in the middle of a repair: what there is room for has its copies, the rest goes on with
/// those that are left, which is said once, and is mended when there is room.
#[test]
fn the_pool_gets_full_in_the_middle_of_a_repair() {
    for layout in [Layout::Mirror(2), Layout::Mirror(3), parity(2, 1)] {
        let mut dice = SplitMix64::new(9);
        let mut world = World::new(layout.members() + 1, layout, Stage::simulated());
        let count = 6;
        for _ in 0..count {
            let extent = world.extent();
            world.extents.push(extent);
            world.write(&mut dice);
        }
        world.settle();
        let held =
            |world: &World| -> Vec<usize> { world.puppets.iter().map(Puppet::grants).collect() };
        let dead = held(&world).iter().position(|grants| *grants > 0).unwrap();
        let lost = world.puppets[dead].grants();
        // Room for two of those that lose a member.
        let room = 2;
        let full: usize = held(&world).iter().sum::<usize>() - lost + room;
        let spare = held(&world).iter().position(|grants| *grants == 0);
        for (at, puppet) in world.puppets.iter().enumerate() {
            puppet.limit(puppet.grants() + if Some(at) == spare { room } else { 0 });
        }
        world.puppets[dead].kill();
        world.until("it says that there is no room", |world| {
            let said = world.said.lock().unwrap();
            said.iter()
                .any(|line| line.contains("no room for another copy"))
        });
        for _ in 0..40 {
            world.attend();
            world.write(&mut dice);
            world.read_some(&mut dice);
            world.stage.sleep(Duration::from_millis(100));
        }
        assert_eq!(held(&world).iter().sum::<usize>(), full, "{layout}");
        assert_eq!(
            world.volume.census().degraded as usize,
            lost - room,
            "{layout}"
        );
        let said = world.said.lock().unwrap().clone();
        let lines = said.iter().filter(|line| line.contains("no room"));
        assert_eq!(lines.count(), 1, "{said:#?}");
        world
            .puppets
            .iter()
            .for_each(|puppet| puppet.limit(usize::MAX));
        world.settle_but(dead);
        world.read_all();
    }
}

/// One that is silent for long is replaced, and what it had is given back when it goes on.
#[test]
fn a_long_silence_costs_the_place() {
    silences(|layout, seed| {
        let mut dice = SplitMix64::new(seed);
        let mut world = world_with_contents(layout, 1, &mut dice);
        let held = |world: &World| {
            let grants = world.puppets.iter().map(Puppet::grants);
            grants.collect::<Vec<usize>>()
        };
        let silent = held(&world).iter().position(|grants| *grants > 0).unwrap();
        world.puppets[silent].stop();
        for _ in 0..20 {
            world.write(&mut dice);
        }
        world.settle();
        world.puppets[silent].go_on();
        world.settle();
        world.read_all();
        let total = 3 * layout.members();
        world.until("what was replaced is given back", |world| {
            held(world).iter().sum::<usize>() == total
        });
    });
}

/// A server that is to be emptied is, with one copy of everything as well.
#[test]
fn the_only_copy_moves_away() {
    let mut world = World::new(2, Layout::Single, Stage::Real);
    let mut dice = SplitMix64::new(5);
    for _ in 0..3 {
        let extent = world.volume.extent().unwrap();
        world.extents.push(extent);
        world.write(&mut dice);
    }
    let from = (0..2).find(|at| world.puppets[*at].grants() > 0).unwrap();
    world.puppets[from].drain(true);
    let start = Instant::now();
    while world.puppets[from].grants() > 0 {
        assert!(start.elapsed() < PATIENCE, "{:?}", world.said);
        world.attend();
        world.write(&mut dice);
    }
    world.puppets[from].kill();
    let all: Vec<_> = world.shadow.keys().copied().collect();
    world.read(&all);
}

/// A server joins a pool that has too few, and takes what there was no other place for; another leaves,
/// is emptied and gets nothing any more, until it is on the list again.
#[test]
fn servers_join_and_leave() {
    for (layout, seed) in [
        (Layout::Mirror(2), 1),
        (Layout::Single, 2),
        (parity(2, 1), 3),
    ] {
        let few = (layout.members() - 1).max(1);
        let mut dice = SplitMix64::new(seed);
        let mut world = World::new(few, layout, Stage::simulated());
        let fill = |world: &mut World, dice: &mut SplitMix64| {
            for _ in 0..2 {
                let extent = world.extent();
                world.extents.push(extent);
                world.write(dice);
            }
        };
        fill(&mut world, &mut dice);
        world.join();
        world.settle();
        let joined = world.puppets.len() - 1;
        // What has no other place, or else its part.
        let expected = if layout == Layout::Single { 1 } else { 2 };
        world.until("it has what it is to have", |world| {
            world.puppets[joined].grants() == expected
        });
        world.join();
        world.set_left(0, true);
        let gone = |world: &World| world.puppets[0].grants() + world.puppets[0].sessions() == 0;
        world.until("it is empty", gone);
        fill(&mut world, &mut dice);
        world.settle();
        assert!(gone(&world), "{layout}");
        // Nobody needs it any more, nor asks for it.
        let said = world.said.lock().unwrap().len();
        world.puppets[0].kill();
        let all: Vec<_> = world.shadow.keys().copied().collect();
        world.read(&all);
        world.stage.sleep(NOTICED);
        assert_eq!(world.said.lock().unwrap().len(), said, "{layout}");
        world.puppets[0].start_again();
        world.set_left(0, false);
        world.puppets[1..]
            .iter()
            .for_each(|puppet| puppet.drain(true));
        world.until("it is used again", |world| world.puppets[0].grants() > 0);
        world.read(&all);
    }
}

/// A server is given its part of what others hold when it joins, and no more than that; unless that is not
/// wanted, or it is not there.
#[test]
fn a_server_that_joins_is_given_its_part() {
    for layout in [Layout::Single, Layout::Mirror(2), parity(2, 1)] {
        for case in ["usual", "not wanted", "dead", "dies"] {
            let mut dice = SplitMix64::new(3);
            let mut world = world_with_contents(layout, 0, &mut dice);
            for _ in 0..3 {
                let extent = world.extent();
                world.extents.push(extent);
                world.write(&mut dice);
            }
            world.settle();
            let before: Vec<usize> = world.puppets.iter().map(Puppet::grants).collect();
            let joined = world.puppets.len();
            if case == "dead" {
                world.others.iter().for_each(Puppet::kill);
            }
            world.join();
            world.list.lock().unwrap().1[joined].fill = case != "not wanted";
            for step in 0..60 {
                world.attend();
                world.write(&mut dice);
                world.read_some(&mut dice);
                world.stage.sleep(Duration::from_millis(50));
                if case == "dies" && layout != Layout::Single && step == 12 {
                    world.puppets[joined].kill();
                }
            }
            world.settle();
            let after: Vec<usize> = world.puppets.iter().map(Puppet::grants).collect();
            assert_eq!(
                after.iter().sum::<usize>(),
                6 * layout.members(),
                "{layout} {case}"
            );
            let even = after.iter().max().unwrap() - after.iter().min().unwrap() <= 1;
            match case {
                "usual" => assert!(even, "{layout}: {after:?}"),
                "not wanted" | "dead" => assert_eq!(after[..joined], before[..], "{layout}"),
                _ => {}
            }
            world.read_all();
        }
    }
}

/// As much as it asks for, whoever is busy meanwhile, and not more.
#[test]
fn a_server_that_asks_for_memory_gets_it() {
    for layout in [Layout::Single, Layout::Mirror(2), parity(2, 1)] {
        let mut dice = SplitMix64::new(4);
        let mut world = world_with_contents(layout, 1, &mut dice);
        let asks = (0..world.puppets.len()).find(|at| world.puppets[*at].grants() == 3);
        let asks = asks.expect("one has a member of each");
        world.puppets[asks].keep(Some(1));
        let start = world.stage.now();
        while world.puppets[asks].grants() > 1 {
            assert!(
                world.stage.now() < start + PATIENCE.into(),
                "{:?}",
                world.said
            );
            world.attend();
            world.write(&mut dice);
            world.read_some(&mut dice);
        }
        for _ in 0..20 {
            world.attend();
            world.write(&mut dice);
            world.stage.sleep(Duration::from_millis(50));
        }
        assert_eq!(world.puppets[asks].grants(), 1, "{layout}");
        assert_eq!(world.volume.census().leaving, 0);
        // Nobody has room: it stays where it is, which is said, until it is not asked for any more.
        world.puppets.iter().for_each(|puppet| puppet.keep(Some(0)));
        world.stage.sleep(NOTICED);
        let no_place = |world: &World| {
            let said = world.said.lock().unwrap();
            said.iter().any(|line| line.contains("want to be rid of"))
        };
        world.until("that is said", no_place);
        world.puppets.iter().for_each(|puppet| puppet.keep(None));
        world.until("nothing is to be moved", |world| {
            world.volume.census().leaving == 0
        });
        world.read_all();
    }
}

/// The list is replaced by one that names nobody who runs: those that left serve until there is another.
#[test]
fn a_list_of_dead_servers_ends_nobody() {
    for layout in [Layout::Single, Layout::Mirror(2), parity(2, 1)] {
        let mut dice = SplitMix64::new(1);
        let mut world = world_with_contents(layout, 0, &mut dice);
        let first = world.puppets.len();
        world.others.iter().for_each(Puppet::kill);
        world.join();
        (0..first).for_each(|server| world.set_left(server, true));
        world.stage.sleep(NOTICED);
        for _ in 0..3 {
            let extent = world.extent();
            world.extents.push(extent);
            world.write(&mut dice);
        }
        world.read_all();
        (0..first).for_each(|server| world.set_left(server, false));
        world.settle();
        world.read_all();
        let said = world.said.lock().unwrap();
        assert!(
            said.iter()
                .any(|line| line.contains("goes to one that left")),
            "{said:?}"
        );
    }
}

/// Copies share a rack only when there is no other.
#[test]
fn racks_keep_copies_apart() {
    for lonely in 0..4 {
        let rack = |at| Some(if at == lonely { "b" } else { "a" });
        let mut world = World::in_racks(4, Layout::Mirror(2), Stage::simulated(), rack);
        for _ in 0..4 {
            world.extent();
        }
        assert_eq!(world.puppets[lonely].grants(), 4, "{lonely}");
        let all: usize = world.puppets.iter().map(Puppet::grants).sum();
        assert_eq!(all, 8);
    }
}
