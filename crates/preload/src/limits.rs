//! The C library's functions about limits, led through [`muninn_sys::own::ceiling`].

#![cfg(not(test))]

use crate::hooks::is_on;
use muninn_sys::own::calls;
use muninn_sys::own::ceiling::{self, Limit};
use std::ffi::c_int;
use std::ptr::{null, null_mut};

/// # Safety
///
/// As the C library says of `prlimit`.
unsafe fn limit(pid: c_int, resource: c_int, new: *const Limit, old: *mut Limit) -> c_int {
    // SAFETY: as the caller says.
    calls::answer(unsafe { ceiling::limit(pid, resource, new, old, is_on()) }) as c_int
}

/// # Safety
///
/// As the C library says of each of these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: c_int,
    resource: c_int,
    new: *const Limit,
    old: *mut Limit,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { limit(pid, resource, new, old) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: c_int,
    resource: c_int,
    new: *const Limit,
    old: *mut Limit,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { limit(pid, resource, new, old) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_int, new: *const Limit) -> c_int {
    // SAFETY: as the caller says.
    unsafe { limit(0, resource, new, null_mut()) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_int, new: *const Limit) -> c_int {
    // SAFETY: as the caller says.
    unsafe { limit(0, resource, new, null_mut()) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: c_int, old: *mut Limit) -> c_int {
    // SAFETY: as the caller says.
    unsafe { limit(0, resource, null(), old) }
}

/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(resource: c_int, old: *mut Limit) -> c_int {
    // SAFETY: as the caller says.
    unsafe { limit(0, resource, null(), old) }
}
