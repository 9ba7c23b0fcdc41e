//! A program whose pages go to servers that ask for a key: it does not have it.

use crate::common::{BINARY, PATIENCE, Place, Running, Served, far_memory_possible, place};
use crate::memory::{family, find, open_files};
use rustix::process::Signal;
use sha2::{Digest, Sha256};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Instant;

/// Fills more than it may hold, forks, waits for a word, and reads all of it back; so does the child.
const PROGRAM: &str = r#"
import os, signal, sys
pages = [bytes([n & 255]) * 4096 for n in range(12288)]
child = os.fork()
# Of a test that failed nobody is left behind.
signal.alarm(180)
for n, page in enumerate(pages):
    assert page[0] == n & 255 and page[4095] == n & 255, n
print("ready", flush=True)
open(sys.argv[1 if child else 2]).read()
for n, page in enumerate(pages):
    assert page[0] == n & 255 and page[4095] == n & 255, n
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("right", flush=True)
else:
    os._exit(0)
"#;

/// What a program runs with, and what must be found nowhere about it.
struct Secret {
    file: &'static str,
    needles: Vec<Vec<u8>>,
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}

fn keygen(place: &Place, args: &[&str]) {
    let ended = place.run(&[&["keygen"], args].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

fn identities(place: &Place) -> Secret {
    keygen(place, &["operator", "ops.key"]);
    let (server, client) = (
        ["server", "rack.key", "rack-1"],
        ["client", "own.key", "own"],
    );
    for args in [server, client] {
        keygen(place, &[&args[..], &["--operator", "ops.key"]].concat());
    }
    let text = std::fs::read_to_string(place.path("own.key")).unwrap();
    let secret = text.lines().find_map(|line| line.strip_prefix("secret "));
    let secret = secret.unwrap();
    Secret {
        file: "own.key",
        needles: vec![secret.as_bytes().to_vec(), unhex(secret)],
    }
}

fn shared(place: &Place) -> Secret {
    keygen(place, &["shared.key"]);
    let text = std::fs::read_to_string(place.path("shared.key")).unwrap();
    let text = text.trim();
    // What handshakes are made with is made of the key's text.
    let used = Sha256::new_with_prefix(b"muninn shared key 1").chain_update(text);
    Secret {
        file: "shared.key",
        needles: vec![
            text.as_bytes().to_vec(),
            unhex(text),
            used.finalize().to_vec(),
        ],
    }
}

fn start(place: &Place, pool: &str, key: &str, layout: &str) -> Running {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    for name in ["go-parent", "go-child"] {
        rustix::fs::mkfifoat(rustix::fs::CWD, place.path(name), mode).unwrap();
    }
    let memory = ["run", "--local", "24MiB", "--layout", layout];
    let servers = ["--pool", pool, "--key-file", key];
    let program = ["--", "python3", "-c", PROGRAM, "go-parent", "go-child"];
    let args = [&memory[..], &servers, &program];
    let running = Running::start(place.command(&args.concat()));
    for _ in 0..2 {
        match running.line().as_deref() {
            Some("ready") => {}
            other => panic!("{other:?}, {:?}", running.end()),
        }
    }
    running
}

fn go_on(place: &Place, running: Running) {
    for name in ["go-child", "go-parent"] {
        std::fs::write(place.path(name), "go").unwrap();
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(ended.out, "right\n");
}

/// Looks for a key in all that a program, its child and their companions have.
fn search(launcher: u32, place: &Place, secret: &Secret) {
    let programs: Vec<u32> = family(launcher).into_iter().skip(1).collect();
    // The program, its child, and a companion of each.
    assert!(programs.len() >= 4, "{programs:?}");
    for &pid in &programs {
        for file in ["environ", "cmdline", "maps"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            for needle in &secret.needles {
                let seen = bytes.windows(needle.len()).any(|window| window == needle);
                assert!(!seen, "the key is in {file} of {pid}");
            }
        }
        let opened = open_files(pid);
        let key_file = place.path(secret.file);
        assert!(!opened.contains(&key_file), "{pid} has {opened:?}");
        let found = find(pid, &secret.needles);
        let all_zero = found.iter().all(|count| *count == 0);
        assert!(all_zero, "the key is in the memory of {pid}: {found:?}");
    }
    // Whoever finds nothing must know how to find something: the launcher has it.
    if rustix::process::geteuid().is_root() {
        let found = find(launcher, &secret.needles);
        println!("in the launcher: {found:?}");
        assert!(found.iter().any(|count| *count > 0), "nobody has the key");
    }
}

fn granted(place: &Place, pool: &str, key: &str) -> u64 {
    let status = place.run(&["status", "--pool", pool, "--key-file", key, "--json"]);
    assert_eq!(status.code, Some(0), "{}", status.err);
    let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    let servers = status["servers"].as_array().unwrap().iter();
    servers
        .map(|one| one["granted_bytes"].as_u64().unwrap())
        .sum()
}

#[test]
fn a_program_has_nothing_of_the_key_its_pages_travel_by() {
    if !far_memory_possible() {
        return;
    }
    for identity in [true, false] {
        let place = place();
        let (secret, server, observer) = match identity {
            true => (identities(&place), "rack.key", "ops.key"),
            false => (shared(&place), "shared.key", "shared.key"),
        };
        let served = place.serve(&["--memory", "256MiB", "--key-file", server]);
        let pool = match identity {
            true => served.tcp(),
            false => served.unix(),
        };
        let running = start(&place, &pool, secret.file, "single");
        assert!(granted(&place, &pool, observer) > 0, "nothing is far");
        search(running.pid(), &place, &secret);
        go_on(&place, running);
        assert_eq!(served.stop().code, Some(0));
    }
}

/// Executes itself anew, has far pages, becomes another user if it may, forks, and waits.
const ANOTHER: &str = r#"
import os, signal, sys
signal.alarm(180)
if sys.argv[1] == "exec":
    os.execv(sys.executable, sys.orig_argv[:-1] + ["again"])
pages = [bytes([n & 255]) * 4096 for n in range(12288)]
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
if os.fork() == 0:
    signal.alarm(180)
for n, page in enumerate(pages):
    assert page[0] == n & 255 and page[4095] == n & 255, n
print("ready", flush=True)
signal.pause()
"#;

#[test]
fn nor_does_one_that_executes_forks_and_becomes_another_user() {
    if !far_memory_possible() {
        return;
    }
    let place = place();
    let secret = identities(&place);
    let served = place.serve(&["--memory", "256MiB", "--key-file", "rack.key"]);
    let at = served.tcp();
    let memory = ["run", "--local", "24MiB", "--pool", &at];
    let program = [
        "--key-file",
        secret.file,
        "--",
        "python3",
        "-c",
        ANOTHER,
        "exec",
    ];
    let running = Running::start(place.command(&[&memory[..], &program].concat()));
    for _ in 0..2 {
        assert_eq!(running.line().as_deref(), Some("ready"));
    }
    assert!(granted(&place, &at, "ops.key") > 0, "nothing is far");
    let all = family(running.pid());
    search(running.pid(), &place, &secret);
    for pid in all.into_iter().skip(1) {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    running.end();
    assert_eq!(served.stop().code, Some(0));
}

/// Has far pages and a word to be found by, and leaves a dump.
const DUMPED: &str = r#"
import os, sys
word = ("to be found" + " in the dump ").encode() * 400
pages = [bytes([n & 255]) * 4096 for n in range(12288)]
for n, page in enumerate(pages):
    assert page[0] == n & 255 and page[4095] == n & 255, n
print("ready", flush=True)
open(sys.argv[1]).read()
# Near again, and so in the dump.
word = word + b" "
os.abort()
"#;

#[test]
fn dumps_hold_no_key() {
    if !far_memory_possible() {
        return;
    }
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.trim() != "core" {
        muninn_testing::skip("dumps of this machine go elsewhere");
        return;
    }
    let place = place();
    let secret = identities(&place);
    let served = place.serve(&["--memory", "256MiB", "--key-file", "rack.key"]);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("go"), mode).unwrap();
    let dumps = || -> Vec<std::path::PathBuf> {
        let files = std::fs::read_dir(place.path(".")).unwrap().flatten();
        let is_dump = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("core");
        let found = files.filter(|file| is_dump(&file.file_name()));
        found.map(|file| file.path()).collect()
    };
    let at = served.tcp();
    for of_launcher in [true, false] {
        let with_dumps = ["-c", "ulimit -c unlimited && exec \"$@\"", "sh", BINARY];
        let memory = ["run", "--local", "24MiB", "--seal", "--pool", &at];
        let program = [
            "--key-file",
            secret.file,
            "--",
            "python3",
            "-c",
            DUMPED,
            "go",
        ];
        let args = [&with_dumps[..], &memory, &program].concat();
        let running = Running::start(place.command_of(Path::new("/bin/sh"), &args));
        assert_eq!(running.line().as_deref(), Some("ready"));
        assert!(granted(&place, &at, "ops.key") > 0, "nothing is far");
        match of_launcher {
            true => {
                let all = family(running.pid());
                let send = |pid: u32, signal| {
                    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
                    let _ = rustix::process::kill_process(pid, signal);
                };
                // Not one of those that it passes on.
                send(running.pid(), Signal::FPE);
                running.end();
                assert_eq!(dumps(), Vec::<std::path::PathBuf>::new());
                for pid in all.into_iter().skip(1) {
                    send(pid, Signal::KILL);
                }
            }
            false => {
                std::fs::write(place.path("go"), "").unwrap();
                running.end();
                let found = dumps();
                assert_eq!(found.len(), 1, "{found:?}");
                let dump = std::fs::read(&found[0]).unwrap();
                let has = |needle: &[u8]| dump.windows(needle.len()).any(|part| part == needle);
                assert!(has(b"to be found in the dump"), "that is no dump of it");
                for needle in &secret.needles {
                    assert!(!has(needle), "the key is in the dump of a program");
                }
            }
        }
    }
    assert_eq!(served.stop().code, Some(0));
}

/// What was said of an identity that was made or changed.
fn made(place: &Place, args: &[&str]) -> serde_json::Value {
    let ended = place.run(&[&["keygen"], args, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

/// The procedure of the guide: three servers and two clients get other keys, from another operator, while
/// a program runs; then its first key is revoked, and it goes on by the new one.
#[test]
fn keys_are_exchanged_while_a_program_runs() {
    if !far_memory_possible() {
        return;
    }
    let place = place();
    let public = |who: &serde_json::Value| who["operators"][0].as_str().unwrap().to_string();
    let old = public(&made(&place, &["operator", "old.key"]));
    let servers = ["rack-1.key", "rack-2.key", "rack-3.key"];
    let clients = ["batch.key", "web.key"];
    for file in servers {
        let name = file.trim_end_matches(".key");
        keygen(&place, &["server", file, name, "--operator", "old.key"]);
    }
    for file in clients {
        let name = file.trim_end_matches(".key");
        keygen(&place, &["client", file, name, "--operator", "old.key"]);
    }
    let serve = |file: &str| {
        let args = ["serve", "--listen", "127.0.0.1:0", "--memory", "128MiB"];
        let more = ["--json", "--key-file", file];
        Served::start(place.command(&[&args[..], &more].concat()))
    };
    let served = servers.map(serve);
    let addresses = served.each_ref().map(Served::tcp);
    let running = start(&place, &addresses.join(","), "batch.key", "mirror");
    let let_in = |key: &str| {
        let status = |at: &String| place.run(&["status", "--pool", at, "--key-file", key]).code;
        addresses.each_ref().map(|at| status(at) == Some(0))
    };
    let read_again = |wanted: [bool; 3], key: &str| {
        for server in &served {
            server.running.signal(Signal::HUP);
        }
        let ends = Instant::now() + PATIENCE;
        while let_in(key) != wanted {
            assert!(Instant::now() < ends, "{key} is let in: {:?}", let_in(key));
        }
    };
    assert_eq!(let_in("web.key"), [true; 3]);

    // Everybody believes both operators; then everybody has a key of the new one.
    let new = public(&made(&place, &["operator", "new.key"]));
    std::fs::copy(place.path("batch.key"), place.path("stolen.key")).unwrap();
    for file in servers.iter().chain(&clients) {
        keygen(&place, &["trust", file, &new]);
    }
    let args = ["client", "probe.key", "probe", "--operator", "new.key"];
    keygen(&place, &args);
    keygen(&place, &["trust", "probe.key", &old]);
    read_again([true; 3], "probe.key");
    let rotate = |file: &str| made(&place, &["rotate", file, "--operator", "new.key"]);
    for file in servers {
        rotate(file);
    }
    let before = clients.map(|file| rotate(file)["before"].as_str().unwrap().to_string());
    // Nobody believes the old one, and the key that may have been stolen ends at once.
    for file in servers {
        keygen(&place, &["revoke", file, &before[0]]);
        keygen(&place, &["distrust", file, &old]);
    }
    for file in clients {
        keygen(&place, &["distrust", file, &old]);
    }
    read_again([false; 3], "stolen.key");
    assert_eq!(let_in("batch.key"), [true; 3]);
    assert_eq!(let_in("web.key"), [true; 3]);
    // The program was shown out with it, and is let in by the new one.
    let ends = Instant::now() + PATIENCE;
    let refused = || {
        let args = ["status", "--json", "--key-file", "new.key", "--pool"];
        let status = place.run(&[&args[..], &[&addresses.join(",")]].concat());
        status.out.matches("\"revoked\"").count()
    };
    while refused() == 0 {
        assert!(Instant::now() < ends, "nobody was shown out");
    }
    go_on(&place, running);
    for server in served {
        assert_eq!(server.stop().code, Some(0));
    }
}

/// Of a process that has a key, its own user can read no memory: what the kernel shows of it is root's.
#[test]
fn a_process_with_a_key_is_hidden_from_its_user() {
    if !rustix::process::geteuid().is_root() {
        muninn_testing::skip("only root can be another user");
        return;
    }
    const NOBODY: u32 = 65_534;
    let place = place();
    let open = |path: &Path| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    };
    open(&place.path("."));
    let copy = place.path("muninn");
    std::fs::copy(BINARY, &copy).unwrap();
    open(&copy);
    let command = |args: &[&str]| {
        let mut command = place.command_of(&copy, args);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    let made = Running::start(command(&["keygen", "key"])).end();
    assert_eq!(made.code, Some(0), "{}", made.err);
    let owner_of = |key: &[&str]| {
        let args = ["serve", "--memory", "8MiB", "--socket", "m.sock", "--json"];
        let served = Served::start(command(&[&args[..], key].concat()));
        let about = std::fs::metadata(format!("/proc/{}/environ", served.running.pid()));
        let owner = about.unwrap().uid();
        assert_eq!(served.stop().code, Some(0));
        owner
    };
    assert_eq!(owner_of(&[]), NOBODY);
    assert_eq!(owner_of(&["--key-file", "key"]), 0);
}
