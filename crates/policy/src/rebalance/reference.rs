//! A slow solver for the memory-time problem, to check the fast one against.
//!
//! Dinkelbach over an exact dynamic programme: memory is cut into [`UNITS`] equal units, each job may
//! shed any whole number of them, and the table holds the least cost for each number of units shed.
//! What the units leave over is taken up by sweeps of golden-section search over every pair of jobs.

use super::{Job, objective};
use muninn_types::Bytes;

const UNITS: usize = 400;

pub(super) fn best(jobs: &[Job<'_>], local: Bytes) -> Vec<f64> {
    let wanted: f64 = jobs.iter().map(|j| j.memory.0 as f64).sum();
    let excess = wanted - local.0 as f64;
    let mut theta = 0.0;
    let mut ratios = vec![1.0; jobs.len()];
    for _ in 0..12 {
        let shed = plan(jobs, excess, theta);
        for (i, job) in jobs.iter().enumerate() {
            ratios[i] = 1.0 - shed[i] / job.memory.0 as f64;
        }
        polish(jobs, &mut ratios, theta);
        let next = 1.0 - objective(jobs, &ratios).unwrap_or(1.0);
        if (next - theta).abs() < 1e-9 {
            break;
        }
        theta = next;
    }
    ratios
}

fn cost(job: &Job<'_>, ratio: f64, theta: f64) -> f64 {
    let seconds = job.profile.seconds(ratio);
    let slower = seconds - job.profile.full_s();
    let weight = job.memory.0 as f64 * (1.0 - job.progress);
    weight * (slower - theta * (1.0 - ratio) * seconds)
}

/// Memory shed by each job, the sum being exactly `excess`.
fn plan(jobs: &[Job<'_>], excess: f64, theta: f64) -> Vec<f64> {
    let unit = excess / UNITS as f64;
    let mut least = vec![f64::INFINITY; UNITS + 1];
    least[0] = 0.0;
    let mut choice: Vec<Vec<u16>> = Vec::new();
    let mut beyond = 0.0;
    for job in jobs {
        let memory = job.memory.0 as f64;
        let most = memory * (1.0 - job.profile.lowest());
        beyond += most;
        let units = ((most / unit) as usize).min(UNITS);
        let costs: Vec<f64> = (0..=units)
            .map(|u| cost(job, 1.0 - u as f64 * unit / memory, theta))
            .collect();
        let mut next = vec![f64::INFINITY; UNITS + 1];
        let mut chosen = vec![0u16; UNITS + 1];
        for (sum, slot) in next.iter_mut().enumerate() {
            for (u, c) in costs.iter().enumerate().take(sum + 1) {
                let total = least[sum - u] + c;
                if total < *slot {
                    *slot = total;
                    chosen[sum] = u as u16;
                }
            }
        }
        least = next;
        choice.push(chosen);
    }
    let mut shed = vec![0.0; jobs.len()];
    // Whole units may not add up to all of the excess when it is nearly all that can be shed.
    let mut sum = (0..=UNITS).rev().find(|&s| least[s].is_finite()).unwrap();
    let mut left = excess - sum as f64 * unit;
    for i in (0..jobs.len()).rev() {
        let units = choice[i][sum];
        shed[i] = f64::from(units) * unit;
        sum -= units as usize;
    }
    assert!(beyond >= excess * (1.0 - 1e-9));
    for (i, job) in jobs.iter().enumerate() {
        let room = job.memory.0 as f64 * (1.0 - job.profile.lowest()) - shed[i];
        let more = left.min(room).max(0.0);
        shed[i] += more;
        left -= more;
    }
    shed
}

fn polish(jobs: &[Job<'_>], ratios: &mut [f64], theta: f64) {
    for _ in 0..3 {
        for i in 0..jobs.len() {
            for j in 0..i {
                exchange(jobs, ratios, theta, i, j);
            }
        }
    }
}

/// Golden section over the memory that j gives to i, within a few units and over the whole range.
fn exchange(jobs: &[Job<'_>], ratios: &mut [f64], theta: f64, i: usize, j: usize) {
    let (mi, mj) = (jobs[i].memory.0 as f64, jobs[j].memory.0 as f64);
    let at = |x: f64| {
        cost(&jobs[i], ratios[i] + x / mi, theta) + cost(&jobs[j], ratios[j] - x / mj, theta)
    };
    let low = ((jobs[i].profile.lowest() - ratios[i]) * mi).max((ratios[j] - 1.0) * mj);
    let high = ((1.0 - ratios[i]) * mi).min((ratios[j] - jobs[j].profile.lowest()) * mj);
    let mut best = (at(0.0), 0.0);
    for (mut a, mut b) in [
        (low, high),
        (low / 8.0, high / 8.0),
        (low, low / 2.0),
        (high / 2.0, high),
    ] {
        for _ in 0..25 {
            let (x, y) = (a + 0.382 * (b - a), a + 0.618 * (b - a));
            if at(x) < at(y) {
                b = y;
            } else {
                a = x;
            }
        }
        for x in [a, b, 0.5 * (a + b)] {
            if at(x) < best.0 {
                best = (at(x), x);
            }
        }
    }
    for x in [low, high] {
        if at(x) < best.0 {
            best = (at(x), x);
        }
    }
    ratios[i] += best.1 / mi;
    ratios[j] -= best.1 / mj;
}
