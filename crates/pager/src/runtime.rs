//! The runtime of a process: from the job's page to a pager at work.
//!
//! It runs in the program's companion ([`own`]), in three threads: the *steward* watches resident
//! memory from the start; when memory runs short it starts the *pager* ([`Actor`]) and the
//! [*clerk*](Clerk) of far memory. Nothing of the program is touched before that. A child of a process with a pager
//! is that one's ward at first ([`ward`](crate::ward)); its own pager takes it over when it has lived
//! for a moment. What keeps it from doing so leaves it a ward.

use crate::actor::Actor;
use crate::copying::Carrier;
use crate::fork::{self, Letter, State};
use crate::hash::Hasher;
use crate::process::{self, Means, Process};
use crate::seal::wipe;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::steward::{Steward, Verdict};
use crate::vault::Vault;
use crate::ward::{DONE, HERITAGE, Wards};
use muninn_job::{Config, Job, Place, PoolServer, Visit};
use muninn_net::{HolderAddress, Keeping, Key, Lock, SessionOptions};
use muninn_pager_core::{BATCH_MAX, Engine, Settings};
use muninn_sys::affinity::{self, Thread};
use muninn_sys::memory::{Memfd, program::Reader};
use muninn_sys::own::{self, Fate, Priority, Program};
use muninn_sys::pagemap::Pagemap;
use muninn_sys::pm_qos;
use muninn_sys::proc::{self, ProcessId, StatmReader};
use muninn_sys::socket::{Address, Link};
use muninn_sys::uffd::{self, FaultDevice, Features, PageRange, RegisterMode, Userfaultfd};
use muninn_volume::{Attempt, Clerk, ExtentId, Listed, Roster, Volume};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// Starts threads of the companion; see [`own::spawn`].
pub trait Threads: Sync {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
    /// Memory that the runtime itself takes.
    fn runtime_bytes(&self) -> u64;
}

/// The signal that ends a process whose memory is out of reach.
const SIGBUS: i32 = 7;
/// How long a parent may take to hand memory over.
const PATIENCE: Duration = Duration::from_secs(20);
/// A child that has lived this long will go on: most end, or execute another program, before.
const CHILDHOOD: Duration = Duration::from_millis(10);
/// How often a companion that stays for its wards looks whether there are any left.
const WARD_PAUSE: Duration = Duration::from_millis(2);

/// The job, for last words; the runtime has it as long as the companion lives.
static WITNESS: AtomicPtr<Job> = AtomicPtr::new(std::ptr::null_mut());

fn on_panic(panic: &std::panic::PanicHookInfo<'_>) {
    // SAFETY: kept by the runtime until the companion ends.
    if let Some(job) = unsafe { WITNESS.load(Ordering::Acquire).as_ref() } {
        job.leave_message(own::program_pid(), &format!("internal error: {panic}"));
    }
    // Here, and not by unwinding: that asks the loader, whose tables may be far.
    own::end_program(SIGBUS)
}

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

/// The program's memory as files, opened at once: a program that changes its user, or does not want to be looked at,
/// takes the right to open them away, from us as well. Children of such a program have them from the launcher.
struct OwnMemory {
    pagemap: Result<Pagemap, String>,
    /// Read where pages cannot be moved.
    reader: Result<Reader, String>,
}

impl OwnMemory {
    fn open(handed: Handed) -> OwnMemory {
        let pagemap = Pagemap::open();
        let pagemap = pagemap.or_else(|why| handed.pagemap.map(Pagemap::handed).ok_or(why));
        let reader = Reader::open();
        let reader = reader.or_else(|why| handed.memory.map(Reader::handed).ok_or(why));
        let unreadable = |why| format!("cannot open the memory of this process: {why}");
        OwnMemory {
            pagemap: pagemap.map_err(text),
            reader: reader.map_err(unreadable),
        }
    }
}

/// What a child has from its parent.
struct Inheritance {
    device: Userfaultfd,
    snapshot: Snapshot,
    link: Link,
}

