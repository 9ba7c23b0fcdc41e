//! What `muninn profile` says when there is nothing to learn.

use crate::common::{Ended, Place, Running, place};
use crate::launch::harmless_library;

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
        "Muninn's library was not loaded by true, so nothing can be learnt of its memory",
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
