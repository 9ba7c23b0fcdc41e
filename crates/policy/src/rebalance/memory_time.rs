//! Memory-time: the division that saves the most local memory-time for the far memory-time it costs
//! (Cluster Far Memory, §4.4.2).
//!
//! Maximise (A − B) ÷ C subject to Σ memᵢ·rᵢ = local memory, with wᵢ = memᵢ·(1 − pᵢ):
//! A − B = Σ wᵢ·(fᵢ(1) − rᵢ·fᵢ(rᵢ)), C = Σ wᵢ·(1 − rᵢ)·fᵢ(rᵢ).
//!
//! As A − B = C − D with D = Σ wᵢ·(fᵢ(rᵢ) − fᵢ(1)), the ratio is 1 − D ÷ C: minimise θ = D ÷ C, the
//! slowdown paid for each unit of far memory-time. Dinkelbach: for a guess of θ, minimise D − θ·C,
//! which is a sum over jobs ([`super::allocate`] does that); its minimum gives the next θ; one to
//! three rounds settle it, as the first guess is the θ of the division before.
//!
//! Invariant: lowest ≤ r ≤ 1 and Σ memᵢ·rᵢ ≤ local memory, whatever the profiles look like.
//!
//! Known limit: the exact problem is a knapsack, and the search for it is bounded ([`Effort`]). On the
//! random cases of the tests the result is within 0.1 % of a slow reference.

use super::allocate::{Allocation, Seat};
use super::{Job, TooLittle, USABLE, all_fit};
use muninn_types::Bytes;

/// Rounds of Dinkelbach's iteration when there is no division before.
const ROUNDS_FIRST: usize = 6;

/// How hard to look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Rounds of Dinkelbach's iteration, at most.
    pub rounds_max: usize,
    /// Branches that one round may look at.
    pub nodes_max: usize,
    /// (A − B) ÷ C may be short of the optimum by this.
    pub short_max: f64,
    /// θ is rounded to so many steps for each unit, so that curves can be kept; 0 for exact.
    pub theta_grid: f64,
    /// Times to look for the best ratios between the points of the grid.
    pub polishes: usize,
}

impl Effort {
    /// For a scheduler.
    pub const THOROUGH: Effort = Effort {
        rounds_max: 6,
        nodes_max: 64,
        short_max: 2e-4,
        theta_grid: 0.0,
        polishes: 3,
    };
    /// For a simulator that divides memory a billion times.
    pub const QUICK: Effort = Effort {
        rounds_max: 1,
        nodes_max: 3,
        short_max: 3e-3,
        theta_grid: 64.0,
        polishes: 0,
    };
}

/// What one division of a node's memory tells the next: its θ. Keep one for each node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guess {
    theta: f64,
}

/// The solver, with the room it works in.
#[derive(Clone, Debug)]
pub struct MemoryTime {
    effort: Effort,
    allocation: Allocation,
    shortest: Vec<(f64, f64)>,
}

impl Default for MemoryTime {
    fn default() -> MemoryTime {
        MemoryTime::new(Effort::THOROUGH)
    }
}

impl MemoryTime {
    pub fn new(effort: Effort) -> MemoryTime {
        MemoryTime {
            effort,
            allocation: Allocation::default(),
            shortest: Vec::new(),
        }
    }

    pub fn divide(
        &mut self,
        jobs: &[Job<'_>],
        local: Bytes,
        guess: &mut Guess,
        ratios: &mut Vec<f64>,
    ) -> Result<(), TooLittle> {
        if all_fit(jobs, local, ratios) {
            return Ok(());
        }
        let seats = self.allocation.seats();
        seats.clear();
        let (mut wanted, mut most) = (0.0, 0.0);
        for job in jobs {
            let memory = job.memory.0 as f64;
            // A job that is done to the last bit still has to be placed somewhere.
            seats.push(Seat::new(memory, memory * (1.0 - job.progress).max(1e-6)));
            wanted += memory;
            most += memory * (1.0 - job.profile.lowest());
        }
        let excess = wanted - local.0 as f64 * USABLE;
        if excess >= most {
            // The floors may fill the node to the last byte; then there is nothing to choose.
            for (ratio, job) in ratios.iter_mut().zip(jobs) {
                *ratio = job.profile.lowest();
            }
            if wanted - most <= local.0 as f64 {
                return Ok(());
            }
            return Err(TooLittle {
                needed: Bytes((wanted - most).ceil() as u64),
                local,
            });
        }
        let far_min = self.far_min(jobs, excess);
        let (mut theta, mut best) = (guess.theta, f64::INFINITY);
        // The first guess of all is no guess: settle it before trusting rounds to be few.
        let rounds = if theta > 0.0 {
            self.effort.rounds_max
        } else {
            ROUNDS_FIRST
        };
        for _ in 0..rounds {
            let next = self
                .allocation
                .solve(jobs, excess, theta, far_min, &self.effort);
            let gained = best - next;
            if gained > 0.0 {
                best = next;
                self.write(jobs, ratios);
            }
            let settled = self.effort.short_max;
            if gained < settled || (next - theta).abs() < settled {
                break;
            }
            theta = next;
        }
        for _ in 0..self.effort.polishes {
            let next = self.allocation.polish(jobs, best);
            if next < best {
                best = next;
                self.write(jobs, ratios);
            }
        }
        guess.theta = best;
        Ok(())
    }

    fn write(&self, jobs: &[Job<'_>], ratios: &mut [f64]) {
        for ((ratio, shed), job) in ratios.iter_mut().zip(self.allocation.division()).zip(jobs) {
            let lowest = job.profile.lowest();
            *ratio = (1.0 - shed / job.memory.0 as f64).clamp(lowest, 1.0);
        }
    }

    /// No division has a smaller C: the jobs with the least time left take all that is shed.
    ///
    /// A division may win by a C so small that its D − θ·C hardly differs from others. So what counts
    /// as equal is measured against this.
    fn far_min(&mut self, jobs: &[Job<'_>], excess: f64) -> f64 {
        self.shortest.clear();
        for job in jobs {
            let left_s = (1.0 - job.progress).max(1e-6) * job.profile.full_s();
            let most = job.memory.0 as f64 * (1.0 - job.profile.lowest());
            self.shortest.push((left_s, most));
        }
        self.shortest.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut left, mut far) = (excess, 0.0);
        for &(left_s, most) in &self.shortest {
            far += left.min(most) * left_s;
            left -= left.min(most);
        }
        far
    }
}

/// (A − B) ÷ C of a division, as the paper writes it; `None` where no far memory is used.
pub fn objective(jobs: &[Job<'_>], ratios: &[f64]) -> Option<f64> {
    let (mut saved, mut far) = (0.0, 0.0);
    for (job, &ratio) in jobs.iter().zip(ratios) {
        let weight = job.memory.0 as f64 * (1.0 - job.progress);
        let seconds = job.profile.seconds(ratio);
        saved += weight * (job.profile.full_s() - ratio * seconds);
        far += weight * (1.0 - ratio) * seconds;
    }
    (far > 0.0).then(|| saved / far)
}
