//! Threads and memory of our own inside of somebody else's program.
//!
//! A pager in an unmodified program must not live in what it manages: a handler whose stack is far
//! waits for itself. So its threads run on stacks that it brings, with all signals blocked, with a
//! table of open files of their own (a program that closes all descriptors, or counts them, must not
//! meet ours), and every range of memory it uses is *claimed* here, so that it is never taken over.
//!
//! Invariant: nothing in this module allocates from the program's heap after a thread was started.
//! Known limit: the C library allocates a thread's table of thread-local storage in the program's
//! heap, so threads started here must not use thread-local variables of shared libraries.

use std::ffi::{CString, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

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

/// Forgets all claims: a child of a fork begins anew.
pub fn reset_claims() {
    for claim in &CLAIMS {
        claim.end.store(0, Ordering::Relaxed);
        claim.start.store(0, Ordering::Relaxed);
    }
    CLAIMED.store(0, Ordering::Release);
    for thread in &THREADS {
        thread.store(0, Ordering::Release);
    }
}

/// The runtime's own threads; more than it ever has.
static THREADS: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];

/// The calling thread is one of the runtime's.
pub fn note_own_thread() {
    let own = crate::affinity::current_thread_id();
    let free = |slot: &&AtomicI32| {
        let taken = slot.compare_exchange(0, own, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    let _ = THREADS.iter().find(free);
}

pub(crate) fn is_own_thread(thread: i32) -> bool {
    let known = |slot: &AtomicI32| slot.load(Ordering::Acquire) == thread;
    THREADS.iter().any(known)
}

type Work = Box<dyn FnOnce() + Send>;

/// How often a thread is tried to be started that cannot be at the moment, and how long to wait.
const SPAWN_TRIES: u32 = 100;
const SPAWN_PAUSE: Duration = Duration::from_millis(2);

/// Starts a thread on a stack of ours, with all signals blocked.
///
/// # Safety
///
/// `stack` must be `len` bytes of claimed memory, aligned to pages, that nobody else ever uses.
pub unsafe fn spawn(name: &str, stack: *mut u8, len: usize, work: Work) -> io::Result<()> {
    // A thin pointer to the fat one, for the way through C.
    let work = Box::into_raw(Box::new((CString::new(name).unwrap_or_default(), work)));
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: each call initialises what the next one uses; the stack is the caller's promise; the
    // work is handed to exactly one thread, or taken back when there is none.
    unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack.cast(), len);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let mut start = || {
            libc::pthread_create(
                thread.as_mut_ptr(),
                attributes.as_ptr(),
                run,
                work.cast::<c_void>(),
            )
        };
        let mut failed = start();
        for _ in 0..SPAWN_TRIES {
            if failed != libc::EAGAIN {
                break;
            }
            // It says so itself: a process that forks and ends a lot has its moments.
            std::thread::sleep(SPAWN_PAUSE);
            failed = start();
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if failed != 0 {
            drop(Box::from_raw(work));
            return Err(io::Error::from_raw_os_error(failed));
        }
    }
    Ok(())
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    // SAFETY: made in `spawn` for this thread alone.
    let (name, work) = *unsafe { Box::from_raw(argument.cast::<(CString, Work)>()) };
    let _ = rustix::thread::set_name(&name);
    note_own_thread();
    work();
    std::ptr::null_mut()
}

/// Gives the calling thread a table of open files of its own, with nothing in it but `keep`.
pub fn separate_files(keep: Option<RawFd>) -> Result<(), Errno> {
    // SAFETY: only the table of files is separated, and nothing of this thread is open yet.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }?;
    match keep {
        Some(kept) => {
            close_files(0, kept as u32 - 1)?;
            close_files(kept as u32 + 1, u32::MAX)?;
        }
        None => close_files(0, u32::MAX)?,
    }
    // A library that prints must not print into one of our sockets.
    for _ in 0..3 {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
        if null.as_raw_fd() > 2 {
            break;
        }
        std::mem::forget(null);
    }
    Ok(())
}

fn close_files(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: a plain system call; the descriptors are copies that only this thread sees.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    let number = io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}

/// How much sooner than others a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Before ordinary threads whenever it has something to do. Only for little work.
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
    // Threads that it starts are ordinary again: one with much work that runs before all others
    // would hold everything up.
    let immediate = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    match priority {
        Priority::Behind => return schedule(libc::SCHED_IDLE, 0),
        Priority::Immediate if schedule(immediate, 1) => return true,
        _ => {}
    }
    // SAFETY: plain system call on a thread's number.
    let raised = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as u32, -15) == 0 };
    schedule(libc::SCHED_OTHER, 0) && raised
}

/// Ends this process by a signal, whatever the program does with that signal.
pub fn end_process(signal: i32) -> ! {
    // SAFETY: the default action is set and the signal sent; neither touches memory of ours.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, std::ptr::null_mut());
        libc::kill(libc::getpid(), signal);
    }
    // Threads that have the signal blocked (all of ours) leave it to others; if all do, by force.
    std::thread::sleep(Duration::from_millis(200));
    // SAFETY: as above.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// From now on this process ends when `parent`, of which it is a child, does. To be taken back by
/// the same thread.
pub fn end_with_parent(parent: u32) {
    // SAFETY: plain system calls.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // It may have ended before.
        if libc::getppid() as u32 != parent {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    }
}

/// Takes [`end_with_parent`] back.
pub fn outlive_parent() {
    // SAFETY: a plain system call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
}

/// Allows huge pages in this process from now on, or asks for ordinary ones only. Kept across fork
/// and exec.
pub fn set_huge_pages(allow: bool) {
    // Where the kernel has no such switch, things go a little slower.
    let _ = rustix::thread::disable_transparent_huge_pages(!allow);
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
