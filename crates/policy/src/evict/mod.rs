//! Which pages leave local memory.
//!
//! The policies are built for a pager in user space, where **no accessed bit can be read**. All a
//! policy learns is what passes through the pager anyway: a page became resident, a page that was
//! already on its way out (*staged*) was touched again and so is hot, a page left for good, a page
//! was unmapped. It is asked for victims in runs of up to 64 neighbouring pages, because moving 64
//! pages out with one call costs 47 ns a page and moving a single one costs 1,140 ns.
//!
//! Invariants, checked by one property test for all policies: a run holds resident pages only; a
//! page is returned once each time it becomes resident; if nothing is touched, every resident page
//! is returned in the end.
//!
//! Pages are named by [`PageIndex`], their place in the pager's page table. Nothing is allocated
//! after construction except in [`Evict::grow`], and no policy needs more than 16 bytes a page.
//!
//! Known limit: a page that is touched all the time looks like any other until it is staged once,
//! so every policy here pays one staged hit to learn that a page is hot.

mod fifo;
mod random;
mod s3_fifo;
mod segmented_fifo;
mod sieve;
mod table;
#[cfg(test)]
mod tests;

pub use fifo::Fifo;
pub use random::Random;
pub use s3_fifo::S3Fifo;
pub use segmented_fifo::SegmentedFifo;
pub use sieve::Sieve;

use std::fmt;
use std::str::FromStr;

/// The longest run that is asked for: beyond 64 pages a move gets hardly cheaper.
pub const RUN_PAGES_MAX: u32 = 64;

/// A page's place in the pager's page table. Neighbours in a region are neighbours in the table, and
/// the pager leaves one place free between regions, so that no run reaches across.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u32);

impl PageIndex {
    pub const fn get(self) -> u32 {
        self.0
    }
    pub(crate) const fn at(self) -> usize {
        self.0 as usize
    }
}

/// Why a page is resident now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The program touched it for the first time.
    FirstTouch,
    /// The program touched it while it was far (or in the read buffer).
    Demand,
    /// Nobody has touched it yet.
    Prefetch,
    /// It was given out as a victim but could not be moved (pinned, say).
    Kept,
}

/// Neighbouring pages that are to leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: PageIndex,
    pub pages: u32,
}

impl Run {
    pub fn iter(self) -> impl Iterator<Item = PageIndex> {
        (self.first.0..self.first.0 + self.pages).map(PageIndex)
    }
}

/// An eviction policy.
///
/// A page is *resident* from [`handle_resident`](Evict::handle_resident) or
/// [`handle_staged_hit`](Evict::handle_staged_hit) until it is given out by
/// [`next_run`](Evict::next_run) or removed; then it is *staged* until one of the `handle` calls says
/// what became of it. A call that does not fit a page's state changes nothing: events of a live
/// program come in any order.
pub trait Evict: fmt::Debug + Send {
    /// Makes room for pages `0..pages`. The only call that allocates.
    fn grow(&mut self, pages: u32);

    fn handle_resident(&mut self, page: PageIndex, arrival: Arrival);

    /// A staged page was touched again and is resident once more: it is hot.
    fn handle_staged_hit(&mut self, page: PageIndex);

    /// A staged page has left local memory.
    fn handle_evicted(&mut self, page: PageIndex);

    /// The page was unmapped, or given back by the program; whatever was known of it is forgotten.
    fn handle_removed(&mut self, page: PageIndex);

    /// The next victims, at most `pages_max` (and [`RUN_PAGES_MAX`]) of them; they count as staged
    /// from now on. `None` when nothing is resident.
    fn next_run(&mut self, pages_max: u32) -> Option<Run>;

    /// How many pages are resident.
    fn resident_pages(&self) -> u32;

    /// Memory held by the policy itself.
    fn memory_bytes(&self) -> usize;
}

/// The policies by name.
///
/// The default comes from `muninn sim evict`: S3-FIFO costs least over the nine traces, alone among
/// the policies that follow age it keeps part of a loop, and it loses little where it loses.
/// `docs/SIMULATION.md` has the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EvictPolicy {
    Fifo,
    Random,
    SegmentedFifo,
    #[default]
    S3Fifo,
    Sieve,
}

impl EvictPolicy {
    pub const ALL: [EvictPolicy; 5] = [
        EvictPolicy::Fifo,
        EvictPolicy::Random,
        EvictPolicy::SegmentedFifo,
        EvictPolicy::S3Fifo,
        EvictPolicy::Sieve,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            EvictPolicy::Fifo => "fifo",
            EvictPolicy::Random => "random",
            EvictPolicy::SegmentedFifo => "segmented-fifo",
            EvictPolicy::S3Fifo => "s3-fifo",
            EvictPolicy::Sieve => "sieve",
        }
    }

    /// The policy over a table of `pages` pages; the seed matters to `random` only.
    pub fn build(self, pages: u32, seed: u64) -> Box<dyn Evict> {
        match self {
            EvictPolicy::Fifo => Box::new(Fifo::new(pages)),
            EvictPolicy::Random => Box::new(Random::new(pages, seed)),
            EvictPolicy::SegmentedFifo => Box::new(SegmentedFifo::new(pages)),
            EvictPolicy::S3Fifo => Box::new(S3Fifo::new(pages)),
            EvictPolicy::Sieve => Box::new(Sieve::new(pages)),
        }
    }
}

impl fmt::Display for EvictPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no eviction policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an eviction policy: use fifo, random, segmented-fifo, s3-fifo or sieve")]
pub struct UnknownEvictPolicy(String);

impl FromStr for EvictPolicy {
    type Err = UnknownEvictPolicy;
    fn from_str(text: &str) -> Result<EvictPolicy, UnknownEvictPolicy> {
        EvictPolicy::ALL
            .into_iter()
            .find(|policy| policy.name() == text.trim())
            .ok_or_else(|| UnknownEvictPolicy(text.to_string()))
    }
}
