//! A process's place in its job.
//!
//! A place belongs to a process by its number and its start time, held in one word. It is taken by
//! exchanging that word, so two can never have the same; the place of a dead process is first
//! emptied into the job's sum of departed processes, by the launcher, which is told at once when one
//! ends. Invariant: what a process counted is in its place or in the sum, and never in both.
//!
//! To find a place is to search words that lie side by side, 8 bytes a process, once in its life;
//! nothing that is done again and again looks at the places of others, but for the launcher's look.
//!
//! Known limit: a process that is killed while it empties a place leaves it unusable until another
//! looks at it and finds it dead.

use crate::layout::{CLEARING, Layout, Seat};
use crate::{Counters, PLACES_MAX, PLACES_READY, Snapshot};
use muninn_policy::share::{self, Known};
use muninn_sys::memory::Shared;
use muninn_sys::proc::ProcessId;
use muninn_types::{Bytes, Spread};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A process whose memory has changed by this part of its share, and by this much, has the launcher
/// look again.
const CHANGE_PER_SHARE: u64 = 32;
const CHANGE_MIN: Bytes = Bytes::kib(256);

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
        if empty(&self.page, self.index, self.owner.word(), self.owner) {
            self.page.board.bell.ring();
        }
    }

    /// What it may hold of the job's limit, as far as this process knows. Reads a handful of words.
    pub fn share(&self) -> Bytes {
        let (page, board, seat) = (&self.page, &self.page.board, self.seat());
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let newcomers = newcomers(page);
        let sequence = board.sequence.load(Ordering::Acquire);
        let others = load(&board.resident).saturating_sub(load(&seat.seen_resident));
        std::sync::atomic::fence(Ordering::Acquire);
        let whole = sequence.is_multiple_of(2) && load(&board.sequence) == sequence;
        share::own(&Known {
            limit: Bytes(load(&page.limit)),
            processes: load(&board.processes).saturating_add(newcomers),
            newcomers,
            held: Bytes(load(&seat.counters.resident_bytes)),
            // While the launcher writes it down, it is not known.
            others: Bytes(if whole { others } else { u64::MAX }),
            share: Bytes(load(&seat.share)),
            share_of: Bytes(load(&board.limit)),
        })
    }

    /// Remembers what all processes hold, by what the launcher saw last and what this one counts now,
    /// as the most there was if it is; and has the launcher look if this one has changed much.
    pub fn note_footprint(&self) {
        let (board, seat) = (&self.page.board, self.seat());
        let own = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let before = board.sequence.load(Ordering::Acquire);
        let (seen, resident) = (own(&seat.seen_resident), own(&seat.counters.resident_bytes));
        let sum = |all: &AtomicU64, seen: u64, now: u64| {
            own(all).saturating_sub(seen).saturating_add(now)
        };
        let local = sum(&board.resident, seen, resident);
        let far = sum(
            &board.far,
            own(&seat.seen_far),
            own(&seat.counters.far_bytes),
        );
        std::sync::atomic::fence(Ordering::Acquire);
        let whole = before.is_multiple_of(2) && board.sequence.load(Ordering::Relaxed) == before;
        // Else the launcher looks at this moment, and what is written there does not belong together.
        if whole {
            note_peaks(&self.page, local, far);
            let much = (own(&seat.share) / CHANGE_PER_SHARE).max(CHANGE_MIN.0);
            let shared = own(&board.processes).saturating_add(newcomers(&self.page)) > 1;
            if shared && seen.abs_diff(resident) > much {
                board.bell.ring();
            }
        }
    }

    /// Processes that the job has now, as far as is known.
    pub(crate) fn living(&self) -> u64 {
        let seen = self.page.board.processes.load(Ordering::Relaxed);
        seen.saturating_add(newcomers(&self.page))
    }

    /// Processes that ever came to the job.
    pub(crate) fn attached(&self) -> u64 {
        self.page.attached.load(Ordering::Relaxed)
    }

    pub(crate) fn seat(&self) -> &Seat {
        &self.page.places[self.index]
    }

    /// Takes a place for a process; `None` when all are taken by the living, or there is no memory
    /// for another.
    pub(crate) fn take(page: &Arc<Shared<Layout>>, owner: ProcessId) -> Option<Place> {
        let word = owner.word();
        let is = |word: u64| move |owner: &AtomicU64| owner.load(Ordering::Acquire) == word;
        let used = &page.owners[..used(page)];
        let place = |index| Place {
            page: page.clone(),
            index,
            owner,
        };
        if let Some(index) = used.iter().position(is(word)) {
            let place = place(index);
            // It has executed another program, which has none of the memory of the one before.
            place.seat().counters.forget_now();
            place.seat().waiting.store(0, Ordering::Relaxed);
            return Some(place);
        }
        // First, so that no process is overlooked by those that ask whether they are alone.
        page.attached.fetch_add(1, Ordering::AcqRel);
        let from = used.iter().position(is(0)).unwrap_or(used.len());
        let index = (from..PLACES_MAX)
            .find(|&index| claim(page, index, owner))
            .or_else(|| (0..PLACES_MAX).find(|&i| bury(page, i, owner) && claim(page, i, owner)))?;
        let place = place(index);
        place.come();
        Some(place)
    }

    /// The first share, and a word to the launcher that there is one more.
    fn come(&self) {
        let (mut held, mut processes) = (0u64, 1);
        for other in Place::all(&self.page).filter(|other| other.index != self.index) {
            let counters = &other.seat().counters;
            held = held.saturating_add(counters.resident_bytes.load(Ordering::Relaxed));
            processes += 1;
        }
        let limit = Bytes(self.page.limit.load(Ordering::Relaxed));
        let newcomers = newcomers(&self.page);
        let share = share::newcomer(limit, share::FLOOR, Bytes(held), processes, newcomers);
        let seat = self.seat();
        seat.seen_resident.store(0, Ordering::Relaxed);
        seat.seen_far.store(0, Ordering::Relaxed);
        seat.waiting.store(0, Ordering::Relaxed);
        seat.share.store(share.0, Ordering::Relaxed);
        self.page.board.bell.ring();
    }

    /// All taken places, those of the dead among them.
    pub(crate) fn all(page: &Arc<Shared<Layout>>) -> impl Iterator<Item = Place> + '_ {
        let owners = page.owners[..used(page)].iter().enumerate();
        owners.filter_map(|(index, owner)| {
            Some(Place {
                page: page.clone(),
                index,
                owner: ProcessId::from_word(owner.load(Ordering::Acquire))?,
            })
        })
    }
}

