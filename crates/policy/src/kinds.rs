//! What kinds of memory a program has, which of them are paged, and why the others stay near.
//!
//! One mapping is of one kind. Counted is what is resident and would not be without the program: pages
//! of files that were not changed are the kernel's to drop, and do not count. Invariant: what is paged
//! here is what the pager takes over (`pager::candidates`); a test of the guide compares the table.
//!
//! Known limit: shared memory is told by its name (a memory file, `/dev/shm`, System V, `/dev/zero`); a
//! file on another file system in memory counts as a file.

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    Anonymous,
    Heap,
    Bss,
    Library,
    Stack,
    ReadOnly,
    Executable,
    Locked,
    Huge,
    File,
    Shared,
    Runtime,
    Special,
}

impl MemoryKind {
    pub const ALL: [MemoryKind; 13] = [
        MemoryKind::Anonymous,
        MemoryKind::Heap,
        MemoryKind::Bss,
        MemoryKind::Library,
        MemoryKind::Stack,
        MemoryKind::ReadOnly,
        MemoryKind::Executable,
        MemoryKind::Locked,
        MemoryKind::Huge,
        MemoryKind::File,
        MemoryKind::Shared,
        MemoryKind::Runtime,
        MemoryKind::Special,
    ];

    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Anonymous => "private anonymous",
            MemoryKind::Heap => "heap",
            MemoryKind::Bss => "bss",
            MemoryKind::Library => "library data",
            MemoryKind::Stack => "main stack",
            MemoryKind::ReadOnly => "read-only",
            MemoryKind::Executable => "executable",
            MemoryKind::Locked => "locked",
            MemoryKind::Huge => "huge pages",
            MemoryKind::File => "changed file pages",
            MemoryKind::Shared => "shared memory",
            MemoryKind::Runtime => "Muninn's own",
            MemoryKind::Special => "special",
        }
    }

    /// Whether its pages can be far.
    pub fn is_paged(self) -> bool {
        matches!(
            self,
            MemoryKind::Anonymous | MemoryKind::Heap | MemoryKind::Bss
        )
    }

    /// What it is, or why it stays near.
    pub fn why(self) -> &'static str {
        match self {
            MemoryKind::Anonymous => "mmap, malloc's arenas, stacks of threads",
            MemoryKind::Heap => "brk, malloc's first arena",
            MemoryKind::Bss => "zeroed data of the program",
            MemoryKind::Library => "the pager's own threads use the C library's data",
            MemoryKind::Stack => "the kernel grows it, and starts signal handlers on it",
            MemoryKind::ReadOnly => "only memory that can be read and written is taken over",
            MemoryKind::Executable => "made code that cannot be written any more is not taken over",
            MemoryKind::Locked => {
                "the program asked for it (mlock), and the kernel moves none of it"
            }
            MemoryKind::Huge => "of the kernel's reserve, 2 MiB at a time",
            MemoryKind::File => "pages that differ from their file, such as a program's data",
            MemoryKind::Shared => "other processes may have it mapped, and see it change",
            MemoryKind::Runtime => "the pager itself; a pager whose pages are far waits for itself",
            MemoryKind::Special => "the kernel's (vdso, vvar)",
        }
    }

    pub fn index(self) -> usize {
        self as usize
    }
}

/// What a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    Anonymous,
    /// Anonymous memory that follows the data of a library: its zeroed data.
    AfterLibrary,
    /// The same of the program.
    AfterProgram,
    Heap,
    Stack,
    Special,
    File,
    /// The data of a library.
    LibraryFile,
    /// A memory file, `/dev/shm`, System V or shared anonymous memory.
    SharedMemory,
    /// Something the runtime claimed, or maps for itself.
    Runtime,
    /// Memory of a server that the runtime maps: far memory, not the program's.
    Pool,
}

/// A mapping as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub backing: Backing,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    pub shared: bool,
    pub locked: bool,
    pub huge: bool,
    /// Bytes: resident; resident, each page in equal parts for its users; resident and of no file;
    /// of the reserve of huge pages.
    pub rss: u64,
    pub pss: u64,
    pub anonymous: u64,
    pub huge_bytes: u64,
}

/// The kind of a mapping and how much of it counts; `None` for what is not the program's.
pub fn classify(facts: &Facts) -> Option<(MemoryKind, u64)> {
    use MemoryKind as Kind;
    Some(match facts.backing {
        Backing::Pool => return None,
        Backing::Runtime => (Kind::Runtime, facts.rss),
        Backing::Special => (Kind::Special, facts.rss),
        _ if facts.huge => (Kind::Huge, facts.huge_bytes),
        Backing::SharedMemory if facts.shared => (Kind::Shared, facts.pss),
        // Pages of a file that others see, too, go back to it whenever the kernel wants.
        Backing::File | Backing::LibraryFile if facts.shared => return None,
        _ if facts.locked => (Kind::Locked, facts.anonymous),
        Backing::LibraryFile => (Kind::Library, facts.anonymous),
        Backing::File | Backing::SharedMemory => (Kind::File, facts.anonymous),
        Backing::AfterLibrary => (Kind::Library, facts.rss),
        Backing::Stack => (Kind::Stack, facts.rss),
        Backing::Anonymous | Backing::AfterProgram | Backing::Heap => {
            let kind = match (facts.read && facts.write, facts.execute, facts.backing) {
                (true, _, Backing::Heap) => Kind::Heap,
                (true, _, Backing::AfterProgram) => Kind::Bss,
                (true, _, _) => Kind::Anonymous,
                (false, true, _) => Kind::Executable,
                (false, false, _) => Kind::ReadOnly,
            };
            (kind, facts.rss)
        }
    })
}

