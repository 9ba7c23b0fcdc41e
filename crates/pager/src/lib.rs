//! The pager of a client, live: far memory for a program that knows nothing of it.
//!
//! Threads, and what each may touch:
//!
//! - the [`steward`] looks at resident memory every millisecond and decides what may be held;
//! - the pager ([`actor`]) serves faults and evicts; it alone runs the engine (`muninn_pager_core`), which
//!   has all that is known of pages;
//! - the clerk (`muninn_volume::Clerk`) asks servers for memory ahead of need, keeps the leases and
//!   copies what has too few copies.
//!
//! Below the engine are the kernel ([`process`]) and the pool ([`vault`]: a `muninn_volume::Volume`, and
//! who knows pages again), behind the traits of `muninn_pager_core::below`, so that all of it runs over
//! fakes as well (`model.rs`). Where pages are [sealed](seal), far memory holds no page as it is.
//!
//! [`ward`] and [`fork`] are for children.

mod actor;
mod candidates;
mod copying;
pub mod fork;
mod hash;
mod keeper;
#[cfg(test)]
mod model;
mod process;
mod runtime;
mod seal;
mod shared;
mod snapshot;
mod steward;
mod vault;
mod ward;

pub use runtime::{Runtime, Threads};
