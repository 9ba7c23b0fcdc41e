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

/// Run by the test below, as another user.
#[test]
fn child_of_another_user() {
    let Some(role) = role() else { return };
    if role[0] != "stranger" {
        return;
    }
    let server = Server::start(ServerConfig {
        listen: vec![Address::unix(&role[1]).unwrap()],
        ..config(Bytes::mib(16))
    })
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&role[1], mode).unwrap();
    say("ready");
    while listen().is_some() {}
    server.stop();
}

/// Who listens at a socket is asked of the kernel, not of the file: that may have been exchanged since.
#[test]
fn a_server_of_another_user_is_not_believed_where_none_was_named() {
    if !rustix::process::geteuid().is_root() {
        muninn_testing::skip("only root can be another user");
        return;
    }
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), mode).unwrap();
    let socket = dir.path().join("s");
    let path = socket.display().to_string();
    let own = std::env::current_exe().unwrap();
    let as_stranger = ["setpriv", "--reuid", "61234", "--clear-groups"];
    let may = std::process::Command::new(as_stranger[0])
        .args(&as_stranger[1..])
        .args(["test", "-x"])
        .arg(&own)
        .status();
    if !may.is_ok_and(|status| status.success()) {
        muninn_testing::skip("another user cannot run this test's program");
        return;
    }
    let entry = "namespaces::child_of_another_user";
    let process = Process::start_under(&as_stranger, entry, &["stranger", &path]);
    assert_eq!(process.hear(), "ready");
    let address = Address::unix(&socket).unwrap();
    let found = muninn_net::SessionOptions {
        server: muninn_net::ServerUser::OwnOrRoot,
        ..options()
    };
    let refused = muninn_net::Observer::connect(&address, &found).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("run by user 61234, who is not trusted"),
        "{refused}"
    );
    assert!(muninn_net::ShmSession::open(&address, &found).is_err());
    // Named, it is used.
    muninn_net::Observer::connect(&address, &options()).unwrap();
}
