//! A machine that is short of memory gives no more of it.

use crate::common::{Served, place};
use crate::harness::{cannot_run, held};
use crate::pools::{pool, pool_with, working};
use muninn_types::Bytes;

const FAR: u64 = 4000;

/// One of two servers has to leave more to its machine than there is: everything goes to the other.
#[test]
fn a_server_without_memory_to_spare_grants_nothing() {
    if cannot_run() {
        return;
    }
    let (one, other) = (place(), place());
    let mut short = pool_with(&one, 1, "1GiB", &["--reserve", "1024TiB"]);
    let plenty = pool(&other, 1, "1GiB");
    let all = [short.addresses(), plenty.addresses()].join(",");
    let run = working(&one, &all, "single", 4);
    run.until_far(FAR);
    assert_eq!(held(&one, &short.servers[0]), Bytes::ZERO);
    assert!(held(&other, &plenty.servers[0]) > Bytes::ZERO);
    run.end().assert_good_and_far();
    let ended = short.servers.remove(0).stop();
    assert!(
        ended
            .err
            .contains("less than --reserve: nothing more is granted"),
        "{ended:?}"
    );
}

/// The machine of one of two servers gets short of memory while a program has all of it there: clients are asked
/// to move away, and do.
#[test]
fn a_server_whose_machine_gets_short_is_relieved() {
    if cannot_run() {
        return;
    }
    let (one, other) = (place(), place());
    let mut short = one.serve(&["--memory", "1GiB", "--lease", "3s"]);
    let plenty = pool(&other, 1, "1GiB");
    let all = [short.tcp(), plenty.addresses()].join(",");
    let run = working(&one, &all, "single", 20);
    run.until_far(FAR);
    // It is the next process that leaves more to the machine than there is.
    let more = [
        "--memory",
        "1GiB",
        "--lease",
        "3s",
        "--take-over",
        "--reserve",
        "1024TiB",
    ];
    let next = one.serve(&more);
    std::mem::replace(&mut short, next).running.end();
    run.until("nothing is there any more", || {
        held(&one, &short) == Bytes::ZERO
    });
    assert!(held(&other, &plenty.servers[0]) > Bytes::ZERO);
    run.end().assert_good_and_far();
    let ended = short.stop();
    assert!(ended.err.contains("clients are asked to move"), "{ended:?}");
}

/// The kernel is asked to spare servers, where this user may ask for that.
#[test]
fn a_server_is_not_the_first_to_be_ended() {
    let place = place();
    let pool = pool(&place, 1, "64MiB");
    let score = |server: &Served| {
        let pid = &server.listening["pid"];
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse::<i32>().unwrap()
    };
    let ours = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let ours: i32 = ours.trim().parse().unwrap();
    let asking = ["-c", "echo -500 > /proc/self/oom_score_adj"];
    let may = std::process::Command::new("sh").args(asking).output();
    match may.unwrap().status.success() {
        true => assert_eq!(score(&pool.servers[0]), -500),
        false => assert_eq!(score(&pool.servers[0]), ours),
    }
}
