//! The runtime of a process: from the job's page to a pager at work.
//!
//! Three threads of our own: the *steward* watches resident memory from the start; when memory runs
//! short it starts the *pager* ([`Actor`]) and the [*clerk*](Clerk). Nothing of the program is
//! touched before that.

use crate::actor::Actor;
use crate::clerk::Clerk;
use crate::engine::{Engine, Settings};
use crate::process::{Process, open_program_device};
use crate::servers::Servers;
use crate::shared::Shared;
use crate::steward::{Steward, Verdict};
use muninn_job::{Config, Job, Place};
use muninn_net::{Keeping, Key, SessionOptions};
use muninn_sys::own::{self, Priority};
use muninn_sys::proc::{self, StatmReader};
use muninn_sys::uffd::{FaultDevice, RegisterMode};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Starts threads on stacks of ours; see [`own::spawn`].
pub trait Threads: Sync {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
    /// Memory that the runtime itself takes.
    fn runtime_bytes(&self) -> u64;
}

/// The signal that ends a process whose memory is out of reach.
const SIGBUS: i32 = 7;

pub struct Runtime {
    threads: &'static dyn Threads,
    job: Arc<Job>,
    place: Place,
    config: Config,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// Runs the runtime of this process on the calling thread, which must be one of our own.
    /// Returns only when the program is to be left alone.
    pub fn run(threads: &'static dyn Threads, job_path: &str) {
        if own::separate_files().is_err() {
            return;
        }
        own::raise_priority(Priority::Immediate);
        let Ok(job) = Job::open(job_path) else { return };
        let pid = proc::own_pid();
        let Ok(config) = job.config() else { return };
        let Some(place) = job.take_place(pid) else {
            job.leave_message(
                pid,
                "there are more processes in this job than can be managed",
            );
            own::end_process(SIGBUS);
        };
        let runtime = Runtime {
            threads,
            job: Arc::new(job),
            place,
            config,
        };
        if let Err(why) = runtime.watch(job_path) {
            runtime.fail(&why);
        }
    }

    fn fail(&self, why: &str) -> ! {
        fail(&self.job, why)
    }

    /// The steward's work.
    fn watch(&self, job_path: &str) -> Result<(), String> {
        let job = Job::open(job_path).map_err(|e| e.to_string())?;
        let statm = StatmReader::open().map_err(|e| e.to_string())?;
        let program = std::fs::read_link("/proc/self/exe").map_err(|e| e.to_string())?;
        let program = program.into_os_string().into_encoded_bytes();
        let place = self.place.clone();
        let mut steward = Steward::new(job, place, statm, program, self.config.threshold);
        while steward.look(self.threads.runtime_bytes()) == Verdict::Fine {
            steward.sleep(false);
        }
        let shared = self.start()?;
        loop {
            steward.oversee(&shared, self.threads.runtime_bytes());
            steward.sleep(true);
        }
    }

    /// Connects to the pool and starts the pager.
    fn start(&self) -> Result<Arc<Shared>, String> {
        let options = SessionOptions {
            name: self.config.name.clone(),
            key: match &self.config.key {
                Some(bytes) => Key::from_file_contents(bytes).map_err(|e| e.to_string())?,
                None => Key::none(),
            },
            keeper: Keeping::Caller,
            ..SessionOptions::default()
        };
        let mut transports = Vec::new();
        for address in &self.config.pool {
            let transport = muninn_net::connect(address, &options).map_err(|e| e.to_string())?;
            transports.push(transport);
        }
        let pid = u64::from(proc::own_pid());
        let clerk = Arc::new(Clerk::new(transports, 0, pid));
        let servers = Servers::new(Arc::clone(&clerk)).map_err(|e| e.to_string())?;
        let (device, _forks) = open_program_device().map_err(|e| e.to_string())?;
        device.set_blocking(true).map_err(|e| e.to_string())?;
        let shared = Arc::new(Shared::new().map_err(|e| e.to_string())?);
        // SAFETY: nothing is kept in the bell.
        unsafe { device.register(shared.bell(), RegisterMode::MISSING) }
            .map_err(|e| e.to_string())?;
        let process = Process::new(device, self.place.clone()).map_err(|e| e.to_string())?;
        let settings = Settings {
            evict: self.config.evict,
            prefetch: self.config.prefetch,
            max_far: self.config.max_far,
        };
        let frames = process.frames();
        let engine = Engine::new(process, servers, frames, &settings);
        let mut actor = Actor::new(engine, Arc::clone(&shared));
        let job = Arc::clone(&self.job);
        let pager = move || {
            own::raise_priority(Priority::Raised);
            let fatal = actor.run();
            fail(&job, &fatal.to_string());
        };
        let spawn = |name, work| self.threads.spawn(name, work).map_err(|e| e.to_string());
        spawn("muninn-pager", Box::new(pager))?;
        let job = Arc::clone(&self.job);
        let clerk = move || {
            let why = clerk.run();
            fail(&job, &why);
        };
        spawn("muninn-clerk", Box::new(clerk))?;
        Ok(shared)
    }
}

/// Leaves a message for the launcher and ends this process.
fn fail(job: &Job, why: &str) -> ! {
    job.leave_message(proc::own_pid(), why);
    own::end_process(SIGBUS)
}

/// How long to wait for something another process does.
pub const PATIENCE: Duration = Duration::from_secs(10);
