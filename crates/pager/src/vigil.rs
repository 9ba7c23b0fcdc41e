//! When the pager stays awake for the next fault.
//!
//! While one thread faults again and again, the pager waits for it without sleeping: it sees the
//! fault sooner, and the thread, whose processor is idle meanwhile, goes on sooner. (On one processor
//! for both, which needs no waking either, the scheduler would have to be kept from moving the thread
//! to the idle processor; that is the program's business.) With several faulting threads, or none for
//! a while, the pager sleeps like anybody.

use muninn_sys::{affinity, clock};
use muninn_types::Nanos;

/// How long the next fault is waited for without sleeping.
const SPIN: Nanos = Nanos::micros(50);
/// Faults of one thread in a row before the pager stays awake for it.
const STREAK: u32 = 16;

#[derive(Debug)]
pub struct Vigil {
    thread: u32,
    streak: u32,
    processors: usize,
}

impl Default for Vigil {
    fn default() -> Vigil {
        Vigil {
            thread: 0,
            streak: 0,
            processors: affinity::allowed_count(),
        }
    }
}

impl Vigil {
    pub fn handle_fault(&mut self, thread: u32) {
        if thread == self.thread {
            self.streak = (self.streak + 1).min(2 * STREAK);
        } else {
            self.thread = thread;
            self.streak = 0;
        }
    }

    /// Nobody came while the pager was awake.
    fn handle_nobody(&mut self) {
        self.streak /= 2;
    }

    /// Whether it is worth staying awake.
    pub fn is_kept(&self) -> bool {
        self.streak >= STREAK && self.processors > 1
    }

    /// Asks again and again whether something is there, if that is worth it; whether it was.
    pub fn keep(&mut self, mut look: impl FnMut() -> bool) -> bool {
        if !self.is_kept() {
            return false;
        }
        let until = clock::now() + SPIN;
        loop {
            for _ in 0..4 {
                if look() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if clock::now() >= until {
                self.handle_nobody();
                return false;
            }
        }
    }
}
