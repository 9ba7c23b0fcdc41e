//! How far a request to the kernel came, and why no further.
//!
//! The kernel works page by page and stops at the first it cannot do. If some were done it says
//! EAGAIN whatever the reason, with the bytes done beside it; if none was, it says the reason.
//! [`Partial`] keeps both: a caller goes on after the pages done and learns the reason from the
//! next answer. Invariant: `done_pages` is always less than the pages asked for.

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
    /// Another error, by its number.
    Other(i32),
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
            Cause::Other(errno) => {
                return std::io::Error::from_raw_os_error(*errno).fmt(f);
            }
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
}
