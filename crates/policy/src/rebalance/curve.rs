//! The cost ψ of a profile at a price θ, and its lower convex hull, drawn once and kept.
//!
//! ψ(r) = (f(r) − f(1)) − θ·(1 − r)·f(r) depends on the profile and on θ alone. A scheduler that
//! rounds θ to a grid sees the same few curves again and again; one that does not draws each anew.
//!
//! Invariant: profiles are told apart by what they hold, never by where they lie in memory, so a
//! profile that went away cannot lend its curve to another.

use crate::profile::Samples;

/// Grid steps of θ that are kept; above them curves are drawn anew.
const STEPS_MAX: usize = 256;
/// Curves that are kept before all are forgotten: some megabytes.
const CURVES_MAX: usize = 2048;
/// Corners of a kept curve lie at least this far apart in the ratio.
const THINNED_TO: f64 = 0.04;
const UNKNOWN: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Curve {
    id: u64,
    /// Where its ψ begins, one for each grid point.
    psi: usize,
    /// Where its corners begin and end.
    hull: (usize, usize),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Curves {
    curves: Vec<Curve>,
    psi: Vec<f64>,
    corners: Vec<u16>,
    /// Rise of ψ for each unit of ratio, from the corner before.
    rises: Vec<f64>,
    /// For each profile the curve of each step of θ.
    kept: Vec<(u64, Vec<u32>)>,
}

impl Curves {
    /// Forgets all curves: θ is a new one.
    pub(super) fn forget(&mut self) {
        self.curves.clear();
        self.psi.clear();
        self.corners.clear();
        self.rises.clear();
        self.kept.clear();
    }

    /// Begins a solve at this θ, rounded to a grid of so many steps for each unit, or exact with 0.
    /// Gives back the θ to solve with, and its step where curves are kept.
    pub(super) fn begin(&mut self, theta: f64, grid: f64) -> (f64, Option<usize>) {
        let step = (theta * grid).round();
        if grid > 0.0 && step < STEPS_MAX as f64 {
            if self.curves.len() > CURVES_MAX {
                self.forget();
            }
            return (step / grid, Some(step as usize));
        }
        self.forget();
        (theta, None)
    }

    /// The curve of a profile.
    #[inline]
    pub(super) fn of(&mut self, samples: &Samples, theta: f64, step: Option<usize>) -> u32 {
        let Some(step) = step else {
            let known = self.curves.iter().position(|curve| curve.id == samples.id);
            return known.map_or_else(|| self.draw(samples, theta, false), |index| index as u32);
        };
        let profile = self.kept.iter().position(|kept| kept.0 == samples.id);
        let profile = profile.unwrap_or_else(|| {
            self.kept.push((samples.id, vec![UNKNOWN; STEPS_MAX]));
            self.kept.len() - 1
        });
        let mut index = self.kept[profile].1[step];
        if index == UNKNOWN {
            index = self.draw(samples, theta, true);
            self.kept[profile].1[step] = index;
        }
        index
    }

    fn draw(&mut self, samples: &Samples, theta: f64, thinned: bool) -> u32 {
        let (psi, begin) = (self.psi.len(), self.corners.len());
        let both = samples.slower_s.iter().zip(&samples.far_s);
        self.psi
            .extend(both.map(|(slower, far)| slower - theta * far));
        let last = samples.ratio.len() - 1;
        lower_hull(
            &samples.ratio,
            &self.psi[psi..],
            (0, last),
            &mut self.corners,
        );
        if thinned {
            self.thin(&samples.ratio, begin);
        }
        let curve = Curve {
            id: samples.id,
            psi,
            hull: (begin, self.corners.len()),
        };
        self.curves.push(curve);
        self.rises.push(0.0);
        for pair in self.corners[begin..].windows(2) {
            let rise = rise(samples, &self.psi[psi..], pair[0], pair[1]);
            self.rises.push(rise);
        }
        self.curves.len() as u32 - 1
    }

    /// Drops corners that lie close together, as those of a smoothly bent curve do: fewer edges, and
    /// a hull that is still convex and lies above the true one by next to nothing.
    fn thin(&mut self, ratio: &[f64], begin: usize) {
        let end = self.corners.len();
        let mut kept = begin + 1;
        for i in begin + 1..end {
            let before = usize::from(self.corners[kept - 1]);
            let here = usize::from(self.corners[i]);
            if i + 1 == end || ratio[before] - ratio[here] >= THINNED_TO {
                self.corners[kept] = self.corners[i];
                kept += 1;
            }
        }
        self.corners.truncate(kept.min(end));
    }

    /// ψ at each grid point.
    #[inline]
    pub(super) fn psi(&self, curve: u32) -> &[f64] {
        &self.psi[self.curves[curve as usize].psi..]
    }

    /// Corners of the hull, and the rise of ψ to each from the one before.
    #[inline]
    pub(super) fn hull(&self, curve: u32) -> (&[u16], &[f64]) {
        let (begin, end) = self.curves[curve as usize].hull;
        (&self.corners[begin..end], &self.rises[begin..end])
    }
}

/// Rise of ψ for each unit of ratio between two grid points.
#[inline]
pub(super) fn rise(samples: &Samples, psi: &[f64], from: u16, to: u16) -> f64 {
    let (from, to) = (usize::from(from), usize::from(to));
    (psi[to] - psi[from]) / (samples.ratio[from] - samples.ratio[to])
}

/// Appends the corners of the lower hull of ψ over the points of a range (Andrew's monotone chain).
pub(super) fn lower_hull(ratio: &[f64], psi: &[f64], range: (usize, usize), hull: &mut Vec<u16>) {
    let begin = hull.len();
    for point in range.0..=range.1 {
        while hull.len() >= begin + 2 {
            let a = usize::from(hull[hull.len() - 2]);
            let b = usize::from(hull[hull.len() - 1]);
            let first = (psi[b] - psi[a]) * (ratio[b] - ratio[point]);
            let second = (psi[point] - psi[b]) * (ratio[a] - ratio[b]);
            if first < second {
                break;
            }
            hull.pop();
        }
        hull.push(point as u16);
    }
}
