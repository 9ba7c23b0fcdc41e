//! A program that does not need far memory has nothing of it.

use crate::common::place;
use crate::harness::{cannot_run, checker, run};

#[test]
fn a_program_that_stays_below_its_limit_is_left_alone() {
    if cannot_run() {
        return;
    }
    let place = place();
    for words in [
        &["idle"][..],
        &["fill", "--size", "32MiB"],
        &["fork", "--size", "32MiB"],
    ] {
        let all = [&[checker()], words].concat();
        let ran = run(&place, &["--local", "512MiB"], &all);
        assert_eq!(ran.code, 0, "{ran:#?}");
        assert!(ran.out.starts_with("ok "), "{ran:#?}");
        for name in ["adopted_bytes", "adoptions", "faults", "evicted", "grants"] {
            assert_eq!(ran.counter(name), 0, "{words:?}, {name}: {ran:#?}");
        }
        assert!(ran.report["processes"].as_u64() >= Some(1), "{ran:#?}");
    }
}
