//! A signal stack that is large enough to do real work in a handler.
//!
//! The stack that the Rust runtime gives a thread for signals is a few pages: enough to report an
//! overflow, too little to fetch a page over a network. Invariant: the stack stays mapped as long as
//! the thread may take a signal on it; dropping puts the previous one back first.

use crate::memory::{Mapping, MemoryError};
use muninn_types::Bytes;
use std::cell::RefCell;
use std::mem::MaybeUninit;

#[derive(Debug)]
struct AltStack {
    _stack: Mapping,
    previous: libc::stack_t,
}

impl Drop for AltStack {
    fn drop(&mut self) {
        // SAFETY: the previous stack was in use before and its owner outlives this thread-local.
        unsafe { libc::sigaltstack(&self.previous, std::ptr::null_mut()) };
    }
}

thread_local! {
    static STACK: RefCell<Option<AltStack>> = const { RefCell::new(None) };
}

/// Gives the calling thread a signal stack of this size until it ends. Cheap when it has one.
pub fn ensure(size: Bytes) -> Result<(), MemoryError> {
    STACK.with(|stack| {
        let mut stack = stack.borrow_mut();
        if stack.is_none() {
            *stack = Some(install(size)?);
        }
        Ok(())
    })
}

fn install(size: Bytes) -> Result<AltStack, MemoryError> {
    let mapping = Mapping::anonymous(size)?;
    let ours = libc::stack_t {
        ss_sp: mapping.as_ptr().cast(),
        ss_flags: 0,
        ss_size: mapping.len(),
    };
    let mut previous = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: the range is mapped and ours; the kernel fills `previous` when it returns 0.
    let set = unsafe { libc::sigaltstack(&ours, previous.as_mut_ptr()) };
    if set != 0 {
        return Err(MemoryError::Map {
            what: "a signal stack",
            len: size,
            source: rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
                .unwrap_or(rustix::io::Errno::INVAL),
        });
    }
    Ok(AltStack {
        _stack: mapping,
        // SAFETY: filled, as the call succeeded.
        previous: unsafe { previous.assume_init() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_stack_once_and_leaves_cleanly() {
        std::thread::spawn(|| {
            ensure(Bytes::kib(256)).unwrap();
            ensure(Bytes::kib(256)).unwrap();
            let mut now = MaybeUninit::<libc::stack_t>::uninit();
            // SAFETY: a null new stack only asks.
            let asked = unsafe { libc::sigaltstack(std::ptr::null(), now.as_mut_ptr()) };
            assert_eq!(asked, 0);
            // SAFETY: filled, as the call succeeded.
            assert_eq!(unsafe { now.assume_init() }.ss_size, 256 << 10);
        })
        .join()
        .unwrap();
    }
}
