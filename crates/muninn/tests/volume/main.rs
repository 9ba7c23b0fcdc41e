//! Far memory that outlives its servers: real servers killed, stopped, started again and drained under
//! `muninn run`.
//!
//! Programs check every byte of their memory themselves; the tests look at how they end, and at what
//! was said meanwhile. At most two programs run at a time, as in the suite `run`, whose helpers these are.

#[allow(dead_code)]
#[path = "../cli/common.rs"]
mod common;

#[allow(dead_code)]
#[path = "../run/harness.rs"]
mod harness;

#[allow(dead_code)]
#[path = "../run/redis_client.rs"]
mod redis_client;

mod donors;
mod drain;
mod lies;
mod links;
mod lose;
mod members;
mod movers;
mod parity;
mod pools;
mod programs;
mod rejoin;
mod sealed;
mod take_over;
