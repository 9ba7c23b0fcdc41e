//! What lies below the engine: the kernel on one side, the pool on the other.
//!
//! Both are traits, so that the engine runs over a fake address space and a pool in a vector, where
//! every answer of the kernel can be played back.

use crate::chunk::Page;
use muninn_job::Counters;
use muninn_net::Grant;
use muninn_sys::uffd::{FaultDevice, PageRange, Partial};
use muninn_types::{Bytes, Class, GrantId, PageNo, ServerId};
use std::fmt;

/// The most chunks that leave together.
pub const CHUNKS_AT_ONCE_MAX: usize = 16;

/// Whether the program can be kept from changing its address space for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stillness {
    Reached,
    NotNow,
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
    /// Before pages are taken out, and after: a kernel that moves them needs neither.
    fn hold_still(&self) -> Stillness {
        Stillness::Reached
    }
    fn let_go(&self) {}
    /// Moves pages of the program to frames from `to` on. Holes move as well.
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
    /// Whether anything is mapped at a page of the program.
    fn is_mapped(&self, page: PageNo) -> bool;
    /// Asks that pages that are shared after a fork be made this process's own, later.
    fn unshare(&self, range: PageRange);
    fn counters(&self) -> &Counters;

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

/// A far page and the near one that it is read into or written from.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub grant: Grant,
    /// Pages from the start of the grant.
    pub place: u32,
    pub near: *mut Page,
}

/// What a list of transfers is filled with where there are none.
pub(crate) const EMPTY_TRANSFER: Transfer = Transfer {
    grant: Grant {
        server: ServerId(0),
        id: GrantId(0),
        bytes: Bytes(0),
    },
    place: 0,
    near: std::ptr::null_mut(),
};

/// Why far memory does not answer. The message names the server.
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

    /// Memory for more slots, now.
    fn grant(&mut self) -> Result<Grant, FarError>;

    /// Memory that was asked for ahead of need, if it has come.
    fn granted(&mut self) -> Option<Grant>;

    /// So many slots are free: more may be asked for ahead of need.
    fn replenish(&mut self, free: u64, evicted: u64);

    /// A grant that is no longer needed.
    fn release(&mut self, grant: Grant);
}
