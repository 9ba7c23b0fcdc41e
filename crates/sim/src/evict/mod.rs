//! Which pages to keep and which to fetch ahead: every pair of policies on the same traces.
//!
//! The policies are the live pager's own ([`muninn_policy::evict`], [`muninn_policy::prefetch`]), and so is
//! the engine that asks them ([`replay`]); only the kernel and the pool below it are models ([`near`],
//! [`away`]). Each cell of the grid (trace, local ratio,
//! eviction policy, prefetch policy) is independent and deterministic from the seed, so cells run on
//! all cores and the result does not depend on how many there are.

pub mod away;
pub mod charts;
pub mod cost;
pub mod exact_lru;
pub mod near;
pub mod optimum;
pub mod replay;
pub mod summary;
pub mod trace;
pub mod trace_file;

use muninn_pager_core::{CHUNK_PAGES, Count, Fatal, Settings};
use muninn_policy::evict::EvictPolicy;
use muninn_policy::prefetch::PrefetchPolicy;
use muninn_policy::staging::Staging;
use muninn_types::Percent;
use near::StagedHits;
use replay::Replay;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use trace::{Trace, TraceKind};
use trace_file::TraceFileError;

/// The largest number of pages a generated trace may have (64 GiB of memory).
pub const PAGES_MAX: u32 = 1 << 24;
/// The longest trace: 8 bytes for each access, and 4 more for the optimum.
pub const ACCESSES_MAX: u64 = 1 << 28;

/// Where the accesses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceSource {
    Generated(TraceKind),
    File(PathBuf),
}

