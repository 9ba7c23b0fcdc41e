//! Memory filled with what no compressor can make smaller, then touched page by page.
//!
//! One word of a page is read, or read and written, at each access, and compared with what it must
//! be. The time is that of all accesses together, divided by their number: with more threads it is
//! the inverse of their common rate. Known limit: pages are drawn by a hash, so that a pattern at
//! random is the same in every run.

use crate::failure::{Failure, Outcome};
use crate::ui::print_out;
use clap::ValueEnum;
use muninn_types::{Bytes, PAGE_SIZE, SplitMix64};
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const WORDS: usize = PAGE_SIZE / 8;
/// Pages from one access to the next in a strided pattern.
const STRIDE: usize = 7;
/// Skew of the zipf pattern, as in YCSB.
const ZIPF: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Every page in order
    SeqRead,
    /// Any page
    RandRead,
    /// Any page, changed
    RandWrite,
    /// Any page, few of them most of the time
    Zipf,
    /// Every seventh page, then those between
    Stride,
}

impl Pattern {
    pub const ALL: [Pattern; 5] = [
        Pattern::SeqRead,
        Pattern::RandRead,
        Pattern::RandWrite,
        Pattern::Zipf,
        Pattern::Stride,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Pattern::SeqRead => "seq-read",
            Pattern::RandRead => "rand-read",
            Pattern::RandWrite => "rand-write",
            Pattern::Zipf => "zipf",
            Pattern::Stride => "stride",
        }
    }

    /// The order of pages does not matter: several threads share all of them.
    pub fn is_random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite | Pattern::Zipf)
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  muninn workload paging --pattern rand-read --size 512MiB")]
pub struct Args {
    #[arg(long)]
    pub pattern: Pattern,
    #[arg(long, default_value = "512MiB")]
    pub size: Bytes,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// Accesses, in multiples of the number of pages
    #[arg(long, default_value_t = 1.0)]
    pub passes: f64,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What it prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub pattern: Pattern,
    pub threads: u32,
    pub pages: u64,
    pub accesses: u64,
    pub ns_per_page: f64,
    pub fill_ns_per_page: f64,
    /// From the first page filled to the last access.
    pub seconds: f64,
}

pub fn run(args: &Args) -> Outcome {
    let pages = args.size.whole_pages() as usize;
    if pages < 16 || !(args.passes > 0.0 && args.passes <= 1e6) {
        return Err(Failure::usage(
            "a workload wants --size 64KiB or more and --passes above 0",
        ));
    }
    let start = Instant::now();
    let area: Vec<AtomicU64> = (0..pages * WORDS)
        .map(|index| AtomicU64::new(word(args.seed, index)))
        .collect();
    let filled = start.elapsed();
    let area = Area {
        words: area,
        pages,
        seed: args.seed,
    };
    // What the fill left behind is not the steady state of a random pattern.
    if args.pattern.is_random() {
        area.touch(args, 0.5, 1)?;
    }
    let begun = Instant::now();
    let accesses = area.touch(args, args.passes, 2)?;
    let report = Report {
        pattern: args.pattern,
        threads: args.threads,
        pages: pages as u64,
        accesses,
        ns_per_page: begun.elapsed().as_nanos() as f64 / accesses as f64,
        fill_ns_per_page: filled.as_nanos() as f64 / pages as f64,
        seconds: start.elapsed().as_secs_f64(),
    };
    print_out(&serde_json::to_string(&report).expect("plain data serialises"));
    Ok(())
}

/// What a word holds; its lowest bit is the writers'.
fn word(seed: u64, index: usize) -> u64 {
    SplitMix64::new(seed ^ ((index as u64) << 20)).next_u64() & !1
}

struct Area {
    words: Vec<AtomicU64>,
    pages: usize,
    seed: u64,
}

