//! Opening a descriptor, by either of two ways, and agreeing on features.
//!
//! The system call is for root and those with CAP_SYS_PTRACE (or everybody, where the machine is
//! set so); `/dev/userfaultfd` is for whoever may open that file. Both are tried. Invariant: the
//! error tells which ways were tried and what would open each. Known limit: the kernel agrees on
//! features once per descriptor, so asking for what it knows costs a descriptor of its own.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use linux_raw_sys::general as raw;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;

use super::ioctl::{NewDescriptor, Request};
use super::{Features, Userfaultfd};

const DEVICE: &str = "/dev/userfaultfd";

/// The device, opened by somebody who may.
static HANDED: AtomicI32 = AtomicI32::new(-1);

/// From now on the device is this open one, if it is one: whoever may open it may hand it on. A child
/// has its parent's memory and not its files, and says so.
pub fn use_device(device: Option<OwnedFd>) {
    HANDED.store(device.map_or(-1, IntoRawFd::into_raw_fd), Ordering::Release);
}

/// The device, opened to be handed on.
pub fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Which way to a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// The system call, then the device.
    #[default]
    Either,
    Syscall,
    Device,
}

/// Why there is no userfaultfd for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(
        "userfaultfd is not permitted (system call: {syscall}; /dev/userfaultfd: {device}). One of \
         these allows it: run as root or with CAP_SYS_PTRACE; give the user access to \
         /dev/userfaultfd (chmod or a udev rule); or set vm.unprivileged_userfaultfd=1"
    )]
    NotPermitted { syscall: Errno, device: Errno },
    #[error(
        "this kernel has no userfaultfd; use one built with CONFIG_USERFAULTFD, 6.8 or newer for \
         all of Muninn"
    )]
    NotHere,
    #[error("cannot open userfaultfd by the {route}: {source}")]
    Open { route: &'static str, source: Errno },
    #[error("this kernel's userfaultfd lacks {missing}; Linux 6.8 or newer has it")]
    Missing { missing: Features },
    #[error(
        "events about forks need CAP_SYS_PTRACE: run as root or give the program that capability"
    )]
    ForkNotPermitted,
    #[error("the kernel refuses userfaultfd with the features {features}: {source}")]
    Api { features: Features, source: Errno },
}

/// What this kernel's userfaultfd can do.
pub fn supported_features() -> Result<Features, OpenError> {
    let fd = open_fd(Route::Either, false)?;
    agree(&fd, Features::NONE)
}

impl Userfaultfd {
    /// Opens a descriptor with all of `required` and as many of `wanted` as the kernel knows.
    pub fn open(required: Features, wanted: Features) -> Result<Userfaultfd, OpenError> {
        Userfaultfd::open_by(Route::Either, required, wanted)
    }

    pub fn open_by(
        route: Route,
        required: Features,
        wanted: Features,
    ) -> Result<Userfaultfd, OpenError> {
        Userfaultfd::open_with(route, required, wanted, false)
    }

    /// For memory only user code touches: needs no permission, but a system call that touches an
    /// absent page fails with EFAULT.
    pub fn open_user_mode_only(
        required: Features,
        wanted: Features,
    ) -> Result<Userfaultfd, OpenError> {
        Userfaultfd::open_with(Route::Either, required, wanted, true)
    }

    fn open_with(
        route: Route,
        required: Features,
        wanted: Features,
        user_mode_only: bool,
    ) -> Result<Userfaultfd, OpenError> {
        let probe = open_fd(route, user_mode_only)?;
        let supported = agree(&probe, Features::NONE)?;
        let missing = required.without(supported);
        if !missing.is_empty() {
            return Err(OpenError::Missing { missing });
        }
        let features = required | (wanted & supported);
        let fd = open_fd(route, user_mode_only)?;
        agree(&fd, features)?;
        Ok(Userfaultfd::from_parts(fd, features))
    }
}

/// Tells the kernel which features we want; which it has is the answer.
fn agree(fd: &OwnedFd, features: Features) -> Result<Features, OpenError> {
    let mut api = raw::uffdio_api {
        api: u64::from(raw::UFFD_API),
        features: features.0,
        ioctls: 0,
    };
    match api.send(fd) {
        Ok(()) => Ok(Features(api.features)),
        Err(Errno::PERM) if features.contains(Features::EVENT_FORK) => {
            Err(OpenError::ForkNotPermitted)
        }
        Err(source) => Err(OpenError::Api { features, source }),
    }
}

fn open_fd(route: Route, user_mode_only: bool) -> Result<OwnedFd, OpenError> {
    let by_syscall = match route {
        Route::Device => None,
        _ => Some(by_syscall(user_mode_only)),
    };
    let syscall = match by_syscall {
        Some(Ok(fd)) => return Ok(fd),
        Some(Err(errno)) if route == Route::Syscall => return Err(explain("system call", errno)),
        Some(Err(errno)) => Some(errno),
        None => None,
    };
    match (by_device(user_mode_only), syscall) {
        (Ok(fd), _) => Ok(fd),
        (Err(device), None) => Err(explain("device /dev/userfaultfd", device)),
        (Err(Errno::NOENT), Some(Errno::NOSYS)) => Err(OpenError::NotHere),
        (Err(device), Some(syscall @ (Errno::PERM | Errno::ACCESS))) => {
            Err(OpenError::NotPermitted { syscall, device })
        }
        (Err(_), Some(syscall)) => Err(explain("system call", syscall)),
    }
}

fn explain(route: &'static str, source: Errno) -> OpenError {
    match source {
        Errno::NOSYS => OpenError::NotHere,
        source => OpenError::Open { route, source },
    }
}

fn flags(user_mode_only: bool) -> u32 {
    let base = (UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK).bits();
    if user_mode_only {
        base | raw::UFFD_USER_MODE_ONLY
    } else {
        base
    }
}

fn by_syscall(user_mode_only: bool) -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::from_bits_retain(flags(user_mode_only));
    // SAFETY: the descriptor by itself does nothing; ranges are handed to it by `register`, which
    // is unsafe and says so.
    unsafe { rustix::mm::userfaultfd(flags) }
}

fn by_device(user_mode_only: bool) -> Result<OwnedFd, Errno> {
    let device = match HANDED.load(Ordering::Acquire) {
        -1 => {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::open(crate::own::rooted(DEVICE), flags, Mode::empty())?
        }
        // SAFETY: kept open since it was handed over.
        handed => rustix::io::dup(unsafe { BorrowedFd::borrow_raw(handed) })?,
    };
    let request = NewDescriptor {
        flags: flags(user_mode_only),
    };
    // SAFETY: `NewDescriptor` is the request of this device; see there.
    unsafe { rustix::ioctl::ioctl(&device, request) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_says_what_to_do() {
        let refused = OpenError::NotPermitted {
            syscall: Errno::PERM,
            device: Errno::ACCESS,
        };
        assert_eq!(
            refused.to_string(),
            "userfaultfd is not permitted (system call: Operation not permitted (os error 1); \
             /dev/userfaultfd: Permission denied (os error 13)). One of these allows it: run as \
             root or with CAP_SYS_PTRACE; give the user access to /dev/userfaultfd (chmod or a \
             udev rule); or set vm.unprivileged_userfaultfd=1"
        );
        let missing = OpenError::Missing {
            missing: Features::MOVE,
        };
        assert_eq!(
            missing.to_string(),
            "this kernel's userfaultfd lacks MOVE; Linux 6.8 or newer has it"
        );
    }
}
