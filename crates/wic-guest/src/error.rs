//! What a function can end with, as it travels to the host.

use core::fmt;

/// Why a function did not reach its end. The host knows more of the first three and the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WicError {
    Bounds,
    Misaligned,
    NoLock,
    Args,
    Reply,
    /// An error of the application's own.
    App(u32),
    /// An access failed on its way.
    Access,
}

impl fmt::Display for WicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WicError::Bounds => f.write_str("an address is outside of the service's memory"),
            WicError::Misaligned => f.write_str("an address of a word is no multiple of 8"),
            WicError::NoLock => f.write_str("the service has no such lock"),
            WicError::Args => f.write_str("the arguments could not be read"),
            WicError::Reply => f.write_str("the reply is longer than a reply may be"),
            WicError::App(code) => write!(f, "the function gave up with code {code}"),
            WicError::Access => f.write_str("an access failed"),
        }
    }
}

impl core::error::Error for WicError {}

impl WicError {
    /// As a function gives it back: which, and above it the application's code.
    pub(crate) const fn code(&self) -> i64 {
        match self {
            WicError::Bounds => 1,
            WicError::Misaligned => 2,
            WicError::NoLock => 3,
            WicError::Args => 7,
            WicError::Reply => 8,
            WicError::App(code) => 9 | (*code as i64) << 32,
            WicError::Access => 10,
        }
    }
    /// Of what a function of the host gave back.
    pub(crate) const fn check(code: i32) -> Result<(), WicError> {
        match code {
            0 => Ok(()),
            1 => Err(WicError::Bounds),
            2 => Err(WicError::Misaligned),
            3 => Err(WicError::NoLock),
            _ => Err(WicError::Access),
        }
    }
}
