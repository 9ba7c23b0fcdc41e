//! Changes of the address space in the order in which they happened.
//!
//! The kernel reports a change after it was made, from the thread that made it. Two threads may so
//! report in the wrong order: one moves its memory away from X, another moves its own to X, and the
//! second is heard first. Taken literally, the first report would then move the second's pages away,
//! or drop them. What gives the order back:
//!
//! - Nothing can be moved to a place that is still in use, so a move to memory that we take for
//!   registered is *early*: it waits until the report that clears the place has come.
//! - A move away from X is followed by the report that X is unmapped, which says nothing new and may
//!   come when X is in use again: it is *expected*, and passed over.
//!
//! Both end when no change is under way any more: then every report has been heard.

use crate::ranges::Ranges;
use muninn_types::{PageNo, PageRange};

/// What a report means for what is known of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Unmap(PageRange),
    Remap { from: PageRange, to: PageNo },
}

#[derive(Debug, Default)]
pub struct Order {
    /// From, to, and whether the report that it is unmapped has come already.
    early: Vec<(PageRange, PageNo, bool)>,
    expected: Vec<PageRange>,
}

impl Order {
    /// Whether anything waits for the changes to end.
    pub fn is_waiting(&self) -> bool {
        !self.early.is_empty() || !self.expected.is_empty()
    }

    /// A report was read; what follows from it now. `areas` is what is registered, and is kept up
    /// to date.
    pub fn handle(&mut self, change: Change, areas: &mut Ranges, out: &mut Vec<Change>) {
        match change {
            Change::Unmap(range) => {
                if let Some(at) = self.expected.iter().position(|known| *known == range) {
                    self.expected.swap_remove(at);
                } else if let Some(early) = self.early.iter_mut().find(|e| e.0 == range && !e.2) {
                    early.2 = true;
                } else {
                    areas.remove(range);
                    out.push(change);
                }
            }
            Change::Remap { from, to } => self.early.push((from, to, false)),
        }
        // One that becomes possible may make another possible.
        while let Some(at) = self.early.iter().position(|e| is_clear(areas, e.0, e.1)) {
            let early = self.early.remove(at);
            self.apply(early, areas, out);
        }
    }

    fn apply(
        &mut self,
        (from, to, unmapped): (PageRange, PageNo, bool),
        areas: &mut Ranges,
        out: &mut Vec<Change>,
    ) {
        areas.remove(from);
        areas.insert(PageRange::new(to, from.pages()));
        if !unmapped {
            self.expected.push(from);
        }
        out.push(Change::Remap { from, to });
    }

    /// No change is under way: whatever still waits waits for nothing.
    pub fn handle_calm(&mut self, areas: &mut Ranges, out: &mut Vec<Change>) {
        for early in std::mem::take(&mut self.early) {
            self.apply(early, areas, out);
        }
        self.expected.clear();
    }
}

/// Whether nothing that is registered lies at the target of a move.
fn is_clear(areas: &Ranges, from: PageRange, to: PageNo) -> bool {
    let target = PageRange::new(to, from.pages());
    areas.first_gap(target) == Some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64) -> PageRange {
        PageRange::new(PageNo(first), 10)
    }

    /// Thread one moves X to P, thread two then moves Y to X; whatever comes first.
    #[test]
    fn moves_through_one_place_keep_their_order() {
        let (x, y, p) = (range(100), range(200), range(300));
        let first = Change::Remap {
            from: x,
            to: p.first(),
        };
        let second = Change::Remap {
            from: y,
            to: x.first(),
        };
        let orders = [
            [first, Change::Unmap(x), second, Change::Unmap(y)],
            [first, second, Change::Unmap(x), Change::Unmap(y)],
            [second, first, Change::Unmap(x), Change::Unmap(y)],
            [second, Change::Unmap(y), first, Change::Unmap(x)],
        ];
        for order in orders {
            let mut areas = Ranges::default();
            areas.insert(x);
            areas.insert(y);
            let mut changes = Order::default();
            let mut out = Vec::new();
            for change in order {
                changes.handle(change, &mut areas, &mut out);
            }
            assert_eq!(out, [first, second], "{order:?}");
            changes.handle_calm(&mut areas, &mut out);
            assert!(!changes.is_waiting());
            assert!(is_clear(&areas, y, y.first()));
            assert_eq!(areas.first_gap(x), None);
            assert_eq!(areas.first_gap(p), None);
        }
    }

    #[test]
    fn a_move_into_a_place_that_is_being_unmapped_waits_for_it() {
        let (x, y) = (range(100), range(200));
        let mut areas = Ranges::default();
        areas.insert(x);
        areas.insert(y);
        let mut changes = Order::default();
        let mut out = Vec::new();
        let moved = Change::Remap {
            from: y,
            to: x.first(),
        };
        changes.handle(moved, &mut areas, &mut out);
        assert!(out.is_empty() && changes.is_waiting());
        changes.handle(Change::Unmap(x), &mut areas, &mut out);
        assert_eq!(out, [Change::Unmap(x), moved]);
    }
}
