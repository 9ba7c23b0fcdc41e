//! Threads and memory of our own inside of somebody else's program.
//!
//! A pager in an unmodified program must not live in what it manages: a handler whose stack is far
//! waits for itself. So its threads run on stacks that it brings, in a process beside the program's
//! that shares nothing with it but memory ([`task`]), and every range of memory it uses is *claimed*
//! here, so that it is never taken over.
//!
//! Invariant: nothing in this module allocates from the program's heap.

pub(crate) mod addresses;
mod advice;
mod alarm;
pub mod calls;
pub mod ceiling;
mod environment;
pub mod exec;
mod imports;
mod place;
mod program;
pub mod staying;
mod storage;
mod task;
pub mod threads;

use std::ffi::{CString, c_void};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

pub use advice::{advise, advise_ranges, guards_begin, has_guards, tells_of_forks};
pub use environment::{getenv, learn_getenv, loaded_library};
pub use imports::lead_past_program;
pub(crate) use place::rooted_path;
pub use place::{enter_root, is_listed_otherwise, learn_listed, listed_pid, pid_namespace, rooted};
pub use program::{Fate, Program};
pub use storage::{bytes as storage_bytes, learn as learn_storage};
pub use task::Room;

use crate::affinity::Thread;
use rustix::io::Errno;

/// Ranges that can be claimed.
const CLAIMS_MAX: usize = 64;

struct Claim {
    start: AtomicU64,
    end: AtomicU64,
}

static CLAIMS: [Claim; CLAIMS_MAX] = [const {
    Claim {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
    }
}; CLAIMS_MAX];
static CLAIMED: AtomicUsize = AtomicUsize::new(0);

/// Declares memory as ours for the life of the process. False when there is no place for it.
pub fn claim(start: u64, len: u64) -> bool {
    let at = CLAIMED.fetch_add(1, Ordering::AcqRel);
    let Some(claim) = CLAIMS.get(at) else {
        return false;
    };
    claim.start.store(start, Ordering::Relaxed);
    claim.end.store(start + len, Ordering::Release);
    true
}

/// The first part of a range of addresses that was not claimed. The kernel joins neighbouring
/// mappings of one kind, so a mapping of the program may well have a part that is ours.
pub fn first_unclaimed(start: u64, end: u64) -> Option<(u64, u64)> {
    let mut first = start;
    let mut last = end;
    // Claims are few and in no order: begin anew whenever one moved the beginning.
    'again: while first < end {
        last = end;
        for claim in &CLAIMS {
            let claim_end = claim.end.load(Ordering::Acquire);
            let claim_start = claim.start.load(Ordering::Relaxed);
            if claim_start <= first && first < claim_end {
                first = claim_end;
                continue 'again;
            }
            if claim_start > first && claim_end > claim_start {
                last = last.min(claim_start);
            }
        }
        break;
    }
    (first < last).then_some((first, last))
}

/// All that was claimed.
fn claimed_bytes() -> u64 {
    let bytes = |claim: &Claim| {
        let end = claim.end.load(Ordering::Acquire);
        end.saturating_sub(claim.start.load(Ordering::Relaxed))
    };
    CLAIMS.iter().map(bytes).sum()
}

/// Forgets all claims: a child of a fork begins anew.
pub fn reset_claims() {
    for claim in &CLAIMS {
        claim.end.store(0, Ordering::Relaxed);
        claim.start.store(0, Ordering::Relaxed);
    }
    CLAIMED.store(0, Ordering::Release);
    addresses::forget();
    ceiling::forget();
    place::forget_listed();
}

type Work = Box<dyn FnOnce() + Send>;

/// What a task of ours is made of: its name, and what it does.
struct Job {
    name: CString,
    work: Work,
}

impl Job {
    fn boxed(name: &str, work: Work) -> *mut c_void {
        let name = CString::new(name).unwrap_or_default();
        Box::into_raw(Box::new(Job { name, work })).cast()
    }
}

/// Starts a thread of the companion's.
pub fn spawn(name: &str, room: &Room, work: Work) -> Result<(), Errno> {
    let job = Job::boxed(name, work);
    // SAFETY: `run_thread` takes what was made here, in one thread.
    let started = unsafe { task::thread(room, run_thread, job) };
    started.map(|_| ()).inspect_err(|_| {
        // SAFETY: there is no thread that would take it.
        drop(unsafe { Box::from_raw(job.cast::<Job>()) });
    })
}

/// Starts the companion of this process, from a thread of the program; see [`task`].
///
/// # Safety
///
/// The calling thread must be one of the program's, and `midwife_stack` the end of a stack of a few
/// pages that nobody else uses until this returns.
pub unsafe fn start_companion(
    room: &Room,
    midwife_stack: *mut u8,
    work: Work,
) -> Result<(), Errno> {
    let job = Job::boxed("muninn-steward", work);
    // SAFETY: `run_companion` takes what was made here, in one task.
    let started = unsafe { task::companion(room, midwife_stack, run_companion, job) };
    started.inspect_err(|_| {
        // SAFETY: there is no task that would take it.
        drop(unsafe { Box::from_raw(job.cast::<Job>()) });
    })
}

