//! The steps of a program, each a choice that means something in whatever state it is taken.
//!
//! A step names areas and pages by numbers that are brought into range when it is taken: an area is
//! the next one there is from a slot on, a part begins at a share of it. So any step can be left out
//! and the rest still is a program, which is what shrinking needs.

use crate::dice::Dice;
use std::fmt;

/// The next area from this slot on that can be used so.
#[derive(Clone, Copy, Debug)]
pub struct Pick(pub u8);

/// A part of an area: from `at` of 65536 on, at most so many pages.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub at: u16,
    pub pages: u16,
}

#[derive(Clone, Copy, Debug)]
pub enum Mapping {
    Plain,
    Hint,
    Populate,
    NoReserve,
    /// Without access first, then opened.
    Reserved,
}

#[derive(Clone, Copy, Debug)]
pub enum Filling {
    /// Every page another.
    Own,
    /// Every page the same.
    Equal,
    Zeros,
}

#[derive(Clone, Copy, Debug)]
pub enum Advice {
    DontNeed,
    Free,
    WipeOnFork,
    KeepOnFork,
    DontFork,
    DoFork,
    HugePage,
    NoHugePage,
    Cold,
    PageOut,
    PopulateRead,
    PopulateWrite,
}

/// How pages get from one area into another.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    MemCpy,
    Pipe,
    Socket,
    /// `write` and `read` of a memfd.
    MemFd,
    /// `writev` and `readv` of a temporary file.
    FileV,
    /// `pwrite` and `pread`.
    FileP,
    SendFile,
    ProcessVmRead,
    ProcessVmWrite,
    /// `/proc/self/mem`.
    ProcMem,
    /// `O_DIRECT`.
    Direct,
    Uring,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forking {
    Libc,
    /// The system calls themselves, which no library sees.
    RawClone,
    RawClone3,
    RawFork,
    /// A child whose child goes on while it ends at once.
    Orphan,
}

#[derive(Clone, Debug)]
pub enum Act {
    Map(Pick, u16, Mapping),
    Replace(Pick, Part),
    Unmap(Pick, Part),
    Grow(Pick, u16),
    Shrink(Pick, u16),
    MoveTo(Pick),
    /// Moves, and the old place stays with nothing in it.
    MoveOut(Pick),
    ReadOnly(Pick, Part),
    Close(Pick, Part),
    Open(Pick),
    Advise(Pick, Part, Advice),
    Lock(Pick, Part),
    Unlock(Pick),
    Break(u16),
    Malloc(Pick, u16),
    Calloc(Pick, u16),
    Realloc(Pick, u16),
    Free(Pick),
    Fill(Pick, Part, Filling),
    /// A few bytes of each page.
    Poke(Pick, Part, u16),
    Read(Pick, Part),
    ReadAll,
    Copy(Pick, Part, Pick, Part, Way),
    /// The kernel must not write where the program may not.
    Forbidden(Pick),
    Random(Pick, Part),
    Futex(Pick, Part),
    VmSplice(Pick, Part),
    ZeroCopy(Pick, Part),
    /// What was sent by reference is taken from the other end.
    Receive(Pick, Part),
    Stack(u16),
    Fork(Forking, bool, Vec<Step>),
    /// So many children that end at once.
    Burst(u8),
    Exec,
    Spawn,
    VFork(Pick, Part),
    Collect,
    Thread(Vec<Step>),
    Join,
    Raise(u8),
    Timer(bool),
    CloseInput,
    CloseAll,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// Its place in the list, and in those it is in: `17.3`.
    pub id: String,
    /// What its contents follow from.
    pub salt: u64,
    pub act: Act,
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "area {}", self.0)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let share = u32::from(self.at) * 100 / 65536;
        write!(f, "{} pages from {share} % on", self.pages)
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Act::Map(pick, pages, how) => write!(f, "map {pages} pages as {pick} ({how:?})"),
            Act::Replace(pick, part) => write!(f, "map over {part} of {pick}"),
            Act::Unmap(pick, part) => write!(f, "unmap {part} of {pick}"),
            Act::Grow(pick, pages) => write!(f, "mremap {pick}: {pages} pages more"),
            Act::Shrink(pick, pages) => write!(f, "mremap {pick}: {pages} pages less"),
            Act::MoveTo(pick) => write!(f, "mremap {pick} to a fixed place"),
            Act::MoveOut(pick) => write!(f, "mremap {pick} with DONTUNMAP"),
            Act::ReadOnly(pick, part) => write!(f, "make {part} of {pick} read-only"),
            Act::Close(pick, part) => write!(f, "forbid {part} of {pick}"),
            Act::Open(pick) => write!(f, "open all of {pick}"),
            Act::Advise(pick, part, advice) => write!(f, "madvise {advice:?}: {part} of {pick}"),
            Act::Lock(pick, part) => write!(f, "mlock {part} of {pick}"),
            Act::Unlock(pick) => write!(f, "munlock {pick}"),
            Act::Break(pages) => write!(f, "brk {pages} pages up"),
            Act::Malloc(pick, pages) => write!(f, "malloc {pages} pages as {pick}"),
            Act::Calloc(pick, pages) => write!(f, "calloc {pages} pages as {pick}"),
            Act::Realloc(pick, pages) => write!(f, "realloc {pick} to {pages} pages"),
            Act::Free(pick) => write!(f, "free {pick}"),
            Act::Fill(pick, part, how) => write!(f, "fill {part} of {pick} ({how:?})"),
            Act::Poke(pick, part, len) => write!(f, "write {len} bytes in {part} of {pick}"),
            Act::Read(pick, part) => write!(f, "read {part} of {pick}"),
            Act::ReadAll => write!(f, "read everything"),
            Act::Copy(from, part, to, at, way) => {
                write!(f, "copy {part} of {from} to {to}, {at}, by {way:?}")
            }
            Act::Forbidden(pick) => write!(f, "let the kernel write to a closed page of {pick}"),
            Act::Random(pick, part) => write!(f, "getrandom over {part} of {pick}"),
            Act::Futex(pick, part) => write!(f, "wait at a futex in {part} of {pick}"),
            Act::VmSplice(pick, part) => write!(f, "vmsplice {part} of {pick} into a pipe"),
            Act::ZeroCopy(pick, part) => write!(f, "send {part} of {pick} with MSG_ZEROCOPY"),
            Act::Receive(pick, part) => write!(f, "receive what was sent into {part} of {pick}"),
            Act::Stack(pages) => write!(f, "recurse {pages} pages deep"),
            Act::Fork(how, later, _) => {
                let when = if *later { ", collected later" } else { "" };
                write!(f, "fork ({how:?}){when}")
            }
            Act::Burst(count) => write!(f, "fork {count} children that end at once"),
            Act::Exec => write!(f, "fork a child that becomes /bin/true"),
            Act::Spawn => write!(f, "posix_spawn /bin/true"),
            Act::VFork(pick, part) => write!(f, "vfork a child that fills {part} of {pick}"),
            Act::Collect => write!(f, "collect a child"),
            Act::Thread(_) => write!(f, "start a thread"),
            Act::Join => write!(f, "join a thread"),
            Act::Raise(count) => write!(f, "raise {count} signals"),
            Act::Timer(true) => write!(f, "start a timer"),
            Act::Timer(false) => write!(f, "stop the timer"),
            Act::CloseInput => write!(f, "close descriptor 0"),
            Act::CloseAll => write!(f, "close every descriptor from 3 on"),
        }
    }
}

