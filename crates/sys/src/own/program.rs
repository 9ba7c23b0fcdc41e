//! The program, as its companion sees it: is it still there, and is it still the same?
//!
//! The companion shares the program's memory, which stays as long as either of them has it. A program
//! that ends, or that executes another in its place, leaves the memory to the companion alone, which
//! has nothing to do there any more.

use super::program_pid;
use crate::signal::PidFd;
use std::time::Duration;

/// What became of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Runs,
    Ended,
    /// It has executed another program, in other memory.
    Replaced,
}

#[derive(Debug)]
pub struct Program {
    handle: PidFd,
    pid: u32,
}

/// The kind of thing that `kcmp` is to compare: memory.
const KCMP_VM: libc::c_int = 1;

impl Program {
    /// The program beside which the caller runs; `None` when it has ended.
    pub fn watch() -> Option<Program> {
        let pid = program_pid();
        let handle = PidFd::open(pid as i32).ok()?;
        Some(Program { handle, pid })
    }

    /// Waits for the program's end, so long; what became of it.
    pub fn wait(&self, patience: Duration) -> Fate {
        if self.handle.wait_end(Some(patience)).unwrap_or(true) {
            return Fate::Ended;
        }
        self.fate()
    }

    fn fate(&self) -> Fate {
        let own = std::process::id();
        // SAFETY: a plain system call; the last two arguments are not looked at.
        let order = unsafe { libc::syscall(libc::SYS_kcmp, own, self.pid, KCMP_VM, 0, 0) };
        match order {
            // Refused: a kernel without it, or a program that nobody may look at.
            0 | -1 => Fate::Runs,
            _ => Fate::Replaced,
        }
    }
}
