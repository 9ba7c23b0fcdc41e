//! Whether a machine that gives memory to others has enough for itself.
//!
//! Looked at from time to time: how much memory could be had without swapping, how much is left below
//! the limit of the server's cgroup, and for which share of the time everybody waited for memory (PSI).
//! Below the *reserve*, or when all wait near it, nothing more is granted; clients go elsewhere. It is granted
//! again when there is clearly more, so that a server at the edge does not change its mind all the time.
//! Programs that wait for a limit of their own, with memory enough on the machine, are no sign.
//!
//! Known limit: what was granted before may still be filled.

use muninn_types::Bytes;

/// All waited for memory for more than this share of the last ten seconds, in percent.
pub const STALL_MAX: f32 = 10.0;
/// That counts if less than so many reserves is left.
const STALL_RESERVES: u64 = 4;
/// Of the machine's memory, the usual reserve: 1/32, and at most this.
const RESERVE_PART: u64 = 32;
const RESERVE_MAX: Bytes = Bytes::mib(512);

/// What is seen of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    pub available: Bytes,
    /// Left below the limit of the cgroup, where there is one.
    pub below_limit: Option<Bytes>,
    /// In percent, over ten seconds; nothing where the kernel does not say.
    pub stalled: Option<f32>,
}

/// Why a server grants no more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Short {
    /// So much is left.
    Memory(Bytes),
    Stalled(f32),
}

/// A server's view of its machine.
#[derive(Clone, Copy, Debug)]
pub struct Donor {
    reserve: Bytes,
    short: bool,
}

impl Donor {
    /// `reserve` is left to the machine.
    pub fn new(reserve: Bytes) -> Donor {
        Donor {
            reserve,
            short: false,
        }
    }

    /// What is left to a machine when nobody says.
    pub fn usual_reserve(total: Bytes) -> Bytes {
        Bytes(total.0 / RESERVE_PART).min(RESERVE_MAX)
    }

    /// Whether nothing is to be granted from now on, and why.
    pub fn handle_look(&mut self, look: Look) -> Option<Short> {
        // A server that has stopped granting wants half as much again before it goes on.
        let (reserve, stall_max) = match self.short {
            true => (Bytes(self.reserve.0 / 2 * 3), STALL_MAX / 2.0),
            false => (self.reserve, STALL_MAX),
        };
        let left = look.below_limit.unwrap_or(look.available);
        let left = left.min(look.available);
        let near = left.0 < reserve.0.saturating_mul(STALL_RESERVES);
        let stalled = look.stalled.filter(|share| near && *share > stall_max);
        let short = match stalled {
            _ if left < reserve => Some(Short::Memory(left)),
            stalled => stalled.map(Short::Stalled),
        };
        self.short = short.is_some();
        short
    }
}

/// Of a stalled machine it is not known how much it lacks: so large a part of the reserve is asked for.
const STALLED_PART: u64 = 4;

impl Donor {
    /// How much of what clients hold they are to move elsewhere, so that there is enough again to grant more.
    pub fn asks_back(&self, short: Option<Short>, granted: Bytes) -> Bytes {
        let lacking = match short {
            None => 0,
            Some(Short::Memory(left)) => (self.reserve.0 / 2 * 3).saturating_sub(left.0),
            Some(Short::Stalled(_)) => self.reserve.0 / STALLED_PART,
        };
        Bytes(lacking).min(granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn look(available: u64) -> Look {
        Look {
            available: Bytes::mib(available),
            below_limit: None,
            stalled: Some(0.0),
        }
    }

    #[test]
    fn a_server_at_the_edge_does_not_change_its_mind_all_the_time() {
        let mut donor = Donor::new(Bytes::mib(100));
        assert_eq!(donor.handle_look(look(101)), None);
        let short = Some(Short::Memory(Bytes::mib(99)));
        assert_eq!(donor.handle_look(look(99)), short);
        assert!(donor.handle_look(look(110)).is_some(), "not yet");
        assert_eq!(donor.handle_look(look(150)), None);
        assert_eq!(donor.handle_look(look(110)), None);
    }

    #[test]
    fn what_is_lacking_is_asked_for() {
        let mut donor = Donor::new(Bytes::mib(100));
        let short = donor.handle_look(look(30));
        assert_eq!(donor.asks_back(short, Bytes::gib(1)), Bytes::mib(120));
        assert_eq!(donor.asks_back(short, Bytes::mib(7)), Bytes::mib(7));
        let stalled = Some(Short::Stalled(50.0));
        assert_eq!(donor.asks_back(stalled, Bytes::gib(1)), Bytes::mib(25));
        assert_eq!(donor.asks_back(None, Bytes::gib(1)), Bytes::ZERO);
    }

    #[test]
    fn limits_and_stalls_count_as_well() {
        let mut donor = Donor::new(Bytes::mib(100));
        let limited = Look {
            below_limit: Some(Bytes::mib(7)),
            ..look(1000)
        };
        let short = Some(Short::Memory(Bytes::mib(7)));
        assert_eq!(donor.handle_look(limited), short);
        let mut donor = Donor::new(Bytes::mib(100));
        let stalled = |share| Look {
            stalled: Some(share),
            ..look(300)
        };
        assert_eq!(donor.handle_look(stalled(9.0)), None);
        let short = Some(Short::Stalled(11.0));
        assert_eq!(donor.handle_look(stalled(11.0)), short);
        assert!(donor.handle_look(stalled(9.0)).is_some(), "not yet");
        assert_eq!(donor.handle_look(stalled(1.0)), None);
    }

    /// Programs in a cgroup over zram made a server refuse what it had twenty GiB of.
    #[test]
    fn who_waits_for_a_limit_of_his_own_is_no_sign() {
        let mut donor = Donor::new(Bytes::mib(100));
        let stalled = Look {
            stalled: Some(60.0),
            ..look(1000)
        };
        assert_eq!(donor.handle_look(stalled), None);
    }

    proptest! {
        #[test]
        fn there_is_always_a_way_back(looks in prop::collection::vec((0u64..500, 0f32..100.0), 0..50)) {
            let mut donor = Donor::new(Donor::usual_reserve(Bytes::gib(4)));
            for (available, share) in looks {
                let seen = Look { stalled: Some(share), ..look(available) };
                let short = donor.handle_look(seen);
                prop_assert!(short.is_some() || available >= 128);
            }
            prop_assert_eq!(donor.handle_look(look(10_000)), None);
        }
    }
}
