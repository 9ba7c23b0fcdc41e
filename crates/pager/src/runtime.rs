//! The runtime of a process: from the job's page to a pager at work.
//!
//! Three threads of our own: the *steward* watches resident memory from the start; when memory runs
//! short it starts the *pager* ([`Actor`]) and the [*clerk*](Clerk). Nothing of the program is
//! touched before that. A child of a process with a pager starts its own at once, with what it
//! inherits.

use crate::actor::Actor;
use crate::birth::{Births, DONE, READY};
use crate::clerk::Clerk;
use crate::copying::Carrier;
use crate::engine::{Engine, Settings};
use crate::fork::{self, State};
use crate::process::{self, Process};
use crate::servers::Servers;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::steward::{Steward, Verdict};
use muninn_job::{Config, Job, Place};
use muninn_net::{Control, Keeping, Key, SessionOptions, Transport};
use muninn_sys::affinity::{self, Thread};
use muninn_sys::memory::Memfd;
use muninn_sys::own::{self, Priority};
use muninn_sys::pm_qos;
use muninn_sys::proc::{self, StatmReader};
use muninn_sys::socket::Link;
use muninn_sys::uffd::{FaultDevice, Features, RegisterMode, Userfaultfd};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Starts threads on stacks of ours; see [`own::spawn`].
pub trait Threads: Sync {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
    /// Memory that the runtime itself takes.
    fn runtime_bytes(&self) -> u64;
}

/// The signal that ends a process whose memory is out of reach.
const SIGBUS: i32 = 7;
/// How long a parent may take to hand memory over, and a server to let a child read.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_micros(20);

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

/// What a child has from its parent.
struct Inheritance {
    device: Userfaultfd,
    snapshot: Snapshot,
    link: Link,
}

impl Runtime {
    /// Runs the runtime of this process on the calling thread, which must be one of our own.
    /// Returns only when the program is to be left alone. `link` leads to the parent of a child
    /// that has memory to take over; `separated` is set when this thread has a copy of it.
    pub fn run(
        threads: &'static dyn Threads,
        job_path: &str,
        link: Option<RawFd>,
        separated: &AtomicBool,
    ) {
        if link.is_some() {
            fork::end_with_parent();
        }
        let separate = own::separate_files(link);
        separated.store(true, Ordering::Release);
        if separate.is_err() {
            return;
        }
        own::set_priority(Thread::Current, Priority::Immediate);
        // SAFETY: this thread's own copy, kept open for it just now.
        let link = link.map(|fd| Link::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }));
        let opened = Job::open(job_path).and_then(|job| Ok((job.config()?, job)));
        let Ok((config, job)) = opened else {
            if link.is_some() {
                own::end_process(SIGBUS);
            }
            return;
        };
        let pid = proc::own_pid();
        let Some(place) = job.take_place(pid) else {
            fail(
                &job,
                "this job has more processes than can be managed (4096)",
            );
        };
        let runtime = Runtime {
            threads,
            job: Arc::new(job),
            place,
            config,
        };
        if let Err(why) = runtime.watch(job_path, link) {
            fail(&runtime.job, &why);
        }
    }

    /// The steward's work.
    fn watch(&self, job_path: &str, link: Option<Link>) -> Result<(), String> {
        let job = Job::open(job_path).map_err(text)?;
        let statm = StatmReader::open().map_err(text)?;
        let program = std::fs::read_link("/proc/self/exe").map_err(text)?;
        let program = program.into_os_string().into_encoded_bytes();
        let place = self.place.clone();
        let mut steward = Steward::new(job, place, statm, program, self.config.threshold);
        if link.is_some() {
            steward.inherit();
        } else {
            if self.config.huge_pages {
                // A program that was taken over, and started this one in its place, had none.
                own::set_huge_pages(true);
            }
            while steward.look(self.threads.runtime_bytes()) == Verdict::Fine {
                steward.sleep(false);
            }
        }
        let shared = self.start(link)?;
        loop {
            steward.oversee(&shared, self.threads.runtime_bytes());
            steward.sleep(true);
        }
    }

    fn connect(&self) -> Result<Vec<Arc<dyn Transport>>, String> {
        let options = SessionOptions {
            name: self.config.name.clone(),
            key: match &self.config.key {
                Some(bytes) => Key::from_file_contents(bytes).map_err(text)?,
                None => Key::none(),
            },
            keeper: Keeping::Caller,
            ..SessionOptions::default()
        };
        let pool = self.config.pool.iter();
        pool.map(|address| muninn_net::connect(address, &options).map_err(text))
            .collect()
    }

    /// Connects to the pool and starts the pager's threads. They are started here, before memory is
    /// taken over: starting a thread allocates from the program's heap, which nobody answers for
    /// between a parent's pager and a child's.
    fn start(&self, link: Option<Link>) -> Result<Arc<Shared>, String> {
        let transports = self.connect()?;
        let pid = u64::from(proc::own_pid());
        let clerk = Arc::new(Clerk::new(transports, 0, pid));
        let shared = Shared::new(Arc::clone(&clerk), Arc::clone(&self.job)).map_err(text)?;
        let shared = Arc::new(shared);
        let spawn = |name, work| self.threads.spawn(name, work).map_err(text);
        let job = Arc::clone(&self.job);
        let keeping = Arc::clone(&clerk);
        let work = move || {
            let why = keeping.run();
            fail(&job, &why);
        };
        spawn("muninn-clerk", Box::new(work))?;
        let job = Arc::clone(&self.job);
        let place = self.place.clone();
        let settings = Settings {
            evict: self.config.evict,
            prefetch: self.config.prefetch,
            max_far: self.config.max_far,
        };
        let carrier = match self.config.no_move || !process::can_move().map_err(text)? {
            true => Some(Arc::new(Carrier::default())),
            false => None,
        };
        if let Some(carrier) = carrier.clone() {
            spawn("muninn-carrier", Box::new(move || carrier.run()))?;
        }
        let for_pager = Arc::clone(&shared);
        let is_child = link.is_some();
        let bound = Arc::new(AtomicBool::new(false));
        let binds = Arc::clone(&bound);
        let work = move || {
            if is_child {
                fork::end_with_parent();
                binds.store(true, Ordering::Release);
            }
            // Who may not raise a priority may not go back from behind others either.
            if own::set_priority(Thread::Current, Priority::Raised) {
                for_pager.set_pager(affinity::current_thread_id());
            }
            // A processor that sleeps deeply takes longer to wake than a page takes to come.
            let _awake = pm_qos::keep_awake();
            match begin(link, clerk, place, for_pager, &settings, carrier) {
                Ok(mut actor) => fail(&job, &actor.run().to_string()),
                Err(why) => fail(&job, &why),
            }
        };
        spawn("muninn-pager", Box::new(work))?;
        if is_child {
            // The pager knows when the parent is needed no more.
            while !bound.load(Ordering::Acquire) {
                std::thread::sleep(PAUSE);
            }
            fork::outlive_parent();
        }
        Ok(shared)
    }
}

