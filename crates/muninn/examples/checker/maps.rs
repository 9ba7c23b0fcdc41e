//! Ways in which memory comes to be: at once, thinly, piecewise, as huge pages, over other memory.

use crate::args::Args;
use crate::calls::{self, PRIVATE, RW};
use crate::span::{Dice, PAGE, Span, whole};
use crate::{Outcome, ok};
use std::io::Write;
use std::os::fd::AsRawFd;

pub fn fill(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    let mut dice = Dice::new(args.seed);
    span.write(1);
    span.verify(1)?;
    span.verify_random(1, &mut dice)?;
    // Half of the pages, at random, are written again.
    let order = dice.order(span.pages());
    let (again, kept) = order.split_at(order.len() / 2);
    for page in again {
        span.page(*page as usize).write(2);
    }
    for page in kept {
        span.page(*page as usize).verify(1)?;
    }
    for page in again {
        span.page(*page as usize).verify(2)?;
    }
    // From the end to the start, and with strides.
    for page in (0..span.pages()).rev().step_by(7) {
        let expected = if again.contains(&(page as u32)) { 2 } else { 1 };
        span.page(page).verify(expected)?;
        if page > span.pages() / 8 {
            continue;
        }
        span.page(page).write(3);
        span.page(page).verify(3)?;
    }
    ok(format!(
        "{} pages in order, at random, again and backwards",
        span.pages()
    ))
}

pub fn sparse(args: &Args) -> Outcome {
    // A few hundred times what is touched.
    let len = (args.size * 256).next_multiple_of(2 << 20).min(1 << 40);
    let at = calls::map_at(0, len, RW, PRIVATE | libc::MAP_NORESERVE, -1)?;
    let span = Span::new(at, len, args.seed);
    // Without huge pages, or each touch would bring 512.
    calls::advise(at, len, libc::MADV_NOHUGEPAGE)?;
    let mut dice = Dice::new(args.seed);
    let mut touched = std::collections::BTreeSet::new();
    while touched.len() < args.size / PAGE {
        touched.insert(dice.below(span.pages()));
    }
    for page in &touched {
        span.page(*page).write(1);
    }
    let mut zeros = 0;
    for page in &touched {
        span.page(*page).verify(1)?;
        let next = page + 1;
        if next < span.pages() && !touched.contains(&next) && zeros < 1000 {
            span.page(next).verify(0)?;
            zeros += 1;
        }
    }
    ok(format!(
        "{} of {} pages, {zeros} zero pages between",
        touched.len(),
        span.pages()
    ))
}

/// As a managed runtime does: reserve everything, commit what is needed, give back, commit again.
pub fn reserve(args: &Args) -> Outcome {
    let len = args.size * 4;
    let reserved = PRIVATE | libc::MAP_NORESERVE;
    let at = calls::map_at(0, len, libc::PROT_NONE, reserved, -1)?;
    let span = Span::new(at, len, args.seed);
    let piece = (args.size / 32).next_multiple_of(PAGE);
    let commit = |part: &Span, by_protect: bool| {
        if by_protect {
            return calls::protect(part.at, part.len, RW);
        }
        calls::map_at(part.at, part.len, RW, reserved | libc::MAP_FIXED, -1).map(|_| ())
    };
    let uncommit = |part: &Span| {
        let flags = reserved | libc::MAP_FIXED;
        calls::map_at(part.at, part.len, libc::PROT_NONE, flags, -1).map(|_| ())
    };
    // Every second piece from below by protection, every third from above by mapping.
    let pieces: Vec<Span> = (0..32)
        .map(|n| {
            let from = if n % 3 == 0 {
                len - (n + 1) * piece
            } else {
                n * piece
            };
            span.part(from, piece)
        })
        .collect();
    for (n, part) in pieces.iter().enumerate() {
        commit(part, n % 2 == 0)?;
        part.verify(0)?;
        part.write(1);
        pieces[n / 2].verify(1)?;
    }
    for part in &pieces {
        part.verify(1)?;
    }
    for part in pieces.iter().step_by(4) {
        uncommit(part)?;
    }
    for part in pieces.iter().step_by(4) {
        commit(part, false)?;
        part.verify(0)?;
        part.write(2);
    }
    for (n, part) in pieces.iter().enumerate() {
        part.verify(if n % 4 == 0 { 2 } else { 1 })?;
    }
    ok(format!(
        "{} pieces of {piece} bytes in {len} reserved",
        pieces.len()
    ))
}

