//! The time of a test: the machine's, or a simulation's.
//!
//! In a simulation two threads, the test's and the clerk's, take turns: only one runs at a time, and it hands
//! over when it waits until after the moment the other wakes. So a run is decided by its seed alone, and
//! no time is spent with waiting.

use muninn_sys::clock;
use muninn_types::Nanos;
use muninn_volume::Time;
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

thread_local! {
    static ME: Cell<usize> = const { Cell::new(0) };
}
/// The clerk's place; the test's is 0.
const CLERK: usize = 1;
/// The clerk's longest nap: it hears no bell.
const NAP: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Turns {
    now: Nanos,
    /// When each wants to go on.
    wake: [Nanos; 2],
    turn: usize,
    /// The clerk has gone home.
    over: bool,
}

#[derive(Debug, Default)]
struct Baton {
    turns: Mutex<Turns>,
    bell: Condvar,
}

impl Baton {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn await_turn(&self, mut turns: MutexGuard<'_, Turns>, me: usize) {
        while turns.turn != me {
            turns = self
                .bell
                .wait(turns)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn pass(&self, by: Duration) {
        let me = ME.get();
        let mut turns = self.lock();
        let until = turns.now + by.into();
        turns.wake[me] = until;
        let other = 1 - me;
        if turns.over || turns.wake[other] > until {
            turns.now = until;
            return;
        }
        turns.now = turns.now.max(turns.wake[other]);
        turns.turn = other;
        self.bell.notify_all();
        self.await_turn(turns, me);
    }
}

#[derive(Clone, Debug)]
pub enum Stage {
    Real,
    Simulated(Simulation),
}

#[derive(Clone, Debug, Default)]
pub struct Simulation(Arc<Baton>);

impl Stage {
    pub fn simulated() -> Stage {
        Stage::Simulated(Simulation::default())
    }

    pub fn now(&self) -> Nanos {
        match self {
            Stage::Real => clock::now(),
            Stage::Simulated(simulation) => simulation.0.lock().now,
        }
    }

    pub fn sleep(&self, by: Duration) {
        match self {
            Stage::Real => std::thread::sleep(by),
            Stage::Simulated(simulation) => simulation.0.pass(by),
        }
    }

    /// Runs the clerk, in a thread of its own.
    pub fn run_clerk(&self, work: impl FnOnce()) {
        let Stage::Simulated(Simulation(baton)) = self else {
            return work();
        };
        ME.set(CLERK);
        baton.await_turn(baton.lock(), CLERK);
        let _home = GoHome(baton);
        work();
    }

    /// Waits until the clerk has gone home.
    pub fn await_end(&self) {
        if let Stage::Simulated(simulation) = self {
            while !simulation.0.lock().over {
                self.sleep(NAP);
            }
        }
    }
}

struct GoHome<'a>(&'a Baton);

impl Drop for GoHome<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.lock();
        turns.over = true;
        turns.turn = 0;
        self.0.bell.notify_all();
    }
}

/// The time as a volume knows it.
pub struct StageTime {
    stage: Stage,
    pass: Box<dyn Fn(Duration) + Send + Sync>,
}

impl StageTime {
    pub fn new(stage: &Stage) -> StageTime {
        let passing = stage.clone();
        StageTime {
            stage: stage.clone(),
            pass: Box::new(move |by| passing.sleep(by.min(NAP))),
        }
    }
}

impl Time for StageTime {
    fn now(&self) -> Nanos {
        self.stage.now()
    }
    fn simulated(&self) -> Option<&dyn Fn(Duration)> {
        match self.stage {
            Stage::Real => None,
            Stage::Simulated(_) => Some(&*self.pass),
        }
    }
}
