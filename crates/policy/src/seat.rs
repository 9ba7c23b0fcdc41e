//! Where the pager's thread runs: wherever there is room, or beside the thread it serves.
//!
//! A fault costs two changes of threads. Across two processors each of them is a wake-up of the other
//! one, half of the cost of a fault; on one processor it is a plain switch. So a program whose one
//! thread faults again and again, a page at a time, has its pager *beside* it: on that thread's
//! processor, and behind it, running only while the thread waits. (Behind, because a scheduler that
//! sees the processor taken would move the thread elsewhere as soon as it is woken; a processor on
//! which only such a thread runs counts as idle.)
//!
//! Everything else wants the pager *free*: pages that are fetched ahead come while the program runs,
//! several threads are not to wait for one another, and a processor that others want too would leave
//! nothing for a thread behind them. All of that shows in the number of faults between two looks.
//!
//! Invariant: a pager that does not get on is free at the next look. Known limit: a rate just at the
//! border may change the seat again and again, at most once in [`FREE_LOOKS_MIN`] looks.

/// Where the pager is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// Anywhere, before other threads.
    Free,
    /// On the processor of the thread it serves, behind other threads.
    Beside,
}

/// What happened since the last look, a millisecond or so ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Faults served.
    pub faults: u64,
    /// Pages fetched ahead.
    pub prefetched: u64,
    /// Faults of another thread than the one before.
    pub changes: u64,
}

/// Faults between two looks that are worth a seat beside the program, and that keep it.
const FAULTS_MANY: u64 = 24;
const FAULTS_FEW: u64 = 8;
/// A fault in so many may be another thread's.
const FAULTS_PER_CHANGE: u64 = 16;
/// Looks that say the same before the pager sits down.
const LOOKS_ALIKE: u32 = 2;
/// A seat that is lost before so many looks was none.
const LOOKS_SETTLED: u32 = 16;
/// Looks to stay free after a seat was lost; twice as many each time it was lost at once.
pub const FREE_LOOKS_MIN: u32 = 8;
const FREE_LOOKS_MAX: u32 = 4096;

#[derive(Clone, Debug)]
pub struct Seating {
    seat: Seat,
    /// Looks in this seat.
    since: u32,
    /// Looks in a row that spoke for the other seat.
    alike: u32,
    free_looks: u32,
}

impl Default for Seating {
    fn default() -> Seating {
        Seating {
            seat: Seat::Free,
            since: FREE_LOOKS_MIN,
            alike: 0,
            free_looks: FREE_LOOKS_MIN,
        }
    }
}

impl Seating {
    pub fn seat(&self) -> Seat {
        self.seat
    }

    /// Takes a look in; where the pager is to be from now on.
    pub fn handle_look(&mut self, look: Look) -> Seat {
        self.since = self.since.saturating_add(1);
        let alone = look.changes * FAULTS_PER_CHANGE <= look.faults;
        match self.seat {
            Seat::Free => {
                let worth = look.faults >= FAULTS_MANY && look.prefetched <= look.faults / 4;
                self.alike = if worth && alone { self.alike + 1 } else { 0 };
                if self.alike >= LOOKS_ALIKE && self.since >= self.free_looks {
                    self.change(Seat::Beside);
                }
            }
            Seat::Beside => {
                let ahead = look.prefetched > look.faults;
                if look.faults < FAULTS_FEW || ahead || !alone {
                    self.free_looks = match self.since < LOOKS_SETTLED {
                        true => (self.free_looks * 2).min(FREE_LOOKS_MAX),
                        false => FREE_LOOKS_MIN,
                    };
                    self.change(Seat::Free);
                }
            }
        }
        self.seat
    }

    fn change(&mut self, seat: Seat) {
        self.seat = seat;
        self.since = 0;
        self.alike = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn faults(faults: u64) -> Look {
        Look {
            faults,
            ..Look::default()
        }
    }

    #[test]
    fn one_thread_that_faults_a_page_at_a_time_has_the_pager_beside_it() {
        let mut seating = Seating::default();
        assert_eq!(seating.handle_look(faults(60)), Seat::Free);
        assert_eq!(seating.handle_look(faults(60)), Seat::Beside);
        for _ in 0..1000 {
            assert_eq!(seating.handle_look(faults(90)), Seat::Beside);
        }
        assert_eq!(seating.handle_look(faults(3)), Seat::Free);
    }

    #[test]
    fn pages_fetched_ahead_and_several_threads_want_it_free() {
        let stream = Look {
            faults: 30,
            prefetched: 300,
            changes: 0,
        };
        let two = Look {
            faults: 100,
            prefetched: 0,
            changes: 50,
        };
        for look in [stream, two, faults(10)] {
            let mut seating = Seating::default();
            for _ in 0..100 {
                assert_eq!(seating.handle_look(look), Seat::Free);
            }
        }
        let mut seating = Seating::default();
        for look in [faults(60), faults(60)] {
            seating.handle_look(look);
        }
        assert_eq!(seating.handle_look(two), Seat::Free);
    }

    #[test]
    fn a_busy_processor_is_tried_ever_less_often() {
        let mut seating = Seating::default();
        let mut stuck = 0;
        for _ in 0..100_000 {
            // Free it gets on; beside the program somebody else has the processor.
            let look = match seating.seat() {
                Seat::Free => faults(60),
                Seat::Beside => faults(0),
            };
            stuck += u32::from(look.faults == 0);
            seating.handle_look(look);
        }
        assert!(stuck < 50, "{stuck} looks without a fault served");
    }

    proptest! {
        #[test]
        fn who_does_not_get_on_is_free_at_once(
            looks in proptest::collection::vec((0u64..200, 0u64..400, 0u64..50), 1..300),
        ) {
            let mut seating = Seating::default();
            for (faults, prefetched, changes) in looks {
                let seat = seating.handle_look(Look { faults, prefetched, changes });
                prop_assert!(faults >= FAULTS_FEW || seat == Seat::Free);
            }
        }
    }
}
