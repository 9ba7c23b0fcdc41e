//! A list of steps from a seed.
//!
//! The first steps fill most of the memory that the program may have, so that little of it fits;
//! then everything happens in any order. Threads and children get lists of their own, shorter and
//! less deep each time.

use crate::dice::{Dice, nth};
use crate::step::{Act, Advice, Filling, Forking, Mapping, Part, Pick, Step, Way};

/// What a program is, apart from its steps.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Pages that the main thread may have at a time.
    pub pages: usize,
}

pub const STEPS: usize = 80;

const MIB: u64 = 256;

pub fn shape(seed: u64) -> Shape {
    let mut dice = Dice::new(nth(seed, 1));
    Shape {
        pages: (dice.between(32, 96) * MIB) as usize,
    }
}

pub fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut dice = Dice::new(nth(seed, 2));
    // Most programs do everything; some have neither children nor threads, which finds other things.
    let depth = if dice.one_in(5) { 2 } else { 0 };
    let mut acts = Vec::new();
    let mut left = shape(seed).pages * 3 / 4;
    let mut slot = 0;
    while left > 0 && acts.len() + 2 < count {
        let pages = (dice.between(256, 4096) as usize).min(left).max(1);
        left -= pages;
        acts.push(Act::Map(Pick(slot), pages as u16, Mapping::Plain));
        let whole = Part { at: 0, pages: 4096 };
        acts.push(Act::Fill(Pick(slot), whole, Filling::Own));
        slot += 1;
    }
    while acts.len() < count {
        let act = roll(&mut dice, depth);
        acts.push(act);
    }
    number(acts, "", nth(seed, 3))
}

/// Numbers them, those inside as well.
fn number(acts: Vec<Act>, outer: &str, salt: u64) -> Vec<Step> {
    let numbered = acts.into_iter().enumerate().map(|(n, act)| {
        let id = format!("{outer}{n}");
        let salt = nth(salt, n as u64);
        let inside = |steps: Vec<Step>| {
            let acts = steps.into_iter().map(|step| step.act).collect();
            number(acts, &format!("{id}."), salt)
        };
        let act = match act {
            Act::Fork(how, later, steps) => Act::Fork(how, later, inside(steps)),
            Act::Thread(steps) => Act::Thread(inside(steps)),
            act => act,
        };
        Step { id, salt, act }
    });
    numbered.collect()
}

/// Steps of a thread or child, not yet numbered.
fn inner(dice: &mut Dice, depth: u8, thread: bool) -> Vec<Step> {
    let count = if depth == 1 {
        dice.between(2, 24)
    } else {
        dice.between(1, 8)
    };
    let mut acts = Vec::new();
    if thread {
        // It begins with nothing.
        for slot in 0..2 {
            let pages = dice.between(64, 1024) as u16;
            acts.push(Act::Map(Pick(slot), pages, Mapping::Plain));
            let whole = Part { at: 0, pages: 4096 };
            acts.push(Act::Fill(Pick(slot), whole, Filling::Own));
        }
    }
    for _ in 0..count {
        let act = roll(dice, depth);
        acts.push(act);
    }
    let unnumbered = acts.into_iter().map(|act| Step {
        id: String::new(),
        salt: 0,
        act,
    });
    unnumbered.collect()
}

