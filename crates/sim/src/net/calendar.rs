//! The event queue: a calendar of short days.
//!
//! Idea: nearly all events of a network lie within the next milliseconds, so they are thrown into
//! the day they belong to without being ordered; a day is sorted when it comes. What lies beyond
//! the calendar waits in a heap. Adding and taking cost the same whether there are ten events or a
//! million.
//!
//! Invariant: events come out in the order of time, and those of one time in the order in which
//! they were added; so a run depends on its seed alone.
//!
//! Source: R. Brown, "Calendar Queues" (1988), with a fixed day length.

use muninn_types::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const DAY_SHIFT: u32 = 8;
const DAYS: usize = 1 << 15;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node<E> {
    at: Nanos,
    event: E,
    next: u32,
}

/// An event beyond the calendar; the number keeps events of one time in order.
#[derive(Debug)]
struct Later<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> PartialEq for Later<E> {
    fn eq(&self, other: &Later<E>) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl<E> Eq for Later<E> {}
impl<E> PartialOrd for Later<E> {
    fn partial_cmp(&self, other: &Later<E>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Later<E> {
    fn cmp(&self, other: &Later<E>) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[derive(Debug)]
pub struct Calendar<E> {
    now: Nanos,
    /// The day that is being taken from, as a count of days since the origin.
    today: u64,
    /// Its events, latest first.
    hours: Vec<(Nanos, E)>,
    /// First node of each of the next days, by day modulo their number; newest first.
    days: Vec<u32>,
    nodes: Vec<Node<E>>,
    free: u32,
    in_days: usize,
    later: BinaryHeap<Reverse<Later<E>>>,
    later_number: u64,
}

impl<E: Copy> Calendar<E> {
    pub fn new() -> Calendar<E> {
        Calendar {
            now: Nanos::ZERO,
            today: 0,
            hours: Vec::new(),
            days: vec![NONE; DAYS],
            nodes: Vec::new(),
            free: NONE,
            in_days: 0,
            later: BinaryHeap::new(),
            later_number: 0,
        }
    }

    pub fn now(&self) -> Nanos {
        self.now
    }

    pub fn add(&mut self, at: Nanos, event: E) {
        assert!(at >= self.now, "an event in the past");
        let day = at.0 >> DAY_SHIFT;
        if day <= self.today {
            // After all events of the same time: they were added before.
            let place = self.hours.partition_point(|&(other, _)| other > at);
            self.hours.insert(place, (at, event));
        } else if day - self.today < DAYS as u64 {
            self.add_to_day(day, at, event);
        } else {
            self.later_number += 1;
            self.later.push(Reverse(Later {
                at,
                number: self.later_number,
                event,
            }));
        }
    }

    pub fn take(&mut self) -> Option<(Nanos, E)> {
        while self.hours.is_empty() {
            if self.in_days == 0 {
                // Nothing near: jump to the first event of the far ones.
                let Reverse(first) = self.later.peek()?;
                self.today = first.at.0 >> DAY_SHIFT;
            } else {
                self.today += 1;
            }
            self.begin_day();
        }
        let (at, event) = self.hours.pop()?;
        self.now = at;
        Some((at, event))
    }

    fn add_to_day(&mut self, day: u64, at: Nanos, event: E) {
        let slot = (day % DAYS as u64) as usize;
        let node = Node {
            at,
            event,
            next: self.days[slot],
        };
        let index = if self.free == NONE {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        };
        self.days[slot] = index;
        self.in_days += 1;
    }

    fn begin_day(&mut self) {
        let slot = (self.today % DAYS as u64) as usize;
        let mut index = std::mem::replace(&mut self.days[slot], NONE);
        // Newest first is what `hours` wants for equal times, and the sort is stable.
        while index != NONE {
            let node = self.nodes[index as usize];
            self.hours.push((node.at, node.event));
            self.nodes[index as usize].next = self.free;
            self.free = index;
            self.in_days -= 1;
            index = node.next;
        }
        // Events that were far away when added are older than any that was added to the day itself:
        // the calendar reached that day only later.
        let from = self.hours.len();
        while let Some(Reverse(first)) = self.later.peek() {
            if first.at.0 >> DAY_SHIFT > self.today {
                break;
            }
            let Reverse(first) = self.later.pop().expect("peeked");
            self.hours.push((first.at, first.event));
        }
        self.hours[from..].reverse();
        self.hours.sort_by_key(|&(at, _)| Reverse(at));
    }
}

impl<E: Copy> Default for Calendar<E> {
    fn default() -> Calendar<E> {
        Calendar::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain sorted list, with gaps inside of a day, between days and beyond them all.
        #[test]
        fn in_order_of_time_then_of_adding(
            steps in proptest::collection::vec((0u32..40, 1usize..4, any::<bool>()), 1..300),
        ) {
            let mut calendar = Calendar::new();
            let mut plain: Vec<(Nanos, usize)> = Vec::new();
            let mut number = 0;
            for (shift, count, take) in steps {
                for _ in 0..count {
                    let at = calendar.now() + Nanos((1u64 << shift) >> 2);
                    calendar.add(at, number);
                    plain.push((at, number));
                    number += 1;
                }
                plain.sort();
                if take {
                    prop_assert_eq!(calendar.take(), Some(plain.remove(0)));
                }
            }
            for expected in plain {
                prop_assert_eq!(calendar.take(), Some(expected));
            }
            prop_assert_eq!(calendar.take(), None);
        }
    }
}
