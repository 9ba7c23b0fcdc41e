//! The address space of a process, from `/proc/PID/maps`.
//!
//! [`Maps`] walks over a text; [`for_each_map`] reads the file through a buffer of the caller, so a
//! pager can look for memory to adopt without allocating. Invariant: every entry is a whole line.
//! Known limit: the kernel shows a moment per read, not one moment for the whole file: neighbours
//! may be seen twice or not at all while the program maps and unmaps.

use std::ops::ControlFlow;

use rustix::io::Errno;

use super::parse::number;
use super::{open, path_of};

/// Longest line: the fixed part and a path of PATH_MAX bytes.
const LINE_MAX: usize = 4096 + 128;

/// `maps` could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapsError {
    #[error("cannot read the maps of process {pid} (0 is this one): {source}")]
    Read { pid: i32, source: Errno },
    #[error("a buffer of {0} bytes is too small to read maps: give at least {LINE_MAX}")]
    SmallBuffer(usize),
}

/// What a mapping allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    pub shared: bool,
}

/// What a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind<'a> {
    /// Private zero pages without a name.
    Anonymous,
    /// Anonymous memory the program gave a name to (`[anon:…]`).
    Named(&'a [u8]),
    /// The heap of `brk`.
    Heap,
    /// The stack of the main thread.
    Stack,
    /// `[vdso]`, `[vvar]`, `[uprobes]` and whatever the kernel invents next.
    Special(&'a [u8]),
    /// A file, memory file, device or shared memory.
    File { path: &'a [u8], deleted: bool },
}

/// A line of `maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry<'a> {
    pub start: u64,
    pub end: u64,
    pub permissions: Permissions,
    pub offset: u64,
    pub inode: u64,
    pub kind: MapKind<'a>,
}

impl<'a> MapEntry<'a> {
    /// `None` for a line that is not one of `maps`.
    pub fn parse(line: &'a [u8]) -> Option<MapEntry<'a>> {
        let mut rest = line;
        let mut word = || {
            let trimmed = rest.trim_ascii_start();
            let end = trimmed
                .iter()
                .position(|&b| b == b' ')
                .unwrap_or(trimmed.len());
            let (word, after) = trimmed.split_at(end);
            rest = after;
            (!word.is_empty()).then_some(word)
        };
        let range = word()?;
        let dash = range.iter().position(|&b| b == b'-')?;
        let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
        let flags = word()?;
        let offset = hex(word()?)?;
        let _device = word()?;
        let inode = number(word()?)?;
        if flags.len() < 4 || end <= start {
            return None;
        }
        let name = rest.trim_ascii();
        Some(MapEntry {
            start,
            end,
            permissions: Permissions {
                read: flags[0] == b'r',
                write: flags[1] == b'w',
                execute: flags[2] == b'x',
                shared: flags[3] == b's',
            },
            offset,
            inode,
            kind: kind_of(name, inode),
        })
    }

    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Private memory of the program itself: what a pager may take over.
    pub fn is_private_anonymous(&self) -> bool {
        self.permissions.read
            && self.permissions.write
            && !self.permissions.shared
            && matches!(
                self.kind,
                MapKind::Anonymous | MapKind::Named(_) | MapKind::Heap
            )
    }
}

fn kind_of(name: &[u8], inode: u64) -> MapKind<'_> {
    const DELETED: &[u8] = b" (deleted)";
    match name {
        b"" if inode == 0 => MapKind::Anonymous,
        b"[heap]" => MapKind::Heap,
        b"[stack]" => MapKind::Stack,
        name if inode == 0 && name.starts_with(b"[anon:") => MapKind::Named(name),
        name if inode == 0 && name.starts_with(b"[") => MapKind::Special(name),
        name => MapKind::File {
            path: name.strip_suffix(DELETED).unwrap_or(name),
            deleted: name.ends_with(DELETED),
        },
    }
}

pub(super) fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Walks over the lines of a text of `maps`. Lines that cannot be read are passed over.
#[derive(Clone, Debug)]
pub struct Maps<'a> {
    rest: &'a [u8],
}

impl<'a> Maps<'a> {
    pub fn new(text: &'a [u8]) -> Maps<'a> {
        Maps { rest: text }
    }
}

impl<'a> Iterator for Maps<'a> {
    type Item = MapEntry<'a>;

    fn next(&mut self) -> Option<MapEntry<'a>> {
        while !self.rest.is_empty() {
            let end = self.rest.iter().position(|&b| b == b'\n');
            let (line, rest) = match end {
                Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
                None => (self.rest, &[][..]),
            };
            self.rest = rest;
            if let Some(entry) = MapEntry::parse(line) {
                return Some(entry);
            }
        }
        None
    }
}

/// Reads the maps of a process (`pid` 0: this one) through `buffer` and hands each entry to `visit`.
/// Allocates only where `pid` is not 0 (the name of the file).
pub fn for_each_map(
    pid: i32,
    buffer: &mut [u8],
    mut visit: impl FnMut(&MapEntry<'_>) -> ControlFlow<()>,
) -> Result<(), MapsError> {
    let failed = |source| MapsError::Read { pid, source };
    let file = match pid {
        0 => open("/proc/self/maps"),
        _ => open(&path_of(pid, "maps")),
    }
    .map_err(failed)?;
    visit_lines(
        buffer,
        |piece| rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *piece)).map_err(failed),
        &mut visit,
    )
}

