//! Handlers that touch far memory, on stacks that are far themselves; and ends by a signal.

use crate::args::Args;
use crate::calls::{self, check};
use crate::span::{Dice, Span, value};
use crate::{Outcome, ok};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

static SPAN_AT: AtomicUsize = AtomicUsize::new(0);
static SPAN_LEN: AtomicUsize = AtomicUsize::new(0);
static SEED: AtomicU64 = AtomicU64::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// Address at which a handler found something wrong.
static WRONG_AT: AtomicUsize = AtomicUsize::new(0);

/// Looks at 16 pages at random: plain loads and a comparison, nothing else.
extern "C" fn handler(_: i32) {
    let n = HANDLED.fetch_add(1, Ordering::SeqCst);
    let len = SPAN_LEN.load(Ordering::SeqCst);
    let seed = SEED.load(Ordering::SeqCst);
    let span = Span::new(SPAN_AT.load(Ordering::SeqCst), len, seed);
    let mut dice = Dice::new(n);
    for _ in 0..16 {
        let word = dice.below(len / 8);
        if span.read(word) != value(seed, 1, word as u64) {
            WRONG_AT.store(span.at + word * 8, Ordering::SeqCst);
        }
    }
}

fn install(signal: i32, on_stack: bool) -> Result<(), String> {
    // SAFETY: a zeroed action with its handler set is complete; the handler only loads memory and
    // atomics.
    let answer = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART | if on_stack { libc::SA_ONSTACK } else { 0 };
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    check("sigaction", answer.into()).map(|_| ())
}

/// A stack for handlers in memory that goes far like any other.
fn alternate_stack() -> Result<(), String> {
    let len = 64 << 10;
    let stack = libc::stack_t {
        ss_sp: calls::map(len)? as *mut _,
        ss_flags: 0,
        ss_size: len,
    };
    // SAFETY: fresh memory that stays mapped.
    let answer = unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
    check("sigaltstack", answer.into()).map(|_| ())
}

pub fn signals(args: &Args) -> Outcome {
    let watched = Span::map(args.size / 2, args.seed)?;
    watched.write(1);
    SPAN_AT.store(watched.at, Ordering::SeqCst);
    SPAN_LEN.store(watched.len, Ordering::SeqCst);
    SEED.store(args.seed, Ordering::SeqCst);
    alternate_stack()?;
    install(libc::SIGUSR1, false)?;
    install(libc::SIGUSR2, true)?;
    install(libc::SIGALRM, true)?;
    let tick = libc::timeval {
        tv_sec: 0,
        tv_usec: 3000,
    };
    let timer = libc::itimerval {
        it_interval: tick,
        it_value: tick,
    };
    // SAFETY: a plain struct.
    let answer = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    check("setitimer", answer.into())?;
    let stop = AtomicBool::new(false);
    // SAFETY: names the calling thread, which outlives those that signal it.
    let main = unsafe { libc::pthread_self() };
    let rounds = args.count as u32;
    let other = Span::map(args.size / 2, args.seed + 1)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                let signal = if n % 2 == 0 {
                    libc::SIGUSR1
                } else {
                    libc::SIGUSR2
                };
                // SAFETY: the thread lives until this scope ends.
                unsafe { libc::pthread_kill(main, signal) };
                std::thread::sleep(std::time::Duration::from_micros(500));
                n += 1;
            }
        });
        let work = scope.spawn(move || {
            alternate_stack()?;
            // A handler may run here as well.
            (0..4).try_for_each(|_| watched.verify(1))
        });
        let wrote = (1..=rounds).try_for_each(|round| {
            other.write(round);
            other.verify(round)
        });
        let read = work.join().map_err(|_| "a thread panicked".to_string());
        stop.store(true, Ordering::SeqCst);
        wrote.and(read?)
    })?;
    // SAFETY: all zeros stops the timer.
    unsafe {
        let none: libc::itimerval = std::mem::zeroed();
        libc::setitimer(libc::ITIMER_REAL, &none, std::ptr::null_mut());
    }
    let handled = HANDLED.load(Ordering::SeqCst);
    match WRONG_AT.load(Ordering::SeqCst) {
        0 if handled > 0 => ok(format!("{handled} signals during {rounds} rounds")),
        0 => Err("no signal arrived".to_string()),
        at => Err(format!("a handler found wrong memory at {at:#x}")),
    }
}

/// Ends by a signal, with much of its memory far.
pub fn crash(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    span.verify(1)?;
    let limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    calls::say(1, "ok crash: now\n");
    // SAFETY: ending here is what was asked for; no core file is wanted.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &limit);
        if args.signal == libc::SIGSEGV {
            // A bad address far from everything.
            (0x10 as *mut u64).write_volatile(1);
        }
        libc::raise(args.signal);
    }
    Err(format!("still here after signal {}", args.signal))
}
