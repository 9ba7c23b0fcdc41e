//! Atomics, locks and waiting, as the safepoints use them. The test `safepoints` builds the same files
//! with a scheduler's in place of these, and tries many orders of threads.

pub use std::sync::atomic::{AtomicU32, AtomicU64};
pub use std::sync::{Condvar, Mutex, MutexGuard};

use std::time::Duration;

/// Waits for a bell, or a moment.
pub fn nap(bell: &Condvar, guard: MutexGuard<'_, ()>, moment: Duration) {
    let _ = bell.wait_timeout(guard, moment);
}
pub fn spin() {
    std::hint::spin_loop();
}
pub fn yield_now() {
    std::thread::yield_now();
}
