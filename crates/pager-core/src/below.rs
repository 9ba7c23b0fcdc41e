//! What lies below the engine: the kernel on one side, the pool on the other.
//!
//! Both are traits, so that the engine runs over a fake address space and a pool in a vector, where
//! every answer of the kernel can be played back, and over traces, where pages are but numbers.
//!
//! The engine never looks into a page. It is handed references to pages, and hands them on.

use crate::chunk::{ChunkNo, Mask};
use crate::engine::Fatal;
use crate::print::{Hash, Print};
use muninn_types::{Cause, Class, Extent, ExtentId, Nanos, PageNo, PageRange, Partial};
use std::fmt;

/// The most chunks that leave together.
pub const CHUNKS_AT_ONCE_MAX: usize = 16;

/// Whether the program can be kept from changing its address space for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stillness {
    Reached,
    NotNow,
    /// Not before somebody was served who has got hold of pages, and waits for others.
    NotBefore,
    /// Not while it does what it does.
    Never(&'static str),
}

/// Why far memory does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FarError {
    /// There is no room for more.
    Full(String),
    /// What is far is out of reach for good.
    Lost(String),
}

impl fmt::Display for FarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FarError::Full(why) | FarError::Lost(why) => f.write_str(why),
        }
    }
}

/// What the process waits for while the engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Server,
    Grant,
    PoolFull,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    FaultsZero,
    FaultsStaged,
    FaultsRemote,
    FaultsBuffered,
    FaultsWoken,
    Prefetched,
    PrefetchWasted,
    Evicted,
    EvictedZero,
    EvictedClean,
    EvictedWritten,
    BytesIn,
    BytesOut,
    DirectReclaims,
    Unmaps,
    Removes,
    Remaps,
    BusyPages,
    HashChecks,
}

impl Count {
    /// How many there are: each `as usize` is below.
    pub const NUMBER: usize = Count::HashChecks as usize + 1;
}

/// The kernel, as far as one process's memory goes.
pub trait Kernel {
    /// A page's contents.
    type Page;
    /// Pages are taken out as long as it lives.
    type Taking;
    /// The process is shown to wait as long as it lives.
    type Waits<'a>
    where
        Self: 'a;

