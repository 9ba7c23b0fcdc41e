//! Degradation profiles: how long a job runs when only a part of its memory is local.
//!
//! A profile is measured at a few ratios r = local ÷ total, and asked for at any: straight from point
//! to point ([`points`]), or along a polynomial that was given outright, as the published ones are. It
//! comes from Cluster Far Memory (§4.4.1), which fits polynomials; these contradicted their own points
//! wherever a job has a knee.
//!
//! Invariant: f never rises with memory. Measurements do, by a percent or two of noise, and so do
//! the published polynomials (spark by 4 % below 0.56): a rise up to [`RISE_OF_POINTS`] or
//! [`RISE_OF_POLYNOMIAL`] is levelled, a larger one is an error that names the field.
//!
//! Known limit: a profile is taken while the job runs alone, so it knows nothing of jobs that
//! compete for the network or for the memory server.

pub mod catalogue;
mod level;
pub mod points;
mod polynomial;
mod samples;

pub use level::level;
use points::Points;
pub use polynomial::Polynomial;
pub(crate) use samples::{CELLS, Samples};

/// The ratio where a job has all its memory.
pub const ALL_LOCAL: f64 = 1.0;
/// Measured points may rise with memory by this share of themselves before they are refused.
pub const RISE_OF_POINTS: f64 = 0.02;
/// The same for a polynomial that was given outright.
pub const RISE_OF_POLYNOMIAL: f64 = 0.05;
/// A given polynomial may miss a measured point by this share of the point.
pub const MISS_OF_POLYNOMIAL: f64 = 0.15;
/// More points or coefficients than this are a mistake, not a measurement.
pub const POINTS_MAX: usize = 64;
/// Most coefficients of a given polynomial.
pub const COEFFICIENTS_MAX: usize = 7;

/// Cells of the grid on which rises are looked for.
const FINE_CELLS: usize = 512;

/// Why a profile was refused. Every message names the field that is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    #[error("ratio and runtime_s must be equally long: {ratios} ratios, {runtimes} run times")]
    Lengths { ratios: usize, runtimes: usize },
    #[error("ratio needs from 2 to {POINTS_MAX} points, and has {0}")]
    Count(usize),
    #[error("ratio[{index}] is {value}: a ratio lies above 0 and is at most 1")]
    Ratio { index: usize, value: f64 },
    #[error(
        "ratio is not in order at ratio[{index}]: write the ratios from 1.0 downwards, each once"
    )]
    Order { index: usize },
    #[error("ratio must begin with 1.0 (all memory local), and begins with {0}")]
    NoFull(f64),
    #[error("runtime_s[{index}] is {value}: a run time is a finite number above 0")]
    Runtime { index: usize, value: f64 },
    #[error(
        "runtime_s rises with memory: {less_s} s at ratio {less}, but {more_s} s at ratio {more}; \
         measure again, or leave that point out"
    )]
    PointsRise {
        less: f64,
        less_s: f64,
        more: f64,
        more_s: f64,
    },
    #[error("poly needs from 1 to {COEFFICIENTS_MAX} coefficients, and has {0}")]
    Coefficients(usize),
    #[error("poly[{index}] is {value}: a coefficient is a finite number")]
    Coefficient { index: usize, value: f64 },
    #[error("poly gives {seconds} s at ratio {ratio}: a run time is a finite number above 0")]
    PolynomialValue { ratio: f64, seconds: f64 },
    #[error(
        "poly rises with memory: {less_s:.1} s at ratio {less:.2}, but {more_s:.1} s at ratio {more:.2}"
    )]
    PolynomialRises {
        less: f64,
        less_s: f64,
        more: f64,
        more_s: f64,
    },
    #[error(
        "poly does not follow runtime_s: {poly_s:.1} s instead of {runtime_s:.1} s at ratio {ratio}"
    )]
    PolynomialMisses {
        ratio: f64,
        poly_s: f64,
        runtime_s: f64,
    },
    #[error("lowest ratio is {0}: it lies above 0 and is at most 1")]
    Lowest(f64),
}

/// Run time in seconds against the local ratio: f(r) on `lowest..=1`, never rising.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    shape: Shape,
    lowest: f64,
    /// Stretches where the polynomial rises with memory and is levelled: (from, to, seconds).
    level: Vec<(f64, f64, f64)>,
    full_s: f64,
    samples: Samples,
}

/// Where f comes from.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Polynomial(Polynomial),
    Points(Points),
}

