//! What the fake knows of its pages, and the rules by which they change.
//!
//! Invariant: an absent page holds zeros in the backing memory; a waiting thread has an event that
//! is unread or was read and not yet answered.

use std::collections::{BTreeMap, VecDeque};

use muninn_types::{PAGE_SIZE, PageNo};

use super::Touch;
use super::device::FakeFaultDevice;
use crate::memory::Mapping;
use crate::pagemap::Categories;
use crate::uffd::{Event, Fault, FaultKind, Features, PageRange, RegisterMode};

/// One page of the fake.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    pub(super) present: bool,
    pub(super) write_protected: bool,
    pub(super) poisoned: bool,
    /// Pinned: cannot be moved.
    pub(super) busy: bool,
    /// Shared after a fork: cannot be moved until it is written.
    pub(super) shared: bool,
    /// Not mapped at all.
    pub(super) unmapped: bool,
    /// The device that answers for it, and for which touches.
    pub(super) owner: Option<(usize, RegisterMode)>,
}

impl Page {
    /// Absent, but with a mark in the page table: poison, or protection ahead of the page.
    pub(super) fn has_mark(&self) -> bool {
        !self.present && (self.poisoned || self.write_protected)
    }
}

/// What the kernel knows of one device.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) features: Features,
    pub(super) events: VecDeque<Event<FakeFaultDevice>>,
    /// Changes of the address space whose events are unread.
    pub(super) changes: usize,
}

/// A thread that touched a page and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) thread: u32,
    pub(super) page: PageNo,
    pub(super) write: bool,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) pages: BTreeMap<PageNo, Page>,
    pub(super) ports: Vec<Port>,
    pub(super) waiting: Vec<Waiting>,
    /// Pages whose removal was announced and takes effect when the event is read.
    pub(super) removals: Vec<(usize, PageRange)>,
    /// Removals that were read and take effect when the test says so.
    pub(super) held: Option<Vec<PageRange>>,
    pub(super) memory: Mapping,
}

impl State {
    pub(super) fn touch(&mut self, thread: u32, page: PageNo, write: bool) -> Touch {
        let Some(entry) = self.pages.get_mut(&page).filter(|p| !p.unmapped) else {
            return Touch::Sigsegv;
        };
        if entry.poisoned {
            return Touch::Sigbus;
        }
        let protected = entry.present && write && entry.write_protected;
        let (port, kind) = match entry.owner {
            Some((port, mode)) if !entry.present && mode.missing => (port, FaultKind::Missing),
            Some((port, mode)) if protected && mode.write_protect => {
                if self.ports[port].features.contains(Features::WP_ASYNC) {
                    entry.write_protected = false;
                    entry.shared = false;
                    return Touch::Done;
                }
                (port, FaultKind::WriteProtected)
            }
            _ => {
                entry.present = true;
                entry.shared &= !write;
                return Touch::Done;
            }
        };
        let port = &mut self.ports[port];
        if port.features.contains(Features::SIGBUS) {
            return Touch::Sigbus;
        }
        let with_id = port.features.contains(Features::THREAD_ID);
        let fault = Event::Fault(Fault {
            address: page.addr(),
            kind,
            write,
            thread: if with_id { thread } else { 0 },
        });
        // Faults overtake everything else that waits to be read.
        let others = port
            .events
            .iter()
            .position(|e| !matches!(e, Event::Fault(_)));
        port.events
            .insert(others.unwrap_or(port.events.len()), fault);
        self.waiting.push(Waiting {
            thread,
            page,
            write,
        });
        Touch::Waits
    }

    /// Lets waiting threads of these pages touch again.
    pub(super) fn wake(&mut self, range: PageRange) {
        let (awake, asleep): (Vec<Waiting>, Vec<Waiting>) =
            self.waiting.iter().partition(|w| range.contains(w.page));
        self.waiting = asleep;
        for thread in awake {
            self.touch(thread.thread, thread.page, thread.write);
        }
    }

    /// Queues an event at every device with the feature that owns a part of the range.
    pub(super) fn announce(
        &mut self,
        range: PageRange,
        feature: Features,
        event: impl Fn() -> Event<FakeFaultDevice>,
    ) -> Vec<usize> {
        let mut owners: Vec<usize> = range
            .iter()
            .filter_map(|page| Some(self.pages.get(&page)?.owner?.0))
            .filter(|&port| self.ports[port].features.contains(feature))
            .collect();
        owners.sort_unstable();
        owners.dedup();
        for &port in &owners {
            self.ports[port].changes += 1;
            self.ports[port].events.push_back(event());
        }
        owners
    }

    pub(super) fn each(&mut self, range: PageRange, change: impl Fn(&mut Page)) {
        for page in range.iter() {
            if let Some(entry) = self.pages.get_mut(&page) {
                change(entry);
            }
        }
    }

    /// Makes pages absent.
    pub(super) fn clear(&mut self, range: PageRange) {
        for page in range.iter() {
            self.write(page, &[0; PAGE_SIZE]);
        }
        self.each(range, |page| {
            page.present = false;
            page.write_protected = false;
            page.poisoned = false;
            page.shared = false;
        });
    }

    pub(super) fn bytes(&self, page: PageNo) -> [u8; PAGE_SIZE] {
        let mut bytes = [0; PAGE_SIZE];
        if let Some(offset) = page.addr().checked_sub(self.memory.addr()) {
            // Outside of the space there is nothing but zeros.
            let _ = self.memory.read_at(offset, &mut bytes);
        }
        bytes
    }

    pub(super) fn write(&mut self, page: PageNo, bytes: &[u8]) {
        if let Some(offset) = page.addr().checked_sub(self.memory.addr()) {
            let _ = self.memory.write_at(offset, bytes);
        }
    }

    fn tracks_writes(&self, page: &Page) -> bool {
        page.owner.is_some_and(|(port, mode)| {
            mode.write_protect && self.ports[port].features.contains(Features::WP_ASYNC)
        })
    }

    pub(super) fn categories(&self, page: &Page) -> Categories {
        let mut set = Categories::NONE;
        if self.tracks_writes(page) {
            set = set | Categories::WP_ALLOWED;
        }
        if page.present {
            set = set | Categories::PRESENT;
        }
        // The kernel keeps marks where it keeps entries of swap, and tells them as such.
        if page.has_mark() {
            set = set | Categories::SWAPPED;
        }
        // So is an absent page that was never protected: nothing says it was not.
        if !page.write_protected {
            set = set | Categories::WRITTEN;
        }
        set
    }
}