/// Places that were ever taken are below this.
pub(crate) fn used(page: &Layout) -> usize {
    let used = page.places_used.load(Ordering::Acquire);
    used.min(PLACES_MAX as u64) as usize
}

/// Processes that came since the launcher looked.
fn newcomers(page: &Layout) -> u64 {
    let seen = page.board.attached.load(Ordering::Relaxed);
    page.attached.load(Ordering::Acquire).saturating_sub(seen)
}

/// Remembers the most there was. Mostly it is not, and then nothing is written.
pub(crate) fn note_peaks(page: &Layout, local: u64, far: u64) {
    let all = local.saturating_add(far);
    for (peak, now) in [
        (&page.local_peak, local),
        (&page.far_peak, far),
        (&page.footprint_peak, all),
    ] {
        if peak.load(Ordering::Relaxed) < now {
            peak.fetch_max(now, Ordering::Relaxed);
        }
    }
}

fn claim(page: &Shared<Layout>, index: usize, owner: ProcessId) -> bool {
    let word = &page.owners[index];
    if word.load(Ordering::Relaxed) != 0 {
        return false;
    }
    if index >= PLACES_READY {
        let offset = std::mem::offset_of!(Layout, places) + index * size_of::<Seat>();
        let memory = page
            .mapping()
            .take(offset as u64, Bytes(size_of::<Seat>() as u64));
        if memory.is_err() {
            return false;
        }
    }
    page.places_used
        .fetch_max(index as u64 + 1, Ordering::AcqRel);
    word.compare_exchange(0, owner.word(), Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// Empties the place if its owner is dead, and says whether it did. For when there is no other left:
/// else the launcher does this, which can tell the dead from those it cannot see.
fn bury(page: &Layout, index: usize, gravedigger: ProcessId) -> bool {
    let word = page.owners[index].load(Ordering::Acquire);
    // One who died while emptying the place is treated as its owner.
    let dead = match ProcessId::from_word(word & !CLEARING) {
        Some(owner) => !owner.is_alive(),
        // A word that names nobody: 0 was free a moment ago, all else is nonsense.
        None => word != 0,
    };
    dead && empty(page, index, word, gravedigger)
}

fn empty(page: &Layout, index: usize, expected: u64, by: ProcessId) -> bool {
    let owner = &page.owners[index];
    let clearing = CLEARING | by.word();
    let exchanged = owner.compare_exchange(expected, clearing, Ordering::AcqRel, Ordering::Relaxed);
    if exchanged.is_err() {
        return false;
    }
    page.places[index].counters.hand_over(&page.departed);
    owner.store(0, Ordering::Release);
    true
}

/// How long faults took, by kind, of all processes that ever were.
pub(crate) fn times(page: &Arc<Shared<Layout>>) -> [Spread; 3] {
    let mut sums = page.departed.times();
    for place in Place::all(page) {
        for (sum, times) in sums.iter_mut().zip(place.counters().times()) {
            sum.add(&times);
        }
    }
    let total = total(page);
    let ns = [
        total.fault_zero_ns,
        total.fault_staged_ns,
        total.fault_far_ns,
    ];
    for (sum, ns) in sums.iter_mut().zip(ns) {
        sum.sum_ns = ns;
    }
    sums
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
