//! Page-access traces, made from a seed.
//!
//! An access is a visit to a page: touches of the same page in a row count as one. Every generated
//! trace first fills its memory once, front to back, and is measured from there on, so that the
//! question is always which pages to keep, never which were new. A quarter of the visits write.

use muninn_types::SplitMix64;
use std::fmt;
use std::str::FromStr;

/// One visit to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub page: u32,
    pub thread: u16,
    pub write: bool,
}

/// A trace with pages numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub name: String,
    /// Places in the page table: one more than the largest page number.
    pub table_pages: u32,
    /// Pages that are visited at all; a local ratio is a share of these.
    pub touched_pages: u32,
    pub accesses: Vec<Access>,
    /// The first access that is counted.
    pub measured_from: usize,
}

/// The generated traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceKind {
    /// All pages, front to back, again and again.
    Sequential,
    /// The first 60 % of the pages, again and again: the case that age-ordered eviction loses.
    Loop,
    /// Popularity by rank to the power of −0.99 (as YCSB), popular pages scattered.
    Zipf,
    /// Half of the visits to a tenth of the pages at random, half a scan through everything.
    ScanPlusHot,
    /// Nineteen of twenty visits inside a set of 30 % that changes eight times.
    PhaseChange,
    /// Any page at any time.
    Random,
    /// Every seventh page, then those next to them, until all were visited.
    Stride,
    /// Four threads, each walking through its own quarter.
    Interleaved,
    /// One fixed random order through all pages, again and again (a linked structure).
    Chase,
}

const WRITE_SHARE: f64 = 0.25;
const ZIPF_EXPONENT: f64 = 0.99;
const STRIDE_PAGES: u32 = 7;
const PHASES: usize = 8;
const THREADS: u16 = 4;

impl TraceKind {
    pub const ALL: [TraceKind; 9] = [
        TraceKind::Sequential,
        TraceKind::Loop,
        TraceKind::Zipf,
        TraceKind::ScanPlusHot,
        TraceKind::PhaseChange,
        TraceKind::Random,
        TraceKind::Stride,
        TraceKind::Interleaved,
        TraceKind::Chase,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            TraceKind::Sequential => "sequential",
            TraceKind::Loop => "loop",
            TraceKind::Zipf => "zipf",
            TraceKind::ScanPlusHot => "scan-plus-hot",
            TraceKind::PhaseChange => "phase-change",
            TraceKind::Random => "random",
            TraceKind::Stride => "stride",
            TraceKind::Interleaved => "interleaved",
            TraceKind::Chase => "chase",
        }
    }

    /// A trace of `pages` pages (at least one): the fill, then `accesses` visits.
    pub fn generate(self, pages: u32, accesses: usize, seed: u64) -> Trace {
        // Each kind has its own sequence, so that leaving one out does not change the others.
        let mut rng = SplitMix64::new(seed ^ (self as u64 + 1).wrapping_mul(0xA24B_AED4_963E_E407));
        let mut visits: Vec<(u32, u16)> = Vec::with_capacity(accesses);
        match self {
            TraceKind::Sequential => visits.extend(cycle(pages).take(accesses)),
            TraceKind::Loop => {
                let looped = (u64::from(pages) * 60 / 100).max(1) as u32;
                visits.extend(cycle(looped).take(accesses));
            }
            TraceKind::Zipf => zipf(pages, accesses, &mut rng, &mut visits),
            TraceKind::ScanPlusHot => scan_plus_hot(pages, accesses, &mut rng, &mut visits),
            TraceKind::PhaseChange => phase_change(pages, accesses, &mut rng, &mut visits),
            TraceKind::Random => {
                visits.extend((0..accesses).map(|_| (rng.below(u64::from(pages)) as u32, 0)));
            }
            TraceKind::Stride => {
                let pass = (0..STRIDE_PAGES.min(pages))
                    .flat_map(|start| (start..pages).step_by(STRIDE_PAGES as usize));
                visits.extend(pass.cycle().map(|page| (page, 0)).take(accesses));
            }
            TraceKind::Interleaved => interleaved(pages, accesses, &mut rng, &mut visits),
            TraceKind::Chase => {
                let order = shuffled(pages, &mut rng);
                visits.extend(order.iter().cycle().map(|page| (*page, 0)).take(accesses));
            }
        }
        let fill = (0..pages).map(|page| Access {
            page,
            thread: 0,
            write: true,
        });
        let visits = visits.into_iter().map(|(page, thread)| Access {
            page,
            thread,
            write: rng.chance(WRITE_SHARE),
        });
        Trace {
            name: self.name().to_string(),
            table_pages: pages,
            touched_pages: pages,
            accesses: fill.chain(visits).collect(),
            measured_from: pages as usize,
        }
    }
}

