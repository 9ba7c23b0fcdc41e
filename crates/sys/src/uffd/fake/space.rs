//! The address space behind the fake devices: pages, registrations, waiting threads.
//!
//! Invariant: a page that is absent holds zeros in the backing memory, so a read by pointer never
//! shows old contents. Changes of the address space count as pending from their start until their
//! event is read, and requests that fill pages say EAGAIN meanwhile, as in the kernel.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use muninn_types::{Bytes, PAGE_SIZE, PageNo};

use super::device::FakeFaultDevice;
use super::state::{Page, Port, State};
use crate::memory::{Mapping, MemoryError};
use crate::pagemap::{Categories, PageScan, PagemapError, Query, Region, Scanned};
use crate::uffd::{Event, Features, PageRange};

/// What a touch of a page led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The page was there (or the kernel gave one by itself): the program goes on.
    Done,
    /// The thread waits for an answer.
    Waits,
    /// The page is lost, or the device is in SIGBUS mode: the thread gets the signal.
    Sigbus,
    /// Nothing is mapped there.
    Sigsegv,
}

/// An address space. Clones are the same one.
#[derive(Clone, Debug)]
pub struct FakeSpace {
    state: Arc<Mutex<State>>,
    range: PageRange,
}

impl FakeSpace {
    /// Fresh private memory, all of it absent.
    pub fn new(pages: u64) -> Result<FakeSpace, MemoryError> {
        let memory = Mapping::options()
            .no_reserve()
            .anonymous(Bytes::pages(pages))?;
        let range = PageRange::new(PageNo::of_addr(memory.addr()), pages);
        let state = State {
            pages: range.iter().map(|page| (page, Page::default())).collect(),
            ports: Vec::new(),
            waiting: Vec::new(),
            removals: Vec::new(),
            held: None,
            memory,
        };
        Ok(FakeSpace {
            state: Arc::new(Mutex::new(state)),
            range,
        })
    }

    /// All pages of it.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// The page at this position.
    pub fn page(&self, index: u64) -> PageNo {
        assert!(index < self.range.pages());
        PageNo(self.range.first().0 + index)
    }

