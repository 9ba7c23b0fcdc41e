//! In the place of functions of the C library, because of what the kernel writes to when a thread ends
//! ([`muninn_sys::own::threads`]).

#![cfg(not(test))]

use muninn_sys::own::calls;
use muninn_sys::own::threads::{self, Start};
use std::ffi::{c_int, c_void};

use crate::hooks::is_on;

/// # Safety
///
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { threads::create(thread, attributes, start, argument, is_on()) }
}

/// # Safety
///
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut c_void,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { threads::create_c11(thread, start, argument, is_on()) }
}

/// # Safety
///
/// As the C library says. The last three may not have been given: then what is there is handed on, and
/// nobody looks at it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    start: *const c_void,
    stack: *mut c_void,
    flags: usize,
    argument: *mut c_void,
    parent: *mut c_void,
    storage: *mut c_void,
    child: *mut c_void,
) -> isize {
    let rest = [parent, storage, child];
    // SAFETY: as the caller says.
    unsafe { threads::clone(start, stack, flags, argument, rest, is_on()) }
}

/// # Safety
///
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut c_void,
    attributes: *const c_void,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { threads::init_mutex(mutex, attributes, is_on()) }
}

/// # Safety
///
/// As the C library says.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() {
    std::arch::naked_asm!("jmp {call}", call = sym calls::call_kernel)
}