impl Area {
    /// Touches `passes` times the number of pages; how often in all.
    fn touch(&self, args: &Args, passes: f64, round: u64) -> Result<u64, Failure> {
        let threads = args.threads as usize;
        let each = ((self.pages as f64 * passes) as usize / threads).max(1);
        let barrier = Barrier::new(threads);
        let zipf = Zipf::new(self.pages as u64);
        let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|n| {
                    let (barrier, zipf) = (&barrier, &zipf);
                    scope.spawn(move || {
                        barrier.wait();
                        self.work(args.pattern, n, threads, each, round, zipf)
                    })
                })
                .collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined
                .map(|result| result.unwrap_or_else(|_| Err(Failure::failed("a thread panicked"))))
                .collect()
        });
        results.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        Ok((each * threads) as u64)
    }

    fn work(
        &self,
        pattern: Pattern,
        n: usize,
        threads: usize,
        accesses: usize,
        round: u64,
        zipf: &Zipf,
    ) -> Outcome {
        let mut dice = SplitMix64::new(self.seed ^ (round << 32) ^ ((n as u64 + 1) << 48));
        // In order, each thread has a part of its own.
        let part = self.pages / threads;
        let first = n * part;
        let strided = part.next_multiple_of(STRIDE);
        let mut at = 0;
        for access in 0..accesses {
            match pattern {
                Pattern::SeqRead => self.read(first + access % part)?,
                Pattern::Stride => {
                    // Column by column of a table with STRIDE columns, holes left out.
                    loop {
                        let row = at % (strided / STRIDE);
                        let column = at / (strided / STRIDE) % STRIDE;
                        at += 1;
                        if row * STRIDE + column < part {
                            self.read(first + row * STRIDE + column)?;
                            break;
                        }
                    }
                }
                Pattern::RandRead => self.read(dice.below(self.pages as u64) as usize)?,
                Pattern::RandWrite => self.write(dice.below(self.pages as u64) as usize)?,
                Pattern::Zipf => self.read(zipf.page(dice.unit()))?,
            }
        }
        Ok(())
    }

    /// The word of a page that is touched.
    fn index(&self, page: usize) -> usize {
        page * WORDS + page * 61 % WORDS
    }

    fn read(&self, page: usize) -> Outcome {
        let index = self.index(page);
        let found = self.words[index].load(Ordering::Relaxed);
        self.check(index, found)
    }

    fn write(&self, page: usize) -> Outcome {
        let index = self.index(page);
        let found = self.words[index].load(Ordering::Relaxed);
        self.words[index].store(found ^ 1, Ordering::Relaxed);
        self.check(index, found)
    }

    fn check(&self, index: usize, found: u64) -> Outcome {
        let expected = word(self.seed, index);
        if found & !1 == expected {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "memory is wrong: word {index} (page {}) holds {found:#x} instead of {expected:#x}",
            index / WORDS
        )))
    }
}

/// Draws from a zipf distribution in constant time (Gray et al., SIGMOD 1994), spread over memory by
/// a hash so that pages that are wanted often do not lie together.
struct Zipf {
    n: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    fn new(n: u64) -> Zipf {
        let zeta = |n: u64| (1..=n).map(|i| 1.0 / (i as f64).powf(ZIPF)).sum::<f64>();
        let all = zeta(n);
        let first = 1.0 - (2.0 / n as f64).powf(1.0 - ZIPF);
        Zipf {
            n,
            zeta: all,
            alpha: 1.0 / (1.0 - ZIPF),
            eta: first / (1.0 - zeta(2) / all),
        }
    }

    fn rank(&self, unit: f64) -> u64 {
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5f64.powf(ZIPF) {
            1
        } else {
            let rank = self.n as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
            (rank as u64).min(self.n - 1)
        }
    }

    fn page(&self, unit: f64) -> usize {
        SplitMix64::new(self.rank(unit)).below(self.n) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(pages: usize) -> Area {
        let words = (0..pages * WORDS).map(|n| AtomicU64::new(word(3, n)));
        Area {
            words: words.collect(),
            pages,
            seed: 3,
        }
    }

    #[test]
    fn every_pattern_touches_good_memory_and_finds_bad() {
        for pattern in Pattern::ALL {
            let args = Args {
                pattern,
                size: Bytes::pages(50),
                threads: 2,
                passes: 2.0,
                seed: 3,
            };
            let area = area(50);
            assert_eq!(area.touch(&args, 2.0, 1).unwrap(), 100);
            for page in 0..50 {
                area.words[area.index(page)].store(4711, Ordering::Relaxed);
            }
            let wrong = area.touch(&args, 2.0, 1).unwrap_err().to_string();
            assert!(wrong.contains("instead of"), "{}: {wrong}", pattern.name());
        }
    }

    #[test]
    fn a_stride_comes_to_every_page() {
        let area = area(23);
        let zipf = Zipf::new(23);
        // Reading does not show which pages were touched: make all but one bad, one after another.
        for page in 0..23 {
            let index = area.index(page);
            area.words[index].store(2, Ordering::Relaxed);
            let found = area.work(Pattern::Stride, 0, 1, 23, 1, &zipf);
            assert!(found.is_err(), "page {page} was not touched");
            area.words[index].store(word(3, index), Ordering::Relaxed);
        }
    }

    #[test]
    fn zipf_prefers_few_pages() {
        let zipf = Zipf::new(10_000);
        let mut dice = SplitMix64::new(1);
        let draws: Vec<u64> = (0..20_000).map(|_| zipf.rank(dice.unit())).collect();
        assert!(draws.iter().all(|rank| *rank < 10_000));
        let top = draws.iter().filter(|rank| **rank < 100).count();
        assert!(
            (8_000..16_000).contains(&top),
            "{top} of 20000 in the first hundredth"
        );
    }
}
