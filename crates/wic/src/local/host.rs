//! Runs the calls of a server's event loop, on the server's own memory or on memory of another server
//! that this process has mapped.
//!
//! A call that does not prefetch is run when it is handed in, its arguments still in the cache, unless
//! others wait or the time of a run is used up; the rest runs when the loop says so. Whether accesses are
//! prefetched can be left open: then each loop finds out which way its calls take less time. Known limit:
//! the choice is one for all functions of a loop.

use super::memory::{Chunks, Limits, LocalMemory, Style};
use super::styles::Styles;
use super::window::{Now, Outcome, RUN, Replying, Window};
use crate::error::WicError;
use crate::memory::Layout;
use crate::nic::Upstream;
use crate::pushed::{Push, Pushed, Shelf};
use crate::registry::{Ended, Registry, Running};
use muninn_proto::server::{CallerOf, Pusher, Service, holder_of, server_holder};
use muninn_server::{CallFactory, CallHost, MemfdBacking, OnEnd};
use muninn_sys::clock;
use muninn_types::{Nanos, ServiceId};
use muninn_wire::{Called, ErrorCode, FIRST_PUSHED, Refusal, WicsReply, WicsRequest};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Makes the hosts of a server: how it runs functions.
#[derive(Clone, Debug)]
pub struct LocalHosts {
    pub registry: Arc<Registry>,
    /// Functions that were pushed.
    pub shelf: Arc<Shelf>,
    /// How accesses are made; None: whichever way turns out faster.
    pub style: Option<Style>,
    /// Calls that run at once. One, unless accesses are prefetched.
    pub window: usize,
    pub limits: Limits,
    /// Where the memory is, if not at this server.
    pub upstream: Option<Arc<Upstream>>,
    /// Set to the time at which calls began to run, and to 0 when their thread comes back: for whoever
    /// looks for functions that never do.
    pub watch: Option<Arc<AtomicU64>>,
}

impl LocalHosts {
    /// Runs each call to its end.
    pub fn sync() -> LocalHosts {
        let registry = Arc::new(Registry::collect());
        LocalHosts {
            shelf: Arc::new(Shelf::new(Push::default(), Arc::clone(&registry))),
            registry,
            style: Some(Style::Sync),
            window: 1,
            limits: Limits::default(),
            upstream: None,
            watch: None,
        }
    }
    /// Runs `window` calls at once, with prefetched accesses.
    pub fn prefetching(window: usize) -> LocalHosts {
        LocalHosts {
            style: Some(Style::Prefetch),
            window,
            ..LocalHosts::sync()
        }
    }
    /// Takes functions from others, as far as they may push.
    pub fn taking(self, push: Push) -> LocalHosts {
        LocalHosts {
            shelf: Arc::new(Shelf::new(push, Arc::clone(&self.registry))),
            ..self
        }
    }
    /// Finds out which of the two is faster, again and again.
    pub fn adaptive(window: usize) -> LocalHosts {
        LocalHosts {
            style: None,
            window,
            ..LocalHosts::sync()
        }
    }
}

impl CallFactory for LocalHosts {
    fn find(&self, owner: &str, name: &str, version: u32) -> Result<u32, Option<u32>> {
        let built_in = self.registry.find(name, version);
        let Err(here) = built_in else {
            return built_in;
        };
        let pushed = self.shelf.find(owner, name, version);
        let pushed = match (&self.upstream, pushed) {
            (Some(upstream), Err(other)) => match upstream.fetch(&self.shelf, owner, name, version)
            {
                Ok(()) => self.shelf.find(owner, name, version),
                Err(_) => Err(other),
            },
            (_, pushed) => pushed,
        };
        pushed.map_err(|other| other.max(here))
    }
    fn wics(&self, by: &Pusher<'_>, request: &WicsRequest) -> Result<WicsReply, Refusal> {
        match &self.upstream {
            None => self.shelf.handle(by, request),
            Some(_) => {
                let refusal = Refusal::new(ErrorCode::NotPermitted);
                Err(refusal.remark("a nic has the functions of its server: push them to that"))
            }
        }
    }
    fn host(&self, index: usize) -> Box<dyn CallHost> {
        let holder = match &self.upstream {
            Some(upstream) => upstream.holder(),
            None => server_holder(index),
        };
        let styles = match self.style {
            Some(style) => Styles::fixed(style),
            None => Styles::adaptive(clock::now()),
        };
        Box::new(LocalHost {
            hosts: self.clone(),
            holder,
            calls: 0,
            styles,
            begun: None,
            at_once: AtOnce::default(),
            window: Window::new(self.window, self.limits.allocated),
            known: Vec::new(),
            forgotten: 0,
            pushed: HashMap::new(),
            pushed_changes: 0,
        })
    }
}

