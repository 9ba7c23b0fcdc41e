//! The client's side: a service's handle, and the engine that runs its calls wherever they go.

mod engine;
mod lanes;
mod near;
mod port;
mod service;
mod task;

pub(crate) use port::FarMemory;
pub use service::{Call, CallBytes, Finished, Place, Remote, Service, ServiceOptions, Tuning};
