//! Which memory of a program may be taken over.
//!
//! Private anonymous memory that can be read and written: the heap, arenas, mappings, the zeroed
//! data of the program itself. Not ours; not the main stack; not the zeroed data of shared libraries,
//! because the C library's is used by our own threads too, and a thread that waits for itself waits
//! for ever.

use muninn_sys::own;
use muninn_sys::proc::{MapEntry, MapKind};
use muninn_sys::uffd::PageRange;

/// Walks over a program's mappings in order and picks those to take over.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Where the file mapping before ended, and whether its file is a library.
    library_end: Option<u64>,
}

impl Candidates {
    /// The parts of a mapping that may be taken over. `program` is the path of the executable.
    pub fn pick(
        &mut self,
        entry: &MapEntry<'_>,
        program: &[u8],
    ) -> impl Iterator<Item = PageRange> + use<> {
        let (from, mut end) = (entry.start, entry.end);
        let of_library = self.library_end.take() == Some(entry.start);
        if let MapKind::File { path, .. } = entry.kind {
            // Zeroed data follows data: shared files and code are followed by anything.
            let data = entry.permissions.write && !entry.permissions.shared;
            self.library_end = (data && path != program).then_some(entry.end);
        }
        if of_library || !entry.is_private_anonymous() {
            end = from;
        }
        unclaimed(from, end)
    }
}

/// The parts of a range of addresses that are not the runtime's own.
pub fn unclaimed(mut from: u64, end: u64) -> impl Iterator<Item = PageRange> {
    std::iter::from_fn(move || {
        let (first, last) = own::first_unclaimed(from, end)?;
        from = last;
        PageRange::of_bytes(first, last - first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_sys::proc::Maps;

    #[test]
    fn only_memory_of_the_program_is_picked() {
        let text = b"\
555555554000-555555558000 r--p 00000000 08:01 11 /usr/bin/program\n\
555555558000-555555559000 rw-p 00004000 08:01 11 /usr/bin/program\n\
555555559000-55555555d000 rw-p 00000000 00:00 0 \n\
55555555d000-555555580000 rw-p 00000000 00:00 0 [heap]\n\
7ffff0000000-7ffff0100000 rw-p 00000000 00:00 0 \n\
7ffff0100000-7ffff0200000 r--p 00000000 00:00 0 \n\
7ffff0200000-7ffff0300000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n\
7ffff0300000-7ffff0400000 rw-p 00000000 00:00 0 \n\
7ffff7c00000-7ffff7c01000 rw-p 00000000 08:01 12 /lib/libc.so.6\n\
7ffff7c01000-7ffff7c0e000 rw-p 00000000 00:00 0 \n\
7ffff7d00000-7ffff7e00000 rw-p 00000000 00:00 0 [anon:arena]\n\
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]\n";
        let mut candidates = Candidates::default();
        let picked: Vec<u64> = Maps::new(text)
            .flat_map(|entry| candidates.pick(&entry, b"/usr/bin/program"))
            .map(|range| range.addr())
            .collect();
        let expected = [
            0x5555_5555_9000,
            0x5555_5555_d000,
            0x7fff_f000_0000,
            // Beside a shared file, by chance.
            0x7fff_f030_0000,
            0x7fff_f7d0_0000,
        ];
        assert_eq!(picked, expected);
    }
}
