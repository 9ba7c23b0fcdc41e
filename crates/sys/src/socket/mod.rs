//! TCP and Unix stream sockets, never blocking.
//!
//! A [`Listener`] accepts, a [`Stream`] reads and writes lists of pieces (scatter-gather) and says
//! in its answer how far it came: a socket that would block or whose peer is gone is not an error
//! but a [`Transfer`]. Descriptors travel over Unix sockets ([`Stream::send_fds`]). Invariant: no
//! call here blocks, except connecting, which has a deadline; none raises SIGPIPE, which in an
//! unmodified program would be deadly.
//!
//! Known limit: marks of packets and busy polling need permissions; they are wishes, and the answer
//! says what was granted.

mod address;
mod fake;
mod fds;
mod link;
mod listener;
mod options;
mod stream;

pub use address::{Address, AddressError};
pub use fake::{FakeStream, Step};
pub use fds::{FDS_MAX, ReceivedFds};
pub use link::{Door, Link};
pub use listener::{ListenError, Listener};
pub use options::{BufferSizes, Marks};
pub use stream::{ByteStream, ConnectError, Knock, PeerCredentials, Piece, Stream, Transfer};