fn cycle(pages: u32) -> impl Iterator<Item = (u32, u16)> {
    (0..pages).cycle().map(|page| (page, 0))
}

fn shuffled(pages: u32, rng: &mut SplitMix64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..pages).collect();
    rng.shuffle(&mut order);
    order
}

fn zipf(pages: u32, accesses: usize, rng: &mut SplitMix64, visits: &mut Vec<(u32, u16)>) {
    let by_rank = shuffled(pages, rng);
    let mut total = 0.0;
    let share_up_to: Vec<f64> = (1..=pages)
        .map(|rank| {
            total += f64::from(rank).powf(-ZIPF_EXPONENT);
            total
        })
        .collect();
    for _ in 0..accesses {
        let at = rng.unit() * total;
        let rank = share_up_to.partition_point(|share| *share < at);
        visits.push((by_rank[rank.min(by_rank.len() - 1)], 0));
    }
}

fn scan_plus_hot(pages: u32, accesses: usize, rng: &mut SplitMix64, visits: &mut Vec<(u32, u16)>) {
    let mut hot = shuffled(pages, rng);
    hot.truncate((pages as usize / 10).max(1));
    let mut scan = (0..pages).cycle();
    for _ in 0..accesses {
        let page = if rng.chance(0.5) {
            hot[rng.below(hot.len() as u64) as usize]
        } else {
            scan.next().unwrap_or(0)
        };
        visits.push((page, 0));
    }
}

fn phase_change(pages: u32, accesses: usize, rng: &mut SplitMix64, visits: &mut Vec<(u32, u16)>) {
    let phase_len = accesses.div_ceil(PHASES).max(1);
    while visits.len() < accesses {
        // The working set is made of blocks, as a data structure is, not of single pages.
        const BLOCK: u32 = 16;
        let mut blocks = shuffled(pages.div_ceil(BLOCK), rng);
        blocks.truncate((blocks.len() * 30 / 100).max(1));
        for _ in 0..phase_len.min(accesses - visits.len()) {
            let page = if rng.chance(0.95) {
                let block = blocks[rng.below(blocks.len() as u64) as usize];
                (block * BLOCK + rng.below(u64::from(BLOCK)) as u32).min(pages - 1)
            } else {
                rng.below(u64::from(pages)) as u32
            };
            visits.push((page, 0));
        }
    }
}

fn interleaved(pages: u32, accesses: usize, rng: &mut SplitMix64, visits: &mut Vec<(u32, u16)>) {
    let quarter = (pages / u32::from(THREADS)).max(1);
    let mut at = [0u32; THREADS as usize];
    for _ in 0..accesses {
        let thread = rng.below(u64::from(THREADS)) as u16;
        let step = &mut at[usize::from(thread)];
        let page = u32::from(thread) * quarter + *step % quarter;
        *step += 1;
        visits.push((page.min(pages - 1), thread));
    }
}

impl fmt::Display for TraceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no generated trace has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a trace: use sequential, loop, zipf, scan-plus-hot, phase-change, random, stride, interleaved or chase"
)]
pub struct UnknownTrace(String);

impl FromStr for TraceKind {
    type Err = UnknownTrace;
    fn from_str(text: &str) -> Result<TraceKind, UnknownTrace> {
        TraceKind::ALL
            .into_iter()
            .find(|kind| kind.name() == text.trim())
            .ok_or_else(|| UnknownTrace(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_trace_inside_its_pages() {
        for kind in TraceKind::ALL {
            for pages in [1, 2, 5, 64, 1_000] {
                let trace = kind.generate(pages, 3_000, 7);
                assert_eq!(trace, kind.generate(pages, 3_000, 7), "{kind}");
                assert_eq!(trace.accesses.len(), 3_000 + pages as usize);
                assert!(trace.accesses.iter().all(|a| a.page < pages), "{kind}");
            }
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let zipf = |seed| TraceKind::Zipf.generate(100, 100, seed);
        assert_ne!(zipf(1), zipf(2));
    }

    #[test]
    fn popular_pages_are_as_popular_as_zipf_says() {
        let trace = TraceKind::Zipf.generate(1_000, 100_000, 1);
        let mut counts = vec![0u32; 1_000];
        for access in &trace.accesses[trace.measured_from..] {
            counts[access.page as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The harmonic number of 1,000 at 0.99 is about 7.73: the first page gets 12.9 %.
        assert!((12_400..13_500).contains(&counts[0]), "{}", counts[0]);
    }
}
