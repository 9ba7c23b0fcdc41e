//! Who of a job is alive, and what each may hold: worked out here, in the launcher, for all of them.
//!
//! A thread looks at the job's places when somebody rings or the time has come (`job::look`), and holds
//! a handle of every process it finds there. Whoever waits for signals waits for those handles, too, so
//! the place of a process that has ended is free at once, and what it held is nobody's any more.
//! Invariant: a place is released only for the process that had it. Known limit: without a handle
//! (more open files than are permitted) an end is noticed at the next look.

use super::strangers::Strangers;
use muninn_job::{Job, Looker, Place};
use muninn_policy::kinds::Kinds;
use muninn_sys::epoll::{Epoll, Interest};
use muninn_sys::signal::PidFd;
use muninn_types::Bytes;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Kinds of memory that a message names at most.
const KINDS_NAMED: usize = 4;
/// The same note is not printed again so soon.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// The accounts of a job, kept until this is dropped.
#[derive(Debug)]
pub struct Accounts {
    job: Job,
    handles: Arc<Handles>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Kinds>>,
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

    /// Closes them: the most that all processes held at one time, of each kind of memory.
    pub fn close(mut self) -> Kinds {
        self.end()
    }

    fn end(&mut self) -> Kinds {
        self.stop.store(true, Ordering::Release);
        self.job.bell().ring();
        let thread = self.thread.take();
        thread
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        self.end();
    }
}

fn keep(job: &Job, handles: &Handles, stop: &AtomicBool) -> Kinds {
    let mut looker = Looker::new(job);
    let (mut unwatched, mut said, mut most) = (false, false, Kinds::default());
    let (mut noted, mut notes) = (0, Notes::default());
    let mut strangers = Strangers::new();
    loop {
        let rung = job.bell().rung();
        for (number, text) in job.notes_after(noted) {
            noted = number;
            notes.print(text);
        }
        if stop.load(Ordering::Acquire) {
            return most;
        }
        let looked = looker.look();
        let now = kinds(looker.places());
        for (most, now) in most.0.iter_mut().zip(now.0) {
            *most = now.max(*most);
        }
        if let Some(text) = stays_near(&now, job.limit()).filter(|_| !said) {
            said = true;
            eprintln!("muninn: {text}");
        }
        for text in strangers.look() {
            eprintln!("muninn: {text}");
        }
        if looked.others || unwatched {
            unwatched = !handles.watch(looker.places());
        }
        looker.wait(rung);
    }
}

/// Notes that were printed lately: each process of a job finds out by itself that a server is gone.
#[derive(Default)]
struct Notes(HashMap<String, Instant>);

impl Notes {
    fn print(&mut self, text: String) {
        self.0.retain(|_, printed| printed.elapsed() < SAID_AGAIN);
        if let Entry::Vacant(place) = self.0.entry(text) {
            eprintln!("muninn: {}", place.key());
            place.insert(Instant::now());
        }
    }
}

/// What all processes hold together of each kind.
fn kinds(places: &[Place]) -> Kinds {
    let mut sum = Kinds::default();
    for place in places {
        for (sum, own) in sum.0.iter_mut().zip(place.counters().kinds().0) {
            *sum = sum.saturating_add(own);
        }
    }
    sum
}

/// What to say when more must stay near than may.
fn stays_near(kinds: &Kinds, limit: Bytes) -> Option<String> {
    let near = Bytes(kinds.near());
    if near <= limit {
        return None;
    }
    let named: Vec<String> = kinds
        .largest_near(Bytes::mib(1).0)
        .take(KINDS_NAMED)
        .map(|(kind, bytes)| format!("{} {}", kind.name(), Bytes(bytes).rounded()))
        .collect();
    Some(format!(
        "{} of this job must stay near ({}), but the limit is {}; the program goes on above it",
        near.rounded(),
        named.join(", "),
        limit.rounded()
    ))
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
    use muninn_policy::kinds::MemoryKind;
    use muninn_sys::epoll::Events;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn more_than_the_limit_that_must_stay_near_is_said_with_its_kinds() {
        let mut kinds = Kinds::default();
        kinds.0[MemoryKind::Heap.index()] = 500 << 20;
        kinds.0[MemoryKind::Locked.index()] = 5 << 20;
        kinds.0[MemoryKind::Stack.index()] = 100;
        assert_eq!(stays_near(&kinds, Bytes::mib(64)), None);
        kinds.0[MemoryKind::Shared.index()] = 90 << 20;
        assert_eq!(
            stays_near(&kinds, Bytes::mib(64)).unwrap(),
            "95.0MiB of this job must stay near (shared memory 90.0MiB, locked 5.00MiB), but the \
             limit is 64.0MiB; the program goes on above it"
        );
    }

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
        for (place, mib) in [(&own, 3), (&other, 60)] {
            let held = &place.counters().resident_bytes;
            held.store(mib << 20, Ordering::Relaxed);
        }
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
