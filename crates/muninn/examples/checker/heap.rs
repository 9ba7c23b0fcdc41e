//! Memory of the program itself: static, the heap of `brk`, and what `malloc` makes of it.

use crate::args::Args;
use crate::calls;
use crate::span::{Dice, PAGE, Span, value, whole};
use crate::{Outcome, ok};
use std::cell::UnsafeCell;

const STATIC: usize = 256 << 20;

/// Zero until touched, and in no file.
struct Static(UnsafeCell<[u64; STATIC / 8]>);

// SAFETY: used by one thread, through raw pointers.
unsafe impl Sync for Static {}

static BSS: Static = Static(UnsafeCell::new([0; STATIC / 8]));

pub fn bss(args: &Args) -> Outcome {
    let at = (BSS.0.get() as usize).next_multiple_of(PAGE);
    let span = Span::new(at, args.size.min(STATIC - PAGE), args.seed);
    span.verify(0)?;
    span.write(1);
    let other = Span::map(args.size / 2, args.seed + 1)?;
    other.write(1);
    span.verify_random(1, &mut Dice::new(args.seed))?;
    span.part(0, span.len / 2).write(2);
    other.verify(1)?;
    span.part(0, span.len / 2).verify(2)?;
    span.part(span.len / 2, span.len / 2).verify(1)?;
    ok(format!("{} static pages", span.pages()))
}

fn sbrk(by: isize) -> Result<usize, String> {
    // SAFETY: the end of the heap moves up to make room, or down over what was only ours.
    let old = unsafe { libc::sbrk(by) } as isize;
    if old == -1 {
        return Err(format!("sbrk of {by}: {}", std::io::Error::last_os_error()));
    }
    Ok(old as usize)
}

pub fn brk(args: &Args) -> Outcome {
    // Whole pages above whatever malloc has.
    let start = sbrk(0)?;
    sbrk((start.next_multiple_of(PAGE) - start) as isize)?;
    let mut spans: Vec<Span> = Vec::with_capacity(64);
    let piece = whole(args.size / 32);
    for n in 0..32 {
        let at = sbrk(piece as isize)?;
        let span = Span::new(at, piece, args.seed + n);
        span.verify(0)?;
        span.write(1);
        spans.push(span);
        spans[n as usize / 2].verify(1)?;
    }
    for span in &spans {
        span.verify(1)?;
    }
    // Down by a quarter and up again: zeros, unless malloc has taken what is above.
    let top = spans[31].end();
    let cut = 8 * piece;
    let shrunk = sbrk(0)? == top;
    if shrunk {
        sbrk(-(cut as isize))?;
        spans[23].verify(1)?;
        let at = sbrk(cut as isize)?;
        Span::new(at, cut, 0).verify(0)?;
        Span::new(at, cut, args.seed + 77).write(2);
        Span::new(at, cut, args.seed + 77).verify(2)?;
    }
    for span in &spans[..24] {
        span.verify(1)?;
    }
    let shape = if shrunk {
        "and shrunk"
    } else {
        "not shrunk: malloc is above"
    };
    ok(format!("{} bytes of heap, grown {shape}", 32 * piece))
}

/// Blocks of all sizes, freed and taken again in random order, small ones in many.
pub fn malloc(args: &Args) -> Outcome {
    struct Block {
        words: Vec<u64>,
        seed: u64,
    }
    let fresh = |dice: &mut Dice| {
        let seed = dice.next();
        let words = match dice.below(10) {
            0..6 => 1 + dice.below(64),
            6..9 => 64 + dice.below(4096),
            _ => 4096 + dice.below(64 << 10),
        };
        let words = (0..words as u64).map(|n| value(seed, 1, n)).collect();
        Block { words, seed }
    };
    let verify = |block: &Block| {
        for (n, found) in block.words.iter().enumerate() {
            let expected = value(block.seed, 1, n as u64);
            if *found != expected {
                let at = found as *const u64 as usize;
                return Err(format!(
                    "heap at {at:#x}: expected {expected:#x}, found {found:#x}"
                ));
            }
        }
        Ok(())
    };
    let mut dice = Dice::new(args.seed);
    let mut blocks: Vec<Block> = Vec::new();
    let mut held = 0;
    let mut made = 0u64;
    for _ in 0..3 {
        while held < args.size {
            let block = fresh(&mut dice);
            held += block.words.len() * 8;
            made += 1;
            blocks.push(block);
            if dice.below(4) == 0 {
                verify(&blocks[dice.below(blocks.len())])?;
            }
        }
        while held > args.size / 2 {
            let block = blocks.swap_remove(dice.below(blocks.len()));
            verify(&block)?;
            held -= block.words.len() * 8;
        }
    }
    blocks.iter().try_for_each(verify)?;
    ok(format!(
        "{made} blocks, {} pages resident now",
        calls::resident_pages()
    ))
}
