//! Builds the server of one's own, runs it and a nic, and calls its functions at every place.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server program and waits for the line that says where it listens.
fn start(args: &[&str]) -> (Process, Vec<String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_own-server"))
        .args(["--config", "/dev/null"])
        .args(args)
        .arg("--json")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    let process = Process(child);
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    let listen = event["listen"].as_array().unwrap().iter();
    let listen = listen.map(|at| at.as_str().unwrap().to_string()).collect();
    (process, listen)
}

fn client(args: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_own-client");
    let ended = Command::new(program).args(args).output().unwrap();
    assert!(ended.status.success(), "{args:?}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

fn socket_in(dir: &Path) -> String {
    dir.join("own.sock").display().to_string()
}

#[test]
fn ones_own_functions_run_at_every_place() {
    let dir = tempfile::tempdir().unwrap();
    let socket = socket_in(dir.path());
    let serve = ["serve", "--memory", "64MiB", "--socket", &socket];
    let (_server, at) =
        start(&[&serve[..], &["--listen", "127.0.0.1:0", "--lease", "60s"]].concat());
    let nic = ["nic", "--server", &at[0], "--listen", "127.0.0.1:0"];
    let (_nic, nic_at) = start(&nic);
    for server in &at {
        for place in ["client", "server", "nic", "auto"] {
            let said = client(&[server, place, &nic_at[0]]);
            // The service ends with its only client: every run counts from zero.
            assert_eq!(said, "candidate 0 has 4 votes\n", "{place} at {server}");
        }
    }
}

#[test]
fn the_server_lists_what_it_can_run() {
    let program = env!("CARGO_BIN_EXE_own-server");
    let listed = Command::new(program).arg("wics").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("own-functions.vote version 1\n"),
        "{listed}"
    );
    assert!(
        listed.contains("own-functions.winner version 1\n"),
        "{listed}"
    );
}
