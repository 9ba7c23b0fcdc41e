//! Handlers that touch memory of their own, on a stack that may be far itself.

use crate::actor::wrong;
use crate::calls::{self, check};
use crate::dice::{Digest, mix, nth};
use crate::model::{Content, PAGE};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Written once, before the first step.
const WATCHED: usize = 256;
const STACK: usize = 32 * PAGE;

const TICK_US: i64 = 3000;

static WATCHED_AT: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);

fn watched(page: usize) -> Content {
    Content::of(nth(0x5741_5443, page as u64) | 1)
}

/// Which pages it looks at differs from run to run; what it finds there does not.
extern "C" fn handler(_: i32) {
    let at = WATCHED_AT.load(Ordering::SeqCst);
    let n = HANDLED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the place of this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    for round in 0..2 {
        let page = mix(n * 2 + round) as usize % WATCHED;
        // Nothing is allocated unless something is wrong; threads have small stacks for handlers.
        let content = watched(page);
        if !content.is_at(at + page * PAGE) {
            let text = content.check(at + page * PAGE, &mut Digest(0));
            wrong(&format!("in a signal handler: page {page}: {text:?}"));
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Before anything else, on the main thread.
pub fn prepare() -> Result<(), String> {
    let at = calls::map(WATCHED * PAGE)?;
    (0..WATCHED).for_each(|page| watched(page).write(at + page * PAGE));
    WATCHED_AT.store(at, Ordering::SeqCst);
    let stack = libc::stack_t {
        ss_sp: calls::map(STACK)? as *mut _,
        ss_flags: 0,
        ss_size: STACK,
    };
    // SAFETY: fresh memory that stays mapped.
    let answer = unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
    check("sigaltstack", answer.into())?;
    for signal in [libc::SIGUSR1, libc::SIGALRM] {
        // SAFETY: a zeroed action with its handler set is complete; the handler only loads memory.
        let answer = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(i32) as usize;
            action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        check("sigaction", answer.into())?;
    }
    Ok(())
}

/// To this very thread, also in a child that libc does not know.
pub fn raise(count: u8) -> Result<(), String> {
    for _ in 0..count {
        // SAFETY: plain calls.
        let answer = unsafe {
            let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
            libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1)
        };
        check("tgkill", answer)?;
    }
    Ok(())
}

pub fn timer(on: bool) -> Result<(), String> {
    let tick = libc::timeval {
        tv_sec: 0,
        tv_usec: if on { TICK_US } else { 0 },
    };
    let timer = libc::itimerval {
        it_interval: tick,
        it_value: tick,
    };
    // SAFETY: a plain struct.
    let answer = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    check("setitimer", answer.into()).map(|_| ())
}
