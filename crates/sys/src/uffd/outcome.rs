//! How far a request came, and why no further.
//!
//! The kernel works page by page and stops at the first it cannot do. If some were done it says
//! EAGAIN whatever the reason, with the bytes done beside it; if none was, it says the reason.
//! [`Partial`] keeps both: a caller goes on after the pages done and learns the reason from the
//! next answer. Invariant: `done_pages` is always less than the pages asked for.

use rustix::io::Errno;

use super::PageRange;

/// Why the kernel stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// With pages done: go on with the rest. With none: the address space is changing and an event
    /// about it waits to be read (EAGAIN).
    Again,
    /// A page is there already (EEXIST). Threads waiting for it were not woken.
    Exists,
    /// A page is pinned, merged or shared after a fork (EBUSY).
    Busy,
    /// Nothing is mapped or registered there, or the source of a move is absent (ENOENT).
    Absent,
    /// The process has ended (ESRCH).
    ProcessGone,
    /// No memory for the page (ENOMEM).
    NoMemory,
    /// The source cannot be read (EFAULT).
    BadSource,
    /// The range or mode does not fit this request (EINVAL).
    Invalid,
    /// The far copy of the page is marked as lost (EHWPOISON).
    Poisoned,
    Other(Errno),
}

impl Cause {
    pub(crate) fn of(errno: Errno) -> Cause {
        match errno {
            Errno::AGAIN => Cause::Again,
            Errno::EXIST => Cause::Exists,
            Errno::BUSY => Cause::Busy,
            Errno::NOENT => Cause::Absent,
            Errno::SRCH => Cause::ProcessGone,
            Errno::NOMEM => Cause::NoMemory,
            Errno::FAULT => Cause::BadSource,
            Errno::INVAL => Cause::Invalid,
            Errno::HWPOISON => Cause::Poisoned,
            other => Cause::Other(other),
        }
    }

    /// The error number the kernel uses for it.
    pub fn errno(self) -> Errno {
        match self {
            Cause::Again => Errno::AGAIN,
            Cause::Exists => Errno::EXIST,
            Cause::Busy => Errno::BUSY,
            Cause::Absent => Errno::NOENT,
            Cause::ProcessGone => Errno::SRCH,
            Cause::NoMemory => Errno::NOMEM,
            Cause::BadSource => Errno::FAULT,
            Cause::Invalid => Errno::INVAL,
            Cause::Poisoned => Errno::HWPOISON,
            Cause::Other(errno) => errno,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Cause::Again => "the address space is changing; read the events, then go on",
            Cause::Exists => "a page is there already; wake those who wait for it",
            Cause::Busy => "a page is pinned or shared; leave it where it is",
            Cause::Absent => "nothing is mapped or registered there",
            Cause::ProcessGone => "the process has ended",
            Cause::NoMemory => "there is no memory for the page",
            Cause::BadSource => "the source cannot be read",
            Cause::Invalid => "the range or the mode does not fit the request",
            Cause::Poisoned => "the page is lost",
            Cause::Other(errno) => return write!(f, "{errno}"),
        })
    }
}

/// A request that was done in part or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{done_pages} pages were done, then: {cause}")]
pub struct Partial {
    pub done_pages: u64,
    pub cause: Cause,
}

impl Partial {
    pub const fn new(done_pages: u64, cause: Cause) -> Partial {
        Partial { done_pages, cause }
    }

    /// From the answer of the kernel: an error, and the bytes done or a negative error number.
    pub(crate) fn of_kernel(errno: Errno, bytes: i64, asked: PageRange) -> Partial {
        let done_pages = u64::try_from(bytes).unwrap_or(0) >> muninn_types::PAGE_SHIFT;
        debug_assert!(done_pages < asked.pages().max(1));
        Partial {
            done_pages,
            cause: Cause::of(errno),
        }
    }
}

/// A request without progress of its own failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {range}: {cause}")]
pub struct RequestError {
    pub action: &'static str,
    pub range: PageRange,
    pub cause: Cause,
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_types::PageNo;

    #[test]
    fn causes_and_error_numbers_agree() {
        let known = [
            Errno::AGAIN,
            Errno::EXIST,
            Errno::BUSY,
            Errno::NOENT,
            Errno::SRCH,
            Errno::NOMEM,
            Errno::FAULT,
            Errno::INVAL,
            Errno::HWPOISON,
            Errno::PERM,
        ];
        for errno in known {
            assert_eq!(Cause::of(errno).errno(), errno);
        }
    }

    #[test]
    fn progress_is_kept_and_errors_beside_it_are_not_taken_for_progress() {
        let asked = PageRange::new(PageNo(3), 4);
        let partial = Partial::of_kernel(Errno::AGAIN, 2 * 4096, asked);
        assert_eq!(partial, Partial::new(2, Cause::Again));
        let none = Partial::of_kernel(Errno::EXIST, -17, asked);
        assert_eq!(none, Partial::new(0, Cause::Exists));
        assert_eq!(
            partial.to_string(),
            "2 pages were done, then: the address space is changing; read the events, then go on"
        );
    }
}
