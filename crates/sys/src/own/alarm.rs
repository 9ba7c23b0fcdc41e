//! An alarm that goes off when the program has run for a while.
//!
//! A program that sleeps needs nobody to look at it, and two hundred of them should cost nothing; one
//! that runs may fill memory at any moment. The kernel counts a process's time on processors, and lets
//! others have a timer on that clock: it stands still while the program does. Known limit: the kernel
//! looks at such timers with its clock tick, 4 ms on many machines, so that the alarm comes that late.

use crate::signal::last_errno;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The signal of the timer, for the thread that made it alone, and blocked there.
const SIGNAL: libc::c_int = 63;

#[derive(Debug)]
pub(super) struct Alarm {
    timer: libc::c_int,
    clock: libc::clockid_t,
    arrivals: OwnedFd,
}

/// The clock of a process's time on processors.
fn clock_of(pid: u32) -> libc::clockid_t {
    const SCHEDULED: libc::clockid_t = 2;
    (!(pid as libc::clockid_t) << 3) | SCHEDULED
}

impl Alarm {
    pub(super) fn of(pid: u32) -> Result<Alarm, Errno> {
        let clock = clock_of(pid);
        let mut timer: libc::c_int = 0;
        // SAFETY: zeros are a description; the kernel reads it and writes the number of the timer; the
        // set is filled before it is used; the new descriptor is owned by nobody else.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_notify_thread_id = libc::gettid();
            event.sigev_signo = SIGNAL;
            let event = &raw mut event;
            if libc::syscall(libc::SYS_timer_create, clock, event, &raw mut timer) != 0 {
                return Err(last_errno());
            }
            let mut set = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), SIGNAL);
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            let fd = libc::signalfd(-1, set.as_ptr(), flags);
            if fd < 0 {
                return Err(last_errno());
            }
            Ok(Alarm {
                timer,
                clock,
                arrivals: OwnedFd::from_raw_fd(fd),
            })
        }
    }

    /// Goes off when the program has run for so long from now on.
    pub(super) fn set(&self, after: Duration) {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        // What went off before is of no interest.
        while matches!(rustix::io::read(&self.arrivals, &mut record), Ok(1..)) {}
        let after = libc::timespec {
            tv_sec: after.as_secs() as libc::time_t,
            tv_nsec: after.subsec_nanos().into(),
        };
        let once = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: after,
        };
        let none = std::ptr::null_mut::<libc::itimerspec>();
        // SAFETY: our own timer, and a description that the kernel reads.
        unsafe {
            libc::syscall(
                libc::SYS_timer_settime,
                self.timer,
                0,
                &raw const once,
                none,
            )
        };
    }

    /// How long the program has run.
    pub(super) fn elapsed(&self) -> Duration {
        let mut time = MaybeUninit::<libc::timespec>::zeroed();
        // SAFETY: the kernel fills it or leaves the zeros, which are a time.
        let time = unsafe {
            libc::clock_gettime(self.clock, time.as_mut_ptr());
            time.assume_init()
        };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arrivals.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll::{Interest, wait_for};
    use std::process::{Child, Command, Stdio};

    /// Ended with the test, however that ends.
    struct Program(Child);

    impl Program {
        fn start(script: &str) -> Program {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null());
            Program(command.spawn().unwrap())
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn it_goes_off_for_a_program_that_runs_and_not_for_one_that_sleeps() {
        // SAFETY: a set that is filled before it is used, and a mask of this thread alone.
        unsafe {
            let mut set = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), SIGNAL);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        }
        let went = |script: &str, patience: Duration| {
            let program = Program::start(script);
            let alarm = Alarm::of(program.0.id()).unwrap();
            alarm.set(Duration::from_millis(200));
            let went = wait_for(&alarm, Interest::READ, Some(patience)).unwrap();
            (went, alarm.elapsed() >= Duration::from_millis(200))
        };
        assert_eq!(
            went("while :; do :; done", Duration::from_secs(60)),
            (true, true)
        );
        assert_eq!(
            went("exec sleep 60", Duration::from_millis(600)),
            (false, false)
        );
    }
}
