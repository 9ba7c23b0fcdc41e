//! The memory of this process by kinds: `/proc/self/smaps` put into `policy::kinds`.
//!
//! Invariant: mappings of the runtime (claimed ranges, its library, the job's page) are its own, and a
//! server's memory that it maps is nobody's here. Known limit: where the kernel has joined memory of the
//! runtime with the program's, it counts as the program's.

use muninn_policy::kinds::{Backing, Facts, Kinds};
use muninn_sys::own;
use muninn_sys::proc::{MapEntry, MapKind, MapMemory, MapsError, for_each_map_memory};

/// The buffer that `smaps` is read through.
const BUFFER: usize = 64 << 10;
/// Memory of a server, by the name its file has in maps.
const POOL: &[u8] = b"/memfd:muninn-";
/// How the names of shared memory begin.
const SHARED_MEMORY: [&[u8]; 5] = [
    b"/memfd:",
    b"/dev/zero",
    b"/dev/shm/",
    b"/SYSV",
    b"[anon_shmem",
];

/// Measures this process.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    buffer: Vec<u8>,
    program: Vec<u8>,
}

impl Measure {
    /// What is resident of each kind.
    pub(crate) fn measure(&mut self) -> Result<Kinds, MapsError> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER];
            let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
            self.program = program.into_os_string().into_encoded_bytes();
        }
        let (mut kinds, mut before) = (Kinds::default(), None);
        let program = &self.program;
        for_each_map_memory(0, &mut self.buffer, |entry, memory| {
            let backing = backing(entry, program, &mut before);
            kinds.add(&facts(entry, memory, backing));
        })?;
        Ok(kinds)
    }
}

/// Where writable data of a file ended just before, and whether it is the program's.
type Before = Option<(u64, bool)>;

fn backing(entry: &MapEntry<'_>, program: &[u8], before: &mut Before) -> Backing {
    let after = before.take().filter(|(end, _)| *end == entry.start);
    // What servers lent is theirs, although it lies among our addresses.
    let is_pool = matches!(entry.kind, MapKind::File { path, .. } if path.starts_with(POOL));
    if !is_pool && own::first_unclaimed(entry.start, entry.end).is_none() {
        return Backing::Runtime;
    }
    match entry.kind {
        MapKind::Heap => Backing::Heap,
        MapKind::Stack => Backing::Stack,
        MapKind::Special(_) => Backing::Special,
        MapKind::Anonymous | MapKind::Named(_) => match after {
            Some((_, true)) => Backing::AfterProgram,
            Some((_, false)) => Backing::AfterLibrary,
            None => Backing::Anonymous,
        },
        MapKind::File { path, .. } => {
            let permissions = entry.permissions;
            let data = permissions.write && !permissions.shared;
            *before = data.then_some((entry.end, path == program));
            of_file(path, program)
        }
    }
}

fn of_file(path: &[u8], program: &[u8]) -> Backing {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let holds = |part: &[u8]| name.windows(part.len()).any(|some| some == part);
    let in_own_folder = path
        .split(|&byte| byte == b'/')
        .any(|folder| folder.starts_with(b"muninn-"));
    if path.starts_with(POOL) {
        Backing::Pool
    } else if holds(b"muninn_preload") || in_own_folder && name.starts_with(b"job-") {
        Backing::Runtime
    } else if SHARED_MEMORY.iter().any(|begin| path.starts_with(begin)) {
        Backing::SharedMemory
    } else if path != program && holds(b".so") {
        Backing::LibraryFile
    } else {
        Backing::File
    }
}