/// Cuts what `read` delivers into whole lines.
fn visit_lines(
    buffer: &mut [u8],
    read: impl FnMut(&mut [u8]) -> Result<usize, MapsError>,
    visit: &mut impl FnMut(&MapEntry<'_>) -> ControlFlow<()>,
) -> Result<(), MapsError> {
    visit_text(buffer, read, |text| {
        Maps::new(text).try_for_each(|entry| visit(&entry))
    })
}

/// Cuts what `read` delivers into texts of whole lines.
pub(super) fn visit_text(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8]) -> Result<usize, MapsError>,
    mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<(), MapsError> {
    if buffer.len() < LINE_MAX {
        return Err(MapsError::SmallBuffer(buffer.len()));
    }
    let mut kept = 0;
    loop {
        let got = read(&mut buffer[kept..])?;
        let filled = kept + got;
        let whole = if got == 0 {
            filled
        } else {
            buffer[..filled]
                .iter()
                .rposition(|&b| b == b'\n')
                .map_or(0, |newline| newline + 1)
        };
        if visit(&buffer[..whole]).is_break() || got == 0 {
            return Ok(());
        }
        buffer.copy_within(whole..filled, 0);
        kept = filled - whole;
        // A line longer than any the kernel writes: let go of it rather than loop for ever.
        if kept == buffer.len() {
            kept = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, Memfd};
    use muninn_types::Bytes;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"\
55d0c3a00000-55d0c3a21000 rw-p 00000000 00:00 0                          [heap]
7f0a20000000-7f0a20021000 rw-p 00000000 00:00 0 \n\
7f0a20021000-7f0a24000000 ---p 00000000 00:00 0 \n\
7f0a28000000-7f0a28001000 rw-s 00001000 00:01 1029                       /memfd:a pool (deleted)
7f0a29000000-7f0a29001000 rw-p 00000000 00:00 0                          [anon:glibc: malloc]
7f0a2a000000-7f0a2a026000 r-xp 00002000 fe:00 12345                      /usr/lib/libc.so.6
7ffd3b000000-7ffd3b021000 rw-p 00000000 00:00 0                          [stack]
7ffd3b1f0000-7ffd3b1f4000 r--p 00000000 00:00 0                          [vvar]
";

    #[test]
    fn kinds_and_ranges_are_read() {
        let entries: Vec<MapEntry<'_>> = Maps::new(TEXT).collect();
        let adoptable: Vec<bool> = entries.iter().map(|e| e.is_private_anonymous()).collect();
        assert_eq!(
            adoptable,
            [true, true, false, false, true, false, false, false]
        );
        assert_eq!(entries[0].kind, MapKind::Heap);
        assert_eq!(
            (entries[0].start, entries[0].len()),
            (0x55d0_c3a0_0000, 0x21000)
        );
        assert_eq!(
            entries[3].kind,
            MapKind::File {
                path: b"/memfd:a pool",
                deleted: true
            }
        );
        assert!(entries[3].permissions.shared && entries[3].offset == 0x1000);
        assert_eq!(entries[6].kind, MapKind::Stack);
        assert_eq!(entries[7].kind, MapKind::Special(b"[vvar]"));
    }

    #[test]
    fn our_own_mappings_are_found_through_a_small_buffer() {
        let memfd = Memfd::create("found", Bytes::PAGE).unwrap();
        let file = Mapping::options()
            .shared()
            .file(&memfd, 0, Bytes::PAGE)
            .unwrap();
        let mut buffer = [0; LINE_MAX];
        let mut found = false;
        for_each_map(0, &mut buffer, |entry| {
            if entry.start <= file.addr() && file.addr() < entry.end {
                assert!(
                    matches!(entry.kind, MapKind::File { path, .. } if path.ends_with(b"found"))
                );
                found = true;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(found);
        assert_eq!(
            for_each_map(0, &mut [0; 10], |_| ControlFlow::Continue(())),
            Err(MapsError::SmallBuffer(10))
        );
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_lines(pieces in prop::collection::vec(1usize..300, 1..20)) {
            let mut sizes = pieces.iter().copied().cycle();
            let mut rest = TEXT;
            let mut buffer = [0; LINE_MAX];
            let mut starts = Vec::new();
            visit_lines(&mut buffer, |piece| {
                let n = sizes.next().unwrap_or(1).min(rest.len()).min(piece.len());
                piece[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                Ok(n)
            }, &mut |entry: &MapEntry<'_>| { starts.push(entry.start); ControlFlow::Continue(()) }).unwrap();
            let expected: Vec<u64> = Maps::new(TEXT).map(|e| e.start).collect();
            prop_assert_eq!(starts, expected);
        }

        #[test]
        fn no_text_makes_the_walk_fail(text: Vec<u8>) {
            Maps::new(&text).count();
        }
    }
}
