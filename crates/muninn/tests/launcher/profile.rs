//! What `muninn profile` says when there is nothing to learn.

use crate::common::{Ended, Place, Running, place};
use crate::launch::{harmless_library, is_gone, left_behind, until};
use rustix::process::Signal;

fn profile(place: &Place, args: &[&str]) -> Ended {
    let mut command = place.command(&[&["profile"], args].concat());
    command.env("MUNINN_PRELOAD", harmless_library());
    Running::start(command).end()
}

#[test]
fn a_command_that_cannot_be_profiled_says_why() {
    let place = place();
    let said = |args: &[&str], code: i32, message: &str| {
        let ended = profile(&place, args);
        assert_eq!(ended.err, format!("muninn: {message}\n"));
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""));
    };
    said(
        &["--", "true"],
        4,
        "nothing can be learnt of the memory of true: it ended at once, or Muninn's library was not \
         loaded into it",
    );
    said(
        &["--", "./gone"],
        127,
        "there is no program ./gone: check the path",
    );
    said(
        &["--ratios", "100%", "--", "true"],
        2,
        "--ratios names 0 shares below 100%: a profile needs from 1 to 16, such as 75%,50%,25%",
    );
    assert!(!place.path("profile-true.toml").exists());
}

#[test]
fn a_profile_that_is_interrupted_ends_its_program_and_writes_nothing() {
    let place = place();
    let script = "echo $$ > pid; while :; do sleep 0.02; done";
    let args = ["profile", "--name", "long", "--", "sh", "-c", script];
    let mut command = place.command(&args);
    command.env("MUNINN_PRELOAD", harmless_library());
    let running = Running::start(command);
    let mut pid = None;
    until("the program starts", || {
        let text = std::fs::read_to_string(place.path("pid")).unwrap_or_default();
        pid = text.trim().parse::<u32>().ok();
        pid.is_some()
    });
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.err, "muninn: interrupted; nothing was written\n");
    assert_eq!(ended.code, Some(1));
    assert!(is_gone(pid.unwrap()));
    assert!(!place.path("profile-long.toml").exists());
    assert_eq!(left_behind(&place), [] as [String; 0]);
}
