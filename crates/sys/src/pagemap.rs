//! What state the pages of an address space are in, asked of `/proc/PID/pagemap`.
//!
//! PAGEMAP_SCAN walks a range and returns runs of pages that match ([`Query`]); with WP_ASYNC it can
//! tell which pages were written and protect them again in one step. Classic entries tell the same
//! page by page. The seam is [`PageScan`]; the fake address space of [`crate::uffd::fake`]
//! implements it too. Invariant: [`Scanned::next`] is where to go on: a scan that filled its room
//! or reached its bound of pages is not the end. Known limit: whether a page was written can only
//! be asked in ranges registered for write protection.

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use linux_raw_sys::general as raw;
use muninn_types::PageNo;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::thread::{self, CapabilitySet, CapabilitySets};

use crate::uffd::PageRange;

const SCAN: Opcode = opcode::read_write::<raw::pm_scan_arg>(b'f', 16);

/// A set of properties of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Categories(pub u64);

impl Categories {
    pub const NONE: Categories = Categories(0);
    /// Write protection is tracked here.
    pub const WP_ALLOWED: Categories = Categories(raw::PAGE_IS_WPALLOWED as u64);
    /// Written since it was last protected; also true of an absent page that never was.
    pub const WRITTEN: Categories = Categories(raw::PAGE_IS_WRITTEN as u64);
    pub const FILE: Categories = Categories(raw::PAGE_IS_FILE as u64);
    pub const PRESENT: Categories = Categories(raw::PAGE_IS_PRESENT as u64);
    pub const SWAPPED: Categories = Categories(raw::PAGE_IS_SWAPPED as u64);
    /// The kernel's shared page of zeros.
    pub const ZERO: Categories = Categories(raw::PAGE_IS_PFNZERO as u64);
    pub const HUGE: Categories = Categories(raw::PAGE_IS_HUGE as u64);

    pub const fn contains(self, other: Categories) -> bool {
        self.0 & other.0 == other.0
    }
    pub const fn union(self, other: Categories) -> Categories {
        Categories(self.0 | other.0)
    }
}

impl std::ops::BitOr for Categories {
    type Output = Categories;
    fn bitor(self, other: Categories) -> Categories {
        self.union(other)
    }
}

/// Which pages to look for, and what to do with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Pages must have all of these.
    pub all_of: Categories,
    /// Pages must have none of these.
    pub none_of: Categories,
    /// Pages must have at least one of these (if there are any here).
    pub any_of: Categories,
    /// Categories to tell about; runs are split where they differ.
    pub tell: Categories,
    /// Write-protect the pages found, so that the next scan finds what was written after this one.
    pub protect: bool,
    /// Fail with EPERM where writes are not tracked instead of passing such pages over.
    pub require_tracking: bool,
    /// Pages found at most; 0 is no bound.
    pub pages_max: u64,
}

impl Query {
    /// Pages that take memory.
    pub const PRESENT: Query = Query {
        all_of: Categories::PRESENT,
        none_of: Categories::NONE,
        any_of: Categories::NONE,
        tell: Categories::PRESENT,
        protect: false,
        require_tracking: false,
        pages_max: 0,
    };

    /// Pages written since the last such query, which starts tracking anew. Absent pages that were
    /// never protected are among them, and bear a mark afterwards (see
    /// [`FaultDevice::zero`](crate::uffd::FaultDevice::zero)).
    pub const TAKE_WRITTEN: Query = Query {
        all_of: Categories::WRITTEN,
        none_of: Categories::NONE,
        any_of: Categories::NONE,
        tell: Categories::WRITTEN,
        protect: true,
        require_tracking: true,
        pages_max: 0,
    };

    /// Whether a page with these properties is looked for.
    pub fn matches(&self, page: Categories) -> bool {
        page.contains(self.all_of)
            && page.0 & self.none_of.0 == 0
            && (self.any_of.0 == 0 || page.0 & self.any_of.0 != 0)
    }
}

