//! Randomness from the kernel, for secrets and for seeds.
//!
//! Decisions never use it directly: they are seeded, so that they can be played again. The fake,
//! [`SeededEntropy`], gives the same bytes for the same seed. Known limit: none worth naming; the
//! kernel blocks until its generator is ready, which is long before we run.

use std::sync::{Mutex, PoisonError};

use muninn_types::SplitMix64;
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

/// A source of bytes nobody can guess.
pub trait Entropy {
    fn fill(&self, bytes: &mut [u8]);

    fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// The kernel's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        fill(bytes);
    }
}

/// Fills with random bytes. `getrandom` cannot fail on any kernel we run on, so neither can this.
pub fn fill(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
}

/// `N` random bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

/// A random number.
pub fn u64() -> u64 {
    u64::from_le_bytes(bytes())
}

/// The same bytes for the same seed. Never for secrets.
#[derive(Debug)]
pub struct SeededEntropy {
    generator: Mutex<SplitMix64>,
}

impl SeededEntropy {
    pub fn new(seed: u64) -> SeededEntropy {
        SeededEntropy {
            generator: Mutex::new(SplitMix64::new(seed)),
        }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut generator = self
            .generator
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        generator.fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_different_bytes_each_time() {
        assert_ne!(bytes::<32>(), bytes::<32>());
        assert_ne!(OsEntropy.u64(), u64());
        let mut long = vec![0; 1 << 16];
        fill(&mut long);
        assert!(long.iter().any(|&b| b != 0));
    }

    #[test]
    fn a_seed_gives_the_same_bytes() {
        assert_eq!(SeededEntropy::new(3).u64(), SeededEntropy::new(3).u64());
        assert_ne!(SeededEntropy::new(3).u64(), SeededEntropy::new(4).u64());
    }
}
