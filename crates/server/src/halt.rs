//! All event loops stand still at once, and leave what they know.
//!
//! Invariant: a loop that has arrived touches neither memory nor sessions before a verdict, and there is
//! always one: a [`Standstill`] that is forgotten lets them go on.

use muninn_proto::server::Will;
use muninn_sys::socket::Address;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a loop that stands still goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As before.
    GoOn,
    /// In the place of another process, which is gone.
    Begin,
    /// Not at all: another process has everything. Nobody is told goodbye.
    End,
    /// Not at all: the process before goes on, and nothing of it may be touched.
    NeverBegin,
}

/// What loops leave.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub will: Will,
    pub listeners: Vec<(Address, OwnedFd)>,
}

#[derive(Debug, Default)]
struct Inside {
    arrived: usize,
    left: Left,
    verdict: Option<Verdict>,
}

#[derive(Debug, Default)]
pub(crate) struct Halt {
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl Halt {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A loop is here, leaves what it has, and waits for the verdict.
    pub(crate) fn arrive(
        &self,
        leave: impl FnOnce(&mut Will, &mut Vec<(Address, OwnedFd)>),
    ) -> Verdict {
        let mut inside = self.lock();
        if let Some(verdict) = inside.verdict {
            return verdict;
        }
        let left = &mut inside.left;
        leave(&mut left.will, &mut left.listeners);
        inside.arrived += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_while(inside, |i| i.verdict.is_none());
        let inside = waited.unwrap_or_else(PoisonError::into_inner);
        inside.verdict.unwrap_or(Verdict::GoOn)
    }

    /// The first one counts.
    pub(crate) fn decide(&self, verdict: Verdict) {
        self.lock().verdict.get_or_insert(verdict);
        self.changed.notify_all();
    }
}

/// Whoever has the loops stand still.
#[derive(Debug)]
pub(crate) struct Standstill {
    pub halt: Arc<Halt>,
}

impl Standstill {
    pub(crate) fn new() -> Standstill {
        Standstill {
            halt: Arc::default(),
        }
    }

    /// What so many loops have left, if all of them arrive in this time.
    pub(crate) fn wait(&self, loops: usize, at_most: Duration) -> Option<Left> {
        let inside = self.halt.lock();
        let waited = self
            .halt
            .changed
            .wait_timeout_while(inside, at_most, |i| i.arrived < loops);
        let (mut inside, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (inside.arrived == loops).then(|| std::mem::take(&mut inside.left))
    }

    pub(crate) fn end_with(self, verdict: Verdict) {
        self.halt.decide(verdict);
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        self.halt.decide(Verdict::GoOn);
    }
}
