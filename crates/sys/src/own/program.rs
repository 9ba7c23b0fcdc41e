//! The program, as its companion sees it: is it still there, and is it still the same?
//!
//! The companion shares the program's memory, which stays as long as either of them has it. A program
//! that ends, or that executes another in its place, leaves the memory to the companion alone, which
//! has nothing to do there any more.
//!
//! A process is asked for by its first thread, which may end before the others do: then it has no memory,
//! although the program goes on, and another thread is asked.

use super::alarm::Alarm;
use super::program_pid;
use crate::epoll::wait_any;
use crate::proc;
use crate::signal::PidFd;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What became of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Runs,
    Ended,
    /// It has executed another program, in other memory.
    Replaced,
}

#[derive(Debug)]
pub struct Program {
    handle: PidFd,
    /// The thread that had our memory when it was last asked.
    witness: AtomicU32,
    /// Where the kernel has such timers.
    alarm: Option<Alarm>,
}

/// A program that has run for so long since may have done something.
const STIRRED: Duration = Duration::from_micros(500);

impl Program {
    /// The program beside which the caller runs; `None` when it has ended.
    pub fn watch() -> Option<Program> {
        let pid = program_pid();
        let handle = PidFd::open(pid as i32).ok()?;
        let alarm = Alarm::of(pid).ok();
        let witness = AtomicU32::new(pid);
        Some(Program {
            handle,
            witness,
            alarm,
        })
    }

    /// Waits for the program's end, so long; what became of it.
    pub fn wait(&self, patience: Duration) -> Fate {
        if self.handle.wait_end(Some(patience)).unwrap_or(true) {
            return Fate::Ended;
        }
        self.fate()
    }

    /// The same, but wakes up as soon as the program runs.
    pub fn wait_until_it_stirs(&self, patience: Duration) -> Fate {
        if let Some(alarm) = &self.alarm {
            alarm.set(STIRRED);
            wait_any(&[self.handle.as_fd(), alarm.as_fd()], patience);
        }
        self.wait(Duration::ZERO)
    }

    /// How long the program has run; `None` where nobody would say when it does.
    pub fn elapsed(&self) -> Option<Duration> {
        self.alarm.as_ref().map(Alarm::elapsed)
    }

    fn fate(&self) -> Fate {
        let has_ours = |thread| proc::share_memory(std::process::id(), thread);
        // Refused: a kernel without it, or a program that nobody may look at.
        if has_ours(self.witness.load(Ordering::Relaxed)) != Some(false) {
            return Fate::Runs;
        }
        match proc::find_thread_of_program(|thread| has_ours(thread) == Some(true)) {
            Ok(Some(thread)) => {
                self.witness.store(thread, Ordering::Relaxed);
                Fate::Runs
            }
            // Nobody may see its threads any more, or it is just ending.
            Ok(None) | Err(_) => Fate::Replaced,
        }
    }
}
