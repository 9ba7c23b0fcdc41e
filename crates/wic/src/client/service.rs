//! A service as a program uses it.
//!
//! A [`Service`] belongs to one thread: it runs the program's calls on that thread, and there is
//! nothing to lock. Several threads open it several times.

use super::engine::Engine;
use super::port::Port;
use crate::error::{CallError, Side, WicError};
use crate::memory::{Addr, Layout};
use crate::nic::mapped_chunks;
use crate::registry::{Wic, WicEntry};
use muninn_net::{Answer, Control, NetError, SessionOptions, TcpSession, Transport, connect};
use muninn_sys::clock;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, LaneKind, Nanos};
use muninn_wire::{MAX_PAYLOAD, Opening, ShortText};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub use super::task::Finished;

/// Where functions are to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    Client,
    Server,
    Nic,
    /// Muninn chooses, and moves calls while the program runs.
    #[default]
    Auto,
}

impl std::str::FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Place, String> {
        match text {
            "client" => Ok(Place::Client),
            "server" => Ok(Place::Server),
            "nic" => Ok(Place::Nic),
            "auto" => Ok(Place::Auto),
            other => Err(format!(
                "'{other}' is no place: use client, server, nic or auto"
            )),
        }
    }
}

/// How accesses and calls travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Connections to each side.
    pub queues: usize,
    /// Operations under way on each.
    pub depth: usize,
    /// Operations that are sent together at most; 1: each by itself.
    pub batch: usize,
    /// Calls that run at the client at once; 1: each to its end.
    pub multiplex: usize,
    /// A call fails after this time.
    pub deadline: Duration,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            queues: 2,
            depth: 32,
            batch: 16,
            multiplex: 64,
            deadline: Duration::from_secs(10),
        }
    }
}

/// Which service to open, and how.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    pub server: String,
    pub nic: Option<String>,
    pub name: String,
    pub bytes: Bytes,
    pub locks: u32,
    pub place: Place,
    pub session: SessionOptions,
    pub tuning: Tuning,
    /// At a Unix socket, map the memory; else every access is a message there too.
    pub mapped: bool,
    uses: Vec<WicEntry>,
}

impl ServiceOptions {
    /// A service of this name with this much memory and one lock, wherever Muninn finds best.
    pub fn new(server: &str, name: &str, bytes: Bytes) -> ServiceOptions {
        ServiceOptions {
            server: server.to_string(),
            nic: None,
            name: name.to_string(),
            bytes,
            locks: 1,
            place: Place::Auto,
            session: SessionOptions::default(),
            tuning: Tuning::default(),
            mapped: true,
            uses: Vec::new(),
        }
    }
    pub fn place(mut self, place: Place) -> ServiceOptions {
        self.place = place;
        self
    }
    pub fn nic(mut self, address: &str) -> ServiceOptions {
        self.nic = Some(address.to_string());
        self
    }
    pub fn locks(mut self, locks: u32) -> ServiceOptions {
        self.locks = locks;
        self
    }
    pub fn tuning(mut self, tuning: Tuning) -> ServiceOptions {
        self.tuning = tuning;
        self
    }
    /// A function that will be called: opening fails if the other side has another version of it.
    pub fn uses<W: Wic>(mut self, _wic: W) -> ServiceOptions {
        self.uses.push(WicEntry::of::<W>());
        self
    }
}

/// An open service.
pub struct Service {
    engine: RefCell<Engine>,
    /// Calls that futures wait for, and their results.
    awaited: RefCell<HashMap<u64, Option<Finished>>>,
    next: RefCell<u64>,
    layout: Layout,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Service({:?})", self.layout)
    }
}

/// Tokens of calls that futures wait for.
const AWAITED: u64 = 1 << 31;
/// How long to turn without anything to do before sleeping.
const SPIN: Nanos = Nanos::micros(50);

