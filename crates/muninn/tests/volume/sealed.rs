//! Sealed pages: what a server has of a program's memory, and what becomes of programs that fork.

use crate::common::{Place, Served, place};
use crate::harness::{
    LOCAL, PATIENCE, Run, SIZE, cannot_run, checker, program, run_far, serve, start,
};
use crate::lies::spoil;
use crate::pools::pool;
use muninn_testing::skip;
use muninn_types::SplitMix64;
use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::FileExt;

/// Pages with a sentence in each, of which most are far, until a file is there; then all are looked at.
const PROGRAM: &str = r#"
import mmap, os, sys, time
size = 48 << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
line = lambda n: ("a " + "page" + " of the program, number %08d; " % n).encode() * 16
for n in range(size >> 12):
    memory[n << 12 : (n << 12) + len(line(n))] = line(n)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for n in range(size >> 12):
    assert memory[n << 12 : (n << 12) + len(line(n))] == line(n), n
print("right")
"#;

const SENTENCE: &[u8] = b"a page of the program, number ";

/// How often the sentence is in a process's memory. What cannot be read is left out, and tells how much
/// could be.
fn sentences_in(pid: u64) -> (usize, u64) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let (mut found, mut read) = (0, 0);
    let mut piece = vec![0; 1 << 20];
    for line in maps.lines() {
        let (range, _) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let (from, to) = (number(from), number(to));
        for at in (from..to).step_by(piece.len()) {
            let len = piece.len().min((to - at) as usize);
            // A sentence that lies across two pieces is not needed: there are many in each page.
            let Ok(len) = memory.read_at(&mut piece[..len], at) else {
                continue;
            };
            read += len as u64;
            let bytes = &piece[..len];
            let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'a');
            found += starts
                .filter(|(at, _)| bytes[*at..].starts_with(SENTENCE))
                .count();
        }
    }
    (found, read)
}

fn hold(place: &Place, server: &Served, options: &[&str], go_on: &str) -> Run {
    let at = server.tcp();
    let all = [&["--local", "16MiB", "--pool", &at], options].concat();
    start(place, &all, &["python3", "-c", PROGRAM, go_on])
}

/// What the server has while most of the program's pages are there; the program then finds all of them.
fn seen_by_the_server(options: &[&str]) -> Option<usize> {
    if cannot_run() || program(&["python3"]).is_none() {
        return None;
    }
    let place = place();
    let server = serve(&place, "256MiB");
    let sealed = options.contains(&"--seal");
    Some(seen_by(&place, &server, options, sealed))
}

fn seen_by(place: &Place, server: &Served, options: &[&str], sealed: bool) -> usize {
    let go_on = place.path("go-on");
    let run = hold(place, server, options, go_on.to_str().unwrap());
    run.until_far(6000);
    let (found, read) = sentences_in(server.listening["pid"].as_u64().unwrap());
    assert!(read > 20 << 20, "only {read} bytes of the server were seen");
    std::fs::write(&go_on, "").unwrap();
    let ran = run.end();
    ran.assert_good_and_far();
    assert_eq!(ran.out, "right\n");
    assert_eq!(ran.report["sealed"], sealed, "{ran:#?}");
    found
}

#[test]
fn a_server_cannot_read_what_it_keeps() {
    if let Some(found) = seen_by_the_server(&["--seal"]) {
        assert_eq!(found, 0, "sentences of the program are at the server");
    }
}

/// So the test above looks in the right place.
#[test]
fn it_can_without_a_seal() {
    if let Some(found) = seen_by_the_server(&["--no-seal"]) {
        assert!(found > 10_000, "{found} sentences are at the server");
    }
}

/// A server of this machine is not sealed against, unless somebody asks for it.
#[test]
fn by_default_pages_are_not_sealed_for_this_machine() {
    if let Some(found) = seen_by_the_server(&[]) {
        assert!(found > 10_000, "{found} sentences are at the server");
    }
}

/// An address of this machine by which others reach it, if it has one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: this asks which way it would go.
    socket.connect("198.51.100.1:9").ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_loopback()).then_some(own)
}

#[test]
fn by_default_they_are_for_other_machines() {
    if cannot_run() || program(&["python3"]).is_none() {
        return;
    }
    let Some(own) = own_address() else {
        skip("this machine has no address by which others reach it");
        return;
    };
    let place = place();
    let listen = format!("{own}:0");
    let server = Served::start(place.command(&[
        "serve",
        "--socket",
        "m.sock",
        "--listen",
        &listen,
        "--json",
        "--memory",
        "256MiB",
        "--lease",
        "3s",
        "--insecure",
    ]));
    let found = seen_by(&place, &server, &[], true);
    assert_eq!(found, 0, "sentences of the program are at the server");
}

