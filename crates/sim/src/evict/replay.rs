//! A trace through the live pager's engine.
//!
//! The engine is the live one (`muninn_pager_core`), and is driven as the pager's thread drives it: when
//! somebody waits and memory is short, a chunk leaves first; then the page comes; then, while nobody waits,
//! chunks leave until memory is short no more.
//!
//! Known limit: one event at a time, and the program never touches a page while the pager evicts: a pager
//! that falls behind is the network simulator's matter.

use super::away::Away;
use super::near::{Near, Tally};
use super::trace::{Access, Trace};
use muninn_pager_core::{BATCH_MAX, Count, Engine, Evicted, Fatal, Served, Settings, Touch};
#[cfg(test)]
use muninn_pager_core::{CHUNK_PAGES, Kernel, Mask};
#[cfg(test)]
use muninn_types::PageRange;
use std::cell::Cell;

/// A fault that is not answered by then never is.
const TRIES_MAX: usize = 8;

/// What happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    pub accesses: u64,
    pub tally: Tally,
    /// Pages that were held above what was allowed, at most.
    pub above: u64,
}

impl Counts {
    pub fn of(&self, what: Count) -> u64 {
        self.tally.of(what)
    }
}

#[derive(Debug)]
pub struct Replay {
    engine: Engine<Near, Away>,
    counts: Counts,
}

impl Replay {
    /// With so many pages of local memory, those on their way out included.
    pub fn new(trace: &Trace, local_pages: u32, settings: &Settings) -> Replay {
        let mut mapped = vec![false; trace.table_pages as usize];
        for access in &trace.accesses {
            mapped[access.page as usize] = true;
        }
        let near = Near::new(mapped.into());
        let scratch = vec![Cell::new(0); BATCH_MAX].into();
        let far = Away::default();
        let mut engine = Engine::new(near, far, Near::frames(), scratch, settings);
        engine.set_allowed(u64::from(local_pages));
        Replay {
            engine,
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            tally: self.engine.kernel.tally(),
            ..self.counts.clone()
        }
    }

    /// Starts counting anew; memory stays as it is.
    pub fn reset_counts(&mut self) {
        self.counts = Counts::default();
        self.engine.kernel.reset_tally();
    }

    pub fn access(&mut self, access: Access) -> Result<(), Fatal> {
        let Access {
            page,
            write,
            thread,
        } = access;
        self.counts.accesses += 1;
        match self.engine.kernel.begin_access(page, write) {
            true => self.engine.kernel.end_access(page, write),
            false => self.fault(page, write, u32::from(thread))?,
        }
        Ok(())
    }

    fn fault(&mut self, page: u32, write: bool, thread: u32) -> Result<(), Fatal> {
        let touch = Touch {
            page: Near::page(page),
            write,
            thread,
        };
        if self.engine.wants_background() {
            self.reclaim_step()?;
        }
        let mut tries = 0;
        while !self.engine.kernel.is_there(page) {
            assert!(tries < TRIES_MAX, "page {page} never comes");
            tries += 1;
            if self.engine.serve(&touch)? == Served::Later {
                self.reclaim_step()?;
            }
        }
        // It goes on at once; what follows may take the page away again.
        self.engine.kernel.end_access(page, write);
        while self.engine.wants_background() && self.reclaim_step()? {}
        self.engine.shrink();
        let above = self.engine.held().saturating_sub(self.engine.allowed());
        self.counts.above = self.counts.above.max(above);
        Ok(())
    }

    /// What the engine knows of pages is so.
    #[cfg(test)]
    pub fn check_books(&self) {
        let engine = &self.engine;
        for chunk in engine.chunks() {
            let first = chunk.number.page(0);
            let there = engine
                .kernel
                .present(PageRange::new(first, CHUNK_PAGES as u64)) as Mask;
            assert_eq!(chunk.resident, there, "{chunk:?}");
            assert_eq!(chunk.staged & !chunk.far, 0, "{chunk:?}");
        }
        assert_eq!(engine.kernel.frames_used(), engine.gauges().staged);
    }

    /// Evicts a chunk; whether it is worth going on.
    fn reclaim_step(&mut self) -> Result<bool, Fatal> {
        match self.engine.evict_some(false)? {
            Evicted::Pages(_) => Ok(true),
            Evicted::Nothing => {
                self.engine.rest_eviction();
                Ok(false)
            }
            Evicted::Changing | Evicted::NotBefore => Ok(false),
        }
    }
}
