//! The launcher's look at all places of a job: who is there, what they hold, what each may hold.
//!
//! It is the only one that looks at everybody, so what a job of many processes costs grows with their
//! number and not with its square: each process reads what was written for it. The look is due when
//! somebody rings (one has come, gone, or changed much; the limit was changed), every few milliseconds
//! while memory changes, and rarely otherwise. Invariant: one looks, in the launcher; who reads what is
//! being written notices (`Board::sequence`). Known limit: should the launcher be killed, shares stay
//! as they were.

use crate::Job;
use crate::place::{Place, note_peaks};
use muninn_policy::share::{Division, FLOOR};
use muninn_types::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two looks at least, whoever rings.
pub(crate) const APART_MIN: Duration = Duration::from_millis(1);
/// Between two looks while memory changes.
const APART_CHANGING: Duration = Duration::from_millis(4);
/// Between two looks while it does not.
const APART_MAX: Duration = Duration::from_millis(256);
/// What is no change.
const CALM: Bytes = Bytes::kib(64);

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    pub processes: usize,
    pub resident: Bytes,
    pub far: Bytes,
    /// Somebody has come or gone since the look before.
    pub others: bool,
    /// When to look again if nobody rings.
    pub next: Duration,
}

/// One who looks. It keeps its lists, so that a look allocates nothing new.
#[derive(Debug)]
pub struct Looker {
    job: Job,
    places: Vec<Place>,
    owners: Vec<u64>,
    held: Vec<Bytes>,
    /// The same in another order.
    sorted: Vec<Bytes>,
    next: Duration,
}

impl Looker {
    pub fn new(job: &Job) -> Looker {
        Looker {
            job: job.clone(),
            places: Vec::new(),
            owners: Vec::new(),
            held: Vec::new(),
            sorted: Vec::new(),
            next: APART_CHANGING,
        }
    }

    /// Those who were there at the last look.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    pub fn look(&mut self) -> Looked {
        let page = &self.job.page;
        let (limit, board) = (self.job.limit(), &page.board);
        // Before the places: who comes meanwhile is counted twice until the next look and not never.
        let attached = page.attached.load(Ordering::Acquire);
        self.places.clear();
        self.places.extend(Place::all(page));
        let owners = self.places.iter().map(|place| place.process().word());
        let others = !owners.clone().eq(self.owners.iter().copied());
        if others {
            self.owners = owners.collect();
        }
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let held = |place: &Place| Bytes(load(&place.counters().resident_bytes));
        self.held.clear();
        self.held.extend(self.places.iter().map(held));
        self.sorted.clone_from(&self.held);
        let division = Division::new(limit, FLOOR, &mut self.sorted);

        let begun = board.sequence.fetch_or(1, Ordering::AcqRel) | 1;
        let (mut resident, mut far, mut changed) = (0u64, 0u64, others);
        for (place, &own) in self.places.iter().zip(&self.held) {
            let own_far = load(&place.counters().far_bytes);
            let seat = place.seat();
            let before = seat.seen_resident.swap(own.0, Ordering::Relaxed);
            let before_far = seat.seen_far.swap(own_far, Ordering::Relaxed);
            changed |= before.abs_diff(own.0) > CALM.0 || before_far.abs_diff(own_far) > CALM.0;
            seat.share.store(division.share(own).0, Ordering::Relaxed);
            resident = resident.saturating_add(own.0);
            far = far.saturating_add(own_far);
        }
        let store = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
        store(&board.processes, self.places.len() as u64);
        store(&board.resident, resident);
        store(&board.far, far);
        store(&board.limit, limit.0);
        store(&board.attached, attached);
        board
            .sequence
            .store(begun.wrapping_add(1), Ordering::Release);
        note_peaks(page, resident, far);

