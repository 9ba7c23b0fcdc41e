//! Both state machines of the protocol, without I/O.
//!
//! [`server`] keeps pools, sessions and grants; [`client`] keeps a lane's outstanding requests and
//! its handshake. Frames and the time go in, frames and completions come out. The drivers in
//! `muninn-server` and `muninn-net` do the sockets and the memory; the protocol simulator runs the
//! same two machines over a network that delays, reorders and cuts.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod auth;
pub mod client;
pub mod framing;
pub mod secure;
pub mod server;