fn facts(entry: &MapEntry<'_>, memory: &MapMemory, backing: Backing) -> Facts {
    let permissions = entry.permissions;
    // Of the runtime's files only what was changed is memory of its own.
    let of_file = matches!(entry.kind, MapKind::File { .. }) && !permissions.shared;
    let rss = if of_file {
        memory.anonymous
    } else {
        memory.rss
    };
    Facts {
        backing,
        read: permissions.read,
        write: permissions.write,
        execute: permissions.execute,
        shared: permissions.shared,
        locked: memory.is_locked,
        huge: memory.is_huge,
        rss: rss.0,
        pss: memory.pss.0,
        anonymous: memory.anonymous.0,
        huge_bytes: memory.huge.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muninn_policy::kinds::MemoryKind;
    use muninn_sys::memory::{Mapping, Memfd};
    use muninn_sys::proc::Maps;
    use muninn_types::Bytes;

    #[test]
    fn memory_of_servers_is_not_the_runtimes_although_it_lies_among_its_addresses() {
        let text = b"\
100000000000-100000100000 rw-s 00000000 00:01 9 /memfd:muninn-seg-1 (deleted)\n\
100000100000-100000200000 rw-p 00000000 00:00 0 \n";
        assert!(own::claim(0x1000_0000_0000, 0x20_0000));
        let backings: Vec<Backing> = Maps::new(text)
            .map(|entry| backing(&entry, b"/usr/bin/program", &mut None))
            .collect();
        assert_eq!(backings, [Backing::Pool, Backing::Runtime]);
    }

    #[test]
    fn mappings_are_told_apart() {
        let text = b"\
555555554000-555555558000 r--p 00000000 08:01 11 /usr/bin/program\n\
555555558000-555555559000 rw-p 00004000 08:01 11 /usr/bin/program\n\
555555559000-55555555d000 rw-p 00000000 00:00 0 \n\
55555555d000-555555580000 rw-p 00000000 00:00 0 [heap]\n\
7ffff0000000-7ffff0100000 rw-p 00000000 00:00 0 \n\
7ffff0200000-7ffff0300000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n\
7ffff0300000-7ffff0400000 rw-p 00000000 00:00 0 \n\
7ffff0400000-7ffff0500000 rw-s 00000000 00:01 9 /memfd:muninn-seg-1 (deleted)\n\
7ffff0600000-7ffff0700000 rw-s 00000000 00:01 9 /dev/shm/muninn-0/job-12-ab\n\
7ffff7c00000-7ffff7c01000 rw-p 00000000 08:01 12 /lib/libc.so.6\n\
7ffff7c01000-7ffff7c0e000 rw-p 00000000 00:00 0 \n\
7ffff7d00000-7ffff7d01000 rw-p 00000000 08:01 13 /opt/libmuninn_preload.so\n\
7ffff7e00000-7ffff7e01000 rw-p 00000000 08:01 14 /var/data\n\
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]\n\
7ffff7fc1000-7ffff7fc5000 r--p 00000000 00:00 0 [vvar]\n";
        let mut before = None;
        let backings: Vec<Backing> = Maps::new(text)
            .map(|entry| backing(&entry, b"/usr/bin/program", &mut before))
            .collect();
        let expected = [
            Backing::File,
            Backing::File,
            Backing::AfterProgram,
            Backing::Heap,
            Backing::Anonymous,
            Backing::SharedMemory,
            Backing::Anonymous,
            Backing::Pool,
            Backing::Runtime,
            Backing::LibraryFile,
            Backing::AfterLibrary,
            Backing::Runtime,
            Backing::File,
            Backing::Stack,
            Backing::Special,
        ];
        assert_eq!(backings, expected);
    }

    #[test]
    fn memory_of_this_process_is_counted_by_kind() {
        let mut measure = Measure::default();
        let before = measure.measure().unwrap();
        let size = Bytes::mib(8);
        let private = Mapping::options().populate().anonymous(size).unwrap();
        let file = Memfd::create("a test", size).unwrap();
        let shared = Mapping::options().shared().file(&file, 0, size).unwrap();
        shared.populate().unwrap();
        private.lock().unwrap_or(());
        let after = measure.measure().unwrap();
        let grown = |kind| after.of(kind).saturating_sub(before.of(kind));
        assert!(grown(MemoryKind::Shared) >= size.0, "{before:?} {after:?}");
        let both = grown(MemoryKind::Anonymous) + grown(MemoryKind::Locked);
        assert!(both >= size.0, "{before:?} {after:?}");
        assert!(after.of(MemoryKind::Stack) > 0 && after.of(MemoryKind::Library) > 0);
    }
}