impl Runtime {
    /// Runs the runtime of this process in its companion. Returns when the program has ended, or has
    /// executed another. A `letter` leads a child to its parent's companion.
    pub fn run(threads: &'static dyn Threads, job: Job, letter: Option<Letter>) {
        let Some(program) = Program::watch() else {
            return;
        };
        own::set_priority(Thread::Current, Priority::Immediate);
        let job = Arc::new(job);
        // Without anything of its own: a child's runtime replaces it, and has not its parent's heap.
        WITNESS.store(Arc::as_ptr(&job).cast_mut(), Ordering::Release);
        std::panic::set_hook(Box::new(on_panic));
        let config = match job.config() {
            Ok(config) => config,
            Err(why) => fail(&job, &why.to_string()),
        };
        let mut handed = Handed::default();
        let known = settle_in(&config, &mut handed);
        let memory = OwnMemory::open(handed);
        let Some(place) = known.and_then(|process| job.take_place_of(process)) else {
            if program.wait(Duration::ZERO) != Fate::Runs {
                return;
            }
            fail(
                &job,
                "this job has more processes than can be managed (4096)",
            );
        };
        let runtime = Runtime {
            threads,
            job,
            place,
            config,
        };
        if let Err(why) = runtime.watch(program, memory, letter) {
            match letter {
                // Whatever it was, its parent's companion answers for it.
                Some(_) => {}
                None => fail(&runtime.job, &why),
            }
        }
    }

    /// The steward's work.
    fn watch(
        &self,
        watched: Program,
        memory: OwnMemory,
        letter: Option<Letter>,
    ) -> Result<(), String> {
        let statm = StatmReader::open().map_err(text)?;
        let program = std::fs::read_link(own::rooted("/proc/self/exe")).map_err(text)?;
        let program = program.into_os_string().into_encoded_bytes();
        let place = self.place.clone();
        let policy = self.config.threshold;
        let mut steward = Steward::new(place, watched, statm, program, policy);
        if letter.is_some() {
            steward.inherit();
        } else if self.config.huge_pages {
            // A program that was taken over, and started this one in its place, had none.
            own::set_huge_pages(true);
        }
        let grown_up = Instant::now() + CHILDHOOD;
        let mut fate = Fate::Runs;
        while fate == Fate::Runs && steward.look(self.threads.runtime_bytes()) == Verdict::Fine {
            if letter.is_some() && Instant::now() > grown_up {
                break;
            }
            fate = steward.sleep(letter.is_some());
        }
        if fate == Fate::Runs {
            fate = self.oversee(&mut steward, memory, letter)?;
        }
        if fate == Fate::Ended {
            self.place.release();
        }
        Ok(())
    }

    /// The same once memory is short, until the program is gone.
    fn oversee(
        &self,
        steward: &mut Steward,
        memory: OwnMemory,
        letter: Option<Letter>,
    ) -> Result<Fate, String> {
        let shared = self.start(memory, letter)?;
        let mut fate = Fate::Runs;
        while fate == Fate::Runs {
            if shared.has_given_up() {
                // Its parent's companion goes on answering for it. All we can do is to count.
                steward.look(self.threads.runtime_bytes());
            } else {
                steward.oversee(&shared, self.threads.runtime_bytes());
            }
            fate = steward.sleep(true);
        }
        shared.keeper.take_leave();
        if fate == Fate::Ended {
            self.place.release();
        }
        if shared.has_given_up() {
            return Ok(fate);
        }
        // The last fork was read of before the program could end; once the bell is heard it was
        // followed, too.
        shared.ring();
        while shared.wards() > 0 {
            std::thread::sleep(WARD_PAUSE);
        }
        Ok(fate)
    }

