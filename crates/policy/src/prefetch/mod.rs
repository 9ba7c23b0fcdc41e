//! Which pages to fetch besides the one that was asked for.
//!
//! The faulted page is always fetched first and alone (Fastswap); what is decided here travels
//! afterwards, in class Prefetch. A prefetched page is either *mapped* at once, where the policy is
//! confident, or held in the *read buffer*, from which a later fault is answered without the
//! network. Mapping saves the whole fault, but the pager then never learns whether the page was
//! used: nobody can read an accessed bit here. Policies that map learn from where the next fault
//! falls instead; those that buffer learn from buffer hits.
//!
//! Invariants, checked for all policies: a window holds at most 64 pages, each of them far, none
//! twice, never the faulted page itself. Nothing is allocated after construction.
//!
//! Known limit: a window knows nothing of time; whether it arrives before the program does depends on
//! the transport.
//!
//! From: COMEX 3.3.5 (16-page reads by slot), Fastswap (demand first), Leap (majority trend).

mod adaptive;
mod fixed;
mod none;
mod slot_neighbours;
#[cfg(test)]
mod tests;
mod trend;

pub use crate::evict::PageIndex;
pub use adaptive::Adaptive;
pub use fixed::Fixed;
pub use none::NoPrefetch;
pub use slot_neighbours::SlotNeighbours;
pub use trend::Trend;

use std::fmt;
use std::str::FromStr;

/// The largest window.
pub const WINDOW_PAGES_MAX: usize = 64;
/// How far a window looks past pages that are not far (resident, staged) before it gives up.
const LOOK_PAGES_MAX: u32 = 256;

/// A slot's place among all slots of the process: neighbours in a grant are neighbours here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FarSlot(pub u64);

/// What a policy may look up in the pager's page table. Pages and slots beyond it are not far.
pub trait FarPages {
    /// Whether the page is in far memory and nowhere else.
    fn is_far(&self, page: PageIndex) -> bool;
    fn slot_of(&self, page: PageIndex) -> Option<FarSlot>;
    fn page_at(&self, slot: FarSlot) -> Option<PageIndex>;
}

/// Where a fault was answered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Far,
    /// The read buffer: an earlier prefetch was right.
    Buffer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub page: PageIndex,
    pub thread: u32,
    pub source: Source,
}

/// Where prefetched pages are put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Landing {
    /// Into the program at once: no fault when they are used, no word of whether they were.
    Mapped,
    /// Into the read buffer.
    #[default]
    Buffered,
}

/// The pages to fetch now. Kept by the caller and filled again and again.
#[derive(Clone, Debug)]
pub struct Window {
    pages: [PageIndex; WINDOW_PAGES_MAX],
    len: usize,
    pub landing: Landing,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            pages: [PageIndex(0); WINDOW_PAGES_MAX],
            len: 0,
            landing: Landing::default(),
        }
    }
}

impl Window {
    pub fn pages(&self) -> &[PageIndex] {
        &self.pages[..self.len]
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    fn is_full(&self) -> bool {
        self.len == WINDOW_PAGES_MAX
    }

    fn push(&mut self, page: PageIndex) {
        if !self.is_full() {
            self.pages[self.len] = page;
            self.len += 1;
        }
    }

    /// Adds up to `wanted` far pages from `from` (not itself) in steps of `stride`. Returns the far
    /// page after the last one added: where the next fault falls if the program goes on like this.
    fn collect(
        &mut self,
        from: PageIndex,
        stride: i32,
        wanted: usize,
        far: &dyn FarPages,
    ) -> Option<PageIndex> {
        let end = (self.len + wanted).min(WINDOW_PAGES_MAX);
        let mut index = from.0;
        for _ in 0..LOOK_PAGES_MAX {
            index = index.checked_add_signed(stride)?;
            if far.is_far(PageIndex(index)) {
                if self.len == end {
                    return Some(PageIndex(index));
                }
                self.push(PageIndex(index));
            }
        }
        None
    }
}

/// A prefetch policy.
pub trait Prefetch: fmt::Debug + Send {
    /// A fault that needed a far page. Fills the window with what to fetch besides it.
    fn handle_fault(&mut self, fault: Fault, far: &dyn FarPages, window: &mut Window);

    /// A page left the read buffer without having been asked for.
    fn handle_wasted(&mut self, _page: PageIndex) {}
}

/// The policies by name.
///
/// The default comes from `muninn sim evict`: `adaptive` finds all streams that `trend` finds, and
/// those that run interleaved as well, and stays quiet when there are none. `docs/SIMULATION.md` has
/// the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PrefetchPolicy {
    None,
    Fixed,
    #[default]
    Adaptive,
    Trend,
    Slot,
}

impl PrefetchPolicy {
    pub const ALL: [PrefetchPolicy; 5] = [
        PrefetchPolicy::None,
        PrefetchPolicy::Fixed,
        PrefetchPolicy::Adaptive,
        PrefetchPolicy::Trend,
        PrefetchPolicy::Slot,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            PrefetchPolicy::None => "none",
            PrefetchPolicy::Fixed => "fixed",
            PrefetchPolicy::Adaptive => "adaptive",
            PrefetchPolicy::Trend => "trend",
            PrefetchPolicy::Slot => "slot",
        }
    }

    pub fn build(self) -> Box<dyn Prefetch> {
        match self {
            PrefetchPolicy::None => Box::new(NoPrefetch),
            PrefetchPolicy::Fixed => Box::new(Fixed),
            PrefetchPolicy::Adaptive => Box::new(Adaptive::new()),
            PrefetchPolicy::Trend => Box::new(Trend::new()),
            PrefetchPolicy::Slot => Box::new(SlotNeighbours::new()),
        }
    }
}

impl fmt::Display for PrefetchPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no prefetch policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a prefetch policy: use none, fixed, adaptive, trend or slot")]
pub struct UnknownPrefetchPolicy(String);

impl FromStr for PrefetchPolicy {
    type Err = UnknownPrefetchPolicy;
    fn from_str(text: &str) -> Result<PrefetchPolicy, UnknownPrefetchPolicy> {
        PrefetchPolicy::ALL
            .into_iter()
            .find(|policy| policy.name() == text.trim())
            .ok_or_else(|| UnknownPrefetchPolicy(text.to_string()))
    }
}
