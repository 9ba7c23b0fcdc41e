//! Child processes that do not outlive their parent.
//!
//! Known limit: the kernel sends the signal when the *thread* that started the child ends; start
//! children from a thread that lives as long as they should.

use rustix::process::Signal;
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

#[cfg(test)]
mod tests {
    use super::*;
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
