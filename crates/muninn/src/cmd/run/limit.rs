//! How much memory may stay local: a size, or a share of the program's peak.

use crate::failure::Failure;
use muninn_types::{Bytes, LocalSize};

/// Below this a program would do nothing but page: 8 MiB are kept free for growth alone.
pub const FLOOR: Bytes = Bytes::mib(16);

/// The limit of a job, from what was asked for and the peak, if it is known.
pub fn resolve(
    local: Option<LocalSize>,
    peak: impl FnOnce() -> Option<Bytes>,
) -> Result<Bytes, Failure> {
    let local = local.ok_or_else(|| {
        Failure::usage(
            "how much memory may stay local? Say --local SIZE, such as 1GiB, or a share of the \
             program's peak, such as 50%",
        )
    })?;
    let (limit, shown) = match local {
        LocalSize::Absolute(bytes) => (bytes, format!("--local {local}")),
        LocalSize::OfPeak(percent) => {
            let peak = peak().ok_or_else(|| {
                Failure::usage(format!(
                    "--local {local} is a share of the program's peak, which is not known for this \
                     command: name it with --peak SIZE, or run the command once with --local SIZE, \
                     and its peak is remembered"
                ))
            })?;
            let shown = format!("--local {local} of a peak of {}", peak.rounded());
            (percent.of(peak), shown)
        }
    };
    check(limit, &shown)?;
    Ok(limit)
}

/// Refuses limits with which nothing could run.
pub fn check(limit: Bytes, shown: &str) -> Result<(), Failure> {
    if limit >= FLOOR {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{shown} is too little: Muninn keeps 8MiB free for growth and needs room to move pages; \
         give {FLOOR} or more"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(local: &str, peak: Option<Bytes>) -> Result<Bytes, String> {
        resolve(Some(local.parse().unwrap()), || peak).map_err(|failure| failure.message)
    }

    #[test]
    fn sizes_and_shares_become_limits() {
        assert_eq!(limit("1GiB", None), Ok(Bytes::gib(1)));
        assert_eq!(limit("25%", Some(Bytes::gib(1))), Ok(Bytes::mib(256)));
        assert_eq!(limit("16MiB", None), Ok(FLOOR));
    }

    #[test]
    fn what_is_lacking_or_too_small_is_said() {
        assert_eq!(
            resolve(None, || None).unwrap_err().message,
            "how much memory may stay local? Say --local SIZE, such as 1GiB, or a share of the \
             program's peak, such as 50%"
        );
        assert_eq!(
            limit("50%", None).unwrap_err(),
            "--local 50% is a share of the program's peak, which is not known for this command: \
             name it with --peak SIZE, or run the command once with --local SIZE, and its peak is \
             remembered"
        );
        assert_eq!(
            limit("4MiB", None).unwrap_err(),
            "--local 4MiB is too little: Muninn keeps 8MiB free for growth and needs room to move \
             pages; give 16MiB or more"
        );
        assert_eq!(
            limit("10%", Some(Bytes::mib(40))).unwrap_err(),
            "--local 10% of a peak of 40.0MiB is too little: Muninn keeps 8MiB free for growth and \
             needs room to move pages; give 16MiB or more"
        );
    }
}
