//! A connection: scatter-gather reads and writes that never block.
//!
//! Reads and writes take lists of pieces, at most [`PIECES_MAX`] per call. Slices for ordinary
//! code; [`Piece`]s, plain addresses, for pages that lie in shared mappings. Invariant: an answer of
//! [`Transfer::Bytes`] is never 0 unless nothing was asked for. Known limit: a piece whose page has
//! vanished ends a call with EFAULT after an unknown part of it was moved: drop the connection.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use muninn_types::Nanos;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Address;
use crate::clock;
use crate::epoll::{Interest, wait_for};
use crate::signal::last_errno;

/// Pieces the kernel takes in one call; longer lists are moved in part.
pub(super) const PIECES_MAX: usize = 1024;

/// How far a read or write came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    Bytes(usize),
    /// Nothing to read, or no room to write: wait for the descriptor.
    WouldBlock,
    /// The peer is gone.
    Closed,
}

/// A range of memory by address, laid out as the kernel wants it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Piece(libc::iovec);

impl Piece {
    pub const fn new(start: *mut u8, len: usize) -> Piece {
        Piece(libc::iovec {
            iov_base: start.cast(),
            iov_len: len,
        })
    }
    pub fn len(&self) -> usize {
        self.0.iov_len
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn start(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}+{}", self.0.iov_base, self.0.iov_len)
    }
}

// SAFETY: an address and a length; using them is unsafe where it happens.
unsafe impl Send for Piece {}
// SAFETY: as for `Send`.
unsafe impl Sync for Piece {}

