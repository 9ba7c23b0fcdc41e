//! The memory server: keeps pages for clients, as fast as the wire, and never gives one client's
//! bytes to another.
//!
//! It decides nothing about which page goes where; clients do. The state machine lives in
//! `muninn_proto::server`; here are its threads (event loops, a wiper, metrics), its sockets and
//! its memory.
#![warn(unreachable_pub)]

mod agents;
mod calls;
mod connection;
mod event_loop;
mod guard;
mod halt;
mod heirs;
mod metrics;
mod segment;
mod take_over;

pub use agents::{AgentLimits, AgentReport};
pub use calls::{CALLS_MAX, CallFactory, CallHost, OnEnd};
pub use muninn_http::Token as MetricsToken;
pub use segment::{HugePages, MemfdBacking, MemfdSegment};
pub use take_over::{NotHandedOver, TakeOverError};

use agents::AgentHost;
use calls::{Around, Calls};
use event_loop::{EventLoop, LISTENERS_MAX, LoopOptions, Mailbox};
use halt::{Halt, Verdict};
use heirs::Heirs;
use muninn_http::Limits;
use muninn_policy::wrr::Weights;
use muninn_proto::auth::Key;
use muninn_proto::secure::UnixTime;
use muninn_proto::server::{Pool, PoolConfig, PoolStats, Shard, Shared, SharedConfig};
use muninn_sys::affinity::{self, Thread};
use muninn_sys::clock;
use muninn_sys::limits::{self, Limited};
use muninn_sys::socket::{Address, ListenError, Listener};
use muninn_types::{Bytes, Nanos, PAGE_SIZE, SessionId};
use muninn_wire::{ShortText, StatusPage};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

/// So many sessions one client may have, unless told otherwise, even if they are all.
const FEW_SESSIONS: usize = 64;