/// A run of pages that were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub range: PageRange,
    pub categories: Categories,
}

/// How far a scan came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Regions found, written to the front of the caller's room.
    pub regions: usize,
    /// The first page that was not looked at; the end of the range when all were.
    pub next: PageNo,
}

/// The page table could not be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagemapError {
    #[error(
        "cannot open the pagemap of process {pid} (0 is this one): {source}; it must be of the \
         same user, or root"
    )]
    Open { pid: i32, source: Errno },
    #[error("this kernel has no PAGEMAP_SCAN: Linux 6.7 or newer has it")]
    NoScan,
    #[error("writes are not tracked in {0}: register it for write protection with WP_ASYNC")]
    NotTracked(PageRange),
    #[error("cannot scan {range}: {source}")]
    Scan { range: PageRange, source: Errno },
    #[error("cannot read the entries of {range}: {source}")]
    Read { range: PageRange, source: Errno },
}

/// Something that knows the state of pages.
pub trait PageScan {
    /// Looks for pages, in order, until the range or the room ends.
    fn scan(
        &self,
        range: PageRange,
        query: &Query,
        into: &mut [Region],
    ) -> Result<Scanned, PagemapError>;
}

/// The page table of a process.
#[derive(Debug)]
pub struct Pagemap {
    fd: OwnedFd,
}

/// Regions the kernel fills in one call; a scan with more room calls again.
const REGIONS_PER_CALL: usize = 64;

impl Pagemap {
    pub fn open() -> Result<Pagemap, PagemapError> {
        Pagemap::open_at(0, "/proc/self/pagemap")
    }

    pub fn of(pid: i32) -> Result<Pagemap, PagemapError> {
        Pagemap::open_at(pid, &format!("/proc/{pid}/pagemap"))
    }

    /// A file for another user, who then sees what is there of a process's memory, but not where in the
    /// machine's: that takes a right of who opened it.
    pub fn file_for_others(pid: u32) -> Result<OwnedFd, Errno> {
        let own = thread::capabilities(None)?;
        let fewer = CapabilitySets {
            effective: own.effective - CapabilitySet::SYS_ADMIN,
            ..own
        };
        thread::set_capabilities(None, fewer)?;
        let file = crate::proc::open(&format!("/proc/{pid}/pagemap"));
        thread::set_capabilities(None, own)?;
        file
    }

    /// One that somebody else has opened, of this process's memory.
    pub fn handed(fd: OwnedFd) -> Pagemap {
        Pagemap { fd }
    }

    fn open_at(pid: i32, path: &str) -> Result<Pagemap, PagemapError> {
        let fd = crate::proc::open(path).map_err(|source| PagemapError::Open { pid, source })?;
        Ok(Pagemap { fd })
    }

    /// Reads classic entries of pages from `first` on; how many (pages past the end are left out).
    pub fn read_entries(
        &self,
        first: PageNo,
        into: &mut [PagemapEntry],
    ) -> Result<usize, PagemapError> {
        let range = PageRange::new(first, into.len() as u64);
        let mut done = 0;
        while done < into.len() {
            let mut bytes = [[0u8; 8]; REGIONS_PER_CALL];
            let asked = (into.len() - done).min(REGIONS_PER_CALL);
            let offset = (first.0 + done as u64) * 8;
            let piece = bytes[..asked].as_flattened_mut();
            let n = rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut *piece, offset))
                .map_err(|source| PagemapError::Read { range, source })?;
            let got = n / 8;
            for (entry, bytes) in into[done..].iter_mut().zip(&bytes[..got]) {
                *entry = PagemapEntry(u64::from_ne_bytes(*bytes));
            }
            done += got;
            if got < asked {
                break;
            }
        }
        Ok(done)
    }
}

