//! Runs the calls of a server's event loop, on the server's own memory or on memory of another server
//! that this process has mapped.

use super::memory::{Chunks, Limits, LocalMemory, Style};
use super::window::{Outcome, Window};
use crate::error::WicError;
use crate::memory::Layout;
use crate::nic::Upstream;
use crate::registry::Registry;
use muninn_proto::server::{CallerOf, Service, holder_of, server_holder};
use muninn_server::{CallFactory, CallHost, MemfdBacking, OnEnd};
use muninn_sys::clock;
use muninn_types::{Nanos, ServiceId};
use muninn_wire::{Called, ErrorCode, Refusal};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Makes the hosts of a server: how it runs functions.
#[derive(Clone, Debug)]
pub struct LocalHosts {
    pub registry: Arc<Registry>,
    pub style: Style,
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
        LocalHosts {
            registry: Arc::new(Registry::collect()),
            style: Style::Sync,
            window: 1,
            limits: Limits::default(),
            upstream: None,
            watch: None,
        }
    }
    /// Runs `window` calls at once, with prefetched accesses.
    pub fn prefetching(window: usize) -> LocalHosts {
        LocalHosts {
            style: Style::Prefetch,
            window,
            ..LocalHosts::sync()
        }
    }
}

impl CallFactory for LocalHosts {
    fn find(&self, name: &str, version: u32) -> Result<u32, Option<u32>> {
        self.registry.find(name, version)
    }
    fn host(&self, index: usize) -> Box<dyn CallHost> {
        let holder = match &self.upstream {
            Some(upstream) => upstream.holder(),
            None => server_holder(index),
        };
        Box::new(LocalHost {
            hosts: self.clone(),
            holder,
            calls: 0,
            window: Window::new(self.window, self.limits.allocated),
            known: HashMap::new(),
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

type Known = HashMap<ServiceId, (Weak<Service<MemfdBacking>>, Arc<Chunks>)>;

/// The host of one event loop.
#[derive(Debug)]
pub struct LocalHost {
    hosts: LocalHosts,
    holder: u64,
    /// Counts calls, so that each is a holder of its own.
    calls: u64,
    window: Window<Origin>,
    /// Services whose addresses were looked up before.
    known: Known,
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
    fn chunks(
        &mut self,
        id: ServiceId,
        service: Option<&Arc<Service<MemfdBacking>>>,
    ) -> Result<Arc<Chunks>, Refusal> {
        if let Some(upstream) = &self.hosts.upstream {
            return upstream.chunks(id);
        }
        let service = service.ok_or(Refusal::with(ErrorCode::NoService, id.0, 0))?;
        if let Some((_, chunks)) = self.known.get(&id) {
            return Ok(Arc::clone(chunks));
        }
        // Only the mappings are kept, not the service: it can end, and is forgotten here when
        // another one comes.
        self.known
            .retain(|_, (service, _)| service.strong_count() > 0);
        let chunks = Arc::new(chunks_of(service));
        let entry = (Arc::downgrade(service), Arc::clone(&chunks));
        self.known.insert(id, entry);
        Ok(chunks)
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
        let entry = *(self.hosts.registry.get(caller.wic)).ok_or(Refusal::new(ErrorCode::NoWic))?;
        let chunks = self.chunks(caller.service, service)?;
        let hosts = &self.hosts;
        self.calls += 1;
        let holder = holder_of(self.holder, self.calls);
        let memory = LocalMemory::new(chunks, hosts.style, holder, hosts.limits);
        let running = (entry.start)(memory, args).map_err(|error| error.to_refusal())?;
        let origin = Origin {
            caller: *caller,
            arrived: now,
            service: service.cloned(),
        };
        let deadline = now + Nanos::micros(u64::from(caller.deadline_us));
        self.window.push(running, origin, deadline);
        Ok(())
    }

    fn run(&mut self, now: Nanos, end: &mut OnEnd<'_>) -> bool {
        let upstream = self.hosts.upstream.clone();
        if let Some(watch) = &self.hosts.watch {
            watch.store(now.0.max(1), Relaxed);
        }
        let went_on = self.window.run(now, |origin, outcome| {
            let leased = upstream.as_ref().is_none_or(|u| u.is_leased());
            let begun = !matches!(outcome, Outcome::Late(false));
            let result = match outcome {
                // Whatever it found or changed was perhaps no longer what the server keeps.
                _ if !leased => Err(Refusal::with(ErrorCode::UpstreamLost, u64::from(begun), 0)),
                Outcome::Late(begun) => {
                    Err(Refusal::with(ErrorCode::CallDeadline, u64::from(begun), 0))
                }
                Outcome::Panicked => Err(WicError::Panicked.to_refusal()),
                Outcome::Ended(ended) => {
                    if let Some(service) = &origin.service {
                        service
                            .accesses
                            .fetch_add(u64::from(ended.accesses), Relaxed);
                    }
                    match ended.result {
                        Ok(reply) => Ok((reply, ended.accesses)),
                        Err(error) => Err(error.to_refusal()),
                    }
                }
            };
            if let Some(service) = &origin.service {
                service.calls.fetch_add(1, Relaxed);
                service
                    .failed
                    .fetch_add(u64::from(result.is_err()), Relaxed);
            }
            match &result {
                Ok((reply, accesses)) => {
                    let took = clock::now().saturating_sub(origin.arrived).0;
                    let called = Called {
                        accesses: *accesses,
                        took_ns: u32::try_from(took).unwrap_or(u32::MAX),
                        reply: reply.bytes(),
                    };
                    end(&origin.caller, &Ok(called));
                }
                Err(refusal) => end(&origin.caller, &Err(refusal.clone())),
            }
        });
        if let Some(watch) = &self.hosts.watch {
            watch.store(0, Relaxed);
        }
        went_on
    }

    fn under_way(&self) -> usize {
        self.window.len()
    }
}
