//! Who of a job is alive, and what each may hold: worked out here, in the launcher, for all of them.
//!
//! A thread looks at the job's places when somebody rings or the time has come (`job::look`), and holds
//! a handle of every process it finds there. Whoever waits for signals waits for those handles, too, so
//! the place of a process that has ended is free at once, and what it held is nobody's any more.
//! Invariant: a place is released only for the process that had it. Known limit: without a handle
//! (more open files than are permitted) an end is noticed at the next look.

use muninn_job::{Job, Looker, Place};
use muninn_sys::epoll::{Epoll, Interest};
use muninn_sys::signal::PidFd;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The accounts of a job, kept until this is dropped.
#[derive(Debug)]
pub struct Accounts {
    job: Job,
    handles: Arc<Handles>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Handles of the processes that have places, by the word that names each.
#[derive(Debug)]
struct Handles {
    /// Ready when one of them has ended; its token is the word.
    ends: Epoll,
    known: Mutex<HashMap<u64, (PidFd, Place)>>,
}

impl Accounts {
    pub fn keep(job: &Job) -> io::Result<Accounts> {
        let handles = Arc::new(Handles {
            ends: Epoll::new()?,
            known: Mutex::default(),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (job, handles, stop) = (job.clone(), handles.clone(), stop.clone());
            std::thread::Builder::new()
                .name("accounts".to_string())
                .spawn(move || keep(&job, &handles, &stop))?
        };
        Ok(Accounts {
            job: job.clone(),
            handles,
            stop,
            thread: Some(thread),
        })
    }

    /// Ready when a process has ended; other descriptors may be added, with tokens that are no word
    /// of a process: 0, for example.
    pub fn ends(&self) -> &Epoll {
        &self.handles.ends
    }

    /// A process has ended: its place is free, and the others learn of it.
    pub fn ended(&self, token: u64) {
        let process = self.handles.known().remove(&token);
        if let Some((_, place)) = process {
            place.release();
        }
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.job.bell().ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep(job: &Job, handles: &Handles, stop: &AtomicBool) {
    let mut looker = Looker::new(job);
    let mut unwatched = false;
    loop {
        let rung = job.bell().rung();
        if stop.load(Ordering::Acquire) {
            return;
        }
        let looked = looker.look();
        if looked.others || unwatched {
            unwatched = !handles.watch(looker.places());
        }
        looker.wait(rung);
    }
}

impl Handles {
    fn known(&self) -> MutexGuard<'_, HashMap<u64, (PidFd, Place)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets a handle of everybody it has none of; false when one of them could not be had. The places
    /// of those who have ended already are released.
    fn watch(&self, places: &[Place]) -> bool {
        let mut all = true;
        for place in places {
            let word = place.process().word();
            if self.known().contains_key(&word) {
                continue;
            }
            let handle = PidFd::open(place.pid() as i32).ok();
            // Alive when it has a handle: so the handle is its own.
            if !place.is_alive() {
                place.release();
                continue;
            }
            // Known before it is waited for: its end may be heard at once.
            let watched = handle.is_some_and(|handle| {
                let mut known = self.known();
                let added = self.ends.add(&handle, word, Interest::READ).is_ok();
                if added {
                    known.insert(word, (handle, place.clone()));
                }
                added
            });
            all &= watched;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_sys::epoll::Events;
    use muninn_types::Bytes;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_that_ends_is_noticed_at_once() {
        let job = Job::create(&muninn_job::Config::default(), Bytes::mib(64)).unwrap();
        let accounts = Accounts::keep(&job).unwrap();
        let own = job.take_place(std::process::id()).unwrap();
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let other = job.take_place(child.id()).unwrap();
        let held = &other.counters().resident_bytes;
        held.store(60 << 20, Ordering::Relaxed);
        job.bell().ring();
        let until = |what: &str, happened: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !happened() {
                assert!(start.elapsed() < Duration::from_secs(60), "{what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until("the limit is divided", &|| own.share() < Bytes::mib(10));
        let known = || accounts.handles.known().len() == 2;
        until("both are known", &known);
        child.kill().unwrap();
        let mut events = Events::default();
        let wait = Some(Duration::from_secs(60));
        assert_eq!(accounts.ends().wait(&mut events, wait), Ok(1));
        // Not reaped yet, and still its place is free.
        for event in events.iter() {
            accounts.ended(event.token);
        }
        assert_eq!(job.places().count(), 1);
        until("all is ours", &|| own.share() == Bytes::mib(64));
        child.wait().unwrap();
        own.release();
        job.remove();
    }
}
