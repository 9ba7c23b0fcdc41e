//! The agent of one node: adopts the jobs of the node, divides its memory among them, sizes its donor.
//!
//! One thread waits for everything that comes over the agent's socket and for time; it never blocks on
//! anybody. A second one ([`helper`]) speaks to the coordinator and to the node's memory server, which may
//! take their time.
//!
//! A job is a connection of its launcher. The kernel ends it when the launcher ends, however that came
//! about, so a job that is gone is never kept. The agent touches nothing of the job's own: it tells the
//! launcher a limit, and the launcher, who is the user's, sets it. When the agent is gone its jobs keep
//! what they have, and come back to the next one ([`expected`]: until then their shares are kept free).

mod expected;
mod helper;
mod peers;
mod pool_file;
mod running;

use crate::message::{Arrival, Doing, FromAgent, JobState, NodeState, ToAgent, clean_name};
use crate::node::{Claim, Divider, Node};
use crate::profiles::{Measured, Profiles};
use crate::state_file::StateFile;
use expected::Expected;
use helper::{Helper, Outside};
pub use helper::{MemoryServer, ServerNews};
use muninn_policy::rebalance::Policy;
use muninn_proto::auth::Key;
use muninn_sys::clock;
use muninn_sys::epoll::{Epoll, Events, Interest};
use muninn_sys::proc::ProcessId;
use muninn_sys::signal::Termination;
use muninn_sys::socket::{Address, Listener};
use muninn_types::Bytes;
use peers::{Heard, Peers};
use pool_file::PoolFile;
use running::{Running, Shape};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Jobs on one node, and of one user who is not root: a user cannot keep others out.
pub const JOBS_MAX: usize = 4096;
pub const JOBS_OF_USER_MAX: usize = 1024;
/// Between two looks at the world.
const TICK: Duration = Duration::from_millis(250);
/// After a start others may come back for so long before shares grow beyond what is certain.
const SETTLE: Duration = Duration::from_secs(3);

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const FIRST: u64 = 2;

/// How an agent is to be.
#[derive(Debug)]
pub struct Settings {
    pub name: String,
    pub memory: Bytes,
    pub donate: Bytes,
    /// Lend what jobs leave free, too.
    pub lend: bool,
    pub policy: Policy,
    pub interval: Duration,
    /// For state, the pool file and the donor's ceiling. This user's alone.
    pub folder: PathBuf,
    pub key_file: Option<PathBuf>,
    pub key: Key,
    pub coordinator: Option<Address>,
    /// Profiles of jobs that were measured.
    pub measured: Measured,
    /// Servers of the pool, besides those that the coordinator knows.
    pub servers: Vec<String>,
    /// Where this node's own server can be reached by others.
    pub own_servers: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("{0}")]
    Listen(#[from] muninn_sys::socket::ListenError),
    #[error("cannot keep its state in {}: {}", .0.display(), .1)]
    Folder(PathBuf, std::io::Error),
    #[error("cannot wait for anything: {0}")]
    Wait(String),
}

pub struct Agent {
    settings: Settings,
    listener: Listener,
    peers: Peers,
    jobs: BTreeMap<u64, Running>,
    divider: Divider,
    profiles: Profiles,
    expected: Expected,
    outside: Outside,
    helper: Helper,
    started: Instant,
    ticked: Instant,
    divided: Option<Instant>,
    squeezed: bool,
    ceiling: Bytes,
    pool: PoolFile,
    rebalances: u64,
    rebalance_us_max: u64,
    complained: Option<String>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Agent({}, {} jobs)", self.settings.name, self.jobs.len())
    }
}

