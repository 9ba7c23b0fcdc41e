//! S3-FIFO: a small queue filters, a main queue keeps, a ghost queue remembers.
//!
//! New pages enter the small queue (a tenth of the resident pages). What is touched again moves to
//! the main queue, what is not leaves early, so pages that are used once hardly displace anything. A
//! page that left the small queue and comes back while it is still remembered enters the main queue
//! at once. The main queue is a FIFO with reinsertion: a page goes round again as often as it proved
//! hot, at most three times.
//!
//! From: Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023. Where theirs
//! counts every access, ours has no accessed bit and counts staged hits. The ghost queue is no queue
//! here: a far page's own record keeps the number of its departure, and it is remembered while fewer
//! pages have left since than the main queue holds.

use super::table::{Place, Queue, Table};
use super::{Arrival, Evict, PageIndex, Run};

/// The small queue's share of the resident pages.
const SMALL_SHARE_PERCENT: u64 = 10;
/// Rounds a page can earn in the main queue (two bits in the paper).
const HEAT_MAX: u8 = 3;

const SMALL: Place = Place::First;
const MAIN: Place = Place::Second;

#[derive(Debug)]
pub struct S3Fifo {
    table: Table,
    small: Queue,
    main: Queue,
    /// Pages that have left from the small queue so far; wraps.
    departures: u32,
}

impl S3Fifo {
    pub fn new(pages: u32) -> S3Fifo {
        S3Fifo {
            table: Table::new(pages),
            small: Queue::EMPTY,
            main: Queue::EMPTY,
            departures: 0,
        }
    }

    fn is_resident(&self, page: PageIndex) -> bool {
        matches!(self.table.place(page), SMALL | MAIN)
    }

    /// Whether a page left the small queue so lately that the ghost queue still holds it.
    fn is_remembered(&self, page: PageIndex) -> bool {
        let record = self.table.get(page);
        record.place == Place::Ghost
            && self.departures.wrapping_sub(record.stamp) < self.ghost_pages_max()
    }

    fn ghost_pages_max(&self) -> u32 {
        self.resident_pages()
            - (u64::from(self.resident_pages()) * SMALL_SHARE_PERCENT / 100) as u32
    }

    fn small_is_full(&self) -> bool {
        let share = u64::from(self.resident_pages()) * SMALL_SHARE_PERCENT / 100;
        u64::from(self.small.len) > share
    }

    fn run_of_small(&mut self, pages_max: u32) -> Option<Run> {
        let victim = self.small.oldest()?;
        let run = self
            .table
            .run_around(victim, pages_max, |r| r.place == SMALL);
        for page in run.iter() {
            self.table.unlink(&mut self.small, page, Place::StagedFirst);
        }
        Some(run)
    }

    fn run_of_main(&mut self, pages_max: u32) -> Option<Run> {
        // Ends: each turn uses up one of the finitely many rounds that pages have earned.
        loop {
            let page = self.main.oldest()?;
            if self.table.get(page).heat == 0 {
                break;
            }
            self.table.unlink(&mut self.main, page, Place::Away);
            self.table.get_mut(page).heat -= 1;
            self.table.push(&mut self.main, page, MAIN);
        }
        let victim = self.main.oldest()?;
        let cold = |r: &super::table::Record| r.place == MAIN && r.heat == 0;
        let run = self.table.run_around(victim, pages_max, cold);
        for page in run.iter() {
            self.table.unlink(&mut self.main, page, Place::StagedSecond);
        }
        Some(run)
    }
}

impl Evict for S3Fifo {
    fn grow(&mut self, pages: u32) {
        self.table.grow(pages);
    }

    fn handle_resident(&mut self, page: PageIndex, arrival: Arrival) {
        if self.is_resident(page) {
            return;
        }
        // A page that was fetched ahead counts as one that returns: prefetching hides the very
        // faults by which a loop would show, and most of what is fetched ahead is used.
        let returns = matches!(arrival, Arrival::Demand | Arrival::Prefetch);
        let returns = returns && self.is_remembered(page);
        let kept = arrival == Arrival::Kept && self.table.place(page) == Place::StagedSecond;
        self.table.get_mut(page).heat = 0;
        if returns || kept {
            self.table.push(&mut self.main, page, MAIN);
        } else {
            self.table.push(&mut self.small, page, SMALL);
        }
    }

    fn handle_staged_hit(&mut self, page: PageIndex) {
        match self.table.place(page) {
            SMALL | MAIN => return,
            Place::StagedSecond => {
                let record = self.table.get_mut(page);
                record.heat = (record.heat + 1).min(HEAT_MAX);
            }
            _ => self.table.get_mut(page).heat = 0,
        }
        self.table.push(&mut self.main, page, MAIN);
    }

    fn handle_evicted(&mut self, page: PageIndex) {
        let record = self.table.get_mut(page);
        match record.place {
            Place::StagedFirst => {
                self.departures = self.departures.wrapping_add(1);
                record.place = Place::Ghost;
                record.stamp = self.departures;
            }
            Place::StagedSecond => record.place = Place::Away,
            _ => {}
        }
    }

    fn handle_removed(&mut self, page: PageIndex) {
        match self.table.place(page) {
            SMALL => self.table.unlink(&mut self.small, page, Place::Away),
            MAIN => self.table.unlink(&mut self.main, page, Place::Away),
            _ => self.table.get_mut(page).place = Place::Away,
        }
    }

    fn next_run(&mut self, pages_max: u32) -> Option<Run> {
        if self.small_is_full() || self.main.len == 0 {
            self.run_of_small(pages_max)
        } else {
            self.run_of_main(pages_max)
        }
    }

    fn resident_pages(&self) -> u32 {
        self.small.len + self.main.len
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pages: u32) -> S3Fifo {
        let mut policy = S3Fifo::new(1_000);
        for page in 0..pages {
            policy.handle_resident(PageIndex(page), Arrival::FirstTouch);
        }
        policy
    }

    #[test]
    fn a_ghost_comes_back_into_the_main_queue() {
        let mut policy = filled(20);
        let first = policy.next_run(1).unwrap().first;
        policy.handle_evicted(first);
        policy.handle_resident(first, Arrival::Demand);
        assert_eq!(policy.table.place(first), MAIN);
        // One that could not be moved has not come back, it was never away.
        let second = policy.next_run(1).unwrap().first;
        policy.handle_resident(second, Arrival::Kept);
        assert_eq!(policy.table.place(second), SMALL);
    }

    #[test]
    fn a_ghost_is_forgotten_after_as_many_departures_as_main_holds() {
        let mut policy = filled(10);
        let first = policy.next_run(1).unwrap().first;
        policy.handle_evicted(first);
        for page in 100..120 {
            policy.handle_resident(PageIndex(page), Arrival::FirstTouch);
            let gone = policy.next_run(1).unwrap().first;
            policy.handle_evicted(gone);
        }
        policy.handle_resident(first, Arrival::Demand);
        assert_eq!(policy.table.place(first), SMALL);
    }

    #[test]
    fn a_page_goes_round_as_often_as_it_was_hit() {
        let mut policy = S3Fifo::new(10);
        policy.handle_staged_hit(PageIndex(0));
        // Staged from main and hit again: one round earned.
        assert_eq!(policy.next_run(1).unwrap().first, PageIndex(0));
        policy.handle_staged_hit(PageIndex(0));
        policy.handle_staged_hit(PageIndex(5));
        assert_eq!(policy.next_run(1).unwrap().first, PageIndex(5));
        assert_eq!(policy.next_run(1).unwrap().first, PageIndex(0));
        assert_eq!(policy.next_run(1), None);
    }
}
