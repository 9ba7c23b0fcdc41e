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
    fn the_child_runs_and_can_be_waited_for() {
        let mut command = Command::new("true");
        let status = die_with_parent(&mut command)
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    }
}
