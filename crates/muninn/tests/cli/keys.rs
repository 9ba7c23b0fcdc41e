//! Keys, right and wrong, and the files they are kept in.

use crate::common::{BINARY, Ended, Place, Running, place};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Starts a server that should refuse this key file.
fn serve_with_key(place: &Place, file: &str) -> Ended {
    place.run(&[
        "serve",
        "--memory",
        "8MiB",
        "--socket",
        "m.sock",
        "--key-file",
        file,
    ])
}

#[test]
fn a_wrong_key_and_no_key_say_what_to_do() {
    let place = place();
    for name in ["right", "wrong"] {
        assert_eq!(place.run(&["keygen", name]).code, Some(0));
    }
    let served = place.serve(&["--memory", "8MiB", "--key-file", "right"]);
    assert_eq!(served.listening["key"], true);
    let at = served.tcp();
    let status = |key: &[&str]| place.run(&[&["status", "--pool", &at], key].concat());
    assert_eq!(status(&["--key-file", "right"]).code, Some(0));
    let ended = status(&["--key-file", "wrong"]);
    assert_eq!(ended.code, Some(3));
    assert_eq!(
        ended.out,
        format!(
            "{at}\n  the server at {at} refused: the server does not know this client's key: use \
             the key file it was started with\n"
        )
    );
    let ended = status(&[]);
    assert_eq!(ended.code, Some(3));
    assert_eq!(
        ended.out,
        format!(
            "{at}\n  the server at {at} refused: the server requires a key: name the key file it \
             was started with (--key-file)\n"
        )
    );
    assert_eq!(
        ended.err,
        "muninn: the server gave no status; why is said above\n"
    );
}

/// Makes an identity; what was said of it.
fn made(place: &Place, args: &[&str]) -> serde_json::Value {
    let ended = place.run(&[&["keygen"], args, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

#[test]
fn identities_are_let_in_and_exchanged_while_a_server_runs() {
    let place = place();
    let old = made(&place, &["operator", "old.key"]);
    made(
        &place,
        &["server", "rack.key", "rack-1", "--operator", "old.key"],
    );
    let args = ["client", "batch.key", "batch", "--quota", "1MiB"];
    let batch = made(&place, &[&args[..], &["--operator", "old.key"]].concat());
    assert_eq!(
        (&batch["role"], &batch["name"]),
        (&"client".into(), &"batch".into())
    );
    let served = place.serve(&["--memory", "8MiB", "--key-file", "rack.key"]);
    let at = served.tcp();
    let status = |key: &str| {
        place
            .run(&["status", "--pool", &at, "--key-file", key])
            .code
    };
    assert_eq!((status("batch.key"), status("old.key")), (Some(0), Some(0)));
    // A client is no operator.
    let drain = place.run(&["drain", "--pool", &at, "--key-file", "batch.key"]);
    assert_ne!(drain.code, Some(0));
    // Another operator's client, before and after that operator is believed.
    let new = made(&place, &["operator", "new.key"]);
    made(
        &place,
        &["client", "web.key", "web", "--operator", "new.key"],
    );
    let public = |who: &serde_json::Value| who["operators"][0].as_str().unwrap().to_string();
    made(&place, &["trust", "web.key", &public(&old)]);
    assert_eq!(status("web.key"), Some(3));
    made(&place, &["trust", "rack.key", &public(&new)]);
    let ends = std::time::Instant::now() + crate::common::PATIENCE;
    while status("web.key") != Some(0) {
        assert!(
            std::time::Instant::now() < ends,
            "the key file is not read again"
        );
    }
    assert_eq!(status("batch.key"), Some(0), "both are believed");
    made(
        &place,
        &["revoke", "rack.key", batch["id"].as_str().unwrap()],
    );
    while status("batch.key") != Some(3) {
        assert!(std::time::Instant::now() < ends, "a revoked key is let in");
    }
    assert_eq!(status("web.key"), Some(0));
    assert_eq!(served.stop().code, Some(0));
}

#[test]
fn only_an_operator_signs() {
    let place = place();
    made(&place, &["operator", "ops.key"]);
    made(
        &place,
        &["client", "batch.key", "batch", "--operator", "ops.key"],
    );
    let ended = place.run(&["keygen", "server", "s.key", "s", "--operator", "batch.key"]);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (
            Some(2),
            "muninn: batch.key cannot sign: name the file of an operator ('muninn keygen operator \
             PATH' makes one)\n"
        )
    );
    assert!(!place.path("s.key").exists());
}

#[test]
fn a_fresh_key_file_is_private_and_never_overwrites() {
    let place = place();
    let ended = place.run(&["keygen", "key"]);
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (
            Some(0),
            "wrote a fresh key to key; give servers and their clients the same file (--key-file \
             key)\n"
        )
    );
    let mode = std::fs::metadata(place.path("key")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let before = std::fs::read(place.path("key")).unwrap();
    let ended = place.run(&["keygen", "key"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.err,
        "muninn: key is there already and was left alone: servers may be using its key; choose \
         another name, or remove it first\n"
    );
    assert_eq!(std::fs::read(place.path("key")).unwrap(), before);
    let ended = place.run(&["keygen", "no/such/folder/key"]);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (
            Some(1),
            "muninn: cannot write the key file no/such/folder/key: No such file or directory (os \
             error 2)\n"
        )
    );
}

#[test]
fn key_files_that_cannot_be_used_say_why() {
    let place = place();
    let ended = serve_with_key(&place, "none");
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.err,
        "muninn: cannot read the key file none: No such file or directory (os error 2); make one \
         with 'muninn keygen none'\n"
    );
    std::fs::create_dir(place.path("folder")).unwrap();
    let ended = serve_with_key(&place, "folder");
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.err,
        "muninn: cannot read the key file folder: it is not a file; name another with --key-file\n"
    );
    chmod(&place.write("short", "too short\n"), 0o600);
    let ended = serve_with_key(&place, "short");
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.err,
        "muninn: the key file short is of no use: it holds 9 bytes, and a key is 16 to 1024; \
         'muninn keygen PATH' makes a good one\n"
    );
    chmod(&place.write("open", "a key that all can read\n"), 0o644);
    let ended = serve_with_key(&place, "open");
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.err,
        "muninn: the key file open is open to others (mode 0644), so its key may be known: 'chmod \
         600 open', and if others could read it, make a new one with 'muninn keygen'\n"
    );
    // The same words for a client.
    let ended = place.run(&["status", "--pool", "./m.sock", "--key-file", "none"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .err
            .starts_with("muninn: cannot read the key file none: ")
    );
    assert!(!place.path("m.sock").exists());
}

#[test]
fn a_key_file_of_someone_else_cannot_be_read() {
    let place = place();
    chmod(
        &place.write("closed", "a key that nobody can read\n"),
        0o000,
    );
    let args = [
        "serve",
        "--memory",
        "8MiB",
        "--socket",
        "m.sock",
        "--key-file",
        "closed",
    ];
    let mut command = place.command(&args);
    if muninn_sys::proc::own_uid() == 0 {
        // Root reads everything, so another user tries, with a copy it can surely reach.
        chmod(&place.path("."), 0o755);
        let copy = place.path("muninn");
        std::fs::copy(BINARY, &copy).unwrap();
        chmod(&copy, 0o755);
        command = place.command_of(&copy, &args);
        command.uid(65534).gid(65534);
    }
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.err,
        "muninn: cannot read the key file closed: Permission denied (os error 13); run as its \
         owner, or copy the key to a file of your own\n"
    );
}
