//! Pages that were evicted together come back together.
//!
//! A run of victims is written to neighbouring slots, so the slots around a faulted page's hold pages
//! that went cold at the same time, whatever their addresses. The aligned block of slots around it is
//! read, 16 at first. The pages go into the read buffer, where each one that is asked for is a hit
//! and each one that is pushed out was wasted: the window doubles while more than half are hits and
//! halves when fewer than a quarter are, down to the faulted page alone. At that size nothing is
//! learnt any more, so one fault in 64 tries a few slots again.
//!
//! When half are hits the pages are mapped at once (that costs a fifth of the fault it saves), but one
//! window in eight still goes through the buffer, to keep measuring.
//!
//! Known limit: the layout is as good as the evictions were; random victims make random neighbours.
//! From: COMEX, sections 3.3.3 and 3.3.5 (16 pages in one read; read buffer of 4,096 pages).

use super::{
    FarPages, FarSlot, Fault, Landing, PageIndex, Prefetch, Source, WINDOW_PAGES_MAX, Window,
};

const START_SLOTS: u64 = 16;
const PROBE_SLOTS: u64 = 4;
/// With the window shut, one fault in this many probes.
const PROBE_EVERY: u64 = 64;
/// While mapping, one window in this many is buffered.
const MEASURE_EVERY: u64 = 8;
/// Outcomes after which the window is judged.
const JUDGED_PAGES: u32 = 32;

#[derive(Clone, Debug)]
pub struct SlotNeighbours {
    window_slots: u64,
    confident: bool,
    faults: u64,
    hits: u32,
    wasted: u32,
}

impl Default for SlotNeighbours {
    fn default() -> SlotNeighbours {
        SlotNeighbours::new()
    }
}

impl SlotNeighbours {
    pub fn new() -> SlotNeighbours {
        SlotNeighbours {
            window_slots: START_SLOTS,
            confident: false,
            faults: 0,
            hits: 0,
            wasted: 0,
        }
    }

    fn judge(&mut self) {
        let judged = self.hits + self.wasted;
        if judged < JUDGED_PAGES {
            return;
        }
        self.confident = self.hits * 2 >= judged;
        if self.hits * 2 > judged {
            self.window_slots = (self.window_slots * 2).min(WINDOW_PAGES_MAX as u64);
        } else if self.hits * 4 < judged {
            self.window_slots = (self.window_slots / 2).max(1);
        }
        (self.hits, self.wasted) = (0, 0);
    }
}

impl Prefetch for SlotNeighbours {
    fn handle_fault(&mut self, fault: Fault, far: &dyn FarPages, window: &mut Window) {
        window.clear();
        if fault.source == Source::Buffer {
            self.hits += 1;
            self.judge();
            return;
        }
        self.faults += 1;
        let mapped = self.confident && !self.faults.is_multiple_of(MEASURE_EVERY);
        window.landing = if mapped {
            Landing::Mapped
        } else {
            Landing::Buffered
        };
        let slots = match self.window_slots {
            1 if self.faults.is_multiple_of(PROBE_EVERY) => PROBE_SLOTS,
            slots => slots,
        };
        let Some(slot) = far.slot_of(fault.page).filter(|_| slots > 1) else {
            return;
        };
        let first = slot.0 / slots * slots;
        for slot in (first..=first + (slots - 1)).map(FarSlot) {
            let page = far.page_at(slot);
            if let Some(page) = page.filter(|p| *p != fault.page && far.is_far(*p)) {
                window.push(page);
            }
        }
    }

    fn handle_wasted(&mut self, _: PageIndex) {
        self.wasted += 1;
        self.judge();
    }
}
