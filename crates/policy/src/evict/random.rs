//! A random resident page leaves, and its resident neighbours with it.
//!
//! Nothing is learnt, and nothing can be fooled: on a loop larger than local memory, where every
//! policy that follows age loses each page just before it is needed, random keeps a fair share.
//! Eight bytes a page: a dense list of what is resident and each page's place in it.

use super::{Arrival, Evict, PageIndex, RUN_PAGES_MAX, Run};
use muninn_types::SplitMix64;

const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
pub struct Random {
    /// The resident pages, in no order.
    resident: Vec<u32>,
    /// Where a page stands in `resident`.
    position: Vec<u32>,
    rng: SplitMix64,
}

impl Random {
    pub fn new(pages: u32, seed: u64) -> Random {
        let mut random = Random {
            resident: Vec::new(),
            position: Vec::new(),
            rng: SplitMix64::new(seed),
        };
        random.grow(pages);
        random
    }

    fn is_resident(&self, index: u32) -> bool {
        self.position
            .get(index as usize)
            .is_some_and(|&at| at != NOWHERE)
    }

    fn take(&mut self, page: PageIndex) {
        let at = self.position[page.at()] as usize;
        self.resident.swap_remove(at);
        if let Some(&moved) = self.resident.get(at) {
            self.position[moved as usize] = at as u32;
        }
        self.position[page.at()] = NOWHERE;
    }
}

impl Evict for Random {
    fn grow(&mut self, pages: u32) {
        let pages = self.position.len().max(pages as usize);
        self.position.resize(pages, NOWHERE);
        self.resident.reserve_exact(pages - self.resident.len());
    }

    fn handle_resident(&mut self, page: PageIndex, _: Arrival) {
        if !self.is_resident(page.0) {
            self.position[page.at()] = self.resident.len() as u32;
            self.resident.push(page.0);
        }
    }

    fn handle_staged_hit(&mut self, page: PageIndex) {
        self.handle_resident(page, Arrival::Demand);
    }

    fn handle_evicted(&mut self, _: PageIndex) {}

    fn handle_removed(&mut self, page: PageIndex) {
        if self.is_resident(page.0) {
            self.take(page);
        }
    }

    fn next_run(&mut self, pages_max: u32) -> Option<Run> {
        let pick = self.rng.below(self.resident.len() as u64);
        let victim = *self.resident.get(pick as usize)?;
        let pages_max = pages_max.clamp(1, RUN_PAGES_MAX);
        let (mut first, mut end) = (victim, victim + 1);
        while end - first < pages_max && self.is_resident(end) {
            end += 1;
        }
        while end - first < pages_max && first > 0 && self.is_resident(first - 1) {
            first -= 1;
        }
        let run = Run {
            first: PageIndex(first),
            pages: end - first,
        };
        for page in run.iter() {
            self.take(page);
        }
        Some(run)
    }

    fn resident_pages(&self) -> u32 {
        self.resident.len() as u32
    }

    fn memory_bytes(&self) -> usize {
        (self.resident.capacity() + self.position.capacity()) * size_of::<u32>()
    }
}
