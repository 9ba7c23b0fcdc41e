//! Threads that come and go, and stacks that grow deep.

use crate::args::Args;
use crate::calls;
use crate::span::{Dice, Span, value, whole};
use crate::{Outcome, ok};
use std::cell::RefCell;

thread_local! {
    /// Data of each thread, freed when it ends.
    static OWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

pub fn threads(args: &Args) -> Outcome {
    let span = Span::map(args.size / 2, args.seed)?;
    span.write(1);
    let waves = args.count;
    let each = args.size / 2 / args.threads;
    for wave in 0..waves {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..args.threads)
                .map(|n| {
                    let seed = args.seed + (wave * 1000 + n) as u64;
                    scope.spawn(move || one(seed, each, &span))
                })
                .collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().map_err(|_| "a thread panicked".to_string())?
            })
        })?;
    }
    // Many that do next to nothing.
    for n in 0..200usize {
        let page = span.page(n * 31 % span.pages());
        let thread = std::thread::spawn(move || page.verify(1));
        thread
            .join()
            .map_err(|_| "a thread panicked".to_string())??;
    }
    span.verify(1)?;
    ok(format!(
        "{} threads in {waves} waves, and 200 short ones",
        waves * args.threads
    ))
}

fn one(seed: u64, bytes: usize, common: &Span) -> Result<(), String> {
    let words = bytes / 8 / 4;
    OWN.with_borrow_mut(|own| own.extend((0..words as u64).map(|n| value(seed, 1, n))));
    let heap: Vec<u64> = (0..words as u64).map(|n| value(seed, 2, n)).collect();
    let mapped = Span::map(whole(bytes / 2), seed)?;
    mapped.write(3);
    let mut dice = Dice::new(seed);
    for _ in 0..common.pages() / 8 {
        common.page(dice.below(common.pages())).verify(1)?;
    }
    mapped.verify(3)?;
    calls::unmap(mapped.at, mapped.len)?;
    let same = |list: &[u64], generation: u32| {
        list.iter().enumerate().try_for_each(|(n, found)| {
            let expected = value(seed, generation, n as u64);
            if *found == expected {
                return Ok(());
            }
            let at = found as *const u64 as usize;
            Err(format!(
                "address {at:#x} of a thread: expected {expected:#x}, found {found:#x}"
            ))
        })
    };
    same(&heap, 2)?;
    OWN.with_borrow(|own| same(own, 1))
}

/// Frames of a page and a half, each checked on the way back.
#[inline(never)]
fn descend(
    depth: usize,
    seed: u64,
    deepest: &mut dyn FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let mut frame = [0u64; 768];
    for (n, word) in frame.iter_mut().enumerate() {
        *word = value(seed, 1, (depth * 768 + n) as u64);
    }
    std::hint::black_box(&mut frame);
    if depth == 0 {
        deepest()?;
    } else {
        descend(depth - 1, seed, deepest)?;
    }
    std::hint::black_box(&mut frame);
    for (n, word) in frame.iter().enumerate() {
        let expected = value(seed, 1, (depth * 768 + n) as u64);
        if *word != expected {
            let at = word as *const u64 as usize;
            return Err(format!(
                "stack at {at:#x}, depth {depth}: expected {expected:#x}, found {word:#x}"
            ));
        }
    }
    Ok(())
}

pub fn stack(args: &Args) -> Outcome {
    let span = Span::map(args.size / 2, args.seed)?;
    span.write(1);
    let stack = args.size / 2;
    // Most of the stack, with room for what calls itself.
    let depth = stack / (3 * 6144);
    let seed = args.seed;
    let deep = std::thread::Builder::new()
        .stack_size(stack)
        .spawn(move || {
            descend(depth, seed, &mut || span.verify(1))?;
            descend(depth / 2, seed + 1, &mut || Ok(()))
        });
    let deep = deep.map_err(|error| format!("starting a thread: {error}"))?;
    deep.join()
        .map_err(|_| "the deep thread panicked".to_string())??;
    // The first thread has a stack of its own kind: it grows by itself.
    descend(200, seed + 2, &mut || span.verify(1))?;
    ok(format!("{depth} frames in a thread, 200 in the first"))
}
