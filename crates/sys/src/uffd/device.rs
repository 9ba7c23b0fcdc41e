//! The real userfaultfd.
//!
//! Invariant: one system call per request, no allocation, no locks; a descriptor that comes with a
//! fork is owned as soon as it is read. Known limit: a request on the descriptor of a forked child
//! works on the child's memory, except MOVE, which works inside of one process only.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use linux_raw_sys::general as raw;
use muninn_types::{PAGE_SIZE, PageNo};
use rustix::io::{Errno, ReadWriteFlags};

use super::event::{self, MESSAGE_SIZE};
use super::ioctl::{Request, Unregister, WakeUp};
use super::outcome::{cause_of, partial_of};
use super::{
    Cause, CopyMode, EventBuffer, FaultDevice, Features, MoveMode, Operations, PageRange, Partial,
    RegisterMode, RequestError, Wake,
};
use crate::epoll::{Interest, wait_for};

// From the kernel's header; `linux-raw-sys` leaves these out because they are written as shifts.
const WRITEPROTECT_MODE_WP: u64 = 1;
const WRITEPROTECT_MODE_DONTWAKE: u64 = 2;
const CONTINUE_MODE_DONTWAKE: u64 = 1;
const CONTINUE_MODE_WP: u64 = 2;
const POISON_MODE_DONTWAKE: u64 = 1;
const MOVE_MODE_DONTWAKE: u64 = 1;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;

/// Messages read in one system call.
const MESSAGES: usize = 16;

/// A descriptor of the kernel's userfaultfd.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
    features: Features,
}

impl Userfaultfd {
    pub(super) fn from_parts(fd: OwnedFd, features: Features) -> Userfaultfd {
        Userfaultfd { fd, features }
    }

    /// The features in force.
    pub fn features(&self) -> Features {
        self.features
    }

    /// A descriptor that came from elsewhere, opened with these features.
    pub fn from_fd(fd: OwnedFd, features: Features) -> Userfaultfd {
        Userfaultfd { fd, features }
    }

    /// Whether a plain read waits. Only a device that does not can be waited for with a time limit
    /// ([`FaultDevice::wait`]).
    /// Whether there still is a process whose memory this is. The kernel looks for that before it finds
    /// that nothing is mapped where it is asked to put a page.
    pub fn has_process(&self) -> bool {
        const NOWHERE: PageRange = PageRange::new(PageNo(1), 1);
        let page = [0u8; PAGE_SIZE];
        // SAFETY: a page is readable, and nothing is ever mapped so low.
        let refused = unsafe { self.copy(NOWHERE, page.as_ptr(), CopyMode::default()) };
        !matches!(refused, Err(partial) if partial.cause == Cause::ProcessGone)
    }

    pub fn set_blocking(&self, blocking: bool) -> Result<(), Errno> {
        let mut flags = rustix::fs::fcntl_getfl(&self.fd)?;
        flags.set(rustix::fs::OFlags::NONBLOCK, !blocking);
        rustix::fs::fcntl_setfl(&self.fd, flags)
    }

    /// Adds events to the buffer, and waits for one if there is none.
    pub fn await_events(&self, into: &mut EventBuffer<Userfaultfd>) -> Result<usize, Errno> {
        self.fill(into, |fd, bytes| match rustix::io::read(fd, &mut *bytes) {
            Err(Errno::AGAIN) => {
                self.set_blocking(true)?;
                rustix::io::read(fd, bytes)
            }
            read => read,
        })
    }

    /// Reads what is there, whether or not the descriptor is one that waits.
    fn read_now(&self, fd: &OwnedFd, bytes: &mut [u8]) -> Result<usize, Errno> {
        // "At the current position", which is the only one this kind of file has.
        const HERE: u64 = u64::MAX;
        let mut slices = [IoSliceMut::new(bytes)];
        match rustix::io::preadv2(fd, &mut slices, HERE, ReadWriteFlags::NOWAIT) {
            // Before Linux 6.10, and always for the device of a forked child.
            Err(Errno::OPNOTSUPP) => {
                self.set_blocking(false)?;
                rustix::io::read(fd, bytes)
            }
            read => read,
        }
    }