impl Agent {
    /// Listens, and believes what the agent before left behind. `server` is the node's own memory server.
    pub fn start(
        settings: Settings,
        socket: &Address,
        server: Option<Box<dyn MemoryServer>>,
    ) -> Result<Agent, AgentError> {
        let listener = Listener::bind(socket)?;
        if let Address::Unix(path) = socket {
            // Jobs are any user's. Who somebody is, the kernel says.
            use std::os::unix::fs::PermissionsExt;
            let open = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(path, open)
                .map_err(|error| AgentError::Folder(path.clone(), error))?;
        }
        let wait = |errno: &dyn std::fmt::Display| AgentError::Wait(errno.to_string());
        let epoll = Epoll::new().map_err(|errno| wait(&errno))?;
        epoll
            .add(&listener, LISTENER, Interest::READ)
            .map_err(|errno| wait(&errno))?;
        let profiles = StateFile::durable(settings.folder.join("profiles"));
        let pool = PoolFile::new(&settings.folder);
        let known = pool.read();
        let helper = Helper::start(&settings, server, known);
        let mut agent = Agent {
            divider: Divider::new(settings.policy),
            profiles: Profiles::load(Some(profiles)),
            expected: Expected::load(settings.folder.join("jobs")),
            listener,
            peers: Peers::new(epoll, FIRST),
            jobs: BTreeMap::new(),
            outside: Outside::default(),
            helper,
            started: Instant::now(),
            ticked: Instant::now(),
            divided: None,
            squeezed: false,
            ceiling: Bytes::ZERO,
            pool,
            rebalances: 0,
            rebalance_us_max: 0,
            complained: None,
            settings,
        };
        agent.write_pool()?;
        agent.set_ceiling();
        Ok(agent)
    }

    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Until it is told to end.
    pub fn run(&mut self, termination: &Termination) -> Result<(), AgentError> {
        (self.peers.epoll())
            .add(termination, SIGNALS, Interest::READ)
            .map_err(|errno| AgentError::Wait(errno.to_string()))?;
        while termination.take().is_none() {
            self.turn()?;
        }
        self.save();
        Ok(())
    }

