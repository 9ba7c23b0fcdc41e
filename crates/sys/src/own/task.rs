//! Tasks of our own: made by the kernel alone, unknown to the C library and to the program.
//!
//! The runtime of a process is not a thread of it. It is a process of its own that shares the
//! program's memory and nothing else: its *companion*. So the program stays as single-threaded as it
//! was (`unshare`, `setns`, filters that are put on all threads, the number of its threads), the
//! C library's lists of threads do not know of us (`setuid`, `fork`, the fast paths of stdio), its
//! open files, working directory, root, credentials and signals are not ours, and what it waits for
//! is never us.
//!
//! ```text
//!  program's thread ── clone(VM, VFORK) ──► midwife: closes its copy of all files
//!         │ waits                              └── clone(VM, FILES, SIGHAND) ──► companion
//!         ◄──────────────────── ends ─────────────┘            its parent has ended: the launcher's
//! ```
//!
//! The program's thread goes on when the midwife has ended, so at no time does anybody notice that an
//! open file had a second owner. Signal *handlers* are shared, so that the companion can end the
//! program by a signal whatever the program does with it; all signals are blocked in the companion.
//!
//! Known limit: the first process of a pid namespace is given all orphans of it, and so is one that asked for them
//! (PR_SET_CHILD_SUBREAPER). Its own companion stays its child, of the kind that `wait` passes over; those of its
//! children are orphans like any other, and it may wait for one of them.

use super::storage;
use rustix::io::Errno;
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// What a task runs; it must not return.
pub(super) type Entry = extern "C" fn(*mut c_void) -> !;

const NO_SIGNAL: c_int = 0;
/// A task that shares memory, on its way to be a process of its own. Who traces the program does not trace it,
/// or the pager would stand still whenever the program does.
const MIDWIFE: c_int =
    libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_VFORK | libc::CLONE_UNTRACED | NO_SIGNAL;
const COMPANION: c_int =
    libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_SETTLS | libc::CLONE_UNTRACED;
/// A thread beside another of the companion's.
const THREAD: c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_UNTRACED;

/// How often a task is tried to be made that cannot be at the moment, and how long to wait.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);
/// How long a companion may take to close its copies of files.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes a task that runs `entry(argument)` on a stack, with a descriptor of its own or, if that is
/// 0, with the caller's.
///
/// # Safety
///
/// `top` is the end of a stack that nobody else uses, aligned to 16 bytes; `descriptor` was built by
/// [`storage::build`]; what `entry` does with its argument is sound in a task of these flags.
unsafe fn clone(
    flags: c_int,
    top: *mut u8,
    descriptor: usize,
    entry: Entry,
    argument: *mut c_void,
) -> Result<i32, Errno> {
    let result: isize;
    // SAFETY: two words below the top are the stack's; the new task takes both off it, calls the
    // entry with an aligned stack and never comes back here.
    unsafe {
        let words = top.sub(16).cast::<usize>();
        words.write(argument.expose_provenance());
        words.add(1).write(entry as *const () as usize);
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rdi",
            "pop rax",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags as c_ulong,
            in("rsi") words,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") descriptor,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    match result {
        1.. => Ok(result as i32),
        _ => Err(Errno::from_raw_os_error(-result as i32)),
    }
}

/// The same, tried again while the kernel says that it cannot be done now.
///
/// # Safety
///
/// As for [`clone`].
unsafe fn clone_patiently(
    flags: c_int,
    top: *mut u8,
    descriptor: usize,
    entry: Entry,
    argument: *mut c_void,
) -> Result<i32, Errno> {
    let mut tries = 0;
    loop {
        // SAFETY: the caller's promise.
        match unsafe { clone(flags, top, descriptor, entry, argument) } {
            Err(Errno::AGAIN) if tries < TRIES => tries += 1,
            result => return result,
        }
        std::thread::sleep(PAUSE);
    }
}

/// Memory for a task: its storage at the end, its stack below.
#[derive(Debug)]
pub struct Room {
    start: *mut u8,
    len: usize,
}

impl Room {
    /// # Safety
    ///
    /// `len` bytes of claimed memory from `start` on, zeros, aligned to pages, that nobody else ever
    /// uses.
    pub unsafe fn new(start: *mut u8, len: usize) -> Room {
        assert!(len > 2 * storage::bytes(), "too small for a stack");
        Room { start, len }
    }

    /// The end of the stack, and the descriptor.
    fn build(&self) -> (*mut u8, usize) {
        // SAFETY: inside of the room, by the assertion above; see `new` for the rest.
        unsafe {
            let top = self.start.add(self.len - storage::bytes());
            (top, storage::build(top))
        }
    }
}

/// Starts a thread of the companion, from the companion.
///
/// # Safety
///
/// `entry` takes `argument`, and only once.
pub(super) unsafe fn thread(
    room: &Room,
    entry: Entry,
    argument: *mut c_void,
) -> Result<i32, Errno> {
    let (top, descriptor) = room.build();
    // SAFETY: a room is one task's own; the rest is the caller's promise.
    unsafe { clone_patiently(THREAD, top, descriptor, entry, argument) }
}

