//! The servers of a pool: sessions with them, and whether each can be counted on.
//!
//! A session is opened when it is first needed. Each session with a server has a *generation*; what
//! belongs to an earlier one is lost. All threads look here; what they look at often are atomics.
//!
//! Servers may join and leave while all this goes on ([`Source`]). The list only grows: a server that
//! joins takes the next id, one that leaves keeps its own, is emptied like one that drains, and gets its
//! id back should it return. So an id always means the same server, in all processes that follow one source.
//! Invariant: a generation that was lost never counts again.

use crate::extent::Holding;
use crate::lock;
use muninn_net::Transport;
use muninn_policy::membership::{KEEP_SILENT, Membership, Standing};
use muninn_sys::clock::{self, MonotonicClock};
use muninn_sys::socket::{Address, Knock, Stream};
use muninn_types::{Nanos, ServerId, SplitMix64};
use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Opens a session.
pub type Connect =
    Box<dyn Fn(&Address, Attempt) -> Result<Arc<dyn Transport>, String> + Send + Sync>;

/// An attempt to open a session.
#[derive(Debug)]
pub struct Attempt {
    /// A TCP connection that is there already.
    pub connected: Option<Stream>,
    pub patience: Duration,
}

/// How long a server may take to be connected to: the only one, and one of several.
const CONNECT_ONLY: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_millis(500);
/// How long one that was found to lie is given something only if there is nobody else.
const DISTRUST: Nanos = Nanos::secs(60);
/// How often a connection that is being made is looked at.
pub(crate) const KNOCK_GLANCE: Duration = Duration::from_millis(1);

/// What time it is, and how it passes. A simulation has time of its own.
pub trait Time: Send + Sync {
    fn now(&self) -> Nanos;
    /// In a simulation: how one who has nothing to do lets time pass.
    fn simulated(&self) -> Option<&dyn Fn(Duration)> {
        None
    }
}

impl Time for MonotonicClock {
    fn now(&self) -> Nanos {
        clock::now()
    }
}

/// Tells people something: one line.
pub type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// Servers that a roster can ever name. Slots are there from the start, so that nobody who looks at
/// one needs a lock because another is added.
pub const SERVERS_MAX: usize = 1024;

/// A server as the list of a pool names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub address: Address,
    /// What fails together with it, if that is more than its host.
    pub rack: Option<String>,
    /// It is not to be used any more: what it holds is moved away.
    pub left: bool,
    /// When it joins, others give it some of what they hold.
    pub fill: bool,
}

impl From<&Address> for Listed {
    fn from(address: &Address) -> Listed {
        Listed {
            address: address.clone(),
            rack: None,
            left: false,
            fill: true,
        }
    }
}

/// Where the list comes from: its version and the servers, if the version is another than the one seen.
/// Versions begin with 1. A later list begins with the servers of an earlier one.
pub type Source = Box<dyn Fn(u64) -> Option<(u64, Vec<Listed>)> + Send + Sync>;

#[derive(Debug, Default)]
struct Link {
    transport: Option<Arc<dyn Transport>>,
    generation: u32,
    membership: Membership,
    /// A TCP connection that is being made, and one that is there: the next session is opened over it.
    knock: Option<Knock>,
    connected: Option<Stream>,
    /// Why there is no session.
    why: String,
}

#[derive(Debug)]
struct Server {
    address: Address,
    /// What fails together with it: its host.
    domain: u64,
    link: Mutex<Link>,
    /// Of the session that counts; 0 when there is none.
    generation: AtomicU32,
    suspected: AtomicBool,
    /// Since when, in nanoseconds.
    silent_since: AtomicU64,
    away: AtomicBool,
    /// A connection is being made.
    knocking: AtomicBool,
    draining: AtomicBool,
    left: AtomicBool,
    /// It asks for so many bytes of its memory back.
    asked: AtomicU64,
    /// It joined while this ran, and may be given what others hold.
    fresh: AtomicBool,
    /// Until then others are given what it could have, in nanoseconds: it was found to lie.
    distrusted_until: AtomicU64,
}

