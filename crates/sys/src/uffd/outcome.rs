//! The kernel's answers in the words of [`Cause`] and [`Partial`].

use rustix::io::Errno;

use super::{Cause, PageRange, Partial};

/// Why the kernel stopped, from an error number.
pub(crate) fn cause_of(errno: Errno) -> Cause {
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
        other => Cause::Other(other.raw_os_error()),
    }
}

/// From the answer of the kernel: an error, and the bytes done or a negative error number.
pub(crate) fn partial_of(errno: Errno, bytes: i64, asked: PageRange) -> Partial {
    let done_pages = u64::try_from(bytes).unwrap_or(0) >> muninn_types::PAGE_SHIFT;
    debug_assert!(done_pages < asked.pages().max(1));
    Partial::new(done_pages, cause_of(errno))
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
    fn an_unknown_error_keeps_its_number() {
        assert_eq!(cause_of(Errno::BUSY), Cause::Busy);
        let other = cause_of(Errno::PERM);
        assert_eq!(other, Cause::Other(libc::EPERM));
        assert_eq!(other.to_string(), "Operation not permitted (os error 1)");
    }

    #[test]
    fn progress_is_kept_and_errors_beside_it_are_not_taken_for_progress() {
        let asked = PageRange::new(PageNo(3), 4);
        let partial = partial_of(Errno::AGAIN, 2 * 4096, asked);
        assert_eq!(partial, Partial::new(2, Cause::Again));
        let none = partial_of(Errno::EXIST, -17, asked);
        assert_eq!(none, Partial::new(0, Cause::Exists));
        assert_eq!(
            partial.to_string(),
            "2 pages were done, then: the address space is changing; read the events, then go on"
        );
    }
}
