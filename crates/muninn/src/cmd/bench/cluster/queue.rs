//! The queue: jobs are submitted as they arrive, and watched until all have ended.
//!
//! Arrivals are those of the simulator for the same seed. What a job does it writes into files of its own
//! folder, with the time, so nothing hangs on how often we look. Invariant: a job is over when it says so, or
//! when Slurm does not know it any more; then it failed.

use super::Bench;
use super::kinds::result_in;
use super::way::{Way, options};
use crate::failure::Failure;
use crate::slurm_rack::SlurmRack;
use muninn_sim::rack::Workload;
use muninn_sim::rack::engine::ARRIVAL_WINDOW;
use muninn_sys::cgroup::CpuCgroup;
use muninn_types::SplitMix64;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two questions to Slurm which jobs it still has.
const ASK: Duration = Duration::from_secs(3);
/// A queue that takes so many times what its jobs take one after the other on one core is stuck.
const PATIENCE_TIMES: f64 = 3.0;

/// A job that is over.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    pub kind: &'static str,
    pub node: String,
    /// In seconds since the first could arrive.
    pub arrived_s: f64,
    pub begun_s: f64,
    pub ended_s: f64,
    /// Run time beside that with all memory near, as its profile has it.
    pub slowdown: f64,
    pub right: bool,
    pub failed: Option<String>,
}

struct Job {
    kind: usize,
    arrives_s: f64,
    place: PathBuf,
    group: CpuCgroup,
    /// Number and time of its submission.
    submitted: Option<(u64, f64)>,
    ended: Option<Result<(f64, f64), String>>,
    /// Slurm did not know it any more when asked last.
    missed: bool,
}

pub struct Queue<'a> {
    bench: &'a Bench,
    way: Way,
    memory_groups: &'a Path,
    jobs: Vec<Job>,
    zero_s: f64,
    asked: Instant,
    ends: Instant,
}

fn now_s() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

