//! A client's way to memory servers: transports behind one trait, and a small library on top.
//!
//! [`Transport`] is one session at one server, over shared memory ([`shm`](Kind::Shm)) or tcp;
//! [`Lane`] carries data operations of one thread. [`Pool`] joins several servers and is all that a
//! program needs which just wants memory elsewhere:
//!
//! ```no_run
//! use muninn_net::{Pool, PoolOptions};
//! # fn main() -> Result<(), muninn_net::NetError> {
//! let pool = Pool::connect("unix:/run/muninn.sock", PoolOptions::default())?;
//! let grant = pool.grant("1MiB".parse().unwrap())?;
//! pool.write(&grant, 0, b"far away")?;
//! # Ok(())
//! # }
//! ```
#![warn(unreachable_pub)]

mod buffer;
mod error;
pub mod fake;
pub mod faulty;
mod held;
mod lane;
mod link;
mod pool;
mod session;
mod shm;
mod tcp;
mod transport;
mod wire_lane;

pub use buffer::Buffer;
pub use error::NetError;
pub use held::{HolderAddress, KeyHolder};
pub use lane::{Done, Lane, Op};
pub use muninn_proto::auth::Key;
pub use muninn_proto::client::{Answer, Control, OpError, Operation, Verb};
pub use muninn_wire::Lock;
pub use pool::{Grant, Pool, PoolOptions, Share};
pub use session::{Keeping, Observer, ServerUser, SessionOptions};
pub use shm::ShmSession;
pub use tcp::TcpSession;
pub use transport::{Beat, Kind, Mapped, Transport, connect, connect_over};