/// Whose call it is, since when, and on which service.
#[derive(Debug)]
struct Origin {
    caller: CallerOf,
    arrived: Nanos,
    service: Option<Arc<Service<MemfdBacking>>>,
}

/// A service whose addresses were looked up before. Only its mappings are kept, not the service: it can
/// end, and is forgotten here when another one comes.
#[derive(Debug)]
struct Known {
    id: ServiceId,
    /// Of this server; none of another.
    service: Option<Weak<Service<MemfdBacking>>>,
    chunks: Rc<Chunks>,
}

/// Calls that end between two looks at the clock.
const ENDS_A_LOOK: u32 = 16;

/// What is counted for a service, added up before it is told: most calls in a row are of one.
#[derive(Debug, Default)]
struct Tally {
    service: Option<Arc<Service<MemfdBacking>>>,
    calls: u64,
    failed: u64,
    accesses: u64,
}

impl Tally {
    /// What is counted from now on is of this service.
    fn turn_to(&mut self, service: Option<&Arc<Service<MemfdBacking>>>) {
        let same = match (&self.service, service) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.tell();
            self.service = service.cloned();
        }
    }
    fn count(&mut self, outcome: &Outcome) {
        self.calls += 1;
        match outcome {
            Outcome::Ended(ended) => {
                self.failed += u64::from(ended.result.is_err());
                self.accesses += u64::from(ended.accesses);
            }
            Outcome::Late(_) | Outcome::Panicked => self.failed += 1,
        }
    }
    fn tell(&mut self) {
        let told = std::mem::take(self);
        if let Some(service) = told.service {
            service.calls.fetch_add(told.calls, Relaxed);
            service.failed.fetch_add(told.failed, Relaxed);
            service.accesses.fetch_add(told.accesses, Relaxed);
        }
    }
}

/// Calls that were run when they were handed in, since the last run.
#[derive(Default)]
struct AtOnce {
    ended: Vec<EndedAtOnce>,
    /// Replies of all of them, one behind the other.
    replies: Vec<u8>,
    /// The last one, if its reply is to be made yet: that looks at what it loaded last, so it is done
    /// when the next one has begun and that line has come.
    last: Option<(CallerOf, Nanos, Replying)>,
    tally: Tally,
    /// When the clock was last looked at, and whether the time for them was used up then.
    looked: Nanos,
    is_over: bool,
}

struct EndedAtOnce {
    caller: CallerOf,
    arrived: Nanos,
    accesses: u32,
    /// How long its reply is, or why there is none.
    result: Result<u32, Box<Refusal>>,
}

impl std::fmt::Debug for AtOnce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AtOnce({})", self.len())
    }
}

impl AtOnce {
    fn len(&self) -> usize {
        self.ended.len() + usize::from(self.last.is_some())
    }
    fn end(&mut self, caller: CallerOf, arrived: Nanos, outcome: &Outcome) {
        self.tally.count(outcome);
        let (result, accesses) = match outcome {
            Outcome::Ended(Ended {
                result: Ok(reply),
                accesses,
            }) => {
                self.replies.extend_from_slice(reply.bytes());
                (Ok(reply.bytes().len() as u32), *accesses)
            }
            other => (Err(Box::new(refusal_of(other))), 0),
        };
        self.ended.push(EndedAtOnce {
            caller,
            arrived,
            accesses,
            result,
        });
    }
    /// Makes the reply that is to be made yet.
    fn reply(&mut self) {
        if let Some((caller, arrived, replying)) = self.last.take() {
            self.end(caller, arrived, &replying.reply());
        }
    }
    fn look(&mut self, arrived: Nanos) {
        self.looked = clock::now();
        self.is_over = self.looked >= arrived + RUN;
    }
    /// Shows all of them; how many there were.
    fn tell(&mut self, upstream: Option<&Upstream>, end: &mut OnEnd<'_>) -> u32 {
        self.reply();
        let count = self.ended.len() as u32;
        let mut rest = &self.replies[..];
        for ended in self.ended.drain(..) {
            let (reply, others) = rest.split_at(*ended.result.as_ref().unwrap_or(&0) as usize);
            rest = others;
            let result = match ended.result {
                _ if !is_leased(upstream) => Err(lost(true)),
                Ok(_) => {
                    let took = self.looked.saturating_sub(ended.arrived);
                    Ok(called(ended.accesses, took, reply))
                }
                Err(refusal) => Err(*refusal),
            };
            end(&ended.caller, &result);
        }
        self.replies.clear();
        self.tally.tell();
        self.is_over = false;
        count
    }
}

