//! Processes that want to go on in this one's place, until somebody has time for them.

use muninn_sys::epoll::EventFd;
use muninn_sys::socket::Stream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

/// Holds one: a later one finds its connection closed.
#[derive(Debug)]
pub(crate) struct Heirs {
    waiting: Mutex<Option<Stream>>,
    bell: EventFd,
}

impl Heirs {
    pub(crate) fn new() -> Result<Heirs, rustix::io::Errno> {
        Ok(Heirs {
            waiting: Mutex::new(None),
            bell: EventFd::new()?,
        })
    }

    pub(crate) fn add(&self, stream: Stream) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.get_or_insert(stream);
        self.bell.notify();
    }

    pub(crate) fn take(&self) -> Option<Stream> {
        self.bell.drain();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.take()
    }

    /// Can be read when somebody waits.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
