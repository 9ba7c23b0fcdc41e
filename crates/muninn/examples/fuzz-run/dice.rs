//! Random choices that follow from a seed, and the sum of everything that was read.

/// A finalizer of good quality: neighbours have nothing in common.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The n-th value that follows from a number.
pub fn nth(of: u64, n: u64) -> u64 {
    mix(of.wrapping_add(n.wrapping_mul(STEP)))
}

#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(mix(seed ^ 0x6D75_6E69_6E6E))
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(bound)) >> 64) as u64
    }

    /// `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Everything that an actor read, in the order in which it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Digest {
    pub fn fold(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value).wrapping_add(STEP);
    }
}
