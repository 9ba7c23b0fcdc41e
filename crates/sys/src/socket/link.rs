//! A way from one process to its child: whole messages with descriptors, under a name that is in no
//! file system, or, for those in a network namespace of their own, under a path.
//!
//! Such names are no secret: `/proc/net/unix` shows them to everybody on the machine. So whoever answers
//! at a door must not wait for a visitor, nor count on there being few; and whoever knocks believes
//! only a door of root or of its own user ([`Link::connect`]): a name is free again once its owner has ended.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
    sockopt::{self, Timeout},
};

use crate::epoll::{Interest, wait_for};

/// Descriptors of one message at most.
const FDS_MAX: usize = 8;

/// Where children knock.
#[derive(Debug)]
pub struct Door(OwnedFd);

/// A connection to the other side.
#[derive(Debug)]
pub struct Link(OwnedFd);

/// How long a door may have no room for one more who knocks.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who has no number in a namespace of users is shown as this one.
const UNKNOWN_USER: u32 = 65_534;

/// Whether a user is root or this process's own. In a namespace of users in which those outside have no
/// number, they cannot be told apart.
fn is_trusted(user: u32) -> bool {
    let own = [
        rustix::process::getuid().as_raw(),
        rustix::process::geteuid().as_raw(),
    ];
    user == 0 || own.contains(&user) || user == UNKNOWN_USER && in_user_namespace()
}

fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<&str> = map.split_whitespace().collect();
    // All of them, under their own numbers.
    words != ["0", "0", "4294967295"]
}

fn open(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Door {
    pub fn open(name: &[u8]) -> Result<Door, Errno> {
        Door::bound(&SocketAddrUnix::new_abstract_name(name)?)
    }

    /// At a path where nothing is yet.
    pub fn open_at(path: &Path) -> Result<Door, Errno> {
        Door::bound(&SocketAddrUnix::new(path)?)
    }

    fn bound(address: &SocketAddrUnix) -> Result<Door, Errno> {
        let socket = open(SocketFlags::NONBLOCK)?;
        bind(&socket, address)?;
        listen(&socket, 64)?;
        Ok(Door(socket))
    }

    /// Waits for somebody who knocks; `None` when nothing came of it.
    pub fn wait(&self) -> Option<Link> {
        wait_for(&self.0, Interest::READ, None).ok()?;
        self.accept()
    }

    /// Somebody who knocked, if anybody did.
    pub fn accept(&self) -> Option<Link> {
        accept_with(&self.0, SocketFlags::CLOEXEC).ok().map(Link)
    }
}

impl Link {
    pub fn connect(name: &[u8]) -> Result<Link, Errno> {
        Link::to(&SocketAddrUnix::new_abstract_name(name)?)
    }

    /// To a door at a path.
    pub fn connect_at(path: &Path) -> Result<Link, Errno> {
        Link::to(&SocketAddrUnix::new(crate::own::rooted_path(path))?)
    }

    fn to(address: &SocketAddrUnix) -> Result<Link, Errno> {
        let socket = open(SocketFlags::empty())?;
        // Others may stand at the door in crowds.
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        connect(&socket, address)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
        let link = Link(socket);
        match link.user().is_some_and(is_trusted) {
            true => Ok(link),
            false => Err(Errno::PERM),
        }
    }

    /// The user on the other side.
    pub fn user(&self) -> Option<u32> {
        let peer = super::stream::peer_credentials(&self.0).ok()?;
        Some(peer.uid)
    }

    /// Whether root or this user is on the other side.
    pub fn is_of_own_user(&self) -> bool {
        self.user().is_some_and(is_trusted)
    }

    /// The process on the other side, by its number here; `None` if it has none here.
    pub fn peer(&self) -> Option<u32> {
        let peer = super::stream::peer_credentials(&self.0).ok()?;
        u32::try_from(peer.pid).ok().filter(|pid| *pid > 0)
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL)
    }

    /// The same, but rather not than to wait for the other side to read.
    pub fn send_now(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
    }

    /// The next message, its length and its descriptors; length 0 when the other side is gone.
    /// `None` when nothing came in time.
    pub fn receive(
        &self,
        into: &mut [u8],
        patience: Duration,
    ) -> Result<Option<(usize, Vec<OwnedFd>)>, Errno> {
        if !wait_for(&self.0, Interest::READ, Some(patience))? {
            return Ok(None);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(into)], &mut control, flags)?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                fds.extend(some);
            }
        }
        Ok(Some((received.bytes, fds)))
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_whole() {
        let name = format!("muninn-link-test-{}", std::process::id());
        let door = Door::open(name.as_bytes()).unwrap();
        assert!(door.accept().is_none());
        let child = Link::connect(name.as_bytes()).unwrap();
        let parent = door.accept().unwrap();
        let file = crate::memory::Memfd::create("link", muninn_types::Bytes::pages(1)).unwrap();
        let file = file.into_fd();
        parent.send(b"hello", &[file.as_fd()]).unwrap();
        let mut bytes = [0; 16];
        let patience = Duration::from_secs(10);
        let (len, fds) = child.receive(&mut bytes, patience).unwrap().unwrap();
        assert_eq!((&bytes[..len], fds.len()), (&b"hello"[..], 1));
        assert!(
            parent
                .receive(&mut bytes, Duration::ZERO)
                .unwrap()
                .is_none()
        );
        drop(child);
        let (len, fds) = parent.receive(&mut bytes, patience).unwrap().unwrap();
        assert_eq!((len, fds.len()), (0, 0));
    }
}
