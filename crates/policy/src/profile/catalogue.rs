//! A file of job kinds with their profiles: what `muninn profile` writes and the scheduler reads.
//!
//! ```toml
//! [[job]]
//! name = "quicksort"
//! memory = "33GiB"              # peak, or one table for each size of rack:
//! cores = 4                     #   rack = { memory_mb = 33000, cores = 4 }
//! ratio     = [1.0, 0.8, 0.5]   # local ÷ total, from 1.0 downwards
//! runtime_s = [277.2, 310.5, 326.8]
//! poly = [-52.0, 30.0, 299.0]    # optional: seconds, highest power first; else fitted
//! min_ratio = 0.55              # optional: admit down to this; else the ratio of 20 % slowdown
//! far = false                   # optional: this job may not use far memory
//! ```
//!
//! `[rack]` may hold `min_ratio_20pct` (by name) and `solver_ratio_bounds`, as the published file
//! does. An `memory_mb` is 2²⁰ bytes, as in the published simulator (192 GB = 196,608).

use super::{ALL_LOCAL, Profile, ProfileError};
use muninn_types::Bytes;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A job may be slowed down this much before its memory may not shrink further (§4.4.2).
pub const SLOWDOWN_ADMITTED: f64 = 1.2;
/// Memory is never shrunk below this ratio, unless the file says otherwise.
pub const LOWEST_RATIO: f64 = 0.5;
/// More kinds of job than this are a mistake.
pub const KINDS_MAX: usize = 64;

/// Jobs that are alike: what they need, and how they bear far memory.
#[derive(Clone, Debug, PartialEq)]
pub struct JobKind {
    pub name: String,
    pub memory: Bytes,
    pub cores: u32,
    /// Admission never plans with less than this ratio.
    pub min_ratio: f64,
    pub profile: Profile,
}

impl JobKind {
    /// Local memory that admission must find for such a job.
    pub fn floor(&self) -> Bytes {
        // Up, so that admitting by floors never promises a fraction of a byte too little.
        Bytes((self.memory.0 as f64 * self.min_ratio).ceil() as u64)
    }

