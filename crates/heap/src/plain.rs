//! Values without references: how they lie in the heap, and how they are read back.
//!
//! Several mutators may use a field at once, servers keep its bytes, and a page that is lost reads as
//! zeros. So a value goes in and out part by part, each part in one piece with one atomic access, and
//! what is read is made into a value only if it is one. Zeros are a value of every plain type: enums
//! are kept as the number of their variant, counted from 0.

use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicU8, AtomicU16, AtomicU32,
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// A value without references that may lie in the heap. Derive it for your own types.
///
/// Parts of two values may be mixed where mutators race; a type whose fields must fit together should
/// be an object of its own.
///
/// # Safety
///
/// `load` and `store` touch nothing outside of `size_of::<Self>()` bytes, all of it through
/// primitives' own; `load` makes a value of zeros and of whatever `store` left there, also when parts
/// of two values are mixed; the type has no references and is aligned to 8 or less.
pub unsafe trait Plain: Copy + 'static {
    /// The value at an address; none if the bytes there are no value of the type.
    ///
    /// # Safety
    ///
    /// The address is aligned for the type, and so many bytes behind it are the heap's, or zeros.
    #[doc(hidden)]
    unsafe fn load(at: *const u8) -> Option<Self>;
    /// # Safety
    ///
    /// As for `load`; and it can be written there.
    #[doc(hidden)]
    unsafe fn store(self, at: *mut u8);
}

macro_rules! plain {
    ($($type:ty, $atomic:ty, |$from:ident| $value:expr, |$to:ident| $bits:expr;)*) => { $(
        // SAFETY: a primitive, read and written in one piece by an atomic of its size.
        unsafe impl Plain for $type {
            #[inline(always)]
            unsafe fn load(at: *const u8) -> Option<$type> {
                // SAFETY: aligned and inside, as the caller vouches for.
                let $from = unsafe { (*at.cast::<$atomic>()).load(Relaxed) };
                $value
            }
            #[inline(always)]
            unsafe fn store(self, at: *mut u8) {
                let $to = self;
                // SAFETY: as above.
                unsafe { (*at.cast::<$atomic>()).store($bits, Relaxed) };
            }
        }
    )* };
}
plain! {
    u8, AtomicU8, |v| Some(v), |v| v;
    u16, AtomicU16, |v| Some(v), |v| v;
    u32, AtomicU32, |v| Some(v), |v| v;
    u64, AtomicU64, |v| Some(v), |v| v;
    usize, AtomicUsize, |v| Some(v), |v| v;
    i8, AtomicI8, |v| Some(v), |v| v;
    i16, AtomicI16, |v| Some(v), |v| v;
    i32, AtomicI32, |v| Some(v), |v| v;
    i64, AtomicI64, |v| Some(v), |v| v;
    isize, AtomicIsize, |v| Some(v), |v| v;
    f32, AtomicU32, |v| Some(f32::from_bits(v)), |v| v.to_bits();
    f64, AtomicU64, |v| Some(f64::from_bits(v)), |v| v.to_bits();
    bool, AtomicU8, |v| (v < 2).then_some(v == 1), |v| u8::from(v);
    char, AtomicU32, |v| char::from_u32(v), |v| u32::from(v);
}

/// A number, which can be compared and changed in one piece.
///
/// # Safety
///
/// As for [`Plain`]; a load and a store of it are one access each.
pub unsafe trait Whole: Plain {
    /// Stores `new` if `current` is there; what is there, if that is something else.
    ///
    /// # Safety
    ///
    /// As for `Plain::store`.
    #[doc(hidden)]
    unsafe fn swap(at: *mut u8, current: Self, new: Self) -> Result<(), Self>;
}

macro_rules! whole {
    ($($type:ty, $atomic:ty;)*) => { $(
        // SAFETY: one atomic access of the same size as the others of the type.
        unsafe impl Whole for $type {
            #[inline]
            unsafe fn swap(at: *mut u8, current: $type, new: $type) -> Result<(), $type> {
                // SAFETY: aligned and inside, as the caller vouches for.
                let cell = unsafe { &*at.cast::<$atomic>() };
                cell.compare_exchange(current, new, AcqRel, Acquire).map(|_| ())
            }
        }
    )* };
}
whole! {
    u8, AtomicU8; u16, AtomicU16; u32, AtomicU32; u64, AtomicU64; usize, AtomicUsize;
    i8, AtomicI8; i16, AtomicI16; i32, AtomicI32; i64, AtomicI64; isize, AtomicIsize;
}