    /// How many chunks are best taken out together, at most [`CHUNKS_AT_ONCE_MAX`].
    fn chunks_at_once(&self) -> usize {
        1
    }
    fn begin_taking(&self) -> Self::Taking;
    /// Which pages of a chunk must stay where they are, whatever their contents.
    fn staying(&self, taking: &Self::Taking, chunk: ChunkNo) -> Mask;
    /// Before pages are taken out, and after: a kernel that moves them needs neither. Only of these pages
    /// are any taken out in between.
    fn hold_still(&self, _leaving: &[PageRange]) -> Stillness {
        Stillness::Reached
    }
    fn let_go(&self) {}
    /// Moves pages of the program to frames from `to` on, up to the first that is not there. They are absent
    /// afterwards: whoever touches them asks for them.
    fn take_out(&self, to: PageNo, from: PageRange) -> Result<(), Partial>;
    /// Moves frames, which must be present, to absent pages of the program from `to` on, and wakes who waits
    /// for them. Nobody may rely on the frames afterwards.
    fn put_in(&self, to: PageNo, from: PageRange) -> Result<(), Partial>;
    /// Fills absent pages of the program from `to` on, and wakes who waits for them.
    fn copy_in(&self, to: PageNo, from: &[Self::Page]) -> Result<(), Partial>;
    /// The same with zeros that can be written to.
    fn fill_new(&self, range: PageRange) -> Result<(), Partial>;
    /// The same with the kernel's one page of zeros.
    fn fill_zero(&self, range: PageRange) -> Result<(), Partial>;
    /// Lets threads that wait for these pages try again.
    fn wake(&self, range: PageRange);
    /// Fills an absent frame with a page.
    fn fill_frame(&self, frame: PageNo, page: &Self::Page) -> Result<(), Partial>;
    /// The contents of a frame, which must be present, and of which nothing is moved or given back meanwhile.
    fn frame(&self, frame: PageNo) -> &Self::Page;
    /// Whether the program is changing its address space right now, or did and nobody has followed.
    fn is_changing(&self) -> bool;
    /// Whether a change was read that nobody has followed yet. The kernel puts pages in again then, but
    /// they would be taken for there from before the change on.
    fn has_unfollowed_change(&self) -> bool {
        false
    }
    /// Whether pages that were just taken out are surely what they were taken for.
    fn is_sure(&self, _taken: PageRange) -> bool {
        !self.is_changing()
    }
    /// Gives frames of the staging area back to the kernel.
    fn discard(&self, frames: PageRange);
    /// Which of at most 64 pages are there.
    fn present(&self, range: PageRange) -> u64;
    /// What really became of a move, whose destination was absent before.
    ///
    /// Linux 6.18 moves pages in batches. When it has to try a batch twice (somebody else had a page in
    /// hand), it forgets that the second time went well and tries again: then "the destination exists",
    /// and none were moved. They were. Whoever believes it has lost them.
    fn count_untold(
        &self,
        moved: Result<(), Partial>,
        to: PageNo,
        from: PageRange,
    ) -> Result<(), Partial> {
        let Err(Partial {
            done_pages: 0,
            cause: Cause::Exists,
        }) = moved
        else {
            return moved;
        };
        let arrived = self.present(PageRange::new(to, from.pages()));
        let stayed = self.present(from);
        let untold = u64::from((arrived & !stayed).trailing_ones()).min(from.pages());
        if untold == 0 {
            return moved;
        }
        self.wake(PageRange::new(to, untold));
        match untold == from.pages() {
            true => Ok(()),
            false => Err(Partial::new(untold, Cause::Again)),
        }
    }
    /// Whether pages that nobody has touched may be filled along with one that was.
    fn may_fill_untouched(&self) -> bool {
        true
    }
    /// Whether anything is mapped at a page of the program.
    fn is_mapped(&self, page: PageNo) -> bool;
    /// Asks that pages that are shared after a fork be made this process's own, later.
    fn unshare(&self, range: PageRange);
    /// So many more of these.
    fn count(&self, what: Count, n: u64);
    /// Shows that the process waits, since now if nothing else is said.
    fn waits(&self, why: Wait, since: Option<Nanos>) -> Self::Waits<'_>;
    /// Lets a moment pass.
    fn pause(&self) {}
}

/// Where a page is far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FarPlace {
    pub extent: ExtentId,
    /// Pages from the start of the extent.
    pub place: u32,
}

/// A far page that is to come.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    pub page: PageNo,
    pub from: FarPlace,
    /// What it must be.
    pub print: Print,
}

/// A page that is to be written.
#[derive(Debug)]
pub struct Outgoing<'a, P> {
    pub to: FarPlace,
    pub near: &'a P,
    /// By what it will be known; that it is sealed is added when it is written.
    pub print: Print,
}

/// The pool, and who knows pages again that come from there.
pub trait Far<P> {
    /// The fingerprint of a page.
    fn fingerprint(&self, page: &P) -> Hash;
    /// That of zeros.
    fn zero(&self) -> Hash;

    /// Reads far pages into the first of `into`, all or none. Each is what its print says.
    fn read(&mut self, from: &[Incoming], into: &mut [P], class: Class) -> Result<(), Fatal>;

    /// Writes far pages, at most those of a chunk. They are at the server when this returns.
    fn write(&mut self, pages: &mut [Outgoing<'_, P>], class: Class) -> Result<(), FarError>;

    /// Memory for more slots, now.
    fn extent(&mut self) -> Result<Extent, FarError>;

    /// Memory that was asked for ahead of need, if it has come.
    fn granted(&mut self) -> Option<Extent>;

    /// So many slots are free: more may be asked for ahead of need.
    fn replenish(&mut self, free: u64, evicted: u64);

    /// An extent that is no longer needed.
    fn release(&mut self, extent: ExtentId);

    /// Looks at what has become of servers: an extent of which no copy is left, and why.
    fn attend(&mut self) -> Option<(ExtentId, String)> {
        None
    }
}
