//! Programs that no library can be put into, started by one that has it: they are named.

use crate::both::{LOCAL, PATIENCE, cannot_run, open_place, program};
use crate::harness;
#[test]
fn who_runs_without_a_limit_is_named() {
    if cannot_run() {
        return;
    }
    let program = program("static_and_large");
    let place = open_place();
    // It goes on until nobody writes to it, which is when the test has heard of it.
    let script = format!(
        "mkfifo to; {program} <to & exec 3>to; until [ -e heard ]; do sleep 0.1; done; exec 3>&-; wait"
    );
    let run = harness::start(&place, &["--local", LOCAL], &["/bin/sh", "-c", &script]);
    run.until("it is named", || {
        let words = "(static_and_larg) runs without far memory and without a limit";
        run.err().contains(words)
    });
    std::fs::write(place.path("heard"), "").unwrap();
    let ran = crate::both::finish(run, PATIENCE);
    assert_eq!((ran.code, ran.out.as_str()), (0, "right\n"), "{ran:#?}");
    assert_eq!(ran.err.matches("without a limit").count(), 1, "{ran:#?}");
}