extern "C" fn run_companion(job: *mut c_void) -> ! {
    task::settle();
    run(job);
    end_companion()
}

extern "C" fn run_thread(job: *mut c_void) -> ! {
    run(job);
    task::exit_task()
}

fn run(job: *mut c_void) {
    // SAFETY: made for this task alone.
    let Job { name, work } = *unsafe { Box::from_raw(job.cast::<Job>()) };
    let _ = rustix::thread::set_name(&name);
    work();
}

/// Ends the companion, all of its threads.
pub fn end_companion() -> ! {
    loop {
        // SAFETY: ends this process, which shares the program's memory and nothing else.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}

fn last_errno() -> Errno {
    let number = io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}

/// How much sooner than others a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Before ordinary threads whenever it has something to do. Only for little work; threads that it
    /// starts begin so, too.
    Immediate,
    /// A larger share than ordinary threads.
    Raised,
    /// Only while no ordinary thread wants the processor.
    Behind,
}

/// Sets the priority of a thread of this process, as far as this user may.
pub fn set_priority(thread: Thread, priority: Priority) -> bool {
    let thread = thread.number();
    let schedule = |policy, sched_priority| {
        let parameters = libc::sched_param { sched_priority };
        // SAFETY: plain system call on a thread's number.
        unsafe { libc::sched_setscheduler(thread, policy, &parameters) == 0 }
    };
    match priority {
        Priority::Behind => return schedule(libc::SCHED_IDLE, 0),
        Priority::Immediate if schedule(libc::SCHED_FIFO, 1) => return true,
        _ => {}
    }
    // SAFETY: plain system call on a thread's number.
    let raised = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as u32, -15) == 0 };
    schedule(libc::SCHED_OTHER, 0) && raised
}

/// The process whose memory this is: the program's, for its companion; else this one.
pub fn program_pid() -> u32 {
    match task::program_pid() {
        0 => std::process::id(),
        pid => pid,
    }
}

/// How long a program that was sent a signal may take to end.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long a signal that may be blocked is waited for.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(200);

/// Ends the program by a signal, whatever it does with that signal, and then its companion: not
/// before, as absent pages would read as zeros once nobody answers for them.
pub fn end_program(signal: i32) -> ! {
    let program = Program::watch();
    // SAFETY: the default action is set, for the program too, and the signal sent; neither touches
    // memory of ours.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, std::ptr::null_mut());
        libc::kill(program_pid() as i32, signal);
    }
    let ended = |patience| {
        program
            .as_ref()
            .is_none_or(|p| p.wait(patience) != Fate::Runs)
    };
    if !ended(SIGNAL_PATIENCE) {
        // Threads that have the signal blocked leave it to others; if all do, by force.
        // SAFETY: as above.
        unsafe { libc::kill(program_pid() as i32, libc::SIGKILL) };
        ended(END_PATIENCE);
    }
    end_companion()
}

/// Says why, and ends the calling process at once, as if its program had never begun.
pub fn refuse(why: &str, code: i32) -> ! {
    // SAFETY: plain system calls; nobody is waited for.
    unsafe {
        libc::write(2, why.as_ptr().cast(), why.len());
        libc::_exit(code)
    }
}

/// Allows huge pages in this process from now on, or asks for ordinary ones only. Kept across fork
/// and exec.
pub fn set_huge_pages(allow: bool) {
    // Where the kernel has no such switch, things go a little slower.
    let _ = rustix::thread::disable_transparent_huge_pages(!allow);
}

/// No memory of this process is locked any more, nor will new memory be.
pub fn unlock_all() {
    // SAFETY: a plain system call; contents stay as they are.
    unsafe { libc::munlockall() };
}

/// Whether this process may have huge pages.
pub fn has_huge_pages() -> bool {
    rustix::thread::transparent_huge_pages_are_disabled() == Ok(false)
}

/// Ends another process at once.
pub fn end_other(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// What a fork calls in the thread that forks: before, and after in parent and child.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> bool {
    // SAFETY: the functions live as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_left_out() {
        assert!(claim(0x50_000, 0x1000));
        assert!(claim(0x53_000, 0x2000));
        let mut parts = Vec::new();
        let mut from = 0x50_000;
        while let Some((first, last)) = first_unclaimed(from, 0x58_000) {
            parts.push((first, last));
            from = last;
        }
        assert_eq!(parts, [(0x51_000, 0x53_000), (0x55_000, 0x58_000)]);
        assert_eq!(first_unclaimed(0x53_000, 0x55_000), None);
        assert_eq!(
            first_unclaimed(0x10_000, 0x11_000),
            Some((0x10_000, 0x11_000))
        );
    }
}