pub fn hugepage(args: &Args) -> Outcome {
    const HUGE: usize = 2 << 20;
    let raw = calls::map(args.size + HUGE)?;
    let span = Span::new(
        raw.next_multiple_of(HUGE),
        args.size / HUGE * HUGE,
        args.seed,
    );
    let granted = calls::advise(span.at, span.len, libc::MADV_HUGEPAGE);
    span.write(1);
    span.verify(1)?;
    // One page in the middle of each huge page goes, and a run across the border of two.
    for huge in 0..span.len / HUGE {
        let middle = huge * (HUGE / PAGE) + 100;
        calls::advise(span.page(middle).at, PAGE, libc::MADV_DONTNEED)?;
    }
    for huge in 0..span.len / HUGE {
        let first = huge * (HUGE / PAGE);
        span.page_range(first, 100).verify(1)?;
        span.page(first + 100).verify(0)?;
        span.page_range(first + 101, HUGE / PAGE - 101).verify(1)?;
    }
    let half = span.part(span.len / 2, span.len / 2);
    half.write(2);
    calls::advise(span.at, span.len, libc::MADV_NOHUGEPAGE).ok();
    half.verify_random(2, &mut Dice::new(args.seed))?;
    let advice = if granted.is_ok() { "taken" } else { "refused" };
    ok(format!("{} huge pages, advice {advice}", span.len / HUGE))
}

pub fn overlap(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    let eighth = whole(span.len / 8);
    let part = |n: usize| span.part(n * eighth, eighth);
    // Fresh memory over a part; over the end of one and the start of the next.
    calls::map_fixed(part(1).at, eighth, RW)?;
    let across = span.part(3 * eighth + eighth / 2 / PAGE * PAGE, eighth);
    calls::map_fixed(across.at, across.len, RW)?;
    part(1).verify(0)?;
    across.verify(0)?;
    part(1).write(2);
    part(0).verify(1)?;
    part(2).verify(1)?;
    span.part(3 * eighth, across.at - part(3).at).verify(1)?;
    across.write(3);
    // Nothing, then something again.
    calls::map_fixed(part(5).at, eighth, libc::PROT_NONE)?;
    calls::map_fixed(part(5).at, eighth, RW)?;
    part(5).verify(0)?;
    // A file over a part.
    let mut file = tempfile_of(PAGE * 16)?;
    let words: Vec<u8> = (0..PAGE * 16).map(|n| (n * 7 % 251) as u8).collect();
    file.write_all(&words)
        .map_err(|error| format!("write: {error}"))?;
    let over = span.part(6 * eighth, PAGE * 16);
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    calls::map_at(over.at, over.len, RW, flags, file.as_raw_fd())?;
    for n in 0..over.len / 8 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&words[n * 8..n * 8 + 8]);
        let (found, expected) = (over.read(n), u64::from_ne_bytes(bytes));
        if found != expected {
            let at = over.at + n * 8;
            return Err(format!(
                "file mapped at {at:#x}: expected {expected:#x}, found {found:#x}"
            ));
        }
    }
    calls::map_fixed(over.at, over.len, RW)?;
    over.verify(0)?;
    part(1).verify(2)?;
    across.verify(3)?;
    part(7).verify(1)?;
    span.part(over.end() - span.at, part(7).at - over.end())
        .verify(1)?;
    ok(format!("six mappings over parts of {} pages", span.pages()))
}

/// A file without a name.
pub fn tempfile_of(len: usize) -> Result<std::fs::File, String> {
    let name = format!("checker-{}-{len}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let options = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path);
    let file = options.map_err(|error| format!("open {}: {error}", path.display()))?;
    std::fs::remove_file(&path).map_err(|error| format!("remove {}: {error}", path.display()))?;
    Ok(file)
}
