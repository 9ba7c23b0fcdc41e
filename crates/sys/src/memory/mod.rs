//! Memory of our own: files in memory, mappings of them, and copies that survive a vanished page.
//!
//! A [`Memfd`] is memory with a descriptor, so it can be handed to another process. A [`Mapping`]
//! is a piece of address space that is given back when dropped. Invariant: no safe function here
//! hands out a reference into a mapping, because another process (or a truncation) may change it
//! at any time; safe code goes through [`Mapping::read_at`] and [`Mapping::write_at`], which copy
//! with [`guarded_copy`]. Known limit: x86-64 only, as the copy is written in its assembly.

mod guarded;
mod guarded_word;
mod huge;
mod mapping;
mod memfd;
mod options;
pub mod program;
mod reserve;
mod shared;

pub(crate) use guarded::guarded_copy_bounds;
pub use guarded::{BusFault, guarded_copy};
pub(crate) use guarded_word::guarded_word_bounds;
pub use guarded_word::{guarded_compare_swap, guarded_fetch_add, guarded_load, guarded_store};
pub use huge::{HugePages, HugetlbPool, ShmemThp};
pub use mapping::Mapping;
pub use memfd::{Memfd, Seals};
pub use options::{Access, HugeAdvice, MapOptions};
pub use reserve::Reserve;
pub use shared::{Plain, Shared};

use muninn_types::Bytes;
use rustix::io::Errno;

/// What went wrong with a memory file or a mapping.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("cannot create the memory file '{name}' of {size}: {source}; {}", advice(*.source))]
    Create {
        name: String,
        size: Bytes,
        source: Errno,
    },
    #[error(
        "cannot create the memory file '{name}' of {size} from 2 MiB pages: {source}; \
         reserve them with 'sysctl vm.nr_hugepages={}' or run without huge pages",
        size.0.div_ceil(2 << 20)
    )]
    CreateHuge {
        name: String,
        size: Bytes,
        source: Errno,
    },
    #[error("cannot {action} the memory file: {source}; {}", advice(*.source))]
    File { action: &'static str, source: Errno },
    #[error("the descriptor is not a memory file that can be sealed: {source}")]
    NotMemfd { source: Errno },
    #[error("cannot map {len} of {what}: {source}; {}", advice(*.source))]
    Map {
        what: &'static str,
        len: Bytes,
        source: Errno,
    },
    #[error("cannot {action} {len} at {addr:#x}: {source}; {}", advice(*.source))]
    Range {
        action: &'static str,
        addr: u64,
        len: Bytes,
        source: Errno,
    },
    #[error(
        "{len} at offset {offset} lie outside of a mapping of {mapped}: this is a mistake of the caller"
    )]
    OutOfRange {
        offset: u64,
        len: Bytes,
        mapped: Bytes,
    },
    #[error("the mapping may not be written: it was made read-only")]
    ReadOnly,
    #[error("offset {offset:#x} and length {len} are not multiples of the page size")]
    NotAligned { offset: u64, len: Bytes },
    #[error(transparent)]
    Bus(#[from] BusFault),
}

/// What a person can do about an error of the memory calls.
fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::NOMEM => {
            "free memory, or raise the limit that is in the way \
             (ulimit -v, ulimit -l, vm.max_map_count, the cgroup's memory limit)"
        }
        Errno::PERM | Errno::ACCESS => {
            "the file is sealed or opened read-only, or CAP_IPC_LOCK is missing"
        }
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        Errno::NOSPC => "the file system of shared memory is full; free some of it",
        Errno::AGAIN => "the limit of locked memory is reached (ulimit -l)",
        _ => "see the log of the kernel (dmesg)",
    }
}
