//! The monotonic clock, and waiting by spinning.
//!
//! Pure code is handed a [`Nanos`]; only drivers ask a [`Clock`]. The fake, [`ManualClock`], stands
//! still until a test moves it. Invariant: a clock never goes backwards. Known limit: the origin
//! of the monotonic clock is the start of the machine, so times of two machines do not compare.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muninn_types::Nanos;
use rustix::time::ClockId;

/// Something that knows what time it is.
pub trait Clock {
    fn now(&self) -> Nanos;
}

/// The time since the machine started. Reading it is not a system call.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Nanos {
        now()
    }
}

/// The monotonic time.
pub fn now() -> Nanos {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The same, a few milliseconds late, at a fifth of the cost.
pub fn coarse() -> Nanos {
    let time = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The time of day in seconds since 1970, as this machine believes it to be. It may jump.
pub fn unix() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap_or(0)
}

/// How long the calling thread has run on a CPU.
pub fn thread_cpu() -> Nanos {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A clock that a test moves. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
}

impl ManualClock {
    pub fn new(start: Nanos) -> ManualClock {
        ManualClock {
            now: Arc::new(AtomicU64::new(start.0)),
        }
    }

    pub fn advance(&self, by: Nanos) {
        self.now.fetch_add(by.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::SeqCst))
    }
}

/// Spins of the processor between two looks at the clock: a look costs about as much as all of them.
const SPINS_PER_LOOK: u32 = 16;

/// Calls `ready` until it answers or the deadline has passed. For waits of a few microseconds.
pub fn spin_until<T>(
    clock: &impl Clock,
    deadline: Nanos,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if let Some(answer) = ready() {
                return Some(answer);
            }
            std::hint::spin_loop();
        }
        if clock.now() >= deadline {
            // One last look: the thread may have been away between the look and the clock.
            return ready();
        }
    }
}

/// How somebody who spins lets others run.
///
/// The one he waits for may be waiting for this very processor, so it is offered each time. Where a
/// stranger took it and kept it, it is not offered again for a while.
#[derive(Debug, Default)]
pub struct Courtesy {
    wary: u32,
}

impl Courtesy {
    /// A yield that took longer was a stranger's gain.
    const SHORT: Nanos = Nanos(200_000);
    /// Pauses without an offer after that.
    const WARY: u32 = 20_000;

    pub fn pause(&mut self) {
        if self.wary > 0 {
            self.wary -= 1;
            std::hint::spin_loop();
            return;
        }
        let before = now();
        std::thread::yield_now();
        if now().saturating_sub(before) > Courtesy::SHORT {
            self.wary = Courtesy::WARY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward() {
        let first = MonotonicClock.now();
        let second = spin_until(&MonotonicClock, first + Nanos::secs(5), || {
            Some(now()).filter(|&t| t > first)
        });
        assert!(second.is_some());
    }

    #[test]
    fn a_manual_clock_moves_by_hand_and_spinning_ends() {
        let clock = ManualClock::new(Nanos(5));
        let other = clock.clone();
        let mut looks = 0;
        let answer: Option<()> = spin_until(&clock, Nanos(50), || {
            looks += 1;
            other.advance(Nanos(1));
            None
        });
        assert_eq!(answer, None);
        assert!(looks >= 45 && clock.now() >= Nanos(50));
    }
}