/// Resident bytes of each kind, in the order of [`MemoryKind::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(pub [u64; MemoryKind::ALL.len()]);

impl Kinds {
    pub fn add(&mut self, facts: &Facts) {
        if let Some((kind, bytes)) = classify(facts) {
            self.0[kind.index()] = self.of(kind).saturating_add(bytes);
        }
    }

    pub fn of(&self, kind: MemoryKind) -> u64 {
        self.0[kind.index()]
    }

    /// What cannot go far.
    pub fn near(&self) -> u64 {
        let near = MemoryKind::ALL.iter().filter(|kind| !kind.is_paged());
        near.map(|&kind| self.of(kind)).fold(0, u64::saturating_add)
    }

    /// Those that cannot go far and are at least this large, the largest first.
    pub fn largest_near(&self, least: u64) -> impl Iterator<Item = (MemoryKind, u64)> + use<> {
        let mut all = MemoryKind::ALL.map(|kind| (kind, self.of(kind)));
        all.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        all.into_iter()
            .filter(move |(kind, bytes)| !kind.is_paged() && *bytes >= least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Facts = Facts {
        backing: Backing::Anonymous,
        read: true,
        write: true,
        execute: false,
        shared: false,
        locked: false,
        huge: false,
        rss: 1000,
        pss: 500,
        anonymous: 800,
        huge_bytes: 0,
    };

    #[test]
    fn each_mapping_is_of_one_kind() {
        use MemoryKind as Kind;
        let of = |facts: Facts| classify(&facts);
        let backed = |backing| Facts { backing, ..PLAIN };
        let read_only = |facts| Facts {
            write: false,
            ..facts
        };
        let shared = |facts| Facts {
            shared: true,
            ..facts
        };
        let cases = [
            (PLAIN, Some((Kind::Anonymous, 1000))),
            (backed(Backing::Heap), Some((Kind::Heap, 1000))),
            (backed(Backing::AfterProgram), Some((Kind::Bss, 1000))),
            (backed(Backing::AfterLibrary), Some((Kind::Library, 1000))),
            (backed(Backing::LibraryFile), Some((Kind::Library, 800))),
            (backed(Backing::Stack), Some((Kind::Stack, 1000))),
            (backed(Backing::File), Some((Kind::File, 800))),
            (read_only(PLAIN), Some((Kind::ReadOnly, 1000))),
            (
                Facts {
                    execute: true,
                    ..PLAIN
                },
                Some((Kind::Anonymous, 1000)),
            ),
            (
                read_only(Facts {
                    execute: true,
                    ..PLAIN
                }),
                Some((Kind::Executable, 1000)),
            ),
            (
                Facts {
                    locked: true,
                    ..PLAIN
                },
                Some((Kind::Locked, 800)),
            ),
            (
                Facts {
                    huge: true,
                    huge_bytes: 2 << 20,
                    ..shared(backed(Backing::SharedMemory))
                },
                Some((Kind::Huge, 2 << 20)),
            ),
            (
                shared(backed(Backing::SharedMemory)),
                Some((Kind::Shared, 500)),
            ),
            (shared(backed(Backing::File)), None),
            (backed(Backing::Pool), None),
            (backed(Backing::Runtime), Some((Kind::Runtime, 1000))),
            (backed(Backing::Special), Some((Kind::Special, 1000))),
        ];
        for (facts, expected) in cases {
            assert_eq!(of(facts), expected, "{facts:?}");
        }
    }

    /// The guide says what is true here.
    #[test]
    fn the_guide_has_each_kind() {
        let guide = include_str!("../../../docs/GUIDE.md");
        for kind in MemoryKind::ALL {
            let where_to = if kind.is_paged() { "paged" } else { "near" };
            let row = format!("| {} | {where_to} | {} |\n", kind.name(), kind.why());
            assert!(guide.contains(&row), "the guide lacks: {row}");
        }
    }

    #[test]
    fn what_stays_near_is_added_up_and_named() {
        let mut kinds = Kinds::default();
        for (backing, rss) in [
            (Backing::Heap, 70),
            (Backing::Stack, 8),
            (Backing::Runtime, 5),
        ] {
            kinds.add(&Facts {
                backing,
                rss,
                ..PLAIN
            });
        }
        assert_eq!((kinds.near(), kinds.of(MemoryKind::Heap)), (13, 70));
        let named: Vec<_> = kinds.largest_near(6).collect();
        assert_eq!(named, [(MemoryKind::Stack, 8)]);
        for (kind, index) in MemoryKind::ALL.into_iter().zip(0..) {
            assert_eq!(kind.index(), index);
        }
    }
}
