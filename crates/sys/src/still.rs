//! Bringing the program's threads to a standstill, for a moment.
//!
//! Each thread that runs gets a signal, whose handler waits until the moment is over. A thread that
//! sleeps is left asleep: a signal would end its sleep early, and the program would see that. So
//! afterwards no thread of the program *runs*; one that sleeps may wake up at any time, and whoever
//! needs to know must ask the kernel what has changed.
//!
//! The signal is one of the two that the C library keeps for itself, which is why programs neither
//! block nor handle it. Ours are told apart by their code and by a mark; all others go on to the
//! handler that was there before.
//!
//! A signal that is on its way while the program executes another would end that other one, which has no
//! handler. So ours bear the code of timers: the kernel takes those back when a program is executed, as
//! it does the timers themselves.
//!
//! Known limits: a thread that falls asleep just before its signal comes is woken by it, as by any
//! signal; a program that blocks signals past the C library (Go does, for moments) is asked again; one that
//! comes to execute another program, beyond the point where timers are taken back, in the microsecond
//! between a look at that and its signal is ended by it.

use crate::own;
use crate::proc::writes_later;
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// SIGSETXID of the C library, which takes it for its own only when it was sent by `tgkill`.
const SIGNAL: c_int = 33;
/// The code and the mark of our signals.
const CODE: c_int = libc::SI_TIMER;
const MARK: usize = 0x4d75_6e69_6e6e;
/// How long threads may take to stand still, and how often they are looked at.
const PATIENCE: Duration = Duration::from_millis(30);
const PAUSE: Duration = Duration::from_micros(20);
/// How long a thread that waits for a device or a lock of the kernel is waited for in turn.
const BUSY_PATIENCE: Duration = Duration::from_micros(200);

/// Odd while threads are to stand still.
static ROUND: AtomicU32 = AtomicU32::new(0);
/// The handler before ours, and its flags.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
static BEFORE_FLAGS: AtomicI32 = AtomicI32::new(0);

/// The kernel's own form of a signal's action: the C library refuses to set this one.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

const SA_RESTORER: usize = 0x0400_0000;
const MASK_BYTES: usize = 8;

std::arch::global_asm!(
    ".globl muninn_still_return",
    ".hidden muninn_still_return",
    ".type muninn_still_return, @function",
    "muninn_still_return:",
    "mov eax, 15", // rt_sigreturn
    "syscall",
);

unsafe extern "C" {
    fn muninn_still_return();
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a valid description to a handler that asked for one.
    let (code, value) = unsafe { ((*info).si_code, (*info).si_value().sival_ptr as usize) };
    if code == CODE && value == MARK {
        wait_for_the_end();
        return;
    }
    let before = BEFORE.load(Ordering::Acquire);
    if before == libc::SIG_DFL || before == libc::SIG_IGN {
        return;
    }
    if BEFORE_FLAGS.load(Ordering::Acquire) & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: this is what the kernel would have called, in the same way.
        unsafe { std::mem::transmute::<usize, Handler>(before)(signal, info, context) };
    } else {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(before)(signal) };
    }
}

/// Runs in a handler: no allocation, no lock, no `errno`.
fn wait_for_the_end() {
    let round = ROUND.load(Ordering::Acquire);
    while round % 2 == 1 && ROUND.load(Ordering::Acquire) == round {
        let flags = rustix::thread::futex::Flags::PRIVATE;
        let _ = rustix::thread::futex::wait(&ROUND, flags, round, None);
    }
}

fn action(new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = MaybeUninit::<Action>::zeroed();
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both point to an action or to nothing, and the mask has the size that is named.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            SIGNAL,
            new,
            old.as_mut_ptr(),
            MASK_BYTES,
        )
    };
    match failed {
        // SAFETY: filled by the kernel, and zeros are an action, too.
        0 => Ok(unsafe { old.assume_init() }),
        _ => Err(Errno::INVAL),
    }
}

/// Makes sure that our handler is the one that is called.
fn install() -> Result<(), Errno> {
    let own = on_signal as *const () as usize;
    let now = action(None)?;
    if now.handler == own {
        return Ok(());
    }
    BEFORE.store(now.handler, Ordering::Release);
    BEFORE_FLAGS.store(now.flags as i32, Ordering::Release);
    let flags = (libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK) as usize;
    action(Some(&Action {
        handler: own,
        flags: flags | SA_RESTORER,
        restorer: muninn_still_return as *const () as usize,
        // A thread that is cancelled in the handler would be unwound through it, which ends the program.
        mask: u64::MAX,
    }))?;
    Ok(())
}

