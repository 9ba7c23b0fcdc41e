//! The executor of one core: a run queue in arrival order, and a window of calls that run.
//!
//! The calls of the window are resumed in turn, so that while one waits for its cache line the others
//! go on; a call that ends makes room for the next in the queue. With a window of one and memory that
//! does not suspend, each call runs to its end before the next begins. A call that waits for a lock
//! leaves the window and is tried again when another call has ended, or in the next run; one that has run for long goes to the end of
//! the queue. [`Window::run`] is bounded in time, so whoever owns the thread keeps it.
//!
//! Futures are polled with a waker that does nothing: what they wait for is known here.

use super::memory::{Why, why};
use crate::alloc;
use crate::registry::{Ended, Running};
use muninn_sys::clock;
use muninn_types::Nanos;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

/// Resumes between two looks at the clock.
const LOOK: u32 = 256;
/// The longest that one run takes, give or take a few resumes.
pub(crate) const RUN: Nanos = Nanos::micros(500);

struct Task<T> {
    running: Running,
    caller: T,
    deadline: Nanos,
    begun: bool,
    /// What it may still take from the heap.
    heap_left: i64,
}

/// How a call ended.
#[derive(Debug)]
pub enum Outcome {
    Ended(Ended),
    /// Dropped, because its time was over. True: after it had begun.
    Late(bool),
    Panicked,
}

/// How far a call came that was run at once.
pub(crate) enum Now {
    Ended(Outcome),
    /// Only its reply is to be made.
    Replies(Replying),
    Queued,
}

/// A call that is done but for its reply.
pub(crate) struct Replying {
    running: Running,
    heap_left: i64,
}

impl Replying {
    pub fn reply(mut self) -> Outcome {
        let mut context = Context::from_waker(Waker::noop());
        let outcome = resume(&mut self.running, &mut self.heap_left, &mut context);
        alloc::allow_all();
        outcome.expect("a call that had only to reply is at its end")
    }
}

/// An executor. `T` says whose call it is.
pub struct Window<T> {
    size: usize,
    heap: i64,
    running: Vec<Task<T>>,
    queue: VecDeque<Task<T>>,
    paused: VecDeque<Task<T>>,
}

impl<T> std::fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({} of {})", self.running.len(), self.size)
    }
}

impl<T> Window<T> {
    /// At most `size` calls run at once, each with at most `heap` bytes of the heap.
    pub fn new(size: usize, heap: u32) -> Window<T> {
        assert!(size > 0, "a window holds at least one call");
        Window {
            size,
            heap: i64::from(heap),
            running: Vec::with_capacity(size),
            queue: VecDeque::new(),
            paused: VecDeque::new(),
        }
    }

    pub fn push(&mut self, running: Running, caller: T, deadline: Nanos) {
        self.queue.push_back(Task {
            running,
            caller,
            deadline,
            begun: false,
            heap_left: self.heap,
        });
    }

    /// Runs a call at once, as far as it comes without waiting; what is left of it is queued, and only
    /// then is it asked whose it is. For an empty window, as nobody is to be overtaken, and for those who
    /// bound the time themselves.
    pub(crate) fn run_now(
        &mut self,
        mut running: Running,
        deadline: Nanos,
        caller: impl FnOnce() -> T,
    ) -> Now {
        debug_assert!(self.is_empty(), "others wait");
        let mut heap_left = self.heap;
        let mut context = Context::from_waker(Waker::noop());
        let outcome = resume(&mut running, &mut heap_left, &mut context);
        alloc::allow_all();
        if let Some(outcome) = outcome {
            return Now::Ended(outcome);
        }
        let why = why();
        if why == Why::Reply {
            return Now::Replies(Replying { running, heap_left });
        }
        let task = Task {
            running,
            caller: caller(),
            deadline,
            begun: true,
            heap_left,
        };
        match why {
            Why::Memory | Why::Reply => self.running.push(task),
            Why::Slice => self.queue.push_back(task),
            Why::Pause => self.paused.push_back(task),
        }
        Now::Queued
    }

