//! A function of one's own: a counter for each name, of which the server has never heard.
//!
//! Everything that is needed is in this crate: the function below, the server in
//! `src/bin/own-server.rs` (three lines), and a client in `src/bin/own-client.rs`.

use muninn_wic::{Memory, WicError, WicLock, wic};

/// Counters that there is room for.
pub const COUNTERS: u64 = 1024;

/// Counts a vote for `candidate`; how many it has now.
#[wic(version = 1)]
pub async fn vote(mem: &impl Memory, candidate: u64) -> Result<u64, WicError> {
    let at = mem.base().plus(candidate % COUNTERS * 8);
    Ok(mem.fetch_add(at, 1).await? + 1)
}

/// Who has the most votes of the first `candidates`, and how many.
#[wic(version = 1, idempotent)]
pub async fn winner(mem: &impl Memory, candidates: u64) -> Result<(u64, u64), WicError> {
    let guard = WicLock::new(0).lock(mem).await?;
    let mut best = (0, 0);
    for candidate in 0..candidates.min(COUNTERS) {
        let votes = mem.read::<u64>(mem.base().plus(candidate * 8)).await?;
        if votes > best.1 {
            best = (candidate, votes);
        }
    }
    guard.unlock().await?;
    Ok(best)
}
