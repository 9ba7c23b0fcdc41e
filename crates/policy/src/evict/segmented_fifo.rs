//! Two queues: pages on trial, and pages that proved hot by being touched while staged.
//!
//! New pages enter the trial queue and leave it for the staging area in order of arrival. One that
//! is touched while it waits there goes back into the hot queue. When the hot queue holds more than
//! its share, its oldest pages go on trial again: they are not evicted, they must prove themselves
//! once more. So a hot page costs one staged hit for each round through both queues, and a scan
//! passes through the trial queue without touching the hot one.
//!
//! From: the segmented FIFO of VAX/VMS (Turner and Levy, 1981), where the second segment is found by
//! page faults because the machine has no accessed bit, as here.
//! Known limit: a hot page whose touches lie further apart than its stay in staging is never found.

use super::table::{Place, Queue, Table};
use super::{Arrival, Evict, PageIndex, Run};

/// The hot queue may hold this share of the resident pages.
const HOT_SHARE_PERCENT: u64 = 75;

const TRIAL: Place = Place::First;
const HOT: Place = Place::Second;

#[derive(Debug)]
pub struct SegmentedFifo {
    table: Table,
    trial: Queue,
    hot: Queue,
}

impl SegmentedFifo {
    pub fn new(pages: u32) -> SegmentedFifo {
        SegmentedFifo {
            table: Table::new(pages),
            trial: Queue::EMPTY,
            hot: Queue::EMPTY,
        }
    }

    fn is_resident(&self, page: PageIndex) -> bool {
        matches!(self.table.place(page), TRIAL | HOT)
    }

    /// Sends the oldest hot pages back on trial until the hot queue is within its share.
    fn rebalance(&mut self) {
        let hot_max = u64::from(self.resident_pages()) * HOT_SHARE_PERCENT / 100;
        while u64::from(self.hot.len) > hot_max {
            let Some(page) = self.hot.oldest() else { break };
            self.table.unlink(&mut self.hot, page, Place::Away);
            self.table.push(&mut self.trial, page, TRIAL);
        }
    }
}

impl Evict for SegmentedFifo {
    fn grow(&mut self, pages: u32) {
        self.table.grow(pages);
    }

    fn handle_resident(&mut self, page: PageIndex, _: Arrival) {
        if !self.is_resident(page) {
            self.table.push(&mut self.trial, page, TRIAL);
        }
    }

    fn handle_staged_hit(&mut self, page: PageIndex) {
        if !self.is_resident(page) {
            self.table.push(&mut self.hot, page, HOT);
        }
    }

    fn handle_evicted(&mut self, _: PageIndex) {}

    fn handle_removed(&mut self, page: PageIndex) {
        match self.table.place(page) {
            TRIAL => self.table.unlink(&mut self.trial, page, Place::Away),
            HOT => self.table.unlink(&mut self.hot, page, Place::Away),
            _ => {}
        }
    }

    fn next_run(&mut self, pages_max: u32) -> Option<Run> {
        self.rebalance();
        let victim = self.trial.oldest()?;
        let run = self
            .table
            .run_around(victim, pages_max, |r| r.place == TRIAL);
        for page in run.iter() {
            self.table.unlink(&mut self.trial, page, Place::Away);
        }
        Some(run)
    }

    fn resident_pages(&self) -> u32 {
        self.trial.len + self.hot.len
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_touched_while_staged_outlives_a_scan() {
        let mut policy = SegmentedFifo::new(1_000);
        for page in 0..10 {
            policy.handle_resident(PageIndex(page), Arrival::FirstTouch);
        }
        assert_eq!(policy.next_run(1).unwrap().first, PageIndex(0));
        policy.handle_staged_hit(PageIndex(0));
        // A scan of 100 pages through a memory of 10: the hot page stays throughout.
        for page in 100..200 {
            policy.handle_resident(PageIndex(page), Arrival::Demand);
            let run = policy.next_run(1).unwrap();
            assert_ne!(run.first, PageIndex(0), "evicted while page {page} came");
        }
    }

    #[test]
    fn hot_pages_alone_are_given_out_in_the_end() {
        let mut policy = SegmentedFifo::new(4);
        for page in 0..4 {
            policy.handle_staged_hit(PageIndex(page));
        }
        let given: Vec<u32> = std::iter::from_fn(|| policy.next_run(1))
            .map(|run| run.first.0)
            .collect();
        assert_eq!(given, [0, 1, 2, 3]);
    }
}