impl Shape {
    #[inline]
    fn at(&self, ratio: f64) -> f64 {
        match self {
            Shape::Polynomial(polynomial) => polynomial.at(ratio),
            Shape::Points(points) => points.at(ratio),
        }
    }

    fn slope(&self, ratio: f64) -> f64 {
        match self {
            Shape::Polynomial(polynomial) => polynomial.slope(ratio),
            Shape::Points(points) => points.slope(ratio),
        }
    }
}

impl Profile {
    /// Goes straight from one measured point to the next, `ratio` from 1.0 downwards. What rises with
    /// memory a little, as noise does, is levelled first.
    pub fn from_points(ratio: &[f64], runtime_s: &[f64]) -> Result<Profile, ProfileError> {
        check_points(ratio, runtime_s)?;
        let points = Points::new(ratio, &level(runtime_s));
        let mut profile = Profile {
            full_s: points.at(ALL_LOCAL),
            lowest: ratio[ratio.len() - 1],
            shape: Shape::Points(points),
            level: Vec::new(),
            samples: Samples::default(),
        };
        profile.samples = Samples::of(&profile);
        Ok(profile)
    }

    /// Takes a polynomial in the ratio, highest power first, result in seconds.
    pub fn from_polynomial(coefficients: &[f64], lowest: f64) -> Result<Profile, ProfileError> {
        if coefficients.is_empty() || coefficients.len() > COEFFICIENTS_MAX {
            return Err(ProfileError::Coefficients(coefficients.len()));
        }
        if let Some(index) = coefficients.iter().position(|c| !c.is_finite()) {
            let value = coefficients[index];
            return Err(ProfileError::Coefficient { index, value });
        }
        Profile::levelled(Polynomial::highest_first(coefficients), lowest)
    }

    /// A job that runs equally long with any share of its memory: the null profile.
    pub fn constant(runtime_s: f64) -> Result<Profile, ProfileError> {
        Profile::from_polynomial(&[runtime_s], f64::MIN_POSITIVE)
    }

    /// A job that may not use far memory (§4.4.2): f(1) = run time, anything else is forbidden.
    pub fn exempt(runtime_s: f64) -> Result<Profile, ProfileError> {
        Profile::from_polynomial(&[runtime_s], ALL_LOCAL)
    }

    /// The same profile, not to be used below this ratio.
    pub fn not_below(mut self, lowest: f64) -> Result<Profile, ProfileError> {
        if !(lowest > 0.0 && lowest <= ALL_LOCAL) {
            return Err(ProfileError::Lowest(lowest));
        }
        self.lowest = self.lowest.max(lowest);
        self.samples = Samples::of(&self);
        Ok(self)
    }

    fn levelled(polynomial: Polynomial, lowest: f64) -> Result<Profile, ProfileError> {
        if !(lowest > 0.0 && lowest <= ALL_LOCAL) {
            return Err(ProfileError::Lowest(lowest));
        }
        let at = |cell: usize| ALL_LOCAL - (ALL_LOCAL - lowest) * cell as f64 / FINE_CELLS as f64;
        let mut level: Vec<(f64, f64, f64)> = Vec::new();
        let (mut top, mut top_s) = (ALL_LOCAL, polynomial.at(ALL_LOCAL));
        for cell in 0..=FINE_CELLS {
            let (ratio, seconds) = (at(cell), polynomial.at(at(cell)));
            if !(seconds.is_finite() && seconds > 0.0) {
                return Err(ProfileError::PolynomialValue { ratio, seconds });
            }
            if seconds >= top_s {
                (top, top_s) = (ratio, seconds);
                continue;
            }
            if seconds < top_s * (1.0 - RISE_OF_POLYNOMIAL) {
                return Err(ProfileError::PolynomialRises {
                    less: ratio,
                    less_s: seconds,
                    more: top,
                    more_s: top_s,
                });
            }
            match level.last_mut() {
                Some(last) if last.1 == top => last.0 = ratio,
                _ => level.push((ratio, top, top_s)),
            }
        }
        // A level ends where the polynomial has climbed back to it: between its last cell and the
        // next one, so that f has no step.
        for (from, _, seconds) in &mut level {
            let (mut inside, mut outside) = (*from, (*from - at(0) + at(1)).max(lowest));
            for _ in 0..60 {
                let middle = 0.5 * (inside + outside);
                if polynomial.at(middle) < *seconds {
                    inside = middle;
                } else {
                    outside = middle;
                }
            }
            *from = outside;
        }
        let mut profile = Profile {
            full_s: polynomial.at(ALL_LOCAL),
            shape: Shape::Polynomial(polynomial),
            lowest,
            level,
            samples: Samples::default(),
        };
        profile.samples = Samples::of(&profile);
        Ok(profile)
    }

