//! Locks and condition variables that lie in far pages themselves: the futex call faults.

use crate::args::Args;
use crate::calls;
use crate::span::{Dice, PAGE, Span};
use crate::{Outcome, ok};
use std::sync::atomic::{AtomicU32, Ordering};

/// At the start of a page; the rest of the page is what it guards.
#[repr(C)]
struct Guarded {
    lock: libc::pthread_mutex_t,
    changed: libc::pthread_cond_t,
    /// Whose turn it is, and how often it was anybody's.
    turns: u64,
    generation: u32,
}

const HEAD: usize = 256;

fn guarded(span: &Span, page: usize) -> *mut Guarded {
    (span.at + page * PAGE) as *mut Guarded
}

pub fn futex(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    const _: () = assert!(size_of::<Guarded>() <= HEAD);
    let pages = span.pages();
    let body = |page: usize| span.part(page * PAGE + HEAD, PAGE - HEAD);
    for page in 0..pages {
        // SAFETY: fresh zero memory of ours, a page for each.
        unsafe {
            let spot = guarded(&span, page);
            libc::pthread_mutex_init(&raw mut (*spot).lock, std::ptr::null());
            libc::pthread_cond_init(&raw mut (*spot).changed, std::ptr::null());
        }
    }
    let rounds = pages * 2 / args.threads;
    let counted = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.threads)
            .map(|n| {
                let seed = args.seed + n as u64;
                scope.spawn(move || work(&span, rounds, Dice::new(seed), &body))
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .map(|result| result.map_err(|_| "a worker panicked".to_string())?)
            .sum::<Result<u64, String>>()
    })?;
    // SAFETY: the workers are gone.
    let turns: u64 = (0..pages)
        .map(|page| unsafe { (*guarded(&span, page)).turns })
        .sum();
    if turns != counted {
        return Err(format!(
            "{counted} turns were taken under locks, {turns} are counted"
        ));
    }
    ping_pong(&span, pages)?;
    raw_wait(&span)?;
    ok(format!("{turns} locked changes over {pages} pages"))
}

/// Takes locks at random, checks what they guard and changes it.
fn work(
    span: &Span,
    rounds: usize,
    mut dice: Dice,
    body: &(dyn Fn(usize) -> Span + Sync),
) -> Result<u64, String> {
    for _ in 0..rounds {
        // A few pages are everybody's: locks that are waited for.
        let page = if dice.below(8) == 0 {
            dice.below(4)
        } else {
            dice.below(span.pages())
        };
        let spot = guarded(span, page);
        // SAFETY: initialised above; the fields are touched with the lock held.
        unsafe {
            libc::pthread_mutex_lock(&raw mut (*spot).lock);
            let generation = (*spot).generation;
            let good = body(page).verify(generation);
            (*spot).generation = generation % 100 + 1;
            (*spot).turns += 1;
            if good.is_ok() {
                body(page).write(generation % 100 + 1);
            }
            libc::pthread_mutex_unlock(&raw mut (*spot).lock);
            good?;
        }
    }
    Ok(rounds as u64)
}

/// Two threads hand a turn back and forth, each time through another far page.
fn ping_pong(span: &Span, pages: usize) -> Result<(), String> {
    let turns = 400.min(pages);
    let spots: Vec<usize> = (0..turns).map(|n| n * (pages / turns)).collect();
    let pass = |first: u64| {
        for &page in &spots {
            let spot = guarded(span, page);
            // SAFETY: initialised; the fields are touched with the lock held.
            unsafe {
                libc::pthread_mutex_lock(&raw mut (*spot).lock);
                while (*spot).turns % 2 != first {
                    libc::pthread_cond_wait(&raw mut (*spot).changed, &raw mut (*spot).lock);
                }
                (*spot).turns += 1;
                libc::pthread_cond_broadcast(&raw mut (*spot).changed);
                libc::pthread_mutex_unlock(&raw mut (*spot).lock);
            }
        }
    };
    for &page in &spots {
        // SAFETY: nobody else uses it now.
        unsafe { (*guarded(span, page)).turns = 0 };
    }
    std::thread::scope(|scope| {
        scope.spawn(|| pass(0));
        scope.spawn(|| pass(1));
    });
    for &page in &spots {
        // SAFETY: the threads are gone.
        let turns = unsafe { (*guarded(span, page)).turns };
        if turns != 2 {
            return Err(format!("page {page} had {turns} turns instead of 2"));
        }
    }
    Ok(())
}

/// A thread sleeps on a word while its page goes far, and is woken all the same.
fn raw_wait(span: &Span) -> Result<(), String> {
    let word = (span.at + span.len / 2 / PAGE * PAGE + PAGE - 8) as *const AtomicU32;
    // SAFETY: mapped memory of ours, used as an atomic from here on.
    let word = unsafe { &*word };
    word.store(0, Ordering::SeqCst);
    let other = Span::map(span.len / 2, span.seed + 5)?;
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while word.load(Ordering::SeqCst) == 0 {
                let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                // SAFETY: a live word and no timeout.
                unsafe {
                    libc::syscall(
                        libc::SYS_futex,
                        word,
                        op,
                        0,
                        std::ptr::null::<libc::timespec>(),
                    )
                };
            }
        });
        other.write(1);
        let checked = other.verify(1);
        word.store(1, Ordering::SeqCst);
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a live word.
        unsafe { libc::syscall(libc::SYS_futex, word, op, i32::MAX) };
        sleeper
            .join()
            .map_err(|_| "the sleeper panicked".to_string())?;
        checked
    })?;
    calls::unmap(other.at, other.len)
}
