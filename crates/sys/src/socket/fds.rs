//! Descriptors over a Unix socket.
//!
//! At most [`FDS_MAX`] travel with one message, which carries at least one byte. Invariant:
//! received descriptors are close-on-exec and owned from the moment they arrive: whatever the
//! caller does not take is closed. Known limit: descriptors are attached to the first byte of a
//! message; a reader that reads that byte without asking for descriptors loses them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::stream::outcome;
use super::{Stream, Transfer};

/// Descriptors in one message at most.
pub const FDS_MAX: usize = 16;

/// Descriptors that arrived.
#[derive(Debug, Default)]
pub struct ReceivedFds {
    fds: [Option<OwnedFd>; FDS_MAX],
    len: usize,
}

impl ReceivedFds {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes them out, in the order they were sent.
    pub fn drain(&mut self) -> impl Iterator<Item = OwnedFd> + '_ {
        let len = std::mem::take(&mut self.len);
        self.fds[..len].iter_mut().filter_map(Option::take)
    }

    /// False where there is no room left; the descriptor is closed then.
    fn push(&mut self, fd: OwnedFd) -> bool {
        let Some(slot) = self.fds.get_mut(self.len) else {
            return false;
        };
        *slot = Some(fd);
        self.len += 1;
        true
    }
}

impl Stream {
    /// Sends bytes and descriptors in one message. All descriptors go with the first byte; if only
    /// a part of the bytes was taken, send the rest without them.
    pub fn send_fds(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Transfer, Errno> {
        if fds.len() > FDS_MAX || bytes.is_empty() {
            return Err(Errno::INVAL);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(self.as_fd(), &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(n) => Ok(Transfer::Bytes(n)),
            Err(errno) => outcome(errno),
        }
    }

    /// Receives bytes and the descriptors that came with them, which are added to `fds`. EMSGSIZE
    /// if there were more of them than there was room for: those without room are closed.
    pub fn recv_fds(&self, bytes: &mut [u8], fds: &mut ReceivedFds) -> Result<Transfer, Errno> {
        if bytes.is_empty() {
            return Err(Errno::INVAL);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut list = [IoSliceMut::new(bytes)];
        let message = match rustix::net::recvmsg(self.as_fd(), &mut list, &mut control, flags) {
            Ok(message) => message,
            Err(errno) => return outcome(errno),
        };
        let mut fits = !message.flags.contains(ReturnFlags::CTRUNC);
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                for fd in received {
                    fits &= fds.push(fd);
                }
            }
        }
        match (fits, message.bytes) {
            (false, _) => Err(Errno::MSGSIZE),
            (true, 0) => Ok(Transfer::Closed),
            (true, n) => Ok(Transfer::Bytes(n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memfd;
    use muninn_types::Bytes;

    #[test]
    fn descriptors_arrive_in_order_and_close_on_exec() {
        let (here, there) = Stream::pair().unwrap();
        let files: Vec<Memfd> = (1..=FDS_MAX as u64)
            .map(|pages| Memfd::create("sent", Bytes::pages(pages)).unwrap())
            .collect();
        let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        assert_eq!(here.send_fds(b"all", &borrowed), Ok(Transfer::Bytes(3)));
        let mut fds = ReceivedFds::default();
        let mut bytes = [0; 8];
        assert_eq!(there.recv_fds(&mut bytes, &mut fds), Ok(Transfer::Bytes(3)));
        assert_eq!(fds.len(), FDS_MAX);
        for (pages, fd) in (1..).zip(fds.drain()) {
            let flags = rustix::io::fcntl_getfd(&fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            assert_eq!(
                Memfd::from_fd(fd).unwrap().len().unwrap(),
                Bytes::pages(pages)
            );
        }
        assert!(fds.is_empty());
        assert_eq!(
            there.recv_fds(&mut bytes, &mut fds),
            Ok(Transfer::WouldBlock)
        );
        assert_eq!(here.send_fds(b"", &borrowed), Err(Errno::INVAL));
        drop(here);
        assert_eq!(there.recv_fds(&mut bytes, &mut fds), Ok(Transfer::Closed));
    }

    #[test]
    fn more_descriptors_than_room_is_an_error_and_leaks_nothing() {
        let (here, there) = Stream::pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut fds = ReceivedFds::default();
        for _ in 0..2 {
            let many = [writer.as_fd(); 10];
            assert_eq!(here.send_fds(b"x", &many), Ok(Transfer::Bytes(1)));
        }
        let mut byte = [0];
        assert_eq!(there.recv_fds(&mut byte, &mut fds), Ok(Transfer::Bytes(1)));
        assert_eq!(there.recv_fds(&mut byte, &mut fds), Err(Errno::MSGSIZE));
        drop((fds, writer));
        // All copies of the write end are closed: the reader sees the end.
        assert_eq!(rustix::io::read(&reader, &mut byte), Ok(0));
    }
}
