//! `muninn wics`: what docs/WIC.md shows is what happens, line by line; and what can go wrong.

use crate::common::{Place, Served, place};
use std::path::PathBuf;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn command(place: &Place, server: &Served, args: &[&str]) -> (Option<i32>, String) {
    let mut command = place.command(args);
    command
        .current_dir(ROOT)
        .env("MUNINN_POOL", server.unix_path(place));
    let ended = crate::common::Running::start(command).end();
    (ended.code, ended.out + &ended.err)
}

impl Served {
    /// Its socket, wherever a command runs.
    fn unix_path(&self, place: &Place) -> String {
        format!("unix:{}", place.path("m.sock").display())
    }
}

/// Commands of a transcript, each with the lines that it says.
fn transcript(page: &str, mark: &str) -> Vec<(String, String)> {
    let (_, rest) = page.split_once(mark).expect("the page has the mark");
    let (_, rest) = rest.split_once("```\n").expect("a transcript begins");
    let (text, _) = rest.split_once("```").expect("it ends");
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ muninn "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_string(), String::new())),
            (None, Some((_, said))) => *said += &format!("{line}\n"),
            (None, None) => panic!("a transcript begins with a command, not '{line}'"),
        }
    }
    commands
}

#[test]
fn the_transcript_in_the_docs_is_what_happens() {
    let place = place();
    let server = place.serve(&["--memory", "64MiB"]);
    let page = std::fs::read_to_string(PathBuf::from(ROOT).join("docs/WIC.md")).unwrap();
    let commands = transcript(&page, "<!-- tested: wics -->");
    assert!(commands.len() >= 6);
    for (typed, wanted) in commands {
        let args: Vec<&str> = typed.split(' ').collect();
        let (_, said) = command(&place, &server, &args);
        // Docs are narrower than what a terminal shows.
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(flat(&said), flat(&wanted), "muninn {typed}");
    }
}

#[test]
fn a_server_takes_functions_from_those_that_it_was_told_to() {
    let place = place();
    let server = place.serve(&["--memory", "64MiB", "--wic-push", "off"]);
    let (code, said) = command(
        &place,
        &server,
        &["wics", "push", "examples/wasm-apps/apps.wasm"],
    );
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("serve --wic-push"), "{said}");
}

#[test]
fn mistakes_are_said_before_anything_is_sent() {
    let place = place();
    let server = place.serve(&["--memory", "64MiB"]);
    for (args, wanted, exit) in [
        (
            vec!["wics", "push", "no-such-file"],
            "no-such-file cannot be read",
            2,
        ),
        (
            vec!["wics", "push", "Cargo.toml"],
            "Cargo.toml cannot be used: it cannot be read",
            1,
        ),
        (
            vec!["wics", "remove", "a.b@1"],
            "there is no function or module 'a.b@1'",
            2,
        ),
        (vec!["wics", "call", "a.b"], "names no function", 2),
        (
            vec!["wics", "call", "a.b@1", "u64=x"],
            "'u64=x' is no argument",
            2,
        ),
        (vec!["wics", "call", "a.b@1"], "no function of that name", 3),
    ] {
        let (code, said) = command(&place, &server, &args);
        assert!(said.contains(wanted), "{args:?}: {said}");
        assert_eq!(code, Some(exit), "{args:?}: {said}");
    }
}