    /// Starts the pager's threads.
    fn start(&self, memory: OwnMemory, letter: Option<Letter>) -> Result<Arc<Shared>, String> {
        let pid = u64::from(own::program_pid());
        let roster = Arc::new(roster(&self.config, Arc::clone(&self.job)));
        let layout = self.config.layout;
        let clerk = Arc::new(Clerk::new(Arc::clone(&roster), layout, 0, pid));
        let shared = Shared::new(Arc::clone(&clerk), Arc::clone(&self.job), &self.config.door)
            .map_err(text)?;
        let shared = Arc::new(shared);
        let spawn = |name, work| self.threads.spawn(name, work).map_err(text);
        let keeping = Arc::clone(&clerk);
        let work = move || {
            own::set_priority(Thread::Current, Priority::Raised);
            keeping.run();
        };
        spawn("muninn-clerk", Box::new(work))?;
        let job = Arc::clone(&self.job);
        let place = self.place.clone();
        let settings = Settings {
            evict: self.config.evict,
            prefetch: self.config.prefetch,
            max_far: self.config.max_far,
            ..Settings::default()
        };
        let seal = self.config.seal;
        let carrier = match self.config.no_move || !process::can_move().map_err(text)? {
            true => Some(Arc::new(Carrier::default())),
            false => None,
        };
        if let Some(carrier) = carrier.clone() {
            let reader = memory.reader?;
            spawn("muninn-carrier", Box::new(move || carrier.run(&reader)))?;
        }
        let for_pager = Arc::clone(&shared);
        let volume = Volume::new(roster, clerk);
        let door = self.config.door.clone();
        let work = move || {
            let ours = Arc::clone(&for_pager);
            // Before anything else, as the program may be growing meanwhile; then like others.
            let pagemap = memory.pagemap;
            let began = pagemap.and_then(|pagemap| {
                let means = Means {
                    pagemap,
                    place,
                    carrier,
                };
                begin(&door, letter, volume, means, for_pager, &settings, seal)
            });
            // Who may not raise a priority may not go back from behind others either.
            if own::set_priority(Thread::Current, Priority::Raised) {
                ours.set_pager(affinity::current_thread_id());
            }
            // A processor that sleeps deeply takes longer to wake than a page takes to come.
            let _awake = pm_qos::keep_awake();
            match began {
                Ok(mut actor) => fail(&job, &actor.run().to_string()),
                Err(_) if letter.is_some() => ours.give_up(),
                Err(why) => fail(&job, &why),
            }
        };
        spawn("muninn-pager", Box::new(work))?;
        Ok(shared)
    }
}

/// Finds the way to what the runtime needs: a companion of another user than the launcher, in another
/// root or among other numbers of processes asks the launcher. The program, as the launcher knows it;
/// `None` if it has ended.
fn settle_in(config: &Config, handed: &mut Handed) -> Option<ProcessId> {
    let namespace = own::pid_namespace();
    let at_home = namespace == Some(config.namespace) && proc::own_uid() == config.user;
    let visit = match at_home {
        true => None,
        false => Visit::pay(&config.door, own::program_pid()),
    };
    let Some(visit) = visit else {
        return ProcessId::of(own::program_pid());
    };
    if namespace.is_none() {
        let _ = own::enter_root(&visit.root);
    }
    uffd::use_device(visit.device);
    *handed = Handed {
        pagemap: visit.pagemap,
        memory: visit.memory,
    };
    own::learn_listed(visit.pid);
    // Whichever numbers `/proc` shows here: when the program began is the same.
    ProcessId::of(own::listed_pid())?.under(visit.pid)
}

/// What the launcher opened for us.
#[derive(Default)]
struct Handed {
    pagemap: Option<OwnedFd>,
    memory: Option<OwnedFd>,
}

/// The program, and so we, are not to have the key: the launcher shakes hands.
fn key(config: &Config) -> Key {
    let holder = HolderAddress {
        name: config.holder(),
        path: config.holder_path.clone(),
    };
    match config.lock {
        Lock::Open => Key::none(),
        lock => holder.key(lock),
    }
}

/// The servers of the pool, none of them connected yet.
fn roster(config: &Config, job: Arc<Job>) -> Roster {
    let options = SessionOptions {
        name: config.name.clone(),
        key: key(config),
        keeper: Keeping::Caller,
        ..SessionOptions::default()
    };
    let connect = move |address: &Address, attempt: Attempt| {
        let options = SessionOptions {
            connect_timeout: attempt.patience,
            ..options.clone()
        };
        muninn_net::connect_over(attempt.connected, address, &options).map_err(text)
    };
    let page = Arc::clone(&job);
    let tell = move |line: &str| job.leave_note(line);
    let source = move |seen| {
        let (version, list) = page.pool_after(seen)?;
        let listed = |server: PoolServer| Listed {
            fill: server.fill,
            address: server.address,
            rack: server.rack,
            left: server.left,
        };
        Some((version, list.into_iter().map(listed).collect()))
    };
    // The list begins with those that were named at the start, and so does every later one.
    let roster = Roster::new(&config.pool, Box::new(connect), Box::new(tell));
    roster.following(Box::new(source))
}

