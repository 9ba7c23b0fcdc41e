//! Memory that goes and memory that moves.

use crate::args::Args;
use crate::calls::{self, PRIVATE, RW};
use crate::span::{Dice, PAGE, Span, whole};
use crate::{Outcome, ok};

pub fn munmap(args: &Args) -> Outcome {
    let span = Span::map(args.size, args.seed)?;
    span.write(1);
    let third = whole(span.len / 3);
    let (left, middle) = (span.part(0, third), span.part(third, third));
    let right = span.part(2 * third, span.len - 2 * third);
    calls::unmap(middle.at, middle.len)?;
    left.verify(1)?;
    right.verify(1)?;
    // The hole is filled again: never with what was there.
    let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
    let at = calls::map_at(middle.at, middle.len, RW, flags, -1)?;
    if at != middle.at {
        return Err(format!(
            "the hole at {:#x} was not empty, got {at:#x}",
            middle.at
        ));
    }
    middle.verify(0)?;
    middle.write(2);
    // Every other run of 16 pages of the left part.
    for run in (0..left.pages() / 16).step_by(2) {
        let run = left.page_range(run * 16, 16);
        calls::unmap(run.at, run.len)?;
    }
    for run in 0..left.pages() / 16 {
        let run_span = left.page_range(run * 16, 16);
        if run % 2 == 1 {
            run_span.verify(1)?;
        } else {
            calls::map_fixed(run_span.at, run_span.len, RW)?;
            run_span.verify(0)?;
            run_span.write(3);
        }
    }
    right.verify(1)?;
    middle.verify_random(2, &mut Dice::new(args.seed))?;
    for run in (0..left.pages() / 16).step_by(2) {
        left.page_range(run * 16, 16).verify(3)?;
    }
    // Again and again in one place.
    for round in 0..8 {
        let fresh = Span::map(args.size / 2, args.seed + round)?;
        fresh.verify(0)?;
        fresh.write(1);
        fresh.verify(1)?;
        calls::unmap(fresh.at, fresh.len)?;
    }
    ok(format!(
        "{} pages in thirds, in runs, and eight times over",
        span.pages()
    ))
}

pub fn mremap(args: &Args) -> Outcome {
    let half = whole(args.size / 2);
    let mut dice = Dice::new(args.seed);
    // Room to grow in place: reserved, then given back.
    let room = calls::map_at(0, args.size * 2, libc::PROT_NONE, PRIVATE, -1)?;
    calls::map_fixed(room, half, RW)?;
    let small = Span::new(room, half, args.seed);
    small.write(1);
    calls::unmap(room + half, args.size * 2 - half)?;
    let at = calls::remap(room, half, args.size, 0, 0)?;
    if at != room {
        return Err(format!(
            "mremap without MAYMOVE went from {room:#x} to {at:#x}"
        ));
    }
    let grown = Span::new(room, args.size, args.seed);
    small.verify(1)?;
    let added = grown.part(half, args.size - half);
    added.verify(0)?;
    added.write(1);
    // Moved because it is told where to.
    let place = calls::map_at(0, args.size, libc::PROT_NONE, PRIVATE, -1)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let at = calls::remap(grown.at, grown.len, grown.len, flags, place)?;
    let moved = grown.moved(at);
    moved.verify_random(1, &mut dice)?;
    // A part of it, to a fixed place, over memory with other contents.
    let other = Span::map(args.size / 4, args.seed + 9)?;
    other.write(5);
    let quarter = moved.part(moved.len / 2 / PAGE * PAGE, whole(other.len));
    calls::remap(quarter.at, quarter.len, quarter.len, flags, other.at)?;
    quarter.moved(other.at).verify(1)?;
    calls::map_fixed(quarter.at, quarter.len, RW)?;
    quarter.verify(0)?;
    quarter.write(1);
    moved.verify(1)?;
    // Shrink, and grow again: the end comes back as zeros.
    let keep = whole(moved.len / 3);
    calls::remap(moved.at, moved.len, keep, 0, 0)?;
    moved.part(0, keep).verify(1)?;
    let at = calls::remap(moved.at, keep, moved.len, libc::MREMAP_MAYMOVE, 0)?;
    let again = moved.moved(at);
    again.part(0, keep).verify(1)?;
    let fresh = again.part(keep, again.len - keep);
    fresh.verify(0)?;
    fresh.write(2);
    // The contents go, the mapping stays.
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let kept = match calls::remap(again.at, keep, keep, flags, 0) {
        Ok(at) => {
            again.part(0, keep).moved(at).verify(1)?;
            again.part(0, keep).verify(0)?;
            again.part(0, keep).write(3);
            again.part(0, keep).moved(at).verify(1)?;
            again.part(0, keep).verify(3)?;
            "and left empty"
        }
        Err(_) => "(no MREMAP_DONTUNMAP here)",
    };
    fresh.verify(2)?;
    // Back and forth, with pages going far in between.
    let mut wanderer = Span::map(half, args.seed + 20)?;
    wanderer.write(1);
    for round in 0..6 {
        let place = calls::map_at(0, half, libc::PROT_NONE, PRIVATE, -1)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let at = calls::remap(wanderer.at, half, half, flags, place)?;
        wanderer = wanderer.moved(at);
        let from = dice.below(wanderer.pages() / 2);
        wanderer
            .page_range(from, wanderer.pages() / 2)
            .verify(round + 1)?;
        wanderer.write(round + 2);
    }
    wanderer.verify(7)?;
    ok(format!(
        "{} pages grown, moved, shrunk {kept}",
        grown.pages()
    ))
}
