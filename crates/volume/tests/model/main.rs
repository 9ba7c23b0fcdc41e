//! A volume over servers that stop, die, come back, drain, lag and lie, against a shadow model.
//!
//! At any time no more servers are hurt than the layout can spare, and the next is hurt only when every
//! extent has all of its copies again: then nothing may ever fail, and every page must read as it was
//! last written. Steps come from a seed, which a failure prints. `MUNINN_TEST_SEEDS` runs more.

mod puppet;

use muninn_policy::layout::Layout;
use muninn_policy::stripe::Stripes;
use muninn_types::{Class, PAGE_SIZE, SplitMix64};
use muninn_volume::{Clerk, Extent, ExtentId, Page, Roster, Transfer, Volume};
use puppet::Puppet;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hurt {
    Stopped,
    Dead,
    Slow,
    Draining,
    Lying,
}

struct World {
    puppets: Vec<Puppet>,
    hurt: Vec<Option<Hurt>>,
    clerk: Arc<Clerk>,
    volume: Volume,
    layout: Layout,
    extents: Vec<Extent>,
    shadow: HashMap<(ExtentId, u32), u64>,
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
    fn new(servers: usize, layout: Layout) -> World {
        let puppets: Vec<Puppet> = (0..servers).map(Puppet::new).collect();
        let addresses: Vec<_> = puppets.iter().map(Puppet::address).collect();
        let all = puppets.clone();
        let connect = move |address: &_| {
            let found = all.iter().find(|puppet| puppet.address() == *address);
            found.expect("one of them").connect()
        };
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let saying = Arc::clone(&said);
        let tell = move |text: &str| saying.lock().unwrap().push(text.to_string());
        let roster = Arc::new(Roster::new(&addresses, Box::new(connect), Box::new(tell)));
        let clerk = Arc::new(Clerk::new(Arc::clone(&roster), layout, 0, 7));
        let running = Arc::clone(&clerk);
        World {
            hurt: vec![None; servers],
            volume: Volume::new(roster, Arc::clone(&clerk)),
            thread: Some(std::thread::spawn(move || running.run())),
            puppets,
            clerk,
            layout,
            extents: Vec::new(),
            shadow: HashMap::new(),
            next: 1,
            said,
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let start = Instant::now();
        loop {
            self.attend();
            if done(self) {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: not in time; {:?}; {:?}; {:?}",
                self.volume.census(),
                self.hurt,
                self.said.lock().unwrap()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn attend(&mut self) {
        self.volume.attend();
        if let Some((extent, why)) = self.volume.take_lost() {
            panic!("{extent} is lost: {why}; {:?}", self.hurt);
        }
    }

    fn write(&mut self, dice: &mut SplitMix64) {
        if self.extents.is_empty() {
            return;
        }
        let count = 1 + dice.below(24) as usize;
        let mut pages: HashMap<(ExtentId, u32), Box<Page>> = HashMap::new();
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
        // SAFETY: the pages are ours.
        let written = unsafe { self.volume.write(&transfers, Class::Demand) };
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
        let mut wrong = Vec::new();
        for n in 0.. {
            // SAFETY: the page is ours.
            let read = unsafe { self.volume.read_copy(&transfer, Class::Demand, n) };
            let read = read.unwrap_or_else(|| panic!("{extent} {place}: no copy is right"));
            match read {
                Ok(_) if *page == *expected => break,
                Ok(server) => wrong.push(server),
                Err(_) => {}
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

    fn hurt_one(&mut self, dice: &mut SplitMix64) {
        let already = self.hurt.iter().flatten().count();
        if already >= self.layout.spare() {
            return;
        }
        self.until("all copies are there", |world| {
            world.volume.census().degraded == 0
        });
        let victim = dice.below(self.puppets.len() as u64) as usize;
        if self.hurt[victim].is_some() {
            return;
        }
        let how = match dice.below(5) {
            0 => Hurt::Stopped,
            1 => Hurt::Dead,
            2 => Hurt::Slow,
            3 => Hurt::Lying,
            _ => Hurt::Draining,
        };
        let puppet = &self.puppets[victim];
        match how {
            Hurt::Stopped => puppet.stop(),
            Hurt::Dead => puppet.kill(),
            Hurt::Slow => puppet.be_slow(Duration::from_millis(5)),
            Hurt::Draining => puppet.drain(true),
            Hurt::Lying => puppet.lie(true),
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
            }
        }
    }

    fn run(&mut self, seed: u64) {
        let mut dice = SplitMix64::new(seed);
        for _ in 0..120 {
            self.attend();
            match dice.below(20) {
                0..2 if self.extents.len() < 6 => {
                    let extent = self.volume.extent();
                    let extent = extent.unwrap_or_else(|why| panic!("{why}; {:?}", self.hurt));
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
        self.until("all copies are there", |world| {
            world.volume.census().degraded == 0
        });
        // Whoever has a copy now has the right one.
        let all: Vec<_> = self.shadow.keys().copied().collect();
        for server in 0..self.puppets.len().min(self.layout.spare()) {
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
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run_seeds(servers: usize, layout: Layout, first: u64) {
    let seeds = std::env::var("MUNINN_TEST_SEEDS").ok();
    let seeds: u64 = seeds.and_then(|text| text.parse().ok()).unwrap_or(12);
    for seed in first..first + seeds {
        let ran = std::panic::catch_unwind(|| World::new(servers, layout).run(seed));
        if let Err(why) = ran {
            eprintln!("seed {seed}, {servers} servers, {layout}");
            std::panic::resume_unwind(why);
        }
    }
}

#[test]
fn two_servers_with_two_copies() {
    run_seeds(2, Layout::Mirror(2), 1000);
}

#[test]
fn four_servers_with_two_copies() {
    run_seeds(4, Layout::Mirror(2), 2000);
}

#[test]
fn four_servers_with_three_copies() {
    run_seeds(4, Layout::Mirror(3), 3000);
}

fn parity(data: u8, parity: u8) -> Layout {
    Layout::Parity(Stripes::new(data, parity).unwrap())
}

#[test]
fn three_servers_with_two_and_one() {
    run_seeds(3, parity(2, 1), 4000);
}

#[test]
fn six_servers_with_four_and_one() {
    run_seeds(6, parity(4, 1), 5000);
}

#[test]
fn seven_servers_with_four_and_two() {
    run_seeds(7, parity(4, 2), 6000);
}

#[test]
fn a_server_that_is_silent_costs_a_delay_once() {
    let mut world = World::new(2, Layout::Mirror(2));
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

/// A server that is to be emptied is, with one copy of everything as well.
#[test]
fn the_only_copy_moves_away() {
    let mut world = World::new(2, Layout::Single);
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