/// Makes the pager, with a device of its own or with what a child inherits.
fn begin(
    link: Option<Link>,
    clerk: Arc<Clerk>,
    place: Place,
    shared: Arc<Shared>,
    settings: &Settings,
    carrier: Option<Arc<Carrier>>,
) -> Result<Actor, String> {
    let servers = Servers::new(Arc::clone(&clerk)).map_err(text)?;
    let births = Births::new(fork::open_door());
    let no_forks = link.is_none().then(fork::NoForks::begin);
    let inheritance = match link {
        Some(link) => Some(take_over(link, clerk.transports())?),
        None => None,
    };
    let (device, state, inherited) = match inheritance {
        Some(from_parent) => {
            let rest = (from_parent.snapshot, from_parent.link);
            (from_parent.device, State::Active, Some(rest))
        }
        None => match process::open_program_device().map_err(text)? {
            (device, true) => (device, State::Active, None),
            (device, false) => (device, State::Deaf, None),
        },
    };
    device.set_blocking(true).map_err(text)?;
    let bell = shared.bell();
    // SAFETY: nothing is kept in the bell.
    unsafe { device.register(bell, RegisterMode::MISSING) }.map_err(text)?;
    let process = Process::new(device, place, carrier).map_err(text)?;
    let frames = process.frames();
    let engine = Engine::new(process, servers, frames, settings);
    let mut actor = Actor::new(engine, shared, births);
    if let Some((snapshot, link)) = inherited {
        actor.inherit(&snapshot);
        fork::outlive_parent();
        fork::until_unbound();
        link.send(DONE, &[]).map_err(text)?;
    }
    fork::set_bell(bell.first());
    fork::set_state(state);
    drop(no_forks);
    Ok(actor)
}

/// Asks the parent's pager for this process's memory, and the servers for the right to read it.
fn take_over(link: Link, transports: &[Arc<dyn Transport>]) -> Result<Inheritance, String> {
    let gone = "the parent process ended before this child had its memory";
    let mut message = [0; 512];
    let mut receive = || {
        let answer = link.receive(&mut message, PATIENCE).map_err(|_| gone)?;
        let (len, fds) = answer.ok_or("the parent process did not hand its memory over in time")?;
        fds.into_iter().next().ok_or_else(|| {
            let why = String::from_utf8_lossy(&message[..len]);
            format!("the parent process could not share its memory: {why}{gone}")
        })
    };
    let device = receive()?;
    // Open to the end, whatever goes wrong from here on: closing the last one would fill absent
    // pages with zeros.
    std::mem::forget(device.try_clone().map_err(text)?);
    link.send(READY, &[]).map_err(|_| gone)?;
    let file = receive()?;
    let features = Features(process::REQUIRED.0 | Features::EVENT_FORK.0 | Features::MOVE.0);
    let device = Userfaultfd::from_fd(device, features);
    let bytes = Memfd::from_fd(file)
        .and_then(|file| file.read_all())
        .map_err(text)?;
    let snapshot =
        Snapshot::from_bytes(&bytes).ok_or("what the parent handed over is cut short")?;
    for (server, ticket) in &snapshot.tickets {
        let transport = transports
            .get(server.0 as usize)
            .ok_or("a server too many")?;
        let ask = Control::Adopt { ticket: *ticket };
        transport.call(ask, PATIENCE).map_err(text)?;
    }
    Ok(Inheritance {
        device,
        snapshot,
        link,
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Leaves a message for the launcher and ends this process.
fn fail(job: &Job, why: &str) -> ! {
    job.leave_message(proc::own_pid(), why);
    own::end_process(SIGBUS)
}
