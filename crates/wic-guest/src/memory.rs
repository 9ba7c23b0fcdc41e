//! The service's memory as a module sees it: every access is a call of the host.

use crate::error::WicError;
use crate::host;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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
    KnownLayout,
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

/// A service's memory, as a function sees it: as `Memory` of `muninn-wic`, as far as functions use it.
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
    /// A module's instructions are counted by its host.
    fn tick(&self) -> Result<(), WicError> {
        Ok(())
    }
    /// Lets others run: what the function waits for is not there yet.
    fn pause(&self) -> impl Future<Output = Result<(), WicError>>;
}

/// The memory of the call that runs.
#[derive(Clone, Copy, Debug)]
pub struct Guest;

impl Memory for Guest {
    fn base(&self) -> Addr {
        Addr(host::base() as u64)
    }
    fn end(&self) -> Addr {
        Addr(host::end() as u64)
    }
    async fn read_into(&self, at: Addr, into: &mut [u8]) -> Result<(), WicError> {
        WicError::check(host::read(at.0, into))
    }
    async fn write_from(&self, at: Addr, from: &[u8]) -> Result<(), WicError> {
        WicError::check(host::write(at.0, from))
    }
    async fn compare_swap(&self, at: Addr, expect: u64, new: u64) -> Result<u64, WicError> {
        let mut found = 0;
        WicError::check(host::cas(at.0, expect, new, &mut found))?;
        Ok(found)
    }
    async fn fetch_add(&self, at: Addr, add: u64) -> Result<u64, WicError> {
        let mut found = 0;
        WicError::check(host::fetch_add(at.0, add, &mut found))?;
        Ok(found)
    }
    fn locks(&self) -> u32 {
        host::locks() as u32
    }
    async fn pause(&self) -> Result<(), WicError> {
        Once(false).await;
        Ok(())
    }
}

/// Pending once: whoever joins several futures goes on with another one.
struct Once(bool);

impl Future for Once {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match core::mem::replace(&mut self.0, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}
