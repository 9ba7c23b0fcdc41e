//! A key that another process has: it opens sessions for its descendants, and nothing else for anybody.

use crate::common::*;
use muninn_net::{HolderAddress, Key, KeyHolder, Lock, Observer, Pool, PoolOptions};
use muninn_proto::secure::{Operator, Role};
use muninn_server::ServerConfig;
use muninn_sys::socket::{Door, Link};
use muninn_types::Bytes;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

fn name() -> String {
    format!("muninn-test-{:016x}", muninn_sys::rand::u64())
}

/// Answers with whatever key is in there.
fn hold(key: &Arc<Mutex<Key>>, path: Option<PathBuf>) -> HolderAddress {
    let address = HolderAddress {
        name: name(),
        path: path.clone().unwrap_or_default(),
    };
    let holder = KeyHolder::new(&address.name, path.as_deref()).unwrap();
    let key = Arc::clone(key);
    std::thread::spawn(move || holder.serve(move || key.lock().unwrap().clone()));
    address
}

fn pool(at: &str, key: Key) -> Result<Pool, muninn_net::NetError> {
    Pool::connect(at, PoolOptions { key, ..options() })
}

fn works(at: &str, key: Key) {
    let pool = pool(at, key).unwrap();
    let grant = pool.grant(Bytes::mib(1)).unwrap();
    let (page, mut found) = (pattern(7, 4096), vec![0; 4096]);
    pool.write(&grant, 4096, &page).unwrap();
    pool.read(&grant, 4096, &mut found).unwrap();
    assert!(found == page);
}

#[test]
fn a_held_key_opens_sessions_and_nothing_else() {
    let operator = Operator::from_seed(muninn_sys::rand::bytes());
    let sign = |role, name| {
        let secret = muninn_sys::rand::bytes();
        Key::identity(operator.sign(role, name, None, secret).unwrap())
    };
    let shared = Key::from_file_contents(b"the key of this very pool").unwrap();
    let both = [
        (shared.clone(), shared),
        (sign(Role::Server, "rack-1"), sign(Role::Client, "batch")),
    ];
    for (server, client) in both {
        let lock = client.lock();
        let local = Local::start(ServerConfig {
            key: server,
            ..config(Bytes::mib(16))
        });
        let current = Arc::new(Mutex::new(client.clone()));
        let dir = tempfile::tempdir().unwrap();
        let held = hold(&current, Some(dir.path().join("holder")));
        for at in [&local.tcp, &local.unix] {
            works(&at.to_string(), held.clone().key(lock));
            // As one who does not find the name, in a network namespace of its own.
            let by_path = HolderAddress {
                name: name(),
                ..held.clone()
            };
            works(&at.to_string(), by_path.key(lock));
            // Who has the key of a pool may look at it, and with a shared key drain it.
            let options = muninn_net::SessionOptions {
                key: held.clone().key(lock),
                ..options()
            };
            let refused = Observer::connect(at, &options).unwrap_err().to_string();
            assert!(
                refused.contains("may have memory, and nothing else"),
                "{refused}"
            );
        }
        // Another kind of key than was said.
        let at = local.tcp.to_string();
        *current.lock().unwrap() = Key::none();
        let refused = pool(&at, held.clone().key(lock)).unwrap_err().to_string();
        assert!(refused.contains("another kind of key"), "{refused}");
        // One that was exchanged is used from then on, wrong or right.
        *current.lock().unwrap() = match lock {
            Lock::Shared => Key::from_file_contents(b"the key of another pool").unwrap(),
            _ => {
                let other = Operator::from_seed(muninn_sys::rand::bytes());
                let own = other.sign(Role::Client, "batch", None, muninn_sys::rand::bytes());
                Key::identity(own.unwrap())
            }
        };
        assert!(pool(&at, held.clone().key(lock)).is_err());
        *current.lock().unwrap() = client;
        works(&at, held.key(lock));
    }
}