    fn fill(
        &self,
        into: &mut EventBuffer<Userfaultfd>,
        read: impl Fn(&OwnedFd, &mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        // One or two at a time is what there mostly is; more are read the next time.
        let mut messages = [[0u8; MESSAGE_SIZE]; MESSAGES];
        let room = into.room().min(MESSAGES);
        if room == 0 {
            return Ok(0);
        }
        let bytes = messages[..room].as_flattened_mut();
        let filled = match read(&self.fd, bytes) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(errno) => return Err(errno),
        };
        let before = into.len();
        for message in &messages[..filled / MESSAGE_SIZE] {
            let adopt = |fd| Userfaultfd {
                // SAFETY: the kernel opened this descriptor for the reader of the message.
                fd: unsafe { OwnedFd::from_raw_fd(fd) },
                features: self.features,
            };
            if let Some(event) = event::decode(message, adopt) {
                // There is room: no more messages were asked for than there is.
                let pushed = into.push(event);
                debug_assert!(pushed.is_ok());
            }
        }
        Ok(into.len() - before)
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn span(range: PageRange) -> raw::uffdio_range {
    raw::uffdio_range {
        start: range.addr(),
        len: range.len_bytes(),
    }
}

fn bit(set: bool, bit: impl Into<u64>) -> u64 {
    if set { bit.into() } else { 0 }
}

fn later(wake: Wake, dont_wake: impl Into<u64>) -> u64 {
    bit(wake == Wake::Later, dont_wake)
}

fn refused(action: &'static str, range: PageRange) -> impl Fn(Errno) -> RequestError {
    move |errno| RequestError {
        action,
        range,
        cause: cause_of(errno),
    }
}

impl FaultDevice for Userfaultfd {
    unsafe fn register(
        &self,
        range: PageRange,
        mode: RegisterMode,
    ) -> Result<Operations, RequestError> {
        let mut request = raw::uffdio_register {
            range: span(range),
            mode: bit(mode.missing, raw::UFFDIO_REGISTER_MODE_MISSING)
                | bit(mode.write_protect, raw::UFFDIO_REGISTER_MODE_WP)
                | bit(mode.minor, raw::UFFDIO_REGISTER_MODE_MINOR),
            ioctls: 0,
        };
        request.send(self).map_err(refused("register", range))?;
        Ok(Operations(request.ioctls))
    }

    fn unregister(&self, range: PageRange) -> Result<(), RequestError> {
        Unregister(span(range))
            .send(self)
            .map_err(refused("unregister", range))
    }

    unsafe fn copy(&self, to: PageRange, from: *const u8, mode: CopyMode) -> Result<(), Partial> {
        let mut request = raw::uffdio_copy {
            dst: to.addr(),
            src: from.addr() as u64,
            len: to.len_bytes(),
            mode: later(mode.wake, raw::UFFDIO_COPY_MODE_DONTWAKE)
                | bit(mode.write_protected, raw::UFFDIO_COPY_MODE_WP),
            copy: 0,
        };
        request
            .send(self)
            .map_err(|errno| partial_of(errno, request.copy, to))
    }

    fn zero(&self, range: PageRange, wake: Wake) -> Result<(), Partial> {
        let mut request = raw::uffdio_zeropage {
            range: span(range),
            mode: later(wake, raw::UFFDIO_ZEROPAGE_MODE_DONTWAKE),
            zeropage: 0,
        };
        request
            .send(self)
            .map_err(|errno| partial_of(errno, request.zeropage, range))
    }

    unsafe fn move_pages(
        &self,
        to: PageNo,
        from: PageRange,
        mode: MoveMode,
    ) -> Result<(), Partial> {
        let mut request = raw::uffdio_move {
            dst: to.addr(),
            src: from.addr(),
            len: from.len_bytes(),
            mode: later(mode.wake, MOVE_MODE_DONTWAKE)
                | bit(mode.allow_holes, MOVE_MODE_ALLOW_SRC_HOLES),
            move_: 0,
        };
        request
            .send(self)
            .map_err(|errno| partial_of(errno, request.move_, from))
    }

    fn wake(&self, range: PageRange) -> Result<(), RequestError> {
        WakeUp(span(range))
            .send(self)
            .map_err(refused("wake", range))
    }

    fn write_protect(
        &self,
        range: PageRange,
        protect: bool,
        wake: Wake,
    ) -> Result<(), RequestError> {
        let mut request = raw::uffdio_writeprotect {
            range: span(range),
            // Protecting wakes nobody; the kernel refuses the wish not to.
            mode: bit(protect, WRITEPROTECT_MODE_WP)
                | bit(!protect && wake == Wake::Later, WRITEPROTECT_MODE_DONTWAKE),
        };
        request
            .send(self)
            .map_err(refused("change the write protection of", range))
    }

    fn resume(&self, range: PageRange, mode: CopyMode) -> Result<(), Partial> {
        let mut request = raw::uffdio_continue {
            range: span(range),
            mode: later(mode.wake, CONTINUE_MODE_DONTWAKE)
                | bit(mode.write_protected, CONTINUE_MODE_WP),
            mapped: 0,
        };
        request
            .send(self)
            .map_err(|errno| partial_of(errno, request.mapped, range))
    }

    fn poison(&self, range: PageRange, wake: Wake) -> Result<(), Partial> {
        let mut request = raw::uffdio_poison {
            range: span(range),
            mode: later(wake, POISON_MODE_DONTWAKE),
            updated: 0,
        };
        request
            .send(self)
            .map_err(|errno| partial_of(errno, request.updated, range))
    }

    fn is_changing(&self) -> bool {
        // The kernel looks at this first, before it finds out that nothing was asked for.
        let mut nothing = raw::uffdio_copy {
            dst: 0,
            src: 0,
            len: 0,
            mode: 0,
            copy: 0,
        };
        nothing.send(self) == Err(Errno::AGAIN)
    }

    fn read_events(&self, into: &mut EventBuffer<Userfaultfd>) -> Result<usize, Errno> {
        self.fill(into, |fd, bytes| self.read_now(fd, bytes))
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<bool, Errno> {
        wait_for(&self.fd, Interest::READ, timeout)
    }
}
