//! Variable: every job gives up memory in proportion to what it may give up (Cluster Far Memory,
//! §4.4.2).
//!
//! A job may give up (1 − minimum ratio) of its memory; when the node must shed x % of all that may
//! be given up, every job sheds x % of its own. Best where slowdown is linear down to the minimum.
//!
//! Known limit: the minimum ratios must be known, and between 1 and the minimum the shape of the
//! profile does not matter.

use super::{Job, TooLittle, USABLE, all_fit};
use muninn_types::Bytes;

pub fn variable(jobs: &[Job<'_>], local: Bytes, ratios: &mut Vec<f64>) -> Result<(), TooLittle> {
    if all_fit(jobs, local, ratios) {
        return Ok(());
    }
    let (mut wanted, mut floor) = (0.0, 0.0);
    for job in jobs {
        let memory = job.memory.0 as f64;
        wanted += memory;
        floor += memory * job.min_ratio;
    }
    let excess = wanted - local.0 as f64 * USABLE;
    let shed = excess / (wanted - floor);
    // Not a number where nothing may be given up, and yet something must be.
    if shed.is_nan() || shed > 1.0 + 1e-6 {
        return Err(TooLittle {
            needed: Bytes(floor.ceil() as u64),
            local,
        });
    }
    let shed = shed.min(1.0);
    for (ratio, job) in ratios.iter_mut().zip(jobs) {
        *ratio = 1.0 - shed * (1.0 - job.min_ratio);
    }
    Ok(())
}
