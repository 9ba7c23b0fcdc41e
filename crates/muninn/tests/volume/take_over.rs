//! A server is started again under a program, and nothing is lost.

use crate::common::{Place, Served, place};
use crate::harness::cannot_run;
use crate::pools::working;

const FAR: u64 = 4000;
const RESTARTS: usize = 3;

fn serve(place: &Place, more: &[&str]) -> Served {
    let all = ["--memory", "1GiB", "--lease", "5s", "--threads", "2"];
    place.serve(&[&all, more].concat())
}

fn restarted_under_load(near: bool) {
    if cannot_run() {
        return;
    }
    let place = place();
    let mut server = serve(&place, &[]);
    let address = match near {
        true => format!("unix:{}", place.path("m.sock").display()),
        false => server.tcp(),
    };
    let run = working(&place, &address, "single", 6);
    run.until_far(FAR);
    for _ in 0..RESTARTS {
        let next = serve(&place, &["--take-over"]);
        let ended = std::mem::replace(&mut server, next).running.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.out.contains("handed-over"), "{ended:?}");
    }
    let ran = run.end();
    ran.assert_good_and_far();
}

#[test]
fn a_program_over_tcp_goes_on() {
    restarted_under_load(false);
}

#[test]
fn a_program_that_maps_memory_goes_on() {
    restarted_under_load(true);
}
