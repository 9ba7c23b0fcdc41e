//! Advice, protection and locks on parts of memory.

use crate::args::Args;
use crate::calls::{self, RW};
use crate::span::{Dice, PAGE, Span, whole};
use crate::{Done, Outcome, ok};

const POPULATE_READ: i32 = 22;
const POPULATE_WRITE: i32 = 23;

pub fn madvise(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    let mut dice = Dice::new(args.seed);
    span.write(1);
    let eighth = whole(span.len / 8);
    let part = |n: usize| span.part(n * eighth, eighth);
    // Dropped: zeros, at once and after a rewrite.
    calls::advise(part(0).at, eighth, libc::MADV_DONTNEED)?;
    for n in 0..64 {
        let page = dice.below(part(1).pages());
        let run = 1 + n % 9;
        let run = run.min(part(1).pages() - page);
        let dropped = part(1).page_range(page, run);
        calls::advise(dropped.at, dropped.len, libc::MADV_DONTNEED)?;
        dropped.verify(0)?;
        dropped.write(1);
    }
    part(1).verify(1)?;
    part(0).verify(0)?;
    part(0).write(2);
    calls::advise(part(0).at, eighth / 2 / PAGE * PAGE, libc::MADV_DONTNEED)?;
    part(0).part(0, eighth / 2 / PAGE * PAGE).verify(0)?;
    // Freed: each page as it was or zero, until it is written again.
    calls::advise(part(2).at, eighth, libc::MADV_FREE)?;
    part(2).verify_or_zero(1)?;
    part(2).write(3);
    // Freed and rewritten before anybody looks.
    calls::advise(part(3).at, eighth, libc::MADV_FREE)?;
    part(3).write(4);
    // Hints that change nothing.
    for (advice, n) in [
        (libc::MADV_WILLNEED, 4),
        (libc::MADV_COLD, 4),
        (libc::MADV_PAGEOUT, 5),
        (libc::MADV_SEQUENTIAL, 5),
        (libc::MADV_RANDOM, 6),
        (libc::MADV_NORMAL, 6),
        (POPULATE_READ, 6),
        (POPULATE_WRITE, 7),
    ] {
        // An old kernel may not know it; the contents stay in either case.
        let _ = calls::advise(part(n).at, eighth, advice);
        part(n).verify(1)?;
    }
    part(2).verify(3)?;
    part(3).verify_random(4, &mut dice)?;
    // Dropped by one thread while another reads the neighbours.
    let (left, right) = (part(4), part(5));
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || (0..4).try_for_each(|_| right.verify(1)));
        for round in 1..=4 {
            left.write(round + 10);
            calls::advise(left.at, left.len, libc::MADV_DONTNEED)?;
            left.verify(0)?;
        }
        reader
            .join()
            .map_err(|_| "the reader panicked".to_string())?
    })?;
    ok(format!("{} pages, ten kinds of advice", span.pages()))
}

pub fn mprotect(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    let quarter = whole(span.len / 4);
    let part = |n: usize| span.part(n * quarter, quarter);
    calls::protect(part(0).at, quarter, libc::PROT_READ)?;
    calls::protect(part(1).at, quarter, libc::PROT_NONE)?;
    part(0).verify(1)?;
    part(2).verify(1)?;
    // What is forbidden stays forbidden, far or near.
    for (n, write) in [(0, true), (1, true), (1, false)] {
        let target = part(n).page(part(n).pages() / 2);
        let pid = calls::fork_doing(move || {
            let limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: a plain struct; no core file is wanted of a crash that is meant.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
            if write {
                target.write(2);
            } else {
                target.verify(1)?;
            }
            Err(format!("access to {:#x} was not refused", target.at))
        })?;
        let status = calls::wait(pid)?;
        if !libc::WIFSIGNALED(status) || libc::WTERMSIG(status) != libc::SIGSEGV {
            return Err(format!(
                "access to {:#x} ended with status {status:#x}",
                target.at
            ));
        }
    }
    span.part(2 * quarter, 2 * quarter).write(2);
    calls::protect(span.at, 2 * quarter, RW)?;
    part(0).verify(1)?;
    part(1).verify(1)?;
    part(1).write(3);
    part(0).verify_random(1, &mut Dice::new(args.seed))?;
    // Many small pieces: every second page read-only, and back.
    let few = part(2).page_range(0, part(2).pages().min(2000));
    for page in (0..few.pages()).step_by(2) {
        calls::protect(few.page(page).at, PAGE, libc::PROT_READ)?;
    }
    few.verify(2)?;
    part(3).write(4);
    calls::protect(few.at, few.len, RW)?;
    few.write(5);
    part(1).verify(3)?;
    few.verify(5)?;
    part(3).verify(4)?;
    ok(format!("{} pages, refused and allowed again", span.pages()))
}

pub fn mlock(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    let part = span.part(whole(args.size / 2), whole(args.size / 16));
    let how = if args.how.is_empty() {
        "part"
    } else {
        &args.how
    };
    // SAFETY: locks memory of this process.
    let answer = unsafe {
        match how {
            "part" => libc::mlock(part.at as *const _, part.len),
            "current" => libc::mlockall(libc::MCL_CURRENT),
            "future" => libc::mlockall(libc::MCL_FUTURE),
            other => return Err(format!("--how {other}: use part, current or future")),
        }
    };
    if answer != 0 {
        let error = std::io::Error::last_os_error();
        return Ok(Done::Skip(format!("mlock is refused: {error}")));
    }
    span.verify(1)?;
    part.write(2);
    let more = Span::map(args.size / 4, args.seed + 1)?;
    more.write(1);
    span.part(0, part.at - span.at).verify(1)?;
    part.verify(2)?;
    // SAFETY: as above.
    unsafe { libc::munlockall() };
    more.verify(1)?;
    span.part(part.end() - span.at, span.end() - part.end())
        .verify(1)?;
    part.verify(2)?;
    ok(format!("{how} of {} pages", span.pages()))
}
