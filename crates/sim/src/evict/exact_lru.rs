//! Exact LRU, as if every access were seen: what an accessed bit that costs nothing would be worth.
//!
//! A second yardstick beside the optimum, not a policy: the pager cannot see accesses to resident
//! pages. Like the optimum it fetches on demand and uses all local memory for resident pages.

use super::trace::Trace;
use std::collections::VecDeque;

/// Accesses that find their page far under LRU with this much local memory.
pub fn misses(trace: &Trace, local_pages: u32) -> u64 {
    /// The page has never been touched, or has left.
    const NEVER: usize = usize::MAX;
    let mut last_use = vec![NEVER; trace.table_pages as usize];
    let mut touched = vec![false; trace.table_pages as usize];
    // In order of use; an entry that is not its page's last use is stale.
    let mut order: VecDeque<(u32, usize)> = VecDeque::new();
    let mut resident_pages = 0;
    let mut misses = 0;
    for (at, access) in trace.accesses.iter().enumerate() {
        let page = access.page as usize;
        if last_use[page] == NEVER {
            if touched[page] && at >= trace.measured_from {
                misses += 1;
            }
            while resident_pages >= local_pages.max(1) {
                let Some((victim, used)) = order.pop_front() else {
                    break;
                };
                if last_use[victim as usize] == used {
                    last_use[victim as usize] = NEVER;
                    resident_pages -= 1;
                }
            }
            resident_pages += 1;
        }
        touched[page] = true;
        last_use[page] = at;
        order.push_back((access.page, at));
    }
    misses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::trace::Access;

    /// The textbook string again: LRU has 12 faults with 3 frames, of which 6 are first touches.
    #[test]
    fn the_textbook_string() {
        let string = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        let access = |page: &u32| Access {
            page: *page,
            thread: 0,
            write: false,
        };
        let trace = Trace {
            name: "test".to_string(),
            table_pages: 8,
            touched_pages: 6,
            accesses: string.iter().map(access).collect(),
            measured_from: 0,
        };
        assert_eq!(misses(&trace, 3), 12 - 6);
    }
}
