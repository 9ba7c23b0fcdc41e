//! Descriptors that the service manager keeps while a service is started anew: systemd's FDSTORE, in the words of
//! sd_notify(3) and sd_listen_fds(3).
//!
//! Each descriptor is sent by itself, with a name: the manual promises no order. Invariant: what was sent
//! counts as kept only when the manager has looked at it ([`Store::settle`]), since it does not look at what a
//! process said that is gone.

use crate::epoll::{Interest, wait_for};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How long the manager may take to read one message.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first descriptor that is passed on.
const FIRST: i32 = 3;
/// Descriptors that may be passed on, at most.
const PASSED_MAX: i32 = 1 << 20;

/// The manager that started us.
#[derive(Debug)]
pub struct Store {
    socket: UnixDatagram,
}

impl Store {
    /// The manager, if one did and wants to be told.
    pub fn find() -> io::Result<Option<Store>> {
        let place = std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty());
        let Some(place) = place else { return Ok(None) };
        let address = match place.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&place)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Some(Store { socket }))
    }

    fn say(&self, words: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let words = [IoSlice::new(words.as_bytes())];
        rustix::net::sendmsg(&self.socket, &words, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Has a descriptor kept. The manager is not to look whether anything happens at it.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.say(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), Some(fd))
    }

    /// Has a descriptor forgotten.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        self.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None)
    }

    /// Waits until the manager has read all that was said so far.
    pub fn settle(&self) -> io::Result<()> {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        self.say("BARRIER=1", Some(theirs.as_fd()))?;
        drop(theirs);
        match wait_for(&ours, Interest::READ, Some(PATIENCE)) {
            Ok(true) => Ok(()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Descriptors that the manager passed on, with their names. To be called once, before anything else could
/// take them for its own.
pub fn passed() -> Vec<(String, OwnedFd)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    let ours = number("LISTEN_PID") == i32::try_from(std::process::id()).ok();
    let count = number("LISTEN_FDS").filter(|count| ours && (1..PASSED_MAX).contains(count));
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = Vec::new();
    for number in FIRST..FIRST + count.unwrap_or(0) {
        let name = names.next().unwrap_or_default().to_string();
        // SAFETY: only looked at, and left alone if it is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if fcntl_setfd(fd, FdFlags::CLOEXEC).is_ok() {
            // SAFETY: it was passed to this process for us, and nobody else takes it.
            passed.push((name, unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    passed
}
