//! Waiting for many descriptors at once, and waking a thread that waits.
//!
//! Thin: an [`Epoll`] holds no list of its own, events carry the token given at `add`. Invariant:
//! [`Epoll::wait`] never returns early because of a signal. Known limit: a descriptor must be
//! removed before it is closed if copies of it exist (the kernel keys by open file).

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use muninn_types::Nanos;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::clock;

/// Events taken from the kernel in one call at most.
pub const EVENTS_MAX: usize = 64;

/// What to be told about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
    /// Once per change instead of as long as it holds.
    pub edge: bool,
    /// Wake one of several waiting threads only.
    pub exclusive: bool,
}

impl Interest {
    pub const READ: Interest = Interest {
        read: true,
        write: false,
        edge: false,
        exclusive: false,
    };
    pub const WRITE: Interest = Interest {
        read: false,
        write: true,
        edge: false,
        exclusive: false,
    };
    pub const BOTH: Interest = Interest {
        read: true,
        write: true,
        edge: false,
        exclusive: false,
    };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        // Told apart from data, so that a half-closed peer is noticed. Not allowed with EXCLUSIVE.
        flags.set(EventFlags::RDHUP, self.read && !self.exclusive);
        flags.set(EventFlags::OUT, self.write);
        flags.set(EventFlags::ET, self.edge);
        flags.set(EventFlags::EXCLUSIVE, self.exclusive);
        flags
    }
}

/// What happened to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// The other side is gone, or the descriptor has an error to tell.
    pub closed: bool,
}

/// Room for one batch of events. Kept by the caller so that waiting does not allocate.
pub struct Events {
    list: [epoll::Event; EVENTS_MAX],
    len: usize,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Default for Events {
    fn default() -> Events {
        Events {
            list: [epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(0),
            }; EVENTS_MAX],
            len: 0,
        }
    }
}

impl Events {
    pub fn iter(&self) -> impl Iterator<Item = Readiness> + '_ {
        self.list[..self.len].iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            Readiness {
                token: data.u64(),
                readable: flags.contains(EventFlags::IN),
                writable: flags.contains(EventFlags::OUT),
                closed: flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR),
            }
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    pub fn new() -> Result<Epoll, Errno> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Epoll { fd })
    }

    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        epoll::add(&self.fd, fd, EventData::new_u64(token), interest.flags())
    }

    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        epoll::modify(&self.fd, fd, EventData::new_u64(token), interest.flags())
    }

    pub fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.fd, fd)
    }

    /// Waits until something happens or the time is over; how many events there are. `None` waits
    /// for ever, zero only looks. Times below a millisecond count as one.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> Result<usize, Errno> {
        events.len = 0;
        let deadline = timeout.map(|t| clock::now().saturating_add(Nanos::from(t)));
        loop {
            let left = deadline.map(|deadline| timespec(deadline.saturating_sub(clock::now())));
            match epoll::wait(&self.fd, &mut events.list[..], left.as_ref()) {
                Ok(n) => {
                    events.len = n;
                    return Ok(n);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Longest wait handed to the kernel in one piece; callers with more simply wait again.
const WAIT_MAX: Nanos = Nanos::secs(1 << 20);

fn timespec(left: Nanos) -> Timespec {
    let left = left.min(WAIT_MAX);
    Timespec {
        tv_sec: (left.0 / 1_000_000_000) as i64,
        tv_nsec: (left.0 % 1_000_000_000) as i64,
    }
}

/// Waits for one descriptor; false when the time is over. `None` waits for ever.
pub fn wait_for(
    fd: impl AsFd,
    interest: Interest,
    timeout: Option<Duration>,
) -> Result<bool, Errno> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, interest.read);
    flags.set(PollFlags::OUT, interest.write);
    let deadline = timeout.map(|t| clock::now().saturating_add(Nanos::from(t)));
    loop {
        let left = deadline.map(|deadline| timespec(deadline.saturating_sub(clock::now())));
        let mut list = [PollFd::new(&fd, flags)];
        match rustix::event::poll(&mut list, left.as_ref()) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until one of a few descriptors can be read, or the time is over.
pub fn wait_any(fds: &[BorrowedFd<'_>], timeout: Duration) {
    let mut list: Vec<PollFd<'_>> = Vec::with_capacity(fds.len());
    for fd in fds {
        list.push(PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    }
    // Interrupted or not, whoever waits looks at all of them afterwards.
    let _ = rustix::event::poll(&mut list, Some(&timespec(Nanos::from(timeout))));
}

/// A counter that can be waited for: wakes a thread that sits in [`Epoll::wait`].
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    pub fn new() -> Result<EventFd, Errno> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(EventFd { fd })
    }

    /// Wakes the waiter. Several calls before it looks count as one.
    pub fn notify(&self) {
        // Fails only where the counter is full: then the waiter is woken anyway.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Calls since the last look; 0 if there were none.
    pub fn drain(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

impl From<OwnedFd> for EventFd {
    /// One that another process made.
    fn from(fd: OwnedFd) -> EventFd {
        EventFd { fd }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_wakes_the_waiter() {
        let epoll = Epoll::new().unwrap();
        let waker = EventFd::new().unwrap();
        let mut events = Events::default();
        epoll.add(&waker, 42, Interest::READ).unwrap();
        assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)), Ok(0));
        std::thread::scope(|scope| {
            scope.spawn(|| waker.notify());
            assert_eq!(
                epoll.wait(&mut events, Some(Duration::from_secs(10))),
                Ok(1)
            );
        });
        let ready = events.iter().next().unwrap();
        assert!(ready.token == 42 && ready.readable && !ready.writable && !ready.closed);
        waker.notify();
        assert_eq!(waker.drain(), 2);
        assert_eq!(waker.drain(), 0);
        epoll.remove(&waker).unwrap();
        waker.notify();
        assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)), Ok(0));
        assert!(events.is_empty());
    }

    #[test]
    fn one_descriptor_can_be_waited_for() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(
            wait_for(&reader, Interest::READ, Some(Duration::ZERO)),
            Ok(false)
        );
        drop(writer);
        assert_eq!(wait_for(&reader, Interest::READ, None), Ok(true));
    }
}
