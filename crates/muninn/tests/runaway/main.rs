//! Functions that run away at a nic: what takes steps is ended alone, what takes none is ended with the
//! nic, and nobody else is hurt.
//!
//! The nic and its server are this very program, so that they have the functions below; that is why it
//! has a `main` of its own.

#[path = "../cli/common.rs"]
#[allow(dead_code)] // shared with a larger suite
mod common;

use common::{PATIENCE, Place, Running, Served, place};
use muninn_types::Bytes;
use muninn_wic::{
    CallError, Memory, Place as Where, Ran, Service, ServiceOptions, Side, WicError, WicLock, wic,
};
use std::process::ExitCode;

const LOCK: WicLock = WicLock::new(0);

/// Computes without end, one step at a time.
#[wic]
async fn spin(mem: &impl Memory) -> Result<u64, WicError> {
    let mut n = 1u64;
    while n != 0 {
        n = n.wrapping_mul(3);
    }
    mem.read::<u64>(mem.base()).await
}

/// Takes memory without end, a little at a time.
#[wic]
async fn hoard(mem: &impl Memory) -> Result<u64, WicError> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        all.push(vec![1; 1 << 16]);
        mem.read::<u64>(mem.base()).await?;
    }
}

/// Native code, in which nothing takes a step.
fn never_comes_back() -> u64 {
    let mut n = std::hint::black_box(1u64);
    while n != 0 {
        n = std::hint::black_box(n.wrapping_mul(3));
    }
    n
}

/// Takes the lock and does not come back.
#[wic]
async fn hang(mem: &impl Memory) -> Result<u64, WicError> {
    let guard = LOCK.lock(mem).await?;
    let n = never_comes_back();
    guard.unlock().await?;
    Ok(n)
}

/// Takes the lock and more memory, at once, than the nic may have.
#[wic]
async fn gorge(mem: &impl Memory, bytes: u64) -> Result<u64, WicError> {
    let guard = LOCK.lock(mem).await?;
    let all = std::hint::black_box(vec![1u8; bytes as usize]);
    guard.unlock().await?;
    Ok(all.len() as u64)
}

#[wic]
async fn add(mem: &impl Memory, to: u64) -> Result<u64, WicError> {
    mem.fetch_add(mem.base(), to).await
}

/// Whether the lock was left by one that did not give it back.
#[wic]
async fn find_orphan(mem: &impl Memory) -> Result<bool, WicError> {
    let guard = LOCK.lock(mem).await?;
    let orphaned = guard.is_orphaned();
    guard.unlock().await?;
    Ok(orphaned)
}

/// A server, and a nic with `args` beside it.
fn beside(place: &Place, args: &[&str]) -> (Served, Running, String) {
    let own = std::env::current_exe().unwrap();
    let serve = ["serve", "--socket", "m.sock", "--listen", "127.0.0.1:0"];
    let more = ["--json", "--memory", "64MiB", "--lease", "60s"];
    let server = Served::start(place.command_of(&own, &[&serve[..], &more].concat()));
    let to = server.listening["listen"][0].as_str().unwrap();
    let nic = ["nic", "--server", to, "--listen", "127.0.0.1:0", "--json"];
    let nic = Running::start(place.command_of(&own, &[&nic[..], args].concat()));
    let nic_at = nic.json()["listen"][0].as_str().unwrap().to_string();
    (server, nic, nic_at)
}

fn open(server: &Served, nic_at: &str, name: &str, at: Where) -> Service {
    let mut options = ServiceOptions::new(&server.tcp(), name, Bytes::mib(1));
    options.session.deadline = PATIENCE;
    options.tuning.deadline = PATIENCE;
    Service::open(options.place(at).nic(nic_at)).unwrap()
}

fn what_takes_steps_is_ended_alone() {
    let place = place();
    let args = ["--wic-steps", "50000", "--stuck", "60s", "--lease", "60s"];
    let (server, nic, nic_at) = beside(&place, &args);
    let wild = open(&server, &nic_at, "wild", Where::Nic);
    let calm = open(&server, &nic_at, "calm", Where::Nic);
    assert_eq!(calm.run(add, 5), Ok(0));
    for _ in 0..3 {
        let spun = wild.run(spin, ()).unwrap_err();
        assert_eq!(spun, CallError::Failed(WicError::Steps(50_000)));
        let hoarded = wild.run(hoard, ()).unwrap_err();
        assert_eq!(hoarded, CallError::Failed(WicError::Allocated(64 << 20)));
    }
    // The same nic, the same thread: others are served as before.
    assert_eq!(calm.run(add, 1), Ok(5));
    assert_eq!(wild.run(add, 1), Ok(0));
    nic.signal(rustix::process::Signal::TERM);
    assert_eq!(nic.end().code, Some(0));
}

/// A call that ends the nic: its client is told once the lease is over, its lock is freed, and everybody
/// else goes on.
fn ends_the_nic(args: &[&str], run_away: impl FnOnce(&Service) -> CallError) -> common::Ended {
    let place = place();
    let (server, nic, nic_at) = beside(&place, args);
    let wild = open(&server, &nic_at, "wild", Where::Nic);
    let calm = open(&server, &nic_at, "calm", Where::Server);
    assert_eq!(calm.run(add, 5), Ok(0));
    let error = run_away(&wild);
    match &error {
        CallError::Lost { side, ran, .. } => assert_eq!((*side, *ran), (Side::Nic, Ran::Maybe)),
        other => panic!("{other}"),
    }
    let ended = nic.end();
    assert_eq!(calm.run(add, 1), Ok(5));
    wild.set_place(Where::Server);
    assert_eq!(wild.run(find_orphan, ()), Ok(true));
    assert_eq!(wild.run(find_orphan, ()), Ok(false));
    assert_eq!(server.stop().code, Some(0));
    ended
}

fn what_does_not_come_back_is_ended_with_the_nic() {
    let ended = ends_the_nic(&["--stuck", "500ms", "--lease", "4s"], |wild| {
        wild.run(hang, ()).unwrap_err()
    });
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended
            .err
            .contains("a function has not come back for 500ms; the nic ends"),
        "{}",
        ended.err
    );
}

fn what_takes_too_much_at_once_is_ended_with_the_nic() {
    let args = ["--memory-max", "256MiB", "--stuck", "60s", "--lease", "4s"];
    let ended = ends_the_nic(&args, |wild| wild.run(gorge, 1 << 30).unwrap_err());
    // Aborted: there is nothing to go on with.
    assert_eq!(ended.code, None, "{ended:?}");
    assert!(ended.err.contains("allocation"), "{}", ended.err);
}

fn main() -> ExitCode {
    let command = std::env::args().nth(1);
    if matches!(command.as_deref(), Some("serve" | "nic")) {
        return muninn::server::main();
    }
    let tests: [(&str, fn()); 3] = [
        (
            "what_takes_steps_is_ended_alone",
            what_takes_steps_is_ended_alone,
        ),
        (
            "what_does_not_come_back_is_ended_with_the_nic",
            what_does_not_come_back_is_ended_with_the_nic,
        ),
        (
            "what_takes_too_much_at_once_is_ended_with_the_nic",
            what_takes_too_much_at_once_is_ended_with_the_nic,
        ),
    ];
    let mut failed = 0;
    for (name, test) in tests {
        let ok = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        failed += usize::from(!ok);
    }
    let passed = tests.len() - failed;
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {result}. {passed} passed; {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
