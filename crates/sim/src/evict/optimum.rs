//! Belady's optimum: always evict the page whose next use lies furthest ahead.
//!
//! It needs the future, so it is a yardstick and no policy. It fetches on demand only, has no staging
//! area and no read buffer, and uses all local memory for resident pages. No policy without
//! prefetching can have fewer misses; one that prefetches can, because a page that was fetched ahead
//! is no miss.
//!
//! From: Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.

use super::trace::Trace;
use std::collections::BinaryHeap;

const NEVER: u32 = u32::MAX;

/// The fewest accesses that find their page far, with this much local memory.
pub fn misses(trace: &Trace, local_pages: u32) -> u64 {
    let next_use = next_uses(trace);
    let mut resident = vec![false; trace.table_pages as usize];
    let mut touched = vec![false; trace.table_pages as usize];
    // Next use and page; old entries stay in the heap and are recognised by their next use.
    let mut furthest: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    let mut current = vec![NEVER; trace.table_pages as usize];
    let mut resident_pages = 0;
    let mut misses = 0;
    for (at, access) in trace.accesses.iter().enumerate() {
        let page = access.page as usize;
        if !resident[page] {
            if touched[page] && at >= trace.measured_from {
                misses += 1;
            }
            while resident_pages >= local_pages.max(1) {
                let Some((next, victim)) = furthest.pop() else {
                    break;
                };
                let victim = victim as usize;
                if resident[victim] && current[victim] == next {
                    resident[victim] = false;
                    resident_pages -= 1;
                }
            }
            resident[page] = true;
            resident_pages += 1;
        }
        touched[page] = true;
        current[page] = next_use[at];
        furthest.push((next_use[at], access.page));
    }
    misses
}

/// For each access the next one to the same page.
fn next_uses(trace: &Trace) -> Vec<u32> {
    let mut next = vec![NEVER; trace.table_pages as usize];
    let mut uses = vec![NEVER; trace.accesses.len()];
    for (at, access) in trace.accesses.iter().enumerate().rev() {
        uses[at] = next[access.page as usize];
        next[access.page as usize] = at as u32;
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::trace::Access;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn trace_of(pages: &[u32]) -> Trace {
        let access = |page: &u32| Access {
            page: *page,
            thread: 0,
            write: false,
        };
        Trace {
            name: "test".to_string(),
            table_pages: 8,
            touched_pages: 8,
            accesses: pages.iter().map(access).collect(),
            measured_from: 0,
        }
    }

    /// The textbook case: 20 references, 3 frames, 9 faults, of which 6 are first touches.
    #[test]
    fn the_textbook_string() {
        let string = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(misses(&trace_of(&string), 3), 9 - 6);
    }

    /// Tries every choice of victim.
    fn fewest(
        pages: &[u32],
        resident: &BTreeSet<u32>,
        touched: &BTreeSet<u32>,
        room: usize,
    ) -> u64 {
        let Some((page, rest)) = pages.split_first() else {
            return 0;
        };
        let mut touched = touched.clone();
        let miss = u64::from(!resident.contains(page) && !touched.insert(*page));
        if resident.contains(page) {
            return fewest(rest, resident, &touched, room);
        }
        let mut with = resident.clone();
        with.insert(*page);
        if resident.len() < room {
            return miss + fewest(rest, &with, &touched, room);
        }
        let without = |victim: &u32| {
            let mut left = with.clone();
            left.remove(victim);
            fewest(rest, &left, &touched, room)
        };
        miss + resident.iter().map(without).min().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn nothing_is_better(pages in prop::collection::vec(0u32..6, 0..12), room in 1usize..4) {
            let best = fewest(&pages, &BTreeSet::new(), &BTreeSet::new(), room);
            prop_assert_eq!(misses(&trace_of(&pages), room as u32), best);
        }
    }
}
