//! Several racks: far memory does not leave a rack, so a job runs in one of them, and the only question is in
//! which.
//!
//! Each rack has users of its own, whose jobs want more or less memory. Either their jobs stay in their rack
//! ([`Stream::Own`]), or all jobs are one stream and each goes to the rack that has the least work for its
//! size ([`Stream::Joined`]; what a federation of schedulers does). Then every rack runs by itself, with its
//! own coordinator and pool, as in [`super::engine`].
//!
//! Invariant: the same jobs, whatever the stream; the same bytes, whatever the number of threads. Known limit:
//! a job is sent to a rack when it arrives and never moves, and what it costs to have its files there is not
//! counted.

use super::RackError;
use super::engine::{Engine, Run, Setup};
use super::spec::{Config, Rack, Shape};
use super::workload::{Generator, Range, Workload};
use muninn_policy::profile::catalogue::JobKind;
use muninn_types::SplitMix64;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More racks than this are not simulated.
pub const RACKS_MAX: u32 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    Own,
    Joined,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Racks<'a> {
    pub racks: u32,
    pub rack: Rack,
    pub kinds: &'a [JobKind],
    pub config: Config,
    /// Without far memory the published admission counts, as elsewhere.
    pub setup: Setup,
    /// What the users of the first rack want, of the second, and so on, and again from the beginning.
    pub ranges: Vec<Range>,
    /// For each rack.
    pub jobs: u32,
    pub seed: u64,
    pub threads: usize,
}

/// One stream in one configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamRow {
    pub racks: u32,
    pub config: String,
    pub stream: Stream,
    pub jobs: u64,
    /// When the last job of all racks ended.
    pub makespan_s: f64,
    /// Mean over racks of the time when its last job ended.
    pub rack_makespan_s: f64,
    /// Makespan of each rack's own users without far memory ÷ this makespan − 1, in percent.
    pub improvement_pct: f64,
    pub slowdown_mean: f64,
}

