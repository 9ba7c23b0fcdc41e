//! SIEVE: one queue, one mark a page, and a hand that sweeps from old to new.
//!
//! The hand passes over marked pages, clearing the mark, and stops at the first page without one.
//! A page never changes its place in the queue: new ones gather at the newest end and the hand sifts
//! them quickly, while pages that proved hot stay behind it, undisturbed until the next sweep.
//!
//! From: Zhang and others, "SIEVE is simpler than LRU", NSDI 2024. Where theirs marks a page at each
//! access, ours has no accessed bit: a victim keeps its place in the queue while it is staged, and a
//! staged hit marks it there. It leaves the queue when it has left local memory.

use super::table::{Place, Queue, Record, Table};
use super::{Arrival, Evict, PageIndex, Run};

const RESIDENT: Place = Place::First;
const STAGED: Place = Place::StagedFirst;

#[derive(Debug)]
pub struct Sieve {
    table: Table,
    /// Resident and staged pages.
    queue: Queue,
    hand: Option<PageIndex>,
    resident: u32,
}

impl Sieve {
    pub fn new(pages: u32) -> Sieve {
        Sieve {
            table: Table::new(pages),
            queue: Queue::EMPTY,
            hand: None,
            resident: 0,
        }
    }

    fn unlink(&mut self, page: PageIndex) {
        if self.hand == Some(page) {
            self.hand = self.table.newer(page);
        }
        self.table.unlink(&mut self.queue, page, Place::Away);
    }

    fn stays_in_place(&mut self, page: PageIndex, heat: u8) {
        let record = self.table.get_mut(page);
        record.place = RESIDENT;
        record.heat = heat;
        self.resident += 1;
    }
}

impl Evict for Sieve {
    fn grow(&mut self, pages: u32) {
        self.table.grow(pages);
    }

    fn handle_resident(&mut self, page: PageIndex, _: Arrival) {
        match self.table.place(page) {
            RESIDENT => {}
            STAGED => self.stays_in_place(page, 0),
            _ => {
                self.table.get_mut(page).heat = 0;
                self.table.push(&mut self.queue, page, RESIDENT);
                self.resident += 1;
            }
        }
    }

    fn handle_staged_hit(&mut self, page: PageIndex) {
        match self.table.place(page) {
            STAGED => self.stays_in_place(page, 1),
            _ => self.handle_resident(page, Arrival::Demand),
        }
    }

    fn handle_evicted(&mut self, page: PageIndex) {
        if self.table.place(page) == STAGED {
            self.unlink(page);
        }
    }

    fn handle_removed(&mut self, page: PageIndex) {
        match self.table.place(page) {
            RESIDENT => {
                self.unlink(page);
                self.resident -= 1;
            }
            STAGED => self.unlink(page),
            _ => {}
        }
    }

    fn next_run(&mut self, pages_max: u32) -> Option<Run> {
        if self.resident == 0 {
            return None;
        }
        // Ends within two sweeps: the first clears every mark, and some page is resident.
        let victim = loop {
            let page = self.hand.or(self.queue.oldest())?;
            let record = self.table.get_mut(page);
            if record.place == RESIDENT {
                if record.heat == 0 {
                    break page;
                }
                record.heat = 0;
            }
            self.hand = self.table.newer(page);
        };
        let fits = |r: &Record| r.place == RESIDENT && r.heat == 0;
        let run = self.table.run_around(victim, pages_max, fits);
        for page in run.iter() {
            self.table.get_mut(page).place = STAGED;
        }
        self.resident -= run.pages;
        self.hand = self.table.newer(victim);
        Some(run)
    }

    fn resident_pages(&self) -> u32 {
        self.resident
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the paper's figure 1, with staged hits for the accesses: A, B and G are marked
    /// and survive the sweep that takes the pages between them.
    #[test]
    fn the_hand_passes_over_marked_pages_and_leaves_them_in_place() {
        let mut policy = Sieve::new(20);
        // Even indexes, so that no run forms.
        let [a, b, c, d, e, f, g] = [0, 2, 4, 6, 8, 10, 12].map(PageIndex);
        for page in [a, b, c, d, e, f, g] {
            policy.handle_resident(page, Arrival::FirstTouch);
        }
        for hot in [a, b] {
            assert_eq!(policy.next_run(1).unwrap().first, hot);
            policy.handle_staged_hit(hot);
        }
        let mut evicted = Vec::new();
        for _ in 0..3 {
            let page = policy.next_run(1).unwrap().first;
            policy.handle_evicted(page);
            evicted.push(page);
        }
        assert_eq!(evicted, [c, d, e]);
        // The sweep ends at the newest page and starts over: the marked ones are passed once.
        policy.handle_resident(c, Arrival::Demand);
        let rest: Vec<PageIndex> = std::iter::from_fn(|| policy.next_run(1))
            .map(|run| run.first)
            .collect();
        assert_eq!(rest, [f, g, c, a, b]);
    }
}
