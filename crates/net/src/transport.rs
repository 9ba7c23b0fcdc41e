//! One session at one server, whatever carries it.

use crate::error::NetError;
use crate::lane::Lane;
use crate::session::SessionOptions;
use crate::shm::ShmSession;
use crate::tcp::TcpSession;
use muninn_proto::client::{Answer, Control};
use muninn_sys::memory::Mapping;
use muninn_sys::socket::{Address, Stream};
use muninn_types::{Bytes, GrantId, LaneKind, SessionId};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Loads and stores: the server's CPU has no part in them.
    Shm,
    Tcp,
    /// In this process, for tests.
    Fake,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Shm => "shm",
            Kind::Tcp => "tcp",
            Kind::Fake => "fake",
        })
    }
}

/// What became of an attempt to renew a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    Answered,
    /// No answer yet; the session may live on.
    Silent,
    Lost,
}

/// A grant in this process's address space, as long as this value lives.
#[derive(Clone, Debug)]
pub struct Mapped {
    pub map: Arc<Mapping>,
    /// First byte in the mapping.
    pub offset: u64,
    pub bytes: Bytes,
    pub writable: bool,
}

/// A session. Shared by the threads of a client; each takes lanes of its own for its data.
pub trait Transport: fmt::Debug + Send + Sync {
    fn kind(&self) -> Kind;
    fn address(&self) -> &Address;
    /// The name the server goes by.
    fn server_name(&self) -> &str;
    fn max_grant(&self) -> Bytes;
    fn lease(&self) -> Duration;

    /// A lane for one thread. `Control` is not to be had: [`Transport::call`] is for that.
    fn lane(&self, kind: LaneKind) -> Result<Box<dyn Lane>, NetError>;

    /// A lane for calls, where the transport has a server that could run them.
    fn call_lane(&self) -> Result<Box<dyn Lane>, NetError> {
        self.lane(LaneKind::Critical)
    }
    /// The session's id at its server: what it writes into locks.
    fn session(&self) -> SessionId {
        SessionId(0)
    }
    /// Whether the server surely still keeps what this session owns.
    fn is_leased(&self) -> bool {
        self.lost().is_none()
    }

    /// A control request. Fails after `deadline` without an answer.
    fn call(&self, control: Control, deadline: Duration) -> Result<Answer, NetError>;

    /// A grant's memory, where the transport maps it.
    fn mapped(&self, _grant: GrantId) -> Option<Mapped> {
        None
    }
    /// Renews the lease; false when the session is lost. For [`Keeping::Caller`](crate::Keeping).
    fn heartbeat(&self) -> bool {
        self.lost().is_none()
    }
    /// Renews the lease, waiting for the answer no longer than this.
    fn beat(&self, _patience: Duration) -> Beat {
        match self.heartbeat() {
            true => Beat::Answered,
            false => Beat::Lost,
        }
    }
    /// Why the session is lost, if it is.
    fn lost(&self) -> Option<String>;
    /// The server wants its memory back within this time.
    fn drain_left(&self) -> Option<Duration>;
    /// The server wants so much of its memory back, as of the last heartbeat.
    fn asked_back(&self) -> Bytes {
        Bytes::ZERO
    }
    /// How often a lane was attached again after a cut.
    fn resumes(&self) -> u64;
}

/// Opens a session: by shared memory at a Unix socket, by tcp elsewhere.
pub fn connect(
    address: &Address,
    options: &SessionOptions,
) -> Result<Arc<dyn Transport>, NetError> {
    connect_over(None, address, options)
}

/// The same over a TCP connection that is there already, if there is one.
pub fn connect_over(
    connected: Option<Stream>,
    address: &Address,
    options: &SessionOptions,
) -> Result<Arc<dyn Transport>, NetError> {
    Ok(match address {
        Address::Unix(_) => Arc::new(ShmSession::open(address, options)?),
        Address::Tcp(_) => Arc::new(TcpSession::open_over(connected, address, options)?),
    })
}