/// What a call found or changed counts only while the server keeps its memory for us.
fn is_leased(upstream: Option<&Upstream>) -> bool {
    upstream.is_none_or(Upstream::is_leased)
}
fn lost(begun: bool) -> Refusal {
    Refusal::with(ErrorCode::UpstreamLost, u64::from(begun), 0)
}
fn called(accesses: u32, took: Nanos, reply: &[u8]) -> Called<'_> {
    Called {
        accesses,
        took_ns: u32::try_from(took.0).unwrap_or(u32::MAX),
        reply,
    }
}
/// Why a call has no reply.
fn refusal_of(outcome: &Outcome) -> Refusal {
    match outcome {
        Outcome::Late(begun) => Refusal::with(ErrorCode::CallDeadline, u64::from(*begun), 0),
        Outcome::Panicked => WicError::Panicked.to_refusal(),
        Outcome::Ended(ended) => match &ended.result {
            Err(error) => error.to_refusal(),
            Ok(_) => Refusal::new(ErrorCode::Internal),
        },
    }
}

/// The host of one event loop.
#[derive(Debug)]
pub struct LocalHost {
    hosts: LocalHosts,
    holder: u64,
    /// Counts calls, so that each is a holder of its own.
    calls: u64,
    styles: Styles,
    /// When the first call since the last run was handed in, if anybody wants to know.
    begun: Option<Nanos>,
    at_once: AtOnce,
    window: Window<Origin>,
    known: Vec<Known>,
    /// As often had the upstream forgotten services when these were looked up.
    forgotten: u64,
    /// Pushed functions that were looked up before, and what the shelf counted then.
    pushed: HashMap<u32, Pushed>,
    pushed_changes: u64,
}

/// A service of this server in its own address space.
pub(crate) fn chunks_of(service: &Arc<Service<MemfdBacking>>) -> Chunks {
    let start = |extent: &muninn_proto::server::Extent<MemfdBacking>| {
        extent.mem().at(extent.start(), extent.bytes())
    };
    let starts = service.chunks.iter().map(|(_, extent)| start(extent));
    let keep: Vec<_> = service
        .chunks
        .iter()
        .map(|(_, e)| Arc::clone(e.mem()))
        .collect();
    // SAFETY: each extent of a service is 2^shift bytes of a segment that stays mapped while it is
    // held, starts at a page, and is accessed without references.
    unsafe { Chunks::new(Layout::of(&service.info), starts.collect(), Box::new(keep)) }
}

impl LocalHost {
    /// A function that was pushed.
    fn pushed(&mut self, number: u32) -> Result<&Pushed, Refusal> {
        let shelf = &self.hosts.shelf;
        let changes = shelf.changes();
        if changes != self.pushed_changes {
            self.pushed.clear();
            self.pushed_changes = changes;
        }
        match self.pushed.entry(number) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => match shelf.get(number) {
                Some(pushed) => Ok(place.insert(pushed)),
                None => Err(Refusal::new(ErrorCode::NoWic)),
            },
        }
    }

    fn chunks(
        &mut self,
        id: ServiceId,
        service: Option<&Arc<Service<MemfdBacking>>>,
    ) -> Result<Rc<Chunks>, Refusal> {
        if let Some(upstream) = &self.hosts.upstream {
            let forgotten = upstream.forgotten();
            if forgotten != self.forgotten {
                self.known.clear();
                self.forgotten = forgotten;
            }
        } else if service.is_none() {
            return Err(Refusal::with(ErrorCode::NoService, id.0, 0));
        }
        match self.known.iter().find(|known| known.id == id) {
            Some(known) => Ok(Rc::clone(&known.chunks)),
            None => self.look_up(id, service),
        }
    }

    #[cold]
    fn look_up(
        &mut self,
        id: ServiceId,
        service: Option<&Arc<Service<MemfdBacking>>>,
    ) -> Result<Rc<Chunks>, Refusal> {
        let ended = |of: &Weak<Service<MemfdBacking>>| of.strong_count() == 0;
        self.known
            .retain(|known| !known.service.as_ref().is_some_and(ended));
        let (service, chunks) = match (&self.hosts.upstream, service) {
            (Some(upstream), _) => (None, Chunks::again(&upstream.chunks(id)?)),
            (None, Some(service)) => (Some(Arc::downgrade(service)), chunks_of(service)),
            (None, None) => return Err(Refusal::with(ErrorCode::NoService, id.0, 0)),
        };
        let chunks = Rc::new(chunks);
        self.known.push(Known {
            id,
            service,
            chunks: Rc::clone(&chunks),
        });
        Ok(chunks)
    }
}

