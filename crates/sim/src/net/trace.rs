//! What a job does to memory over its own computing time.
//!
//! A trace is a list of segments. In each the program computes for some time, makes memory that is
//! new to it (`grown`), and touches memory that it has had before (`touched`). Until the working set
//! is complete, new memory adds to it; after that it takes the place of old memory, and of the old
//! only what was still local can be reused: the rest needs a local page, as does a touch of something
//! that is remote by now (a miss, which also has to be read).
//!
//! Glitter's traces (memory throughput, by hardware counters) are not published. Ours are made from
//! a seed: a load phase in which the working set grows, then rounds of a burst and a lull. The
//! numbers of each job are in [`Shape::of`] and in the docs; a recorded trace can be given instead.

use super::config::{InputError, JobKind};
use muninn_types::{Bytes, Nanos, SplitMix64};
use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    pub compute: Nanos,
    pub grown: Bytes,
    pub touched: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub segments: Vec<Segment>,
    pub working_set: Bytes,
    /// How unevenly memory is touched: of a set of which a share `s` is remote, a touch misses with
    /// probability s^locality. 1 is even; higher is more local.
    pub locality: f64,
    /// The job has been running for long: it begins with its working set in place.
    pub warm: bool,
}

/// The parameters from which a synthetic trace is made; rates are per second of computing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub working_set: Bytes,
    /// The load phase: the working set grows at this rate.
    pub load_mb_s: f64,
    /// Rounds after the load, and the computing time of one.
    pub rounds: u32,
    pub round_s: f64,
    /// Share of a round that is burst.
    pub burst_share: f64,
    pub burst_grown_mb_s: f64,
    pub burst_touched_mb_s: f64,
    pub lull_grown_mb_s: f64,
    pub lull_touched_mb_s: f64,
    pub locality: f64,
    /// Rounds differ by up to this share, either way.
    pub jitter: f64,
}

impl Shape {
    /// Working sets are Glitter's; the rest is ours. Bursts make new memory several times faster
    /// than a core can evict it (which is what makes a job block), lulls hardly any.
    pub fn of(kind: JobKind) -> Shape {
        let linpack = Shape {
            working_set: Bytes(1_560_000_000),
            load_mb_s: 400.0,
            rounds: 6,
            round_s: 1.0,
            burst_share: 0.2,
            burst_grown_mb_s: 2700.0,
            burst_touched_mb_s: 200.0,
            lull_grown_mb_s: 0.0,
            lull_touched_mb_s: 40.0,
            locality: 2.0,
            jitter: 0.3,
        };
        match kind {
            JobKind::Linpack => linpack,
            JobKind::Kmeans => Shape {
                working_set: Bytes(4_730_000_000),
                load_mb_s: 600.0,
                rounds: 2,
                round_s: 2.0,
                burst_share: 0.18,
                burst_touched_mb_s: 400.0,
                ..linpack
            },
            JobKind::Pagerank => Shape {
                working_set: Bytes(2_300_000_000),
                rounds: 3,
                round_s: 1.4,
                burst_grown_mb_s: 2400.0,
                burst_touched_mb_s: 400.0,
                ..linpack
            },
            JobKind::Quicksort => Shape {
                working_set: Bytes(2_400_000_000),
                rounds: 3,
                round_s: 1.6,
                burst_share: 0.12,
                burst_grown_mb_s: 2000.0,
                ..linpack
            },
            // Steady, and far below what a server's eviction cores can do.
            JobKind::Other => Shape {
                working_set: Bytes(1_000_000_000),
                rounds: 8,
                burst_grown_mb_s: 100.0,
                burst_touched_mb_s: 20.0,
                lull_grown_mb_s: 100.0,
                lull_touched_mb_s: 20.0,
                locality: 1.0,
                ..linpack
            },
        }
    }

    /// A trace with memory and time divided by `scale`, so that all rates stay as they are. A warm
    /// one keeps its memory: only what passes through it matters.
    pub fn trace(&self, scale: f64, warm: bool, rng: &mut SplitMix64) -> Trace {
        let mut segments = Vec::new();
        let mut push = |seconds: f64, grown_mb_s: f64, touched_mb_s: f64| {
            segments.push(Segment {
                compute: Nanos((seconds * 1e9) as u64),
                grown: Bytes((grown_mb_s * 1e6 * seconds) as u64),
                touched: Bytes((touched_mb_s * 1e6 * seconds) as u64),
            });
        };
        let working_set = self.working_set.0 as f64 / if warm { 1.0 } else { scale };
        if !warm {
            push(working_set / (self.load_mb_s * 1e6), self.load_mb_s, 0.0);
        }
        for _ in 0..self.rounds {
            let round = self.round_s / scale * (1.0 + self.jitter * (2.0 * rng.unit() - 1.0));
            let burst = round * self.burst_share;
            push(burst, self.burst_grown_mb_s, self.burst_touched_mb_s);
            push(round - burst, self.lull_grown_mb_s, self.lull_touched_mb_s);
        }
        Trace {
            segments,
            working_set: Bytes(working_set as u64),
            locality: self.locality,
            warm,
        }
    }
}