        // A process alone has the whole limit and notes its own peaks.
        self.next = match changed && self.places.len() > 1 {
            true => APART_CHANGING,
            false => (self.next * 2).min(APART_MAX),
        };
        Looked {
            processes: self.places.len(),
            resident: Bytes(resident),
            far: Bytes(far),
            others,
            next: self.next,
        }
    }

    /// Waits until a look is due: the time is over or somebody rang. `rung` is what
    /// [`muninn_sys::bell::Bell::rung`] said before the look.
    pub fn wait(&self, rung: u32) {
        std::thread::sleep(APART_MIN);
        self.job.bell().wait(rung, self.next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::{Config, PLACES_MAX, PLACES_READY};
    use muninn_sys::proc::ProcessId;

    struct Temporary(Job);

    impl Drop for Temporary {
        fn drop(&mut self) {
            self.0.remove();
        }
    }

    /// A job with so many processes, none of which is alive. Their numbers are beyond what Linux has.
    fn job(limit: Bytes, processes: u32) -> (Temporary, Vec<Place>) {
        let job = Job::create(&Config::default(), limit).unwrap();
        let places = (0..processes).map(|n| come(&job, n)).collect();
        (Temporary(job), places)
    }

    fn come(job: &Job, n: u32) -> Place {
        let word = (u64::from(n) + (1 << 21)) << 41 | 7;
        Place::take(&job.page, ProcessId::from_word(word).unwrap()).expect("a place is free")
    }

    fn hold(place: &Place, bytes: Bytes) {
        let counters = place.counters();
        counters.resident_bytes.store(bytes.0, Ordering::Relaxed);
    }

    #[test]
    fn each_learns_its_share_from_one_look() {
        let (job, places) = job(Bytes::mib(160), 1);
        let first = &places[0];
        assert_eq!(first.share(), Bytes::mib(160), "alone, and not looked at");
        hold(first, Bytes::mib(150));
        let mut looker = Looker::new(&job.0);
        looker.look();
        let second = come(&job.0, 1);
        hold(&second, Bytes::mib(3));
        assert_eq!(second.share(), Bytes::mib(5), "half of what is free");
        hold(&second, Bytes::mib(10));
        let looked = looker.look();
        assert_eq!((looked.processes, looked.others), (2, true));
        assert_eq!(looked.resident, Bytes::mib(160));
        assert_eq!(first.share() + second.share(), Bytes::mib(160));
        assert_eq!(second.share(), Bytes::mib(15));
        // What it was not given is not its own, however much it grows.
        hold(&second, Bytes::mib(40));
        assert_eq!(second.share(), Bytes::mib(15));
        job.0.set_limit(Bytes::mib(80));
        assert_eq!(
            first.share(),
            Bytes(145 << 19),
            "half, before anybody looks"
        );
        first.release();
        let looked = looker.look();
        assert_eq!((looked.processes, looked.others), (1, true));
        assert_eq!(second.share(), Bytes::mib(80));
    }

    #[test]
    fn peaks_are_noted_by_each_without_looking_at_the_others() {
        let (job, places) = job(Bytes::mib(100), 2);
        let mut looker = Looker::new(&job.0);
        hold(&places[0], Bytes::mib(30));
        hold(&places[1], Bytes::mib(20));
        looker.look();
        assert_eq!(job.0.peaks().local, Bytes::mib(50));
        hold(&places[0], Bytes::mib(60));
        places[0].note_footprint();
        assert_eq!(job.0.peaks().local, Bytes::mib(80));
        // While the launcher writes, nothing can be said.
        job.0.page.board.sequence.fetch_add(1, Ordering::Relaxed);
        hold(&places[0], Bytes::mib(90));
        places[0].note_footprint();
        assert_eq!(job.0.peaks().local, Bytes::mib(80));
        looker.look();
        assert_eq!(job.0.peaks().local, Bytes::mib(110));
    }

    #[test]
    fn the_launcher_is_called_for_changes_and_left_alone_without() {
        let (job, places) = job(Bytes::mib(100), 2);
        let mut looker = Looker::new(&job.0);
        hold(&places[0], Bytes::mib(30));
        let mut next = looker.look().next;
        assert_eq!(next, APART_CHANGING);
        for _ in 0..10 {
            next = looker.look().next;
        }
        assert_eq!(next, APART_MAX);
        let rung = job.0.bell().rung();
        places[0].note_footprint();
        assert_eq!(job.0.bell().rung(), rung, "nothing has changed");
        hold(&places[0], Bytes::mib(34));
        places[0].note_footprint();
        assert_ne!(job.0.bell().rung(), rung);
        looker.wait(rung);
        assert_eq!(looker.look().next, APART_CHANGING);
    }

    #[test]
    fn thousands_of_processes_have_a_place_and_only_those_are_looked_at() {
        let (job, mut places) = job(Bytes::gib(1), 3 * PLACES_READY as u32);
        assert_eq!(crate::place::used(&job.0.page), places.len());
        for place in &places {
            hold(place, Bytes::mib(1));
        }
        let mut looker = Looker::new(&job.0);
        assert_eq!(looker.look().resident, Bytes::mib(places.len() as u64));
        let gone = places.remove(70);
        gone.release();
        assert_eq!(looker.look().processes, places.len());
        let again = come(&job.0, PLACES_MAX as u32);
        assert_eq!(again.index(), gone.index(), "the first that is free");
        assert_eq!(crate::place::used(&job.0.page), places.len() + 1);
        let taken = places.len() as u32 + 1;
        places.extend((taken..PLACES_MAX as u32).map(|n| come(&job.0, n)));
        looker.look();
        let given = |place: &Place| place.seat().share.load(Ordering::Relaxed);
        let sum: u64 = places.iter().map(given).sum();
        assert!(sum <= Bytes::gib(1).0);
        let file = std::fs::metadata(job.0.path()).unwrap();
        assert_eq!(file.len(), size_of::<Layout>() as u64);
    }
}