/// One step; from a depth of 2 on, nobody else is started.
fn roll(dice: &mut Dice, depth: u8) -> Act {
    let pick = Pick::roll(dice);
    let part = Part::roll(dice);
    match dice.below(if depth >= 2 { 84 } else { 100 }) {
        0..5 => map(dice, pick),
        5..7 => Act::Replace(pick, part),
        7..10 => Act::Unmap(pick, part),
        10..12 => Act::Grow(pick, dice.between(1, 512) as u16),
        12..13 => Act::Shrink(pick, dice.between(1, 512) as u16),
        13..15 => Act::MoveTo(pick),
        15..16 => Act::MoveOut(pick),
        16..18 => Act::ReadOnly(pick, part),
        18..19 => Act::Close(pick, part),
        19..22 => Act::Open(pick),
        22..32 => Act::Advise(pick, part, advice(dice)),
        32..33 => Act::Lock(pick, Part::small(dice, 8)),
        33..34 => Act::Unlock(pick),
        34..37 => heap(dice, pick),
        37..47 => Act::Fill(pick, part, filling(dice)),
        47..52 => Act::Poke(pick, part, dice.between(1, 64) as u16),
        52..60 => Act::Read(pick, part),
        60..62 => Act::ReadAll,
        62..72 => copy(dice, pick),
        72..73 => Act::Forbidden(pick),
        73..74 => Act::Random(pick, part),
        74..75 => Act::Futex(pick, part),
        75..78 => Act::VmSplice(pick, part),
        78..79 => Act::ZeroCopy(pick, part),
        79..82 => Act::Receive(pick, part),
        82..83 => Act::Stack(dice.between(1, 800) as u16),
        83..84 => signal(dice),
        84..92 => fork(dice, depth),
        92..95 => Act::Collect,
        95..97 => {
            let steps = inner(dice, depth + 1, true);
            Act::Thread(steps)
        }
        97..98 => Act::Join,
        98..99 => Act::VFork(pick, part),
        _ if dice.one_in(3) => Act::CloseAll,
        _ => Act::CloseInput,
    }
}

fn map(dice: &mut Dice, pick: Pick) -> Act {
    let pages = match dice.below(4) {
        0 => dice.between(1, 8),
        1 => dice.between(1, 128),
        _ => dice.between(64, 1024),
    };
    let how = dice.of(&[
        Mapping::Plain,
        Mapping::Plain,
        Mapping::Hint,
        Mapping::Populate,
        Mapping::NoReserve,
        Mapping::Reserved,
    ]);
    Act::Map(pick, pages as u16, how)
}

fn advice(dice: &mut Dice) -> Advice {
    dice.of(&[
        Advice::DontNeed,
        Advice::DontNeed,
        Advice::DontNeed,
        Advice::Free,
        Advice::Free,
        Advice::WipeOnFork,
        Advice::WipeOnFork,
        Advice::KeepOnFork,
        Advice::DontFork,
        Advice::DoFork,
        Advice::HugePage,
        Advice::NoHugePage,
        Advice::Cold,
        Advice::PageOut,
        Advice::PopulateRead,
        Advice::PopulateWrite,
    ])
}

fn filling(dice: &mut Dice) -> Filling {
    dice.of(&[Filling::Own, Filling::Own, Filling::Equal, Filling::Zeros])
}

fn heap(dice: &mut Dice, pick: Pick) -> Act {
    let pages = if dice.one_in(2) {
        dice.between(1, 32)
    } else {
        dice.between(32, 400)
    } as u16;
    match dice.below(6) {
        0 => Act::Break(pages),
        1 => Act::Malloc(pick, pages),
        2 => Act::Calloc(pick, pages),
        3 | 4 => Act::Realloc(pick, pages),
        _ => Act::Free(pick),
    }
}

fn copy(dice: &mut Dice, from: Pick) -> Act {
    let part = Part::roll(dice);
    let way = dice.of(&[
        Way::MemCpy,
        Way::MemCpy,
        Way::Pipe,
        Way::Socket,
        Way::MemFd,
        Way::FileV,
        Way::FileP,
        Way::SendFile,
        Way::ProcessVmRead,
        Way::ProcessVmWrite,
        Way::ProcMem,
        Way::Direct,
        Way::Uring,
    ]);
    Act::Copy(from, part, Pick::roll(dice), Part::roll(dice), way)
}

fn signal(dice: &mut Dice) -> Act {
    match dice.below(4) {
        0 | 1 => Act::Raise(dice.between(1, 20) as u8),
        2 => Act::Timer(true),
        _ => Act::Timer(false),
    }
}

fn fork(dice: &mut Dice, depth: u8) -> Act {
    match dice.below(12) {
        0 => Act::Burst(dice.between(1, 24) as u8),
        1 => Act::Exec,
        2 => Act::Spawn,
        _ => {
            let how = dice.of(&[
                Forking::Libc,
                Forking::Libc,
                Forking::Libc,
                Forking::RawClone,
                Forking::RawClone3,
                Forking::RawFork,
                Forking::Orphan,
            ]);
            let later = !dice.one_in(3);
            let steps = inner(dice, depth + 1, false);
            Act::Fork(how, later, steps)
        }
    }
}