/// Everything that can be chosen about a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub name: String,
    pub memory: Bytes,
    /// None: a sixteenth of the memory, between 2 MiB and 64 MiB.
    pub segment: Option<Bytes>,
    pub listen: Vec<Address>,
    pub metrics: Option<SocketAddr>,
    /// Who asks for metrics must have it; needed beyond this machine.
    pub metrics_token: Option<MetricsToken>,
    pub key: Key,
    /// Listen beyond this machine without a key.
    pub insecure: bool,
    pub lease: Duration,
    pub quotas: HashMap<String, Bytes>,
    pub max_sessions: usize,
    /// Of one client, so that none can keep the others out; None: half of them, if these are many.
    pub max_sessions_of_source: Option<usize>,
    pub threads: usize,
    pub spin: Duration,
    pub weights: Weights,
    pub prealloc: bool,
    pub huge: HugePages,
    /// Keep CPUs from sleeping while there are sessions.
    pub keep_awake: bool,
    /// Agents of managed heaps; none are run without.
    pub agents: Option<AgentLimits>,
    /// Bind event loops to this CPU and those after it.
    pub cpu: Option<usize>,
    /// Who runs functions for clients; None: nobody does.
    pub calls: Option<Arc<dyn CallFactory>>,
    /// Somebody looks whether another process wants to take over, and lets it.
    pub hands_over: bool,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            name: "muninn".to_string(),
            memory: Bytes::mib(256),
            segment: None,
            listen: Vec::new(),
            metrics: None,
            metrics_token: None,
            key: Key::none(),
            insecure: false,
            lease: Duration::from_secs(10),
            quotas: HashMap::new(),
            max_sessions: 4096,
            max_sessions_of_source: None,
            threads: 1,
            spin: Duration::from_micros(50),
            weights: Weights::default(),
            prealloc: false,
            huge: HugePages::Auto,
            keep_awake: true,
            agents: Some(AgentLimits::default()),
            cpu: None,
            calls: None,
            hands_over: false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("nowhere to listen: name a Unix socket (--socket PATH) or an address (--listen ADDR)")]
    NowhereToListen,
    #[error(
        "{0} addresses to listen at are more than {LISTENERS_MAX}: name fewer (--listen, --socket)"
    )]
    TooManyAddresses(usize),
    #[error(
        "refusing to listen at {0} without a key, as others could reach this memory: name a key \
         file (--key-file PATH; 'muninn keygen PATH' makes one), or say --insecure if the network \
         is trusted"
    )]
    KeyNeeded(Address),
    #[error(
        "refusing to show metrics at {0} to everybody: name a file with a token (--metrics-token-file \
         PATH) that scrapers are to send as 'Authorization: Bearer TOKEN', or say --insecure if the \
         network is trusted"
    )]
    TokenNeeded(SocketAddr),
    #[error("{0} is too little memory for a server: give it at least {min}", min = Bytes(PAGE_SIZE as u64))]
    TooLittle(Bytes),
    #[error("a segment of {0} cannot be: use a power of two from 4KiB to 1GiB")]
    BadSegment(Bytes),
    #[error("a server has 1 to 64 threads, not {0}")]
    BadThreads(usize),
    #[error("a lease of {0:?} is too short to keep: use 100ms or more")]
    BadLease(Duration),
    #[error("{0}")]
    Listen(#[from] ListenError),
    #[error("cannot reserve {0} for the pool: {1}")]
    Memory(Bytes, std::io::Error),
    #[error("cannot start the server's threads: {0}")]
    Start(std::io::Error),
    #[error("cannot take the place of the server that runs: {0}; it goes on")]
    TakeOver(#[from] TakeOverError),
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared<MemfdBacking>>,
    mailboxes: Arc<Vec<Mailbox>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    wiper: Option<JoinHandle<()>>,
    addresses: Vec<Address>,
    metrics: Option<SocketAddr>,
    metrics_listener: Option<Arc<Listener>>,
    agents: Option<Arc<AgentHost>>,
    /// Held by the wiper while it works.
    gate: Arc<Mutex<()>>,
    heirs: Arc<Heirs>,
    /// What the loops waited for at their start.
    first_halt: Option<Arc<Halt>>,
}

fn is_local(address: &Address) -> bool {
    match address {
        Address::Unix(_) => true,
        Address::Tcp(tcp) => tcp.ip().is_loopback(),
    }
}

fn default_segment(memory: Bytes) -> Bytes {
    let part = (memory.0 / 16).max(1);
    let part = if part.is_power_of_two() {
        part
    } else {
        part.next_power_of_two() / 2
    };
    Bytes(part.clamp(2 << 20, 64 << 20))
}

/// What can be said of a configuration before anything is done. How the memory is cut.
fn check(config: &ServerConfig) -> Result<PoolConfig, ServerError> {
    if config.listen.is_empty() {
        return Err(ServerError::NowhereToListen);
    }
    if config.listen.len() > LISTENERS_MAX {
        return Err(ServerError::TooManyAddresses(config.listen.len()));
    }
    if let Some(open) = config.listen.iter().find(|a| !is_local(a))
        && config.key.is_none()
        && !config.insecure
    {
        return Err(ServerError::KeyNeeded(open.clone()));
    }
    if let Some(at) = config.metrics
        && !at.ip().is_loopback()
        && config.metrics_token.is_none()
        && !config.insecure
    {
        return Err(ServerError::TokenNeeded(at));
    }
    if config.memory < Bytes::PAGE {
        return Err(ServerError::TooLittle(config.memory));
    }
    let segment = config
        .segment
        .unwrap_or_else(|| default_segment(config.memory));
    if !segment.0.is_power_of_two() || !(Bytes::PAGE..=Bytes::gib(1)).contains(&segment) {
        return Err(ServerError::BadSegment(segment));
    }
    if !(1..=64).contains(&config.threads) {
        return Err(ServerError::BadThreads(config.threads));
    }
    if config.lease < Duration::from_millis(100) {
        return Err(ServerError::BadLease(config.lease));
    }
    Ok(PoolConfig {
        memory: Bytes::pages(config.memory.whole_pages()),
        segment,
        quotas: config.quotas.clone(),
    })
}

fn backing(config: &ServerConfig) -> MemfdBacking {
    MemfdBacking {
        prealloc: config.prealloc,
        huge: config.huge,
    }
}

fn shared_config(config: &ServerConfig) -> SharedConfig {
    SharedConfig {
        name: ShortText::lossy(&config.name, 64),
        key: config.key.clone(),
        lease: Nanos::from(config.lease),
        max_sessions: config.max_sessions,
        max_sessions_of_source: (config.max_sessions_of_source)
            .unwrap_or((config.max_sessions / 2).max(FEW_SESSIONS)),
        uid: muninn_sys::proc::own_uid(),
        boot: muninn_sys::rand::u64(),
    }
}

fn shards(config: &ServerConfig, shared: &Arc<Shared<MemfdBacking>>) -> Vec<Shard<MemfdBacking>> {
    let shard = |index| {
        let entropy = Box::new(muninn_sys::rand::fill);
        Shard::new(index as u8, Arc::clone(shared), entropy)
    };
    (0..config.threads).map(shard).collect()
}

/// What a server is made of before its threads run.
struct Base {
    shared: Arc<Shared<MemfdBacking>>,
    shards: Vec<Shard<MemfdBacking>>,
    listeners: Vec<Listener>,
    metrics: Option<Listener>,
    /// Loops are to stand still at first.
    halt: Option<Arc<Halt>>,
    gate: Arc<Mutex<()>>,
}

impl Server {
    /// Checks the configuration, reserves the memory, listens, and starts the threads.
    pub fn start(config: ServerConfig) -> Result<Server, ServerError> {
        let pool_config = check(&config)?;
        let listeners: Vec<Listener> = config
            .listen
            .iter()
            .map(Listener::bind)
            .collect::<Result<_, _>>()?;
        let metrics = match config.metrics {
            Some(address) => Some(Listener::bind(&Address::Tcp(address))?),
            None => None,
        };
        let memory = pool_config.memory;
        let pool = Pool::new(backing(&config), pool_config)
            .map_err(|error| ServerError::Memory(memory, error))?;
        let shared = Shared::new(pool, shared_config(&config), clock::now());
        let shards = shards(&config, &shared);
        let base = Base {
            shared,
            shards,
            listeners,
            metrics,
            halt: None,
            gate: Arc::default(),
        };
        Server::run(config, base)
    }

    /// Starts the threads.
    fn run(config: ServerConfig, base: Base) -> Result<Server, ServerError> {
        let Base {
            shared,
            listeners,
            metrics,
            ..
        } = base;
        shared.set_time(UnixTime(clock::unix()));
        // Half of what there is, so that no source can take the last descriptor.
        if let Some(files) = limits::limit(Limited::OpenFiles).soft {
            shared.ledger.limit_connections((files / 2).max(1));
        }
        let addresses = listeners.iter().map(|l| l.address().clone()).collect();
        let metrics_address = metrics
            .as_ref()
            .and_then(|listener| match listener.address() {
                Address::Tcp(address) => Some(*address),
                Address::Unix(_) => None,
            });

        shared
            .services
            .surround(Arc::new(Around(config.calls.clone())));
        let start = |errno: rustix::io::Errno| ServerError::Start(errno.into());
        let mailboxes: Result<Vec<Mailbox>, _> =
            (0..config.threads).map(|_| Mailbox::new()).collect();
        let mailboxes = Arc::new(mailboxes.map_err(start)?);
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = Server {
            shared: Arc::clone(&shared),
            mailboxes: Arc::clone(&mailboxes),
            stop: Arc::clone(&stop),
            threads: Vec::new(),
            wiper: None,
            addresses,
            metrics: metrics_address,
            metrics_listener: metrics.map(Arc::new),
            gate: base.gate,
            first_halt: base.halt.clone(),
            heirs: Arc::new(Heirs::new().map_err(start)?),
            agents: config
                .agents
                .map(|limits| Arc::new(AgentHost::new(Arc::clone(&shared.pool), limits))),
        };
        if let Some(host) = &server.agents {
            // Set once, before any loop runs.
            let _ = shared.agents.set(Arc::clone(host) as _);
        }
        let options = LoopOptions {
            spin: config.spin,
            weights: config.weights,
            keep_awake: config.keep_awake,
        };
        let mut listeners = Some(listeners);
        shared.hands_over.store(config.hands_over, Relaxed);
        for (index, shard) in base.shards.into_iter().enumerate() {
            if let Some(halt) = &base.halt {
                mailboxes[index].halt(halt);
            }
            let heirs = Arc::clone(&server.heirs);
            let listeners = listeners.take().unwrap_or_default();
            let cpu = config.cpu.map(|first| first + index);
            let mailboxes = Arc::clone(&mailboxes);
            let factory = config.calls.clone();
            let event_loop = EventLoop::new(index, shard, listeners, mailboxes, heirs, options)
                .map_err(start)?;
            let thread = spawn(&format!("muninn-loop-{index}"), move || {
                if let Some(cpu) = cpu {
                    // A CPU that is not there leaves the loop unbound.
                    let _ = affinity::pin(Thread::Current, cpu);
                }
                let host = factory.map(|factory| factory.host(index));
                event_loop.run(Calls::new(host));
            })?;
            server.threads.push(thread);
        }
        let wiper_stop = Arc::clone(&stop);
        let pool = Arc::clone(&shared.pool);
        let gate = Arc::clone(&server.gate);
        let work = move || wipe(&pool, &wiper_stop, &gate);
        server.wiper = Some(spawn("muninn-wiper", work)?);
        if let Some(listener) = server.metrics_listener.clone() {
            let site = metrics::Scraped {
                shared: Arc::clone(&shared),
                token: config.metrics_token,
            };
            let work = move || {
                if let Err(error) = muninn_http::serve(&listener, &site, &Limits::SMALL, &stop) {
                    eprintln!("muninn: the metrics port is closed: {error}");
                }
            };
            server.threads.push(spawn("muninn-metrics", work)?);
        }
        Ok(server)
    }

    /// Where it listens, with the ports the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }
    pub fn pool(&self) -> PoolStats {
        self.shared.pool.stats()
    }
    pub fn status(&self) -> StatusPage {
        self.shared.status(SessionId(0), clock::now())
    }
    /// The text that the metrics port serves.
    pub fn metrics(&self) -> String {
        metrics::render(&self.shared)
    }

    /// How the agents of managed heaps are doing.
    pub fn agents(&self) -> Vec<AgentReport> {
        self.agents
            .as_ref()
            .map_or_else(Vec::new, |host| host.reports())
    }

    /// Asks sessions to move away within this time, or no longer (None).
    pub fn drain(&self, within: Option<Duration>) {
        let ends = within.map(|time| clock::now() + Nanos::from(time));
        self.shared.pool.set_drain(ends);
    }

    /// While the machine is short of memory, nothing more is granted.
    pub fn set_short(&self, short: bool) {
        self.shared.pool.set_short(short);
    }

    /// Clients are asked to move so much of what they hold elsewhere: each its part.
    pub fn ask_back(&self, bytes: Bytes) {
        self.shared.asked_bytes.store(bytes.0, Relaxed);
    }

    /// Nothing is granted that would make it more than this in all; what is granted stays.
    pub fn set_ceiling(&self, ceiling: Bytes) {
        self.shared.pool.set_ceiling(ceiling);
    }

    /// What clients have to show from now on. Who is in stays in.
    pub fn set_key(&self, key: Key) {
        self.shared.set_key(key);
    }

    /// Whether every thread still runs.
    pub fn is_healthy(&self) -> bool {
        self.threads
            .iter()
            .chain(&self.wiper)
            .all(|thread| !thread.is_finished())
    }

    /// Tells the sessions, closes everything and waits for the threads.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.shared.pool.stop();
        self.stop.store(true, Relaxed);
        // The wiper goes first: a client that has memory mapped may still read it, and must not
        // find zeros there. The kernel keeps the memory until the last mapping is gone.
        if let Some(wiper) = self.wiper.take() {
            let _ = wiper.join();
        }
        if let Some(halt) = self.first_halt.take() {
            // Loops that never began say nothing to anybody.
            halt.decide(Verdict::NeverBegin);
        }
        for mailbox in self.mailboxes.iter() {
            mailbox.stop();
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
        if let Some(agents) = self.agents.take() {
            agents.stop();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServerError> {
    let thread = std::thread::Builder::new()
        .name(name.to_string())
        .spawn(work);
    thread.map_err(ServerError::Start)
}

/// Between two looks whether the wiper may go on.
const GATE_PAUSE: Duration = Duration::from_millis(5);

/// Wipes freed memory, off the event loops: a large hole takes milliseconds.
fn wipe(pool: &Pool<MemfdBacking>, stop: &AtomicBool, gate: &Mutex<()>) {
    let pause = Duration::from_millis(100);
    let mut said = false;
    while !stop.load(Relaxed) {
        let Some(work) = pool.wait_wipe(pause) else {
            continue;
        };
        // Whoever holds the gate wants nothing changed, perhaps for good.
        let _working = loop {
            match gate.try_lock() {
                _ if stop.load(Relaxed) => return,
                Ok(working) => break working,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::thread::sleep(GATE_PAUSE),
            }
        };
        match pool.wipe(work) {
            Err(error) => {
                // It stays out of use until this succeeds; the server goes on with the rest. What
                // is missing (descriptors, memory) may come back: said once, tried at leisure.
                if !std::mem::replace(&mut said, true) {
                    eprintln!("muninn: a segment could not be replaced, trying again: {error}");
                }
                std::thread::sleep(pause);
            }
            Ok(()) => said = false,
        }
    }
}
