//! How a command fails: what happened, to what, what to do next, and an exit code that means
//! something.

use std::fmt;

/// Exit codes of `muninn`. 0 is success; 2 is a command line that could not be understood (clap's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The work was begun and failed.
    Failed = 1,
    /// A value on the command line, in the environment or in a file is wrong.
    Usage = 2,
    /// A server could not be reached, or it refused.
    Unreachable = 3,
    /// This kernel, user or machine lacks something that is needed.
    Unsupported = 4,
    /// A check was made and what it checks does not hold (`doctor`, `bench --check`, `drain`).
    CheckFailed = 5,
    /// A program to be run cannot be executed; the number is that of shells.
    CannotExecute = 126,
    /// There is no such program; the number is that of shells.
    NotFound = 127,
}

#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

pub type Outcome = Result<(), Failure>;

impl Failure {
    pub fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure {
            exit,
            message: message.to_string(),
        }
    }
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Usage, message)
    }
    pub fn failed(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Failed, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::failed(error)
    }
}