#[derive(Clone, Debug)]
pub struct Config {
    pub traces: Vec<TraceSource>,
    /// Pages and accesses of a generated trace.
    pub pages: u32,
    pub accesses: u64,
    pub local: Vec<Percent>,
    pub evict: Vec<EvictPolicy>,
    pub prefetch: Vec<PrefetchPolicy>,
    /// How much of local memory is for pages on their way out, if not what the live pager has.
    pub staging: Option<Percent>,
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        let percent = |ratio| Percent::from_ratio(ratio).unwrap_or(Percent::FULL);
        Config {
            traces: TraceKind::ALL.map(TraceSource::Generated).to_vec(),
            pages: 8_192,
            accesses: 100_000,
            local: vec![percent(0.25), percent(0.5), percent(0.75)],
            evict: EvictPolicy::ALL.to_vec(),
            prefetch: PrefetchPolicy::ALL.to_vec(),
            staging: None,
            seed: 1,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum EvictSimError {
    #[error("--{field}: give at least one")]
    NothingGiven { field: &'static str },
    #[error("--pages: {pages} is not between 1 and {max}", max = PAGES_MAX)]
    Pages { pages: u32 },
    #[error("--accesses: {accesses} is not between 1 and {max}", max = ACCESSES_MAX)]
    Accesses { accesses: u64 },
    #[error("--local: {local} of {pages} pages is less than one page")]
    LocalTooSmall { local: Percent, pages: u32 },
    #[error("--staging: {0} leaves nothing for the program: give at most 90%")]
    Staging(Percent),
    /// What the live pager would end its program with.
    #[error("the engine gave up: {0}")]
    Engine(#[from] Fatal),
    #[error(transparent)]
    TraceFile(#[from] TraceFileError),
}

/// The outcome of one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub trace: String,
    pub local_ratio: f64,
    pub local_pages: u32,
    pub evict: String,
    pub prefetch: String,
    pub accesses: u64,
    pub first_touches: u64,
    /// Accesses that had to wait for a page from far memory.
    pub misses: u64,
    pub miss_ratio: f64,
    /// Accesses without any fault.
    pub hit_rate: f64,
    /// The fewest misses possible without prefetching.
    pub optimum_misses: u64,
    /// Misses of exact LRU, which the pager cannot have: it would have to see every access.
    pub lru_misses: u64,
    /// Absent where the optimum has no misses.
    pub ratio_to_optimum: Option<f64>,
    pub staged_hits: u64,
    pub staged: StagedPages,
    pub buffer_hits: u64,
    pub prefetched: u64,
    pub prefetch_used: u64,
    /// Share of the prefetched pages that were used.
    pub prefetch_accuracy: Option<f64>,
    /// Share of the far pages needed that had been fetched ahead.
    pub prefetch_coverage: Option<f64>,
    /// Pages fetched from far memory, on demand or ahead.
    pub pages_in: u64,
    /// Pages written to far memory, those that were not because their far copy was still good, and zeros.
    pub pages_out: u64,
    pub pages_dropped: u64,
    pub pages_zero: u64,
    /// Pages moved into the staging area.
    pub pages_staged: u64,
    /// Pages that were held above local memory for a moment, at most.
    pub pages_above: u64,
    /// Calls that gave memory back.
    pub discards: u64,
    pub run_pages_mean: Option<f64>,
    /// Estimated cost of far memory for each access, by transport.
    pub ns_per_access_shm: f64,
    pub ns_per_access_tcp: f64,
}

/// Which pages the staged hits are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagedPages {
    /// By how the page had become resident before it was staged: first touch, from far memory, fetched
    /// ahead, a staged hit.
    pub first_touch: u64,
    pub demand: u64,
    pub prefetch: u64,
    pub staged_hit: u64,
    pub writes: u64,
    /// Accesses, half of the hits had no more: from the page's arrival to when it was staged, and from then
    /// to the hit. Rounded up to one less than a power of two.
    pub stayed_median: Option<u64>,
    pub waited_median: Option<u64>,
}

impl StagedPages {
    fn of(hits: &StagedHits) -> StagedPages {
        let [first_touch, demand, prefetch, staged_hit] = hits.by_arrival;
        StagedPages {
            first_touch,
            demand,
            prefetch,
            staged_hit,
            writes: hits.writes,
            stayed_median: StagedHits::median(&hits.stayed),
            waited_median: StagedHits::median(&hits.waited),
        }
    }
}

/// One trace at one local ratio: what its cells have in common.
struct Case {
    trace: usize,
    local: Percent,
    local_pages: u32,
    optimum_misses: u64,
    lru_misses: u64,
}

/// How many cells the grid has.
pub fn cells(config: &Config) -> usize {
    config.traces.len() * config.local.len() * config.evict.len() * config.prefetch.len()
}

/// Runs the grid on all cores. `done` is called after each cell, from any thread. Rows come in the
/// order trace, local ratio, eviction policy, prefetch policy, as they were given.
pub fn run(config: &Config, done: &(dyn Fn() + Sync)) -> Result<Vec<Row>, EvictSimError> {
    check(config)?;
    let mut traces = Vec::new();
    for source in &config.traces {
        traces.push(match source {
            TraceSource::Generated(kind) => {
                kind.generate(config.pages, config.accesses as usize, config.seed)
            }
            TraceSource::File(path) => trace_file::read(path)?,
        });
    }
    let mut cases = Vec::new();
    for (number, trace) in traces.iter().enumerate() {
        for &local in &config.local {
            let local_pages = (f64::from(trace.touched_pages) * local.ratio()).round() as u32;
            if local_pages == 0 {
                return Err(EvictSimError::LocalTooSmall {
                    local,
                    pages: trace.touched_pages,
                });
            }
            cases.push(Case {
                trace: number,
                local,
                local_pages,
                optimum_misses: 0,
                lru_misses: 0,
            });
        }
    }
    let yardsticks = in_parallel(cases.len(), |i| {
        let (trace, local_pages) = (&traces[cases[i].trace], cases[i].local_pages);
        (
            optimum::misses(trace, local_pages),
            exact_lru::misses(trace, local_pages),
        )
    });
    for (case, (optimum, lru)) in cases.iter_mut().zip(yardsticks) {
        case.optimum_misses = optimum;
        case.lru_misses = lru;
    }
    let per_case = config.evict.len() * config.prefetch.len();
    in_parallel(cells(config), |i| {
        let case = &cases[i / per_case];
        let evict = config.evict[i % per_case / config.prefetch.len()];
        let prefetch = config.prefetch[i % config.prefetch.len()];
        let row = cell(config, &traces[case.trace], case, evict, prefetch);
        done();
        row
    })
    .into_iter()
    .collect()
}

fn check(config: &Config) -> Result<(), EvictSimError> {
    let given = [
        ("trace", config.traces.is_empty()),
        ("local", config.local.is_empty()),
        ("evict", config.evict.is_empty()),
        ("prefetch", config.prefetch.is_empty()),
    ];
    for (field, nothing) in given {
        if nothing {
            return Err(EvictSimError::NothingGiven { field });
        }
    }
    if !(1..=PAGES_MAX).contains(&config.pages) {
        return Err(EvictSimError::Pages {
            pages: config.pages,
        });
    }
    if !(1..=ACCESSES_MAX).contains(&config.accesses) {
        return Err(EvictSimError::Accesses {
            accesses: config.accesses,
        });
    }
    if let Some(staging) = config.staging.filter(|share| share.ratio() > 0.9) {
        return Err(EvictSimError::Staging(staging));
    }
    Ok(())
}

/// The live pager's settings, but for what is varied.
fn settings(config: &Config, evict: EvictPolicy, prefetch: PrefetchPolicy) -> Settings {
    let live = Staging::default();
    let staging = config.staging.map_or(live, |share| Staging {
        one_in: (1.0 / share.ratio()).round() as u64,
        pages_min: CHUNK_PAGES as u64,
        ..live
    });
    Settings {
        evict,
        prefetch,
        staging,
        seed: config.seed,
        ..Settings::default()
    }
}

fn cell(
    config: &Config,
    trace: &Trace,
    case: &Case,
    evict: EvictPolicy,
    prefetch: PrefetchPolicy,
) -> Result<Row, EvictSimError> {
    let settings = settings(config, evict, prefetch);
    let mut replay = Replay::new(trace, case.local_pages, &settings);
    for (at, &access) in trace.accesses.iter().enumerate() {
        if at == trace.measured_from {
            replay.reset_counts();
        }
        replay.access(access)?;
    }
    let counts = replay.counts();
    let tally = &counts.tally;
    let misses = counts.of(Count::FaultsRemote);
    let staged_hits = counts.of(Count::FaultsStaged);
    let buffer_hits = counts.of(Count::FaultsBuffered);
    let first_touches = counts.of(Count::FaultsZero);
    let prefetched = counts.of(Count::Prefetched);
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let of_accesses = |part: u64| share(part, counts.accesses).unwrap_or(0.0);
    let faults = misses + staged_hits + buffer_hits + first_touches;
    Ok(Row {
        trace: trace.name.clone(),
        local_ratio: case.local.ratio(),
        local_pages: case.local_pages,
        evict: evict.to_string(),
        prefetch: prefetch.to_string(),
        accesses: counts.accesses,
        first_touches,
        misses,
        miss_ratio: of_accesses(misses),
        hit_rate: of_accesses(counts.accesses - faults),
        optimum_misses: case.optimum_misses,
        lru_misses: case.lru_misses,
        ratio_to_optimum: share(misses, case.optimum_misses),
        staged_hits,
        staged: StagedPages::of(&tally.staged),
        buffer_hits,
        prefetched,
        prefetch_used: tally.prefetch_used,
        prefetch_accuracy: share(tally.prefetch_used, prefetched),
        prefetch_coverage: share(tally.prefetch_used, tally.prefetch_used + misses),
        pages_in: misses + prefetched,
        pages_out: counts.of(Count::EvictedWritten),
        pages_dropped: counts.of(Count::EvictedClean),
        pages_zero: counts.of(Count::EvictedZero),
        pages_staged: tally.pages_staged,
        pages_above: counts.above,
        discards: tally.discards,
        run_pages_mean: share(tally.pages_staged, tally.runs),
        ns_per_access_shm: tally.shm_ns / counts.accesses as f64,
        ns_per_access_tcp: tally.tcp_ns / counts.accesses as f64,
    })
}

/// Results in order, whoever computed them.
fn in_parallel<T: Send>(tasks: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<T>>> = Mutex::new((0..tasks).map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..cores.min(tasks) {
            scope.spawn(|| {
                loop {
                    let task = next.fetch_add(1, Ordering::Relaxed);
                    if task >= tasks {
                        break;
                    }
                    let result = work(task);
                    let mut results = results.lock().unwrap_or_else(|e| e.into_inner());
                    results[task] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
