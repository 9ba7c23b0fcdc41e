//! The package: made, installed, used by ordinary users, and removed again, in a copy of this system that
//! goes with the test (`install.sh`).

use muninn_testing::skip;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_muninn");

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn text(output: &Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part).into_owned());
    format!("{out}\n-- stderr:\n{err}")
}

/// Both packages, of the binary that these tests are for.
fn package(out: &Path) -> bool {
    if !is_there("dpkg-deb") || !is_there("objdump") {
        skip("dpkg-deb or objdump is not installed");
        return false;
    }
    let mut command = Command::new(repository().join("package"));
    command
        .args(["--fast", "--binary", BINARY, "--out"])
        .arg(out);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    true
}

fn only(folder: &Path, ending: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let mut found = entries.filter(|path| path.to_string_lossy().ends_with(ending));
    let first = found.next().unwrap_or_else(|| panic!("no {ending}"));
    assert_eq!(found.next(), None);
    first
}

/// What a section of the script's output said.
fn section<'a>(out: &'a str, name: &str) -> &'a str {
    let begin = format!("== {name}\n");
    let from = out
        .find(&begin)
        .unwrap_or_else(|| panic!("no section {name} in:\n{out}"));
    let rest = &out[from + begin.len()..];
    &rest[..rest.find("\n== ").unwrap_or(rest.len())]
}

#[test]
fn installed_used_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    if !package(dir.path()) {
        return;
    }
    let deb = only(dir.path(), ".deb");
    let tarball = only(dir.path(), ".tar.gz");
    let listed = Command::new("tar")
        .arg("tzf")
        .arg(&tarball)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for part in [
        "/bin/muninn\n",
        "/share/man/man1/muninn-run.1.gz\n",
        "/lib/systemd/system/muninn-server.service\n",
        "/lib/systemd/system/muninn-agent.service\n",
    ] {
        assert!(listed.contains(part), "{part:?} is not in:\n{listed}");
    }
    if muninn_sys::proc::own_uid() != 0 {
        return skip("only root can install a package");
    }
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap();
    if !filesystems.contains("\toverlay\n")
        || !is_there("setpriv")
        || !Path::new("/dev/userfaultfd").exists()
    {
        return skip("no overlay filesystem, setpriv or /dev/userfaultfd here");
    }
    let folder = dir.path().join("system");
    std::fs::create_dir(&folder).unwrap();
    let script = repository().join("crates/muninn/tests/package/install.sh");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "sh"])
        .arg(script)
        .arg(&folder)
        .arg(&deb);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MUNINN_") {
            command.env_remove(name);
        }
    }
    let output = command.output().unwrap();
    let (out, all) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        text(&output),
    );
    assert!(output.status.success(), "{all}");
    let says = |name: &str, parts: &[&str]| {
        let section = section(&out, name);
        for part in parts {
            assert!(
                section.contains(part),
                "{name}: {part:?} is not in:\n{section}\n== all:\n{all}"
            );
        }
    };
    says(
        "check before setup",
        &[
            "MISSING  far-memory",
            "'muninn', without members",
            "alice is not in the group",
            "code 5",
            "code 4",
        ],
    );
    says(
        "setup",
        &["added alice to the group 'muninn', from the next login on\nnothing was to be done"],
    );
    says(
        "check after setup",
        &[
            "ok       far-memory",
            "ok       member",
            "without  forks",
            "code 0",
        ],
    );
    says(
        "run",
        &[
            "100663296\n",
            "code 0",
            "cached libmuninn_preload-",
            " 555 alice",
        ],
    );
    let evicted = section(&out, "run")
        .lines()
        .find_map(|line| line.trim().strip_prefix("\"evicted\": "));
    let evicted: u64 = evicted.unwrap().trim_end_matches(',').parse().unwrap();
    assert!(evicted > 10_000, "the limit held: {all}");
    says("one who was not added", &["code 4"]);
    says(
        "without a home, and with one that cannot be written",
        &["works\ncode 0", "works too\ncode 0"],
    );
    // Every place is another's or cannot be used: memory of the launcher's is.
    says(
        "planted by another user",
        &["/proc/N/fd/N\ncode 0\n/proc/N/fd/N\ncode 0"],
    );
    says(
        "root's programs become somebody else",
        &["/var/cache/muninn/libmuninn_preload-", "code 0"],
    );
    assert!(
        !section(&out, "root's programs become somebody else").contains("\n0\n"),
        "{all}"
    );
    says("serve", &["0B of 16.0MiB granted"]);
    says(
        "remove",
        &[
            "device 600 root",
            "users and groups as before",
            "left: nothing",
        ],
    );
    let warned = "muninn: if this program forks, all of its memory comes near, above the limit";
    assert!(
        all.contains(warned),
        "who is not told of forks is told so: {all}"
    );
    assert!(
        !all.contains("evil") && !all.contains("cannot be preloaded"),
        "{all}"
    );
}

#[test]
fn units_and_rules_are_as_systemd_wants_them() {
    if !is_there("systemd-analyze") {
        return skip("systemd-analyze is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let copies = ["muninn-server.service", "muninn-agent.service"].map(|unit| {
        let text = std::fs::read_to_string(repository().join("packaging/systemd").join(unit));
        let copy = dir.path().join(unit);
        // The binary need not be installed for this.
        std::fs::write(&copy, text.unwrap().replace("/usr/bin/muninn", BINARY)).unwrap();
        copy
    });
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(copies)
        .output()
        .unwrap();
    let said = text(&output);
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("muninn-server") || line.contains("muninn-agent"))
        .collect();
    assert_eq!(ours, [] as [&str; 0], "{said}");
    let rules =
        std::fs::read_to_string(repository().join("packaging/udev/60-muninn.rules")).unwrap();
    for line in rules.lines().filter(|line| !line.starts_with('#')) {
        assert!(
            line.starts_with("KERNEL==\"") && line.ends_with("GROUP=\"muninn\", MODE=\"0660\""),
            "{line}"
        );
    }
}

/// From nothing to a program on another machine's memory, word for word as the README has it.
#[test]
fn two_machines_in_four_lines() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let of = |line: &&str| line.starts_with("has-memory$ ") || line.starts_with("needs-memory$ ");
    let lines: Vec<&str> = readme.lines().filter(of).collect();
    assert_eq!(lines.len(), 4, "{lines:#?}");
    if muninn_sys::proc::own_uid() != 0 {
        return skip("only root can make networks");
    }
    if !is_there("ip") || !is_there("unshare") || !Path::new("/dev/userfaultfd").exists() {
        return skip("ip, unshare or /dev/userfaultfd is not here");
    }
    let dir = tempfile::tempdir().unwrap();
    let wanted = dir.path().join("lines");
    std::fs::write(&wanted, lines.join("\n") + "\n").unwrap();
    let folder = dir.path().join("machines");
    std::fs::create_dir(&folder).unwrap();
    let mut command = Command::new("unshare");
    command
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
        ])
        .arg(repository().join("crates/muninn/tests/package/quickstart.sh"))
        .args([Path::new(BINARY), &wanted, &folder]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MUNINN_") {
            command.env_remove(name);
        }
    }
    let output = command.output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("sorted: 480000 lines\n"), "{said}");
    let memory = said
        .lines()
        .find(|line| line.starts_with("muninn: memory  "))
        .unwrap_or_else(|| panic!("{said}"));
    assert!(
        memory.contains("(limit 64.0MiB)") && memory.ends_with(" far, sealed"),
        "{said}"
    );
    assert!(
        said.contains("stopped; no client held memory here"),
        "{said}"
    );
}
