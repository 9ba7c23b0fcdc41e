//! Flags win over variables, variables over the file, the file over what is usual.

use crate::common::{Place, Served, place};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

const FILE: &str = "[serve]\nmemory = \"4MiB\"\nname = \"filed\"\nlease = \"3s\"\n\
                    socket = [\"filed.sock\"]\n";

fn started(place: &Place, variables: &[(&str, &str)], flags: &[&str]) -> Served {
    let args = [&["serve", "--json", "--config", "my.toml"], flags].concat();
    let mut command = place.command(&args);
    command.envs(variables.iter().copied());
    Served::start(command)
}

#[test]
fn each_source_wins_over_the_one_below() {
    let place = place();
    place.write("my.toml", FILE);
    let said = started(&place, &[], &[]).listening.clone();
    assert_eq!(said["name"], "filed");
    assert_eq!(said["memory_bytes"], 4 << 20);
    assert_eq!(said["lease_ms"], 3000);
    assert_eq!(said["listen"][0], "unix:filed.sock");

    let variables = [("MUNINN_NAME", "variable"), ("MUNINN_LEASE", "4s")];
    let said = started(&place, &variables, &[]).listening.clone();
    assert_eq!(
        (&said["name"], &said["lease_ms"]),
        (&"variable".into(), &4000.into())
    );
    assert_eq!(said["memory_bytes"], 4 << 20);

    let flags = ["--name", "flag", "--socket", "flag.sock"];
    let said = started(&place, &variables, &flags).listening.clone();
    assert_eq!(
        (&said["name"], &said["lease_ms"]),
        (&"flag".into(), &4000.into())
    );
    assert_eq!(said["listen"][0], "unix:flag.sock");
    assert_eq!(said["memory_bytes"], 4 << 20);
}

#[test]
fn a_switch_in_the_file_can_be_turned_off_again() {
    let place = place();
    let text = "[serve]\nmemory = \"4MiB\"\nlisten = [\"0.0.0.0:0\"]\ninsecure = true\n";
    place.write("my.toml", text);
    assert_eq!(started(&place, &[], &[]).stop().code, Some(0));
    let ended = place.run(&["serve", "--config", "my.toml", "--insecure=false"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .err
            .starts_with("muninn: refusing to listen at 0.0.0.0:0 without a key")
    );
    let mut command = place.command(&["serve", "--config", "my.toml"]);
    command.env("MUNINN_INSECURE", "no");
    assert_eq!(crate::common::Running::start(command).end().code, Some(2));
}

#[test]
fn clients_find_their_pool_in_the_file() {
    let place = place();
    place.run(&["keygen", "key"]);
    let served = place.serve(&["--memory", "4MiB", "--key-file", "key"]);
    let text = format!(
        "[client]\npool = [\"{}\"]\nkey-file = \"key\"\n",
        served.tcp()
    );
    place.write("my.toml", &text);
    let ended = place.run(&["status", "--config", "my.toml"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut command = place.command(&["status", "--config", "my.toml"]);
    command.env("MUNINN_POOL", "unix:nowhere.sock");
    let ended = crate::common::Running::start(command).end();
    assert!(
        ended
            .out
            .starts_with("unix:nowhere.sock\n  cannot connect to "),
        "{ended:?}"
    );
    assert_eq!(ended.code, Some(3));
}

#[test]
fn the_file_beside_the_command_is_found() {
    let place = place();
    place.write("muninn.toml", "[serve]\nmemory = \"lots\"\n");
    let mut command = place.command(&["serve"]);
    command.env_remove("MUNINN_CONFIG");
    let ended = crate::common::Running::start(command).end();
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (
            Some(2),
            "muninn: muninn.toml, line 2: 'lots' is not a size: write a number and a unit, such as \
             512MiB or 4GiB\n"
        )
    );
}

#[test]
fn a_misspelt_key_is_an_error_that_names_it() {
    let place = place();
    place.write("my.toml", "[client]\nkeyfile = \"key\"\n");
    let ended = place.run(&["status", "--config", "my.toml"]);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (
            Some(2),
            "muninn: my.toml, line 2: unknown field 'keyfile', expected 'pool' or 'key-file'\n"
        )
    );
    let ended = place.run(&["status", "--config", "none.toml"]);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (
            Some(2),
            "muninn: cannot read the configuration file none.toml: No such file or directory (os \
             error 2); name another with --config\n"
        )
    );
}

/// HOME stays when a program becomes another user; what is in there is none of his business.
#[test]
fn a_home_of_somebody_else_is_passed_over() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can become somebody else");
        return;
    }
    // A place that others may go to, with a copy of the program.
    let public = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(public.path(), open).unwrap();
    let program = public.path().join("muninn");
    std::fs::copy(env!("CARGO_BIN_EXE_muninn"), &program).unwrap();
    let closed = public.path().join("closed");
    std::fs::create_dir_all(closed.join(".config/muninn")).unwrap();
    std::fs::write(closed.join(".config/muninn/muninn.toml"), "misspelt = 1\n").unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let ended = std::process::Command::new(&program)
        .args(["status", "--pool", "127.0.0.1:1"])
        .current_dir(public.path())
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("MUNINN_CONFIG")
        .env("HOME", &closed)
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("gave no status"), "{said}");
    assert!(!said.contains("configuration"), "{said}");
}
