//! Calls: functions that clients ask the server to run on a service's memory.
//!
//! The server does not know what a function is. Whoever starts it may give it a [`CallFactory`],
//! which makes one [`CallHost`] for each event loop; the loop hands calls in, lets the host run for a
//! bounded time between two looks at its sockets, and sends what has ended. A host is made, used and
//! dropped by one thread. Without a factory every call is refused.

use crate::segment::MemfdBacking;
use muninn_proto::server::{CallerOf, Peer, Pusher, Service, Shard, Surroundings};
use muninn_sys::signal::PidFd;
use muninn_types::{ConnId, Nanos};
use muninn_wire::{Called, ErrorCode, FIRST_PUSHED, Refusal, WicsReply, WicsRequest};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The most calls that one event loop has under way.
pub const CALLS_MAX: usize = 4096;
/// Those of one source.
const CALLS_OF_SOURCE: usize = CALLS_MAX / 2;
/// Calls that are collected before the host runs, while more connections are ready.
pub(crate) const CALLS_BATCH: usize = 32;

/// Runs without progress before the loop sleeps between them, and for how long.
const STALLS_SPUN: u32 = 64;
const STALL_PAUSE: Duration = Duration::from_micros(50);

/// Makes hosts, and knows what they can run.
pub trait CallFactory: fmt::Debug + Send + Sync {
    /// The number of a function that `owner` may call, or the version that is there instead.
    fn find(&self, owner: &str, name: &str, version: u32) -> Result<u32, Option<u32>>;
    /// What somebody wants of functions that are pushed.
    fn wics(&self, by: &Pusher<'_>, request: &WicsRequest) -> Result<WicsReply, Refusal> {
        let _ = (by, request);
        let refusal = Refusal::new(ErrorCode::NotPermitted);
        Err(refusal.remark("this server takes no functions from others"))
    }
    /// The host of event loop `index`, made on its thread.
    fn host(&self, index: usize) -> Box<dyn CallHost>;
}

/// Takes what a call ended with.
pub type OnEnd<'a> = dyn FnMut(&CallerOf, &Result<Called<'_>, Refusal>) + 'a;

