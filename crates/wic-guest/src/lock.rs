//! A lock that works at every place. The host waits for it, and frees it if the module ends without.

use crate::error::WicError;
use crate::host;
use crate::memory::Memory;
use core::marker::PhantomData;

/// One of a service's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WicLock(u32);

impl WicLock {
    pub const fn new(index: u32) -> WicLock {
        WicLock(index)
    }

    /// Waits until nobody else holds it.
    pub async fn lock<'m, M: Memory>(&self, _: &'m M) -> Result<WicGuard<'m, M>, WicError> {
        let mut orphaned = 0;
        WicError::check(host::lock(self.0, &mut orphaned))?;
        Ok(WicGuard {
            index: self.0,
            orphaned: orphaned != 0,
            mem: PhantomData,
        })
    }
}

/// A lock that is held. Give it back with [`WicGuard::unlock`]; if it is only dropped, it stays taken until
/// the call ends, and the next holder is told that something went wrong.
#[derive(Debug)]
#[must_use = "a lock that is dropped and not unlocked counts as orphaned"]
pub struct WicGuard<'m, M: Memory> {
    index: u32,
    orphaned: bool,
    mem: PhantomData<&'m M>,
}

impl<M: Memory> WicGuard<'_, M> {
    /// Whether the last holder did not give it back itself.
    pub fn is_orphaned(&self) -> bool {
        self.orphaned
    }
    pub async fn unlock(self) -> Result<(), WicError> {
        WicError::check(host::unlock(self.index as i32))
    }
}
