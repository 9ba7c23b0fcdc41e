//! The server's half: a [`Pool`] of memory, and [`Shard`]s that keep sessions and their grants.
//!
//! One shard belongs to one event loop; all lanes of a session are handled by the shard that opened
//! it, so a session's state needs no lock and a lane that was cut and came back is fenced off from
//! its old connection without a race. Shards share the pool, the registry that `status` reads, and
//! the configuration.

mod agents;
pub mod buddy;
mod doorway;
mod inbound;
mod ledger;
mod memory;
mod operations;
mod permit;
mod pool;
mod registry;
mod service;
mod session;
mod shard;
mod succession;
mod upkeep;

pub use agents::{AgentTotals, Agents, Client, Grants};
pub use inbound::{Inbound, Progress};
pub use ledger::{CONNECTION_BYTES, Entry, Ledger};
pub use memory::{Backing, FakeBacking, FakeSegment, SegmentMemory};
pub use permit::{Action, Standing, permits};
pub use pool::{Extent, Pool, PoolConfig, PoolStats, Wipe};
pub use registry::{Counters, Holdings, Registry, SessionInfo};
pub use service::{
    LOCK_FREE, LOCK_ORPHANED, Pusher, Service, Services, Surroundings, holder_of, server_holder,
};
pub use shard::{CallerOf, Out, Peer, Shard, Shared, SharedConfig, Span, Step};
pub use succession::{Inherited, Will};