impl LocalHost {
    fn run_at_once(
        &mut self,
        running: Running,
        caller: &CallerOf,
        service: Option<&Arc<Service<MemfdBacking>>>,
        (arrived, deadline): (Nanos, Nanos),
    ) {
        if let Some(watch) = &self.hosts.watch {
            watch.store(arrived.0.max(1), Relaxed);
        }
        let now = self.window.run_now(running, deadline, || Origin {
            caller: *caller,
            arrived,
            service: service.cloned(),
        });
        let at_once = &mut self.at_once;
        at_once.reply();
        at_once.tally.turn_to(service);
        match now {
            Now::Ended(outcome) => at_once.end(*caller, arrived, &outcome),
            Now::Replies(replying) => at_once.last = Some((*caller, arrived, replying)),
            Now::Queued => {}
        }
        if at_once.len().is_multiple_of(ENDS_A_LOOK as usize) {
            at_once.look(arrived);
        }
    }
}

impl CallHost for LocalHost {
    fn submit(
        &mut self,
        caller: &CallerOf,
        service: Option<&Arc<Service<MemfdBacking>>>,
        args: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let is_pushed = caller.wic >= FIRST_PUSHED;
        let entry = self.hosts.registry.get(caller.wic);
        if entry.is_none() && !is_pushed {
            return Err(Refusal::new(ErrorCode::NoWic));
        }
        let start = entry.map(|entry| entry.start);
        let chunks = self.chunks(caller.service, service)?;
        let hosts = &self.hosts;
        self.calls += 1;
        let holder = holder_of(self.holder, self.calls);
        let style = self.styles.style();
        let at_once = style == Style::Sync && self.window.is_empty() && !self.at_once.is_over;
        let mut memory = LocalMemory::new(chunks, style, holder, hosts.limits);
        if at_once {
            memory = memory.replying_later();
        }
        let running = match start {
            Some(start) => start(memory, args),
            None => self.pushed(caller.wic)?.start(memory, args),
        };
        let running = running.map_err(|error| error.to_refusal())?;
        let deadline = now + Nanos::micros(u64::from(caller.deadline_us));
        if self.styles.is_open() && self.begun.is_none() {
            self.begun = Some(clock::now());
        }
        if at_once {
            self.run_at_once(running, caller, service, (now, deadline));
        } else {
            let origin = Origin {
                caller: *caller,
                arrived: now,
                service: service.cloned(),
            };
            self.window.push(running, origin, deadline);
        }
        Ok(())
    }

    fn may_call(&self, number: u32, owner: &str) -> bool {
        self.hosts.shelf.may_call(number, owner)
    }

    fn run(&mut self, now: Nanos, end: &mut OnEnd<'_>) -> bool {
        let upstream = self.hosts.upstream.as_deref();
        if let Some(watch) = &self.hosts.watch {
            watch.store(now.0.max(1), Relaxed);
        }
        if self.at_once.looked < now {
            self.at_once.look(now);
        }
        let mut ends = self.at_once.tell(upstream, end);
        let mut went_on = ends > 0;
        let begin = match self.begun.take() {
            Some(begun) => begun,
            None if self.styles.is_open() => clock::now(),
            None => now,
        };
        let mut tally = Tally::default();
        let mut clock_now = now;
        let mut looks = 0;
        went_on |= self.window.run(now, |origin, outcome| {
            // Reading it costs as much as an access or two.
            if looks % ENDS_A_LOOK == 0 {
                clock_now = clock::now();
            }
            looks += 1;
            ends += 1;
            tally.turn_to(origin.service.as_ref());
            tally.count(&outcome);
            let result = match &outcome {
                outcome if !is_leased(upstream) => {
                    Err(lost(!matches!(outcome, Outcome::Late(false))))
                }
                Outcome::Ended(Ended {
                    result: Ok(reply),
                    accesses,
                }) => {
                    let took = clock_now.saturating_sub(origin.arrived);
                    Ok(called(*accesses, took, reply.bytes()))
                }
                other => Err(refusal_of(other)),
            };
            end(&origin.caller, &result);
        });
        tally.tell();
        if self.styles.is_open() {
            self.styles.ran(ends, begin, clock::now());
        }
        if let Some(watch) = &self.hosts.watch {
            watch.store(0, Relaxed);
        }
        went_on
    }

    fn under_way(&self) -> usize {
        self.window.len() + self.at_once.len()
    }
}
