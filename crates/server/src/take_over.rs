//! A planned restart that loses nothing: the next process gets the memory, the sockets and the table of
//! who holds what, and goes on.
//!
//! ```text
//! heir   H  I listen                   old   X why not, or
//!                                            E so many descriptors, and then these
//! heir   F why not, or R all is here   old   N too late, or G it is yours
//! heir   takes the token, S I serve    old   ends
//! ```
//!
//! While they talk nobody is served, and nobody loses its lease by that. Invariant: the memory is one
//! process's at any moment, whoever dies, is stopped or is slow. Words cannot decide that, since the last one
//! may get lost; a *token* does, which travels with the memory and of which there is one ([`Token`]): who has
//! taken it serves, and the other one never does. The old process takes it before it goes on without its
//! heir, the heir before it begins. Every wait has an end.

use crate::event_loop::Mailbox;
use crate::halt::{Left, Standstill, Verdict};
use crate::segment::{MemfdBacking, MemfdSegment};
use crate::{Base, Server, ServerConfig, ServerError, backing, check, shards, shared_config};
use muninn_proto::server::Inherited;
use muninn_sys::clock;
use muninn_sys::epoll::{EventFd, Interest};
use muninn_sys::memory::Memfd;
use muninn_sys::secret;
use muninn_sys::socket::{Address, ByteStream, FDS_MAX, Listener, ReceivedFds, Stream, Transfer};
use muninn_types::{Bytes, Nanos, format_duration};
use muninn_wire::{Estate, EstateError, LeftUse};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an heir may take to read what it is given, at most, and at least, whatever the lease.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
const PATIENCE_MIN: Duration = Duration::from_millis(250);
/// How long the other process may take to begin, to end, or to say its last word.
const LAST_WORD: Duration = Duration::from_secs(5);
/// The longest reason.
const REASON_MAX: usize = 1024;
/// Descriptors at most: segments, listeners and the state.
const DESCRIPTORS_MAX: usize = 1 << 20;

const LISTENS: u8 = b'H';
const REFUSES: u8 = b'X';
const ESTATE: u8 = b'E';
const READY: u8 = b'R';
const FAILED: u8 = b'F';
const YOURS: u8 = b'G';
const TOO_LATE: u8 = b'N';
const SERVES: u8 = b'S';

/// Why this process does not go on in the place of another.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    #[error("it says: {0}")]
    Refused(String),
    #[error("{0}")]
    Estate(#[from] EstateError),
    #[error("it serves {0}, and this process was told {1}: give both the same --memory")]
    Memory(Bytes, Bytes),
    #[error("its segments are {0}, and this process was told {1}: give both the same --segment")]
    Segment(Bytes, Bytes),
    #[error(
        "its clients were promised a lease of {}, and this process was told {}: give it --lease {} \
         or more",
        format_duration(*.0), format_duration(*.1), format_duration(*.0)
    )]
    Lease(Duration, Duration),
    #[error("its sessions are spread over {0} threads: give this process --threads {0} or more")]
    Threads(usize),
    #[error("what it handed over is not complete ({0})")]
    Incomplete(&'static str),
    #[error("its memory cannot be used: {0}")]
    Memories(std::io::Error),
    #[error("it broke off")]
    BrokenOff,
    #[error("it gave up waiting")]
    TooLate,
}

impl TakeOverError {
    /// Whether other words on the command line would help.
    pub fn is_usage(&self) -> bool {
        use TakeOverError::{Lease, Memory, Segment, Threads};
        matches!(self, Memory(..) | Segment(..) | Lease(..) | Threads(_))
    }
}

/// Why another process did not get this server. It goes on as if nothing had happened.
#[derive(Debug, thiserror::Error)]
pub enum NotHandedOver {
    #[error("{0}")]
    Hindrance(String),
    #[error("the other process could not: {0}")]
    Failed(String),
    #[error("the other process did not answer in time")]
    Silent,
    #[error("the other process has ended")]
    Gone,
    #[error("the descriptors could not be sent: {0}")]
    Send(std::io::Error),
}

/// A talk with an end.
struct Talk {
    stream: Stream,
    ends: Nanos,
}

