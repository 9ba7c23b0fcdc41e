//! Mutators, and how they are stopped.
//!
//! A mutator is *outside* (it holds no references), *inside* (it runs), or *parked* at a safepoint.
//! The collector raises [`STOP`] and waits until nobody is inside; a mutator
//! that wants in waits until the alarm is lowered. Both write their own side before they read the
//! other's, so one of them always sees the other. For a handshake (Mako) the collector needs no
//! stop: it waits for each mutator's own answer, and *holds* the parked ones while it answers for
//! them.

use crate::alarm::{Alarm, STOP};
use crate::slots::Slots;
use crate::sync::{self, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard};
use muninn_types::Nanos;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub const OUTSIDE: u32 = 0;
pub const INSIDE: u32 = 1;
pub const PARKED: u32 = 2;
const HELD: u32 = 3;

/// Where a mutator allocates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bump {
    pub region: u32,
    /// Next object, from the start of the linear space; 0: none.
    pub at: u64,
    pub end: u64,
    /// Up to here pages are mapped.
    pub ready: u64,
}

/// Free entries of a tablet, and what else a mutator keeps for its plan.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Mako: free entries of the tablet of the region allocated in.
    pub entries: Vec<u32>,
    pub tablet: u32,
    /// Semeru: places at which references to other regions were stored, and the references.
    pub cross: Vec<(u64, u64)>,
    /// Semeru: what of that was recorded of late.
    pub seen: Seen,
    /// Mako: references that were overwritten while agents trace.
    pub satb: Vec<u64>,
    /// Mako: when the last region was taken.
    pub refilled: Nanos,
}

/// References from a region that were recorded since the last pause: some, of late. Elements that are
/// shifted in an array are stored again and again.
#[derive(Debug)]
pub struct Seen(Box<[(u64, u32); SEEN]>);

/// A power of two.
const SEEN: usize = 256;

impl Default for Seen {
    fn default() -> Seen {
        Seen(Box::new([(0, 0); SEEN]))
    }
}

impl Seen {
    /// Whether this reference of the region is known; it is from now on. Null never is one.
    #[inline(always)]
    pub fn knows(&mut self, region: u32, word: u64) -> bool {
        // Objects lie at multiples of 16; neighbours are found at different places.
        let place = &mut self.0[(word >> 4) as usize % SEEN];
        let now = (word, region);
        std::mem::replace(place, now) == now
    }
    pub fn clear(&mut self) {
        self.0.fill((0, 0));
    }
}

/// A mutator as the collector sees it.
#[derive(Debug)]
pub struct Context {
    pub state: AtomicU32,
    pub slots: Slots,
    pub bump: Cell<Bump>,
    pub buffers: UnsafeCell<Buffers>,
    /// The last handshake that was answered.
    pub answered: AtomicU64,
    pub allocated_bytes: Cell<u64>,
}

// SAFETY: the cells are used by the mutator's own thread while it is inside, and by the collector
// while it is not (stopped, parked and held, or outside); `state` says who is, with SeqCst.
unsafe impl Sync for Context {}
// SAFETY: a mutator may be moved to another thread while it is outside; slots hold no thread's own.
unsafe impl Send for Context {}

impl Context {
    /// The plan's buffers.
    ///
    /// # Safety
    ///
    /// The caller is the mutator, or the mutator is stopped; and nobody else has them.
    #[allow(clippy::mut_from_ref)] // as an `UnsafeCell` has it
    pub unsafe fn buffers(&self) -> &mut Buffers {
        // SAFETY: exclusive, as the caller vouches for.
        unsafe { &mut *self.buffers.get() }
    }
}

#[derive(Debug)]
pub struct World {
    pub alarm: Arc<Alarm>,
    mutators: Mutex<Vec<Arc<Context>>>,
    /// Rung when a mutator stops, answers, or may go on.
    changed: Condvar,
    bell: Mutex<()>,
}

/// The longest nap between two looks; a bell that was missed costs no more.
const NAP: Duration = Duration::from_millis(1);

impl World {
    pub fn new(alarm: Arc<Alarm>) -> World {
        World {
            alarm,
            mutators: Mutex::default(),
            changed: Condvar::new(),
            bell: Mutex::default(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Vec<Arc<Context>>> {
        self.mutators.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self) -> Arc<Context> {
        let context = Arc::new(Context {
            state: AtomicU32::new(OUTSIDE),
            slots: Slots::default(),
            bump: Cell::default(),
            buffers: UnsafeCell::default(),
            answered: AtomicU64::new(0),
            allocated_bytes: Cell::new(0),
        });
        self.lock().push(Arc::clone(&context));
        context
    }

    pub fn remove(&self, context: &Arc<Context>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, context));
    }

    pub fn ring(&self) {
        let _bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    /// Waits for a bell, or a moment.
    pub fn nap(&self) {
        let bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
        sync::nap(&self.changed, bell, NAP);
    }

    /// The mutator goes inside, waiting while the world is stopped.
    pub fn enter(&self, context: &Context, from: u32) {
        loop {
            while self.alarm.has(STOP) {
                self.nap();
            }
            let now = context.state.compare_exchange(from, INSIDE, SeqCst, SeqCst);
            if now.is_ok() {
                if !self.alarm.has(STOP) {
                    return;
                }
                context.state.store(from, SeqCst);
                self.ring();
            } else {
                // Held by the collector for a moment.
                sync::yield_now();
            }
        }
    }

    /// The mutator stops running: it leaves, or parks with its references in their slots.
    pub fn leave(&self, context: &Context, to: u32) {
        context.state.store(to, SeqCst);
        if self.alarm.is_set() {
            self.ring();
        }
    }

    /// Stops all mutators. The calling one, if it is one, must have parked.
    pub fn stop(&self) -> Stopped<'_> {
        self.alarm.raise(STOP);
        let mutators = self.lock();
        let mut spins = 0u32;
        while mutators.iter().any(|m| m.state.load(SeqCst) == INSIDE) {
            spins += 1;
            if spins < 200 {
                sync::spin();
            } else {
                self.nap();
            }
        }
        Stopped {
            world: self,
            mutators,
        }
    }

    /// Runs `with` for a parked mutator while it is kept from going on; false if it is not parked.
    pub fn hold(&self, context: &Context, with: impl FnOnce()) -> bool {
        let held = context.state.compare_exchange(PARKED, HELD, SeqCst, SeqCst);
        if held.is_err() {
            return false;
        }
        with();
        context.state.store(PARKED, SeqCst);
        true
    }
}

/// No mutator runs as long as this lives, and none comes or goes.
#[derive(Debug)]
pub struct Stopped<'a> {
    world: &'a World,
    pub mutators: MutexGuard<'a, Vec<Arc<Context>>>,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.world.alarm.lower(STOP);
        self.world.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_known_from_the_region_that_stored_it_until_cleared() {
        let mut seen = Seen::default();
        assert!(!seen.knows(1, 64));
        assert!(seen.knows(1, 64));
        assert!(!seen.knows(2, 64));
        // One that falls on the same place takes it.
        assert!(!seen.knows(2, 64 + 16 * SEEN as u64));
        assert!(!seen.knows(2, 64));
        seen.clear();
        assert!(!seen.knows(2, 64));
    }
}
