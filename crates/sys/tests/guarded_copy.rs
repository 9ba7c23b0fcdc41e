//! Shared memory that vanishes in the middle of a copy, and who gets the signal then.
//!
//! Each case that may end a process runs in a child: this same test program, started again with the
//! name of the case in the environment.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use muninn_sys::memory::{Access, BusFault, Mapping, Memfd, MemoryError, guarded_copy};
use muninn_sys::sigbus;
use muninn_types::{Bytes, PAGE_SIZE};

const CASE: &str = "MUNINN_SYS_GUARDED_CASE";

/// Runs `case` in a child and returns how it ended: exit code or signal.
fn in_child(test: &str, case: &str) -> Result<i32, i32> {
    let status = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    status.code().ok_or_else(|| status.signal().unwrap_or(0))
}

fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

/// A mapping of 4 pages of which only the first `left` are still there.
fn truncated(left: u64) -> Mapping {
    let memfd = Memfd::create("truncated", Bytes::pages(4)).unwrap();
    let map = Mapping::options()
        .shared()
        .file(&memfd, 0, Bytes::pages(4))
        .unwrap();
    map.write_at(0, &[5; 4 * PAGE_SIZE]).unwrap();
    memfd.resize(Bytes::pages(left)).unwrap();
    map
}

#[test]
fn a_copy_from_a_truncated_file_reports_how_far_it_came() {
    let map = truncated(2);
    let mut into = [0; 4 * PAGE_SIZE];
    let error = map.read_at(0, &mut into).unwrap_err();
    let MemoryError::Bus(BusFault { copied, len }) = error else {
        panic!("{error}")
    };
    assert_eq!((copied, len), (2 * PAGE_SIZE, 4 * PAGE_SIZE));
    assert!(into[..copied].iter().all(|&b| b == 5));
    assert_eq!(
        error.to_string(),
        "shared memory vanished after 8192 of 16384 bytes: the other process has truncated the file"
    );
    map.read_at(0, &mut into[..2 * PAGE_SIZE]).unwrap();
}

#[test]
fn a_copy_into_a_truncated_file_reports_it_too() {
    let map = truncated(1);
    assert!(matches!(
        map.write_at(10, &[1; 2 * PAGE_SIZE]),
        Err(MemoryError::Bus(BusFault { copied, .. })) if copied == PAGE_SIZE - 10
    ));
    assert!(matches!(
        map.write_at(3 * PAGE_SIZE as u64, &[1]),
        Err(MemoryError::Bus(BusFault { copied: 0, len: 1 }))
    ));
}

#[test]
fn copies_of_all_lengths_and_alignments_are_exact() {
    let mut rng = muninn_types::SplitMix64::new(11);
    let mut source = vec![0; 70_000];
    rng.fill(&mut source);
    let mut into = vec![0; 70_000];
    for round in 0..3000 {
        let max = if round % 10 == 0 { 60_000 } else { 300 };
        let len = rng.below(max) as usize;
        let (from, to) = (rng.below(4096) as usize, rng.below(4096) as usize);
        into.fill(0xEE);
        // SAFETY: both offsets plus the length stay inside of the vectors.
        unsafe { guarded_copy(into.as_mut_ptr().add(to), source.as_ptr().add(from), len) }.unwrap();
        assert!(into[to..to + len] == source[from..from + len]);
        assert!(
            into[..to]
                .iter()
                .chain(&into[to + len..])
                .all(|&b| b == 0xEE)
        );
    }
}

#[test]
fn many_threads_can_lose_pages_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let map = truncated(3);
                let mut into = [0; 4 * PAGE_SIZE];
                for _ in 0..200 {
                    assert!(map.read_at(0, &mut into).is_err());
                }
            });
        }
    });
    assert!(sigbus::is_active());
}

/// Touches a vanished page without any guard.
fn touch_vanished() {
    let map = truncated(0);
    // SAFETY: a read of mapped memory; that it raises SIGBUS is the point of the test.
    unsafe { map.as_ptr().read_volatile() };
}