/// Makes the pager, with a device of its own or with what a child inherits. An error leaves a child
/// in the care of its parent's companion.
fn begin(
    door: &str,
    letter: Option<Letter>,
    mut volume: Volume,
    means: Means,
    shared: Arc<Shared>,
    settings: &Settings,
    seal: bool,
) -> Result<Actor, String> {
    let inheritance = match letter {
        Some(letter) => match take_over(letter, &mut volume) {
            Ok(inheritance) => Some(inheritance),
            Err(NotTaken::Ward(why)) => return Err(why),
            Err(NotTaken::Alone) => fail(shared.job(), ALONE),
        },
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
    // Before memory of ours is made that would be locked, too.
    crate::steward::unlock_much(means.place.share());
    let chores = Arc::clone(&shared.chores);
    let keeper = Arc::clone(&shared.keeper);
    // SAFETY: an engine has it from here on, and nobody else.
    let process = unsafe { Process::new(device, means, chores, keeper) }.map_err(text)?;
    let frames = process.frames();
    let vault = Vault::new(volume, Hasher::random(), seal);
    let scratch = vec![[0; muninn_types::PAGE_SIZE]; BATCH_MAX].into_boxed_slice();
    let engine = Engine::new(process, vault, frames, scratch, settings);
    let mut actor = Actor::new(engine, shared, Wards::new());
    if let Some((snapshot, _)) = &inherited {
        actor.inherit(snapshot)?;
    }
    actor.register_own_pages()?;
    // Not before all that a filter might end us for has been done: until then the parent's companion
    // answers, and after that the launcher ends the program with us.
    let device = actor.engine.kernel.program().as_fd();
    if let Some(link) = muninn_job::leave_device(door, own::program_pid(), device) {
        actor.shared.keeper.set(link);
    }
    if let Some((_, link)) = inherited {
        link.send(DONE, &[]).map_err(text)?;
    }
    actor.follow_forks(state);
    Ok(actor)
}

impl Actor {
    /// Registers the bell and the mailbox.
    fn register_own_pages(&mut self) -> Result<(), String> {
        let (bell, mailbox) = (self.shared.bell(), self.shared.mailbox());
        self.engine.never_there = [bell.first(), mailbox];
        let device = self.engine.kernel.program();
        for range in [bell, PageRange::one(mailbox)] {
            // SAFETY: nothing is kept in either.
            unsafe { device.register(range, RegisterMode::MISSING) }.map_err(text)?;
        }
        Ok(())
    }

    /// From now on the program's forks are followed. Children of before have nothing that is far.
    fn follow_forks(&self, state: State) {
        let (bell, mailbox) = (self.shared.bell(), self.shared.mailbox());
        fork::set_state(state, mailbox, bell.first());
    }
}

const ALONE: &str = "the companion of its parent is gone, which answered for its memory";

/// Why a child's companion does not answer for it.
enum NotTaken {
    /// Its parent's goes on to.
    Ward(String),
    /// Nobody does.
    Alone,
}

impl<T: Into<String>> From<T> for NotTaken {
    fn from(why: T) -> NotTaken {
        NotTaken::Ward(why.into())
    }
}

/// Asks the parent's companion for this process's memory, and the servers for the right to read it.
fn take_over(letter: Letter, volume: &mut Volume) -> Result<Inheritance, NotTaken> {
    let link = Link::connect(&letter.door).map_err(|_| NotTaken::Alone)?;
    let asked = link.send(&letter.token.to_le_bytes(), &[]);
    asked.map_err(|_| NotTaken::Alone)?;
    let mut message = [0; 512];
    let answer = link.receive(&mut message, PATIENCE).map_err(text)?;
    let (len, fds) = answer.ok_or("the parent's companion did not answer in time")?;
    if len == 0 {
        return Err(NotTaken::Alone);
    }
    let [device, file] = <[_; 2]>::try_from(fds)
        .ok()
        .filter(|_| &message[..len] == HERITAGE)
        .ok_or_else(|| String::from_utf8_lossy(&message[..len]).into_owned())?;
    let features = Features(process::REQUIRED.0 | Features::EVENT_FORK.0 | Features::MOVE.0);
    let device = Userfaultfd::from_fd(device, features);
    let mut bytes = Memfd::from_fd(file)
        .and_then(|file| file.read_all())
        .map_err(text)?;
    let snapshot = Snapshot::from_bytes(&bytes);
    wipe(&mut bytes);
    let mut snapshot = snapshot.ok_or("what the parent handed over is cut short")?;
    snapshot.leave_out_unused();
    let needed = |id: ExtentId| snapshot.extents.iter().any(|(_, extent)| extent.id == id);
    volume.adopt(&snapshot.heritage, needed).map_err(text)?;
    Ok(Inheritance {
        device,
        snapshot,
        link,
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Leaves a message for the launcher and ends the program.
fn fail(job: &Job, why: &str) -> ! {
    job.leave_message(own::program_pid(), why);
    own::end_program(SIGBUS)
}
