//! Help, completions, manual pages and the list of dependencies: all made from what is there.

use crate::common::place;
use std::collections::BTreeSet;

const COMMANDS: [&str; 19] = [
    "run",
    "ctl",
    "profile",
    "serve",
    "nic",
    "wics",
    "status",
    "drain",
    "doctor",
    "keygen",
    "setup",
    "top",
    "dashboard",
    "completions",
    "man",
    "agent",
    "coordinator",
    "cluster",
    "trace",
];

#[test]
fn every_command_shows_an_example() {
    let place = place();
    for command in COMMANDS {
        let ended = place.run(&[command, "--help"]);
        assert_eq!(ended.code, Some(0));
        let example = format!("\n  muninn {command}");
        assert!(ended.out.contains("Example"), "{command} shows no example");
        assert!(
            ended.out.contains(&example),
            "{command} shows no example of itself"
        );
    }
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let place = place();
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let ended = place.run(&["completions", shell]);
        assert_eq!(ended.code, Some(0));
        for command in COMMANDS {
            assert!(
                ended.out.contains(command),
                "{shell} does not know {command}"
            );
        }
    }
    let ended = place.run(&["man", "--out", "man1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for command in COMMANDS {
        let page = place.path("man1").join(format!("muninn-{command}.1"));
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains(".SH OPTIONS"), "{}", page.display());
    }
    let first = place.run(&["man"]);
    assert!(first.out.contains("Far memory for ordinary Linux machines"));
}

#[test]
fn every_dependency_has_its_reason() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let manifest = std::fs::read_to_string(format!("{root}/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let wanted: BTreeSet<&str> = manifest["workspace"]["dependencies"]
        .as_table()
        .unwrap()
        .keys()
        .map(String::as_str)
        .filter(|name| !name.starts_with("muninn"))
        .collect();
    let page = std::fs::read_to_string(format!("{root}/docs/DEPENDENCIES.md")).unwrap();
    let listed: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(wanted, listed, "docs/DEPENDENCIES.md lists other crates");
}
