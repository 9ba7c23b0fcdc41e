//! Functions beside their memory: plain loads and stores, at the server, at the nic, and at a client
//! that has the memory mapped.

mod host;
mod memory;
mod styles;
mod window;

pub use host::{LocalHost, LocalHosts};
pub use memory::{Chunks, Limits, LocalMemory, Style};
pub(crate) use memory::{Why, set_why, suspend, why};
pub(crate) use styles::Styles;
pub use window::{Outcome, Window};
