//! What a kernel's userfaultfd can do, as sets of bits.
//!
//! [`Features`] are agreed on when a descriptor is opened, [`Operations`] are answered for each
//! registered range. Known limit: bits of newer kernels are kept but have no name here.

use std::fmt;
use std::ops::{BitAnd, BitOr};

use linux_raw_sys::general as raw;

/// A set of features.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u64);

impl Features {
    pub const NONE: Features = Features(0);
    pub const PAGEFAULT_FLAG_WP: Features = Features(raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64);
    pub const EVENT_FORK: Features = Features(raw::UFFD_FEATURE_EVENT_FORK as u64);
    pub const EVENT_REMAP: Features = Features(raw::UFFD_FEATURE_EVENT_REMAP as u64);
    pub const EVENT_REMOVE: Features = Features(raw::UFFD_FEATURE_EVENT_REMOVE as u64);
    pub const MISSING_HUGETLBFS: Features = Features(raw::UFFD_FEATURE_MISSING_HUGETLBFS as u64);
    pub const MISSING_SHMEM: Features = Features(raw::UFFD_FEATURE_MISSING_SHMEM as u64);
    pub const EVENT_UNMAP: Features = Features(raw::UFFD_FEATURE_EVENT_UNMAP as u64);
    /// Touches of absent pages raise SIGBUS in the touching thread instead of an event.
    pub const SIGBUS: Features = Features(raw::UFFD_FEATURE_SIGBUS as u64);
    /// Fault events carry the id of the thread.
    pub const THREAD_ID: Features = Features(raw::UFFD_FEATURE_THREAD_ID as u64);
    pub const MINOR_HUGETLBFS: Features = Features(raw::UFFD_FEATURE_MINOR_HUGETLBFS as u64);
    pub const MINOR_SHMEM: Features = Features(raw::UFFD_FEATURE_MINOR_SHMEM as u64);
    /// Fault events carry the exact address, not that of the page.
    pub const EXACT_ADDRESS: Features = Features(raw::UFFD_FEATURE_EXACT_ADDRESS as u64);
    pub const WP_HUGETLBFS_SHMEM: Features = Features(raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM as u64);
    /// Absent pages can be write-protected too.
    pub const WP_UNPOPULATED: Features = Features(raw::UFFD_FEATURE_WP_UNPOPULATED as u64);
    pub const POISON: Features = Features(raw::UFFD_FEATURE_POISON as u64);
    /// The kernel clears write protection by itself; PAGEMAP_SCAN tells what was written.
    pub const WP_ASYNC: Features = Features(raw::UFFD_FEATURE_WP_ASYNC as u64);
    pub const MOVE: Features = Features(raw::UFFD_FEATURE_MOVE as u64);

    /// All events about changes of the address space.
    pub const EVENTS: Features = Features(
        Features::EVENT_FORK.0
            | Features::EVENT_REMAP.0
            | Features::EVENT_REMOVE.0
            | Features::EVENT_UNMAP.0,
    );

    /// All features with a name.
    pub const NAMED: [(Features, &'static str); 17] = [
        (Features::PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP"),
        (Features::EVENT_FORK, "EVENT_FORK"),
        (Features::EVENT_REMAP, "EVENT_REMAP"),
        (Features::EVENT_REMOVE, "EVENT_REMOVE"),
        (Features::MISSING_HUGETLBFS, "MISSING_HUGETLBFS"),
        (Features::MISSING_SHMEM, "MISSING_SHMEM"),
        (Features::EVENT_UNMAP, "EVENT_UNMAP"),
        (Features::SIGBUS, "SIGBUS"),
        (Features::THREAD_ID, "THREAD_ID"),
        (Features::MINOR_HUGETLBFS, "MINOR_HUGETLBFS"),
        (Features::MINOR_SHMEM, "MINOR_SHMEM"),
        (Features::EXACT_ADDRESS, "EXACT_ADDRESS"),
        (Features::WP_HUGETLBFS_SHMEM, "WP_HUGETLBFS_SHMEM"),
        (Features::WP_UNPOPULATED, "WP_UNPOPULATED"),
        (Features::POISON, "POISON"),
        (Features::WP_ASYNC, "WP_ASYNC"),
        (Features::MOVE, "MOVE"),
    ];

    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    pub const fn union(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Features {
    type Output = Features;
    fn bitor(self, other: Features) -> Features {
        self.union(other)
    }
}

impl BitAnd for Features {
    type Output = Features;
    fn bitand(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        let mut separator = "";
        for (feature, name) in Features::NAMED {
            if self.contains(feature) {
                write!(f, "{separator}{name}")?;
                separator = ", ";
                rest = rest.without(feature);
            }
        }
        match (rest.is_empty(), separator) {
            (true, "") => f.write_str("none"),
            (true, _) => Ok(()),
            (false, _) => write!(f, "{separator}{:#x}", rest.0),
        }
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({self})")
    }
}

/// What can be done with a registered range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations(pub u64);

impl Operations {
    const fn has(self, number: u32) -> bool {
        self.0 & (1 << number) != 0
    }
    pub const fn copy(self) -> bool {
        self.has(raw::_UFFDIO_COPY)
    }
    pub const fn zero(self) -> bool {
        self.has(raw::_UFFDIO_ZEROPAGE)
    }
    pub const fn move_pages(self) -> bool {
        self.has(raw::_UFFDIO_MOVE)
    }
    pub const fn write_protect(self) -> bool {
        self.has(raw::_UFFDIO_WRITEPROTECT)
    }
    pub const fn resume(self) -> bool {
        self.has(raw::_UFFDIO_CONTINUE)
    }
    pub const fn poison(self) -> bool {
        self.has(raw::_UFFDIO_POISON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_print_their_names() {
        assert_eq!(Features::NONE.to_string(), "none");
        assert_eq!(
            (Features::MOVE | Features::SIGBUS).to_string(),
            "SIGBUS, MOVE"
        );
        assert_eq!(Features(1 << 40).to_string(), "0x10000000000");
        let all = Features::NAMED
            .iter()
            .fold(Features::NONE, |all, (feature, _)| all | *feature);
        assert_eq!(all, Features(0x1ffff));
        assert!(all.contains(Features::EVENTS));
        assert_eq!(
            all.without(Features::EVENTS) & Features::EVENT_FORK,
            Features::NONE
        );
    }
}
