//! What a function sees of its service: memory by address, wherever the function runs.

use crate::error::WicError;
use std::fmt;
use std::future::Future;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An address in a service's memory.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    zerocopy::KnownLayout,
    serde::Serialize,
    serde::Deserialize,
)]
#[repr(transparent)]
pub struct Addr(pub u64);

impl Addr {
    /// This many bytes further on. Wraps, as an address out of bounds is found out when it is used.
    pub const fn plus(self, bytes: u64) -> Addr {
        Addr(self.0.wrapping_add(bytes))
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Plain data of fixed size that can lie in a service's memory.
pub trait Record: FromBytes + IntoBytes + Immutable {}
impl<T: FromBytes + IntoBytes + Immutable> Record for T {}

/// A service's memory, as a function sees it.
///
/// Reads and writes are not atomic: one that races with another sees, or leaves, a mix. A client that
/// dies in the middle of a write leaves a part of it. [`Memory::compare_swap`] and
/// [`Memory::fetch_add`] on an aligned word are all or nothing, at every place.
pub trait Memory {
    /// The first address that is the application's.
    fn base(&self) -> Addr;
    /// The first address behind it.
    fn end(&self) -> Addr;

    fn read_into(&self, at: Addr, into: &mut [u8]) -> impl Future<Output = Result<(), WicError>>;
    fn write_from(&self, at: Addr, from: &[u8]) -> impl Future<Output = Result<(), WicError>>;
    /// Replaces the word if it is `expect`; the word found.
    fn compare_swap(
        &self,
        at: Addr,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, WicError>>;
    /// Adds to the word; the word found.
    fn fetch_add(&self, at: Addr, add: u64) -> impl Future<Output = Result<u64, WicError>>;

    fn read<T: Record>(&self, at: Addr) -> impl Future<Output = Result<T, WicError>> {
        async move {
            let mut value = T::new_zeroed();
            self.read_into(at, value.as_mut_bytes()).await?;
            Ok(value)
        }
    }
    fn write<T: Record>(&self, at: Addr, value: &T) -> impl Future<Output = Result<(), WicError>> {
        self.write_from(at, value.as_bytes())
    }

    /// How many locks the service has.
    fn locks(&self) -> u32;

    /// Takes a step from the call's budget. `#[wic]` does so at each turn of a loop.
    fn tick(&self) -> Result<(), WicError>;
    /// Lets others run: what the function waits for is not there yet.
    fn pause(&self) -> impl Future<Output = Result<(), WicError>>;

    /// As which holder this call takes locks.
    fn holder(&self) -> u64;
    /// Replaces the word of a lock if it is `expect`; the word found.
    fn swap_lock(
        &self,
        index: u32,
        expect: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, WicError>>;
    /// Frees a lock that its holder cannot give back any more; the next one is told.
    fn orphan_lock(&self, index: u32);
}

/// Addresses of a service, and what may be accessed of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub base: u64,
    pub bytes: u64,
    pub locks: u32,
    pub shift: u8,
}

impl Layout {
    pub fn of(info: &muninn_wire::ServiceInfo) -> Layout {
        Layout {
            base: info.base,
            bytes: info.bytes,
            locks: info.locks,
            shift: info.shift,
        }
    }

    /// Refuses what is not wholly the application's.
    pub fn check(&self, at: Addr, len: usize) -> Result<(), WicError> {
        let end = at.0.checked_add(len as u64);
        if at.0 < self.base || end.is_none_or(|end| end > self.bytes) {
            return Err(WicError::Bounds(at.0));
        }
        Ok(())
    }
    pub fn check_word(&self, at: Addr) -> Result<(), WicError> {
        if !at.0.is_multiple_of(8) {
            return Err(WicError::Misaligned(at.0));
        }
        self.check(at, 8)
    }
    /// Where the word of a lock lies.
    pub fn lock_word(&self, index: u32) -> Result<Addr, WicError> {
        if index >= self.locks {
            return Err(WicError::NoLock(index));
        }
        Ok(Addr(u64::from(index) * 8))
    }
}
