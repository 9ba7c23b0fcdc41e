//! Safepoints, stops and holds under many orders of threads: the files of the library themselves, on a
//! scheduler's atomics and locks.
//!
//! What is tried: while the world is stopped nobody runs, while a parked mutator is held it does not go
//! on, and everybody who wants in gets in. A scope that is entered again after blocking is the same as
//! one that was parked at a safepoint.
#![allow(dead_code)]

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use shuttle::thread;

/// What the files take for the library's own.
mod sync {
    pub use shuttle::sync::atomic::{AtomicU32, AtomicU64};
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
    use std::time::Duration;

    /// A nap ends by itself: a bell that was missed must not be needed.
    pub fn nap(_: &Condvar, guard: MutexGuard<'_, ()>, _: Duration) {
        drop(guard);
        shuttle::thread::yield_now();
    }
    pub fn spin() {
        shuttle::thread::yield_now();
    }
    pub fn yield_now() {
        shuttle::thread::yield_now();
    }
}
#[path = "../src/alarm.rs"]
mod alarm;
#[path = "../src/slots.rs"]
mod slots;
#[path = "../src/world.rs"]
mod world;

use alarm::Alarm;
use world::{OUTSIDE, PARKED, World};

const SCHEDULES: usize = 3000;

/// A heap that is only its safepoints.
struct Model {
    world: World,
    /// The collector changes everything.
    moves: AtomicBool,
    accesses: AtomicU64,
}

impl Model {
    fn new() -> Model {
        Model {
            world: World::new(Arc::new(Alarm::default())),
            moves: AtomicBool::new(false),
            accesses: AtomicU64::new(0),
        }
    }

    fn access(&self) {
        assert!(!self.moves.load(SeqCst), "an access in a stopped world");
        self.accesses.fetch_add(1, SeqCst);
    }

    /// A mutator as `Mutator::enter` and `Inner::poll_slow` have it.
    fn mutate(&self, scopes: usize) {
        let context = self.world.add();
        for _ in 0..scopes {
            self.world.enter(&context, OUTSIDE);
            for _ in 0..2 {
                self.access();
                while self.world.alarm.has(alarm::STOP) {
                    self.world.leave(&context, PARKED);
                    self.world.enter(&context, PARKED);
                }
            }
            // `Scope::blocking`
            self.world.leave(&context, PARKED);
            thread::yield_now();
            self.world.enter(&context, PARKED);
            self.access();
            self.world.leave(&context, OUTSIDE);
        }
        self.world.remove(&context);
    }

    fn stop(&self, times: usize) {
        for _ in 0..times {
            let stopped = self.world.stop();
            assert!(!self.moves.swap(true, SeqCst), "two stops at once");
            thread::yield_now();
            self.moves.store(false, SeqCst);
            drop(stopped);
        }
    }

    /// Mako's handshake: answers for whoever is parked.
    fn hold(&self, times: usize) {
        for _ in 0..times {
            let mutators = self.world.lock().clone();
            for context in &mutators {
                self.world.hold(context, || {
                    let before = context.state.load(SeqCst);
                    thread::yield_now();
                    assert_eq!(context.state.load(SeqCst), before, "it went on while held");
                });
            }
            thread::yield_now();
        }
    }
}

fn run(holds: usize) {
    let model = Arc::new(Model::new());
    let mut threads = Vec::new();
    for _ in 0..2 {
        let model = Arc::clone(&model);
        threads.push(thread::spawn(move || model.mutate(2)));
    }
    let collector = Arc::clone(&model);
    threads.push(thread::spawn(move || collector.stop(2)));
    let model_of_holds = Arc::clone(&model);
    threads.push(thread::spawn(move || model_of_holds.hold(holds)));
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(model.accesses.load(SeqCst), 2 * 2 * 3);
}

#[test]
fn nobody_runs_in_a_stopped_world() {
    shuttle::check_random(|| run(0), SCHEDULES);
}

#[test]
fn a_mutator_that_is_held_stays_where_it_is() {
    shuttle::check_random(|| run(3), SCHEDULES);
    shuttle::check_pct(|| run(3), SCHEDULES / 3, 3);
}