/// Run by the test below: has a key, and answers for it.
#[test]
fn child_with_a_key() {
    let Some(role) = role() else { return };
    if role[0] != "holder" {
        return;
    }
    let key = Key::from_file_contents(b"the key of this very pool").unwrap();
    let holder = KeyHolder::new(&role[1], None).unwrap();
    std::thread::spawn(move || holder.serve(move || key.clone()));
    say("ready");
    while listen().is_some() {}
}

/// Run by the test below: has a key, and opens sessions by it, time after time.
#[test]
fn child_that_uses_its_own_key() {
    let Some(role) = role() else { return };
    if role[0] != "user" {
        return;
    }
    let key = Key::from_file_contents(b"the key of this very pool").unwrap();
    let (lock, address) = (key.lock(), hold(&Arc::new(Mutex::new(key)), None));
    let local = Local::start(ServerConfig {
        key: Key::from_file_contents(b"the key of this very pool").unwrap(),
        ..config(Bytes::mib(16))
    });
    say(&address.name);
    while listen().is_some() {
        let opened = pool(&local.tcp.to_string(), address.clone().key(lock));
        say(&opened.map_or_else(|why| why.to_string(), |_| "opened".to_string()));
    }
}

/// The name of a holder can be read in `/proc/net/unix`, by everybody.
#[test]
fn a_crowd_at_a_holders_door_keeps_nobody_out() {
    let mut process = Process::start("held::child_that_uses_its_own_key", &["user"]);
    let name = process.hear();
    let (stop, knocked) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut held = std::collections::VecDeque::new();
                while !stop.load(Relaxed) {
                    held.extend(Link::connect(name.as_bytes()));
                    knocked.fetch_add(1, Relaxed);
                    if held.len() > 100 {
                        held.pop_front();
                    }
                }
            });
        }
        let heard: Vec<String> = (0..10)
            .map(|_| {
                process.tell("open");
                process.hear()
            })
            .collect();
        stop.store(true, Relaxed);
        println!("{} knocked", knocked.load(Relaxed));
        assert_eq!(heard, ["opened"; 10]);
    });
}

/// Run by the test below, as another user.
#[test]
fn child_of_another_user_at_a_door() {
    let Some(role) = role() else { return };
    if role[0] != "squatter" {
        return;
    }
    let door = Door::open(role[1].as_bytes()).unwrap();
    say("ready");
    while let Some(_link) = door.wait() {}
}

/// A launcher that has ended leaves its name to whoever wants it.
#[test]
fn a_door_of_another_user_is_not_believed() {
    if !rustix::process::geteuid().is_root() {
        muninn_testing::skip("only root can be another user");
        return;
    }
    let (name, as_stranger) = (name(), ["setpriv", "--reuid", "61234", "--clear-groups"]);
    let own = std::env::current_exe().unwrap();
    let may = std::process::Command::new(as_stranger[0])
        .args(&as_stranger[1..])
        .args(["test", "-x"])
        .arg(&own)
        .status();
    if !may.is_ok_and(|status| status.success()) {
        muninn_testing::skip("another user cannot run this test's program");
        return;
    }
    let entry = "held::child_of_another_user_at_a_door";
    let process = Process::start_under(&as_stranger, entry, &["squatter", &name]);
    assert_eq!(process.hear(), "ready");
    let refused = Link::connect(name.as_bytes()).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::PERM);
}

#[test]
fn only_descendants_are_answered() {
    let name = name();
    let process = Process::start("held::child_with_a_key", &["holder", &name]);
    assert_eq!(process.hear(), "ready");
    let local = Local::start(ServerConfig {
        key: Key::from_file_contents(b"the key of this very pool").unwrap(),
        ..config(Bytes::mib(16))
    });
    // We are its parent.
    let path = PathBuf::new();
    let held = HolderAddress { name, path };
    let refused = pool(&local.tcp.to_string(), held.key(Lock::Shared));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("does not answer"), "{refused}");
}
