//! What `deny.toml` allows, looked at without `cargo-deny`, which not everybody has: licences, where crates come from,
//! and that none is asked for in any version. Known faults are not looked at: that takes a list from the
//! network.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What all that is built for this platform says of itself.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let args = ["metadata", "--locked", "--offline", "--format-version", "1"];
    let platform = ["--filter-platform", "x86_64-unknown-linux-gnu"];
    let mut command = Command::new(cargo);
    let ended = command.args(args).args(platform).current_dir(ROOT).output();
    let ended = ended.unwrap();
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    let all: Value = serde_json::from_slice(&ended.stdout).unwrap();
    all["packages"].as_array().unwrap().clone()
}

/// Whether a licence, as SPDX writes it, leaves a way that is allowed: `A`, `A OR B`, `(A OR B) AND C`.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    // An alternative stands between brackets only where something else is asked for as well.
    let parts = split_outside(expression, " AND ");
    if parts.len() > 1 {
        return parts.iter().all(|part| is_allowed(part, allowed));
    }
    let inner = expression
        .strip_prefix('(')
        .and_then(|e| e.strip_suffix(')'));
    let either = inner.unwrap_or(expression).replace('/', " OR ");
    either.split(" OR ").any(|one| allowed.contains(one.trim()))
}

fn split_outside<'a>(text: &'a str, by: &str) -> Vec<&'a str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && text[at..].starts_with(by) => {
                parts.push(&text[start..at]);
                start = at + by.len();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[test]
fn dependencies_are_such_as_deny_toml_allows() {
    let rules = std::fs::read_to_string(format!("{ROOT}/deny.toml")).unwrap();
    let rules: toml::Table = rules.parse().unwrap();
    let allowed = rules["licenses"]["allow"].as_array().unwrap().iter();
    let allowed: BTreeSet<&str> = allowed.filter_map(|name| name.as_str()).collect();
    let (packages, root) = (packages(), std::fs::canonicalize(ROOT).unwrap());
    assert!(packages.len() > 50, "{} packages", packages.len());
    let mut wrong = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or("none at all");
        if !is_allowed(licence, &allowed) {
            wrong.push(format!("{name} has the licence {licence}"));
        }
        let source = package["source"].as_str();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let fine = match source {
            Some(source) => source == REGISTRY,
            None => manifest.starts_with(&root),
        };
        if !fine {
            let at = manifest.display();
            wrong.push(format!(
                "{name} comes from {}",
                source.unwrap_or(&at.to_string())
            ));
        }
        for wanted in package["dependencies"].as_array().unwrap() {
            // Within the project a path stands for the version.
            if wanted["req"] == "*" && wanted["path"].is_null() {
                wrong.push(format!("{name} takes any version of {}", wanted["name"]));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn licences_are_read_as_they_are_meant() {
    let allowed = BTreeSet::from(["MIT", "ISC"]);
    for fine in [
        "MIT",
        "MIT OR GPL-3.0",
        "GPL-3.0/MIT",
        "(GPL-3.0 OR MIT) AND ISC",
    ] {
        assert!(is_allowed(fine, &allowed), "{fine}");
    }
    for wrong in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT OR ISC) AND GPL-3.0",
        "none at all",
        "",
    ] {
        assert!(!is_allowed(wrong, &allowed), "{wrong}");
    }
}
