//! A processor beside the server: a process of its own that has the server's services mapped.
//!
//! It is a server without memory to give, whose functions run on memory of its *upstream*. It joins a
//! service as a guest when a call first names it, and forgets it when the server has ended it. What it
//! does is good while its session with the server lasts; locks it holds are freed by the server when
//! its process is gone.

use crate::fetch::{FetchError, fetch};
use crate::local::Chunks;
use crate::memory::Layout;
use crate::pushed::Shelf;
use muninn_net::{Answer, Control, NetError, SessionOptions, ShmSession, Transport};
use muninn_sys::socket::Address;
use muninn_types::ServiceId;
use muninn_wire::{ErrorCode, GrantInfo, Opening, Refusal, ServiceInfo, WicsReply, WicsRequest};
use std::collections::HashMap;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the server may take to let us join a service.
const PATIENCE: Duration = Duration::from_secs(2);

/// A service's grants, where a transport has mapped them.
pub(crate) fn mapped_chunks(
    transport: &dyn Transport,
    info: &ServiceInfo,
    grants: &[GrantInfo],
) -> Option<Chunks> {
    let layout = Layout::of(info);
    let mapped: Option<Vec<_>> = grants.iter().map(|g| transport.mapped(g.grant)).collect();
    let mapped = mapped?;
    let chunk = 1u64 << layout.shift;
    let fits = mapped.iter().all(|m| m.bytes.0 == chunk && m.writable);
    if !fits || (mapped.len() as u64) << layout.shift < layout.bytes {
        return None;
    }
    let start = |m: &muninn_net::Mapped| m.map.as_ptr().wrapping_add(m.offset as usize);
    let starts = mapped.iter().map(start).collect();
    // SAFETY: each grant is 2^shift bytes (just checked) of a mapping that it keeps, writable, at the
    // start of a page; the server's memory files of services are sealed against being cut.
    Some(unsafe { Chunks::new(layout, starts, Box::new(mapped)) })
}

/// The server that keeps the memory.
#[derive(Debug)]
pub struct Upstream {
    session: ShmSession,
    services: Mutex<HashMap<ServiceId, Arc<Chunks>>>,
    /// How often services were forgotten.
    forgotten: AtomicU64,
}

impl Upstream {
    /// Opens a session that maps memory: `address` is a Unix socket of the server.
    pub fn connect(address: &Address, options: &SessionOptions) -> Result<Upstream, NetError> {
        Ok(Upstream {
            session: ShmSession::open(address, options)?,
            services: Mutex::default(),
            forgotten: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ServiceId, Arc<Chunks>>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As which holder functions take locks here.
    pub fn holder(&self) -> u64 {
        self.session.session().0
    }
    pub fn is_leased(&self) -> bool {
        self.session.is_leased()
    }
    /// Why the server is lost, if it is.
    pub fn lost(&self) -> Option<String> {
        self.session.lost()
    }
    pub fn server_name(&self) -> &str {
        self.session.server_name()
    }

    fn join(&self, id: ServiceId) -> Result<Answer, NetError> {
        let opening = Control::Open(Opening::Guest(id));
        self.session.call(opening, PATIENCE)
    }

    /// A service's memory, joined if it was not yet.
    pub fn chunks(&self, id: ServiceId) -> Result<Arc<Chunks>, Refusal> {
        if let Some(known) = self.lock().get(&id) {
            return Ok(Arc::clone(known));
        }
        let lost = Refusal::with(ErrorCode::UpstreamLost, 0, 0);
        match self.join(id) {
            Ok(Answer::Opened(info, grants)) => {
                let chunks = mapped_chunks(&self.session, &info, &grants).ok_or(lost)?;
                let chunks = Arc::new(chunks);
                self.lock().insert(id, Arc::clone(&chunks));
                Ok(chunks)
            }
            Ok(_) => Err(lost),
            Err(NetError::Refused(_, refusal)) => Err(refusal),
            Err(error) => Err(lost.remark(&error.to_string())),
        }
    }

    fn wics(&self, request: WicsRequest) -> Result<WicsReply, NetError> {
        match self.session.call(Control::Wics(request), PATIENCE)? {
            Answer::Wics(reply) => Ok(reply),
            _ => unreachable!("what is asked about functions is answered so"),
        }
    }

    /// Gets a function from the server that was pushed there, for those of `owner`. The thread waits for
    /// it: a few milliseconds, for a module is short.
    pub(crate) fn fetch(
        &self,
        shelf: &Shelf,
        owner: &str,
        name: &str,
        version: u32,
    ) -> Result<(), FetchError> {
        let found = fetch(&mut |request| self.wics(request), owner, name, version)?;
        let (info, bytes) = found;
        let added = shelf.add(info.owner.as_str(), info.common, bytes);
        added.map_err(|refusal| FetchError::Module(refusal.to_string()))
    }

    /// Changes when services were forgotten: whoever kept what [`Upstream::chunks`] gave asks again.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Acquire)
    }

    /// Forgets functions that the server has no more; to be called now and then.
    pub fn tidy_functions(&self, shelf: &Shelf) {
        for hash in shelf.hashes() {
            let state = self.wics(WicsRequest::Fetch { hash, offset: 0 });
            if state.is_err_and(|error| error.is_refusal(ErrorCode::NoWic)) {
                shelf.forget(&hash);
            }
        }
    }

    /// Forgets services that the server has ended; to be called now and then.
    pub fn tidy(&self) {
        let known: Vec<ServiceId> = self.lock().keys().copied().collect();
        for id in known {
            if let Err(error) = self.join(id)
                && error.is_refusal(ErrorCode::NoService)
            {
                self.lock().remove(&id);
                self.forgotten.fetch_add(1, Release);
                let close = Control::Close { service: id };
                let _ = self.session.call(close, PATIENCE);
            }
        }
    }
}
