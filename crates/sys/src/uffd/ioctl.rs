//! The requests of userfaultfd as the kernel numbers them.
//!
//! Each is a struct that goes in and comes back changed, also when the request fails: the field for
//! the progress is then filled in. Invariant: structs come from the kernel's headers by way of
//! `linux-raw-sys`; the numbers, which it lacks in part, are built from their sizes.

use std::ffi::c_void;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, opcode};

const GROUP: u8 = raw::UFFDIO as u8;

const API: Opcode = opcode::read_write::<raw::uffdio_api>(GROUP, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(GROUP, raw::_UFFDIO_REGISTER as u8);
// The kernel defines these two as reads, though they only write.
const UNREGISTER: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_UNREGISTER as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(GROUP, raw::_UFFDIO_WAKE as u8);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(GROUP, raw::_UFFDIO_COPY as u8);
const ZEROPAGE: Opcode =
    opcode::read_write::<raw::uffdio_zeropage>(GROUP, raw::_UFFDIO_ZEROPAGE as u8);
const MOVE: Opcode = opcode::read_write::<raw::uffdio_move>(GROUP, raw::_UFFDIO_MOVE as u8);
const WRITEPROTECT: Opcode =
    opcode::read_write::<raw::uffdio_writeprotect>(GROUP, raw::_UFFDIO_WRITEPROTECT as u8);
const CONTINUE: Opcode =
    opcode::read_write::<raw::uffdio_continue>(GROUP, raw::_UFFDIO_CONTINUE as u8);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(GROUP, raw::_UFFDIO_POISON as u8);
const NEW_DESCRIPTOR: Opcode = opcode::none(raw::USERFAULTFD_IOC as u8, 0);

/// A struct that is the argument of one request.
pub(super) trait Request {
    /// Sends the request; the struct holds the answer, also when it failed.
    fn send(&mut self, fd: impl AsFd) -> Result<(), Errno>;
}

macro_rules! request {
    ($($name:ty => $code:ident),* $(,)?) => {$(
        impl Request for $name {
            fn send(&mut self, fd: impl AsFd) -> Result<(), Errno> {
                // SAFETY: the number below is built from this very struct, so the kernel reads and
                // writes no more than it; what the request does to the memory it names is vouched
                // for where it is built.
                unsafe { rustix::ioctl::ioctl(fd, Updater::<{ $code }, $name>::new(self)) }
            }
        }
    )*};
}

request! {
    raw::uffdio_api => API,
    raw::uffdio_register => REGISTER,
    raw::uffdio_copy => COPY,
    raw::uffdio_zeropage => ZEROPAGE,
    raw::uffdio_move => MOVE,
    raw::uffdio_writeprotect => WRITEPROTECT,
    raw::uffdio_continue => CONTINUE,
    raw::uffdio_poison => POISON,
    Unregister => UNREGISTER,
    WakeUp => WAKE,
}

/// A range to unregister.
#[repr(transparent)]
pub(super) struct Unregister(pub(super) raw::uffdio_range);

/// A range to wake.
#[repr(transparent)]
pub(super) struct WakeUp(pub(super) raw::uffdio_range);

/// Asks `/dev/userfaultfd` for a descriptor.
pub(super) struct NewDescriptor {
    pub(super) flags: u32,
}

// SAFETY: the request takes its flags by value, touches no memory and returns a new descriptor.
unsafe impl Ioctl for NewDescriptor {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW_DESCRIPTOR
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.flags as usize)
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: the request succeeded, so this is a new descriptor nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::ioctl as known;

    #[test]
    fn numbers_agree_with_those_of_the_headers() {
        assert_eq!(API, known::UFFDIO_API);
        assert_eq!(REGISTER, known::UFFDIO_REGISTER);
        assert_eq!(UNREGISTER, known::UFFDIO_UNREGISTER);
        assert_eq!(WAKE, known::UFFDIO_WAKE);
        assert_eq!(COPY, known::UFFDIO_COPY);
        assert_eq!(ZEROPAGE, known::UFFDIO_ZEROPAGE);
        assert_eq!(WRITEPROTECT, known::UFFDIO_WRITEPROTECT);
        assert_eq!(CONTINUE, known::UFFDIO_CONTINUE);
        assert_eq!(MOVE, 0xC028_AA05);
        assert_eq!(NEW_DESCRIPTOR, 0xAA00);
        assert_eq!(POISON, 0xC020_AA08);
    }
}
