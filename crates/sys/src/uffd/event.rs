//! What the kernel tells: faults, and changes of the address space.
//!
//! Messages are 32 bytes each, decoded here from plain bytes. Invariant: an [`EventBuffer`] has a
//! fixed number of places and never allocates; an event that is dropped unread closes the
//! descriptor it carries. Known limit: a change is told while it happens, before or after it takes
//! effect: REMOVE before the pages go, UNMAP and REMAP after.

use std::os::fd::RawFd;

use linux_raw_sys::general as raw;
use muninn_types::PageNo;

use super::PageRange;

/// Events held by a buffer, and read in one system call, at most.
pub const EVENTS_MAX: usize = 32;

/// Bytes of a message of the kernel.
pub(super) const MESSAGE_SIZE: usize = 32;

/// Why a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The page is absent.
    Missing,
    /// The page is there, but write-protected.
    WriteProtected,
    /// The page is in the page cache, but not mapped.
    Minor,
}

/// A thread touched a page and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The address touched, or that of its page without EXACT_ADDRESS.
    pub address: u64,
    pub kind: FaultKind,
    /// The touch was a write.
    pub write: bool,
    /// The kernel's number of the thread; 0 without THREAD_ID.
    pub thread: u32,
}

impl Fault {
    pub fn page(&self) -> PageNo {
        PageNo::of_addr(self.address)
    }
}

/// Something that happened. `D` is the device itself: a fork brings one for the child.
#[derive(Debug)]
pub enum Event<D> {
    Fault(Fault),
    /// The process forked; the child's faults come to this device.
    Fork(D),
    /// Pages were moved to another address.
    Remap {
        from: PageRange,
        to: PageNo,
    },
    /// Pages are being given back (`madvise`); the caller of it waits until this is read.
    Remove(PageRange),
    /// The range is no longer mapped.
    Unmap(PageRange),
}

/// Room for events, kept by its owner from read to read.
#[derive(Debug)]
pub struct EventBuffer<D> {
    places: [Option<Event<D>>; EVENTS_MAX],
    first: usize,
    len: usize,
}

impl<D> Default for EventBuffer<D> {
    fn default() -> EventBuffer<D> {
        EventBuffer {
            places: std::array::from_fn(|_| None),
            first: 0,
            len: 0,
        }
    }
}

impl<D> EventBuffer<D> {
    pub fn new() -> EventBuffer<D> {
        EventBuffer::default()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Events there is room for.
    pub fn room(&self) -> usize {
        EVENTS_MAX - self.len
    }

    /// The oldest event.
    pub fn pop(&mut self) -> Option<Event<D>> {
        let event = self.places[self.first].take()?;
        self.first = (self.first + 1) % EVENTS_MAX;
        self.len -= 1;
        Some(event)
    }

    /// Adds an event; gives it back where there is no room.
    pub fn push(&mut self, event: Event<D>) -> Result<(), Event<D>> {
        if self.room() == 0 {
            return Err(event);
        }
        self.places[(self.first + self.len) % EVENTS_MAX] = Some(event);
        self.len += 1;
        Ok(())
    }
}

/// Reads one message; `None` for a kind this code does not know. `adopt` takes over a descriptor.
pub(super) fn decode<D>(
    message: &[u8; MESSAGE_SIZE],
    adopt: impl FnOnce(RawFd) -> D,
) -> Option<Event<D>> {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&message[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let half = |at: usize| word(at) as u32;
    let span = |start: u64, end: u64| PageRange::of_bytes(start, end.checked_sub(start)?);
    match u32::from(message[0]) {
        raw::UFFD_EVENT_PAGEFAULT => {
            let flags = word(8) as u32;
            let kind = if flags & raw::UFFD_PAGEFAULT_FLAG_WP != 0 {
                FaultKind::WriteProtected
            } else if flags & raw::UFFD_PAGEFAULT_FLAG_MINOR != 0 {
                FaultKind::Minor
            } else {
                FaultKind::Missing
            };
            Some(Event::Fault(Fault {
                address: word(16),
                kind,
                write: flags & raw::UFFD_PAGEFAULT_FLAG_WRITE != 0,
                thread: half(24),
            }))
        }
        raw::UFFD_EVENT_FORK => Some(Event::Fork(adopt(half(8) as RawFd))),
        raw::UFFD_EVENT_REMAP => Some(Event::Remap {
            from: PageRange::of_bytes(word(8), word(24))?,
            to: PageNo::of_addr(word(16)),
        }),
        raw::UFFD_EVENT_REMOVE => Some(Event::Remove(span(word(8), word(16))?)),
        raw::UFFD_EVENT_UNMAP => Some(Event::Unmap(span(word(8), word(16))?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(event: u32, words: [u64; 3]) -> [u8; MESSAGE_SIZE] {
        let mut bytes = [0; MESSAGE_SIZE];
        bytes[0] = event as u8;
        for (i, word) in words.into_iter().enumerate() {
            bytes[8 + 8 * i..16 + 8 * i].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn messages_are_laid_out_as_the_headers_say() {
        assert_eq!(size_of::<raw::uffd_msg>(), MESSAGE_SIZE);
        assert_eq!(std::mem::offset_of!(raw::uffd_msg, arg), 8);
        let fault = message(raw::UFFD_EVENT_PAGEFAULT, [3, 0x5123, 77]);
        assert!(matches!(
            decode(&fault, drop),
            Some(Event::Fault(Fault {
                address: 0x5123,
                kind: FaultKind::WriteProtected,
                write: true,
                thread: 77
            }))
        ));
        let remap = message(raw::UFFD_EVENT_REMAP, [0x1000, 0x9000, 0x2000]);
        assert!(matches!(
            decode(&remap, drop),
            Some(Event::Remap { from, to: PageNo(9) }) if from == PageRange::new(PageNo(1), 2)
        ));
        let fork = message(raw::UFFD_EVENT_FORK, [5, 0, 0]);
        assert!(matches!(decode(&fork, |fd| fd), Some(Event::Fork(5))));
        assert!(decode(&message(99, [0; 3]), drop).is_none());
    }

    #[test]
    fn the_buffer_keeps_order_around_its_end() {
        let mut buffer = EventBuffer::<()>::new();
        let mut next_in = 0;
        let mut next_out = 0;
        for round in 0..200 {
            while round % 7 != 0 && buffer.room() > 0 && next_in < next_out + 20 + round % 13 {
                let range = PageRange::one(PageNo(next_in));
                buffer.push(Event::Remove(range)).unwrap();
                next_in += 1;
            }
            for _ in 0..round % 11 {
                let Some(Event::Remove(range)) = buffer.pop() else {
                    break;
                };
                assert_eq!(range.first().0, next_out);
                next_out += 1;
            }
            assert_eq!(buffer.len() as u64, next_in - next_out);
        }
        while buffer.room() > 0 {
            buffer.push(Event::Fork(())).unwrap();
        }
        assert!(buffer.push(Event::Fork(())).is_err());
    }

    proptest! {
        #[test]
        fn no_message_makes_decoding_fail(bytes: [u8; MESSAGE_SIZE]) {
            decode(&bytes, drop);
        }
    }
}