#[test]
fn an_unguarded_touch_still_ends_the_process() {
    match case().as_deref() {
        Some("fault") => {
            sigbus::install().unwrap();
            touch_vanished();
        }
        Some("sent") => {
            // The handler of the Rust runtime would swallow the first signal that is sent.
            install_earlier(libc::SIG_DFL, 0);
            sigbus::install().unwrap();
            // SAFETY: sends a signal to ourselves.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        _ => {
            let name = "an_unguarded_touch_still_ends_the_process";
            assert_eq!(in_child(name, "fault"), Err(libc::SIGBUS));
            assert_eq!(in_child(name, "sent"), Err(libc::SIGBUS));
        }
    }
}

static CHAINED_ADDR: AtomicUsize = AtomicUsize::new(0);

extern "C" fn earlier_handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; the exit does not return.
    unsafe {
        CHAINED_ADDR.store((*info).si_addr() as usize, Ordering::SeqCst);
        libc::_exit(if CHAINED_ADDR.load(Ordering::SeqCst) != 0 {
            42
        } else {
            43
        });
    }
}

extern "C" fn earlier_plain_handler(_: i32) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(44) }
}

fn install_earlier(handler: usize, flags: i32) {
    // SAFETY: a complete action with a handler of the type its flags say.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()),
            0
        );
    }
}

#[test]
fn faults_that_are_not_ours_reach_the_handler_that_was_there_before() {
    match case().as_deref() {
        Some("siginfo") => {
            install_earlier(earlier_handler as *const () as usize, libc::SA_SIGINFO);
            let map = truncated(1);
            assert!(map.read_at(0, &mut [0; 2 * PAGE_SIZE]).is_err());
            touch_vanished();
        }
        Some("plain") => {
            install_earlier(earlier_plain_handler as *const () as usize, 0);
            sigbus::install().unwrap();
            touch_vanished();
        }
        Some("ignored") => {
            install_earlier(libc::SIG_IGN, 0);
            sigbus::install().unwrap();
            // SAFETY: sends a signal to ourselves, which the earlier setting ignores.
            unsafe { libc::raise(libc::SIGBUS) };
            std::process::exit(45);
        }
        Some("replaced") => {
            sigbus::install().unwrap();
            assert!(sigbus::is_active());
            install_earlier(earlier_plain_handler as *const () as usize, 0);
            std::process::exit(if sigbus::is_active() { 1 } else { 46 });
        }
        _ => {
            let name = "faults_that_are_not_ours_reach_the_handler_that_was_there_before";
            assert_eq!(in_child(name, "siginfo"), Ok(42));
            assert_eq!(in_child(name, "plain"), Ok(44));
            assert_eq!(in_child(name, "ignored"), Ok(45));
            assert_eq!(in_child(name, "replaced"), Ok(46));
        }
    }
}

static LOCKED_PAGE: AtomicUsize = AtomicUsize::new(0);

fn unlock(addr: usize) -> bool {
    let page = LOCKED_PAGE.load(Ordering::SeqCst);
    if page == 0 || addr & !(PAGE_SIZE - 1) != page {
        return false;
    }
    // SAFETY: replaces the vanished page by a fresh one at the same place, which the test owns.
    unsafe {
        rustix::mm::mmap_anonymous(
            page as *mut _,
            PAGE_SIZE,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED,
        )
    }
    .is_ok()
}

#[test]
fn a_resolver_can_bring_the_page_back() {
    if case().as_deref() == Some("resolve") {
        let map = truncated(0);
        LOCKED_PAGE.store(map.addr() as usize, Ordering::SeqCst);
        sigbus::set_resolver(unlock).unwrap();
        assert!(sigbus::set_resolver(|_| false).is_err());
        // SAFETY: a read of mapped memory; the resolver answers for it.
        let byte = unsafe { map.as_ptr().read_volatile() };
        std::process::exit(if byte == 0 { 47 } else { 1 });
    }
    assert_eq!(
        in_child("a_resolver_can_bring_the_page_back", "resolve"),
        Ok(47)
    );
}

#[test]
fn read_only_memory_is_refused_before_any_copy() {
    let memfd = Memfd::create("ro", Bytes::PAGE).unwrap();
    let map = Mapping::options()
        .shared()
        .access(Access::ReadOnly)
        .file(&memfd, 0, Bytes::PAGE)
        .unwrap();
    assert!(matches!(map.write_at(0, &[1]), Err(MemoryError::ReadOnly)));
}
