//! Which regions are free, and who uses the others.
//!
//! Pure bookkeeping, under one lock, on the control path only: a mutator owns the region it
//! allocates in, so that allocation is an addition.

use muninn_heap_agent::layout::{Geometry, REGION_HEAD};
use muninn_types::Bytes;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Free,
    /// A mutator allocates in it.
    Allocating,
    Used,
    /// One object, which goes on in this many regions.
    Humongous(u32),
    /// The rest of a humongous object.
    Tail,
}

#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub use_: Use,
    /// Collections that its objects have survived.
    pub survivals: u32,
    /// Its tablet, with indirect references.
    pub tablet: u32,
    /// Not to be allocated in: it is being emptied, or copied into.
    pub closed: bool,
}

#[derive(Debug)]
pub struct Regions {
    geometry: Geometry,
    list: Vec<Region>,
    next: u32,
    free: u32,
    /// Tablets that no region has.
    free_tablets: Vec<u32>,
}

/// Where the next object of each region goes, from its start.
pub type Bumps = Box<[AtomicU64]>;

pub const NO_TABLET: u32 = u32::MAX;

impl Regions {
    pub fn new(geometry: Geometry) -> Regions {
        let region = Region {
            use_: Use::Free,
            survivals: 0,
            tablet: NO_TABLET,
            closed: false,
        };
        Regions {
            geometry,
            list: vec![region; geometry.regions as usize],
            next: 0,
            free: geometry.regions,
            free_tablets: (0..geometry.regions).rev().collect(),
        }
    }

    pub fn new_bumps(geometry: &Geometry) -> Bumps {
        (0..geometry.regions)
            .map(|_| AtomicU64::new(REGION_HEAD))
            .collect()
    }

    pub fn get(&self, region: u32) -> &Region {
        &self.list[region as usize]
    }
    pub fn get_mut(&mut self, region: u32) -> &mut Region {
        &mut self.list[region as usize]
    }
    pub fn free_regions(&self) -> u32 {
        self.free
    }
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Region)> {
        (0..).zip(&self.list)
    }
    pub fn free_at(&self, server: u32) -> u32 {
        let free = |(region, info): &(u32, &Region)| {
            info.use_ == Use::Free && self.geometry.server_of(*region) == server
        };
        self.iter().filter(free).count() as u32
    }

    /// Bytes in regions that are in use.
    pub fn used(&self, bumps: &Bumps) -> Bytes {
        let used = self.iter().map(|(region, info)| match info.use_ {
            Use::Free => 0,
            Use::Allocating | Use::Used => bumps[region as usize].load(Relaxed),
            Use::Humongous(_) | Use::Tail => self.geometry.region_bytes(),
        });
        Bytes(used.sum())
    }

    /// A free region, of this server or of the next in turn.
    pub fn take(&mut self, server: Option<u32>, use_: Use) -> Option<u32> {
        let regions = self.geometry.regions;
        let found = (0..regions)
            .map(|step| (self.next + step) % regions)
            .find(|region| {
                self.get(*region).use_ == Use::Free
                    && server.is_none_or(|s| self.geometry.server_of(*region) == s)
            })?;
        if server.is_none() {
            // Servers in turn: their agents then have equal shares of the work.
            let there = (found % self.geometry.regions_per_server + 1).min(regions - 1);
            let after = (self.geometry.server_of(found) + 1) * self.geometry.regions_per_server;
            let base = if after >= regions { 0 } else { after };
            self.next = (base + there % self.geometry.regions_per_server) % regions;
        }
        self.occupy(found, use_);
        Some(found)
    }

    fn occupy(&mut self, region: u32, use_: Use) {
        self.free -= 1;
        *self.get_mut(region) = Region {
            use_,
            survivals: 0,
            tablet: NO_TABLET,
            closed: false,
        };
    }

    /// Free regions in a row, of one server.
    pub fn take_run(&mut self, count: u32) -> Option<u32> {
        let fits = |first: u32| {
            first + count <= self.geometry.regions
                && self.geometry.server_of(first) == self.geometry.server_of(first + count - 1)
                && (first..first + count).all(|r| self.get(r).use_ == Use::Free)
        };
        let first = (0..self.geometry.regions).find(|first| fits(*first))?;
        self.occupy(first, Use::Humongous(count));
        for tail in first + 1..first + count {
            self.occupy(tail, Use::Tail);
        }
        Some(first)
    }

    /// The region in use that has the most room left, if that is at least `room`.
    pub fn take_partial(&mut self, bumps: &Bumps, room: u64) -> Option<u32> {
        let left = |region: u32| {
            let bump = bumps[region as usize].load(Relaxed);
            self.geometry.region_bytes() - bump
        };
        let (region, _) = self
            .iter()
            .filter(|(_, info)| info.use_ == Use::Used && !info.closed)
            .max_by_key(|(region, _)| left(*region))?;
        if left(region) < room {
            return None;
        }
        self.get_mut(region).use_ = Use::Allocating;
        Some(region)
    }

    /// A tablet of this server that no region has.
    pub fn take_tablet(&mut self, server: u32) -> Option<u32> {
        let there = |tablet: &u32| self.geometry.server_of(*tablet) == server;
        let at = self.free_tablets.iter().rposition(there)?;
        Some(self.free_tablets.swap_remove(at))
    }
    pub fn give_back_tablet(&mut self, tablet: u32) {
        self.free_tablets.push(tablet);
    }

    /// Gives a region (and the tails of a humongous one) back; how many that is.
    pub fn release(&mut self, region: u32) -> u32 {
        let count = match self.get(region).use_ {
            Use::Free => return 0,
            Use::Humongous(count) => count,
            _ => 1,
        };
        for region in region..region + count {
            self.get_mut(region).use_ = Use::Free;
            self.get_mut(region).tablet = NO_TABLET;
        }
        self.free += count;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_heap_agent::layout::Mode;

    fn geometry() -> Geometry {
        Geometry {
            region_shift: 20,
            regions: 8,
            regions_per_server: 4,
            mode: Mode::Direct,
        }
    }

    #[test]
    fn regions_are_taken_from_the_servers_in_turn_and_all_of_them() {
        let mut regions = Regions::new(geometry());
        let mut taken: Vec<u32> = std::iter::from_fn(|| regions.take(None, Use::Used)).collect();
        assert_eq!(taken.len(), 8);
        assert_ne!(
            geometry().server_of(taken[0]),
            geometry().server_of(taken[1])
        );
        taken.sort_unstable();
        assert_eq!(taken, (0..8).collect::<Vec<_>>());
        assert_eq!(regions.free_regions(), 0);
        assert_eq!(regions.release(3) + regions.release(3), 1);
        assert_eq!(regions.take(Some(1), Use::Used), None);
        assert_eq!(regions.take(Some(0), Use::Used), Some(3));
    }

    #[test]
    fn humongous_runs_stay_at_one_server() {
        let mut regions = Regions::new(geometry());
        regions.take(Some(0), Use::Used);
        assert_eq!(regions.take_run(4), Some(4));
        assert_eq!(regions.take_run(4), None);
        assert_eq!(regions.release(4), 4);
        assert_eq!(regions.free_regions(), 7);
    }
}