    /// Does what has come to be done, or waits a moment for it.
    fn turn(&mut self) -> Result<(), AgentError> {
        let mut events = Events::default();
        let heard = self.peers.epoll().wait(&mut events, Some(TICK));
        heard.map_err(|errno| AgentError::Wait(errno.to_string()))?;
        let happened: Vec<(u64, bool)> = events.iter().map(|e| (e.token, e.writable)).collect();
        for (token, writable) in happened {
            match token {
                LISTENER => self.peers.accept(&self.listener),
                SIGNALS => {}
                peer => match writable && !self.peers.flush(peer) {
                    true => self.gone(peer),
                    false => self.read(peer),
                },
            }
        }
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            self.tick();
        }
        Ok(())
    }

    fn read(&mut self, token: u64) {
        match self.peers.read(token) {
            Heard::Something => {}
            Heard::Nothing => return,
            Heard::End => return self.gone(token),
        }
        loop {
            match self.peers.next_message(token) {
                Ok(None) => return,
                Ok(Some(ToAgent::Arrive(arrival))) => self.arrive(token, arrival),
                Ok(Some(ToAgent::Doing(doing))) => self.doing(token, doing),
                Ok(Some(ToAgent::State)) => {
                    let state = FromAgent::State(Box::new(self.state()));
                    self.tell(token, &state);
                }
                Err(error) => return self.refuse(token, error),
            }
        }
    }

    /// Says something to somebody who listens. Whoever lets it pile up is gone.
    fn tell(&mut self, token: u64, message: &FromAgent) {
        if !self.peers.tell(token, message) {
            self.gone(token);
        }
    }

    fn refuse(&mut self, token: u64, why: impl std::fmt::Display) {
        let why = why.to_string();
        self.tell(token, &FromAgent::Refused { why });
        self.gone(token);
    }

    fn arrive(&mut self, token: u64, arrival: Arrival) {
        let Some(who) = self.peers.who(token) else {
            return;
        };
        if self.jobs.contains_key(&token) {
            return self.refuse(token, "this connection stands for a job already");
        }
        if arrival.memory > Bytes(1 << 50) || arrival.limit > Bytes(1 << 50) {
            return self.refuse(token, "no machine has so much memory");
        }
        let of_user = self.jobs.values().filter(|job| job.uid == who.uid).count();
        if self.jobs.len() >= JOBS_MAX || (who.uid != 0 && of_user >= JOBS_OF_USER_MAX) {
            let why = format!(
                "the agent has {} jobs, {of_user} of them of user {}: no more are taken",
                self.jobs.len(),
                who.uid
            );
            return self.refuse(token, why);
        }
        let name = clean_name(&arrival.name);
        let learned = self.profiles.get(who.uid, &name).cloned();
        let measured = self.settings.measured.get(&name);
        let process = ProcessId::of(who.pid.unsigned_abs());
        let shape = Shape::of(measured, &learned.unwrap_or_default());
        let job = Running::new(process, who.uid, name, &arrival, shape);
        self.jobs.insert(token, job);
        self.peers.is_job(token);
        // Who has a limit already was here before.
        if arrival.limit > Bytes::ZERO {
            self.expected.returned(process);
        }
        self.divide();
        self.save_jobs();
        let Some(job) = self.jobs.get_mut(&token) else {
            return;
        };
        job.told = job.limit;
        let welcome = FromAgent::Welcome {
            limit: job.limit,
            pool: self.pool.path().display().to_string(),
            key_file: (self.settings.key_file.as_ref()).map(|path| path.display().to_string()),
        };
        self.tell(token, &welcome);
    }

    fn doing(&mut self, token: u64, doing: Doing) {
        let Some(job) = self.jobs.get_mut(&token) else {
            return self.refuse(token, "say first what the job is");
        };
        let sane = |s: f64| s.is_finite() && s >= 0.0;
        if !sane(doing.waited_s) || !sane(doing.run_s) || doing.peak > Bytes(1 << 50) {
            return self.refuse(token, "what it says of itself makes no sense");
        }
        let (before, planned) = (job.doing, job.memory());
        job.doing = doing;
        // What it did before it came back was seen by the agent before.
        if std::mem::take(&mut job.back) {
            return;
        }
        job.run.memory = job.run.memory.max(doing.peak);
        let ratio = job.limit.0 as f64 / doing.peak.0.max(1) as f64;
        let spent_s = doing.run_s - before.run_s;
        job.run.add(
            ratio.min(1.0),
            spent_s,
            (doing.waited_s - before.waited_s).max(0.0),
        );
        // It has more than anybody planned with.
        if job.memory() > planned {
            self.divide();
        }
    }

    /// A connection is over, and the job that it stood for.
    fn gone(&mut self, token: u64) {
        self.peers.remove(token);
        if let Some(job) = self.jobs.remove(&token) {
            self.profiles.learn(job.uid, &job.name, &job.run);
            self.divide();
            self.save_jobs();
        }
    }

    fn node(&self) -> Node {
        Node {
            memory: self.settings.memory,
            others: self.outside.others,
            donate: self.settings.donate,
            granted: self.outside.granted,
        }
    }

    /// Gives everybody a share. Those who get less are told first, so that what is given out was there.
    fn divide(&mut self) {
        let begun = clock::thread_cpu();
        let settling = self.started.elapsed() < SETTLE;
        let kept = self.expected.kept();
        let room = self.node().room().saturating_sub(kept);
        let claims: Vec<Claim<'_>> = self
            .jobs
            .values()
            .map(|job| Claim {
                profile: &job.profile,
                memory: job.memory(),
                min_ratio: job.min_ratio,
                progress: job.progress(),
            })
            .collect();
        let mut limits = Vec::new();
        self.squeezed = self.divider.divide(&claims, room, &mut limits);
        drop(claims);
        let mut changed: Vec<(u64, Bytes)> = Vec::new();
        for ((token, job), limit) in self.jobs.iter_mut().zip(limits) {
            // While others may still come back nobody who was here before gets more than he had.
            job.limit = match settling && job.told > Bytes::ZERO {
                true => limit.min(job.told),
                false => limit,
            };
            if job.told > Bytes::ZERO && job.limit != job.told {
                changed.push((*token, job.limit));
            }
        }
        // On a CPU: who else is there is not its cost.
        let took_us = (clock::thread_cpu() - begun).0 / 1000;
        self.rebalances += 1;
        self.rebalance_us_max = self.rebalance_us_max.max(took_us);
        self.divided = Some(Instant::now());
        self.set_ceiling();
        let grows = |(token, limit): &(u64, Bytes)| {
            let job = self.jobs.get(token);
            job.is_some_and(|job| *limit > job.told)
        };
        let (more, less): (Vec<_>, Vec<_>) = changed.into_iter().partition(grows);
        for (token, limit) in less.into_iter().chain(more) {
            if let Some(job) = self.jobs.get_mut(&token) {
                job.told = limit;
            }
            self.tell(token, &FromAgent::Limit { limit });
        }
    }

    /// Tells the node's memory server how much it may grant.
    fn set_ceiling(&mut self) {
        let wanted = |job: &Running| job.memory().max(job.limit).0;
        let jobs = Bytes(self.jobs.values().map(wanted).sum()) + self.expected.kept();
        self.ceiling = match self.settings.lend {
            true => self.node().ceiling(jobs),
            false => self.settings.donate,
        };
        self.helper.set_ceiling(self.ceiling);
    }

    fn tick(&mut self) {
        for token in self.peers.late() {
            self.gone(token);
        }
        let outside = self.helper.outside();
        let moved =
            (outside.others, outside.granted) != (self.outside.others, self.outside.granted);
        if outside.coordinated != self.outside.coordinated && self.settings.coordinator.is_some() {
            let text = match outside.coordinated {
                true => "the coordinator answers".to_string(),
                false => format!(
                    "the coordinator does not answer ({}); jobs go on with the pool as it is",
                    outside.complaint
                ),
            };
            self.complain(text);
        }
        self.outside = outside;
        let came = self.expected.look();
        let due = self
            .divided
            .is_none_or(|at| at.elapsed() >= self.settings.interval);
        let settled = self.started.elapsed() >= SETTLE
            && self.divided.is_some_and(|at| at < self.started + SETTLE);
        if due || moved || came || settled {
            self.divide();
        }
        if let Err(error) = self.write_pool() {
            self.complain(error.to_string());
        }
        self.save();
        let state = self.state();
        self.helper.tell(state);
    }

    fn complain(&mut self, text: String) {
        if self.complained.as_ref() != Some(&text) {
            eprintln!("muninn: {text}");
            self.complained = Some(text);
        }
    }

    fn save(&mut self) {
        if let Err(error) = self.profiles.save() {
            self.complain(format!("what was learned of jobs cannot be kept: {error}"));
        }
    }

    fn save_jobs(&mut self) {
        let jobs = self.jobs.values();
        let jobs = jobs.filter_map(|job| Some((job.process?, job.limit)));
        if let Err(error) = self.expected.save(jobs) {
            self.complain(format!("the list of jobs cannot be kept: {error}"));
        }
    }

    /// All servers but this node's own, which would only move memory from one hand to the other; that
    /// one if there is no other.
    fn write_pool(&mut self) -> Result<(), AgentError> {
        let mut pool: Vec<String> = self.settings.servers.clone();
        pool.extend(self.outside.pool.iter().cloned());
        pool.retain(|server| !self.settings.own_servers.contains(server));
        pool.sort();
        pool.dedup();
        if pool.is_empty() {
            pool.clone_from(&self.settings.own_servers);
        }
        let silent = self.settings.coordinator.is_some() && !self.outside.coordinated;
        let path = self.pool.path().to_path_buf();
        let written = self.pool.write(pool, silent);
        written.map_err(|error| AgentError::Folder(path, error))
    }

    fn state(&self) -> NodeState {
        let mut jobs: Vec<JobState> = self.jobs.values().map(Running::state).collect();
        jobs.extend(self.expected.list().map(|(process, limit)| JobState {
            pid: process.pid(),
            limit,
            memory: limit,
            floor: limit,
            away: true,
            ..JobState::default()
        }));
        NodeState {
            name: self.settings.name.clone(),
            memory: self.settings.memory,
            donate: self.settings.donate,
            others: self.outside.others,
            limits: Bytes(jobs.iter().map(|job| job.limit.0).sum()),
            policy: self.settings.policy.to_string(),
            servers: self.settings.own_servers.clone(),
            ceiling: self.ceiling,
            granted: self.outside.granted,
            squeezed: self.squeezed,
            coordinated: self.outside.coordinated,
            rebalances: self.rebalances,
            rebalance_us_max: self.rebalance_us_max,
            jobs,
        }
    }
}

#[cfg(test)]
mod tests;
