//! Mutators look at a page's state before they touch it.
//!
//! Where the cache is smaller than the heap, an absent page is called for instead of being signalled:
//! a signal, and the way back from it, cost as much as everything else that a fault needs. The signal
//! stays what counts; a look may be out of date a moment later.
//!
//! The same look tells which pages are in use, which no kernel tells a program: one bit beside the
//! state says that the page was touched since the policy last asked. A look that finds it set is over
//! after one comparison. What is touched together with its arrival says nothing (an object is read
//! field by field), so the bit is cleared again when a few other pages have come.

use super::*;

/// The state itself, without the marks beside it.
pub(super) const STATE: u8 = 0x70;
/// Beside the state of a page that is Clean or Dirty: touched since the policy last asked.
pub(super) const TOUCHED: u8 = 0x80;
/// How often a page of a tablet was to go and was let off.
const SPARED: u8 = 0x03;
const SPARED_ONCE: u8 = 0x01;
/// Touches of a page before so many others have come count as one with its arrival.
const RECENT: usize = 32;

/// The pages that came last.
#[derive(Debug, Default)]
pub(super) struct Recent {
    pages: [u32; RECENT],
    next: usize,
}

impl Recent {
    /// A page came; the one that is no longer recent.
    pub fn push(&mut self, page: u32) -> u32 {
        let place = &mut self.pages[self.next % RECENT];
        self.next = self.next.wrapping_add(1);
        std::mem::replace(place, page)
    }
}

impl Pager {
    /// The page of this address is about to be read: brings it if it is absent.
    #[inline(always)]
    pub fn expect_read(&self, address: *const u8) {
        self.expect(address, CLEAN | TOUCHED, false);
    }

    /// The page of this address is about to be written: brings it, or lets it be written.
    #[inline(always)]
    pub fn expect_write(&self, address: *const u8) {
        self.expect(address, DIRTY | TOUCHED, true);
    }

    #[inline(always)]
    fn expect(&self, address: *const u8, least: u8, write: bool) {
        if self.is_tight {
            let page = (self.place(address) >> PAGE_SHIFT) as usize;
            // Whoever passes nonsense gets a fault at the touch, not here.
            if let Some(state) = self.states.get(page)
                && state.load(Relaxed) < least
            {
                self.touch(page as u32, write);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn touch(&self, page: u32, write: bool) {
        let state = self.state(page);
        let now = state.load(Relaxed);
        match now & STATE {
            CLEAN if write => self.fault(page, true),
            // If it is not that any more, whoever changed it has the last word.
            CLEAN | DIRTY => {
                let _ = state.compare_exchange(now, now | TOUCHED, Relaxed, Relaxed);
            }
            LOST => {}
            _ => self.fault(page, write),
        }
    }

    /// Whether a page that is to go is worth more than others. It is if it was touched since this was
    /// last asked. One of a tablet is on the way to a thousand objects, which lie in a dozen pages or
    /// more: it is let off a few times when it was not.
    pub(super) fn take_worth(&self, page: u32) -> bool {
        let is_touched = self.take_touched(page);
        if !self.is_tablet(page) {
            return is_touched;
        }
        let state = self.state(page);
        let now = state.load(Relaxed);
        let spared = match is_touched {
            true => now & !SPARED,
            false if now & SPARED == SPARED => return false,
            false => now + SPARED_ONCE,
        };
        // The marks of a page that is being changed are nobody's.
        if matches!(now & STATE, CLEAN | DIRTY) {
            let _ = state.compare_exchange(now, spared, Relaxed, Relaxed);
        }
        true
    }

    /// Whether a page was touched since this was last asked.
    pub(super) fn take_touched(&self, page: u32) -> bool {
        let state = self.state(page);
        state.load(Relaxed) & TOUCHED != 0 && state.fetch_and(!TOUCHED, Relaxed) & TOUCHED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_recent_until_as_many_others_have_come() {
        let mut recent = Recent::default();
        for page in 0..RECENT as u32 {
            assert_eq!(recent.push(100 + page), 0);
        }
        assert_eq!(recent.push(500), 100);
        assert_eq!(recent.push(501), 101);
    }

    #[test]
    fn a_look_at_a_touched_page_is_one_comparison() {
        let fast_read = |state: u8| state >= CLEAN | TOUCHED;
        let fast_write = |state: u8| state >= DIRTY | TOUCHED;
        for state in [INIT, EVICTED, CLEAN, DIRTY, BUSY, LOST, CLEAN | SPARED] {
            assert!(!fast_read(state) && !fast_write(state));
        }
        for clean in [CLEAN | TOUCHED, CLEAN | TOUCHED | SPARED] {
            assert!(fast_read(clean) && !fast_write(clean));
        }
        assert!(fast_read(DIRTY | TOUCHED | SPARED) && fast_write(DIRTY | TOUCHED));
    }
}
