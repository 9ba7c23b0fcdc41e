//! What each event of the pager costs, in nanoseconds, as measured on the development machines.
//!
//! An estimate, to weigh policies against each other: a miss that is avoided against pages fetched
//! in vain, a staged hit against keeping pages longer, long runs against the right pages. Everything
//! is counted as if it ran on one CPU, the prefetch after a fault and the reclaimer's work included.
//! First touches are left out: every policy has the same ones.
//!
//! Known limit: no queueing, no sleeping CPUs, and prefetched pages arrive before they are needed.
//! Source: the table of costs in `docs/SIMULATION.md`, two cores, Linux 6.18, handler on the CPU of
//! the thread it serves.

/// How far memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A memory server on the same machine.
    Shm,
    /// TCP with both ends spinning.
    Tcp,
}

/// Fault to handler, one page copied in, program resumed.
const FAULT_NS: f64 = 5_000.0;
/// Copying a page in: by the number of pages in one call.
const COPY_NS: [(f64, f64); 3] = [(1.0, 1_500.0), (16.0, 1_100.0), (64.0, 1_000.0)];
/// Moving a page out or back: by the number of pages in one call.
const MOVE_NS: [(f64, f64); 4] = [(1.0, 1_140.0), (4.0, 415.0), (16.0, 237.0), (64.0, 47.0)];
/// One pass over a cold page: a copy into a grant or the read buffer, or a checksum.
const PASS_NS: f64 = 400.0;
/// 64 bytes out and a page back.
const TCP_ROUND_TRIP_NS: f64 = 7_700.0;
/// Each further page of a request: 16 pages take 16.5 µs in the middle of what was measured.
const TCP_PAGE_NS: f64 = 590.0;

/// Per page, between the measured sizes on a logarithmic scale.
fn per_page_ns(table: &[(f64, f64)], pages: u32) -> f64 {
    let size = f64::from(pages.max(1));
    let (mut below, mut above) = (table[0], table[table.len() - 1]);
    for &point in table {
        if point.0 <= size {
            below = point;
        }
    }
    for &point in table.iter().rev() {
        if point.0 >= size {
            above = point;
        }
    }
    if above.0 <= below.0 {
        return below.1;
    }
    let share = (size / below.0).ln() / (above.0 / below.0).ln();
    below.1 + share * (above.1 - below.1)
}

impl Transport {
    /// A page fetched because the program waits for it.
    pub fn demand_ns(self) -> f64 {
        FAULT_NS
            + match self {
                Transport::Shm => 0.0,
                Transport::Tcp => TCP_ROUND_TRIP_NS,
            }
    }

    /// A fault answered from the read buffer.
    pub fn buffer_hit_ns(self) -> f64 {
        FAULT_NS
    }

    /// A fault answered from the staging area: a move instead of a copy.
    pub fn staged_hit_ns(self) -> f64 {
        FAULT_NS - per_page_ns(&COPY_NS, 1) + per_page_ns(&MOVE_NS, 1)
    }

    pub fn prefetch_mapped_ns(self, pages: u32) -> f64 {
        f64::from(pages) * (per_page_ns(&COPY_NS, pages) + self.network_page_ns())
    }

    pub fn prefetch_buffered_ns(self, pages: u32) -> f64 {
        f64::from(pages) * (PASS_NS + self.network_page_ns())
    }

    /// A run moved out of the program into the staging area.
    pub fn stage_ns(self, pages: u32) -> f64 {
        f64::from(pages) * per_page_ns(&MOVE_NS, pages)
    }

    /// A staged page leaves: its checksum, and the write if it has changed.
    pub fn leave_ns(self, written: bool) -> f64 {
        let write_ns = PASS_NS + self.network_page_ns();
        PASS_NS + if written { write_ns } else { 0.0 }
    }

    fn network_page_ns(self) -> f64 {
        match self {
            Transport::Shm => 0.0,
            Transport::Tcp => TCP_PAGE_NS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_sizes_cost_what_was_measured_and_those_between_lie_between() {
        assert_eq!(per_page_ns(&MOVE_NS, 1), 1_140.0);
        assert_eq!(per_page_ns(&MOVE_NS, 64), 47.0);
        assert_eq!(per_page_ns(&MOVE_NS, 16), 237.0);
        assert_eq!(per_page_ns(&COPY_NS, 200), 1_000.0);
        let costs: Vec<f64> = (1..=64).map(|n| per_page_ns(&MOVE_NS, n)).collect();
        assert!(costs.is_sorted_by(|a, b| a >= b));
        assert_eq!(Transport::Shm.staged_hit_ns(), 4_640.0);
        assert_eq!(Transport::Tcp.demand_ns(), 12_700.0);
    }
}
