//! Child processes that do not outlive their parent.
//!
//! Known limit: the kernel sends the signal when the *thread* that started the child ends; start
//! children from a thread that lives as long as they should.

use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the child killed when its parent ends, however that happens.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only a system call without memory or locks is made.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
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