impl PageScan for Pagemap {
    fn scan(
        &self,
        range: PageRange,
        query: &Query,
        into: &mut [Region],
    ) -> Result<Scanned, PagemapError> {
        let mut scanned = Scanned {
            regions: 0,
            next: range.first(),
        };
        let mut pages_left = query.pages_max;
        while scanned.regions < into.len() && scanned.next < range.end() {
            let room = (into.len() - scanned.regions).min(REGIONS_PER_CALL);
            let rest = range.skip(scanned.next.0 - range.first().0);
            let mut found = [EMPTY_REGION; REGIONS_PER_CALL];
            let (count, next) = scan_once(&self.fd, rest, query, pages_left, &mut found[..room])
                .map_err(|source| match source {
                    Errno::PERM => PagemapError::NotTracked(range),
                    Errno::NOTTY => PagemapError::NoScan,
                    source => PagemapError::Scan { range, source },
                })?;
            for region in &found[..count] {
                let pages = PageRange::of_bytes(region.start, region.end - region.start)
                    .unwrap_or(PageRange::new(range.first(), 0));
                into[scanned.regions] = Region {
                    range: pages,
                    categories: Categories(region.categories),
                };
                scanned.regions += 1;
                pages_left = pages_left.saturating_sub(pages.pages());
            }
            scanned.next = next;
            if query.pages_max > 0 && pages_left == 0 {
                break;
            }
        }
        Ok(scanned)
    }
}

const EMPTY_REGION: raw::page_region = raw::page_region {
    start: 0,
    end: 0,
    categories: 0,
};

fn scan_once(
    fd: &OwnedFd,
    range: PageRange,
    query: &Query,
    pages_max: u64,
    into: &mut [raw::page_region],
) -> Result<(usize, PageNo), Errno> {
    let mut argument = raw::pm_scan_arg {
        size: size_of::<raw::pm_scan_arg>() as u64,
        flags: if query.protect {
            u64::from(raw::PM_SCAN_WP_MATCHING)
        } else {
            0
        } | if query.require_tracking {
            u64::from(raw::PM_SCAN_CHECK_WPASYNC)
        } else {
            0
        },
        start: range.addr(),
        end: range.addr() + range.len_bytes(),
        walk_end: 0,
        vec: into.as_mut_ptr().addr() as u64,
        vec_len: into.len() as u64,
        max_pages: pages_max,
        // "None of" is "all of" with the sense of these bits turned around.
        category_inverted: query.none_of.0,
        category_mask: query.all_of.0 | query.none_of.0,
        category_anyof_mask: query.any_of.0,
        return_mask: query.tell.0,
    };
    // SAFETY: the kernel reads and writes the argument and at most `vec_len` regions of `into`;
    // that it protects pages is what write protection is for and changes no contents.
    let count = unsafe { rustix::ioctl::ioctl(fd, ScanRequest(&mut argument)) }?;
    Ok((count, PageNo::of_addr(argument.walk_end)))
}

/// The request, which also returns the number of regions.
struct ScanRequest<'a>(&'a mut raw::pm_scan_arg);

// SAFETY: the number belongs to this struct, which the kernel reads and writes; the number of
// regions it filled is the return value.
unsafe impl Ioctl for ScanRequest<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(count: IoctlOutput, _: *mut c_void) -> Result<usize, Errno> {
        Ok(count as usize)
    }
}

/// The classic entry of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagemapEntry(pub u64);

impl PagemapEntry {
    const fn bit(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }
    pub const fn is_present(self) -> bool {
        self.bit(63)
    }
    pub const fn is_swapped(self) -> bool {
        self.bit(62)
    }
    /// Of a file or shared memory.
    pub const fn is_file(self) -> bool {
        self.bit(61)
    }
    /// Mapped by this process only.
    pub const fn is_exclusive(self) -> bool {
        self.bit(56)
    }
    /// Write-protected by userfaultfd.
    pub const fn is_write_protected(self) -> bool {
        self.bit(57)
    }
}
