//! What a process waits for, for people who wonder why nothing happens.
//!
//! One word in its place: the reason, and since when. A thread of the runtime sets it before a wait
//! that may be long and takes it back afterwards ([`Place::waits_for`]). Invariant: one word, so reason
//! and time belong together. Known limit: of several waits at a time the last one is shown, and none
//! any more when it ends.

use crate::Place;
use muninn_sys::clock;
use muninn_types::Nanos;
use std::sync::atomic::Ordering;

/// The reason is in the bits above; the time, in nanoseconds since the machine started, has room for
/// two years.
const REASON_SHIFT: u32 = 56;

/// A reason to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Waiting {
    /// A server does not answer.
    Server = 1,
    /// A grant of memory was asked for.
    Grant = 2,
    /// All servers are full: until somebody gives memory back.
    PoolFull = 3,
    /// A child or a parent of fork is to do its part.
    Fork = 4,
    /// There is no room in the address space, or there are too many mappings.
    AddressSpace = 5,
    /// No page may be near before another has left.
    FreePage = 6,
    /// Threads of the program are to stand still.
    Standstill = 7,
}

impl Waiting {
    pub const ALL: [Waiting; 7] = [
        Waiting::Server,
        Waiting::Grant,
        Waiting::PoolFull,
        Waiting::Fork,
        Waiting::AddressSpace,
        Waiting::FreePage,
        Waiting::Standstill,
    ];

    fn from_code(code: u64) -> Option<Waiting> {
        Waiting::ALL.into_iter().find(|one| *one as u64 == code)
    }

    /// As it is written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Waiting::Server => "server",
            Waiting::Grant => "grant",
            Waiting::PoolFull => "pool-full",
            Waiting::Fork => "fork",
            Waiting::AddressSpace => "address-space",
            Waiting::FreePage => "free-page",
            Waiting::Standstill => "standstill",
        }
    }

    /// After "waits for".
    pub fn describe(self) -> &'static str {
        match self {
            Waiting::Server => "a server that does not answer",
            Waiting::Grant => "a grant of memory",
            Waiting::PoolFull => "memory: all servers are full",
            Waiting::Fork => "the other side of a fork",
            Waiting::AddressSpace => "room in its address space",
            Waiting::FreePage => "a page to leave, so that another can come",
            Waiting::Standstill => "its threads to stand still",
        }
    }
}

/// Shows a wait until it is dropped.
#[derive(Debug)]
pub struct Waits<'a> {
    place: &'a Place,
    word: u64,
}

impl Place {
    /// Shows that this process waits, until what is returned is dropped. Neither allocates nor locks.
    pub fn waits_for(&self, reason: Waiting) -> Waits<'_> {
        self.waits_since(reason, clock::coarse())
    }

    /// The same for a wait that began earlier.
    pub fn waits_since(&self, reason: Waiting, since: Nanos) -> Waits<'_> {
        let since = since.0 & ((1 << REASON_SHIFT) - 1);
        let word = (reason as u64) << REASON_SHIFT | since;
        self.seat().waiting.store(word, Ordering::Relaxed);
        Waits { place: self, word }
    }

    /// What it waits for, and since when.
    pub fn waiting(&self) -> Option<(Waiting, Nanos)> {
        let word = self.seat().waiting.load(Ordering::Relaxed);
        let since = Nanos(word & ((1 << REASON_SHIFT) - 1));
        Some((Waiting::from_code(word >> REASON_SHIFT)?, since))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // Unless another wait is shown by now.
        let _ = self.place.seat().waiting.compare_exchange(
            self.word,
            0,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Job};
    use muninn_types::Bytes;

    #[test]
    fn a_wait_is_shown_as_long_as_it_lasts() {
        let job = Job::create(&Config::default(), Bytes::mib(64)).unwrap();
        let place = job.take_place(std::process::id()).unwrap();
        assert_eq!(place.waiting(), None);
        let before = clock::coarse();
        {
            let _grant = place.waits_for(Waiting::Grant);
            let (reason, since) = place.waiting().unwrap();
            assert_eq!(reason, Waiting::Grant);
            assert!(before <= since && since <= clock::now());
            let _full = place.waits_for(Waiting::PoolFull);
            assert_eq!(place.waiting().unwrap().0, Waiting::PoolFull);
        }
        assert_eq!(place.waiting(), None);
        for reason in Waiting::ALL {
            assert_eq!(Waiting::from_code(reason as u64), Some(reason));
        }
        assert_eq!(Waiting::from_code(0).or(Waiting::from_code(200)), None);
        place.release();
        job.remove();
    }
}