/// The servers of a pool, in the order in which they were named.
pub struct Roster {
    slots: Box<[OnceLock<Box<Server>>]>,
    /// Slots that are filled. Only [`Roster::follow`] raises it.
    len: AtomicUsize,
    source: Option<Source>,
    /// The version of the list that is followed.
    followed: Mutex<u64>,
    /// Servers that left and with which there is a session.
    leaving: AtomicUsize,
    /// Sessions that nobody uses any more, until the clerk takes leave of them.
    parted: Mutex<Vec<Arc<dyn Transport>>>,
    connect: Connect,
    tell: Tell,
    time: Box<dyn Time>,
    /// Goes up whenever a session is lost, comes back, or a server wants its memory back.
    news: AtomicU64,
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.slots.iter().map_while(OnceLock::get);
        f.debug_list().entries(servers).finish()
    }
}

/// What fails together: a rack, or a host where none is named.
fn domain_of(listed: &Listed) -> u64 {
    let mut sum = 0u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            sum = SplitMix64::new(sum ^ u64::from(*byte)).next_u64();
        }
    };
    match (&listed.rack, &listed.address) {
        (Some(rack), _) => {
            add(b"rack ");
            add(rack.as_bytes());
        }
        (None, Address::Tcp(at)) => add(at.ip().to_string().as_bytes()),
        // Those at sockets are on this machine, all of them.
        (None, Address::Unix(_)) => add(b"unix"),
    }
    sum
}

impl Server {
    fn new(listed: &Listed) -> Server {
        Server {
            address: listed.address.clone(),
            domain: domain_of(listed),
            link: Mutex::default(),
            generation: AtomicU32::new(0),
            suspected: AtomicBool::new(false),
            silent_since: AtomicU64::new(0),
            away: AtomicBool::new(false),
            knocking: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            left: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            fresh: AtomicBool::new(false),
            distrusted_until: AtomicU64::new(0),
        }
    }
}

impl Roster {
    pub fn new(addresses: &[Address], connect: Connect, tell: Tell) -> Roster {
        let roster = Roster {
            slots: (0..SERVERS_MAX).map(|_| OnceLock::new()).collect(),
            len: AtomicUsize::new(0),
            source: None,
            followed: Mutex::new(0),
            leaving: AtomicUsize::new(0),
            parted: Mutex::default(),
            connect,
            tell,
            time: Box::new(MonotonicClock),
            news: AtomicU64::new(0),
        };
        let listed: Vec<Listed> = addresses.iter().map(Listed::from).collect();
        roster.take_over(&listed);
        roster
    }

    /// The same, with a list that may change.
    pub fn following(self, source: Source) -> Roster {
        let roster = Roster {
            source: Some(source),
            ..self
        };
        roster.follow();
        roster
    }

    /// The same, in another time.
    pub fn in_time(self, time: Box<dyn Time>) -> Roster {
        Roster { time, ..self }
    }

    pub(crate) fn now(&self) -> Nanos {
        self.time.now()
    }
    pub(crate) fn simulated(&self) -> Option<&dyn Fn(Duration)> {
        self.time.simulated()
    }

