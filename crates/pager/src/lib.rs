//! The page engine of a client: far memory for a program that knows nothing of it.
//!
//! Threads, and what each may touch:
//!
//! - the [`steward`] looks at resident memory every millisecond and decides what may be held;
//! - the pager ([`actor`]) serves faults and evicts; it alone changes what is known of pages
//!   ([`engine`], with [`fault`], [`evict`] and [`space`]);
//! - the clerk (`muninn_volume::Clerk`) asks servers for memory ahead of need, keeps the leases and
//!   copies what has too few copies.
//!
//! Below the engine are the kernel ([`process`]) and the pool (`muninn_volume::Volume`), behind the traits of
//! [`below`], so that all of it runs over fakes as well (`model.rs`).
//!
//! A page that leaves is moved to a frame of the [`staging`] area, hashed, and written if it changed;
//! one that comes in is read, compared, and copied into a new page of the program. Where pages are
//! [sealed](seal), that is between: far memory holds no page as it is.
//!
//! [`ward`] and [`fork`] are for children.

mod actor;
mod below;
mod candidates;
mod chunk;
mod compact;
mod copies;
mod copying;
mod engine;
mod evict;
mod far;
mod fault;
pub mod fork;
mod hash;
mod keeper;
#[cfg(test)]
mod model;
mod order;
mod process;
mod ranges;
mod runtime;
mod seal;
mod shared;
mod slots;
mod snapshot;
mod space;
mod staging;
mod steward;
mod table;
mod ward;

pub use below::{Far, FarError, Kernel, Transfer};
pub use chunk::Page;
pub use engine::{Engine, Fatal, Settings};
pub use evict::Evicted;
pub use fault::Served;
pub use hash::Hasher;
pub use runtime::{Runtime, Threads};
