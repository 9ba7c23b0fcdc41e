//! What the queue policies have in common: one record for each page, linked into queues by index.
//!
//! The links live in the page's own record (16 bytes), so a page is in at most one queue and moving
//! it allocates nothing. A page that is in no queue keeps its stamp and mark, which is how a policy
//! can remember pages that are far at no extra cost.

use super::{PageIndex, RUN_PAGES_MAX, Run};

const NONE: u32 = u32::MAX;

/// A neighbour joins a run if it is older than the victim's age divided by this. Of 1⅓, 2, 4 and no
/// bound at all, 4 costs within 1 % of the least in `muninn sim evict` and still protects new pages.
const YOUNG_SHARE: u32 = 4;

/// Where a page stands; each policy says what its queues mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not known to the policy, or forgotten.
    Away,
    /// Resident, in the first or the second queue.
    First,
    Second,
    /// Given out as a victim, from the first or the second queue.
    StagedFirst,
    StagedSecond,
    /// Left from the first queue, and still remembered.
    Ghost,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    older: u32,
    newer: u32,
    /// Arrival number of a resident page, departure number of a ghost.
    pub stamp: u32,
    pub place: Place,
    /// How often it proved hot, for policies that count.
    pub heat: u8,
}

/// The ends of one queue, oldest to newest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    oldest: u32,
    newest: u32,
    pub len: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue {
        oldest: NONE,
        newest: NONE,
        len: 0,
    };

    pub(super) fn oldest(&self) -> Option<PageIndex> {
        (self.oldest != NONE).then_some(PageIndex(self.oldest))
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    records: Vec<Record>,
    /// Arrivals so far. Wraps: ages are differences, and a page cannot wait 2^32 arrivals.
    arrivals: u32,
}

impl Table {
    pub(super) fn new(pages: u32) -> Table {
        let mut table = Table::default();
        table.grow(pages);
        table
    }

    pub(super) fn grow(&mut self, pages: u32) {
        let empty = Record {
            older: NONE,
            newer: NONE,
            stamp: 0,
            place: Place::Away,
            heat: 0,
        };
        let pages = self.records.len().max(pages as usize);
        self.records.resize(pages, empty);
    }

    pub(super) fn get(&self, page: PageIndex) -> &Record {
        &self.records[page.at()]
    }
    pub(super) fn get_mut(&mut self, page: PageIndex) -> &mut Record {
        &mut self.records[page.at()]
    }
    pub(super) fn place(&self, page: PageIndex) -> Place {
        self.records[page.at()].place
    }
    pub(super) fn newer(&self, page: PageIndex) -> Option<PageIndex> {
        let newer = self.records[page.at()].newer;
        (newer != NONE).then_some(PageIndex(newer))
    }
    pub(super) fn memory_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
    }

    /// Puts a page that is in no queue at the newest end, as an arrival of now.
    pub(super) fn push(&mut self, queue: &mut Queue, page: PageIndex, place: Place) {
        self.arrivals = self.arrivals.wrapping_add(1);
        let record = &mut self.records[page.at()];
        debug_assert!(record.older == NONE && record.newer == NONE);
        record.stamp = self.arrivals;
        record.place = place;
        record.older = queue.newest;
        match queue.newest {
            NONE => queue.oldest = page.0,
            newest => self.records[newest as usize].newer = page.0,
        }
        queue.newest = page.0;
        queue.len += 1;
    }

    /// Takes a page out of its queue; the caller says where it stands now.
    pub(super) fn unlink(&mut self, queue: &mut Queue, page: PageIndex, place: Place) {
        let Record { older, newer, .. } = self.records[page.at()];
        match older {
            NONE => queue.oldest = newer,
            older => self.records[older as usize].newer = newer,
        }
        match newer {
            NONE => queue.newest = older,
            newer => self.records[newer as usize].older = older,
        }
        let record = &mut self.records[page.at()];
        record.older = NONE;
        record.newer = NONE;
        record.place = place;
        queue.len -= 1;
    }

    /// The run around a victim: neighbours on both sides that `fits` accepts and that are at least a
    /// quarter as old as the victim, so that a run never takes what has only just arrived.
    pub(super) fn run_around(
        &self,
        victim: PageIndex,
        pages_max: u32,
        fits: impl Fn(&Record) -> bool,
    ) -> Run {
        let pages_max = pages_max.clamp(1, RUN_PAGES_MAX);
        let age = |record: &Record| self.arrivals.wrapping_sub(record.stamp);
        let age_min = age(self.get(victim)) / YOUNG_SHARE;
        let joins = |index: u32| {
            let record = self.records.get(index as usize);
            record.is_some_and(|r| fits(r) && age(r) >= age_min)
        };
        let (mut first, mut end) = (victim.0, victim.0 + 1);
        while end - first < pages_max && joins(end) {
            end += 1;
        }
        while end - first < pages_max && first > 0 && joins(first - 1) {
            first -= 1;
        }
        Run {
            first: PageIndex(first),
            pages: end - first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_sixteen_bytes() {
        assert_eq!(size_of::<Record>(), 16);
    }

    #[test]
    fn a_run_stops_at_young_neighbours() {
        let mut table = Table::new(16);
        let mut queue = Queue::EMPTY;
        // Pages 2, 3, 4 arrive together, then others, and at last their neighbours 5 and 1.
        for page in [2, 3, 4, 10, 11, 12, 13, 14, 5, 1] {
            table.push(&mut queue, PageIndex(page), Place::First);
        }
        let run = table.run_around(PageIndex(2), 64, |r| r.place == Place::First);
        assert_eq!((run.first, run.pages), (PageIndex(2), 3));
        let run = table.run_around(PageIndex(2), 2, |r| r.place == Place::First);
        assert_eq!((run.first, run.pages), (PageIndex(2), 2));
    }
}
