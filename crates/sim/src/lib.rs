//! Simulators that run the same policy and protocol code as the live system.
#![forbid(unsafe_code)]

pub mod evict;
pub mod net;
pub mod protocol;
pub mod rack;
