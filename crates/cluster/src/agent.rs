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

use crate::line::{Lines, encode};
use crate::message::{Arrival, Doing, FromAgent, JobState, NodeState, ToAgent, clean_name};
use crate::node::{Claim, Divider, Node, planned};
use crate::profiles::{Learned, Profiles, min_ratio};
use crate::state_file::StateFile;
use expected::Expected;
use helper::{Helper, Outside};
pub use helper::{MemoryServer, ServerNews};
use muninn_policy::profile::Profile;
use muninn_policy::rebalance::Policy;
use muninn_proto::auth::Key;
use muninn_sys::epoll::{Epoll, Events, Interest};
use muninn_sys::proc::{self, ProcessId};
use muninn_sys::signal::Termination;
use muninn_sys::socket::{Address, ByteStream, Listener, PeerCredentials, Stream, Transfer};
use muninn_types::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::io::{IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Jobs on one node, and of one user who is not root: a user cannot keep others out.
pub const JOBS_MAX: usize = 4096;
pub const JOBS_OF_USER_MAX: usize = 1024;
/// Connections that have not said what they are, and those of one user who is neither root nor ours.
const STRANGERS_MAX: usize = 1024;
const STRANGERS_OF_USER_MAX: usize = 64;
/// They have so long to say it.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);
/// A launcher says short things.
const SAID_MAX: usize = 16 << 10;
/// What may wait for one who does not read: two states of a node that is full.
const UNSENT_MAX: usize = 8 << 20;
/// Between two looks at the world.
const TICK: Duration = Duration::from_millis(250);
/// After a start others may come back for so long before shares grow beyond what is certain.
const SETTLE: Duration = Duration::from_secs(3);

/// The servers that jobs use.
const POOL: &str = "pool.toml";

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

struct Peer {
    stream: Stream,
    lines: Lines,
    unsent: Vec<u8>,
    who: PeerCredentials,
    since: Instant,
    job: bool,
}

struct Running {
    process: Option<ProcessId>,
    uid: u32,
    name: String,
    job: Option<u64>,
    said: Bytes,
    doing: Doing,
    limit: Bytes,
    /// What the launcher was told last.
    told: Bytes,
    profile: Profile,
    profiled: bool,
    min_ratio: f64,
    run: Learned,
    /// It was here before this agent was.
    back: bool,
}

impl Running {
    fn memory(&self) -> Bytes {
        planned(self.said, self.doing.peak)
    }

    fn progress(&self) -> f64 {
        // What it waited for was no progress. Never all: nobody knows that it is done.
        let worked = self.doing.run_s - self.doing.waited_s;
        (worked / self.profile.full_s()).clamp(0.0, 0.95)
    }
}

pub struct Agent {
    settings: Settings,
    listener: Listener,
    epoll: Epoll,
    peers: HashMap<u64, Peer>,
    jobs: BTreeMap<u64, Running>,
    next: u64,
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
    pool: Option<Vec<String>>,
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
        let known = read_pool(&settings.folder.join(POOL));
        let helper = Helper::start(&settings, server, known);
        let mut agent = Agent {
            divider: Divider::new(settings.policy),
            profiles: Profiles::load(Some(profiles)),
            expected: Expected::load(settings.folder.join("jobs")),
            listener,
            epoll,
            peers: HashMap::new(),
            jobs: BTreeMap::new(),
            next: FIRST,
            outside: Outside::default(),
            helper,
            started: Instant::now(),
            ticked: Instant::now(),
            divided: None,
            squeezed: false,
            ceiling: Bytes::ZERO,
            pool: None,
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
        self.epoll
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
        let heard = self.epoll.wait(&mut events, Some(TICK));
        heard.map_err(|errno| AgentError::Wait(errno.to_string()))?;
        let happened: Vec<(u64, bool)> = events.iter().map(|e| (e.token, e.writable)).collect();
        for (token, writable) in happened {
            match token {
                LISTENER => self.accept(),
                SIGNALS => {}
                peer => {
                    if writable {
                        self.flush(peer);
                    }
                    self.read(peer);
                }
            }
        }
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            self.tick();
        }
        Ok(())
    }

    fn accept(&mut self) {
        while let Ok(Some(stream)) = self.listener.accept() {
            let Ok(who) = stream.peer_credentials() else {
                continue;
            };
            let strangers = self.peers.values().filter(|peer| !peer.job);
            let of_user = strangers.clone().filter(|peer| peer.who.uid == who.uid);
            let trusted = who.uid == 0 || who.uid == proc::own_uid();
            // Those who are here keep their place; who comes when it is full comes again.
            if strangers.clone().count() >= STRANGERS_MAX
                || (!trusted && of_user.count() >= STRANGERS_OF_USER_MAX)
            {
                continue;
            }
            let token = self.next;
            self.next += 1;
            if self.epoll.add(&stream, token, Interest::READ).is_ok() {
                let peer = Peer {
                    stream,
                    lines: Lines::up_to(SAID_MAX),
                    unsent: Vec::new(),
                    who,
                    since: Instant::now(),
                    job: false,
                };
                self.peers.insert(token, peer);
            }
        }
    }

    fn read(&mut self, token: u64) {
        let Some(peer) = self.peers.get_mut(&token) else {
            return;
        };
        let mut bytes = [0u8; 4096];
        match peer.stream.read(&mut [IoSliceMut::new(&mut bytes)]) {
            Ok(Transfer::Bytes(n)) => peer.lines.push(&bytes[..n]),
            Ok(Transfer::WouldBlock) => return,
            Ok(Transfer::Closed) | Err(_) => return self.gone(token),
        }
        loop {
            let Some(peer) = self.peers.get_mut(&token) else {
                return;
            };
            match peer.lines.take::<ToAgent>() {
                Ok(None) => return,
                Ok(Some(ToAgent::Arrive(arrival))) => self.arrive(token, arrival),
                Ok(Some(ToAgent::Doing(doing))) => self.doing(token, doing),
                Ok(Some(ToAgent::State)) => {
                    let state = FromAgent::State(Box::new(self.state()));
                    self.tell(token, &state);
                }
                Err(error) => {
                    let why = error.to_string();
                    self.tell(token, &FromAgent::Refused { why });
                    return self.gone(token);
                }
            }
        }
    }

    /// Says something to somebody who listens. Whoever lets it pile up is gone.
    fn tell(&mut self, token: u64, message: &FromAgent) {
        let Some(peer) = self.peers.get_mut(&token) else {
            return;
        };
        let idle = peer.unsent.is_empty();
        peer.unsent.extend(encode(message));
        if peer.unsent.len() > UNSENT_MAX {
            return self.gone(token);
        }
        if idle {
            self.flush(token);
        }
    }

    /// Sends what waits; the rest when the other side has read some of it.
    fn flush(&mut self, token: u64) {
        let Some(peer) = self.peers.get_mut(&token) else {
            return;
        };
        while !peer.unsent.is_empty() {
            match peer.stream.write(&[IoSlice::new(&peer.unsent)]) {
                Ok(Transfer::Bytes(n)) => drop(peer.unsent.drain(..n)),
                Ok(Transfer::WouldBlock) => break,
                Ok(Transfer::Closed) | Err(_) => return self.gone(token),
            }
        }
        let wanted = match peer.unsent.is_empty() {
            true => Interest::READ,
            false => Interest::BOTH,
        };
        if self.epoll.modify(&peer.stream, token, wanted).is_err() {
            self.gone(token);
        }
    }

    fn refuse(&mut self, token: u64, why: impl std::fmt::Display) {
        let why = why.to_string();
        self.tell(token, &FromAgent::Refused { why });
        self.gone(token);
    }

    fn arrive(&mut self, token: u64, arrival: Arrival) {
        let Some(peer) = self.peers.get(&token) else {
            return;
        };
        let who = peer.who;
        if peer.job {
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
        let learned = learned.unwrap_or_default();
        let (profile, profiled) = learned.profile();
        let said = match arrival.memory {
            Bytes::ZERO => learned.memory,
            said => said,
        };
        let process = ProcessId::of(who.pid.unsigned_abs());
        let job = Running {
            process,
            uid: who.uid,
            name,
            job: arrival.job,
            said,
            doing: Doing::default(),
            limit: arrival.limit,
            told: arrival.limit,
            min_ratio: min_ratio(&profile),
            profile,
            profiled,
            run: Learned::default(),
            back: arrival.limit > Bytes::ZERO,
        };
        self.jobs.insert(token, job);
        if let Some(peer) = self.peers.get_mut(&token) {
            peer.job = true;
        }
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
            pool: self.pool_file().display().to_string(),
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
        if let Some(peer) = self.peers.remove(&token) {
            let _ = self.epoll.remove(&peer.stream);
        }
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
        let begun = Instant::now();
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
        let took_us = begun.elapsed().as_micros() as u64;
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
        let patience = |peer: &Peer| !peer.job && peer.since.elapsed() > STRANGER_PATIENCE;
        let late = self.peers.iter().filter(|(_, peer)| patience(peer));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
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

    fn pool_file(&self) -> PathBuf {
        self.settings.folder.join(POOL)
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
        // Without an answer the pool stays as it was, also as the agent before this one left it: nothing
        // is moved away because somebody is silent.
        let path = self.pool_file();
        let silent = self.settings.coordinator.is_some() && !self.outside.coordinated;
        let there = self.pool.is_some() || path.exists();
        if self.pool.as_ref() == Some(&pool) || (there && (silent || pool.is_empty())) {
            return Ok(());
        }
        let line = |server: &String| format!("[[server]]\naddress = {}\n", quoted(server));
        let text: String = pool.iter().map(line).collect();
        let failed = |error| AgentError::Folder(path.clone(), error);
        let beside = path.with_extension("new");
        std::fs::write(&beside, text).map_err(failed)?;
        std::fs::rename(&beside, &path).map_err(failed)?;
        self.pool = Some(pool);
        Ok(())
    }

    fn state(&self) -> NodeState {
        let job = |job: &Running| JobState {
            pid: job.process.map_or(0, ProcessId::pid),
            uid: job.uid,
            name: job.name.clone(),
            job: job.job,
            memory: job.memory(),
            limit: job.limit,
            floor: Bytes((job.memory().0 as f64 * job.min_ratio) as u64),
            resident: job.doing.resident,
            far: job.doing.far,
            run_s: job.doing.run_s,
            waited_s: job.doing.waited_s,
            profiled: job.profiled,
            away: false,
        };
        let mut jobs: Vec<JobState> = self.jobs.values().map(job).collect();
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

/// What the agent before this one wrote.
fn read_pool(path: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let address = |line: &str| {
        let quoted = line.strip_prefix("address = ")?;
        serde_json::from_str(quoted).ok()
    };
    text.lines().filter_map(address).collect()
}

/// As TOML wants it.
fn quoted(text: &str) -> String {
    // JSON's strings are TOML's basic strings, as long as nothing is escaped but quotes and backslashes.
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests;
