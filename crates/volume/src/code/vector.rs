//! `out += factor × source` over whole pages, with what the processor has.
//!
//! A product is two look-ups, one for each half of a byte; a shuffle does 16 or 32 of them at once. What
//! the processor has is found at run time. Invariant: all ways give the same bytes.

use super::gf::mul;

/// A way to compute that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    Portable,
}

/// Products of a factor with all values of the lower and of the upper half of a byte.
struct Halves {
    low: [u8; 16],
    high: [u8; 16],
}

impl Halves {
    fn of(factor: u8) -> Halves {
        let mut halves = Halves {
            low: [0; 16],
            high: [0; 16],
        };
        for value in 0..16u8 {
            halves.low[usize::from(value)] = mul(factor, value);
            halves.high[usize::from(value)] = mul(factor, value << 4);
        }
        halves
    }
    fn product(&self, byte: u8) -> u8 {
        self.low[usize::from(byte & 15)] ^ self.high[usize::from(byte >> 4)]
    }
}

impl Vector {
    /// The fastest that this processor has.
    pub fn detect() -> Vector {
        *Vector::all().first().expect("there is always one")
    }

    /// All that this processor has, the fastest first.
    pub fn all() -> Vec<Vector> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx2") {
                all.push(Vector(Kind::Avx2));
            }
            if std::arch::is_x86_feature_detected!("ssse3") {
                all.push(Vector(Kind::Ssse3));
            }
        }
        all.push(Vector(Kind::Portable));
        all
    }

    /// Adds a source times a factor. Both must be of one length.
    pub fn mul_add(self, out: &mut [u8], source: &[u8], factor: u8) {
        assert_eq!(out.len(), source.len());
        match factor {
            0 => {}
            1 => self.add(out, source),
            _ => self.mul_add_halves(out, source, &Halves::of(factor)),
        }
    }

    fn add(self, out: &mut [u8], source: &[u8]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Vector` is made only where the processor has it.
            Kind::Avx2 => unsafe { x86::add_avx2(out, source) },
            _ => add(out, source),
        }
    }

    fn mul_add_halves(self, out: &mut [u8], source: &[u8], halves: &Halves) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Vector` is made only where the processor has it.
            Kind::Avx2 => unsafe { x86::mul_add_avx2(out, source, halves) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Ssse3 => unsafe { x86::mul_add_ssse3(out, source, halves) },
            Kind::Portable => mul_add(out, source, halves),
        }
    }
}

#[inline(always)]
fn add(out: &mut [u8], source: &[u8]) {
    let (out, out_rest) = out.as_chunks_mut::<32>();
    let (source, rest) = source.as_chunks::<32>();
    for (out, source) in out.iter_mut().zip(source) {
        for (sum, byte) in out.iter_mut().zip(source) {
            *sum ^= byte;
        }
    }
    for (sum, byte) in out_rest.iter_mut().zip(rest) {
        *sum ^= byte;
    }
}

fn mul_add(out: &mut [u8], source: &[u8], halves: &Halves) {
    for (sum, byte) in out.iter_mut().zip(source) {
        *sum ^= halves.product(*byte);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Halves, mul_add};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    pub(super) fn add_avx2(out: &mut [u8], source: &[u8]) {
        let (out, out_rest) = out.as_chunks_mut::<32>();
        let (source, rest) = source.as_chunks::<32>();
        for (out, source) in out.iter_mut().zip(source) {
            // SAFETY: 32 bytes each, of references; any alignment will do.
            unsafe {
                let sum = _mm256_loadu_si256(out.as_ptr().cast());
                let add = _mm256_loadu_si256(source.as_ptr().cast());
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_xor_si256(sum, add));
            }
        }
        for (sum, byte) in out_rest.iter_mut().zip(rest) {
            *sum ^= byte;
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn mul_add_avx2(out: &mut [u8], source: &[u8], halves: &Halves) {
        // SAFETY: 16 bytes each, of references; any alignment will do.
        let (low, high) = unsafe {
            (
                _mm_loadu_si128(halves.low.as_ptr().cast()),
                _mm_loadu_si128(halves.high.as_ptr().cast()),
            )
        };
        let (low, high) = (
            _mm256_broadcastsi128_si256(low),
            _mm256_broadcastsi128_si256(high),
        );
        let mask = _mm256_set1_epi8(15);
        let (out, out_rest) = out.as_chunks_mut::<32>();
        let (source, rest) = source.as_chunks::<32>();
        for (out, source) in out.iter_mut().zip(source) {
            // SAFETY: 32 bytes each, of references; any alignment will do.
            unsafe {
                let bytes = _mm256_loadu_si256(source.as_ptr().cast());
                let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
                let product = _mm256_xor_si256(
                    _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, mask)),
                    _mm256_shuffle_epi8(high, upper),
                );
                let sum = _mm256_loadu_si256(out.as_ptr().cast());
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_xor_si256(sum, product));
            }
        }
        mul_add(out_rest, rest, halves);
    }

    #[target_feature(enable = "ssse3")]
    pub(super) fn mul_add_ssse3(out: &mut [u8], source: &[u8], halves: &Halves) {
        // SAFETY: 16 bytes each, of references; any alignment will do.
        let (low, high) = unsafe {
            (
                _mm_loadu_si128(halves.low.as_ptr().cast()),
                _mm_loadu_si128(halves.high.as_ptr().cast()),
            )
        };
        let mask = _mm_set1_epi8(15);
        let (out, out_rest) = out.as_chunks_mut::<16>();
        let (source, rest) = source.as_chunks::<16>();
        for (out, source) in out.iter_mut().zip(source) {
            // SAFETY: 16 bytes each, of references; any alignment will do.
            unsafe {
                let bytes = _mm_loadu_si128(source.as_ptr().cast());
                let upper = _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask);
                let product = _mm_xor_si128(
                    _mm_shuffle_epi8(low, _mm_and_si128(bytes, mask)),
                    _mm_shuffle_epi8(high, upper),
                );
                let sum = _mm_loadu_si128(out.as_ptr().cast());
                _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_xor_si128(sum, product));
            }
        }
        mul_add(out_rest, rest, halves);
    }
}
