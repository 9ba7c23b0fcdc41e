//! What an operator changes while looking: limits of jobs here, and servers that are to be emptied.

use crate::client::Client;
use crate::cmd::run::limit;
use crate::failure::{Exit, Failure};
use muninn_net::{NetError, Observer};
use muninn_types::Bytes;
use std::time::Duration;

/// What clients get to move away, as with `muninn drain`.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);

/// Sets the limit of the job whose launcher this is, if it is of that name still; what came of it.
pub fn change_limit(pid: u32, name: &str, size: Bytes) -> Result<String, Failure> {
    limit::check(size, &format!("a limit of {size}"))?;
    let gone = || {
        Failure::new(
            Exit::Failed,
            format!("{name} ({pid}) has ended, or may not be changed by this user"),
        )
    };
    let job = muninn_job::find_by_pid(pid).ok_or_else(gone)?;
    // Numbers are given out again: it must be the job that was meant.
    if job.config().map_err(Failure::failed)?.name != name {
        return Err(gone());
    }
    let before = job.limit();
    job.set_limit(size);
    Ok(format!("{name}: the limit is {size} now, and was {before}"))
}

fn unreachable(error: NetError) -> Failure {
    Failure::new(Exit::Unreachable, error)
}

/// Has a server of this pool drained, or no longer; what came of it.
pub fn drain(client: Option<&Client>, address: &str, begin: bool) -> Result<String, Failure> {
    let gone = || Failure::failed(format!("{address} is no server of this pool any more"));
    let client = client.ok_or_else(gone)?;
    let server = client
        .pool
        .iter()
        .find(|server| server.to_string() == address);
    let mut observer =
        Observer::connect(server.ok_or_else(gone)?, &client.options()).map_err(unreachable)?;
    observer
        .drain(begin.then_some(DRAIN_WITHIN))
        .map_err(unreachable)?;
    Ok(match begin {
        true => format!("{address} drains: its clients move their pages elsewhere, if they can"),
        false => format!("{address} grants memory again"),
    })
}
