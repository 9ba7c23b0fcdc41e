//! Looking at servers and jobs: what `status`, `top` and `dashboard` show, collected once.

pub mod act;
pub mod jobs;
mod picture;
mod rates;
mod sampler;
pub mod servers;

pub use picture::{JobNow, Picture, ProcessNow, ServerNow, Totals};
pub use rates::{JobRow, Rates, Rows, ServerRates, ServerRow};
pub use sampler::Sampler;

use crate::failure::Failure;
use std::time::Duration;

const EVERY_MIN: Duration = Duration::from_millis(100);
const EVERY_MAX: Duration = Duration::from_secs(3600);

/// `--every` and `--watch`: how often everything is looked at.
pub fn check_every(every: Duration) -> Result<Duration, Failure> {
    if every < EVERY_MIN || every > EVERY_MAX {
        return Err(Failure::usage(
            "look no oftener than every 100ms and at least once in an hour: such as 1s",
        ));
    }
    Ok(every)
}
