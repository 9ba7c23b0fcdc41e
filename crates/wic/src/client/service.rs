//! A service as a program uses it.
//!
//! A [`Service`] belongs to one thread: it runs the program's calls on that thread, and there is
//! nothing to lock. Several threads open it several times.

use super::engine::Engine;
use super::port::Port;
use crate::error::{CallError, Side, WicError};
use crate::fetch::{FetchError, fetch};
use crate::memory::{Addr, Layout};
use crate::nic::mapped_chunks;
use crate::pushed::{Module, Pushed};
use crate::registry::{Function, Reply, Wic, WicEntry};
use muninn_net::{Answer, Control, NetError, SessionOptions, TcpSession, Transport, connect};
use muninn_sys::clock;
use muninn_sys::socket::Address;
use muninn_types::{Bytes, Class, LaneKind, Nanos};
use muninn_wire::{MAX_PAYLOAD, Opening, ShortText};
use serde::Serialize;
use serde::de::DeserializeOwned;
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
    uses: Vec<Function>,
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
        self.uses.push(Function::BuiltIn(WicEntry::of::<W>()));
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
        for function in &options.uses {
            if options.place != Place::Client {
                engine.resolve(function, Side::Server)?;
            }
            if options.nic.is_some() && matches!(options.place, Place::Nic | Place::Auto) {
                engine.resolve(function, Side::Nic)?;
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
    pub fn call<W: Wic>(&self, _wic: W, args: W::Args) -> Call<'_, W::Reply> {
        let args = postcard::to_stdvec(&args).map_err(|_| WicError::Args);
        Call {
            call: self.begin(Function::BuiltIn(WicEntry::of::<W>()), args),
            types: PhantomData,
        }
    }

    fn begin(&self, function: Function, args: Result<Vec<u8>, WicError>) -> CallBytes<'_> {
        CallBytes {
            service: self,
            function,
            state: State::Fresh(args),
        }
    }

    /// A function that was pushed to the server, for a program that was built without it. Its arguments and
    /// its reply are said by the caller; that they are what the function takes, nobody checks but the function.
    ///
    /// The module is fetched, so that it can run here, too.
    pub fn function<A, R>(&self, name: &str, version: u32) -> Result<Remote<A, R>, CallError> {
        let engine = self.engine.borrow();
        let (transport, deadline) = (engine.transport(), engine.deadline());
        let mut ask = |request| match transport.call(Control::Wics(request), deadline)? {
            Answer::Wics(reply) => Ok(reply),
            _ => unreachable!("what is asked about functions is answered so"),
        };
        let unusable = |error: FetchError| match error {
            FetchError::Net(NetError::Refused(_, refusal)) => CallError::Refused {
                side: Side::Server,
                refusal,
            },
            FetchError::Net(error) => error.into(),
            other => CallError::Module(other.to_string()),
        };
        let (_, bytes) = fetch(&mut ask, "", name, version).map_err(unusable)?;
        let module = Module::load(bytes).map_err(|error| CallError::Module(error.to_string()))?;
        let module = Arc::new(module);
        let named = |pushed: &Pushed| {
            let exported = pushed.exported();
            exported.name == name && exported.version == version
        };
        match Pushed::all(&module).find(named) {
            Some(pushed) => Ok(Remote {
                function: Function::Pushed(pushed),
                types: PhantomData,
            }),
            None => Err(CallError::Module(
                "it is not the one that has it".to_string(),
            )),
        }
    }

    /// Calls a function that was pushed. Await it in [`Service::block_on`].
    pub fn call_pushed<A: Serialize, R: DeserializeOwned>(
        &self,
        remote: &Remote<A, R>,
        args: &A,
    ) -> Call<'_, R> {
        let args = postcard::to_stdvec(args).map_err(|_| WicError::Args);
        Call {
            call: self.begin(remote.function.clone(), args),
            types: PhantomData,
        }
    }
    /// Calls it and waits for it.
    pub fn run_pushed<A: Serialize, R: DeserializeOwned>(
        &self,
        remote: &Remote<A, R>,
        args: &A,
    ) -> Result<R, CallError> {
        self.block_on(self.call_pushed(remote, args))
    }
    /// Calls a function with arguments that are bytes already, for bytes.
    pub fn call_bytes(&self, function: &Function, args: &[u8]) -> CallBytes<'_> {
        self.begin(function.clone(), Ok(args.to_vec()))
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
                let function = Function::BuiltIn(WicEntry::of::<W>());
                self.start_function(&function, args, token, started);
            }
            Err(_) => unreachable!("arguments are plain data"),
        }
    }
    /// The same for any function, with arguments that are bytes already.
    pub fn start_function(&self, function: &Function, args: Vec<u8>, token: u64, started: Nanos) {
        debug_assert!(token < AWAITED);
        (self.engine.borrow_mut()).start(function, args, token, started);
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

    /// The word of a lock: 0 free, 1 free but left by one that did not give it back, else its holder.
    pub fn lock_word(&self, index: u32) -> Result<u64, CallError> {
        let at = self.layout.lock_word(index).map_err(CallError::Failed)?;
        let engine = self.engine.borrow();
        let mut word = [0; 8];
        match engine.near() {
            Some(near) => near.read_word(at, &mut word),
            None => {
                let mut lane = engine.transport().lane(LaneKind::Critical)?;
                let segs = engine.port().segs(at.0, 8);
                lane.read_v(Class::Demand, &segs, &mut word)?;
            }
        }
        Ok(u64::from_le_bytes(word))
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

/// A function that was pushed, as a program knows it that was built without it.
pub struct Remote<A, R> {
    function: Function,
    types: PhantomData<fn(A) -> R>,
}

impl<A, R> std::fmt::Debug for Remote<A, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let function = &self.function;
        write!(f, "Remote({}@{})", function.name(), function.version())
    }
}

impl<A, R> Remote<A, R> {
    pub fn function(&self) -> &Function {
        &self.function
    }
}

/// A call whose arguments and reply are bytes.
#[must_use = "a call does nothing before it is awaited"]
pub struct CallBytes<'s> {
    service: &'s Service,
    function: Function,
    state: State,
}

impl std::fmt::Debug for CallBytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let function = &self.function;
        write!(f, "Call({}@{})", function.name(), function.version())
    }
}

impl Future for CallBytes<'_> {
    type Output = Result<Reply, CallError>;
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
                let now = clock::now();
                (service.engine.borrow_mut()).start(&self.function, args, token, now);
                self.state = State::Started(token);
                Poll::Pending
            }
            State::Started(token) => match self.service.take(token) {
                None => {
                    self.state = State::Started(token);
                    Poll::Pending
                }
                Some(finished) => Poll::Ready(finished.result),
            },
            State::Ended => panic!("a call was polled after its end"),
        }
    }
}

impl Drop for CallBytes<'_> {
    fn drop(&mut self) {
        // It runs on, to its end or its deadline; nobody hears of it.
        if let State::Started(token) = self.state {
            self.service.awaited.borrow_mut().remove(&token);
        }
    }
}

/// A call that was made with [`Service::call`] or [`Service::call_pushed`].
#[must_use = "a call does nothing before it is awaited"]
pub struct Call<'s, R> {
    call: CallBytes<'s>,
    types: PhantomData<fn() -> R>,
}

impl<R> std::fmt::Debug for Call<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.call.fmt(f)
    }
}

impl<R: DeserializeOwned> Future for Call<'_, R> {
    type Output = Result<R, CallError>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.call).poll(context).map(|result| {
            let reply = result?;
            reply.decode().ok_or(CallError::BadReply)
        })
    }
}
