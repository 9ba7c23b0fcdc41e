//! Which heap a thread is inside of.
//!
//! A thread that is inside keeps collections from stopping the world until its next safepoint. So it
//! must not wait for anything that may itself wait for a collection: another scope, a collection, a
//! lock that a collector holds. What can be an error is one ([`check`]); what has to wait all the same
//! does so [parked](Parked), as if at a safepoint.

use crate::error::HeapError;
use crate::heap::Inner;
use crate::world::{Context, PARKED};
use std::cell::Cell;

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Outside,
    /// In a scope. Both live as long as the scope.
    Inside(*const Inner, *const Context),
    /// It tells an observer about a phase, with locks of the heap held.
    Observing,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Outside) };
}

/// An error unless the thread is outside of all heaps.
pub(crate) fn check() -> Result<(), HeapError> {
    match PLACE.get() {
        Place::Outside => Ok(()),
        _ => Err(HeapError::Inside),
    }
}

/// An error for an observer: it must not use the heap.
pub(crate) fn check_not_observing() -> Result<(), HeapError> {
    match PLACE.get() {
        Place::Observing => Err(HeapError::Inside),
        _ => Ok(()),
    }
}

/// As long as this lives the thread is somewhere else than before.
#[derive(Debug)]
pub(crate) struct Moved(Place);

impl Drop for Moved {
    fn drop(&mut self) {
        PLACE.set(self.0);
    }
}

/// The thread goes into a scope. The caller keeps heap and context for as long as the result.
pub(crate) fn enter(inner: &Inner, context: &Context) -> Result<Moved, HeapError> {
    check()?;
    Ok(Moved(PLACE.replace(Place::Inside(inner, context))))
}

/// The thread is about to tell an observer.
pub(crate) fn observe() -> Moved {
    Moved(PLACE.replace(Place::Observing))
}

/// As long as this lives the thread's scope, if it is in one, is as at a safepoint: collections go on,
/// objects move, and nothing of the scope may be used.
#[derive(Debug)]
pub(crate) struct Parked(Moved);

impl Parked {
    pub fn new() -> Parked {
        let before = PLACE.get();
        if let Place::Inside(inner, context) = before {
            // SAFETY: both outlive the scope, which the thread is in.
            unsafe { (*inner).world.leave(&*context, PARKED) };
            PLACE.set(Place::Outside);
        }
        Parked(Moved(before))
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Place::Inside(inner, context) = self.0.0 {
            // SAFETY: as above.
            unsafe { (*inner).world.enter(&*context, PARKED) };
        }
    }
}
