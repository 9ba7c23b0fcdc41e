//! A lock that works at every place: a word of the service's memory, taken by compare-and-swap.
//!
//! Held by at most one call anywhere. A call that ends without giving its lock back — because it
//! failed, ran out of time, or its client died — leaves it *orphaned*: free, and the next holder is
//! told ([`WicGuard::is_orphaned`]), so that it can finish or undo what was begun. Waiting never
//! blocks: a call that finds the lock taken lets others run. Known limit: no order among those that
//! wait.

use crate::error::WicError;
use crate::memory::Memory;
use muninn_proto::server::{LOCK_FREE, LOCK_ORPHANED};

/// One of a service's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WicLock(u32);

impl WicLock {
    pub const fn new(index: u32) -> WicLock {
        WicLock(index)
    }

    /// Waits until nobody else holds it.
    pub async fn lock<'m, M: Memory>(&self, mem: &'m M) -> Result<WicGuard<'m, M>, WicError> {
        let me = mem.holder();
        let mut expect = LOCK_FREE;
        // Waiting takes no steps from the budget: how long it lasts is up to others. The call's
        // deadline bounds it.
        loop {
            let found = mem.swap_lock(self.0, expect, me).await?;
            if found == expect {
                return Ok(WicGuard {
                    mem,
                    index: self.0,
                    orphaned: expect == LOCK_ORPHANED,
                    held: true,
                });
            }
            if found == LOCK_FREE || found == LOCK_ORPHANED {
                expect = found;
                continue;
            }
            mem.pause().await?;
        }
    }
}

/// A lock that is held. Give it back with [`WicGuard::unlock`]; if it is only dropped, the next holder
/// is told that something went wrong.
#[derive(Debug)]
#[must_use = "a lock that is dropped and not unlocked counts as orphaned"]
pub struct WicGuard<'m, M: Memory> {
    mem: &'m M,
    index: u32,
    orphaned: bool,
    held: bool,
}

impl<M: Memory> WicGuard<'_, M> {
    /// Whether the last holder did not give it back itself.
    pub fn is_orphaned(&self) -> bool {
        self.orphaned
    }

    /// Whoever calls this sees to it that the lock is given back.
    pub(crate) fn keep(mut self) {
        self.held = false;
    }

    pub async fn unlock(mut self) -> Result<(), WicError> {
        // If the call is ended while this is on its way the lock is freed once more, which does
        // nothing if it was free already: no other call ever has this one's holder.
        let me = self.mem.holder();
        self.mem.swap_lock(self.index, me, LOCK_FREE).await?;
        self.held = false;
        Ok(())
    }
}

impl<M: Memory> Drop for WicGuard<'_, M> {
    fn drop(&mut self) {
        if self.held {
            self.mem.orphan_lock(self.index);
        }
    }
}