    /// A descriptor with these features.
    pub fn open(&self, features: Features) -> FakeFaultDevice {
        let mut state = self.lock();
        state.ports.push(Port {
            features,
            events: VecDeque::new(),
            changes: 0,
        });
        FakeFaultDevice::new(self.clone(), state.ports.len() - 1)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked with the lock held has failed already.
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A program thread reads or writes a page.
    pub fn touch(&self, thread: u32, page: PageNo, write: bool) -> Touch {
        self.lock().touch(thread, page, write)
    }

    /// A program thread writes bytes to the start of a page; only if the touch is done are they there.
    pub fn store(&self, thread: u32, page: PageNo, bytes: &[u8]) -> Touch {
        let mut state = self.lock();
        let touch = state.touch(thread, page, true);
        if touch == Touch::Done {
            state.write(page, bytes);
        }
        touch
    }

    /// The contents of a page, zeros if it is absent.
    pub fn load(&self, page: PageNo) -> [u8; PAGE_SIZE] {
        let state = self.lock();
        let mut bytes = [0; PAGE_SIZE];
        let offset = page.addr() - state.memory.addr();
        state.memory.read_at(offset, &mut bytes).expect("inside");
        bytes
    }

    /// Threads that wait for a page, in the order they came.
    pub fn waiting(&self) -> Vec<(u32, PageNo)> {
        let state = self.lock();
        state.waiting.iter().map(|w| (w.thread, w.page)).collect()
    }

    pub fn is_present(&self, page: PageNo) -> bool {
        self.lock().pages.get(&page).is_some_and(|p| p.present)
    }

    pub fn is_write_protected(&self, page: PageNo) -> bool {
        let state = self.lock();
        state.pages.get(&page).is_some_and(|p| p.write_protected)
    }

    /// Marks pages as pinned: moves of them fail with EBUSY.
    pub fn set_busy(&self, range: PageRange, busy: bool) {
        self.lock().each(range, |page| page.busy = busy);
    }

    /// The program gives pages back with `madvise`. With EVENT_REMOVE they go when the event is
    /// read, else at once.
    pub fn remove(&self, range: PageRange) {
        let mut state = self.lock();
        let announced = state.announce(range, Features::EVENT_REMOVE, || Event::Remove(range));
        if announced.is_empty() {
            state.clear(range);
        }
        let removals = announced.into_iter().map(|port| (port, range));
        state.removals.extend(removals);
    }

    /// From now on, pages whose removal was read stay until [`FakeSpace::finish_removals`]: the
    /// removing thread of the kernel goes on in its own time, and what is copied before is lost.
    pub fn hold_removals(&self) {
        self.lock().held.get_or_insert_default();
    }

    /// Lets the removals that were held take effect, and holds no more of them.
    pub fn finish_removals(&self) {
        let mut state = self.lock();
        for range in state.held.take().unwrap_or_default() {
            state.clear(range);
        }
    }

    /// The program unmaps pages. They are gone at once; the event tells afterwards.
    pub fn unmap(&self, range: PageRange) {
        let mut state = self.lock();
        state.announce(range, Features::EVENT_UNMAP, || Event::Unmap(range));
        state.clear(range);
        state.each(range, |page| {
            page.unmapped = true;
            page.owner = None;
        });
    }

    /// The program maps something else over pages: no event, and no registration any more.
    pub fn map_over(&self, range: PageRange) {
        let mut state = self.lock();
        state.clear(range);
        state.each(range, |page| *page = Page::default());
    }

    /// The program moves pages to another address (`mremap`): they take their registration along.
    pub fn remap(&self, from: PageRange, to: PageNo) {
        let mut state = self.lock();
        state.announce(from, Features::EVENT_REMAP, || Event::Remap { from, to });
        for (index, source) in (0..).zip(from.iter()) {
            let target = PageNo(to.0 + index);
            let page = state.pages.get(&source).copied().unwrap_or_default();
            let bytes = state.bytes(source);
            state.clear(PageRange::one(source));
            state.each(PageRange::one(source), |gone| {
                gone.unmapped = true;
                gone.owner = None;
            });
            state.pages.insert(target, page);
            state.write(target, &bytes);
        }
    }

    /// The program forks. With EVENT_FORK the device of the child comes with the event; the pages
    /// of both are shared, so they cannot be moved.
    pub fn fork(&self) -> Result<FakeSpace, MemoryError> {
        let child = FakeSpace::new(self.range.pages())?;
        let mut state = self.lock();
        state.each(self.range, |page| page.shared |= page.present);
        let mut child_ports = Vec::new();
        for port in &mut state.ports {
            child_ports.push(port.features.contains(Features::EVENT_FORK).then(|| {
                let device = child.open(port.features);
                let number = device.port();
                port.changes += 1;
                port.events.push_back(Event::Fork(device));
                number
            }));
        }
        let mut child_state = child.lock();
        for (index, source) in (0..).zip(self.range.iter()) {
            let target = child.page(index);
            let bytes = state.bytes(source);
            let mut page = state.pages.get(&source).copied().unwrap_or_default();
            page.owner = page
                .owner
                .filter(|(port, _)| *port < child_state.ports.len());
            child_state.pages.insert(target, page);
            child_state.write(target, &bytes);
        }
        drop(child_state);
        Ok(child)
    }
}

impl PageScan for FakeSpace {
    fn scan(
        &self,
        range: PageRange,
        query: &Query,
        into: &mut [Region],
    ) -> Result<Scanned, PagemapError> {
        let mut state = self.lock();
        let mut scanned = Scanned {
            regions: 0,
            next: range.first(),
        };
        let mut found = 0;
        for number in range.iter() {
            let page = state.pages.get(&number).copied().unwrap_or_default();
            let categories = state.categories(&page);
            let tracked = categories.contains(Categories::WP_ALLOWED);
            if query.require_tracking && !tracked && !page.unmapped {
                return Err(PagemapError::NotTracked(range));
            }
            if !page.unmapped && query.matches(categories) {
                let told = Categories(categories.0 & query.tell.0);
                if query.pages_max > 0 && found == query.pages_max {
                    return Ok(scanned);
                }
                let full = scanned.regions == into.len();
                let last = into[..scanned.regions].last_mut();
                match last.filter(|r| r.range.end() == number && r.categories == told) {
                    Some(run) => {
                        run.range = PageRange::new(run.range.first(), run.range.pages() + 1);
                    }
                    None if full => return Ok(scanned),
                    None => {
                        into[scanned.regions] = Region {
                            range: PageRange::one(number),
                            categories: told,
                        };
                        scanned.regions += 1;
                    }
                }
                found += 1;
                if query.protect {
                    state.each(PageRange::one(number), |page| page.write_protected = true);
                }
            }
            scanned.next = PageNo(number.0 + 1);
        }
        Ok(scanned)
    }
}
