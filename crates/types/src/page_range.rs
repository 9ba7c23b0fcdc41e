//! A run of neighbouring pages.
//!
//! Invariant: what it names is whole pages and does not pass the end of the address space, so the
//! kernel never refuses one for its alignment.

use std::fmt;

use crate::{PAGE_SHIFT, PAGE_SIZE, PageNo};

/// Pages of the whole address space.
const PAGES_MAX: u64 = 1 << (64 - PAGE_SHIFT);

/// `pages` pages from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    first: PageNo,
    pages: u64,
}

impl PageRange {
    /// # Panics
    ///
    /// If the run passes the end of the address space.
    pub const fn new(first: PageNo, pages: u64) -> PageRange {
        assert!(first.0 < PAGES_MAX && pages <= PAGES_MAX - first.0);
        PageRange { first, pages }
    }

    /// A single page.
    pub const fn one(page: PageNo) -> PageRange {
        PageRange::new(page, 1)
    }

    /// The pages of `addr .. addr + len`; `None` where these are not whole pages.
    pub fn of_bytes(addr: u64, len: u64) -> Option<PageRange> {
        let mask = PAGE_SIZE as u64 - 1;
        let whole = addr & mask == 0 && len & mask == 0 && addr.checked_add(len).is_some();
        whole.then(|| PageRange {
            first: PageNo::of_addr(addr),
            pages: len >> PAGE_SHIFT,
        })
    }

    pub const fn first(&self) -> PageNo {
        self.first
    }

    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// The page after the last.
    pub const fn end(&self) -> PageNo {
        PageNo(self.first.0 + self.pages)
    }

    pub const fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Address of the first byte.
    pub const fn addr(&self) -> u64 {
        self.first.addr()
    }

    /// Bytes of all pages.
    pub const fn len_bytes(&self) -> u64 {
        self.pages << PAGE_SHIFT
    }

    pub const fn contains(&self, page: PageNo) -> bool {
        page.0 >= self.first.0 && page.0 < self.first.0 + self.pages
    }

    /// The rest of the run after its first `pages` pages.
    pub fn skip(&self, pages: u64) -> PageRange {
        let skipped = pages.min(self.pages);
        PageRange {
            first: PageNo(self.first.0 + skipped),
            pages: self.pages - skipped,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = PageNo> + use<> {
        (self.first.0..self.first.0 + self.pages).map(PageNo)
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages at {:#x}", self.pages, self.addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_make_a_range() {
        let range = PageRange::of_bytes(0x7000, 0x3000).unwrap();
        assert_eq!((range.first(), range.pages()), (PageNo(7), 3));
        assert_eq!((range.addr(), range.len_bytes()), (0x7000, 0x3000));
        assert_eq!(range.skip(2), PageRange::one(PageNo(9)));
        assert!(range.skip(5).is_empty() && !range.is_empty());
        assert!(range.contains(PageNo(9)) && !range.contains(PageNo(10)));
        assert_eq!(range.iter().map(PageNo::get).sum::<u64>(), 24);
        assert_eq!(range.to_string(), "3 pages at 0x7000");
        for (addr, len) in [(1, 0x1000), (0x1000, 1), (u64::MAX - 0xfff, 0x1000)] {
            assert_eq!(PageRange::of_bytes(addr, len), None);
        }
    }
}
