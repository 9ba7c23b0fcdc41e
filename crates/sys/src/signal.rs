//! Being asked to end, and handles of processes that cannot be mixed up.
//!
//! [`Termination`] turns SIGINT and SIGTERM into a descriptor, so that a loop waits for them like
//! for anything else. Invariant: it must be made before other threads start, because they inherit
//! the blocked signals; a thread that does not would be killed by them. A [`PidFd`] names one
//! process for good: its number may be used again, the handle never is. Known limit: the signals
//! stay blocked after `Termination` is dropped.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::epoll::{Interest, wait_for};

/// A signal could not be caught or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    #[error("cannot watch for signals: {0}; raise the limit of open files (ulimit -n)")]
    Watch(Errno),
    #[error("cannot find process {pid}: {source}; it may have ended")]
    Open { pid: i32, source: Errno },
    #[error("cannot send a signal: {0}; the process has ended or belongs to somebody else")]
    Send(Errno),
    #[error("cannot wait for a process: {0}")]
    Wait(Errno),
}

/// The wish that we end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// SIGINT: somebody pressed ctrl-c.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// SIGINT and SIGTERM as a descriptor.
#[derive(Debug)]
pub struct Termination {
    fd: OwnedFd,
}

impl Termination {
    /// Blocks the signals for the calling thread (and those it starts later) and watches for them.
    pub fn watch() -> Result<Termination, SignalError> {
        let fd = watch(&[libc::SIGINT, libc::SIGTERM])?;
        Ok(Termination { fd })
    }

    /// A wish that has arrived, without waiting.
    pub fn take(&self) -> Option<Wish> {
        Some(match next(&self.fd)? {
            libc::SIGINT => Wish::Interrupt,
            _ => Wish::Terminate,
        })
    }

    /// Waits for a wish; `None` when the time is over.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Wish>, SignalError> {
        wait_for(&self.fd, Interest::READ, timeout).map_err(SignalError::Watch)?;
        Ok(self.take())
    }
}

impl AsFd for Termination {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The wish that we read our files again: SIGHUP as a descriptor. As [`Termination`], to be made before
/// other threads start.
#[derive(Debug)]
pub struct Reload {
    fd: OwnedFd,
}

impl Reload {
    pub fn watch() -> Result<Reload, SignalError> {
        let fd = watch(&[libc::SIGHUP])?;
        Ok(Reload { fd })
    }

    /// Whether it has been wished since we last asked.
    pub fn take(&self) -> bool {
        next(&self.fd).is_some()
    }
}

impl AsFd for Reload {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Blocks signals for the calling thread, and watches for them.
fn watch(signals: &[libc::c_int]) -> Result<OwnedFd, SignalError> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` fills the set, the other calls use the filled set; the new descriptor is
    // owned by nobody else.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if blocked != 0 {
            return Err(SignalError::Watch(Errno::from_raw_os_error(blocked)));
        }
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(SignalError::Watch(last_errno()));
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The next signal that has arrived.
fn next(fd: &OwnedFd) -> Option<libc::c_int> {
    let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(fd, &mut record) {
        // The first field of the record is the number of the signal.
        Ok(n) if n == record.len() => {
            let number = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
            Some(number as libc::c_int)
        }
        _ => None,
    }
}

pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

/// A handle of one process.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    pub fn open(pid: i32) -> Result<PidFd, SignalError> {
        let failed = |source| SignalError::Open { pid, source };
        // Negative numbers, which name groups elsewhere, are a mistake of the caller.
        let number = Pid::from_raw(pid.max(0)).ok_or_else(|| failed(Errno::INVAL))?;
        let fd = rustix::process::pidfd_open(number, PidfdFlags::empty()).map_err(failed)?;
        Ok(PidFd { fd })
    }

    /// A handle that was received from somebody else.
    pub fn from_fd(fd: OwnedFd) -> PidFd {
        PidFd { fd }
    }

    pub fn send(&self, signal: Signal) -> Result<(), SignalError> {
        rustix::process::pidfd_send_signal(&self.fd, signal).map_err(SignalError::Send)
    }

    /// Ends the process at once.
    pub fn kill(&self) -> Result<(), SignalError> {
        self.send(Signal::KILL)
    }

    /// Waits until the process has ended; false when the time is over. Does not reap a child.
    pub fn wait_end(&self, timeout: Option<Duration>) -> Result<bool, SignalError> {
        wait_for(&self.fd, Interest::READ, timeout).map_err(SignalError::Wait)
    }

    pub fn is_alive(&self) -> bool {
        !self.wait_end(Some(Duration::ZERO)).unwrap_or(true)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_a_watching_thread_is_read_instead_of_deadly() {
        let termination = Termination::watch().unwrap();
        assert_eq!(termination.take(), None);
        for (number, wish) in [
            (libc::SIGTERM, Wish::Terminate),
            (libc::SIGINT, Wish::Interrupt),
        ] {
            // SAFETY: sends a blocked signal to the calling thread only.
            unsafe { libc::pthread_kill(libc::pthread_self(), number) };
            let got = termination.wait(Some(Duration::from_secs(10))).unwrap();
            assert_eq!(got, Some(wish));
        }
        let reload = Reload::watch().unwrap();
        assert!(!reload.take());
        // SAFETY: as above.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGHUP) };
        assert!(wait_for(&reload, Interest::READ, Some(Duration::from_secs(10))).unwrap());
        assert!(reload.take() && !reload.take());
    }

    #[test]
    fn a_process_is_ended_through_its_handle() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let handle = PidFd::open(child.id() as i32).unwrap();
        assert!(handle.is_alive());
        handle.send(Signal::KILL).unwrap();
        assert!(handle.wait_end(Some(Duration::from_secs(10))).unwrap());
        child.wait().unwrap();
        assert_eq!(
            handle.send(Signal::KILL),
            Err(SignalError::Send(Errno::SRCH))
        );
        assert!(PidFd::open(-1).is_err() && PidFd::open(0).is_err());
    }
}
