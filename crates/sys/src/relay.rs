//! Signals that are meant for somebody else: read instead of suffered, and passed on.
//!
//! A launcher stands between whoever sends signals and the program it runs. [`Relay`] blocks the
//! signals that a person or a supervisor sends and gives them out one by one, with whether the
//! terminal sent them: those reach the program by themselves. Invariant: made before other threads
//! start, as they inherit the blocked signals; programs are started with the signals as they were
//! before ([`Relay::restore_in`]). Known limit: signals that arrive together may be given out in
//! another order.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::epoll::{Interest, wait_for};
use crate::signal::{SignalError, last_errno};

/// What is passed on.
pub const RELAYED: [Signal; 9] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
    Signal::WINCH,
];

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Something happened to a child.
    Child,
    /// To be passed on.
    Sent(Signal),
    /// From the terminal, which sent it to all processes in the foreground.
    ByTerminal(Signal),
}

/// The signals of [`RELAYED`] and SIGCHLD as a descriptor.
#[derive(Debug)]
pub struct Relay {
    fd: OwnedFd,
    before: Mask,
}

#[derive(Clone, Copy)]
struct Mask(libc::sigset_t);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl Relay {
    /// Blocks the signals for the calling thread (and those it starts later) and watches for them.
    pub fn watch() -> Result<Relay, SignalError> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` fills `set` and `pthread_sigmask` fills `before`, which is used only
        // if it succeeded; the new descriptor is owned by nobody else.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            libc::sigaddset(&mut set, libc::SIGCHLD);
            for signal in RELAYED {
                libc::sigaddset(&mut set, signal.as_raw());
            }
            let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr());
            if blocked != 0 {
                return Err(SignalError::Watch(Errno::from_raw_os_error(blocked)));
            }
            // A parent that ignores it has the kernel reap our children before we learn how they ended.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(SignalError::Watch(last_errno()));
            }
            Ok(Relay {
                fd: OwnedFd::from_raw_fd(fd),
                before: Mask(before.assume_init()),
            })
        }
    }

    /// Starts the command with the signals blocked that were blocked before.
    pub fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: between fork and exec only a system call without memory or locks is made.
        unsafe {
            command.pre_exec(move || {
                let set = libc::pthread_sigmask(libc::SIG_SETMASK, &before.0, std::ptr::null_mut());
                match set {
                    0 => Ok(()),
                    errno => Err(std::io::Error::from_raw_os_error(errno)),
                }
            });
        }
    }

    /// Waits until a signal is there; false when the time is over.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, SignalError> {
        wait_for(&self.fd, Interest::READ, timeout).map_err(SignalError::Watch)
    }

    /// The next signal that has arrived, without waiting.
    pub fn take(&self) -> Option<Arrived> {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        loop {
            match rustix::io::read(&self.fd, &mut record) {
                Err(Errno::INTR) => {}
                Ok(n) if n == record.len() => return decode(&record),
                _ => return None,
            }
        }
    }
}

impl AsFd for Relay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The record begins with the number of the signal, an error number and where it comes from.
fn decode(record: &[u8]) -> Option<Arrived> {
    let word = |at: usize| {
        let bytes = record.get(at..at + 4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let (number, code) = (word(0)?, word(8)?);
    if number == libc::SIGCHLD {
        return Some(Arrived::Child);
    }
    let signal = RELAYED.into_iter().find(|s| s.as_raw() == number)?;
    Some(if code == libc::SI_KERNEL {
        Arrived::ByTerminal(signal)
    } else {
        Arrived::Sent(signal)
    })
}

/// The name of a signal, as people write it.
pub fn signal_name(number: i32) -> String {
    const NAMES: [(i32, &str); 20] = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGSTOP, "SIGSTOP"),
        (libc::SIGTSTP, "SIGTSTP"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    let known = NAMES.iter().find(|(n, _)| *n == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_with_their_origin_and_programs_start_without_the_block() {
        let relay = Relay::watch().unwrap();
        for signal in [Signal::HUP, Signal::USR1] {
            // SAFETY: sends a blocked signal to the calling thread only.
            unsafe { libc::pthread_kill(libc::pthread_self(), signal.as_raw()) };
            assert!(relay.wait(Some(Duration::from_secs(60))).unwrap());
            assert_eq!(relay.take(), Some(Arrived::Sent(signal)));
        }
        let mut command = Command::new("sh");
        command.args(["-c", "kill -TERM $$; echo still here"]);
        relay.restore_in(&mut command);
        let status = command.status().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(libc::SIGTERM)
        );
        // The child's end, and nothing else.
        assert!(relay.take().is_none_or(|arrived| arrived == Arrived::Child));
    }

    #[test]
    fn the_terminal_is_told_from_people() {
        let mut record = [0u8; 128];
        record[..4].copy_from_slice(&libc::SIGINT.to_ne_bytes());
        assert_eq!(decode(&record), Some(Arrived::Sent(Signal::INT)));
        record[8..12].copy_from_slice(&libc::SI_KERNEL.to_ne_bytes());
        assert_eq!(decode(&record), Some(Arrived::ByTerminal(Signal::INT)));
        record[..4].copy_from_slice(&libc::SIGSEGV.to_ne_bytes());
        assert_eq!(decode(&record), None);
        assert_eq!(decode(&[]), None);
        assert_eq!(signal_name(libc::SIGKILL), "SIGKILL");
        assert_eq!(signal_name(60), "signal 60");
    }
}
