//! Threads with areas and steps of their own, and one that wakes another.

use crate::actor::{Actor, Role, wrong};
use crate::calls;
use crate::dice::Digest;
use crate::model::Page;
use crate::step::{Filling, Part, Pick, Step};
use std::io::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};

const WORKERS_MAX: usize = 3;
const WORKER_PAGES: usize = 2560;
/// As deep as that of the main thread, because a child may go on with it.
const STACK: usize = 8 << 20;

pub struct Worker(JoinHandle<Digest>);

impl Actor {
    pub fn thread(&mut self, steps: &[Step]) -> Result<(), String> {
        if self.role != Role::Process || self.workers.len() == WORKERS_MAX {
            return Ok(());
        }
        let steps = steps.to_vec();
        let rules = self.rules.clone();
        let work = move || {
            let mut actor = Actor::new(Role::Thread, WORKER_PAGES, rules);
            let done = actor.play(&steps);
            match done.and_then(|sum| actor.give_back().map(|()| sum)) {
                Ok(sum) => sum,
                Err(text) => wrong(&format!("in a thread: {text}")),
            }
        };
        let started = Builder::new().stack_size(STACK).spawn(work);
        let handle = started.map_err(|error| format!("a thread: {error}"))?;
        self.workers.push_back(Worker(handle));
        Ok(())
    }

    pub fn join(&mut self) -> Result<(), String> {
        let Some(Worker(handle)) = self.workers.pop_front() else {
            return Ok(());
        };
        let sum = handle.join().map_err(|_| "a thread panicked".to_string())?;
        self.digest.fold(sum.0);
        Ok(())
    }

    /// A word at the start of a page: one that has another value, then one that a thread changes.
    pub fn futex(&mut self, pick: Pick, part: Part, salt: u64) -> Result<(), String> {
        let Some(slot) = self.find(pick, |_| true) else {
            return Ok(());
        };
        let Some((page, _)) = self.run(slot, part, Page::is_writable) else {
            return Ok(());
        };
        let at = self.area(slot).address(page);
        // SAFETY: the shadow says that the page may be written; both threads use this word only so.
        let word = unsafe { &*(at as *const AtomicU32) };
        word.store(1, Ordering::SeqCst);
        let answer = wait(word, 0);
        let error = Error::last_os_error().raw_os_error();
        if answer >= 0 || !matches!(error, Some(libc::EAGAIN | libc::EINTR)) {
            return Err(format!(
                "futex with another value answered {answer} ({error:?})"
            ));
        }
        if self.role != Role::RawChild {
            word.store(0, Ordering::SeqCst);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    word.store(2, Ordering::SeqCst);
                    wake(word);
                });
                while word.load(Ordering::SeqCst) == 0 {
                    wait(word, 0);
                }
            });
        }
        self.fill_pages(slot, page, 1, Filling::Own, salt);
        Ok(())
    }

    pub fn timer(&mut self, on: bool) -> Result<(), String> {
        match self.role {
            Role::Thread => Ok(()),
            _ => crate::signals::timer(on),
        }
    }
}

fn wait(word: &AtomicU32, value: u32) -> i64 {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word lives until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, none) }
}

fn wake(word: &AtomicU32) {
    // SAFETY: the word is mapped until the waiting thread goes on, and the thread is joined then.
    let answer = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
    if answer < 0 {
        calls::say(2, "fuzz-run: nobody could be woken\n");
    }
}
