//! What can go wrong inside of a function, and on the way to it.
//!
//! A [`WicError`] is what the function itself ended with, wherever it ran. A [`CallError`] is what
//! its caller gets: it says which side failed and whether the function may have run.

use muninn_net::NetError;
use muninn_wire::{ErrorCode, Refusal};
use std::fmt;
use std::time::Duration;

/// Why a function did not reach its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WicError {
    #[error("address {0:#x} is outside of the service's memory")]
    Bounds(u64),
    #[error("address {0:#x} is not a multiple of 8, as a word's must be")]
    Misaligned(u64),
    #[error("the service has no lock {0}")]
    NoLock(u32),
    #[error("the function made more steps than it may ({0}); it was ended")]
    Steps(u64),
    #[error("the function took more memory than it may ({0} bytes); it was ended")]
    Allocated(u64),
    #[error("the function panicked; it was ended")]
    Panicked,
    #[error("the arguments could not be read")]
    Args,
    #[error("the reply is longer than a reply may be")]
    Reply,
    /// An error of the application's own.
    #[error("the function gave up with code {0}")]
    App(u32),
    /// An access failed on its way: only where memory is reached over a network.
    #[error("an access failed: {0}")]
    Access(String),
    /// A function that was pushed did what no module may.
    #[error("the function was ended: {0}")]
    Trapped(String),
}

impl WicError {
    /// As it travels: which, and what about.
    pub fn to_refusal(&self) -> Refusal {
        let (code, detail) = match self {
            WicError::Bounds(at) => (1, *at),
            WicError::Misaligned(at) => (2, *at),
            WicError::NoLock(index) => (3, u64::from(*index)),
            WicError::Steps(limit) => (4, *limit),
            WicError::Allocated(limit) => (5, *limit),
            WicError::Panicked => (6, 0),
            WicError::Args => (7, 0),
            WicError::Reply => (8, 0),
            WicError::App(code) => (9, u64::from(*code)),
            WicError::Access(_) => (10, 0),
            WicError::Trapped(_) => (11, 0),
        };
        let refusal = Refusal::with(ErrorCode::WicFailed, code, detail);
        match self {
            WicError::Access(why) | WicError::Trapped(why) => refusal.remark(why),
            _ => refusal,
        }
    }

    fn from_refusal(refusal: &Refusal) -> WicError {
        match refusal.a {
            1 => WicError::Bounds(refusal.b),
            2 => WicError::Misaligned(refusal.b),
            3 => WicError::NoLock(refusal.b as u32),
            4 => WicError::Steps(refusal.b),
            5 => WicError::Allocated(refusal.b),
            6 => WicError::Panicked,
            7 => WicError::Args,
            8 => WicError::Reply,
            9 => WicError::App(refusal.b as u32),
            11 => WicError::Trapped(refusal.remark.to_string()),
            _ => WicError::Access(refusal.remark.to_string()),
        }
    }
}

/// A side that takes part in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    Client,
    Server,
    Nic,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Side::Client => "client",
            Side::Server => "server",
            Side::Nic => "nic",
        })
    }
}

/// Whether a function that failed had begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// Surely not: nothing was changed, and it can be called again.
    No,
    /// It may have run, in part or whole.
    Maybe,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Ran::No => "the call did not run",
            Ran::Maybe => "the call may have run",
        })
    }
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The function ran and said no.
    #[error("{0}")]
    Failed(WicError),
    #[error("the {side} is lost: {why}; {ran}")]
    Lost { side: Side, ran: Ran, why: String },
    #[error("no reply from the {side} within {after:?}; {ran}")]
    Deadline {
        side: Side,
        ran: Ran,
        after: Duration,
    },
    #[error("the {side} refused the call: {refusal}")]
    Refused { side: Side, refusal: Refusal },
    #[error("{0}")]
    Net(#[from] NetError),
    #[error("there is no nic: name the address that 'muninn nic' listens at")]
    NoNic,
    #[error("the function's module cannot be used: {0}")]
    Module(String),
    #[error("the reply makes no sense: client and server differ in the function's types")]
    BadReply,
}

impl CallError {
    /// Whether calling again, elsewhere or later, could help; never after it may have run.
    pub fn did_not_run(&self) -> bool {
        match self {
            CallError::Lost { ran, .. } | CallError::Deadline { ran, .. } => *ran == Ran::No,
            CallError::Refused { .. } | CallError::NoNic => true,
            _ => false,
        }
    }

    /// What a refusal of `side` means for a call.
    pub(crate) fn from_refusal(side: Side, refusal: Refusal, after: Duration) -> CallError {
        let ran = if refusal.a == 0 { Ran::No } else { Ran::Maybe };
        match refusal.code {
            ErrorCode::WicFailed => CallError::Failed(WicError::from_refusal(&refusal)),
            ErrorCode::CallDeadline => CallError::Deadline { side, ran, after },
            ErrorCode::UpstreamLost => CallError::Lost {
                side: Side::Server,
                ran,
                why: "the nic has lost it".to_string(),
            },
            _ => CallError::Refused { side, refusal },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_functions_travel() {
        let all = [
            WicError::Bounds(7),
            WicError::Misaligned(3),
            WicError::NoLock(2),
            WicError::Steps(9),
            WicError::Allocated(8),
            WicError::Panicked,
            WicError::Args,
            WicError::Reply,
            WicError::App(77),
            WicError::Access("gone".to_string()),
            WicError::Trapped("divided by zero".to_string()),
        ];
        for error in all {
            assert_eq!(WicError::from_refusal(&error.to_refusal()), error);
        }
    }

    #[test]
    fn a_caller_learns_which_side_failed_and_whether_it_ran() {
        let after = Duration::from_secs(1);
        let late = Refusal::with(ErrorCode::CallDeadline, 1, 0);
        assert_eq!(
            CallError::from_refusal(Side::Nic, late, after).to_string(),
            "no reply from the nic within 1s; the call may have run"
        );
        let lost = Refusal::with(ErrorCode::UpstreamLost, 0, 0);
        assert_eq!(
            CallError::from_refusal(Side::Nic, lost, after).to_string(),
            "the server is lost: the nic has lost it; the call did not run"
        );
    }
}