/// Something bytes can be written to and read from without blocking.
pub trait ByteStream {
    fn read(&self, into: &mut [IoSliceMut<'_>]) -> Result<Transfer, Errno>;
    fn write(&self, from: &[IoSlice<'_>]) -> Result<Transfer, Errno>;
}

/// Who is at the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// 0: a process that has no number here, being in another namespace.
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

/// Why no connection was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot connect to {0}: nobody listens there; is the server running?")]
    Refused(Address),
    #[error("cannot connect to {0}: no answer within {1}; is the server running and reachable?")]
    TimedOut(Address, Nanos),
    #[error("cannot connect to {0}: not permitted; check the owner of the socket or the firewall")]
    NotPermitted(Address),
    #[error("cannot connect to {0}: {1}")]
    Other(Address, Errno),
}

/// A connection.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    unix: bool,
}

impl Stream {
    /// Connects, waiting at most `timeout`. TCP connections send at once (no Nagle delay).
    pub fn connect(address: &Address, timeout: Duration) -> Result<Stream, ConnectError> {
        match address {
            Address::Tcp(tcp) => connect_tcp(tcp, timeout),
            Address::Unix(path) => connect_unix(path, timeout),
        }
        .map_err(|errno| explain(errno, address, timeout))
    }

    /// Two connected Unix sockets.
    pub fn pair() -> Result<(Stream, Stream), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Stream::new(a, true), Stream::new(b, true)))
    }

    /// Takes over a connected stream socket made elsewhere and makes it non-blocking.
    pub fn from_fd(fd: OwnedFd) -> Result<Stream, Errno> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let unix = sockopt::socket_domain(&fd)? == AddressFamily::UNIX;
        Ok(Stream::new(fd, unix))
    }

    pub(super) fn from_accepted(fd: OwnedFd, unix: bool) -> Stream {
        Stream::new(fd, unix)
    }

    fn new(fd: OwnedFd, unix: bool) -> Stream {
        if !unix {
            // A wish: without it small messages are late, not lost.
            let _ = sockopt::set_tcp_nodelay(&fd, true);
        }
        Stream { fd, unix }
    }

    pub fn is_unix(&self) -> bool {
        self.unix
    }

    /// Reads into ranges given by address.
    ///
    /// # Safety
    ///
    /// All ranges must be writable memory to which no references exist.
    pub unsafe fn read_pieces(&self, into: &[Piece]) -> Result<Transfer, Errno> {
        let mut header = header_of(into);
        // SAFETY: the header points to the list, and the caller vouches for the ranges in it.
        let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
        match usize::try_from(got) {
            Ok(0) if into.iter().any(|piece| !piece.is_empty()) => Ok(Transfer::Closed),
            Ok(n) => Ok(Transfer::Bytes(n)),
            Err(_) => outcome(last_errno()),
        }
    }

    /// Writes from ranges given by address.
    ///
    /// # Safety
    ///
    /// All ranges must be readable memory.
    pub unsafe fn write_pieces(&self, from: &[Piece]) -> Result<Transfer, Errno> {
        let header = header_of(from);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header points to the list, and the caller vouches for the ranges in it.
        let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &header, flags) };
        match usize::try_from(sent) {
            Ok(n) => Ok(Transfer::Bytes(n)),
            Err(_) => outcome(last_errno()),
        }
    }

    /// Waits until reading or writing may go on; false when the time is over.
    pub fn wait(&self, interest: Interest, timeout: Option<Duration>) -> Result<bool, Errno> {
        wait_for(&self.fd, interest, timeout)
    }

    /// Ends both directions; the peer reads the end, and so does a thread that waits here.
    pub fn shutdown(&self) {
        // Fails only where the connection is gone already.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Says that nothing more comes from here; what the other side still sends can be read.
    pub fn finish(&self) {
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
    }

    /// Who made the other end, as the kernel vouches for it. Unix sockets only.
    pub fn peer_credentials(&self) -> Result<PeerCredentials, Errno> {
        peer_credentials(&self.fd)
    }

    /// The address of the other end of a TCP connection.
    pub fn peer_address(&self) -> Option<std::net::SocketAddr> {
        let name = rustix::net::getpeername(&self.fd).ok()??;
        std::net::SocketAddr::try_from(name).ok()
    }

    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl ByteStream for Stream {
    fn read(&self, into: &mut [IoSliceMut<'_>]) -> Result<Transfer, Errno> {
        // SAFETY: `IoSliceMut` is laid out as an iovec by its contract, and `Piece` is one; the
        // slices are exclusive borrows, so the ranges may be written.
        unsafe {
            let pieces = std::slice::from_raw_parts(into.as_ptr().cast::<Piece>(), into.len());
            self.read_pieces(pieces)
        }
    }

    fn write(&self, from: &[IoSlice<'_>]) -> Result<Transfer, Errno> {
        // SAFETY: `IoSlice` is laid out as an iovec by its contract, and `Piece` is one; the
        // slices are borrowed, so the ranges may be read.
        unsafe {
            let pieces = std::slice::from_raw_parts(from.as_ptr().cast::<Piece>(), from.len());
            self.write_pieces(pieces)
        }
    }
}

fn header_of(pieces: &[Piece]) -> libc::msghdr {
    // SAFETY: all zeros is a valid header: no name, no control data.
    let mut header = unsafe { std::mem::zeroed::<libc::msghdr>() };
    header.msg_iov = pieces.as_ptr().cast_mut().cast();
    header.msg_iovlen = pieces.len().min(PIECES_MAX);
    header
}

pub(super) fn outcome(errno: Errno) -> Result<Transfer, Errno> {
    match errno {
        // An interrupted call moved nothing: to be tried again, as one that would block.
        Errno::AGAIN | Errno::INTR => Ok(Transfer::WouldBlock),
        Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::SHUTDOWN => Ok(Transfer::Closed),
        other => Err(other),
    }
}

fn explain(errno: Errno, address: &Address, timeout: Duration) -> ConnectError {
    match errno {
        Errno::CONNREFUSED | Errno::NOENT => ConnectError::Refused(address.clone()),
        Errno::TIMEDOUT | Errno::AGAIN => ConnectError::TimedOut(address.clone(), timeout.into()),
        Errno::ACCESS | Errno::PERM => ConnectError::NotPermitted(address.clone()),
        _ => ConnectError::Other(address.clone(), errno),
    }
}

/// A TCP connection that is being made while nobody waits for it: one thread can make many.
#[derive(Debug)]
pub struct Knock {
    fd: OwnedFd,
    address: std::net::SocketAddr,
    begun: Nanos,
    timeout: Duration,
}

impl Knock {
    pub fn begin(tcp: &std::net::SocketAddr, timeout: Duration) -> Result<Knock, ConnectError> {
        let failed = |errno| explain(errno, &Address::Tcp(*tcp), timeout);
        let (fd, _) = begin_tcp(tcp).map_err(failed)?;
        Ok(Knock {
            fd,
            address: *tcp,
            begun: clock::now(),
            timeout,
        })
    }

    /// How it ended, or itself if it has not.
    pub fn poll(self) -> Result<Result<Stream, ConnectError>, Knock> {
        let failed = |errno| explain(errno, &Address::Tcp(self.address), self.timeout);
        let over = clock::now() > self.begun.saturating_add(self.timeout.into());
        match wait_for(&self.fd, Interest::WRITE, Some(Duration::ZERO)) {
            Ok(false) if over => Ok(Err(failed(Errno::TIMEDOUT))),
            Ok(false) => Err(self),
            Err(errno) => Ok(Err(failed(errno))),
            Ok(true) => match sockopt::socket_error(&self.fd) {
                Ok(Ok(())) => Ok(Ok(Stream::new(self.fd, false))),
                Ok(Err(errno)) | Err(errno) => Ok(Err(failed(errno))),
            },
        }
    }
}

/// A socket that connects; whether it has already.
fn begin_tcp(tcp: &std::net::SocketAddr) -> Result<(OwnedFd, bool), Errno> {
    let family = if tcp.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&fd, tcp) {
        Ok(()) => Ok((fd, true)),
        Err(Errno::INPROGRESS | Errno::INTR) => Ok((fd, false)),
        Err(errno) => Err(errno),
    }
}

fn connect_tcp(tcp: &std::net::SocketAddr, timeout: Duration) -> Result<Stream, Errno> {
    let (fd, done) = begin_tcp(tcp)?;
    if !done {
        if !wait_for(&fd, Interest::WRITE, Some(timeout))? {
            return Err(Errno::TIMEDOUT);
        }
        sockopt::socket_error(&fd)??;
    }
    Ok(Stream::new(fd, false))
}

/// Who made the other end of a Unix socket, as the kernel vouches for it.
pub(super) fn peer_credentials(socket: impl AsFd) -> Result<PeerCredentials, Errno> {
    // rustix has no room for a process number of 0, which is what one of another namespace has.
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option's value is a `ucred`, and the kernel writes at most `len` bytes to it.
    let got = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    // For a socket that is no Unix socket, users are said to be nobody.
    if got != 0 || len as usize != size_of::<libc::ucred>() || peer.uid == u32::MAX {
        return Err(if got != 0 {
            last_errno()
        } else {
            Errno::NOTCONN
        });
    }
    Ok(PeerCredentials {
        pid: peer.pid,
        uid: peer.uid,
        gid: peer.gid,
    })
}

/// A Unix socket with a full queue cannot be waited for by poll, but a blocking connect honours
/// the send timeout.
fn connect_unix(path: &std::path::Path, timeout: Duration) -> Result<Stream, Errno> {
    let deadline = clock::now().saturating_add(timeout.into());
    let address = SocketAddrUnix::new(crate::own::rooted_path(path))?;
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        let left = Duration::from(deadline.saturating_sub(clock::now()));
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let left = left.max(Duration::from_micros(1));
        sockopt::set_socket_timeout(&fd, Timeout::Send, Some(left))?;
        match rustix::net::connect(&fd, &address) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    }
    sockopt::set_socket_timeout(&fd, Timeout::Send, None)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(Stream::new(fd, true))
}
