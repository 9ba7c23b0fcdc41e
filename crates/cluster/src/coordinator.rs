//! The coordinator: the list of the pool, the book of far memory, and the word that lets jobs start.
//!
//! Agents report once a second and get the pool in return. A [`Scheduler`] (Slurm) is looked at once a
//! second: what waits, runs and ended goes into the [`Ledger`], and what the ledger decides is written
//! down, and then done. Written first: a coordinator that is killed in between has promised something
//! that nobody uses, which is taken back, and never the other way round.
//!
//! **Safe mode.** A coordinator that does not know enough promises nothing: after a start until agents
//! have had time to report, longer when its file was damaged, and while its scheduler does not answer.
//! Jobs that run are not touched by that, nor by its death; jobs that wait are the scheduler's then, which
//! starts them as it always would (see docs/CLUSTER.md, the dead man's timer).
//!
//! Known limit: one connection and one thread for each agent, [`CONNECTIONS_MAX`] at most.

mod converse;
mod show;
mod state;

use crate::ledger::{Ledger, Placed, Request, Start};
use crate::profiles::{Known, Measured};
use crate::state_file::{Found, StateFile};
use muninn_policy::admission::Admission;
use muninn_proto::auth::Key;
use muninn_sys::clock;
use muninn_sys::epoll::wait_any;
use muninn_sys::signal::Termination;
use muninn_sys::socket::{Address, ListenError, Listener, Stream};
use muninn_types::{Bytes, Nanos};
use serde::{Deserialize, Serialize};
use state::State;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub const CONNECTIONS_MAX: usize = 4096;
/// Nodes at most: names come from those who may speak for a node.
const NODES_MAX: usize = 65_536;
/// Who has connected has so long to say what for, and an agent to say more.
const PATIENCE: Duration = Duration::from_secs(30);
const SHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at the scheduler.
const TICK: Duration = Duration::from_secs(1);
/// After a start agents have so long to report before anything is promised.
const SETTLE: Nanos = Nanos::secs(3);
/// The same when what was promised before is not known.
const SETTLE_DAMAGED: Nanos = Nanos::secs(15);
/// A node that was silent for so long has left for good.
const FORGOTTEN: Nanos = Nanos::secs(3600);
/// Starts between two writes of the file.
const BATCH_MAX: usize = 64;

/// What queues, starts and ends jobs.
pub trait Scheduler: Send {
    fn look(&mut self) -> Result<Seen, String>;
    /// Lets a job start there, with so much local memory reserved.
    fn start(&mut self, start: &Start) -> Result<(), String>;
    /// Keeps those that wait waiting: called again and again.
    fn keep(&mut self, jobs: &[u64]) -> Result<(), String>;
}

/// What a scheduler has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub nodes: Vec<SeenNode>,
    /// Jobs that asked for far memory, and where they run, if they do.
    pub jobs: Vec<(Request, Option<String>)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenNode {
    pub name: String,
    pub cores: u32,
    /// What jobs have there that did not ask for far memory.
    pub others: (u32, Bytes),
    pub open: bool,
}

#[derive(Debug)]
pub struct Settings {
    pub listen: Vec<Address>,
    pub key: Key,
    pub admission: Admission,
    pub state: PathBuf,
    /// Servers of the pool that have no agent, and how much they give.
    pub servers: Vec<String>,
    pub far: Bytes,
    /// Profiles of jobs that were measured.
    pub measured: Measured,
}

#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    #[error("{0}")]
    Listen(#[from] ListenError),
    #[error("cannot keep its state in {}: {}; it would promise what it forgets", .0.display(), .1)]
    State(PathBuf, std::io::Error),
}

/// What is written down.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Saved {
    placed: Vec<Placed>,
    servers: BTreeMap<String, Vec<String>>,
    learned: BTreeMap<String, Known>,
}

pub struct Coordinator {
    listeners: Vec<Listener>,
    key: Key,
    state: Arc<Mutex<State>>,
    file: StateFile,
    path: PathBuf,
    scheduler: Option<Box<dyn Scheduler>>,
    connections: Arc<AtomicUsize>,
    saved: Option<u64>,
    ticked: Option<Nanos>,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Coordinator({:?})", self.listeners)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Coordinator {
    pub fn start(
        settings: Settings,
        scheduler: Option<Box<dyn Scheduler>>,
    ) -> Result<Coordinator, CoordinatorError> {
        let now = clock::now();
        let file = StateFile::durable(&settings.state);
        let found = file.load::<Saved>();
        let (settle, safe) = match &found {
            Found::Whole(_) | Found::Nothing => (SETTLE, "it was only just started"),
            Found::Older(_) => (
                SETTLE_DAMAGED,
                "its last state was damaged, it goes on from the one before",
            ),
            Found::Damaged => (
                SETTLE_DAMAGED,
                "its state was lost, it learns from agents and scheduler",
            ),
        };
        if settle > SETTLE {
            eprintln!("muninn: {}: {safe}", settings.state.display());
        }
        let saved = match found {
            Found::Whole(saved) | Found::Older(saved) => saved,
            Found::Nothing | Found::Damaged => Saved::default(),
        };
        let mut ledger = Ledger::new(settings.admission);
        ledger.restore(saved.placed, now);
        let listeners: Result<Vec<Listener>, ListenError> =
            settings.listen.iter().map(Listener::bind).collect();
        let listeners = listeners?;
        for listener in &listeners {
            if let Address::Unix(path) = listener.address() {
                // Anybody may look; who speaks for a node, the kernel says.
                use std::os::unix::fs::PermissionsExt;
                let open = std::fs::Permissions::from_mode(0o666);
                let _ = std::fs::set_permissions(path, open);
            }
        }
        let mut state = State {
            ledger,
            nodes: BTreeMap::new(),
            servers: saved.servers,
            fixed: settings.servers,
            started: now,
            settle,
            safe: Some(safe.to_string()),
            scheduler: scheduler.is_some(),
            measured: settings.measured,
            learned: saved.learned,
            changed: true,
        };
        state.give_fixed(settings.far, now);
        let mut coordinator = Coordinator {
            listeners,
            key: settings.key,
            state: Arc::new(Mutex::new(state)),
            file,
            path: settings.state,
            scheduler,
            connections: Arc::default(),
            saved: None,
            ticked: None,
        };
        // Now and not when it matters: a state that cannot be kept is no state.
        coordinator.save()?;
        Ok(coordinator)
    }

