//! The page engine of a client.
mod actor;
mod below;
mod birth;
mod candidates;
mod chunk;
mod clerk;
mod engine;
mod evict;
mod fault;
mod follow;
mod process;
mod ranges;
mod runtime;
mod servers;
mod shared;
mod slots;
mod space;
mod staging;
mod steward;
mod table;

pub use below::{Far, FarError, Kernel, Transfer};
pub use chunk::Page;
pub use engine::{Engine, Fatal, Settings};
pub use evict::Evicted;
pub use fault::Served;
pub use runtime::{Runtime, Threads};