impl Racks<'_> {
    /// Four rows: each stream without far memory and with it. `done` is told of each rack that has run.
    pub fn run(&self, done: &(dyn Fn() + Sync)) -> Result<Vec<StreamRow>, RackError> {
        self.rack.check()?;
        if self.racks == 0 || self.racks > RACKS_MAX {
            return Err(RackError::Racks(self.racks, RACKS_MAX));
        }
        let mut rng = SplitMix64::new(self.seed);
        let own = self.own(&mut rng)?;
        let joined = self.joined(&own, &mut rng);
        let mut rows = Vec::new();
        for config in [Config::NOFAR, self.config] {
            let shape = config.shape(&self.rack)?;
            for (stream, workloads) in [(Stream::Own, &own), (Stream::Joined, &joined)] {
                let runs = self.each(workloads, &shape, config, done)?;
                let name = config.name(&self.rack);
                rows.push(self.row(name, stream, &runs, rows.first()));
            }
        }
        Ok(rows)
    }

    /// Steps that [`Racks::run`] reports.
    pub fn steps(&self) -> u64 {
        4 * u64::from(self.racks)
    }

    fn own(&self, rng: &mut SplitMix64) -> Result<Vec<Workload>, RackError> {
        let generator = Generator::new(self.kinds, &self.rack);
        let ranges = self.ranges.iter().cycle();
        let drawn = ranges.take(self.racks as usize);
        drawn
            .map(|range| generator.draw(*range, self.jobs, rng))
            .collect()
    }

    /// All jobs in one order, each to the rack that has the least work.
    fn joined(&self, own: &[Workload], rng: &mut SplitMix64) -> Vec<Workload> {
        let mut stream: Vec<u16> = Vec::new();
        for workload in own {
            for (kind, &count) in workload.counts.iter().enumerate() {
                stream.extend(std::iter::repeat_n(kind as u16, count as usize));
            }
        }
        for at in (1..stream.len()).rev() {
            stream.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let (cores, memory) = (f64::from(self.rack.cores), self.rack.memory.0 as f64);
        // What a job takes of a machine's time, by the resource of which it takes more.
        let work = |kind: &JobKind| {
            let share = (f64::from(kind.cores) / cores).max(kind.memory.0 as f64 / memory);
            (share * kind.profile.full_s() * 1e6) as u64
        };
        let work: Vec<u64> = self.kinds.iter().map(work).collect();
        let empty = Workload {
            counts: vec![0; self.kinds.len()],
        };
        let mut workloads = vec![empty; own.len()];
        let mut least: BinaryHeap<Reverse<(u64, usize)>> =
            (0..own.len()).map(|rack| Reverse((0, rack))).collect();
        for kind in stream {
            if let Some(mut first) = least.peek_mut() {
                let Reverse((sum, rack)) = &mut *first;
                *sum += work[usize::from(kind)];
                workloads[*rack].counts[usize::from(kind)] += 1;
            }
        }
        workloads
    }

    fn each(
        &self,
        workloads: &[Workload],
        shape: &Shape,
        config: Config,
        done: &(dyn Fn() + Sync),
    ) -> Result<Vec<Run>, RackError> {
        let setup = match config.is_far() {
            true => self.setup,
            false => Setup {
                admission: muninn_policy::admission::Admission::Eager,
                ..self.setup
            },
        };
        let engine = Engine::new(self.kinds, setup);
        for workload in workloads {
            engine.check(workload, shape, &config.name(&self.rack))?;
        }
        let next = AtomicUsize::new(0);
        let runs: Vec<Mutex<Run>> = workloads.iter().map(|_| Mutex::default()).collect();
        let work = || {
            let mut engine = Engine::new(self.kinds, setup);
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(workload) = workloads.get(place) else {
                    return;
                };
                let run = engine.run(workload, shape, self.seed ^ place as u64);
                *runs[place].lock().expect("no thread panics") = run;
                done();
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.max(1) {
                scope.spawn(work);
            }
            work();
        });
        let runs = runs.into_iter();
        Ok(runs
            .map(|run| run.into_inner().expect("no thread panics"))
            .collect())
    }

    fn row(
        &self,
        config: String,
        stream: Stream,
        runs: &[Run],
        base: Option<&StreamRow>,
    ) -> StreamRow {
        let seconds = || runs.iter().map(|run| run.makespan.as_secs_f64());
        let makespan_s = seconds().fold(0.0, f64::max);
        let slowdowns = || runs.iter().flat_map(|run| run.slowdowns.iter());
        let jobs = slowdowns().count();
        let slowdown: f64 = slowdowns().map(|slowdown| f64::from(*slowdown)).sum();
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        let makespan_s = rounded(makespan_s);
        let base_s = base.map_or(makespan_s, |row| row.makespan_s);
        StreamRow {
            racks: self.racks,
            config,
            stream,
            jobs: jobs as u64,
            makespan_s,
            rack_makespan_s: rounded(seconds().sum::<f64>() / runs.len() as f64),
            improvement_pct: rounded((base_s / makespan_s - 1.0) * 100.0),
            slowdown_mean: rounded(slowdown / jobs.max(1) as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rack::published;
    use muninn_policy::profile::catalogue::Size;

    #[test]
    fn racks_share_a_stream_and_every_job_runs_once() {
        let kinds = published(Size::Rack);
        let plan = |racks, threads| Racks {
            racks,
            rack: Rack {
                machines: 6,
                ..Rack::PUBLISHED
            },
            kinds: &kinds,
            config: Config::Far { more_pct: 33.0 },
            setup: Setup::default(),
            ranges: Range::FIGURE_4_7.to_vec(),
            jobs: 120,
            seed: 3,
            threads,
        };
        let rows = plan(6, 2).run(&|| {}).unwrap();
        assert_eq!(rows, plan(6, 1).run(&|| {}).unwrap());
        assert!(rows.iter().all(|row| row.jobs == 6 * 120));
        let of = |config: &str, stream| {
            let mut found = rows.iter().filter(|row| row.config == config);
            found.find(|row| row.stream == stream).unwrap()
        };
        let (own, joined) = (of("nofar", Stream::Own), of("nofar", Stream::Joined));
        assert!(joined.makespan_s < own.makespan_s, "{rows:#?}");
        assert_eq!(own.improvement_pct, 0.0);
        let far = of("far+33", Stream::Joined);
        assert!(
            far.makespan_s < of("far+33", Stream::Own).makespan_s,
            "{rows:#?}"
        );
        assert!(far.slowdown_mean > 1.0, "{rows:#?}");
        // One rack has nobody to share with.
        let alone = plan(1, 1).run(&|| {}).unwrap();
        assert_eq!(alone[0].makespan_s, alone[1].makespan_s);
        assert!(matches!(
            plan(0, 1).run(&|| {}),
            Err(RackError::Racks(0, _))
        ));
    }
}