    /// Calls pushed and not ended.
    pub fn len(&self) -> usize {
        self.running.len() + self.queue.len() + self.paused.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs until all calls have ended or wait, or the time is over. False: all did was to find that
    /// what they wait for is not there.
    pub fn run(&mut self, now: Nanos, mut end: impl FnMut(T, Outcome)) -> bool {
        let mut went_on = false;
        // Whoever waits for a lock is tried once more, before those that came later.
        while let Some(task) = self.paused.pop_back() {
            self.queue.push_front(task);
        }
        let ends = now + RUN;
        let mut clock_now = now;
        let mut resumes = 0;
        let mut context = Context::from_waker(Waker::noop());
        let mut at = 0;
        loop {
            while self.running.len() < self.size {
                let Some(mut task) = self.queue.pop_front() else {
                    break;
                };
                if clock_now >= task.deadline {
                    let Task {
                        running,
                        caller,
                        begun,
                        ..
                    } = task;
                    // It gives back what it holds.
                    drop(running);
                    end(caller, Outcome::Late(begun));
                    continue;
                }
                task.begun = true;
                self.running.push(task);
            }
            if self.running.is_empty() {
                break;
            }
            if at >= self.running.len() {
                at = 0;
            }
            let task = &mut self.running[at];
            match resume(&mut task.running, &mut task.heap_left, &mut context) {
                Some(outcome) => {
                    went_on = true;
                    let task = self.running.swap_remove(at);
                    end(task.caller, outcome);
                    // It may have held what the first of those wait for.
                    if let Some(waiting) = self.paused.pop_front() {
                        self.queue.push_front(waiting);
                    }
                }
                None => match why() {
                    Why::Memory | Why::Reply => {
                        went_on = true;
                        at += 1;
                    }
                    Why::Slice => {
                        went_on = true;
                        let task = self.running.swap_remove(at);
                        self.queue.push_back(task);
                    }
                    Why::Pause => {
                        let task = self.running.swap_remove(at);
                        self.paused.push_back(task);
                    }
                },
            }
            resumes += 1;
            if resumes % LOOK == 0 {
                clock_now = clock::now();
                if clock_now >= ends {
                    break;
                }
            }
        }
        // A prefetching call that loops never leaves the window by itself.
        let late = |task: &Task<T>| clock_now >= task.deadline;
        while let Some(at) = self.running.iter().position(late) {
            let task = self.running.swap_remove(at);
            drop(task.running);
            end(task.caller, Outcome::Late(true));
        }
        alloc::allow_all();
        went_on
    }
}

/// Resumes a call, on its own budget of the heap. None: it is suspended.
#[inline(always)]
fn resume(
    running: &mut Running,
    heap_left: &mut i64,
    context: &mut Context<'_>,
) -> Option<Outcome> {
    let before = alloc::held();
    alloc::allow(*heap_left);
    let polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context)));
    *heap_left -= alloc::held() - before;
    match polled {
        Ok(Poll::Pending) => None,
        Ok(Poll::Ready(ended)) => Some(Outcome::Ended(ended)),
        Err(_) => Some(Outcome::Panicked),
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::suspend;
    use super::*;
    use crate::registry::Reply;
    use std::cell::RefCell;
    use std::rc::Rc;

    const FAR: Nanos = Nanos(u64::MAX);

    fn ended() -> Ended {
        Ended {
            result: Ok(Reply::from_bytes(&[])),
            accesses: 0,
        }
    }

    /// Suspends `times` times for a reason, and writes down each time it runs.
    fn steps(name: char, why: Why, times: usize, log: &Rc<RefCell<String>>) -> Running {
        let log = Rc::clone(log);
        Box::pin(async move {
            for _ in 0..times {
                log.borrow_mut().push(name);
                suspend(why).await;
            }
            log.borrow_mut().push(name);
            ended()
        })
    }

    fn run_all(window: &mut Window<char>) -> String {
        let mut order = String::new();
        while !window.is_empty() {
            window.run(clock::now(), |name, _| order.push(name));
        }
        order
    }

    #[test]
    fn the_calls_of_a_window_are_resumed_in_turn_and_the_next_takes_a_free_place() {
        let log = Rc::new(RefCell::new(String::new()));
        let mut window = Window::new(2, 1 << 20);
        for name in ['a', 'b', 'c'] {
            window.push(steps(name, Why::Memory, 2, &log), name, FAR);
        }
        assert_eq!(run_all(&mut window), "abc");
        assert_eq!(&log.borrow()[..4], "abab");
    }

    #[test]
    fn one_that_waits_leaves_its_place_to_others() {
        let log = Rc::new(RefCell::new(String::new()));
        let mut window = Window::new(1, 1 << 20);
        window.push(steps('a', Why::Pause, 3, &log), 'a', FAR);
        window.push(steps('b', Why::Memory, 1, &log), 'b', FAR);
        let mut order = String::new();
        assert!(window.run(clock::now(), |name, _| order.push(name)));
        assert_eq!(order, "b");
        // Nothing but the one that waits is left, and it is tried once in each run.
        let before = log.borrow().len();
        assert!(!window.run(clock::now(), |name, _| order.push(name)));
        assert_eq!(log.borrow().len(), before + 1);
        assert_eq!(run_all(&mut window), "a");
    }

    #[test]
    fn a_call_that_is_run_at_once_ends_or_waits_as_any_other() {
        let log = Rc::new(RefCell::new(String::new()));
        let mut window = Window::new(1, 1 << 20);
        let now = window.run_now(steps('a', Why::Memory, 0, &log), FAR, || 'a');
        assert!(matches!(now, Now::Ended(Outcome::Ended(_))));
        let now = window.run_now(steps('r', Why::Reply, 1, &log), FAR, || 'r');
        let Now::Replies(replying) = now else {
            panic!("it has to reply");
        };
        assert!(matches!(replying.reply(), Outcome::Ended(_)));
        assert!(window.is_empty());
        for why in [Why::Memory, Why::Slice, Why::Pause] {
            let now = window.run_now(steps('b', why, 1, &log), FAR, || 'b');
            assert!(matches!(now, Now::Queued));
            assert_eq!(window.len(), 1);
            assert_eq!(run_all(&mut window), "b");
        }
        let now = window.run_now(Box::pin(async { panic!("on purpose") }), FAR, || 'p');
        assert!(matches!(now, Now::Ended(Outcome::Panicked)));
    }

    #[test]
    fn a_call_whose_time_is_over_is_dropped_and_it_is_known_whether_it_had_begun() {
        let log = Rc::new(RefCell::new(String::new()));
        let mut window = Window::new(1, 1 << 20);
        let late = |window: &mut Window<char>, now| {
            let mut all = Vec::new();
            window.run(now, |name, outcome| match outcome {
                Outcome::Late(begun) => all.push((name, begun)),
                other => panic!("{other:?}"),
            });
            all
        };
        window.push(steps('a', Why::Pause, 9, &log), 'a', Nanos(100));
        assert_eq!(late(&mut window, Nanos(1)), []);
        window.push(steps('b', Why::Pause, 9, &log), 'b', Nanos(100));
        assert_eq!(late(&mut window, Nanos(100)), [('a', true), ('b', false)]);
        assert_eq!(*log.borrow(), "a");
    }

    #[test]
    fn one_that_panics_is_alone_in_that() {
        let log = Rc::new(RefCell::new(String::new()));
        let mut window = Window::new(4, 1 << 20);
        window.push(Box::pin(async { panic!("on purpose") }), 'p', FAR);
        window.push(steps('a', Why::Memory, 1, &log), 'a', FAR);
        let mut outcomes = Vec::new();
        window.run(clock::now(), |name, outcome| {
            outcomes.push((name, matches!(outcome, Outcome::Panicked)));
        });
        outcomes.sort_unstable();
        assert_eq!(outcomes, [('a', false), ('p', true)]);
    }
}