/// Why nothing was heard, or could be said.
#[derive(Debug)]
enum Unheard {
    Closed,
    Silent,
    Errno(rustix::io::Errno),
}

impl Talk {
    fn new(stream: Stream, patience: Duration) -> Talk {
        let ends = clock::now() + Nanos::from(patience);
        Talk { stream, ends }
    }
    fn give(&mut self, patience: Duration) {
        self.ends = clock::now() + Nanos::from(patience);
    }

    fn wait(&self, interest: Interest) -> Result<(), Unheard> {
        let left = self.ends.saturating_sub(clock::now());
        match self.stream.wait(interest, Some(left.into())) {
            Ok(true) => Ok(()),
            _ => Err(Unheard::Silent),
        }
    }

    fn say(&self, mut bytes: &[u8]) -> Result<(), Unheard> {
        while !bytes.is_empty() {
            match self.stream.write(&[IoSlice::new(bytes)]) {
                Ok(Transfer::Bytes(n)) => bytes = &bytes[n..],
                Ok(Transfer::WouldBlock) => self.wait(Interest::WRITE)?,
                Ok(Transfer::Closed) | Err(_) => return Err(Unheard::Closed),
            }
        }
        Ok(())
    }

    fn hear(&self, bytes: &mut [u8]) -> Result<(), Unheard> {
        let mut done = 0;
        while done < bytes.len() {
            match self.stream.read(&mut [IoSliceMut::new(&mut bytes[done..])]) {
                Ok(Transfer::Bytes(n)) => done += n,
                Ok(Transfer::WouldBlock) => self.wait(Interest::READ)?,
                Ok(Transfer::Closed) | Err(_) => return Err(Unheard::Closed),
            }
        }
        Ok(())
    }

    fn word(&self) -> Result<u8, Unheard> {
        let mut word = [0];
        self.hear(&mut word)?;
        Ok(word[0])
    }

