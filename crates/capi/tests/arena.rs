//! An arena under several threads, system calls and the loss of its server.

use muninn_c::{
    CStats, muninn_arena_base, muninn_arena_close, muninn_arena_look, muninn_arena_open,
    muninn_arena_size, muninn_arena_take, muninn_error,
};
use muninn_server::{Server, ServerConfig};
use muninn_sys::socket::Address;
use muninn_sys::uffd::{Features, Userfaultfd};
use muninn_testing::skip;
use muninn_types::{Bytes, SplitMix64};
use std::ffi::{CStr, CString};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

const WORDS: usize = 3 << 20;
const THREADS: usize = 4;
/// Writes of each thread.
const STEPS: usize = 60_000;

fn possible() -> bool {
    match Userfaultfd::open(Features::MOVE, Features::NONE) {
        Ok(_) => true,
        Err(error) => {
            skip(error);
            false
        }
    }
}

fn server(dir: &tempfile::TempDir, memory: Bytes) -> (Server, String) {
    let address = Address::unix(dir.path().join("m.sock")).unwrap();
    let url = address.to_string();
    let config = ServerConfig {
        memory,
        listen: vec![address],
        keep_awake: false,
        ..ServerConfig::default()
    };
    (Server::start(config).unwrap(), url)
}

fn said() -> String {
    // SAFETY: it is never null and ends with a zero.
    unsafe { CStr::from_ptr(muninn_error()) }
        .to_string_lossy()
        .into_owned()
}

/// Threads that write into the same chunks, each its own words, and look at what they wrote; at the end the kernel
/// reads and writes all of it.
#[test]
fn threads_and_the_kernel_find_what_they_wrote() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = server(&dir, Bytes::mib(64));
    let url = CString::new(url).unwrap();
    let bytes = (WORDS * 8) as u64;
    // SAFETY: a string that lives on; the arena is closed after its last use.
    unsafe {
        let arena = muninn_arena_open(url.as_ptr(), std::ptr::null(), bytes, 2 << 20);
        assert!(!arena.is_null(), "{}", said());
        assert_eq!(muninn_arena_size(arena), bytes);
        let words = muninn_arena_take(arena, bytes, 4096).cast::<u64>();
        assert_eq!(words.cast(), muninn_arena_base(arena));
        assert!(muninn_arena_take(arena, 1, 1).is_null());
        assert!(said().starts_with("the arena has 0B left"), "{}", said());
        let base = words.addr();
        let shadows: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|own| scope.spawn(move || hammer(base, own)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let expected: Vec<u8> = (0..WORDS)
            .flat_map(|at| shadows[at % THREADS][at / THREADS].to_le_bytes())
            .collect();
        // By system calls: the kernel touches far pages itself.
        let mut file = tempfile::tempfile().unwrap();
        let memory = std::slice::from_raw_parts(words.cast::<u8>(), WORDS * 8);
        file.write_all(memory).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut back = Vec::new();
        file.read_to_end(&mut back).unwrap();
        assert!(back == expected, "what was written is what is there");
        file.seek(SeekFrom::Start(0)).unwrap();
        let memory = std::slice::from_raw_parts_mut(words.cast::<u8>(), WORDS * 8);
        memory.fill(0xff);
        file.read_exact(memory).unwrap();
        assert!(
            memory == expected,
            "what the kernel read into it is what is there"
        );
        let mut stats = CStats::default();
        muninn_arena_look(arena, &mut stats);
        let shown = format!("{stats:?}");
        assert!(
            stats.near_bytes <= 2 << 20 && stats.far_bytes >= 20 << 20,
            "{shown}"
        );
        assert!(stats.lost == 0 && stats.evicted > 1000, "{shown}");
        muninn_arena_close(arena);
    }
}

/// Random words of one thread, compared with a copy beside them at each look.
fn hammer(base: usize, own: usize) -> Vec<u64> {
    let mut shadow = vec![0u64; WORDS / THREADS];
    let mut random = SplitMix64::new(own as u64 + 1);
    for step in 0..STEPS {
        // Near each other for a while, as programs are.
        let area = (step / 500 * 7919) % (shadow.len() - 4096);
        let at = area + (random.next_u64() % 4096) as usize;
        let word = std::ptr::with_exposed_provenance_mut::<u64>(base + (at * THREADS + own) * 8);
        // SAFETY: a word of the arena that is this thread's alone.
        unsafe {
            assert_eq!(
                word.read_volatile(),
                shadow[at],
                "word {at} of thread {own} at step {step}"
            );
            shadow[at] = random.next_u64();
            word.write_volatile(shadow[at]);
        }
    }
    shadow
}

/// With less room at the server than the arena has, memory stays near: above the limit, and right.
#[test]
fn a_server_without_room_costs_no_page() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = server(&dir, Bytes::mib(8));
    let url = CString::new(url).unwrap();
    // SAFETY: as above.
    unsafe {
        let arena = muninn_arena_open(url.as_ptr(), std::ptr::null(), 24 << 20, 1 << 20);
        assert!(!arena.is_null(), "{}", said());
        let words = muninn_arena_base(arena).cast::<u64>();
        for round in 0..2u64 {
            for at in 0..(24 << 20) / 8 {
                let word = words.add(at);
                assert!(round == 0 || word.read_volatile() == at as u64);
                word.write_volatile(at as u64);
            }
        }
        let mut stats = CStats::default();
        muninn_arena_look(arena, &mut stats);
        assert!(
            stats.kept > 0 && stats.evicted > 0 && stats.lost == 0 && stats.near_bytes >= 16 << 20,
            "{stats:?}"
        );
        muninn_arena_close(arena);
    }
}

/// In a process of its own, which a signal is to end.
#[test]
#[ignore = "a part of another test"]
fn touches_what_is_lost() {
    let url = CString::new(std::env::var("MUNINN_TEST_URL").unwrap()).unwrap();
    // SAFETY: as above.
    unsafe {
        let arena = muninn_arena_open(url.as_ptr(), std::ptr::null(), 8 << 20, 1 << 20);
        assert!(!arena.is_null(), "{}", said());
        let bytes = muninn_arena_base(arena).cast::<u8>();
        bytes.write_bytes(1, 8 << 20);
        println!("ready");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let sum: u64 = (0..8 << 20)
            .step_by(4096)
            .map(|at| u64::from(bytes.add(at).read_volatile()))
            .sum();
        println!("the sum is {sum}");
    }
}

#[test]
fn what_is_lost_is_never_read() {
    if !possible() {
        return;
    }
    // By tcp: memory of a server on this machine stays mapped, and right, when it is stopped.
    let server = Server::start(ServerConfig {
        memory: Bytes::mib(16),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        lease: Duration::from_secs(1),
        keep_awake: false,
        ..ServerConfig::default()
    });
    let server = server.unwrap();
    let url = server.addresses()[0].to_string();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "touches_what_is_lost",
        ])
        .env("MUNINN_TEST_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("ready") {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "it ended early");
        seen.extend(byte);
    }
    server.stop();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let ended = child.wait_with_output().unwrap();
    out.read_to_end(&mut seen).unwrap();
    let err = format!(
        "{}\n{}",
        String::from_utf8_lossy(&seen),
        String::from_utf8_lossy(&ended.stderr)
    );
    const SIGBUS: i32 = 7;
    assert_eq!(ended.status.signal(), Some(SIGBUS), "{err}");
    assert!(
        err.contains("is lost, touching it raises SIGBUS: "),
        "{err}"
    );
}
