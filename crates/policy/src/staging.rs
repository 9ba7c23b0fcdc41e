//! How much of the memory that may be held is for pages on their way out.
//!
//! Such a page is had back for the price of a move, so with more of them fewer faults reach far memory;
//! but what they take the program does not have, and most that come back were in use all the time. One page
//! in 16 makes more faults in all than one in 32; with one in 64 more of them reach far memory
//! (`docs/SIMULATION.md`).
//!
//! A part is given back at once when room is needed: each call interrupts the CPUs that run the program, so
//! 32 at a time cost a fifth more for each page of a sequence.

/// Shares of the pages that may be held, and their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// One page in so many is on its way out while memory is short.
    pub one_in: u64,
    pub pages_min: u64,
    pub pages_max: u64,
}

/// The part of the staged pages that is given back at once, and its bounds.
const GIVE_BACK_SHARE: u64 = 4;
const GIVE_BACK_MIN: u64 = 32;
const GIVE_BACK_MAX: u64 = 128;

impl Default for Staging {
    fn default() -> Staging {
        Staging {
            one_in: 32,
            pages_min: 64,
            pages_max: 4096,
        }
    }
}

impl Staging {
    /// Pages that should be on their way out while memory is short.
    pub fn wanted(&self, allowed: u64) -> u64 {
        (allowed / self.one_in.max(1)).clamp(self.pages_min, self.pages_max)
    }

    /// Pages for which room is made at once when there is none for `wanted`.
    pub fn give_back(&self, allowed: u64, wanted: u64) -> u64 {
        let share = self.wanted(allowed) / GIVE_BACK_SHARE;
        wanted.max(share.clamp(GIVE_BACK_MIN, GIVE_BACK_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_bounds() {
        let staging = Staging::default();
        assert_eq!(staging.wanted(10), 64);
        assert_eq!(staging.wanted(16_000), 500);
        assert_eq!(staging.wanted(u64::MAX), 4_096);
        assert_eq!(staging.give_back(10, 1), 32);
        assert_eq!(staging.give_back(10, 64), 64);
        assert_eq!(staging.give_back(9_600, 1), 75);
        assert_eq!(staging.give_back(u64::MAX, 1), 128);
    }
}
