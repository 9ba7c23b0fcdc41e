//! A process's place in its job.
//!
//! A place belongs to a process by its number and its start time, held in one word. It is taken by
//! exchanging that word, so two can never have the same; the place of a dead process is first
//! emptied into the job's sum of departed processes, by whoever finds it. Invariant: what a process
//! counted is in its place or in the sum, and never in both.
//!
//! Known limit: a process that is killed while it empties a place leaves it unusable until another
//! looks at it and finds it dead.

use crate::layout::{CLEARING, Layout, Seat};
use crate::{Counters, Snapshot};
use muninn_sys::memory::Shared;
use muninn_sys::proc::ProcessId;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A taken place.
#[derive(Clone, Debug)]
pub struct Place {
    page: Arc<Shared<Layout>>,
    index: usize,
    owner: ProcessId,
}

impl Place {
    pub fn counters(&self) -> &Counters {
        &self.seat().counters
    }

    /// The process it belongs to, or belonged to.
    pub fn process(&self) -> ProcessId {
        self.owner
    }

    pub fn pid(&self) -> u32 {
        self.owner.pid()
    }

    /// Its number, below [`crate::PLACES_MAX`].
    pub fn index(&self) -> usize {
        self.index
    }

    pub fn is_alive(&self) -> bool {
        self.owner.is_alive()
    }

    /// Gives the place back; what was counted stays in the job's sum. Does nothing when the place
    /// is somebody else's by now.
    pub fn release(&self) {
        self.seat().empty(self.owner.word(), self.owner, &self.page);
    }

    fn seat(&self) -> &Seat {
        &self.page.places[self.index]
    }

    /// Takes a place for a process; `None` when all are taken by the living.
    pub(crate) fn take(page: &Arc<Shared<Layout>>, owner: ProcessId) -> Option<Place> {
        let mine = |(_, seat): &(usize, &Seat)| seat.owner.load(Ordering::Acquire) == owner.word();
        let free = |(_, seat): &(usize, &Seat)| seat.claim(owner);
        let seats = || page.places.iter().enumerate();
        let dead = |(_, seat): &(usize, &Seat)| seat.bury(owner, page) && seat.claim(owner);
        let again = seats().find(mine);
        match again {
            // It has executed another program, which has none of the memory of the one before.
            Some((_, seat)) => seat.counters.forget_now(),
            None => _ = page.attached.fetch_add(1, Ordering::Relaxed),
        }
        let (index, _) = again
            .or_else(|| seats().find(free))
            .or_else(|| seats().find(dead))?;
        Some(Place {
            page: page.clone(),
            index,
            owner,
        })
    }

    /// All taken places, those of the dead among them.
    pub(crate) fn all(page: &Arc<Shared<Layout>>) -> impl Iterator<Item = Place> + '_ {
        page.places.iter().enumerate().filter_map(|(index, seat)| {
            Some(Place {
                page: page.clone(),
                index,
                owner: ProcessId::from_word(seat.owner.load(Ordering::Acquire))?,
            })
        })
    }
}

impl Seat {
    fn claim(&self, owner: ProcessId) -> bool {
        self.owner
            .compare_exchange(0, owner.word(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Empties the place if its owner is dead, and says whether it did.
    fn bury(&self, gravedigger: ProcessId, page: &Layout) -> bool {
        let word = self.owner.load(Ordering::Acquire);
        // One who died while emptying the place is treated as its owner.
        let dead = match ProcessId::from_word(word & !CLEARING) {
            Some(owner) => !owner.is_alive(),
            // A word that names nobody: 0 was free a moment ago, all else is nonsense.
            None => word != 0,
        };
        dead && self.empty(word, gravedigger, page)
    }

    fn empty(&self, expected: u64, by: ProcessId, page: &Layout) -> bool {
        let clearing = CLEARING | by.word();
        let exchanged =
            self.owner
                .compare_exchange(expected, clearing, Ordering::AcqRel, Ordering::Relaxed);
        if exchanged.is_err() {
            return false;
        }
        self.counters.hand_over(&page.departed);
        self.owner.store(0, Ordering::Release);
        true
    }
}

/// Everything the job counted: what the departed left, and the places of the living and of those who
/// died without a word, who hold no memory any more.
pub(crate) fn total(page: &Arc<Shared<Layout>>) -> Snapshot {
    let mut sum = page.departed.snapshot();
    for place in Place::all(page) {
        let counted = place.counters().snapshot();
        sum.add(&if place.is_alive() {
            counted
        } else {
            counted.of_the_dead()
        });
    }
    sum
}
