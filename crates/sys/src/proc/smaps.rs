//! The memory behind each mapping of a process, from `/proc/PID/smaps`.
//!
//! The kernel looks at every page for it: 10 ms for a GiB. Invariant: every entry is whole, its line and
//! all that is said about it. Known limit: as for `maps`, not one moment for the whole file.

use std::ops::ControlFlow;

use muninn_types::Bytes;

use super::maps::{MapEntry, MapsError, visit_text};
use super::parse::{fields, kib};
use super::{open, path_of};

/// What is behind a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapMemory {
    pub rss: Bytes,
    /// Pages with several users counted in equal parts for each.
    pub pss: Bytes,
    /// Pages of no file: private ones that were written.
    pub anonymous: Bytes,
    /// Pages of the kernel's reserve of huge pages; no part of `rss`.
    pub huge: Bytes,
    pub swap: Bytes,
    pub locked: Bytes,
    /// VmFlags: kept in memory (`lo`), huge pages of the reserve (`ht`), missing pages are told to a
    /// userfaultfd (`um`).
    pub is_locked: bool,
    pub is_huge: bool,
    pub is_managed: bool,
}

impl MapMemory {
    fn read(&mut self, line: &[u8]) {
        for (name, value) in fields(line) {
            match name {
                b"Rss" => self.rss = kib(value),
                b"Pss" => self.pss = kib(value),
                b"Anonymous" => self.anonymous = kib(value),
                b"Private_Hugetlb" | b"Shared_Hugetlb" => self.huge.0 += kib(value).0,
                b"Swap" => self.swap = kib(value),
                b"Locked" => self.locked = kib(value),
                b"VmFlags" => {
                    for flag in value.split(|&byte| byte == b' ') {
                        self.is_locked |= flag == b"lo";
                        self.is_huge |= flag == b"ht";
                        self.is_managed |= flag == b"um";
                    }
                }
                _ => {}
            }
        }
    }
}

/// Reads the mappings of a process (`pid` 0: this one) with their memory through `buffer` and hands
/// each to `visit`.
pub fn for_each_map_memory(
    pid: i32,
    buffer: &mut [u8],
    mut visit: impl FnMut(&MapEntry<'_>, &MapMemory),
) -> Result<(), MapsError> {
    let failed = |source| MapsError::Read { pid, source };
    let file = open(&path_of(pid, "smaps")).map_err(failed)?;
    let read = |piece: &mut [u8]| {
        rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *piece)).map_err(failed)
    };
    walk(buffer, read, &mut visit)
}

fn walk(
    buffer: &mut [u8],
    read: impl FnMut(&mut [u8]) -> Result<usize, MapsError>,
    visit: &mut impl FnMut(&MapEntry<'_>, &MapMemory),
) -> Result<(), MapsError> {
    // The line of the mapping that is being read; it may have left the buffer by now.
    let (mut line_of, mut memory) = (Vec::new(), MapMemory::default());
    let mut tell = |line: &[u8], memory: &MapMemory| {
        if let Some(entry) = MapEntry::parse(line) {
            visit(&entry, memory);
        }
    };
    visit_text(buffer, read, |text| {
        for line in text.split(|&byte| byte == b'\n') {
            if MapEntry::parse(line).is_some() {
                tell(&line_of, &memory);
                memory = MapMemory::default();
                line_of.clear();
                line_of.extend_from_slice(line);
            } else {
                memory.read(line);
            }
        }
        ControlFlow::Continue(())
    })?;
    tell(&line_of, &memory);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;
    use proptest::prelude::*;

    const TEXT: &str = "\
55d0c3a00000-55d0c3a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                 100 kB
Pss:                  50 kB
Anonymous:           100 kB
Locked:                8 kB
VmFlags: rd wr mr mw me lo ac um
7f0a28000000-7f0a28001000 rw-s 00001000 00:01 1029                       /memfd:a pool (deleted)
Rss:                   4 kB
Pss:                   2 kB
Anonymous:             0 kB
Private_Hugetlb:    2048 kB
Shared_Hugetlb:     4096 kB
VmFlags: rd wr sh mr mw me ms ht
";

    type Seen = Vec<(u64, MapMemory)>;

    /// Walks over a text that arrives in pieces.
    fn seen(text: &[u8], piece: usize) -> Seen {
        let (mut rest, mut seen) = (text, Seen::new());
        let read = |into: &mut [u8]| {
            let n = rest.len().min(piece).min(into.len());
            into[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            Ok(n)
        };
        let mut visit = |entry: &MapEntry<'_>, memory: &MapMemory| {
            seen.push((entry.start, *memory));
        };
        walk(&mut vec![0; 8192], read, &mut visit).unwrap();
        seen
    }

    #[test]
    fn mappings_come_with_their_memory_however_the_text_is_cut() {
        let expected = [
            (
                0x55d0_c3a0_0000,
                MapMemory {
                    rss: Bytes::kib(100),
                    pss: Bytes::kib(50),
                    anonymous: Bytes::kib(100),
                    locked: Bytes::kib(8),
                    is_locked: true,
                    is_managed: true,
                    ..MapMemory::default()
                },
            ),
            (
                0x7f0a_2800_0000,
                MapMemory {
                    rss: Bytes::kib(4),
                    pss: Bytes::kib(2),
                    huge: Bytes::mib(6),
                    is_huge: true,
                    ..MapMemory::default()
                },
            ),
        ];
        for piece in [1, 7, 100, 8192] {
            assert_eq!(seen(TEXT.as_bytes(), piece), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn memory_of_this_process_is_found() {
        let map = Mapping::options()
            .populate()
            .anonymous(Bytes::mib(3))
            .unwrap();
        let mut found = Bytes::ZERO;
        for_each_map_memory(0, &mut [0; 16 << 10], |entry, memory| {
            if entry.start <= map.addr() && map.addr() < entry.end {
                found = memory.anonymous;
            }
        })
        .unwrap();
        assert!(found >= Bytes::mib(3), "{found}");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_fail(text: Vec<u8>, piece in 1usize..100) {
            seen(&text, piece);
        }
    }
}