impl<'a> Queue<'a> {
    pub fn new(
        bench: &'a Bench,
        way: Way,
        folder: &Path,
        memory_groups: &'a Path,
    ) -> Result<Queue<'a>, Failure> {
        let mut arrivals = Vec::new();
        let workload = Workload {
            counts: bench.counts(),
        };
        // As the engine draws them.
        let mut rng = SplitMix64::new(bench.seed);
        workload.arrivals(ARRIVAL_WINDOW.0, &mut rng.fork(), &mut arrivals);
        let mut jobs = Vec::new();
        for (number, (at, kind)) in arrivals.into_iter().enumerate() {
            let name = format!("muninn-bench-{}-{number}", std::process::id());
            let group = CpuCgroup::create(&bench.cpu, &name, bench.rack.core_share);
            let place = folder.join(format!("j{number}"));
            std::fs::create_dir(&place)?;
            jobs.push(Job {
                kind: usize::from(kind),
                arrives_s: at as f64 / 1e9,
                place,
                group: group.map_err(Failure::failed)?,
                submitted: None,
                ended: None,
                missed: false,
            });
        }
        let in_turn: f64 = jobs.iter().map(|job| bench.kinds[job.kind].alone_s()).sum();
        let patience = Duration::from_secs_f64(60.0 + PATIENCE_TIMES * in_turn);
        Ok(Queue {
            bench,
            way,
            memory_groups,
            jobs,
            zero_s: now_s(),
            asked: Instant::now(),
            ends: Instant::now() + patience,
        })
    }

    pub fn is_over(&self) -> bool {
        self.jobs.iter().all(|job| job.ended.is_some())
    }

    /// The groups of jobs that may be running.
    pub fn groups(&self) -> impl Iterator<Item = &CpuCgroup> {
        let here = |job: &&Job| job.submitted.is_some() && job.ended.is_none();
        self.jobs.iter().filter(here).map(|job| &job.group)
    }

    /// Submits what is due and sees what has ended; how many that are.
    pub fn turn(&mut self, slurm: &SlurmRack) -> Result<u64, Failure> {
        if Instant::now() > self.ends {
            let left: Vec<String> = self
                .jobs
                .iter()
                .filter_map(|job| {
                    let (number, _) = job.submitted?;
                    job.ended.is_none().then(|| number.to_string())
                })
                .collect();
            return Err(Failure::failed(format!(
                "the queue is stuck ({}): jobs {} have not ended\n{}\n{}",
                self.way.name(),
                left.join(", "),
                slurm.ask("squeue", &["-l"])?,
                slurm.logs()
            )));
        }
        let due = now_s() - self.zero_s;
        for number in 0..self.jobs.len() {
            if self.jobs[number].submitted.is_none() && self.jobs[number].arrives_s <= due {
                self.submit(number, slurm)?;
            }
        }
        let known = match self.asked.elapsed() >= ASK {
            true => {
                self.asked = Instant::now();
                Some(slurm.ask("squeue", &["-h", "-o", "%i"])?)
            }
            false => None,
        };
        let known: Option<Vec<u64>> = known.map(|text| {
            let numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
            numbers.collect()
        });
        let mut over = 0;
        for job in self.jobs.iter_mut().filter(|job| job.ended.is_none()) {
            let Some((number, _)) = job.submitted else {
                continue;
            };
            job.ended = ended(&job.place);
            if let (Some(known), None) = (&known, &job.ended) {
                // Twice, as it may end between its last word and our question.
                let gone = !known.contains(&number);
                if gone && std::mem::replace(&mut job.missed, gone) {
                    let text = std::fs::read_to_string(job.place.join("out")).unwrap_or_default();
                    let last = text
                        .lines()
                        .next_back()
                        .unwrap_or("it was killed")
                        .to_string();
                    job.ended = Some(Err(last));
                }
            }
            over += u64::from(job.ended.is_some());
        }
        Ok(over)
    }

    fn submit(&mut self, number: usize, slurm: &SlurmRack) -> Result<(), Failure> {
        let job = &mut self.jobs[number];
        let kind = &self.bench.kinds[job.kind];
        let mut command = slurm.command("sbatch");
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["MUNINN_", "SLURM_", "SBATCH_"]
                .iter()
                .any(|of| name.starts_with(of))
            {
                command.env_remove(name.as_ref());
            }
        }
        command.env("SLURM_CONF", slurm.config());
        // What a bench measures is not to be remembered as what its user runs.
        command
            .env("XDG_STATE_HOME", &job.place)
            .env("MUNINN_CONFIG", "/dev/null");
        command
            .args(["--parsable", "--ntasks=1", "--output"])
            .arg(job.place.join("out"));
        command
            .arg("--chdir")
            .arg(&job.place)
            .args(options(self.way, kind));
        command
            .arg(&kind.script)
            .arg(&job.place)
            .arg(job.group.path());
        command.arg(self.memory_groups);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let id = said.trim().split(';').next().and_then(|id| id.parse().ok());
        let Some(id) = id else {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_string();
            return Err(Failure::failed(format!(
                "sbatch refused {}: {why}",
                kind.name
            )));
        };
        job.submitted = Some((id, now_s()));
        Ok(())
    }

    /// What became of them, in the order of their arrival.
    pub fn ran(&self) -> Result<Vec<Ran>, Failure> {
        let one = |job: &Job| {
            let kind = &self.bench.kinds[job.kind];
            let result = result_in(&job.place);
            let (begun, over, failed) = match job.ended.clone() {
                Some(Ok((begun, over))) => (begun, over, None),
                Some(Err(why)) => (f64::NAN, f64::NAN, Some(why)),
                None => (f64::NAN, f64::NAN, Some("it never ended".to_string())),
            };
            let node = std::fs::read_to_string(job.place.join("node")).unwrap_or_default();
            Ran {
                kind: kind.name,
                node: node.trim().to_string(),
                arrived_s: job.arrives_s,
                begun_s: begun - self.zero_s,
                ended_s: over - self.zero_s,
                slowdown: (over - begun) / kind.alone_s(),
                right: failed.is_none() && result.as_ref() == Some(&kind.result),
                failed,
            }
        };
        Ok(self.jobs.iter().map(one).collect())
    }
}

/// When a job began and ended, or why it failed; `None` while it has not ended.
fn ended(place: &Path) -> Option<Result<(f64, f64), String>> {
    let ended = std::fs::read_to_string(place.join("ended")).ok()?;
    let begun = std::fs::read_to_string(place.join("begun")).ok();
    let mut words = ended.split_whitespace();
    let (code, at) = (words.next()?, words.next()?.parse::<f64>().ok()?);
    let begun = begun.and_then(|text| text.trim().parse().ok());
    Some(match (code, begun) {
        ("0", Some(begun)) => Ok((begun, at)),
        _ => {
            let errors = std::fs::read_to_string(place.join("errors")).unwrap_or_default();
            let last = errors.lines().next_back().unwrap_or_default();
            Err(format!("it ended with code {code} ({last})"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_over_when_it_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(ended(dir.path()), None);
        write("begun", "100.5\n");
        assert_eq!(ended(dir.path()), None);
        write("ended", "0 103.25\n");
        assert_eq!(ended(dir.path()), Some(Ok((100.5, 103.25))));
        write("ended", "137 103.25\n");
        write("errors", "some\nKilled\n");
        let why = "it ended with code 137 (Killed)".to_string();
        assert_eq!(ended(dir.path()), Some(Err(why)));
        write("result", " 4711 12\n");
        assert_eq!(result_in(dir.path()).as_deref(), Some("4711 12"));
    }
}