impl Act {
    /// The word by which steps of its kind are left out.
    pub fn kind(&self) -> &'static str {
        match self {
            Act::Map(..) | Act::Replace(..) => "map",
            Act::Unmap(..) => "unmap",
            Act::Grow(..) | Act::Shrink(..) | Act::MoveTo(..) | Act::MoveOut(..) => "remap",
            Act::ReadOnly(..) | Act::Close(..) | Act::Open(..) => "protect",
            Act::Advise(_, _, Advice::WipeOnFork) => "wipe",
            Act::Advise(_, _, Advice::DontFork) => "dontfork",
            Act::Advise(_, _, Advice::Free) => "lazyfree",
            Act::Advise(..) => "advise",
            Act::Lock(..) | Act::Unlock(..) => "lock",
            Act::Break(..) => "break",
            Act::Malloc(..) | Act::Calloc(..) | Act::Realloc(..) | Act::Free(..) => "malloc",
            Act::Fill(..) | Act::Poke(..) => "write",
            Act::Read(..) | Act::ReadAll => "read",
            Act::Copy(.., way) => match way {
                Way::MemCpy => "memcpy",
                Way::ProcMem => "procmem",
                Way::Direct => "direct",
                Way::Uring => "uring",
                _ => "calls",
            },
            Act::Forbidden(..) | Act::Random(..) => "calls",
            Act::Futex(..) => "futex",
            Act::VmSplice(..) => "vmsplice",
            Act::ZeroCopy(..) => "zerocopy",
            Act::Receive(..) => "receive",
            Act::Stack(..) => "stack",
            Act::Fork(Forking::Libc, ..) => "fork",
            Act::Fork(Forking::Orphan, ..) => "orphan",
            Act::Fork(..) => "rawfork",
            Act::Burst(..) => "burst",
            Act::Exec => "exec",
            Act::Spawn => "spawn",
            Act::VFork(..) => "vfork",
            Act::Thread(..) | Act::Join => "thread",
            Act::Collect => "collect",
            Act::Raise(..) => "raise",
            Act::Timer(..) => "timer",
            Act::CloseInput | Act::CloseAll => "close",
        }
    }

    /// The steps of whoever it starts.
    pub fn inner(&self) -> &[Step] {
        match self {
            Act::Fork(_, _, steps) | Act::Thread(steps) => steps,
            _ => &[],
        }
    }
}

impl Pick {
    pub fn roll(dice: &mut Dice) -> Pick {
        Pick(dice.below(16) as u8)
    }
}

impl Part {
    /// A page, a few, or many.
    pub fn roll(dice: &mut Dice) -> Part {
        let pages = match dice.below(8) {
            0 => 1,
            1 | 2 => dice.between(1, 8),
            3 | 4 => dice.between(1, 64),
            5 | 6 => dice.between(64, 512),
            _ => 4096,
        };
        Part {
            at: if dice.one_in(4) {
                0
            } else {
                dice.roll() as u16
            },
            pages: pages as u16,
        }
    }

    pub fn small(dice: &mut Dice, most: u64) -> Part {
        Part {
            at: dice.roll() as u16,
            pages: dice.between(1, most) as u16,
        }
    }
}
