//! What lies below the engine: the kernel on one side, the pool on the other.
//!
//! Both are traits, so that the engine runs over a fake address space and a pool in a vector, where
//! every answer of the kernel can be played back.

use crate::chunk::{ChunkNo, Mask, Page};
use muninn_job::{Counters, Waiting, Waits};
use muninn_sys::own::staying::Taking;
use muninn_sys::uffd::{Cause, FaultDevice, PageRange, Partial};
use muninn_types::{Class, Nanos, PageNo, ServerId};
use muninn_volume::{Census, Extent, ExtentId};
pub use muninn_volume::{Transfer, VolumeError as FarError};

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

/// The kernel, as far as one process's memory goes.
pub trait Kernel {
    type Device: FaultDevice;

    /// The device that the program's memory is registered with.
    fn program(&self) -> &Self::Device;
    /// How many chunks are best taken out together, at most [`CHUNKS_AT_ONCE_MAX`].
    fn chunks_at_once(&self) -> usize {
        1
    }
    /// Pages are taken out as long as what this returns lives.
    fn begin_taking(&self) -> Option<Taking> {
        None
    }
    /// Which pages of a chunk must stay where they are, whatever their contents.
    fn staying(&self, taking: Option<&Taking>, chunk: ChunkNo) -> Mask {
        taking.map_or(0, |taking| taking.staying(chunk.page(0)))
    }
    /// Before pages are taken out, and after: a kernel that moves them needs neither. Only of these pages
    /// are any taken out in between.
    fn hold_still(&self, _leaving: &[PageRange]) -> Stillness {
        Stillness::Reached
    }
    fn let_go(&self) {}
    /// Moves pages of the program to frames from `to` on, up to the first that is not there.
    ///
    /// # Safety
    ///
    /// The pages are absent afterwards: whoever touches them asks the program's device for them.
    unsafe fn take_out(&self, to: PageNo, from: PageRange) -> Result<(), Partial>;
    /// Moves frames to absent pages of the program from `to` on, and wakes who waits for them.
    ///
    /// # Safety
    ///
    /// The frames must be present; nobody may rely on them afterwards.
    unsafe fn put_in(&self, to: PageNo, from: PageRange) -> Result<(), Partial>;
    /// Fills an absent frame with a page.
    fn fill_frame(&self, frame: PageNo, page: &Page) -> Result<(), Partial>;
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
        let _ = self.program().wake(PageRange::new(to, untold));
        match untold == from.pages() {
            true => Ok(()),
            false => Err(Partial::new(untold, Cause::Again)),
        }
    }
    /// Whether anything is mapped at a page of the program.
    fn is_mapped(&self, page: PageNo) -> bool;
    /// Asks that pages that are shared after a fork be made this process's own, later.
    fn unshare(&self, range: PageRange);
    fn counters(&self) -> &Counters;
    /// Shows that the process waits, until what is returned is dropped.
    fn waits(&self, _: Waiting, _since: Nanos) -> Option<Waits<'_>> {
        None
    }

    /// The bytes of a frame.
    ///
    /// # Safety
    ///
    /// The frame must be present, and nobody else may use it meanwhile.
    #[expect(
        clippy::mut_from_ref,
        reason = "frames are memory outside of the kernel's value"
    )]
    unsafe fn frame(&self, frame: PageNo) -> &mut Page {
        let pointer: *mut Page = std::ptr::with_exposed_provenance_mut(frame.addr() as usize);
        // SAFETY: present and exclusive, as the caller says; pages are aligned.
        unsafe { &mut *pointer }
    }
}

/// The pool.
pub trait Far {
    /// Reads far pages, all or none.
    ///
    /// # Safety
    ///
    /// Each `near` must be writable and used by nobody else during the call.
    unsafe fn read(&mut self, transfers: &[Transfer], class: Class) -> Result<(), FarError>;

    /// Writes far pages. They are at the server when this returns.
    ///
    /// # Safety
    ///
    /// Each `near` must be readable and not written to during the call.
    unsafe fn write(&mut self, transfers: &[Transfer], class: Class) -> Result<(), FarError>;

    /// Reads a page from the `n`th copy of its extent; whose that is. `None` when there are no more.
    ///
    /// # Safety
    ///
    /// As for [`Far::read`].
    unsafe fn read_copy(
        &mut self,
        _transfer: &Transfer,
        _class: Class,
        _n: usize,
    ) -> Option<Result<ServerId, FarError>> {
        None
    }

    /// A copy was found to be wrong, while another is right.
    fn distrust(&mut self, _extent: ExtentId, _server: ServerId) {}

    /// Where an extent is, for messages.
    fn describe(&self, extent: ExtentId) -> String {
        extent.to_string()
    }

    /// Memory for more slots, now.
    fn extent(&mut self) -> Result<Extent, FarError>;

    /// Memory that was asked for ahead of need, if it has come.
    fn granted(&mut self) -> Option<Extent>;

    /// So many slots are free: more may be asked for ahead of need.
    fn replenish(&mut self, free: u64, evicted: u64);

    /// An extent that is no longer needed.
    fn release(&mut self, extent: ExtentId);

    /// Extents by their state.
    fn census(&self) -> Census {
        Census::default()
    }

    /// Looks at what has become of servers: an extent of which no copy is left, and why.
    fn attend(&mut self) -> Option<(ExtentId, String)> {
        None
    }
}