impl Service {
    pub fn open(options: ServiceOptions) -> Result<Service, CallError> {
        let address: Address = options.server.parse().map_err(NetError::from)?;
        let transport: Arc<dyn Transport> = match options.mapped {
            true => connect(&address, &options.session)?,
            false => Arc::new(TcpSession::open(&address, &options.session)?),
        };
        let opening = Control::Open(Opening::Named {
            name: ShortText::lossy(&options.name, muninn_wire::MAX_NAME),
            bytes: options.bytes.0,
            locks: options.locks,
        });
        let Answer::Opened(info, grants) = transport.call(opening, options.session.deadline)?
        else {
            return Err(CallError::BadReply);
        };
        let layout = Layout::of(&info);
        let near = mapped_chunks(&*transport, &info, &grants).map(Rc::new);
        let ids = grants.iter().map(|grant| grant.grant).collect();
        let nic = match &options.nic {
            Some(nic) => {
                let address: Address = nic.parse().map_err(NetError::from)?;
                Some((address, options.session.clone()))
            }
            None if options.place == Place::Nic => return Err(CallError::NoNic),
            None => None,
        };
        let port = Port::new(layout, ids);
        let how = (options.place, options.tuning);
        let mut engine = Engine::new(transport, info, port, near, nic, how)?;
        for entry in &options.uses {
            if options.place != Place::Client {
                engine.resolve(entry, Side::Server)?;
            }
            if options.nic.is_some() && matches!(options.place, Place::Nic | Place::Auto) {
                engine.resolve(entry, Side::Nic)?;
            }
        }
        Ok(Service {
            engine: RefCell::new(engine),
            awaited: RefCell::default(),
            next: RefCell::new(0),
            layout,
        })
    }

    /// The first address of the application's memory, and the first behind it.
    pub fn range(&self) -> (Addr, Addr) {
        (Addr(self.layout.base), Addr(self.layout.bytes))
    }

    /// From now on, calls that are started run there.
    pub fn set_place(&self, place: Place) {
        self.engine.borrow_mut().set_place(place);
    }

    /// Where each function runs that Muninn places, and why.
    pub fn explain(&self) -> Vec<String> {
        self.engine.borrow().explain()
    }
    /// How often Muninn has moved a function.
    pub fn moves(&self) -> u64 {
        self.engine.borrow().moves()
    }
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::clone(self.engine.borrow().transport())
    }

    /// Calls a function. Await it in [`Service::block_on`].
    pub fn call<W: Wic>(&self, _wic: W, args: W::Args) -> Call<'_, W> {
        Call {
            service: self,
            state: State::Fresh(postcard::to_stdvec(&args).map_err(|_| WicError::Args)),
            wic: PhantomData,
        }
    }

    /// Calls a function and waits for it.
    pub fn run<W: Wic>(&self, wic: W, args: W::Args) -> Result<W::Reply, CallError> {
        self.block_on(self.call(wic, args))
    }

    /// Runs a future, and the calls it waits for, to its end.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut idle_since: Option<Nanos> = None;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            self.turn_or_wait(&mut idle_since, Duration::from_millis(1));
        }
    }

    /// Starts a call that ends in [`Service::poll`]. `token` is less than 2^31; `started` is when it
    /// was meant to start, which a load generator knows better.
    pub fn start<W: Wic>(&self, _wic: W, args: &W::Args, token: u64, started: Nanos) {
        debug_assert!(token < AWAITED);
        match postcard::to_stdvec(args) {
            Ok(args) => {
                let entry = const { &WicEntry::of::<W>() };
                self.engine.borrow_mut().start(entry, args, token, started);
            }
            Err(_) => unreachable!("arguments are plain data"),
        }
    }

    /// The next call that has ended; None after `wait`.
    pub fn poll(&self, wait: Duration) -> Option<Finished> {
        let mut idle_since = None;
        let mut ends = None;
        loop {
            let next = self.engine.borrow_mut().finished.pop_front();
            match next {
                Some(finished) if finished.token & AWAITED == 0 => return Some(finished),
                Some(finished) => self.hand_in(finished),
                None => {
                    let busy = self.turn_or_wait(&mut idle_since, wait);
                    if !busy {
                        let now = clock::now();
                        if now >= *ends.get_or_insert(now + Nanos::from(wait)) {
                            return None;
                        }
                    }
                }
            }
        }
    }

    /// Calls started and not finished.
    pub fn under_way(&self) -> usize {
        self.engine.borrow().under_way()
    }

    fn turn_or_wait(&self, idle_since: &mut Option<Nanos>, at_most: Duration) -> bool {
        let mut engine = self.engine.borrow_mut();
        if engine.turn() {
            *idle_since = None;
            return true;
        }
        if at_most.is_zero() {
            return false;
        }
        let now = clock::now();
        let since = *idle_since.get_or_insert(now);
        if now.saturating_sub(since) > SPIN {
            engine.wait(at_most.min(Duration::from_millis(1)));
        } else {
            std::hint::spin_loop();
        }
        false
    }

    fn hand_in(&self, finished: Finished) {
        let mut awaited = self.awaited.borrow_mut();
        // Nobody waits any more for one that is not there: its future was dropped.
        if let Some(place) = awaited.get_mut(&finished.token) {
            *place = Some(finished);
        }
    }

    /// Takes what has ended, and gives out the result with this token if it is among it.
    fn take(&self, token: u64) -> Option<Finished> {
        loop {
            let mut awaited = self.awaited.borrow_mut();
            if awaited.get(&token).is_some_and(Option::is_some) {
                return awaited.remove(&token).flatten();
            }
            drop(awaited);
            let mut engine = self.engine.borrow_mut();
            let ours = |f: &Finished| f.token & AWAITED != 0;
            let at = engine.finished.iter().position(ours)?;
            let finished = engine.finished.remove(at)?;
            drop(engine);
            self.hand_in(finished);
        }
    }

    /// Copies memory out, in bulk and outside of any function: for filling and checking.
    pub fn read_bulk(&self, at: Addr, into: &mut [u8]) -> Result<(), CallError> {
        self.layout
            .check(at, into.len())
            .map_err(CallError::Failed)?;
        let engine = self.engine.borrow();
        if let Some(near) = engine.near() {
            return near.read(at, into).map_err(CallError::Failed);
        }
        let mut lane = engine.transport().lane(LaneKind::Critical)?;
        let mut from = at.0;
        for part in into.chunks_mut(MAX_PAYLOAD) {
            let segs = engine.port().segs(from, part.len());
            lane.read_v(Class::Demand, &segs, part)?;
            from += part.len() as u64;
        }
        Ok(())
    }

    /// Copies into memory, in bulk and outside of any function.
    pub fn write_bulk(&self, at: Addr, bytes: &[u8]) -> Result<(), CallError> {
        self.layout
            .check(at, bytes.len())
            .map_err(CallError::Failed)?;
        let engine = self.engine.borrow();
        if let Some(near) = engine.near() {
            return near.write(at, bytes).map_err(CallError::Failed);
        }
        let mut lane = engine.transport().lane(LaneKind::Critical)?;
        let mut to = at.0;
        for part in bytes.chunks(MAX_PAYLOAD) {
            let segs = engine.port().segs(to, part.len());
            lane.write_v(Class::Demand, &segs, part)?;
            to += part.len() as u64;
        }
        Ok(())
    }

    fn new_token(&self) -> u64 {
        let mut next = self.next.borrow_mut();
        *next = (*next + 1) % AWAITED;
        AWAITED | *next
    }
}

