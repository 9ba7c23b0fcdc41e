//! The bytes of a job's file.
//!
//! Texts are kept in words and not in bytes: a word is what can be changed in one step.

use crate::{Counters, PLACES_MAX};
use muninn_sys::bell::Bell;
use muninn_sys::memory::Plain;
use std::sync::atomic::{AtomicU64, Ordering};

/// "MUNINNJB", as it lies in memory.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"MUNINNJB");
/// Raised whenever the meaning of the file changes.
pub(crate) const VERSION: u64 = 9;
/// Longest configuration.
pub(crate) const CONFIG_MAX: usize = 16 << 10;
/// Longest list of servers.
pub(crate) const POOL_MAX: usize = 32 << 10;
/// Longest message of a runtime; what is longer is cut.
pub(crate) const MESSAGE_MAX: usize = 1 << 10;
/// Longest note, and how many wait to be printed; of more the oldest are lost.
pub(crate) const NOTE_MAX: usize = 512;
pub(crate) const NOTES_MAX: usize = 8;

/// The file.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Layout {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    /// Length of this struct: it differs when the list of counters does.
    pub bytes: AtomicU64,
    /// The launcher's `ProcessId`.
    pub launcher: AtomicU64,
    pub limit: AtomicU64,
    /// The most that all processes together held, near and far, near, and far.
    pub footprint_peak: AtomicU64,
    pub local_peak: AtomicU64,
    pub far_peak: AtomicU64,
    /// Processes that ever took a place.
    pub attached: AtomicU64,
    /// 1 once the runtime was loaded into a program, whether that lived to have a place or not.
    pub loaded: AtomicU64,
    /// Places from this one on were never taken; nobody looks at them.
    pub places_used: AtomicU64,
    pub board: Board,
    pub message: MessageArea,
    /// Notes that were ever left.
    pub notes_left: AtomicU64,
    pub notes: [NoteArea; NOTES_MAX],
    /// What the first runtime was told of the limit, or would have been: it is complete when the number is
    /// [`crate::job::COMPLETE`].
    pub advice: NoteArea,
    pub config: Text<{ CONFIG_MAX / 8 }>,
    pub pool: PoolArea,
    /// What processes that have ended left behind.
    pub departed: Counters,
    /// Whose place it is: a `ProcessId`, 0 when it is free, or [`CLEARING`] and the id of whoever is
    /// handing the counters of a dead owner over. Side by side, since they are searched.
    pub owners: [AtomicU64; PLACES_MAX],
    pub places: [Seat; PLACES_MAX],
}

/// What the launcher saw at its last look at all places. Only it writes here, but for the bell.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Board {
    /// Rung by whoever wants the launcher to look.
    pub bell: Bell,
    /// Odd: it is being written, as are the `seen` words of the places.
    pub sequence: AtomicU64,
    /// Processes, and what they held together.
    pub processes: AtomicU64,
    pub resident: AtomicU64,
    pub far: AtomicU64,
    /// The limit that was divided.
    pub limit: AtomicU64,
    /// [`Layout::attached`] as it was: who came later was not seen.
    pub attached: AtomicU64,
}

/// The last words of a runtime. Even `sequence`: complete; odd: being written.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MessageArea {
    pub sequence: AtomicU64,
    pub pid: AtomicU64,
    pub text: Text<{ MESSAGE_MAX / 8 }>,
}

/// The servers, as they are now. Only the launcher writes here. Even `sequence`: complete; odd: being written.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PoolArea {
    pub sequence: AtomicU64,
    pub text: Text<{ POOL_MAX / 8 }>,
}

/// A line that a runtime has for people. It is complete when `number` is that of the note.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct NoteArea {
    pub number: AtomicU64,
    pub text: Text<{ NOTE_MAX / 8 }>,
}

/// One process.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Seat {
    /// What it may hold of the limit: by the launcher, at first by itself.
    pub share: AtomicU64,
    /// What the launcher saw it hold.
    pub seen_resident: AtomicU64,
    pub seen_far: AtomicU64,
    /// What it waits for and since when; 0: nothing (`job::waiting`).
    pub waiting: AtomicU64,
    pub counters: Counters,
}

/// See [`Layout::owners`].
pub(crate) const CLEARING: u64 = 1 << 63;

/// A text of at most `8 * WORDS` bytes.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Text<const WORDS: usize> {
    len: AtomicU64,
    words: [AtomicU64; WORDS],
}

// SAFETY: atomics, and arrays and `repr(C)` structs of them, all of whose bit patterns are valid.
unsafe impl Plain for Layout {}

impl<const WORDS: usize> Text<WORDS> {
    pub(crate) const MAX: usize = WORDS * 8;

    /// Writes as much of the text as there is room for, in whole characters.
    pub(crate) fn write(&self, text: &str) {
        let mut end = text.len().min(Self::MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let pieces = text.as_bytes()[..end].chunks(8);
        for (word, piece) in self.words.iter().zip(pieces) {
            let mut bytes = [0; 8];
            bytes[..piece.len()].copy_from_slice(piece);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        self.len.store(end as u64, Ordering::Release);
    }

    /// The bytes as they are; `None` when the length makes no sense.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let len = usize::try_from(self.len.load(Ordering::Acquire)).ok()?;
        if len > Self::MAX {
            return None;
        }
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let mut bytes: Vec<u8> = words
            .take(len.div_ceil(8))
            .flat_map(u64::to_le_bytes)
            .collect();
        bytes.truncate(len);
        Some(bytes)
    }
}
