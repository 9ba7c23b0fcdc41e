//! The library that puts a pager into an unmodified program.
//!
//! `muninn run` names it in LD_PRELOAD. Before `main` it starts one thread of its own, the steward,
//! and from then on everything happens between our threads and the kernel: no function of the
//! program or of the C library is replaced. A fork is followed by the C library's own hooks.
//!
//! When the program was not started by `muninn run` (no `MUNINN_JOB`), nothing happens at all.

mod heap;
mod hooks;

use muninn_pager::Threads;
use muninn_sys::own;
use std::io;

/// All that this library and what it links allocates comes from here.
#[cfg(not(test))]
#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();
#[cfg(test)]
static HEAP: heap::Heap = heap::Heap::new();

/// Stack of a thread of ours: much is address space only.
const STACK_BYTES: usize = 512 << 10;

struct OwnThreads;

impl Threads for OwnThreads {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let stack = heap::stack(STACK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the stack is new and claimed.
        unsafe { own::spawn(name, stack, STACK_BYTES, work) }
    }
    fn runtime_bytes(&self) -> u64 {
        heap::bytes()
    }
}
