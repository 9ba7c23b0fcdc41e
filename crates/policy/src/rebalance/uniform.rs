//! Uniform: every job gets the same share of its memory (Cluster Far Memory, §4.4.2).
//!
//! The null policy: it knows nothing of profiles. Far-exempt jobs keep all their memory, the others
//! share what is left. Admission with one minimum ratio α for all jobs keeps the share above α.
//!
//! Known limit: jobs that suffer much and jobs that suffer little are shrunk alike.

use super::{Job, TooLittle, USABLE, all_fit};
use muninn_types::Bytes;

pub fn uniform(jobs: &[Job<'_>], local: Bytes, ratios: &mut Vec<f64>) -> Result<(), TooLittle> {
    if all_fit(jobs, local, ratios) {
        return Ok(());
    }
    // Jobs at their lowest ratio drop out of the sharing, which lowers the share of the others: at
    // most one round for each job.
    let mut open = jobs.len();
    let mut bound = vec![false; jobs.len()];
    while open > 0 {
        let (mut shared, mut left) = (0.0, local.0 as f64 * USABLE);
        for (job, &bound) in jobs.iter().zip(&bound) {
            let memory = job.memory.0 as f64;
            if bound {
                left -= memory * job.profile.lowest();
            } else {
                shared += memory;
            }
        }
        let share = left / shared;
        let before = open;
        for (i, job) in jobs.iter().enumerate() {
            if !bound[i] && job.profile.lowest() >= share {
                bound[i] = true;
                ratios[i] = job.profile.lowest();
                open -= 1;
            }
        }
        if open == before {
            for (ratio, &bound) in ratios.iter_mut().zip(&bound) {
                if !bound {
                    *ratio = share.min(1.0);
                }
            }
            return Ok(());
        }
    }
    // All at their lowest, which may fill the node to the last byte.
    let lowest = jobs.iter().map(|j| j.memory.0 as f64 * j.profile.lowest());
    let lowest: f64 = lowest.sum();
    if lowest <= local.0 as f64 {
        return Ok(());
    }
    Err(TooLittle {
        needed: Bytes(lowest.ceil() as u64),
        local,
    })
}