    /// The same kind, far-exempt: its memory stays local, others may still shrink for it.
    pub fn exempted(mut self) -> JobKind {
        let exempt = Profile::exempt(self.profile.full_s());
        self.profile = exempt.expect("f(1) of a profile is finite and above 0");
        self.min_ratio = ALL_LOCAL;
        self
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CatalogueError {
    #[error("not a profile file: {0}")]
    Syntax(String),
    #[error("job: the file holds no [[job]]")]
    Empty,
    #[error("job: {0} kinds of job are more than {KINDS_MAX}")]
    TooMany(usize),
    #[error("job[{0}].name is missing or empty")]
    Name(usize),
    #[error("job '{0}' is there twice: give each [[job]] a name of its own")]
    Twice(String),
    #[error("job '{job}': {field} is missing")]
    Missing { job: String, field: String },
    #[error("job '{job}': {field} must be above 0")]
    Zero { job: String, field: String },
    #[error("job '{job}': min_ratio is {value}: it lies from the lowest ratio, {lowest}, to 1")]
    MinRatio {
        job: String,
        value: f64,
        lowest: f64,
    },
    #[error("rack.solver_ratio_bounds[0] is {0}: it lies above 0 and is at most 1")]
    Bounds(f64),
    #[error("rack.min_ratio_20pct names '{0}', which is no [[job]]")]
    UnknownJob(String),
    #[error("job '{job}': {error}")]
    Profile { job: String, error: ProfileError },
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    rack: Rack,
    #[serde(default)]
    job: Vec<Job>,
}

#[derive(Default, Deserialize)]
struct Rack {
    #[serde(default)]
    min_ratio_20pct: BTreeMap<String, f64>,
    solver_ratio_bounds: Option<[f64; 2]>,
}

#[derive(Deserialize)]
struct Job {
    #[serde(default)]
    name: String,
    memory: Option<Bytes>,
    cores: Option<u32>,
    ratio: Option<Vec<f64>>,
    runtime_s: Option<Vec<f64>>,
    poly: Option<Vec<f64>>,
    min_ratio: Option<f64>,
    far: Option<bool>,
    rack: Option<Shape>,
    small: Option<Shape>,
}

#[derive(Clone, Copy, Deserialize)]
struct Shape {
    memory_mb: u64,
    cores: u32,
}

/// Which size of job a file that holds both is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Jobs for machines of 192 GiB.
    Rack,
    /// The smaller jobs of the nine-machine testbed.
    Testbed,
}

/// Reads all job kinds of a file, in the order of the file.
pub fn parse(text: &str, size: Size) -> Result<Vec<JobKind>, CatalogueError> {
    let file: File = toml::from_str(text)
        .map_err(|error| CatalogueError::Syntax(error.to_string().trim_end().to_string()))?;
    if file.job.is_empty() {
        return Err(CatalogueError::Empty);
    }
    if file.job.len() > KINDS_MAX {
        return Err(CatalogueError::TooMany(file.job.len()));
    }
    let lowest = file.rack.solver_ratio_bounds.map_or(LOWEST_RATIO, |b| b[0]);
    if !(lowest > 0.0 && lowest <= ALL_LOCAL) {
        return Err(CatalogueError::Bounds(lowest));
    }
    let known = |name: &String| file.job.iter().any(|job| job.name == *name);
    if let Some(name) = file.rack.min_ratio_20pct.keys().find(|&name| !known(name)) {
        return Err(CatalogueError::UnknownJob(name.clone()));
    }
    let mut kinds: Vec<JobKind> = Vec::with_capacity(file.job.len());
    for (index, job) in file.job.iter().enumerate() {
        if job.name.trim().is_empty() {
            return Err(CatalogueError::Name(index));
        }
        if kinds.iter().any(|kind| kind.name == job.name) {
            return Err(CatalogueError::Twice(job.name.clone()));
        }
        let listed = file.rack.min_ratio_20pct.get(&job.name).copied();
        kinds.push(kind(job, size, lowest, listed)?);
    }
    Ok(kinds)
}

fn kind(
    job: &Job,
    size: Size,
    lowest: f64,
    listed_min: Option<f64>,
) -> Result<JobKind, CatalogueError> {
    let missing = |field: &str| CatalogueError::Missing {
        job: job.name.clone(),
        field: field.to_string(),
    };
    let zero = |field: &str| CatalogueError::Zero {
        job: job.name.clone(),
        field: field.to_string(),
    };
    let refused = |error| CatalogueError::Profile {
        job: job.name.clone(),
        error,
    };
    let shape = match size {
        Size::Rack => job.rack,
        Size::Testbed => job.small.or(job.rack),
    };
    let memory = shape.map(|s| Bytes::mib(s.memory_mb)).or(job.memory);
    let memory = memory.ok_or_else(|| missing("memory"))?;
    let cores = shape.map(|s| s.cores).or(job.cores);
    let cores = cores.ok_or_else(|| missing("cores"))?;
    if memory == Bytes::ZERO {
        return Err(zero("memory"));
    }
    if cores == 0 {
        return Err(zero("cores"));
    }
    let ratio = job.ratio.as_ref().ok_or_else(|| missing("ratio"))?;
    let runtime_s = job.runtime_s.as_ref().ok_or_else(|| missing("runtime_s"))?;
    // The points are always checked, also where a polynomial stands beside them.
    let profile = Profile::from_points(ratio, runtime_s).map_err(refused)?;
    let profile = match &job.poly {
        None => profile,
        Some(poly) => {
            let lowest = profile.lowest().max(lowest);
            let given = Profile::from_polynomial(poly, lowest).map_err(refused)?;
            given.follows(ratio, runtime_s).map_err(refused)?;
            given
        }
    };
    let profile = profile.not_below(lowest).map_err(refused)?;
    let lowest = profile.lowest();
    let given_min = job.min_ratio.or(listed_min);
    let min_ratio = given_min.unwrap_or_else(|| profile.ratio_at_slowdown(SLOWDOWN_ADMITTED));
    if !(lowest..=ALL_LOCAL).contains(&min_ratio) {
        return Err(CatalogueError::MinRatio {
            job: job.name.clone(),
            value: min_ratio,
            lowest,
        });
    }
    let kind = JobKind {
        name: job.name.clone(),
        memory,
        cores,
        min_ratio,
        profile,
    };
    Ok(match job.far {
        Some(false) => kind.exempted(),
        _ => kind,
    })
}
