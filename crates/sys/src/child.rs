//! Child processes that do not outlive their parent.
//!
//! Known limit: the kernel sends the signal when the *thread* that started the child ends; start
//! children from a thread that lives as long as they should.

use muninn_types::Bytes;
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the child killed when its parent ends, however that happens.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only system calls without memory or locks are made.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // A parent that ended before the call above can send no signal any more.
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        })
    }
}

/// Lets the child be ended as any program: without the signals that we block, which it would inherit.
pub fn hears_signals(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only calls without memory or locks are made; `sigemptyset` fills the
    // set, which is only read after that.
    unsafe {
        command.pre_exec(|| {
            let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            let set = libc::SIG_SETMASK;
            let failed = libc::pthread_sigmask(set, none.as_ptr(), std::ptr::null_mut());
            match failed {
                0 => Ok(()),
                errno => Err(std::io::Error::from_raw_os_error(errno)),
            }
        })
    }
}

/// Tells the child how much memory it should hold (RLIMIT_RSS). The kernel does not enforce it, and
/// neither do we: it is for programs that ask.
pub fn limit_resident(command: &mut Command, bytes: Bytes) -> &mut Command {
    let mut limit = getrlimit(Resource::Rss);
    limit.current = Some(limit.current.map_or(bytes.0, |now| now.min(bytes.0)));
    // SAFETY: between fork and exec only a system call without memory or locks is made.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Rss, limit)?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_can_ask_how_much_it_should_hold() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -m"]).stdin(Stdio::null());
        let output = limit_resident(&mut command, Bytes::mib(64))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "65536");
    }
    use std::process::Stdio;

    #[test]
    fn a_child_can_be_ended_though_we_block_its_signal() {
        let _watch = crate::signal::Termination::watch().unwrap();
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null());
        let mut child = hears_signals(&mut command).spawn().unwrap();
        let handle = crate::signal::PidFd::open(child.id() as i32).unwrap();
        handle.send(Signal::TERM).unwrap();
        let ended = handle.wait_end(Some(std::time::Duration::from_secs(30)));
        if ended != Ok(true) {
            let _ = child.kill();
        }
        let status = child.wait().unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(libc::SIGTERM));
    }

    #[test]
    fn the_child_runs_and_can_be_waited_for() {
        let mut command = Command::new("true");
        let status = die_with_parent(&mut command)
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    }
}