fn send(pid: i32, thread: i32) {
    // SAFETY: zeros are a description of a signal.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = SIGNAL;
    info.si_code = CODE;
    #[repr(C)]
    struct OfATimer {
        head: [c_int; 4],
        timer: c_int,
        overrun: c_int,
        value: usize,
    }
    let described: *mut OfATimer = std::ptr::from_mut(&mut info).cast();
    // SAFETY: the layout that the kernel gives signals of timers, within the description's 128 bytes.
    unsafe {
        (*described).value = MARK;
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, SIGNAL, &info);
    }
}

/// What a thread does, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Runs,
    /// Waits for a device or a lock of the kernel, in the middle of a system call.
    Busy,
    Sleeps,
}

/// What a thread does, as `/proc` lists it, and the number by which it knows itself.
fn doing(pid: i32, listed: i32) -> (Doing, i32) {
    let otherwise = own::is_listed_otherwise();
    // What nobody can say of a thread must not be taken for sleep.
    let unknown = (Doing::Runs, listed);
    let mut path = [0; 64];
    let name = if otherwise { "status" } else { "stat" };
    let proc = own::rooted("/proc");
    if write!(&mut path[..], "{proc}/{pid}/task/{listed}/{name}\0").is_err() {
        return unknown;
    }
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else {
        return unknown;
    };
    let mut text = [0; 2048];
    let read = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut text));
    // One that is gone does nothing.
    let Ok(len) = read else {
        return (Doing::Sleeps, listed);
    };
    let text = &text[..len];
    if otherwise {
        let line = |begin: &[u8]| {
            text.split(|&b| b == b'\n')
                .find_map(|l| l.strip_prefix(begin))
        };
        // Its numbers from where `/proc` was made inwards.
        let numbers = line(b"NSpid:").and_then(|numbers| std::str::from_utf8(numbers).ok());
        let last = numbers.and_then(|numbers| numbers.split_ascii_whitespace().last());
        let Some(own) = last.and_then(|last| last.parse().ok()) else {
            return unknown;
        };
        return (Doing::of(line(b"State:\t").and_then(|l| l.first())), own);
    }
    // After the name, which may hold anything.
    let end = text.iter().rposition(|&byte| byte == b')');
    (Doing::of(end.and_then(|end| text.get(end + 2))), listed)
}

impl Doing {
    fn of(state: Option<&u8>) -> Doing {
        match state {
            Some(b'R') | None => Doing::Runs,
            Some(b'D') => Doing::Busy,
            Some(_) => Doing::Sleeps,
        }
    }
}

/// What all threads of the program together do; those that run get a signal, and are `told`.
fn look(
    tasks: &rustix::fd::OwnedFd,
    pid: i32,
    program: Option<&own::Program>,
    told: &mut Vec<i32>,
    waits: &mut impl FnMut(i32) -> bool,
) -> Result<Doing, Errno> {
    rustix::fs::seek(tasks, rustix::fs::SeekFrom::Start(0))?;
    let mut names = [const { MaybeUninit::uninit() }; 2048];
    let mut names = RawDir::new(tasks, &mut names);
    let mut all = Doing::Sleeps;
    while let Some(entry) = names.next() {
        let entry = entry?;
        let name = entry.file_name().to_str().ok();
        let Some(listed) = name.and_then(|name| name.parse().ok()) else {
            continue;
        };
        let (doing, thread) = doing(own::listed_pid() as i32, listed);
        if thread == crate::affinity::current_thread_id() {
            continue;
        }
        match doing {
            Doing::Runs if !waits(thread) => {
                // Another program would not know what to do with it.
                if program.is_some_and(|program| program.wait(Duration::ZERO) != own::Fate::Runs) {
                    return Err(Errno::SRCH);
                }
                send(pid, thread);
                if !told.contains(&thread) {
                    told.push(thread);
                }
                all = Doing::Runs;
            }
            // It may write to pages behind our back: it waits for a lock of the kernel, or with our signal
            // to come falls asleep and wakes up, again and again, in the middle of a system call.
            Doing::Busy if writes_later(listed as u32).unwrap_or(false) => all = Doing::Runs,
            Doing::Sleeps
                if told.contains(&thread)
                    && !waits(thread)
                    && writes_later(listed as u32).unwrap_or(false) =>
            {
                all = Doing::Runs;
            }
            Doing::Busy if all == Doing::Sleeps => all = Doing::Busy,
            _ => {}
        }
    }
    Ok(all)
}