// SAFETY: an array of plain values is one.
unsafe impl<P: Plain, const N: usize> Plain for [P; N] {
    #[inline]
    unsafe fn load(at: *const u8) -> Option<[P; N]> {
        // The first is there if any is; the others replace copies of it.
        // SAFETY: elements lie one behind the other, as many as the caller vouches for.
        let element = |index: usize| unsafe { P::load(at.add(index * size_of::<P>())) };
        if N == 0 {
            return Some(std::array::from_fn(|_| unreachable!("there is no element")));
        }
        let mut values = [element(0)?; N];
        for (index, value) in values.iter_mut().enumerate().skip(1) {
            *value = element(index)?;
        }
        Some(values)
    }
    #[inline]
    unsafe fn store(self, at: *mut u8) {
        for (index, value) in self.into_iter().enumerate() {
            // SAFETY: as in `load`.
            unsafe { value.store(at.add(index * size_of::<P>())) };
        }
    }
}

/// Bytes of a plain type at most, and one more.
const BYTES_MAX: usize = 1 << 16;
static ZEROS: [u64; BYTES_MAX / 8] = [0; BYTES_MAX / 8];

/// The value of which all bytes are zeros.
pub(crate) fn zero<P: Plain>() -> P {
    let _ = size_of_plain::<P>();
    // SAFETY: aligned to 8, and longer than any plain type.
    let value = unsafe { P::load(ZEROS.as_ptr().cast()) };
    value.expect("zeros are a value of every plain type")
}

/// The alignment of a plain type, which must be at most 8.
pub const fn align_of_plain<P: Plain>() -> usize {
    assert!(align_of::<P>() <= 8, "a plain type is aligned to 8 or less");
    align_of::<P>()
}

/// The size of a plain type, which must be less than 64 KiB.
pub const fn size_of_plain<P: Plain>() -> usize {
    assert!(
        size_of::<P>() < BYTES_MAX,
        "a plain type of 64 KiB or more is too large; use an array object"
    );
    size_of::<P>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, muninn_heap_macros::Plain)]
    #[repr(u16)]
    enum Odd {
        A = 77,
        #[allow(dead_code)]
        B {} = 2,
        C() = 900,
    }
    #[derive(Clone, Copy, Debug, PartialEq, muninn_heap_macros::Plain)]
    struct Holes<T> {
        odd: Odd,
        letter: char,
        pair: (),
        wide: T,
    }
    // SAFETY: nothing is read or written.
    unsafe impl Plain for () {
        unsafe fn load(_: *const u8) -> Option<()> {
            Some(())
        }
        unsafe fn store(self, _: *mut u8) {}
    }

    #[test]
    fn zeros_are_a_value_and_values_come_back() {
        assert_eq!(zero::<Odd>(), Odd::A);
        assert_eq!(zero::<[char; 3]>(), ['\0'; 3]);
        let value = Holes {
            odd: Odd::C(),
            letter: 'ß',
            pair: (),
            wide: [true, false, true],
        };
        let mut bytes = [0u64; 4];
        let at = bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: aligned to 8 and long enough.
        let back = unsafe {
            value.store(at);
            Holes::<[bool; 3]>::load(at)
        };
        assert_eq!(back, Some(value));
        assert_eq!(zero::<Holes<u8>>().letter, '\0');
    }

    #[test]
    fn bytes_that_are_no_value_are_none() {
        let mut bytes = [0xFFu64; 2];
        bytes[1] = 0xD800;
        let at = bytes.as_ptr().cast::<u8>();
        // SAFETY: aligned and long enough.
        unsafe {
            assert_eq!(bool::load(at), None);
            assert_eq!(char::load(at.add(8)), None);
            assert_eq!(Odd::load(at), None);
            assert_eq!(<[bool; 2]>::load(at), None);
            assert_eq!(u8::load(at), Some(0xFF));
        }
    }
}
