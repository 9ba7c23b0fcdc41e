//! Where-independent code: memory-access logic written once, that runs at the client, at the memory
//! server, or on a processor beside the server; the place is chosen at start-up, or by Muninn.
//!
//! From WICKit. A [`Wic`] is an async function over a [`Memory`]; every access is a point at which it
//! may be suspended, so the same source runs over a network with many others in flight, or beside the
//! memory with plain loads.
//!
//! ```no_run
//! use muninn_wic::{Addr, Memory, Place, Service, ServiceOptions, WicError, wic};
//!
//! /// Follows `hops` links from the first word of the service's memory.
//! #[wic(idempotent)]
//! async fn follow(mem: &impl Memory, hops: u32) -> Result<u64, WicError> {
//!     let mut at = mem.base();
//!     for _ in 0..hops {
//!         at = mem.read::<Addr>(at).await?;
//!     }
//!     Ok(at.0)
//! }
//!
//! # fn main() -> Result<(), muninn_wic::CallError> {
//! let options = ServiceOptions::new("unix:/run/muninn.sock", "links", "1MiB".parse().unwrap());
//! let links = Service::open(options.place(Place::Server))?;
//! let end = links.block_on(links.call(follow, 8))?;
//! # Ok(())
//! # }
//! ```

extern crate self as muninn_wic;

pub mod alloc;
pub mod apps;
mod client;
mod error;
mod fetch;
#[doc(hidden)]
pub mod fuzzing;
pub mod local;
mod lock;
mod memory;
mod nic;
mod pushed;
mod registry;

#[doc(hidden)]
pub use inventory as __inventory;

pub use client::{Call, CallBytes, Finished, Place, Remote, Service, ServiceOptions, Tuning};
pub use error::{CallError, Ran, Side, WicError};
pub use fetch::{FetchError as PushError, list as list_pushed, push};
pub use lock::{WicGuard, WicLock};
pub use memory::{Addr, Layout, Memory, Record};
pub use muninn_wic_macros::{bounded, wic};
pub use nic::Upstream;
pub use pushed::{Exported, Module, ModuleError, Push, Pushed, Shelf};
pub use registry::{Ended, Function, Registry, Reply, Running, Wic, WicEntry};
