//! What `muninn run` refuses, word for word, before anything is started.

use crate::common::{BINARY, Ended, Place, Running, place};
use crate::launch::{harmless_library, left_behind, run, run_command};
use muninn_sys::proc::{RealProc, own_uid, sysctl};
use muninn_testing::skip;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

fn refused(place: &Place, ended: &Ended, code: i32, message: &str) {
    assert_eq!(ended.err, format!("muninn: {message}\n"));
    assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""));
    assert_eq!(left_behind(place), [] as [String; 0]);
}

fn at_64(place: &Place, command: &str) -> Ended {
    run(place, &["--local", "64MiB", "--", command])
}

/// A file that is a 64-bit program for x86-64 without a loader.
fn static_program() -> Vec<u8> {
    let mut file = vec![0; 128];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[18] = 62;
    file
}

fn executable(place: &Place, name: &str, contents: &[u8]) {
    let path = place.path(name);
    std::fs::write(&path, contents).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn programs_that_cannot_be_run() {
    let place = place();
    refused(
        &place,
        &at_64(&place, "no-such-program"),
        127,
        "there is no program 'no-such-program' in the folders of PATH: check the spelling, or give \
         its path (such as ./no-such-program)",
    );
    refused(
        &place,
        &at_64(&place, "./gone"),
        127,
        "there is no program ./gone: check the path",
    );
    place.write("text", "#!/bin/sh\n");
    refused(
        &place,
        &at_64(&place, "./text"),
        126,
        "./text may not be executed: if it is a program, 'chmod +x ./text' allows it",
    );
    executable(&place, "static", &static_program());
    let is_static = "./static is a static binary: it loads no libraries, so Muninn cannot be put \
                     into it; use a build of it that is linked dynamically, with glibc";
    refused(&place, &at_64(&place, "./static"), 4, is_static);
    let mut old = static_program();
    (old[4], old[18]) = (1, 3);
    executable(&place, "old", &old);
    refused(
        &place,
        &at_64(&place, "./old"),
        4,
        "./old is a program for 32-bit x86: Muninn runs programs for x86-64, so use such a build of \
         it",
    );
    executable(&place, "script", b"#!/no/such/shell\n");
    refused(
        &place,
        &at_64(&place, "./script"),
        4,
        "./script is a script for /no/such/shell, which is not there: install it, or correct the \
         script's first line",
    );
    executable(&place, "by-static", b"#!./static\n");
    refused(
        &place,
        &at_64(&place, "./by-static"),
        4,
        &format!("./by-static is a script, and what runs it will not do: {is_static}"),
    );
    executable(&place, "neither", b"echo hello\n");
    refused(
        &place,
        &at_64(&place, "./neither"),
        126,
        "./neither is neither a program nor a script with a first line such as #!/bin/sh",
    );
}

#[test]
fn a_program_that_gains_rights() {
    if own_uid() != 0 {
        skip("only root can give a file to somebody else");
        return;
    }
    let place = place();
    let program = place.path("sudoer");
    std::fs::copy("/proc/self/exe", &program).unwrap();
    chown(&program, Some(65534), None).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    refused(
        &place,
        &at_64(&place, "./sudoer"),
        4,
        "./sudoer gets other rights when it starts (setuid), and then no library can be put into it: \
         run 'muninn run' as the user that has these rights, or use a copy of the program without \
         them",
    );
}

#[test]
fn limits_that_cannot_be_kept_and_reports_that_cannot_be_written() {
    let place = place();
    refused(
        &place,
        &run(&place, &["--", "true"]),
        2,
        "how much memory may stay local? Say --local SIZE, such as 1GiB, or a share of the program's \
         peak, such as 50%",
    );
    refused(
        &place,
        &run(&place, &["--local", "50%", "--", "true"]),
        2,
        "--local 50% is a share of the program's peak, which is not known for this command: name it \
         with --peak SIZE, or run the command once with --local SIZE, and its peak is remembered",
    );
    refused(
        &place,
        &run(&place, &["--local", "8MiB", "--", "true"]),
        2,
        "--local 8MiB is too little: Muninn keeps 8MiB free for growth and needs room to move pages; \
         give 16MiB or more",
    );
    refused(
        &place,
        &run(&place, &["--local", "64MiB", "--json", "-", "--", "true"]),
        2,
        "--json - would mix with the program's own output: name a file, such as --json run.json",
    );
    refused(
        &place,
        &run(
            &place,
            &["--local", "64MiB", "--json", "no/such/dir", "--", "true"],
        ),
        2,
        "cannot write no/such/dir: No such file or directory (os error 2); name another file with \
         --json",
    );
    let ended = run(
        &place,
        &["--local", "64MiB", "--evict", "lru", "--", "true"],
    );
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.err.contains(
            "'lru' is not an eviction policy: use fifo, random, segmented-fifo, s3-fifo or sieve"
        ),
        "{ended:?}"
    );
    let ended = run(&place, &["--local", "64MiB"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("-- <CMD>"), "{ended:?}");
}

#[test]
fn a_pool_that_is_away_and_a_wrong_key() {
    let place = place();
    let gone = format!("unix:{}", place.path("gone.sock").display());
    let run_at = |pool: &str, more: &[&str]| {
        let args = [&["--local", "64MiB", "--pool", pool], more, &["--", "true"]].concat();
        run(&place, &args)
    };
    refused(
        &place,
        &run_at(&gone, &[]),
        3,
        &format!(
            "the program was not started: cannot connect to {gone}: nobody listens there; is the \
             server running?"
        ),
    );
    for key in ["key", "other"] {
        assert_eq!(place.run(&["keygen", key]).code, Some(0));
    }
    let served = place.serve(&["--memory", "8MiB", "--key-file", "key"]);
    let right = run_at(&served.tcp(), &["--key-file", "key"]);
    assert_eq!(right.code, Some(0), "{right:?}");
    let at = served.tcp();
    refused(
        &place,
        &run_at(&at, &["--key-file", "other"]),
        3,
        &format!(
            "the program was not started: the server at {at} refused: the server does not know this \
             client's key: use the key file it was started with"
        ),
    );
    refused(
        &place,
        &run_at(&at, &[]),
        3,
        &format!(
            "the program was not started: the server at {at} refused: the server requires a key: \
             name the key file it was started with (--key-file)"
        ),
    );
    assert_eq!(left_behind(&place), [] as [String; 0]);
}

/// Copies the binary by another process: a file that this one had open for writing, and a child of
/// another test's inherited for a moment, could not be executed.
fn copy(to: &Path) {
    let status = Command::new("cp").args([Path::new(BINARY), to]).status();
    assert!(status.unwrap().success());
}

#[test]
fn no_library_to_put_into_programs() {
    let place = place();
    let mut command = run_command(&place, &["--local", "64MiB", "--", "true"]);
    command.env("MUNINN_PRELOAD", "/not/there.so");
    refused(
        &place,
        &Running::start(command).end(),
        4,
        "MUNINN_PRELOAD names /not/there.so, which is not a file: correct it, or unset it to have \
         the one used that is in this binary",
    );
}

#[test]
fn a_user_who_may_not_have_userfaultfd() {
    let open_to_all = sysctl(&RealProc, "vm.unprivileged_userfaultfd") == Ok(1);
    let device = std::fs::metadata("/dev/userfaultfd");
    let device_open = device.is_ok_and(|meta| meta.permissions().mode() & 0o006 == 0o006);
    if own_uid() != 0 || open_to_all || device_open {
        skip("needs root to become somebody who may not have it");
        return;
    }
    let place = place();
    // Where nobody can reach them: the binary, and a folder of its own.
    let folder = place.path("nobody");
    std::fs::create_dir(&folder).unwrap();
    let binary = folder.join("muninn");
    copy(&binary);
    chown(&folder, Some(65534), Some(65534)).unwrap();
    let root = Path::new(folder.parent().unwrap());
    std::fs::set_permissions(root, PermissionsExt::from_mode(0o755)).unwrap();
    let args = ["run", "--local", "64MiB", "--", "true"];
    let mut command = place.command_of(&binary, &args);
    command
        .env("MUNINN_PRELOAD", harmless_library())
        .env("XDG_RUNTIME_DIR", &folder)
        .uid(65534)
        .gid(65534);
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(
        ended.err.starts_with("muninn: userfaultfd is not permitted (system call: ")
            && ended.err.ends_with(
                "). One of these allows it: run as root or with CAP_SYS_PTRACE; give the user access \
                 to /dev/userfaultfd (chmod or a udev rule); or set vm.unprivileged_userfaultfd=1\n"
            ),
        "{ended:?}"
    );
}

#[test]
fn a_layout_that_the_pool_cannot_have() {
    let place = place();
    let refusal = |more: &[&str]| {
        let ended = run(
            &place,
            &[&["--local", "64MiB"], more, &["--", "true"]].concat(),
        );
        assert_eq!(ended.code, Some(2), "{ended:?}");
        ended.err
    };
    let without = refusal(&["--layout", "mirror"]);
    assert!(
        without.contains("--layout mirror needs 2 servers: name them with --pool"),
        "{without}"
    );
    let served = place.serve(&["--memory", "8MiB", "--insecure"]);
    let one = refusal(&["--layout", "mirror:3", "--pool", &served.tcp()]);
    assert!(
        one.contains("--layout mirror:3 needs 3 servers, and the pool has 1"),
        "{one}"
    );
    let unknown = refusal(&["--layout", "raid"]);
    assert!(
        unknown.contains(
            "'raid' is not a layout: use single, mirror (two copies), mirror:3, or parity:K+M"
        ),
        "{unknown}"
    );
}

/// One of two servers is away when the program starts: with one copy that is a line, with two an error.
#[test]
fn a_server_that_is_away_at_the_start() {
    let place = place();
    let served = place.serve(&["--memory", "8MiB", "--insecure"]);
    let gone = format!("unix:{}", place.path("gone.sock").display());
    let pool = format!("{},{gone}", served.tcp());
    let run_as = |layout: &str| {
        let args = [
            "--local", "64MiB", "--pool", &pool, "--layout", layout, "--", "true",
        ];
        run(&place, &args)
    };
    let away = format!("cannot connect to {gone}: nobody listens there; is the server running?");
    let single = run_as("single");
    assert_eq!(single.code, Some(0), "{single:?}");
    assert_eq!(
        single.err,
        format!("muninn: going on without a server: {away}\n")
    );
    let mirror = run_as("mirror");
    assert_eq!(mirror.code, Some(3), "{mirror:?}");
    assert!(
        mirror
            .err
            .contains(&format!("the program was not started: {away}")),
        "{mirror:?}"
    );
}