    pub fn addresses(&self) -> Vec<Address> {
        let address = |listener: &Listener| listener.address().clone();
        self.listeners.iter().map(address).collect()
    }

    /// Until it is told to end.
    pub fn run(&mut self, termination: &Termination) -> Result<(), CoordinatorError> {
        while termination.take().is_none() {
            let mut fds = vec![termination.as_fd()];
            fds.extend(self.listeners.iter().map(AsFd::as_fd));
            wait_any(&fds, TICK / 4);
            self.turn()?;
        }
        self.save()
    }

    fn turn(&mut self) -> Result<(), CoordinatorError> {
        for listener in &self.listeners {
            while let Ok(Some(stream)) = listener.accept() {
                self.serve(stream);
            }
        }
        let now = clock::now();
        let due = |at: Nanos| now.saturating_sub(at) >= Nanos::from(TICK);
        if self.ticked.is_none_or(due) {
            self.ticked = Some(now);
            self.tick(now)?;
        }
        Ok(())
    }

    fn serve(&self, stream: Stream) {
        if self.connections.fetch_add(1, Relaxed) >= CONNECTIONS_MAX {
            self.connections.fetch_sub(1, Relaxed);
            return;
        }
        let (key, state) = (self.key.clone(), Arc::clone(&self.state));
        let connections = Arc::clone(&self.connections);
        let work = move || {
            // Whoever breaks off, or sends nonsense, has his connection closed, and that is all.
            let _ = converse::converse(stream, &key, &state);
            connections.fetch_sub(1, Relaxed);
        };
        let thread = std::thread::Builder::new()
            .stack_size(256 << 10)
            .spawn(work);
        if thread.is_err() {
            self.connections.fetch_sub(1, Relaxed);
        }
    }

    fn save(&mut self) -> Result<(), CoordinatorError> {
        let (saved, version) = {
            let mut state = lock(&self.state);
            let version = state.ledger.version();
            if self.saved == Some(version) && !state.changed {
                return Ok(());
            }
            state.changed = false;
            let saved = Saved {
                placed: state.ledger.placed().cloned().collect(),
                servers: state.servers.clone(),
                learned: state.learned.clone(),
            };
            (saved, version)
        };
        let failed = |error| CoordinatorError::State(self.path.clone(), error);
        self.file.save(&saved).map_err(failed)?;
        self.saved = Some(version);
        Ok(())
    }

    fn tick(&mut self, now: Nanos) -> Result<(), CoordinatorError> {
        lock(&self.state).forget(now);
        let Some(scheduler) = &mut self.scheduler else {
            let mut state = lock(&self.state);
            if state.settled(now) {
                state.safe = None;
            }
            drop(state);
            return self.save();
        };
        match scheduler.look() {
            Ok(seen) => {
                let mut state = lock(&self.state);
                state.take(seen, now);
                if state.settled(now) {
                    state.safe = None;
                }
            }
            Err(why) => {
                let why = format!("its scheduler does not answer ({why})");
                let mut state = lock(&self.state);
                if state.safe.as_ref() != Some(&why) {
                    eprintln!("muninn: safe mode: {why}");
                }
                state.safe = Some(why);
            }
        }
        let starts = {
            let mut state = lock(&self.state);
            state.ledger.expire(now);
            let mut starts = Vec::new();
            while state.safe.is_none()
                && starts.len() < BATCH_MAX
                && let Some(start) = state.ledger.decide(now)
            {
                starts.push(start);
            }
            starts
        };
        // Before anybody is told.
        self.save()?;
        let Some(scheduler) = &mut self.scheduler else {
            return Ok(());
        };
        for start in starts {
            if let Err(why) = scheduler.start(&start) {
                eprintln!(
                    "muninn: job {} was not started at {}: {why}",
                    start.job, start.node
                );
                // If it still waits it is seen again at the next look.
                lock(&self.state).ledger.ended(start.job);
            }
        }
        let waiting: Vec<u64> = {
            let state = lock(&self.state);
            let waiting = state.ledger.waiting();
            waiting.map(|(request, _)| request.job).collect()
        };
        if let Err(why) = scheduler.keep(&waiting) {
            eprintln!("muninn: jobs that wait could not be kept waiting: {why}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
