//! Shedding an amount of memory over jobs at the least cost, when the costs are not convex.
//!
//! Each job i may shed any amount up to its limit at cost wᵢ·ψᵢ(r), with ψ(r) = (f(r) − f(1)) −
//! θ·(1 − r)·f(r), known on the grid of its profile. Relax every ψ to its lower convex hull: then the
//! least cost is found by taking the edges of all hulls, cheapest first, until the amount is shed.
//! That is a lower bound, and exact but for one job, the *filler*, which ends inside an edge where ψ
//! lies above its hull. Branch there: the filler sheds less than that point, or more, or stays in its
//! grid cell; its hull over each part is tighter. A branch whose bound is no better than the best
//! division found is left. Branch and bound for separable resource allocation goes back to Falk and Soland (1969).
//!
//! Invariant: the sum shed is the amount asked for, up to rounding; each job stays within its limit.
//!
//! Known limit: the number of branches is bounded; the best division found until then is taken.

use super::Job;
use super::curve::{Curves, lower_hull, rise};
use super::memory_time::Effort;
use crate::profile::CELLS;

/// Jobs whose range one branch may have narrowed.
const NARROWED_MAX: usize = 12;

/// Steps of the golden-section search that polishes a pair.
const POLISH_STEPS: usize = 9;

/// A job as the allocation sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    memory: f64,
    /// Work left: memory × (1 − progress).
    weight: f64,
    curve: u32,
}

impl Seat {
    pub(super) fn new(memory: f64, weight: f64) -> Seat {
        Seat {
            memory,
            weight,
            curve: 0,
        }
    }
}

/// One edge of one job's hull.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// Cost for each unit of memory shed.
    slope: f64,
    job: u32,
    from: u16,
    to: u16,
}

/// The range of grid points left to a job.
#[derive(Clone, Copy, Debug, Default)]
struct Narrowed {
    job: u32,
    first: u16,
    last: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Branch {
    narrowed: [Narrowed; NARROWED_MAX],
    count: usize,
    bound: f64,
}

/// What a branch came to.
struct Outcome {
    bound: f64,
    cost: f64,
    filler: usize,
    ratio: f64,
    edge: (u16, u16),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Allocation {
    seats: Vec<Seat>,
    curves: Curves,
    hull: Vec<u16>,
    edges: Vec<Edge>,
    extra: Vec<Edge>,
    /// Both, as sorted keys: see [`sort`].
    edges_order: Vec<u64>,
    extra_order: Vec<u64>,
    /// 0, or the number of the narrowed range.
    mark: Vec<u8>,
    shed: Vec<f64>,
    best: Vec<f64>,
    branches: Vec<Branch>,
}

impl Allocation {
    pub(super) fn seats(&mut self) -> &mut Vec<Seat> {
        &mut self.seats
    }

    /// Memory shed by each job in the best division found.
    pub(super) fn division(&self) -> &[f64] {
        &self.best
    }