    /// Servers that were ever named.
    pub fn len(&self) -> usize {
        self.len.load(Acquire)
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn ids(&self) -> impl Iterator<Item = ServerId> + use<> {
        (0..self.len() as u32).map(ServerId)
    }
    /// Whether there is only one server to turn to: it is waited for longer.
    pub(crate) fn is_alone(&self) -> bool {
        let counts = |server: &ServerId| !self.has_left(*server) || self.generation(*server) != 0;
        self.ids().filter(counts).nth(1).is_none()
    }

    /// Looks whether the list has changed, and does as it says. Whether it has.
    pub(crate) fn follow(&self) -> bool {
        let Some(source) = &self.source else {
            return false;
        };
        let mut followed = lock(&self.followed);
        let Some((version, list)) = source(*followed) else {
            return false;
        };
        *followed = version;
        self.take_over(&list);
        true
    }

    /// One at a time: under the lock of `followed`, or before anybody else knows this.
    fn take_over(&self, list: &[Listed]) {
        let before = self.len();
        for (at, (slot, listed)) in self.slots.iter().zip(list).enumerate() {
            let server = slot.get_or_init(|| Box::new(Server::new(listed)));
            let link = lock(&server.link);
            let open = usize::from(link.transport.is_some());
            let joined = before > 0 && at >= before || server.left.load(Relaxed);
            match (joined, listed.left || !listed.fill) {
                (_, true) => server.fresh.store(false, Relaxed),
                (true, false) => server.fresh.store(true, Relaxed),
                (false, false) => {}
            }
            match (server.left.swap(listed.left, Relaxed), listed.left) {
                (false, true) => self.leaving.fetch_add(open, Relaxed),
                (true, false) => self.leaving.fetch_sub(open, Relaxed),
                _ => 0,
            };
        }
        let named = list.len().min(SERVERS_MAX);
        self.len.fetch_max(named, Release);
        self.add_news();
    }

    /// Whether a server is on the list no more.
    pub(crate) fn has_left(&self, server: ServerId) -> bool {
        self.of(server).left.load(Relaxed)
    }
    /// Whether it joined while this ran, and may be given what others hold.
    pub(crate) fn is_fresh(&self, server: ServerId) -> bool {
        self.of(server).fresh.load(Relaxed)
    }
    pub(crate) fn has_fresh(&self) -> bool {
        self.ids().any(|server| self.is_fresh(server))
    }
    /// It has got its part, or cannot have it.
    pub(crate) fn end_fresh(&self, server: ServerId) {
        self.of(server).fresh.store(false, Relaxed);
    }
    /// Whether it was found to lie lately. It is asked last then: what it is given would be made anew again
    /// and again.
    pub(crate) fn is_distrusted(&self, server: ServerId) -> bool {
        self.now().0 < self.of(server).distrusted_until.load(Relaxed)
    }
    pub(crate) fn distrust(&self, server: ServerId) {
        let until = self.now().saturating_add(DISTRUST);
        self.of(server).distrusted_until.store(until.0, Relaxed);
    }
    /// What a server asks for of its memory.
    pub(crate) fn asked(&self, server: ServerId) -> u64 {
        self.of(server).asked.load(Relaxed)
    }
    pub(crate) fn note_asked(&self, server: ServerId, bytes: u64) {
        if self.of(server).asked.swap(bytes, Relaxed) != bytes {
            self.add_news();
        }
    }
    /// Whether there are sessions with servers that left.
    pub(crate) fn has_leaving(&self) -> bool {
        self.leaving.load(Relaxed) > 0
    }

    /// Ends the session with a server that left, if it is not back on the list. Nothing that is needed
    /// may be there; and nobody waits here until it has heard of it.
    pub(crate) fn part(&self, server: ServerId) {
        let known = self.of(server);
        let mut link = lock(&known.link);
        if !known.left.load(Relaxed) {
            return;
        }
        if let Some(transport) = link.transport.take() {
            known.generation.store(0, Release);
            known.suspected.store(false, Relaxed);
            link.membership = Membership::default();
            self.leaving.fetch_sub(1, Relaxed);
            lock(&self.parted).push(transport);
            self.add_news();
        }
    }

    /// Takes leave of servers. It may take a moment.
    pub(crate) fn take_leave(&self) {
        let parted = std::mem::take(&mut *lock(&self.parted));
        drop(parted);
    }

    pub fn address(&self, server: ServerId) -> &Address {
        &self.of(server).address
    }
    pub(crate) fn domain(&self, server: ServerId) -> u64 {
        self.of(server).domain
    }

    fn of(&self, server: ServerId) -> &Server {
        let slot = self.slots.get(server.0 as usize);
        slot.and_then(OnceLock::get).expect("ids are of this list")
    }

    pub(crate) fn tell(&self, text: &str) {
        (self.tell)(text);
    }

    pub(crate) fn news(&self) -> u64 {
        self.news.load(Acquire)
    }
    fn add_news(&self) {
        self.news.fetch_add(1, Release);
    }

    /// The session that counts; 0 when there is none.
    pub(crate) fn generation(&self, server: ServerId) -> u32 {
        self.of(server).generation.load(Acquire)
    }
    pub(crate) fn is_suspected(&self, server: ServerId) -> bool {
        self.of(server).suspected.load(Relaxed)
    }
    /// Whether a server has been suspected for so long that others should take its place.
    pub(crate) fn is_given_up(&self, server: ServerId) -> bool {
        let since = Nanos(self.of(server).silent_since.load(Relaxed));
        self.is_suspected(server) && self.now() > since.saturating_add(KEEP_SILENT)
    }
    /// Whether it was tried and could not be reached, or its session was lost.
    pub(crate) fn is_away(&self, server: ServerId) -> bool {
        self.of(server).away.load(Relaxed)
    }
    /// Whether a connection is being made with it.
    pub(crate) fn is_knocking(&self, server: ServerId) -> bool {
        self.of(server).knocking.load(Relaxed)
    }
    /// Whether it is to be emptied: it says so, or the list does.
    pub(crate) fn is_draining(&self, server: ServerId) -> bool {
        let known = self.of(server);
        known.draining.load(Relaxed) || known.left.load(Relaxed)
    }
    pub(crate) fn counts(&self, holding: &Holding) -> bool {
        self.generation(holding.server) == holding.generation
    }

    /// The session with a server, if there is one.
    pub(crate) fn session(&self, server: ServerId) -> Option<(Arc<dyn Transport>, u32)> {
        let link = lock(&self.of(server).link);
        Some((link.transport.clone()?, link.generation))
    }

    /// The session with a server, opened if there is none and the time for an attempt has come.
    pub(crate) fn open(&self, server: ServerId) -> Result<(Arc<dyn Transport>, u32), String> {
        self.open_within(server, Duration::MAX)
    }

    /// The same, without waiting for longer than this, or than is waited for any.
    pub(crate) fn open_within(
        &self,
        server: ServerId,
        at_most: Duration,
    ) -> Result<(Arc<dyn Transport>, u32), String> {
        let known = self.of(server);
        let ends = self.now().saturating_add(at_most.into());
        let mut link = lock(&known.link);
        if let Some(transport) = &link.transport {
            return Ok((Arc::clone(transport), link.generation));
        }
        if !link.membership.may_connect(self.now()) {
            return Err(link.why.clone());
        }
        while !self.advance(known, &mut link) {
            if self.now() > ends {
                return Err(format!("the server at {} does not answer", known.address));
            }
            std::thread::sleep(KNOCK_GLANCE);
        }
        if !known.address.is_unix() && link.connected.is_none() {
            return Err(link.why.clone());
        }
        let attempt = Attempt {
            connected: link.connected.take(),
            patience: self.connect_patience().min(at_most),
        };
        match (self.connect)(&known.address, attempt) {
            Ok(transport) => {
                link.transport = Some(Arc::clone(&transport));
                link.generation += 1;
                let leaves = usize::from(known.left.load(Relaxed));
                self.leaving.fetch_add(leaves, Relaxed);
                known.generation.store(link.generation, Release);
                known.suspected.store(false, Relaxed);
                known.away.store(false, Relaxed);
                known.draining.store(false, Relaxed);
                known.asked.store(0, Relaxed);
                if link.membership.handle_answer() {
                    let name = transport.server_name();
                    self.tell(&format!("server '{name}' at {} is back", known.address));
                }
                self.add_news();
                Ok((transport, link.generation))
            }
            Err(why) => {
                self.note_unreachable(known, &mut link, why.clone());
                Err(why)
            }
        }
    }

    fn connect_patience(&self) -> Duration {
        match self.is_alone() {
            true => CONNECT_ONLY,
            false => CONNECT,
        }
    }

    fn note_unreachable(&self, known: &Server, link: &mut Link, why: String) {
        known.away.store(true, Relaxed);
        if link.membership.handle_lost(self.now()) {
            self.tell(&format!("going on without a server: {why}"));
        }
        link.why = why;
    }

    /// Goes on with the connection to a server, or begins one, without waiting. Whether it is known how
    /// it ended. At a Unix socket there is nothing to wait for.
    fn advance(&self, known: &Server, link: &mut Link) -> bool {
        let Address::Tcp(at) = &known.address else {
            return true;
        };
        if link.connected.is_some() {
            return true;
        }
        let knock = match link.knock.take() {
            Some(knock) => Ok(knock),
            None => Knock::begin(at, self.connect_patience()),
        };
        let ended = match knock.map(Knock::poll) {
            Err(why) | Ok(Ok(Err(why))) => Err(why),
            Ok(Ok(Ok(stream))) => Ok(stream),
            Ok(Err(knock)) => {
                link.knock = Some(knock);
                known.knocking.store(true, Relaxed);
                return false;
            }
        };
        known.knocking.store(false, Relaxed);
        match ended {
            Ok(stream) => link.connected = Some(stream),
            Err(why) => self.note_unreachable(known, link, why.to_string()),
        }
        true
    }

    /// Goes on with the connection to a server, where there is neither a session nor a reason to wait
    /// with it. Whether it is known how it ended.
    pub(crate) fn knock(&self, server: ServerId) -> bool {
        let known = self.of(server);
        let mut link = lock(&known.link);
        let needless = link.transport.is_some() || !link.membership.may_connect(self.now());
        needless || self.advance(known, &mut link)
    }

    /// Whether a session could be opened at once, as far as is known.
    pub(crate) fn is_ready(&self, server: ServerId) -> bool {
        let known = self.of(server);
        let link = lock(&known.link);
        link.transport.is_some() || link.connected.is_some() || known.address.is_unix()
    }

    /// Tries servers again that are away, when it is time, all at once; and sees to connections for which
    /// nobody waits. Those that answer are waited for, one each time.
    pub(crate) fn retry(&self) {
        let now = self.now();
        let answered = self.ids().find(|server| {
            let known = self.of(*server);
            let mut link = lock(&known.link);
            let away = link.membership.standing() == Standing::Away;
            let due = away && link.membership.may_connect(now) && !self.has_left(*server);
            if !due {
                // Somebody else was quicker, and nobody needs this one.
                link.connected = None;
            }
            let decided = (due || link.knock.is_some()) && self.advance(known, &mut link);
            decided && due && (link.connected.is_some() || known.address.is_unix())
        });
        if let Some(server) = answered {
            let _ = self.open(server);
        }
    }

    /// A session is lost: nothing that it held counts any more.
    pub(crate) fn lose(&self, server: ServerId, generation: u32, why: &str) {
        let known = self.of(server);
        let mut link = lock(&known.link);
        if link.generation != generation {
            return;
        }
        let Some(transport) = link.transport.take() else {
            return;
        };
        let left = usize::from(known.left.load(Relaxed));
        self.leaving.fetch_sub(left, Relaxed);
        let name = transport.server_name();
        link.why = format!("server '{name}' at {}: {why}", known.address);
        known.generation.store(0, Release);
        known.suspected.store(false, Relaxed);
        known.away.store(true, Relaxed);
        if link.membership.handle_lost(self.now()) {
            self.tell(&format!("{}; going on without it", link.why));
        }
        self.add_news();
    }

    /// Why there is no session with a server, for messages.
    pub(crate) fn why(&self, server: ServerId) -> String {
        let why = lock(&self.of(server).link).why.clone();
        match why.is_empty() {
            true => format!("server at {}", self.address(server)),
            false => why,
        }
    }

    /// A server did not answer in time.
    pub(crate) fn suspect(&self, server: ServerId) {
        let known = self.of(server);
        if known.suspected.load(Relaxed) {
            return;
        }
        // First: others look at both, and must not take an old silence for this one.
        known.silent_since.store(self.now().0, Relaxed);
        if known.suspected.swap(true, Relaxed) {
            return;
        }
        let mut link = lock(&known.link);
        if link.membership.handle_silence(self.now()) {
            let at = &known.address;
            self.tell(&format!(
                "the server at {at} does not answer; going on without it while there are copies elsewhere"
            ));
        }
    }

    /// A server answered.
    pub(crate) fn heard(&self, server: ServerId) {
        let known = self.of(server);
        if !known.suspected.swap(false, Relaxed) {
            return;
        }
        if lock(&known.link).membership.handle_answer() {
            self.tell(&format!("the server at {} answers again", known.address));
        }
        self.add_news();
    }

    /// Whether a server wants its memory back.
    pub(crate) fn note_draining(&self, server: ServerId, draining: bool) {
        if self.of(server).draining.swap(draining, Relaxed) != draining {
            self.add_news();
        }
    }
}