/// What a midwife is to do.
struct Birth {
    top: *mut u8,
    descriptor: usize,
    entry: Entry,
    argument: *mut c_void,
    result: AtomicI32,
}

extern "C" fn midwife(birth: *mut c_void) -> ! {
    // SAFETY: the thread that made us waits, and has the value on its stack.
    let birth = unsafe { &*birth.cast::<Birth>() };
    let flags = COMPANION | libc::CLONE_FILES | libc::SIGCHLD;
    let made = close_all_files().and_then(|()| {
        // SAFETY: handed on from `companion`.
        unsafe {
            clone_patiently(
                flags,
                birth.top,
                birth.descriptor,
                birth.entry,
                birth.argument,
            )
        }
    });
    let result = made.unwrap_or_else(|errno| -errno.raw_os_error());
    birth.result.store(result, Ordering::Release);
    exit_task()
}

/// Closes every file of the calling task's table.
fn close_all_files() -> Result<(), Errno> {
    // SAFETY: a plain system call on a table that nobody else uses.
    match unsafe { libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, 0u32) } {
        0 => Ok(()),
        _ => Err(super::last_errno()),
    }
}

/// Ends the calling task and no other.
pub(super) fn exit_task() -> ! {
    loop {
        // SAFETY: ends the task.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// The process whose memory this is: the program's.
static PROGRAM: AtomicU32 = AtomicU32::new(0);
/// A companion without a midwife has closed its copies of files.
static CLOSED: AtomicU32 = AtomicU32::new(0);

/// The program beside which the caller runs, as its companion knows it.
pub(super) fn program_pid() -> u32 {
    PROGRAM.load(Ordering::Acquire)
}

/// Starts the companion of this process, from a thread of the program.
///
/// # Safety
///
/// As for [`thread`]; the calling thread must be one of the program's.
pub(super) unsafe fn companion(
    room: &Room,
    midwife_stack: *mut u8,
    entry: Entry,
    argument: *mut c_void,
) -> Result<(), Errno> {
    let (top, descriptor) = room.build();
    PROGRAM.store(std::process::id(), Ordering::Release);
    let signals = BlockedSignals::all();
    // SAFETY: the caller's promise.
    let started = unsafe {
        match std::process::id() == 1 || adopts_orphans() {
            true => alone(top, descriptor, entry, argument),
            false => with_midwife(top, descriptor, midwife_stack, entry, argument),
        }
    };
    drop(signals);
    started
}

/// # Safety
///
/// As for [`companion`].
unsafe fn with_midwife(
    top: *mut u8,
    descriptor: usize,
    stack: *mut u8,
    entry: Entry,
    argument: *mut c_void,
) -> Result<(), Errno> {
    let birth = Birth {
        top,
        descriptor,
        entry,
        argument,
        result: AtomicI32::new(-libc::EAGAIN),
    };
    let pointer = (&raw const birth).cast_mut().cast();
    // SAFETY: the midwife uses the value while this thread waits for it, and this thread's storage.
    let midwife = unsafe { clone_patiently(MIDWIFE, stack, 0, midwife, pointer) }?;
    let mut status = 0;
    // SAFETY: our own child, of the kind that others do not wait for.
    unsafe { libc::waitpid(midwife, &mut status, libc::__WALL) };
    match birth.result.load(Ordering::Acquire) {
        1.. => Ok(()),
        failed => Err(Errno::from_raw_os_error(-failed)),
    }
}

/// Whether the orphans of this process's descendants become its children.
fn adopts_orphans() -> bool {
    matches!(rustix::process::child_subreaper(), Ok(Some(_)))
}

/// # Safety
///
/// As for [`companion`].
unsafe fn alone(
    top: *mut u8,
    descriptor: usize,
    entry: Entry,
    argument: *mut c_void,
) -> Result<(), Errno> {
    CLOSED.store(0, Ordering::Release);
    // SAFETY: the caller's promise.
    unsafe { clone_patiently(COMPANION | NO_SIGNAL, top, descriptor, entry, argument) }?;
    let began = crate::clock::now();
    while CLOSED.load(Ordering::Acquire) == 0 {
        if crate::clock::now().saturating_sub(began).0 > PATIENCE.as_nanos() as u64 {
            return Err(Errno::TIMEDOUT);
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    Ok(())
}

/// What a companion does first of all: it leaves the program's session, folder and files.
pub(super) fn settle() {
    // With a midwife there is nothing left to close.
    let _ = close_all_files();
    CLOSED.store(1, Ordering::Release);
    // A library that prints must not print into one of our sockets.
    for _ in 0..3 {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())
            .or_else(|_| rustix::fs::memfd_create(c"null", rustix::fs::MemfdFlags::CLOEXEC));
        std::mem::forget(null);
    }
    // What is sent to the program's group is not for us, and its folder may be unmounted.
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    super::place::begin();
}

/// All signals are blocked for the calling thread, and for what it starts.
struct BlockedSignals(u64);

impl BlockedSignals {
    /// By the system call itself: the C library would leave its own signals out.
    fn all() -> BlockedSignals {
        BlockedSignals(set_mask(u64::MAX))
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both masks have the eight bytes that are named.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            8usize,
        )
    };
    before
}