/// The moment in which no thread of the program runs. Ends when it is dropped.
#[derive(Debug)]
pub struct Still(());

impl Still {
    /// Brings the program to a standstill; `None` if it does not come to one, or if `goes_on` says
    /// to give it up. A thread that `waits` for a page counts as one that sleeps: in the middle of a
    /// system call, and with a signal to come, it asks for its page again and again.
    pub fn begin(
        program: Option<&own::Program>,
        mut waits: impl FnMut(i32) -> bool,
        mut goes_on: impl FnMut() -> bool,
    ) -> Option<Still> {
        let pid = own::program_pid() as i32;
        install().ok()?;
        let mut path = [0; 32];
        let (proc, listed) = (own::rooted("/proc"), own::listed_pid());
        write!(&mut path[..], "{proc}/{listed}/task\0").ok()?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
        let tasks = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        ROUND.fetch_add(1, Ordering::AcqRel);
        let still = Still(());
        let began = crate::clock::now();
        let mut told = Vec::new();
        loop {
            if !goes_on() {
                return None;
            }
            let doing = look(&tasks, pid, program, &mut told, &mut waits).ok()?;
            let waited = crate::clock::now().saturating_sub(began);
            let waited = Duration::from_nanos(waited.0);
            match doing {
                Doing::Sleeps => return Some(still),
                Doing::Busy if waited > BUSY_PATIENCE => return Some(still),
                _ if waited > PATIENCE => return None,
                // They may need this very processor.
                _ => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        ROUND.fetch_add(1, Ordering::AcqRel);
        let flags = rustix::thread::futex::Flags::PRIVATE;
        let _ = rustix::thread::futex::wake(&ROUND, flags, i32::MAX as u32);
    }
}

/// A child of a fork is not held by its parent's moment.
pub fn reset() {
    ROUND.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn a_signal_that_is_under_way_does_not_meet_the_next_program() {
        let mut next = std::process::Command::new("/bin/sh");
        next.args(["-c", "grep SigPnd /proc/$$/status"]);
        // SAFETY: plain calls between fork and exec.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut next, || {
                // Blocked, so that it is surely under way.
                let mask = 1u64 << (SIGNAL - 1);
                let old = std::ptr::null_mut::<u64>();
                let call = libc::SYS_rt_sigprocmask;
                libc::syscall(call, libc::SIG_BLOCK, &mask, old, MASK_BYTES);
                send(libc::getpid(), libc::gettid());
                let mut pending = 0u64;
                libc::syscall(libc::SYS_rt_sigpending, &mut pending, MASK_BYTES);
                match pending == mask {
                    true => Ok(()),
                    false => Err(std::io::Error::other("the signal was not sent")),
                }
            });
        }
        let output = next.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.trim(), "SigPnd:\t0000000000000000", "{output:?}");
    }

    /// One test: there is one process, and one moment at a time.
    #[test]
    fn threads_that_run_stand_still_and_sleep_is_not_cut_short() {
        let counted = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let spin = {
            let (counted, stop) = (Arc::clone(&counted), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let sleep = std::thread::spawn(|| {
            let length = libc::timespec {
                tv_sec: 0,
                tv_nsec: 300_000_000,
            };
            // SAFETY: a plain sleep; what is left of it is not asked for.
            unsafe { libc::nanosleep(&length, std::ptr::null_mut()) }
        });
        std::thread::sleep(Duration::from_millis(20));
        let mut reached = 0;
        for _ in 0..50 {
            let Some(still) = Still::begin(None, |_| false, || true) else {
                continue;
            };
            reached += 1;
            let before = counted.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(500));
            assert_eq!(counted.load(Ordering::Relaxed), before);
            drop(still);
        }
        assert!(reached > 0);
        let before = counted.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
        assert!(counted.load(Ordering::Relaxed) > before);
        assert_eq!(sleep.join().unwrap(), 0, "the sleep was cut short");
        stop.store(true, Ordering::Relaxed);
        spin.join().unwrap();
    }
}
