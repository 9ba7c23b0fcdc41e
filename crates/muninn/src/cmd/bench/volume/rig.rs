//! Servers and volumes to measure.

use crate::embedded::EmbeddedServer;
use crate::failure::Failure;
use muninn_net::{Keeping, SessionOptions};
use muninn_policy::layout::Layout;
use muninn_sys::clock;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, Nanos, PAGE_SIZE, SplitMix64};
use muninn_volume::{Attempt, Clerk, Extent, Page, Roster, Transfer, Volume};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Pages that leave together.
pub const BATCH: usize = 64;

pub fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the bench cannot go on: {error}"))
}

pub struct Servers {
    pub servers: Vec<EmbeddedServer>,
    folder: PathBuf,
}

impl Servers {
    pub fn start(count: usize, memory: Bytes) -> Result<Servers, Failure> {
        let name = format!("muninn-bench-{:016x}", muninn_sys::rand::u64());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder)?;
        let mut started = Servers {
            servers: Vec::new(),
            folder,
        };
        let memory = memory.to_string();
        for at in 0..count {
            let socket = started.folder.join(format!("{at}.sock"));
            let socket = socket.to_string_lossy();
            let server = EmbeddedServer::start([
                "--memory",
                &memory,
                "--socket",
                &socket,
                "--listen",
                "127.0.0.1:0",
                "--insecure",
                "--lease",
                "3s",
                "--threads",
                "1",
            ])?;
            started.servers.push(server);
        }
        Ok(started)
    }

    pub fn addresses(&self, tcp: bool) -> Result<Vec<Address>, Failure> {
        let listening = self.servers.iter().map(|server| {
            let mut addresses = server.addresses().iter();
            let wanted = addresses.find(|text| text.starts_with("unix:") != tcp);
            let wanted = wanted.ok_or_else(|| failed("a server does not listen"))?;
            wanted.parse().map_err(failed)
        });
        listening.collect()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.servers.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A volume that is full of pages.
pub struct Rig {
    pub volume: Volume,
    clerk: Arc<Clerk>,
    thread: Option<JoinHandle<()>>,
    extents: Vec<Extent>,
    batch: Vec<Page>,
    dice: SplitMix64,
    next: usize,
}

impl Rig {
    pub fn new(addresses: &[Address], layout: &str, memory: Bytes) -> Result<Rig, Failure> {
        let layout: Layout = layout.parse().map_err(failed)?;
        let options = SessionOptions {
            name: "bench".to_string(),
            keeper: Keeping::Caller,
            ..SessionOptions::default()
        };
        let connect = move |address: &Address, attempt: Attempt| {
            let session = muninn_net::connect_over(attempt.connected, address, &options);
            session.map_err(|error| error.to_string())
        };
        let roster = Roster::new(addresses, Box::new(connect), Box::new(|_| {}));
        let roster = Arc::new(roster);
        let clerk = Arc::new(Clerk::new(Arc::clone(&roster), layout, 0, 1));
        let running = Arc::clone(&clerk);
        let mut rig = Rig {
            volume: Volume::new(roster, Arc::clone(&clerk)),
            thread: Some(std::thread::spawn(move || running.run())),
            clerk,
            extents: Vec::new(),
            batch: vec![[7; PAGE_SIZE]; BATCH],
            dice: SplitMix64::new(1),
            next: 0,
        };
        while rig.pages() * PAGE_SIZE < memory.0 as usize {
            let extent = rig.volume.extent().map_err(failed)?;
            rig.extents.push(extent);
        }
        rig.write_all()?;
        Ok(rig)
    }

    fn pages(&self) -> usize {
        self.extents
            .iter()
            .map(|extent| extent.pages as usize)
            .sum()
    }

    fn transfer(&mut self, at: usize, near: usize) -> Transfer {
        let mut at = at % self.pages();
        let mut extents = self.extents.iter();
        let extent = extents.find(|extent| {
            let here = at < extent.pages as usize;
            at -= if here { 0 } else { extent.pages as usize };
            here
        });
        Transfer {
            extent: extent.map_or(Default::default(), |extent| extent.id),
            place: at as u32,
            near: &raw mut self.batch[near],
        }
    }

    fn write_all(&mut self) -> Result<(), Failure> {
        for _ in 0..self.pages().div_ceil(BATCH) {
            self.evict()?;
        }
        Ok(())
    }

    /// Writes the next pages, as many as leave together; what it took.
    pub fn evict(&mut self) -> Result<Nanos, Failure> {
        let first = self.next;
        self.next = (self.next + BATCH) % self.pages();
        let fill = self.dice.next_u64().to_le_bytes();
        for page in &mut self.batch {
            page[..8].copy_from_slice(&fill);
        }
        let transfers: Vec<Transfer> = (0..BATCH).map(|n| self.transfer(first + n, n)).collect();
        let began = clock::now();
        // SAFETY: pages of ours, each named once.
        unsafe { self.volume.write(&transfers, Class::UrgentEviction) }.map_err(failed)?;
        Ok(clock::now() - began)
    }

    /// Reads a page somewhere; what it took.
    pub fn demand(&mut self) -> Result<Nanos, Failure> {
        let at = self.dice.below(self.pages() as u64) as usize;
        let transfer = self.transfer(at, 0);
        let began = clock::now();
        // SAFETY: a page of ours.
        unsafe { self.volume.read(&[transfer], Class::Demand) }.map_err(failed)?;
        Ok(clock::now() - began)
    }

    /// Looks after servers that came and went, as a pager does now and then.
    pub fn attend(&mut self) -> Result<(), Failure> {
        self.volume.attend();
        match self.volume.take_lost() {
            Some((extent, why)) => Err(failed(format!("{extent} is lost: {why}"))),
            None => Ok(()),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.clerk.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
