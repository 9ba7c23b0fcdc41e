//! A server in a namespace of its own has clients whose processes have no number there.

use crate::common::*;
use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_types::Bytes;
use muninn_wire::Transport;
use std::time::Duration;

/// Run by the test below, inside of the namespace.
#[test]
fn child_in_a_namespace() {
    let Some(role) = role() else { return };
    if role[0] != "namespace" {
        return;
    }
    let server = Server::start(ServerConfig {
        listen: vec![Address::unix(&role[1]).unwrap()],
        lease: Duration::from_secs(5),
        ..config(Bytes::mib(16))
    })
    .unwrap();
    say(&format!("{}", std::process::id()));
    while listen().is_some() {}
    server.stop();
}

#[test]
fn clients_of_another_pid_namespace_are_served() {
    let namespace = ["unshare", "--pid", "--fork", "--kill-child"];
    let mut trial = std::process::Command::new(namespace[0]);
    let may = trial.args(&namespace[1..]).arg("true").output();
    let may = may.is_ok_and(|trial| trial.status.success());
    if !may {
        muninn_testing::skip("no right to make a PID namespace");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let path = socket.display().to_string();
    let entry = "namespaces::child_in_a_namespace";
    let process = Process::start_under(&namespace, entry, &["namespace", &path]);
    assert_eq!(process.hear(), "1", "not in a namespace of its own");
    let address = Address::unix(&socket).unwrap();
    for transport in [Transport::Shm, Transport::Tcp] {
        let mut raw = Raw::open(&address, transport);
        raw.grant(4096);
    }
}
