//! Nothing hangs: whoever dies, is stopped or is full, the processes are gone or go on, a message
//! says what happened, and the pool has its memory back.

use crate::common::{Place, Served, place};
use crate::harness::{
    LOCAL, PATIENCE, Run, SIZE, cannot_run, checker, held, serve, start, until_returned,
};
use muninn_sys::proc::ProcessId;
use muninn_sys::signal::PidFd;
use muninn_types::Bytes;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Pages that have gone far before something happens.
const FAR: u64 = 4000;

/// A program that works on far memory until it is ended.
fn endless(place: &Place, pool: Option<&str>) -> Run {
    let options = match pool {
        Some(pool) => vec!["--local", LOCAL, "--pool", pool],
        None => vec!["--local", LOCAL],
    };
    let words = [checker(), "pressure", "--seconds", "3600", "--size", SIZE];
    let run = start(place, &options, &words);
    run.until_far(FAR);
    run
}

fn kill(pid: u32, signal: Signal) {
    PidFd::open(pid as i32)
        .and_then(|process| process.send(signal))
        .unwrap();
}

fn until_gone(pids: &[u32]) {
    let start = Instant::now();
    let left = || {
        pids.iter()
            .filter(|pid| ProcessId::of(**pid).is_some_and(|who| who.is_alive()))
    };
    while left().count() > 0 {
        assert!(
            start.elapsed() < PATIENCE,
            "still there: {:?}",
            left().collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All processes below one.
fn family(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
    let mut all = Vec::new();
    for text in children.map_while(Result::ok) {
        for child in text.split_whitespace().filter_map(|word| word.parse().ok()) {
            all.push(child);
            all.extend(family(child));
        }
    }
    all
}

fn server_of(run: &Run) -> u32 {
    let is_server = |pid: &&u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').any(|word| word == "serve")
    };
    let family = family(run.pid());
    *family.iter().find(is_server).expect("an embedded server")
}

#[test]
fn the_program_is_killed() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "512MiB");
    let run = endless(&place, Some(&server.tcp()));
    assert!(held(&place, &server) > Bytes::ZERO);
    let all = family(run.pid());
    kill(run.programs()[0], Signal::KILL);
    let ran = run.end();
    assert_eq!(ran.code, 128 + 9, "{ran:#?}");
    until_gone(&all);
    until_returned(&place, &server);
}

#[test]
fn the_launcher_is_killed() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "512MiB");
    let run = endless(&place, Some(&server.tcp()));
    let programs = run.programs();
    run.signal(Signal::KILL);
    assert_eq!(run.end().code, 128 + 9);
    until_gone(&programs);
    until_returned(&place, &server);
    // With a server of its own, that goes too.
    let run = endless(&place, None);
    let all = [run.programs(), vec![server_of(&run)]].concat();
    run.signal(Signal::KILL);
    run.end();
    until_gone(&all);
}

#[test]
fn the_embedded_server_is_killed() {
    if cannot_run() {
        return;
    }
    let place = place();
    let run = endless(&place, None);
    let all = family(run.pid());
    kill(server_of(&run), Signal::KILL);
    let ran = run.end();
    assert_ne!(ran.code, 0, "{ran:#?}");
    assert!(
        ran.err.contains("muninn: "),
        "it should say what happened: {ran:#?}"
    );
    assert!(
        ran.err.contains("server"),
        "it should name the server: {ran:#?}"
    );
    until_gone(&all);
}

#[test]
fn a_server_on_the_network_is_killed() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "512MiB");
    let pool = server.tcp();
    let run = endless(&place, Some(&pool));
    let all = family(run.pid());
    server.running.signal(Signal::KILL);
    let ran = run.end();
    assert_ne!(ran.code, 0, "{ran:#?}");
    let port = pool.rsplit(':').next().unwrap();
    assert!(ran.err.contains(port), "it should name {pool}: {ran:#?}");
    until_gone(&all);
}

/// What a stopped server's client does: it goes on when the server does, or it has ended and said why.
fn stop_server(server: &Served, run: Run, goes_on: bool) {
    let pid = server.listening["pid"].as_u64().unwrap() as u32;
    let all = family(run.pid());
    let job = run.job();
    kill(pid, Signal::STOP);
    if goes_on {
        let before = job.total().evicted;
        kill(pid, Signal::CONT);
        let start = Instant::now();
        while run.is_alive() && job.total().evicted < before + FAR {
            assert!(start.elapsed() < PATIENCE, "neither ended nor going on");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            run.is_alive(),
            "a short pause of the server ended it: {:#?}",
            run.end()
        );
        run.signal(Signal::TERM);
        assert_eq!(run.end().code, 128 + 15);
    } else {
        let ran = run.end();
        kill(pid, Signal::CONT);
        assert_ne!(ran.code, 0, "{ran:#?}");
        assert!(
            ran.err.contains("muninn: "),
            "it should say what happened: {ran:#?}"
        );
    }
    until_gone(&all);
}

#[test]
fn a_server_pauses() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "512MiB");
    stop_server(&server, endless(&place, Some(&server.tcp())), true);
    until_returned(&place, &server);
}

#[test]
fn a_server_is_stopped_for_good() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "512MiB");
    stop_server(&server, endless(&place, Some(&server.tcp())), false);
}

#[test]
fn the_pool_is_full() {
    if cannot_run() {
        return;
    }
    let place = place();
    // A quarter of what would have to go far.
    let server = serve(&place, "16MiB");
    let words = [checker(), "fill", "--size", "96MiB"];
    let run = start(
        &place,
        &["--local", "32MiB", "--pool", &server.tcp()],
        &words,
    );
    let all = family(run.pid());
    let ran = run.end();
    if ran.code == 0 {
        // It went on above its limit, with every byte right.
        assert!(ran.out.starts_with("ok fill"), "{ran:#?}");
    }
    assert!(
        ran.err.contains("muninn: "),
        "it should say what happened: {ran:#?}"
    );
    until_gone(&all);
    until_returned(&place, &server);
}

#[test]
fn ctrl_c() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "512MiB");
    let run = endless(&place, Some(&server.tcp()));
    let all = family(run.pid());
    run.signal_group(Signal::INT);
    let ran = run.end();
    assert_eq!(ran.code, 128 + 2, "{ran:#?}");
    until_gone(&all);
    until_returned(&place, &server);
}