enum State {
    Fresh(Result<Vec<u8>, WicError>),
    Started(u64),
    Ended,
}

/// A call that was made with [`Service::call`].
#[must_use = "a call does nothing before it is awaited"]
pub struct Call<'s, W: Wic> {
    service: &'s Service,
    state: State,
    wic: PhantomData<W>,
}

impl<W: Wic> Unpin for Call<'_, W> {}

impl<W: Wic> std::fmt::Debug for Call<'_, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Call({}@{})", W::NAME, W::VERSION)
    }
}

impl<W: Wic> Future for Call<'_, W> {
    type Output = Result<W::Reply, CallError>;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Fresh(args) => {
                let args = match args {
                    Ok(args) => args,
                    Err(error) => return Poll::Ready(Err(CallError::Failed(error))),
                };
                let service = self.service;
                let token = service.new_token();
                service.awaited.borrow_mut().insert(token, None);
                let entry = const { &WicEntry::of::<W>() };
                let now = clock::now();
                service.engine.borrow_mut().start(entry, args, token, now);
                self.state = State::Started(token);
                Poll::Pending
            }
            State::Started(token) => match self.service.take(token) {
                None => {
                    self.state = State::Started(token);
                    Poll::Pending
                }
                Some(finished) => Poll::Ready(match finished.result {
                    Ok(reply) => reply.decode().ok_or(CallError::BadReply),
                    Err(error) => Err(error),
                }),
            },
            State::Ended => panic!("a call was polled after its end"),
        }
    }
}

impl<W: Wic> Drop for Call<'_, W> {
    fn drop(&mut self) {
        // It runs on, to its end or its deadline; nobody hears of it.
        if let State::Started(token) = self.state {
            self.service.awaited.borrow_mut().remove(&token);
        }
    }
}
