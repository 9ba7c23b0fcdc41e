//! Children see the memory as it was, whichever pages were far, whatever the parent does next.

use crate::args::Args;
use crate::calls;
use crate::span::{Dice, Span, whole};
use crate::{Outcome, ok};

pub fn fork(args: &Args) -> Outcome {
    let span = Span::map(args.size / 2, args.seed)?;
    snapshot(&span, args.seed)?;
    survivor(&span, args)?;
    into_exec(&span)?;
    ok(format!(
        "{} pages in child, grandchild, survivor and exec",
        span.pages()
    ))
}

/// Child and grandchild each check what their parent had, while the parent writes.
fn snapshot(span: &Span, seed: u64) -> Result<(), String> {
    let span = *span;
    span.write(1);
    let child = calls::fork_doing(move || {
        let mut dice = Dice::new(seed);
        span.verify_random(1, &mut dice)?;
        span.write(3);
        let grandchild = calls::fork_doing(move || {
            span.verify_random(3, &mut dice)?;
            span.write(5);
            span.verify(5)
        })?;
        span.write(4);
        span.verify(4)?;
        calls::wait_good(grandchild, "the grandchild")
    })?;
    span.write(2);
    span.verify(2)?;
    calls::wait_good(child, "the child")?;
    span.verify(2)
}

/// A child that goes on when its parent has ended has everything the parent had.
fn survivor(span: &Span, args: &Args) -> Result<(), String> {
    let span = *span;
    let (result, report) = calls::pipe()?;
    let (gone, parent_lives) = calls::pipe()?;
    let seed = args.seed;
    span.write(6);
    let parent = calls::fork_doing(move || {
        calls::close(result);
        let child = calls::fork()?;
        if child != 0 {
            // Ends at once, with much of its memory far.
            return Ok(());
        }
        calls::close(parent_lives);
        // The end of the pipe: nobody who was there before us holds it any more.
        let mut byte = 0u8;
        let ended = calls::read_to(gone, &raw mut byte as usize, 1).is_err();
        let checked = span.verify_random(6, &mut Dice::new(seed)).and_then(|()| {
            span.write(7);
            span.verify(7)
        });
        let good = match &checked {
            Ok(()) => u8::from(ended),
            Err(wrong) => {
                calls::say(2, &format!("checker: the survivor: {wrong}\n"));
                0
            }
        };
        calls::write_from(report, &raw const good as usize, 1)?;
        calls::exit_now(i32::from(good != 1));
    })?;
    calls::close(report);
    calls::close(parent_lives);
    calls::wait_good(parent, "the parent of the survivor")?;
    let mut good = 0u8;
    let read = calls::read_to(result, &raw mut good as usize, 1);
    calls::close(result);
    calls::close(gone);
    read.map_err(|error| format!("the survivor ended without a word: {error}"))?;
    if good != 1 {
        return Err("the survivor found wrong memory".to_string());
    }
    span.verify(6)
}

/// A child whose parent is killed the moment it is born has everything the parent had, or ends; it
/// never sees anything else.
pub fn orphan(args: &Args) -> Outcome {
    let span = Span::map(args.size / 2, args.seed)?;
    let (mut whole, mut ended) = (0, 0);
    for round in 0..args.count as u32 {
        span.write(round);
        let (result, report) = calls::pipe()?;
        let seed = args.seed + u64::from(round);
        let parent = calls::fork_doing(move || {
            calls::close(result);
            // Taken over before it forks in turn.
            span.verify(round)?;
            let parent = std::process::id() as i32;
            if calls::fork()? != 0 {
                return Ok(());
            }
            calls::kill(parent, libc::SIGKILL)?;
            let checked = span.verify_random(round, &mut Dice::new(seed));
            if let Err(wrong) = &checked {
                calls::say(2, &format!("checker: the orphan: {wrong}\n"));
            }
            let good = u8::from(checked.is_ok());
            calls::write_from(report, &raw const good as usize, 1)?;
            calls::exit_now(0);
        })?;
        calls::close(report);
        calls::wait(parent)?;
        let mut good = 0u8;
        match calls::read_to(result, &raw mut good as usize, 1) {
            Ok(_) if good == 1 => whole += 1,
            Ok(_) => return Err("the orphan found wrong memory".to_string()),
            Err(_) => ended += 1,
        }
        calls::close(result);
    }
    span.verify(args.count as u32 - 1)?;
    ok(format!("{whole} orphans had everything, {ended} ended"))
}

/// A child that becomes another program leaves its parent's memory alone.
fn into_exec(span: &Span) -> Result<(), String> {
    let span = *span;
    let child = calls::fork_doing(move || {
        span.part(0, whole(span.len / 4)).verify(6)?;
        Err(crate::process::become_checker(&[
            "idle", "--size", "4MiB", "--how", "quiet",
        ]))
    })?;
    span.part(0, whole(span.len / 2)).write(8);
    calls::wait_good(child, "the child that execs")?;
    span.part(0, whole(span.len / 2)).verify(8)?;
    // posix_spawn: shares memory with its parent until it execs.
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let status = std::process::Command::new(program)
        .args(["idle", "--size", "4MiB", "--how", "quiet"])
        .status();
    if !status.as_ref().is_ok_and(|status| status.success()) {
        return Err(format!("a spawned program ended with {status:?}"));
    }
    span.part(0, whole(span.len / 2)).verify(8)
}

pub fn fork_many(args: &Args) -> Outcome {
    let span = Span::map(args.size / 2, args.seed)?;
    let parts = 8;
    let part = |n: usize| span.part(n * whole(span.len / parts), whole(span.len / parts));
    let mut generation = [1u32; 8];
    span.write(1);
    let mut dice = Dice::new(args.seed);
    // One after the other, something new in between.
    for round in 0..args.count {
        let seen = generation;
        let child = calls::fork_doing(move || {
            let first = round % parts;
            (0..3).try_for_each(|n| {
                let n = (first + n * 3) % parts;
                part(n).verify(seen[n])
            })
        })?;
        let n = dice.below(parts);
        generation[n] += 1;
        part(n).write(generation[n]);
        calls::wait_good(child, &format!("child {round} of {}", args.count))?;
        let n = dice.below(parts);
        part(n).verify(generation[n])?;
    }
    // Several at once; each writes over its own copy.
    let mut children = Vec::new();
    for child in 0..4 {
        let seen = generation;
        children.push(calls::fork_doing(move || {
            (0..parts).try_for_each(|n| part(n).verify(seen[n]))?;
            part(child).write(90 + child as u32);
            (0..parts).try_for_each(|n| {
                let expected = if n == child {
                    90 + child as u32
                } else {
                    seen[n]
                };
                part(n).verify(expected)
            })
        })?);
        generation[child] += 1;
        part(child).write(generation[child]);
    }
    (0..parts).try_for_each(|n| part(n).verify(generation[n]))?;
    for child in children {
        calls::wait_good(child, "one of several children")?;
    }
    (0..parts).try_for_each(|n| part(n).verify(generation[n]))?;
    // A chain: each the child of the one before, the last looks at all.
    let seen = generation;
    chain(args.count.min(6), &move || {
        (0..parts).try_for_each(|n| part(n).verify(seen[n]))
    })?;
    ok(format!(
        "{} one by one, 4 at once, a chain of {}",
        args.count,
        args.count.min(6)
    ))
}

fn chain(depth: usize, last: &dyn Fn() -> Result<(), String>) -> Result<(), String> {
    if depth == 0 {
        return last();
    }
    let child = calls::fork_doing(|| chain(depth - 1, last))?;
    calls::wait_good(child, &format!("link {depth} of a chain of forks"))
}