    /// Sheds `amount` at the least D − θ·C, `far_min` being the least C there is. Gives back D ÷ C.
    pub(super) fn solve(
        &mut self,
        jobs: &[Job<'_>],
        amount: f64,
        theta: f64,
        far_min: f64,
        effort: &Effort,
    ) -> f64 {
        let (theta, step) = self.curves.begin(theta, effort.theta_grid);
        self.draw(jobs, theta, step);
        self.mark.clear();
        self.mark.resize(jobs.len(), 0);
        self.branches.clear();
        self.branches.push(Branch {
            bound: f64::NEG_INFINITY,
            ..Branch::default()
        });
        let mut best_cost = f64::INFINITY;
        let tolerance = effort.short_max * far_min;
        let mut price = 0.0;
        for _ in 0..effort.nodes_max {
            let Some(branch) = self.branches.pop() else {
                break;
            };
            if branch.bound >= best_cost - tolerance {
                continue;
            }
            let Some(outcome) = self.relax(jobs, amount, theta, &branch) else {
                continue;
            };
            if outcome.cost < best_cost {
                best_cost = outcome.cost;
                std::mem::swap(&mut self.best, &mut self.shed);
                let (slower, far) = self.sums(jobs);
                price = if far > 0.0 { slower / far } else { 0.0 };
            }
            if outcome.bound < best_cost - tolerance && outcome.edge.1 - outcome.edge.0 > 1 {
                self.split(jobs, &branch, &outcome);
            }
        }
        price
    }

    /// The edges of all jobs, cheapest first.
    fn draw(&mut self, jobs: &[Job<'_>], theta: f64, step: Option<usize>) {
        self.edges.clear();
        for (i, (job, seat)) in jobs.iter().zip(&mut self.seats).enumerate() {
            seat.curve = self.curves.of(job.profile.samples(), theta, step);
            let urgency = seat.weight / seat.memory;
            let (corners, rises) = self.curves.hull(seat.curve);
            for (pair, rise) in corners.windows(2).zip(&rises[1..]) {
                self.edges.push(Edge {
                    slope: urgency * rise,
                    job: i as u32,
                    from: pair[0],
                    to: pair[1],
                });
            }
        }
        sort(&self.edges, &mut self.edges_order);
    }

    /// The relaxed optimum of a branch: `shed` holds it, the filler at its true place.
    fn relax(
        &mut self,
        jobs: &[Job<'_>],
        amount: f64,
        theta: f64,
        branch: &Branch,
    ) -> Option<Outcome> {
        self.shed.clear();
        self.shed.resize(jobs.len(), 0.0);
        self.extra.clear();
        let (mut left, mut cost) = (amount, 0.0);
        let narrowed = &branch.narrowed[..branch.count];
        for narrow in narrowed {
            let i = narrow.job as usize;
            self.mark[i] = 1;
            let (seat, samples) = (self.seats[i], jobs[i].profile.samples());
            let psi = self.curves.psi(seat.curve);
            let first = usize::from(narrow.first);
            self.shed[i] = seat.memory * (1.0 - samples.ratio[first]);
            left -= self.shed[i];
            cost += seat.weight * psi[first];
            self.hull.clear();
            let range = (first, usize::from(narrow.last));
            lower_hull(&samples.ratio, psi, range, &mut self.hull);
            let urgency = seat.weight / seat.memory;
            for pair in self.hull.windows(2) {
                self.extra.push(Edge {
                    slope: urgency * rise(samples, psi, pair[0], pair[1]),
                    job: i as u32,
                    from: pair[0],
                    to: pair[1],
                });
            }
        }
        sort(&self.extra, &mut self.extra_order);
        let outcome = if left >= 0.0 {
            self.take(jobs, left, cost, theta)
        } else {
            None
        };
        for narrow in narrowed {
            self.mark[narrow.job as usize] = 0;
        }
        outcome
    }

    /// Takes edges, cheapest first, until nothing is left to shed.
    fn take(
        &mut self,
        jobs: &[Job<'_>],
        mut left: f64,
        mut cost: f64,
        theta: f64,
    ) -> Option<Outcome> {
        let mut wide = self.edges_order.iter().copied();
        let mut narrow = self.extra_order.iter().copied();
        let is_wide = |key: &u64| self.mark[edge_of(*key, &self.edges).job as usize] == 0;
        let mut next_wide = wide.find(is_wide);
        let mut next_narrow = narrow.next();
        loop {
            let from_narrow = match (next_wide, next_narrow) {
                (Some(wide), Some(narrow)) => narrow >> 32 < wide >> 32,
                (wide, _) => wide.is_none(),
            };
            let edge = if from_narrow {
                let edge = edge_of(next_narrow?, &self.extra);
                next_narrow = narrow.next();
                edge
            } else {
                let edge = edge_of(next_wide?, &self.edges);
                next_wide = wide.find(is_wide);
                edge
            };
            let i = edge.job as usize;
            let seat = &self.seats[i];
            let samples = jobs[i].profile.samples();
            let length =
                samples.ratio[usize::from(edge.from)] - samples.ratio[usize::from(edge.to)];
            let sheds = length * seat.memory;
            if sheds < left {
                left -= sheds;
                cost += sheds * edge.slope;
                self.shed[i] += sheds;
                continue;
            }
            let psi = self.curves.psi(seat.curve);
            let before = cost - seat.weight * psi[usize::from(edge.from)];
            self.shed[i] += left;
            let ratio = 1.0 - self.shed[i] / seat.memory;
            let seconds = jobs[i].profile.seconds(ratio);
            let slower = seconds - jobs[i].profile.full_s();
            let truly = seat.weight * (slower - theta * (1.0 - ratio) * seconds);
            return Some(Outcome {
                bound: cost + left * edge.slope,
                cost: before + truly,
                filler: i,
                ratio,
                edge: (edge.from, edge.to),
            });
        }
    }

    /// Three branches: the filler sheds less than the cell where it ended, more, or just that.
    fn split(&mut self, jobs: &[Job<'_>], branch: &Branch, outcome: &Outcome) {
        let ratio = &jobs[outcome.filler].profile.samples().ratio;
        let (from, to) = (usize::from(outcome.edge.0), usize::from(outcome.edge.1));
        let above = ratio[from..=to].partition_point(|&r| r >= outcome.ratio);
        let cell = (from + above).saturating_sub(1).min(to - 1);
        let mut child = *branch;
        child.bound = outcome.bound;
        let narrowed = &branch.narrowed[..branch.count];
        let known = narrowed
            .iter()
            .position(|n| n.job as usize == outcome.filler);
        let place = known.unwrap_or(branch.count);
        if place == NARROWED_MAX {
            return;
        }
        let whole = match known {
            Some(place) => branch.narrowed[place],
            None => Narrowed {
                job: outcome.filler as u32,
                first: 0,
                last: (ratio.len() - 1) as u16,
            },
        };
        child.count = child.count.max(place + 1);
        let part = |first: usize, last: usize| Narrowed {
            first: first as u16,
            last: last as u16,
            ..whole
        };
        let less = part(usize::from(whole.first), cell);
        let more = part(cell + 1, usize::from(whole.last));
        // The last pushed is looked at first: the nearer end of the edge is the likelier one. Within
        // one cell of the grid ψ is taken to be straight, so the middle part is not split again.
        let nearer_less = 2 * cell < from + to;
        let (far, near) = if nearer_less {
            (more, less)
        } else {
            (less, more)
        };
        for narrowed in [part(cell, cell + 1), far, near] {
            child.narrowed[place] = narrowed;
            self.branches.push(child);
        }
    }

    /// Moves memory between pairs of jobs, by no more than a cell of the grid: the grid decides which
    /// valley each job lies in, this finds its bottom. Gives back D ÷ C.
    pub(super) fn polish(&mut self, jobs: &[Job<'_>], theta: f64) -> f64 {
        // The job that is furthest from both of its ends can give and take; it is one side of all
        // pairs.
        let room = |i: usize| {
            let most = self.seats[i].memory * (1.0 - jobs[i].profile.lowest());
            self.best[i].min(most - self.best[i])
        };
        let Some(hub) = (0..jobs.len()).max_by(|&a, &b| room(a).total_cmp(&room(b))) else {
            return 0.0;
        };
        let cost = |i: usize, shed: f64| {
            let (seat, profile) = (self.seats[i], jobs[i].profile);
            let share = shed / seat.memory;
            let seconds = profile.seconds(1.0 - share);
            seat.weight * (seconds - profile.full_s() - theta * share * seconds)
        };
        let most = |i: usize| self.seats[i].memory * (1.0 - jobs[i].profile.lowest());
        for i in (0..jobs.len()).filter(|&i| i != hub) {
            let (mine, hubs) = (self.best[i], self.best[hub]);
            let cell = most(i) / CELLS as f64;
            let low = (-cell).max(-mine).max(hubs - most(hub));
            let high = cell.min(most(i) - mine).min(hubs);
            if low >= high {
                continue;
            }
            let at = |x: f64| cost(i, mine + x) + cost(hub, hubs - x);
            let (mut a, mut b) = (low, high);
            for _ in 0..POLISH_STEPS {
                let (x, y) = (a + 0.382 * (b - a), a + 0.618 * (b - a));
                if at(x) < at(y) { b = y } else { a = x }
            }
            let x = 0.5 * (a + b);
            if at(x) < at(0.0) {
                self.best[i] = mine + x;
                self.best[hub] = hubs - x;
            }
        }
        let (slower, far) = self.sums(jobs);
        if far > 0.0 { slower / far } else { 0.0 }
    }

    /// D and C of the best division.
    fn sums(&self, jobs: &[Job<'_>]) -> (f64, f64) {
        let (mut slower, mut far) = (0.0, 0.0);
        for ((seat, job), &shed) in self.seats.iter().zip(jobs).zip(&self.best) {
            if shed > 0.0 {
                let share = shed / seat.memory;
                let seconds = job.profile.seconds(1.0 - share);
                slower += seat.weight * (seconds - job.profile.full_s());
                far += seat.weight * share * seconds;
            }
        }
        (slower, far)
    }
}

/// Edges cheapest first, as keys that end in the number of the edge.
///
/// A key is the slope in single precision, its bits turned so that they order like the number, above
/// the edge's number. Plain integers sort several times faster than edges by a comparison, and edges
/// that single precision cannot tell apart are equally good.
fn sort(edges: &[Edge], order: &mut Vec<u64>) {
    order.clear();
    for (number, edge) in edges.iter().enumerate() {
        let bits = (edge.slope as f32).to_bits();
        let turned = if bits >> 31 == 0 {
            bits | 1 << 31
        } else {
            !bits
        };
        order.push(u64::from(turned) << 32 | number as u64);
    }
    order.sort_unstable();
}

/// The edge that a key stands for.
#[inline]
fn edge_of(key: u64, edges: &[Edge]) -> &Edge {
    &edges[(key & u64::from(u32::MAX)) as usize]
}