/// Runs the calls of one event loop.
pub trait CallHost {
    /// Takes a call. `service` is what its session is tied to under the id that it names.
    fn submit(
        &mut self,
        caller: &CallerOf,
        service: Option<&Arc<Service<MemfdBacking>>>,
        args: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal>;

    /// Whether sessions of `owner` may call a function that was pushed.
    fn may_call(&self, number: u32, owner: &str) -> bool {
        let _ = (number, owner);
        true
    }

    /// Runs calls for a bounded time, and shows those that have ended. False: all that are left wait
    /// for somebody else.
    fn run(&mut self, now: Nanos, end: &mut OnEnd<'_>) -> bool;

    /// Calls taken and not ended.
    fn under_way(&self) -> usize;
}

/// What a shard asks the server it belongs to.
#[derive(Debug)]
pub(crate) struct Around(pub Option<Arc<dyn CallFactory>>);

impl Surroundings for Around {
    fn find_wic(&self, owner: &str, name: &str, version: u32) -> Result<u32, Option<u32>> {
        match &self.0 {
            Some(factory) => factory.find(owner, name, version),
            None => Err(None),
        }
    }
    fn wics(&self, by: &Pusher<'_>, request: &WicsRequest) -> Result<WicsReply, Refusal> {
        match &self.0 {
            Some(factory) => factory.wics(by, request),
            None => Err(Refusal::new(ErrorCode::NoWic).remark("it runs no functions")),
        }
    }
    fn is_alive(&self, pid: i32) -> bool {
        match PidFd::open(pid) {
            Ok(process) => process.is_alive(),
            // No such process, or no descriptor left to look at it with.
            Err(_) => std::path::Path::new(&format!("/proc/{pid}")).exists(),
        }
    }
}

/// The calls of one event loop.
pub(crate) struct Calls {
    host: Option<Box<dyn CallHost>>,
    /// Handed in since the host last ran.
    fresh: usize,
    /// Not taken by the host.
    refused: Vec<(CallerOf, Refusal)>,
    /// Those that the host has, by where they came from. Few: a table would cost more than a look at all.
    sources: Vec<(Peer, usize)>,
    /// Runs in a row in which nothing went on.
    stalls: u32,
}

impl Calls {
    pub(crate) fn new(host: Option<Box<dyn CallHost>>) -> Calls {
        Calls {
            host,
            fresh: 0,
            refused: Vec::new(),
            sources: Vec::new(),
            stalls: 0,
        }
    }

    pub(crate) fn submit(
        &mut self,
        shard: &Shard<MemfdBacking>,
        caller: &CallerOf,
        args: &[u8],
        now: Nanos,
    ) {
        self.fresh += 1;
        let its = self
            .sources
            .iter()
            .position(|(from, _)| *from == caller.source);
        let of_source = its.map_or(0, |at| self.sources[at].1);
        let too_many = |max: usize| Err(Refusal::with(ErrorCode::TooManyCalls, max as u64, 0));
        let taken = match &mut self.host {
            None => Err(Refusal::new(ErrorCode::NoWic)),
            Some(host) if host.under_way() >= CALLS_MAX => too_many(CALLS_MAX),
            Some(_) if of_source >= CALLS_OF_SOURCE => too_many(CALLS_OF_SOURCE),
            Some(host)
                if caller.wic >= FIRST_PUSHED
                    && !host.may_call(caller.wic, shard.owner(caller.session)) =>
            {
                Err(Refusal::new(ErrorCode::NoWic))
            }
            Some(host) => {
                let service = shard.service(caller.session, caller.service);
                host.submit(caller, service, args, now)
            }
        };
        match its {
            Some(at) if taken.is_ok() => self.sources[at].1 += 1,
            None if taken.is_ok() => self.sources.push((caller.source, 1)),
            _ => {}
        }
        if let Err(refusal) = taken {
            self.refused.push((*caller, refusal));
        }
    }

    /// Handed in since the host last ran.
    pub(crate) fn fresh(&self) -> usize {
        self.fresh
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.refused.is_empty() && self.host.as_ref().is_none_or(|host| host.under_way() == 0)
    }

    /// How long the loop may sleep before calls are to be run again; None: there are none.
    pub(crate) fn pace(&self) -> Option<Duration> {
        match self.stalls {
            _ if self.is_idle() => None,
            0..STALLS_SPUN => Some(Duration::ZERO),
            // The holder of a lock may need this very CPU.
            _ => Some(STALL_PAUSE),
        }
    }

    /// Runs for a bounded time; `deliver` gets the frames of each call that has ended and where to
    /// send them.
    pub(crate) fn run(
        &mut self,
        shard: &mut Shard<MemfdBacking>,
        now: Nanos,
        deliver: &mut dyn FnMut(ConnId, &[u8]),
    ) {
        self.fresh = 0;
        let mut frames = Vec::new();
        let mut end = |caller: &CallerOf, result: &Result<Called<'_>, Refusal>| {
            frames.clear();
            if let Some(conn) = shard.called(caller, result, &mut frames) {
                deliver(conn, &frames);
            }
        };
        for (caller, refusal) in self.refused.drain(..) {
            end(&caller, &Err(refusal));
        }
        if let Some(host) = &mut self.host {
            let sources = &mut self.sources;
            let mut end = |caller: &CallerOf, result: &Result<Called<'_>, Refusal>| {
                if let Some(at) = sources.iter().position(|(from, _)| *from == caller.source) {
                    sources[at].1 -= 1;
                    if sources[at].1 == 0 {
                        sources.swap_remove(at);
                    }
                }
                end(caller, result);
            };
            self.stalls = match host.run(now, &mut end) {
                true => 0,
                false => self.stalls.saturating_add(1),
            };
        }
    }
}
