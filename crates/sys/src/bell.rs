//! A bell in shared memory: anybody may ring it, one waits for it.
//!
//! For processes that share nothing but a page: no descriptor is needed, which a program might close,
//! and ringing costs a system call only while somebody waits. Invariant: who reads [`Bell::rung`],
//! looks, and then waits with that number sleeps through no ring that came after it read. Known limit:
//! one waits; of several only some are woken.

use rustix::event::Timespec;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// How often it was rung, and whether somebody waits. All bit patterns are valid.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Bell {
    rung: AtomicU32,
    waiting: AtomicU32,
}

impl Bell {
    /// Wakes whoever waits. Neither allocates nor locks.
    pub fn ring(&self) {
        self.rung.fetch_add(1, SeqCst);
        if self.waiting.load(SeqCst) != 0 {
            // Nobody there is no reason to complain; the number has changed.
            let _ = futex::wake(&self.rung, futex::Flags::empty(), 1);
        }
    }

    /// How often it was rung: for [`Bell::wait`].
    pub fn rung(&self) -> u32 {
        self.rung.load(SeqCst)
    }

    /// Waits until it is rung once more than `before`, or the time is over; whether it was. May also
    /// return early.
    pub fn wait(&self, before: u32, timeout: Duration) -> bool {
        self.waiting.store(1, SeqCst);
        if self.rung() == before {
            let timeout = Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: i64::from(timeout.subsec_nanos()),
            };
            let _ = futex::wait(&self.rung, futex::Flags::empty(), before, Some(&timeout));
        }
        self.waiting.store(0, SeqCst);
        self.rung() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_heard_before_and_while_one_waits() {
        let bell = Bell::default();
        let before = bell.rung();
        assert!(!bell.wait(before, Duration::from_millis(1)), "nobody rang");
        bell.ring();
        assert!(bell.wait(before, Duration::from_secs(60)));
        let before = bell.rung();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| bell.wait(before, Duration::from_secs(60)));
            while bell.waiting.load(SeqCst) == 0 && !waiter.is_finished() {
                std::thread::yield_now();
            }
            bell.ring();
            assert!(waiter.join().unwrap());
        });
    }
}