    /// Fails when a given polynomial is far from the points it is said to fit.
    pub fn follows(&self, ratio: &[f64], runtime_s: &[f64]) -> Result<(), ProfileError> {
        for (&ratio, &runtime_s) in ratio.iter().zip(runtime_s) {
            let poly_s = self.seconds(ratio);
            let missed = (poly_s - runtime_s).abs() > MISS_OF_POLYNOMIAL * runtime_s;
            if ratio >= self.lowest && missed {
                return Err(ProfileError::PolynomialMisses {
                    ratio,
                    poly_s,
                    runtime_s,
                });
            }
        }
        Ok(())
    }

    /// f(r). Ratios outside the profile are answered by its nearest end.
    #[inline]
    pub fn seconds(&self, ratio: f64) -> f64 {
        let ratio = ratio.clamp(self.lowest, ALL_LOCAL);
        for &(from, to, seconds) in &self.level {
            if ratio >= from && ratio <= to {
                return seconds;
            }
        }
        self.shape.at(ratio)
    }

    /// f′(r), never above zero.
    pub fn slope(&self, ratio: f64) -> f64 {
        let ratio = ratio.clamp(self.lowest, ALL_LOCAL);
        let levelled = |&(from, to, _): &(f64, f64, f64)| ratio >= from && ratio <= to;
        if self.level.iter().any(levelled) {
            return 0.0;
        }
        self.shape.slope(ratio).min(0.0)
    }

    /// f(1).
    pub fn full_s(&self) -> f64 {
        self.full_s
    }

    /// f(r) ÷ f(1).
    pub fn slowdown(&self, ratio: f64) -> f64 {
        self.seconds(ratio) / self.full_s
    }

    /// The smallest ratio that the profile covers; 1 for a job that may not use far memory.
    pub fn lowest(&self) -> f64 {
        self.lowest
    }

    /// Ratios at which f may bend: there the best divisions are found.
    fn kinks(&self) -> impl Iterator<Item = f64> {
        let points = match &self.shape {
            Shape::Polynomial(_) => &[],
            Shape::Points(points) => points.ratios(),
        };
        let levels = self.level.iter().flat_map(|&(from, to, _)| [from, to]);
        points.iter().copied().chain(levels)
    }

    /// What the memory-time policy looks up instead of computing.
    pub(crate) fn samples(&self) -> &Samples {
        &self.samples
    }

    pub fn is_exempt(&self) -> bool {
        self.lowest >= ALL_LOCAL
    }

    /// The smallest ratio at which the job is at most `slowdown` times slower.
    pub fn ratio_at_slowdown(&self, slowdown: f64) -> f64 {
        let (mut low, mut high) = (self.lowest, ALL_LOCAL);
        if self.slowdown(low) <= slowdown {
            return low;
        }
        for _ in 0..50 {
            let middle = 0.5 * (low + high);
            if self.slowdown(middle) <= slowdown {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }
}

fn check_points(ratio: &[f64], runtime_s: &[f64]) -> Result<(), ProfileError> {
    if ratio.len() != runtime_s.len() {
        return Err(ProfileError::Lengths {
            ratios: ratio.len(),
            runtimes: runtime_s.len(),
        });
    }
    if !(2..=POINTS_MAX).contains(&ratio.len()) {
        return Err(ProfileError::Count(ratio.len()));
    }
    for (index, &value) in ratio.iter().enumerate() {
        if !(value > 0.0 && value <= ALL_LOCAL) {
            return Err(ProfileError::Ratio { index, value });
        }
        if index > 0 && value >= ratio[index - 1] {
            return Err(ProfileError::Order { index });
        }
    }
    if ratio[0] != ALL_LOCAL {
        return Err(ProfileError::NoFull(ratio[0]));
    }
    let mut slowest = 0;
    for (index, &value) in runtime_s.iter().enumerate() {
        if !(value.is_finite() && value > 0.0) {
            return Err(ProfileError::Runtime { index, value });
        }
        if value < runtime_s[slowest] * (1.0 - RISE_OF_POINTS) {
            return Err(ProfileError::PointsRise {
                less: ratio[index],
                less_s: value,
                more: ratio[slowest],
                more_s: runtime_s[slowest],
            });
        }
        if value > runtime_s[slowest] {
            slowest = index;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