/// Writes back what a server had before: its pages as they were, each at its own place.
fn roll_back(pid: u64, before: &[(String, u64, Vec<u8>)]) -> usize {
    let mut changed = 0;
    for (name, at, page) in before {
        let path = format!("/proc/{pid}/fd/{name}");
        let Ok(memory) = File::options().read(true).write(true).open(path) else {
            continue;
        };
        let mut now = vec![0; 4096];
        if memory.read_exact_at(&mut now, *at).is_ok() && now != *page {
            changed += usize::from(memory.write_all_at(page, *at).is_ok());
        }
    }
    changed
}

fn pages_of(pid: u64) -> Vec<(String, u64, Vec<u8>)> {
    let mut pages = Vec::new();
    for file in std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
    {
        let target = std::fs::read_link(file.path()).unwrap_or_default();
        if !target.to_string_lossy().contains("memfd:") {
            continue;
        }
        let Ok(memory) = File::open(file.path()) else {
            continue;
        };
        let len = memory.metadata().map_or(0, |meta| meta.len());
        for at in (0..len).step_by(4096) {
            let mut page = vec![0; 4096];
            let read = memory.read_exact_at(&mut page, at);
            if read.is_ok() && page.iter().any(|byte| *byte != 0) {
                let name = file.file_name().to_string_lossy().into_owned();
                pages.push((name, at, page));
            }
        }
    }
    pages
}

/// The only server gives old pages back: the program ends with that message, and with nothing wrong
/// said before.
#[test]
fn an_old_page_is_the_end() {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "1GiB");
    let at = server.tcp();
    let options = ["--local", LOCAL, "--pool", &at, "--seal"];
    // Without forks: a child that ends is something the program tells of itself.
    let words = [checker(), "pressure", "--seconds", "3600", "--size", SIZE];
    let words = [&words[..], &["--without", "fork"]].concat();
    let run = start(&place, &options, &words);
    let first = run.until_far(4000).evicted_written;
    let pid = server.listening["pid"].as_u64().unwrap();
    let before = pages_of(pid);
    let job = run.job();
    // Once all of it was written anew, and more.
    run.until("pages are written anew", || {
        job.total().evicted_written > first + 40_000
    });
    let began = std::time::Instant::now();
    while run.is_alive() && began.elapsed() < PATIENCE {
        roll_back(pid, &before);
    }
    let ran = run.end();
    assert_ne!(ran.code, 0, "{ran:#?}");
    assert!(
        ran.err.contains("contents that were never sent"),
        "{ran:#?}"
    );
    assert!(!ran.out.contains("wrong"), "{ran:#?}");
}

/// One of two servers has a bit of every page changed: the program goes on with what the other has.
#[test]
fn a_page_that_does_not_open_is_asked_of_the_other() {
    if cannot_run() {
        return;
    }
    let place = place();
    let pool = pool(&place, 2, "1GiB");
    let at = pool.addresses();
    let options = [
        "--local", LOCAL, "--pool", &at, "--layout", "mirror", "--seal",
    ];
    let words = [checker(), "pressure", "--seconds", "10", "--size", SIZE];
    let run = start(&place, &options, &words);
    run.until_far(4000);
    let job = run.job();
    run.until("all copies are there", || job.total().extents_degraded == 0);
    let pid = pool.servers[0].listening["pid"].as_u64().unwrap();
    let changed = spoil(pid, &mut SplitMix64::new(11));
    assert!(changed > 1000, "{changed} pages");
    let ran = run.end();
    ran.assert_good_and_far();
    assert_eq!(ran.report["sealed"], true, "{ran:#?}");
}

fn is_right(words: &[&str], options: &[&str]) {
    if cannot_run() {
        return;
    }
    let place = place();
    let server = serve(&place, "1GiB");
    let at = server.tcp();
    let all = [&["--local", LOCAL, "--pool", &at, "--seal"], options].concat();
    let words = [&[checker()], words, &["--size", SIZE]].concat();
    let ran = run_far(&place, &all, &words);
    ran.assert_good_and_far();
    assert_eq!(ran.report["sealed"], true, "{ran:#?}");
}

#[test]
fn children_read_what_their_parents_sealed() {
    is_right(&["fork"], &[]);
}

#[test]
fn a_line_of_children_does() {
    is_right(&["fork-many"], &[]);
}

#[test]
fn everything_at_once() {
    is_right(&["pressure", "--seconds", "5"], &[]);
}

#[test]
fn everything_at_once_where_pages_are_copied() {
    is_right(&["pressure", "--seconds", "5"], &["--no-move"]);
}

/// Without `exec`: the signal by which a program is made to stand still may reach what it has become.
#[test]
fn children_where_pages_are_copied() {
    is_right(&["fork-many"], &["--no-move"]);
}
