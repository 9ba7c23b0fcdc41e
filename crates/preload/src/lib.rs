//! The library that puts a pager beside an unmodified program.
//!
//! `muninn run` names it in LD_PRELOAD. Before `main` it starts the program's companion, a process that
//! shares the program's memory and nothing else ([`muninn_sys::own`]), and from then on everything
//! happens between that and the kernel. A fork is followed by the C library's own hooks. Functions of the
//! C library are replaced: `madvise` for what the kernel does not tell of, those that execute programs, which
//! are to have a pager, too ([`exec`]), those that make threads and robust mutexes for what the kernel
//! writes to when a thread ends ([`threads`]), and `getenv` for what a virtual machine is told of the limit.
//!
//! When the program was not started by `muninn run` (no `MUNINN_JOB`), nothing happens at all.

#[cfg(not(test))]
mod exec;
mod heap;
mod hooks;
mod limits;
mod threads;
mod tune;

use muninn_pager::Threads;
use muninn_sys::own::{self, Room};
use std::cell::UnsafeCell;
use std::io;

/// All that this library and what it links allocates comes from here.
#[cfg(not(test))]
#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();
#[cfg(test)]
static HEAP: heap::Heap = heap::Heap::new();

/// Stack of a thread of ours: much is address space only.
const STACK_BYTES: usize = 512 << 10;
const MIDWIFE_BYTES: usize = 32 << 10;

/// A stack for the few moments that a companion takes to be made.
#[repr(align(4096))]
struct MidwifeStack(UnsafeCell<[u8; MIDWIFE_BYTES]>);

// SAFETY: used by one task at a time: companions are made when the library is loaded, and by the only
// thread of a child.
unsafe impl Sync for MidwifeStack {}

static MIDWIFE_STACK: MidwifeStack = MidwifeStack(UnsafeCell::new([0; MIDWIFE_BYTES]));

fn room() -> io::Result<Room> {
    let len = STACK_BYTES + own::storage_bytes();
    let start = heap::stack(len).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: the memory is new and claimed.
    Ok(unsafe { Room::new(start, len) })
}

/// Starts the companion of this process, from a thread of the program.
fn start_companion(work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let room = room()?;
    let stack = MIDWIFE_STACK.0.get().cast::<u8>();
    // SAFETY: the end of a stack that is used by one midwife at a time.
    let started = unsafe { own::start_companion(&room, stack.add(MIDWIFE_BYTES), work) };
    Ok(started?)
}

struct OwnThreads;

impl Threads for OwnThreads {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Ok(own::spawn(name, &room()?, work)?)
    }
    fn runtime_bytes(&self) -> u64 {
        heap::bytes()
    }
}
