//! userfaultfd: the kernel asks us for pages, and lets us take them away again.
//!
//! [`FaultDevice`] is the seam: the real one is [`Userfaultfd`], the fake is
//! [`fake::FakeFaultDevice`], on which races can be played back. Requests work on whole pages
//! ([`PageRange`]) and say exactly how far they came ([`Partial`]): "half of the pages, then ask
//! again" is an ordinary answer here. Invariant: reading events neither blocks nor allocates, and
//! a descriptor that comes with a fork event is never lost.
//!
//! Known limits: pages of 4 KiB only. Faults overtake events that came before them. Mapping
//! something else over a range takes it out of our hands, and is told only with EVENT_UNMAP.

mod device;
mod event;
pub mod fake;
mod features;
mod ioctl;
mod open;
mod outcome;

pub use device::Userfaultfd;
pub use event::{EVENTS_MAX, Event, EventBuffer, Fault, FaultKind};
pub use features::{Features, Operations};
pub use muninn_types::{Cause, PageRange, Partial};
pub use open::{OpenError, Route, open_device, supported_features, use_device};
pub use outcome::RequestError;

use std::time::Duration;

use muninn_types::PageNo;
use rustix::io::Errno;

/// Which touches of a range raise an event. At least one must be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterMode {
    /// Touches of pages that are absent.
    pub missing: bool,
    /// Writes to pages that are write-protected.
    pub write_protect: bool,
    /// Touches of pages that are in the page cache but not mapped (shared memory).
    pub minor: bool,
}

impl RegisterMode {
    pub const MISSING: RegisterMode = RegisterMode {
        missing: true,
        write_protect: false,
        minor: false,
    };
    pub const WRITE_PROTECT: RegisterMode = RegisterMode {
        missing: false,
        write_protect: true,
        minor: false,
    };
    pub const MISSING_AND_WRITE_PROTECT: RegisterMode = RegisterMode {
        missing: true,
        write_protect: true,
        minor: false,
    };
}

/// Whether threads that wait for the pages go on at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    #[default]
    Now,
    /// They go on when [`FaultDevice::wake`] is called.
    Later,
}

/// How pages are filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyMode {
    pub wake: Wake,
    /// The pages start write-protected, so that the first write to each is noticed.
    pub write_protected: bool,
}

/// How pages are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveMode {
    pub wake: Wake,
    /// Absent pages of the source leave holes instead of ending the move.
    pub allow_holes: bool,
}

/// A source of page faults that can be answered.
pub trait FaultDevice: Sized {
    /// Puts a range under our control; what can be done with it is the answer.
    ///
    /// # Safety
    ///
    /// From now on the contents of the range are what the users of this device put there: nothing
    /// else may rely on them, and touching it may block until the fault is answered.
    unsafe fn register(
        &self,
        range: PageRange,
        mode: RegisterMode,
    ) -> Result<Operations, RequestError>;

    /// Gives a range back to the kernel. Waiting threads go on; absent pages read as zeros.
    fn unregister(&self, range: PageRange) -> Result<(), RequestError>;

    /// Fills absent pages with the bytes at `from`. Does not wake where a page is present already
    /// ([`Cause::Exists`]): call [`FaultDevice::wake`] then.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the length of the range.
    unsafe fn copy(&self, to: PageRange, from: *const u8, mode: CopyMode) -> Result<(), Partial>;

    /// Fills absent pages with zeros. A mark (write protection of an absent page, poison) counts
    /// as a page here and for moves; only [`FaultDevice::copy`] replaces it.
    fn zero(&self, range: PageRange, wake: Wake) -> Result<(), Partial>;

    /// Moves pages to absent pages from `to` on, which this device must have registered. They
    /// arrive writable and without write protection.
    ///
    /// # Safety
    ///
    /// The pages of `from` become absent: nobody may rely on them.
    unsafe fn move_pages(&self, to: PageNo, from: PageRange, mode: MoveMode)
    -> Result<(), Partial>;

    /// Lets threads that wait for these pages try again.
    fn wake(&self, range: PageRange) -> Result<(), RequestError>;

    /// Sets or clears write protection of present pages (and absent ones, with WP_UNPOPULATED).
    fn write_protect(
        &self,
        range: PageRange,
        protect: bool,
        wake: Wake,
    ) -> Result<(), RequestError>;

    /// Maps pages that are in the page cache already (minor faults).
    fn resume(&self, range: PageRange, mode: CopyMode) -> Result<(), Partial>;

    /// Makes absent pages raise SIGBUS when touched: their contents are lost, until a copy brings
    /// them back.
    fn poison(&self, range: PageRange, wake: Wake) -> Result<(), Partial>;

    /// Whether a change of the address space is under way: its event was not read yet. Pages cannot
    /// be filled meanwhile ([`Cause::Again`]).
    fn is_changing(&self) -> bool;

    /// Adds waiting events to the buffer, as many as it has room for, without blocking; how many.
    fn read_events(&self, into: &mut EventBuffer<Self>) -> Result<usize, Errno>;

    /// Waits until there are events; false when the time is over. `None` waits for ever.
    fn wait(&self, timeout: Option<Duration>) -> Result<bool, Errno>;
}