    fn say_why(&self, word: u8, why: &str) {
        let mut end = why.len().min(REASON_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = vec![word];
        bytes.extend_from_slice(&(end as u16).to_le_bytes());
        bytes.extend_from_slice(&why.as_bytes()[..end]);
        // If it cannot be told, the other side misses it and ends anyway.
        let _ = self.say(&bytes);
    }

    fn hear_why(&self) -> String {
        let mut len = [0; 2];
        if self.hear(&mut len).is_err() {
            return "nothing".to_string();
        }
        let mut text = vec![0; usize::from(u16::from_le_bytes(len)).min(REASON_MAX)];
        let _ = self.hear(&mut text);
        let text = String::from_utf8_lossy(&text);
        text.chars().filter(|c| !c.is_control()).collect()
    }

    fn send_descriptors(&self, fds: &[BorrowedFd<'_>]) -> Result<(), Unheard> {
        for batch in fds.chunks(FDS_MAX) {
            loop {
                match self.stream.send_fds(&[ESTATE], batch) {
                    Ok(Transfer::Bytes(_)) => break,
                    Ok(Transfer::WouldBlock) => self.wait(Interest::WRITE)?,
                    Ok(Transfer::Closed) => return Err(Unheard::Closed),
                    Err(errno) => return Err(Unheard::Errno(errno)),
                }
            }
        }
        Ok(())
    }

    fn receive_descriptors(&self, count: usize) -> Result<VecDeque<OwnedFd>, Unheard> {
        let mut all = VecDeque::new();
        while all.len() < count {
            let mut fds = ReceivedFds::default();
            match self.stream.recv_fds(&mut [0], &mut fds) {
                Ok(Transfer::Bytes(_)) => all.extend(fds.drain()),
                Ok(Transfer::WouldBlock) => self.wait(Interest::READ)?,
                Ok(Transfer::Closed) => return Err(Unheard::Closed),
                Err(errno) => return Err(Unheard::Errno(errno)),
            }
        }
        Ok(all)
    }
}

/// A memory file with an estate in it, wiped when it is no longer needed.
struct StateFile(Memfd, bool);

impl StateFile {
    fn write(estate: &Estate) -> Result<StateFile, std::io::Error> {
        let mut bytes = estate.encode();
        let size = Bytes(bytes.len() as u64);
        let file = Memfd::create("muninn-state", size);
        let written = file.and_then(|file| file.write_all(&bytes).map(|()| file));
        secret::wipe(&mut bytes);
        written
            .map(|file| StateFile(file, false))
            .map_err(|error| std::io::Error::other(error.to_string()))
    }

    fn read(fd: OwnedFd) -> Result<Estate, TakeOverError> {
        let incomplete = |_| TakeOverError::Incomplete("its state");
        let file = StateFile(Memfd::from_fd(fd).map_err(incomplete)?, false);
        let mut bytes = file.0.read_all().map_err(incomplete)?;
        let estate = Estate::decode(&bytes);
        secret::wipe(&mut bytes);
        Ok(estate?)
    }
}

impl StateFile {
    /// It stays as it is: somebody reads it later.
    fn keep(mut self) {
        self.1 = true;
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        // The file goes with its last descriptor; this is for the one that the other process has.
        if !self.1 {
            let _ = self.0.resize(Bytes::ZERO);
        }
    }
}

/// The right to serve. Both processes have the same counter, which is 1 until one of them reads it.
struct Token(EventFd);

impl Token {
    fn new() -> Result<Token, rustix::io::Errno> {
        let token = EventFd::new()?;
        token.notify();
        Ok(Token(token))
    }
    /// Whether it is ours from now on. It can be taken once.
    fn take(&self) -> bool {
        self.0.drain() == 1
    }
}

impl Server {
    /// Can be read when another process wants to go on in this one's place.
    pub fn heirs(&self) -> BorrowedFd<'_> {
        self.heirs.bell()
    }
    /// The one that waits, if there is one.
    pub fn next_heir(&self) -> Option<Stream> {
        self.heirs.take()
    }

    /// What cannot be handed over: code of this process that has state of its own.
    fn hindrance(&self) -> Option<String> {
        let services = self.shared.services.count();
        let agents = self.agents().len();
        match (services, agents) {
            (0, 0) => None,
            (_, 0) => Some(format!(
                "{services} of its services are in use, and their functions run in its process: \
                 end their clients first"
            )),
            _ => Some(format!(
                "{agents} agents of managed heaps run in its process: end these programs first"
            )),
        }
    }

    /// Hands everything to another process; after an error this one goes on serving. After success the
    /// server is to be dropped: nobody is told that it stops. What clients hold.
    pub fn hand_over(&mut self, heir: Stream) -> Result<Bytes, NotHandedOver> {
        let lease: Duration = self.shared.config.lease.into();
        let patience = (lease / 4).clamp(PATIENCE_MIN, PATIENCE_MAX);
        let mut talk = Talk::new(heir, patience);
        let refuse = |talk: &Talk, why: String| {
            talk.say_why(REFUSES, &why);
            NotHandedOver::Hindrance(why)
        };
        match talk.word() {
            Ok(LISTENS) => {}
            Err(Unheard::Silent) => return Err(NotHandedOver::Silent),
            _ => return Err(NotHandedOver::Gone),
        }
        if let Some(why) = self.hindrance() {
            return Err(refuse(&talk, why));
        }
        // The wiper stands still as long as this is held, the loops until there is a verdict.
        let gate = Arc::clone(&self.gate);
        let still = lock(&gate);
        let loops = Standstill::new();
        self.mailboxes
            .iter()
            .for_each(|mailbox: &Mailbox| mailbox.halt(&loops.halt));
        let Some(left) = loops.wait(self.mailboxes.len(), patience) else {
            return Err(refuse(
                &talk,
                "one of its threads is busy: try again".to_string(),
            ));
        };
        if let Some(why) = self.hindrance() {
            return Err(refuse(&talk, why));
        }
        if left.listeners.len() != self.addresses.len() {
            return Err(refuse(&talk, "it has no descriptors left".to_string()));
        }
        talk.give(patience);
        let token = Token::new().map_err(|errno| NotHandedOver::Send(errno.into()))?;
        let handed = self.give(&talk, left, &token).and_then(|()| {
            talk.say(&[YOURS]).map_err(not_heard)?;
            talk.give(LAST_WORD);
            match talk.word() {
                Ok(_) => Ok(()),
                Err(unheard) => Err(not_heard(unheard)),
            }
        });
        if let Err(error) = handed
            && token.take()
        {
            // It has not begun, and cannot any more.
            let _ = talk.say(&[TOO_LATE]);
            return Err(error);
        }
        let held = self.pool().granted;
        self.stop.store(true, Relaxed);
        loops.end_with(Verdict::End);
        drop(still);
        Ok(held)
    }

    /// Leaves everything to whoever keeps descriptors until the next process begins ([`Server::resume`]); after an
    /// error this one goes on serving. After success the server is to be dropped. What clients hold.
    pub fn leave(
        &mut self,
        mut keep: impl FnMut(&[BorrowedFd<'_>]) -> std::io::Result<()>,
    ) -> Result<Bytes, NotHandedOver> {
        if let Some(why) = self.hindrance() {
            return Err(NotHandedOver::Hindrance(why));
        }
        let gate = Arc::clone(&self.gate);
        let still = lock(&gate);
        let loops = Standstill::new();
        self.mailboxes.iter().for_each(|m| m.halt(&loops.halt));
        let left = loops.wait(self.mailboxes.len(), PATIENCE_MAX);
        let left = left.filter(|left| left.listeners.len() == self.addresses.len());
        let busy = || NotHandedOver::Hindrance("one of its threads is busy".to_string());
        let left = left.ok_or_else(busy)?;
        if let Some(why) = self.hindrance() {
            return Err(NotHandedOver::Hindrance(why));
        }
        let (state, left) = self.state_of(left)?;
        let kept = self.with_descriptors(&state, None, &left, |fds| keep(fds));
        kept.map_err(NotHandedOver::Send)?;
        // It is to be read again.
        state.keep();
        let held = self.pool().granted;
        self.stop.store(true, Relaxed);
        loops.end_with(Verdict::End);
        drop(still);
        Ok(held)
    }

    /// Goes on where a process was that left everything and is gone: with the same descriptors in the same order.
    pub fn resume(config: ServerConfig, fds: Vec<OwnedFd>) -> Result<Server, ServerError> {
        let mut fds = VecDeque::from(fds);
        let state = fds.pop_front();
        let state = state.ok_or(TakeOverError::Incomplete("its state"))?;
        let gate = Arc::default();
        let still = lock(&gate);
        let (server, loops) = prepare(config, &StateFile::read(state)?, fds, &gate)?;
        loops.end_with(Verdict::Begin);
        drop(still);
        server.shared.pool.memory().iter().for_each(|m| m.settle());
        Ok(server)
    }

    fn state_of(&self, left: Left) -> Result<(StateFile, Left), NotHandedOver> {
        let mut estate = left.will.finish(&self.shared);
        let listening = left.listeners.iter();
        estate.listening = listening.map(|(address, _)| address.to_string()).collect();
        let metrics = self.metrics_listener.as_ref();
        estate.metrics = metrics.map(|listener| listener.address().to_string());
        let state = StateFile::write(&estate).map_err(NotHandedOver::Send)?;
        let left = Left {
            listeners: left.listeners,
            ..Left::default()
        };
        Ok((state, left))
    }

    /// All that the next process needs, in the order in which it looks for it.
    fn with_descriptors<T>(
        &self,
        state: &StateFile,
        token: Option<&Token>,
        left: &Left,
        give: impl FnOnce(&[BorrowedFd<'_>]) -> T,
    ) -> T {
        let memory = self.shared.pool.memory();
        let mut fds = vec![state.0.as_fd()];
        fds.extend(token.map(|token| token.0.as_fd()));
        fds.extend(left.listeners.iter().map(|(_, fd)| fd.as_fd()));
        fds.extend(
            self.metrics_listener
                .as_ref()
                .map(|listener| listener.as_fd()),
        );
        fds.extend(memory.iter().map(|segment| segment.descriptor()));
        give(&fds)
    }

    /// Sends all that there is, and waits until the heir has looked at it.
    fn give(&self, talk: &Talk, left: Left, token: &Token) -> Result<(), NotHandedOver> {
        let (state, left) = self.state_of(left)?;
        self.with_descriptors(&state, Some(token), &left, |fds| {
            let mut head = vec![ESTATE];
            head.extend_from_slice(&(fds.len() as u32).to_le_bytes());
            talk.say(&head).map_err(not_heard)?;
            talk.send_descriptors(fds).map_err(not_heard)
        })?;
        match talk.word() {
            Ok(READY) => Ok(()),
            Ok(FAILED) => Err(NotHandedOver::Failed(talk.hear_why())),
            Ok(_) => Err(NotHandedOver::Failed(
                "it says what nobody understands".to_string(),
            )),
            Err(unheard) => Err(not_heard(unheard)),
        }
    }

    /// Goes on in the place of the server at the other end of a connection on which that was permitted.
    /// An error leaves that one as it was.
    pub fn take_over(config: ServerConfig, old: Stream) -> Result<Server, ServerError> {
        let mut talk = Talk::new(old, PATIENCE_MAX + PATIENCE_MAX);
        // Nothing is wiped before it is ours.
        let gate = Arc::default();
        let still = lock(&gate);
        let taken = receive(&talk)
            .and_then(|(estate, token, fds)| Ok((prepare(config, &estate, fds, &gate)?, token)));
        let ((server, loops), token) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                talk.say_why(FAILED, &error.to_string());
                return Err(error);
            }
        };
        let permitted = talk.say(&[READY]).and_then(|()| {
            talk.give(PATIENCE_MAX + LAST_WORD);
            talk.word()
        });
        let begin = match permitted {
            Ok(TOO_LATE) => Err(TakeOverError::TooLate),
            // It may have said nothing because it died, or was stopped: it does not serve without the token.
            Ok(YOURS) | Err(_) if token.take() => Ok(()),
            Ok(YOURS) | Err(_) => Err(TakeOverError::TooLate),
            Ok(_) => Err(TakeOverError::BrokenOff),
        };
        if let Err(error) = begin {
            server.stop.store(true, Relaxed);
            loops.end_with(Verdict::NeverBegin);
            drop(still);
            return Err(error.into());
        }
        loops.end_with(Verdict::Begin);
        drop(still);
        // If nobody hears it, nobody waits for it.
        let _ = talk.say(&[SERVES]);
        for segment in server.shared.pool.memory() {
            segment.settle();
        }
        Ok(server)
    }
}

fn lock(gate: &Mutex<()>) -> MutexGuard<'_, ()> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_heard(unheard: Unheard) -> NotHandedOver {
    match unheard {
        Unheard::Closed => NotHandedOver::Gone,
        Unheard::Silent => NotHandedOver::Silent,
        Unheard::Errno(errno) => NotHandedOver::Send(errno.into()),
    }
}

/// The state, the token and the descriptors behind them.
fn receive(talk: &Talk) -> Result<(Estate, Token, VecDeque<OwnedFd>), ServerError> {
    let broken = |unheard| match unheard {
        Unheard::Closed => TakeOverError::BrokenOff,
        Unheard::Silent => TakeOverError::Incomplete("it says nothing"),
        Unheard::Errno(_) => TakeOverError::Incomplete("descriptors: raise ulimit -n"),
    };
    talk.say(&[LISTENS]).map_err(broken)?;
    match talk.word().map_err(broken)? {
        ESTATE => {}
        REFUSES => return Err(TakeOverError::Refused(talk.hear_why()).into()),
        _ => return Err(TakeOverError::BrokenOff.into()),
    }
    let mut count = [0; 4];
    talk.hear(&mut count).map_err(broken)?;
    let count = u32::from_le_bytes(count) as usize;
    if !(1..=DESCRIPTORS_MAX).contains(&count) {
        return Err(TakeOverError::Incomplete("a number of descriptors that cannot be").into());
    }
    let mut fds = talk.receive_descriptors(count).map_err(broken)?;
    let mut next = |what| fds.pop_front().ok_or(TakeOverError::Incomplete(what));
    let (state, token) = (next("its state")?, next("the right to begin")?);
    // What follows depends on the version, which is looked at first.
    Ok((StateFile::read(state)?, Token(token.into()), fds))
}

/// Whether an address that was asked for is served already: any port is as good as another.
fn covers(there: &Address, wanted: &Address) -> bool {
    match (there, wanted) {
        (Address::Tcp(there), Address::Tcp(wanted)) if wanted.port() == 0 => {
            there.ip() == wanted.ip()
        }
        _ => there == wanted,
    }
}

/// A server whose loops stand still, with everything in its place.
fn prepare(
    mut config: ServerConfig,
    left: &Estate,
    mut fds: VecDeque<OwnedFd>,
    gate: &Arc<Mutex<()>>,
) -> Result<(Server, Standstill), ServerError> {
    let memory = Bytes(left.memory_bytes);
    let told = Bytes::pages(config.memory.whole_pages());
    if memory != told {
        return Err(TakeOverError::Memory(memory, told).into());
    }
    let segment = Bytes(left.segment_bytes);
    if let Some(told) = config.segment.replace(segment)
        && told != segment
    {
        return Err(TakeOverError::Segment(segment, told).into());
    }
    let lease = Duration::from(Nanos(left.lease_ns));
    if config.lease < lease {
        return Err(TakeOverError::Lease(lease, config.lease).into());
    }
    if config.threads < usize::from(left.shards) {
        return Err(TakeOverError::Threads(left.shards.into()).into());
    }
    let mut next = |what| fds.pop_front().ok_or(TakeOverError::Incomplete(what));
    let mut listeners = Vec::new();
    for text in &left.listening {
        let address = text.parse::<Address>();
        let address = address.map_err(|_| TakeOverError::Incomplete("an address"))?;
        listeners.push(Listener::adopt(next("a listener")?, &address)?);
    }
    let metrics = match &left.metrics {
        Some(text) => {
            let at: SocketAddr =
                (text.parse()).map_err(|_| TakeOverError::Incomplete("metrics"))?;
            Some(Listener::adopt(next("the metrics")?, &Address::Tcp(at))?)
        }
        None => None,
    };
    // What it listens at goes on, whatever was said; what was said besides is added.
    let covered = |wanted: &Address| listeners.iter().any(|l| covers(l.address(), wanted));
    let added: Vec<Address> = config
        .listen
        .iter()
        .filter(|a| !covered(a))
        .cloned()
        .collect();
    config.listen = listeners.iter().map(|l| l.address().clone()).collect();
    config.listen.extend(added.iter().cloned());
    let pool_config = check(&config)?;
    for address in &added {
        listeners.push(Listener::bind(address)?);
    }
    let wanted = config.metrics.map(Address::Tcp);
    let metrics = match (metrics, wanted) {
        (Some(there), Some(wanted)) if covers(there.address(), &wanted) => Some(there),
        (_, Some(wanted)) => Some(Listener::bind(&wanted)?),
        (_, None) => None,
    };
    let backing = backing(&config);
    let memory = left.segments.iter().map(|segment| {
        let fd = next("a segment")?;
        adopt(&backing, fd, segment).map(Arc::new)
    });
    let memory = memory.collect::<Result<Vec<_>, TakeOverError>>()?;
    let estate = TakeOverError::Estate;
    let inherited = Inherited::new(backing, pool_config, shared_config(&config), memory, left);
    let inherited = inherited.map_err(estate)?;
    let mut shards = shards(&config, &inherited.shared);
    let now = clock::now();
    for shard in &mut shards {
        inherited.settle(shard, left, now).map_err(estate)?;
    }
    let loops = Standstill::new();
    let base = Base {
        shared: Arc::clone(&inherited.shared),
        shards,
        listeners,
        metrics,
        halt: Some(Arc::clone(&loops.halt)),
        gate: Arc::clone(gate),
    };
    Ok((Server::run(config, base)?, loops))
}

fn adopt(
    backing: &MemfdBacking,
    fd: OwnedFd,
    left: &muninn_wire::LeftSegment,
) -> Result<MemfdSegment, TakeOverError> {
    let segment = backing.adopt(fd, Bytes(left.bytes), left.lasting);
    let segment = segment.map_err(TakeOverError::Memories)?;
    // What clients map they may have cut, which hurts nobody else; the rest is ours to touch.
    let ours = matches!(left.used, LeftUse::Free | LeftUse::Shared);
    let bytes = segment.file_bytes().map_err(TakeOverError::Memories)?;
    if ours && bytes.0 != left.bytes {
        return Err(TakeOverError::Incomplete("a segment of another length"));
    }
    Ok(segment)
}

#[cfg(test)]
mod tests;
