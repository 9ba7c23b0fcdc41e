//! A server that gives back other bytes than were written.

use crate::common::place;
use crate::harness::cannot_run;
use crate::pools::{pool, working};
use muninn_types::SplitMix64;
use serde_json::Value;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

const FAR: u64 = 4000;

/// Changes a bit in every page of a server's memory, from outside.
pub fn spoil(pid: u64, dice: &mut SplitMix64) -> usize {
    let mut changed = 0;
    for file in std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
    {
        let name = std::fs::read_link(file.path()).unwrap_or_default();
        if !name.to_string_lossy().contains("memfd:") {
            continue;
        }
        let Ok(memory) = OpenOptions::new().read(true).write(true).open(file.path()) else {
            continue;
        };
        let len = memory.metadata().map_or(0, |meta| meta.len());
        let mut page = vec![0; 4096];
        for at in (0..len).step_by(4096) {
            if memory.read_exact_at(&mut page, at).is_err() || page.iter().all(|b| *b == 0) {
                continue;
            }
            page[dice.below(4096) as usize] ^= 1 << dice.below(8);
            changed += usize::from(memory.write_all_at(&page, at).is_ok());
        }
    }
    changed
}

#[test]
fn the_other_copy_is_right() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 2, "1GiB");
    let run = working(&place, &pool.addresses(), "mirror", 20);
    run.until_far(FAR);
    let job = run.job();
    // The one that is read from.
    let read = |at: &usize| {
        let ended = place.run(&["status", "--pool", &pool.servers[*at].tcp(), "--json"]);
        let report: Value = serde_json::from_str(&ended.out).unwrap();
        let sessions = report["servers"][0]["sessions"].as_array().unwrap().clone();
        let out = sessions
            .iter()
            .map(|session| session["bytes_out"].as_u64().unwrap());
        out.sum::<u64>()
    };
    run.until("all copies are there", || job.total().extents_degraded == 0);
    let liar = (0..2).max_by_key(read).unwrap();
    let pid = pool.servers[liar].listening["pid"].as_u64().unwrap();
    let changed = spoil(pid, &mut SplitMix64::new(7));
    assert!(changed > 1000, "{changed} pages");
    let ran = run.end();
    // Whether a wrong copy was met depends on which server answered faster.
    ran.assert_good_and_far();
}

/// With one copy it is the program's end, and said.
#[test]
fn there_is_no_other_copy() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 1, "1GiB");
    let run = working(&place, &pool.addresses(), "single", 3600);
    run.until_far(FAR);
    let pid = pool.servers[0].listening["pid"].as_u64().unwrap();
    spoil(pid, &mut SplitMix64::new(7));
    let ran = run.end();
    assert_ne!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("extent"), "{ran:#?}");
}
