//! First in, first out: the oldest page leaves, whatever happened to it since.
//!
//! The baseline. A staged hit brings a page back as the newest, so staging gives it a second chance
//! of one full round, and nothing is remembered beyond that. On a loop larger than local memory each
//! page leaves just before it is needed, as under LRU.

use super::table::{Place, Queue, Table};
use super::{Arrival, Evict, PageIndex, Run};

#[derive(Debug)]
pub struct Fifo {
    table: Table,
    queue: Queue,
}

impl Fifo {
    pub fn new(pages: u32) -> Fifo {
        Fifo {
            table: Table::new(pages),
            queue: Queue::EMPTY,
        }
    }
}

impl Evict for Fifo {
    fn grow(&mut self, pages: u32) {
        self.table.grow(pages);
    }

    fn handle_resident(&mut self, page: PageIndex, _: Arrival) {
        if self.table.place(page) != Place::First {
            self.table.push(&mut self.queue, page, Place::First);
        }
    }

    fn handle_staged_hit(&mut self, page: PageIndex) {
        self.handle_resident(page, Arrival::Demand);
    }

    fn handle_evicted(&mut self, _: PageIndex) {}

    fn handle_removed(&mut self, page: PageIndex) {
        if self.table.place(page) == Place::First {
            self.table.unlink(&mut self.queue, page, Place::Away);
        }
    }

    fn next_run(&mut self, pages_max: u32) -> Option<Run> {
        let victim = self.queue.oldest()?;
        let run = self
            .table
            .run_around(victim, pages_max, |r| r.place == Place::First);
        for page in run.iter() {
            self.table.unlink(&mut self.queue, page, Place::Away);
        }
        Some(run)
    }

    fn resident_pages(&self) -> u32 {
        self.queue.len
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}