/// A trace as it is written in a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceFile {
    working_set: Bytes,
    #[serde(default = "even")]
    locality: f64,
    segment: Vec<SegmentLine>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SegmentLine {
    seconds: f64,
    #[serde(default)]
    grown: Bytes,
    #[serde(default)]
    touched: Bytes,
}

fn even() -> f64 {
    1.0
}

impl Trace {
    /// Segments that one trace may have.
    const SEGMENTS_MAX: usize = 1_000_000;

    /// How many touches miss when this share of the working set is remote.
    pub fn miss_share(&self, remote: f64) -> f64 {
        remote.powf(self.locality)
    }

    /// Local memory that is needed with the working set complete and this share of it remote, in
    /// bytes per nanosecond of computing.
    pub fn need_rate(&self, remote: f64) -> f64 {
        let (mut bytes, mut ns) = (0.0, 0.0);
        for segment in &self.segments {
            bytes += segment.grown.0 as f64 * remote;
            bytes += segment.touched.0 as f64 * self.miss_share(remote);
            ns += segment.compute.0 as f64;
        }
        bytes / ns
    }

    /// Reads a recorded trace (TOML) and divides memory and time by `scale`.
    pub fn parse(text: &str, scale: f64) -> Result<Trace, InputError> {
        let file: TraceFile = toml::from_str(text).map_err(|error| {
            InputError::new(
                "trace",
                "not readable as TOML",
                error.to_string().trim_end(),
            )
        })?;
        if file.working_set == Bytes::ZERO {
            return Err(InputError::new(
                "trace: working_set",
                0,
                "use at least 1MiB",
            ));
        }
        if !(0.1..=100.0).contains(&file.locality) {
            return Err(InputError::new(
                "trace: locality",
                file.locality,
                "use 0.1 to 100",
            ));
        }
        if !(1..=Trace::SEGMENTS_MAX).contains(&file.segment.len()) {
            let max = Trace::SEGMENTS_MAX;
            let remedy = format!("use 1 to {max}");
            return Err(InputError::new(
                "trace: number of segments",
                file.segment.len(),
                remedy,
            ));
        }
        let mut segments = Vec::with_capacity(file.segment.len());
        for (number, line) in file.segment.iter().enumerate() {
            if !(1e-6..=1e6).contains(&line.seconds) {
                let field = format!("trace: seconds of segment {}", number + 1);
                return Err(InputError::new(
                    field,
                    line.seconds,
                    "use 0.000001 to 1000000",
                ));
            }
            segments.push(Segment {
                compute: Nanos(((line.seconds * 1e9 / scale) as u64).max(1)),
                grown: Bytes((line.grown.0 as f64 / scale) as u64),
                touched: Bytes((line.touched.0 as f64 / scale) as u64),
            });
        }
        Ok(Trace {
            segments,
            working_set: Bytes((file.working_set.0 as f64 / scale) as u64),
            locality: file.locality,
            warm: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_divides_memory_and_time_and_keeps_rates() {
        let shape = Shape::of(JobKind::Linpack);
        let whole = shape.trace(1.0, false, &mut SplitMix64::new(5));
        let small = shape.trace(8.0, false, &mut SplitMix64::new(5));
        assert_eq!(whole.working_set.0 / 8, small.working_set.0);
        for (a, b) in whole.segments.iter().zip(&small.segments) {
            assert!((a.compute.0 as f64 / b.compute.0 as f64 - 8.0).abs() < 1e-6);
            assert!((a.grown.0 as i64 - 8 * b.grown.0 as i64).abs() < 16);
        }
        let grown: u64 = whole.segments[0].grown.0;
        assert!((grown as f64 / whole.working_set.0 as f64 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_file_is_read_as_it_is_written() {
        let text = "working_set = \"1GiB\"\n[[segment]]\nseconds = 2\ngrown = \"1GiB\"\n\
                    [[segment]]\nseconds = 1.5\ntouched = \"64MiB\"\n";
        let trace = Trace::parse(text, 2.0).unwrap();
        assert_eq!(trace.working_set, Bytes::mib(512));
        assert_eq!(trace.segments[0].compute, Nanos::secs(1));
        assert_eq!(trace.segments[1].compute, Nanos::millis(750));
        assert_eq!(trace.segments[1].touched, Bytes::mib(32));
    }

    #[test]
    fn bad_traces_name_the_field() {
        let message = |text: &str| Trace::parse(text, 1.0).unwrap_err().to_string();
        assert_eq!(
            message("working_set = 0\nsegment = []"),
            "trace: working_set is 0: use at least 1MiB"
        );
        assert_eq!(
            message("working_set = \"1GiB\"\nsegment = []"),
            "trace: number of segments is 0: use 1 to 1000000"
        );
        assert_eq!(
            message("working_set = \"1GiB\"\nlocality = nan\nsegment = []"),
            "trace: locality is NaN: use 0.1 to 100"
        );
        assert_eq!(
            message("working_set = \"1GiB\"\n[[segment]]\nseconds = -1"),
            "trace: seconds of segment 1 is -1: use 0.000001 to 1000000"
        );
        assert!(message("hello").starts_with("trace is not readable as TOML: "));
    }
}
