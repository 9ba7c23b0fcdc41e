//! Kinds of memory are told apart, and what must stay near is named when it is more than the limit.

use crate::common::{Place, place};
use crate::harness::{Ran, Run, cannot_run, program, start};
use muninn_testing::skip;

/// 24 MiB of each of these kinds, held until the file that is named last is there.
const HOLD: &str = r#"
import ctypes, mmap, os, sys, time
size = 24 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def private():
    at = libc.mmap(None, size, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(at, 1, size)
    return at

shared = mmap.mmap(-1, size)
shared[:] = b"x" * size
if "protected" in sys.argv:
    assert libc.mprotect(private(), size, 1) == 0
    assert libc.mprotect(private(), size, 5) == 0
if "locked" in sys.argv:
    assert libc.mlock(private(), size) == 0
while not os.path.exists(sys.argv[-1]):
    time.sleep(0.01)
"#;

/// Runs it with memory of this kind until what it holds was seen.
fn hold(place: &Place, options: &[&str], kind: &str, seen: impl Fn(&Run) -> bool) -> Ran {
    let end = place.path("end");
    let words = ["python3", "-c", HOLD, kind, end.to_str().unwrap()];
    let run = start(place, options, &words);
    run.until("all of it is seen", || seen(&run));
    std::fs::write(&end, "").unwrap();
    run.end()
}

/// The most that was resident of a kind, in MiB.
fn resident(ran: &Ran, kind: &str) -> u64 {
    let kinds = ran.report["kinds"].as_array().unwrap();
    let found = kinds.iter().find(|shown| shown["kind"] == kind).unwrap();
    found["resident_peak_bytes"].as_u64().unwrap() >> 20
}

#[test]
fn kinds_are_told_apart_and_shown() {
    if cannot_run() || program(&["python3"]).is_none() {
        return;
    }
    let place = place();
    let ran = hold(
        &place,
        &["--local", "512MiB", "--stats=full"],
        "protected",
        |run| {
            let seen = run.job().total();
            let kinds = [
                seen.kind_shared_bytes,
                seen.kind_read_only_bytes,
                seen.kind_executable_bytes,
            ];
            kinds.iter().all(|bytes| *bytes >= 24 << 20)
        },
    );
    assert_eq!(ran.code, 0, "{ran:#?}");
    for kind in ["shared memory", "read-only", "executable"] {
        let mib = resident(&ran, kind);
        assert!((24..32).contains(&mib), "{kind}: {mib} MiB in {ran:#?}");
        assert!(ran.err.contains(&format!("\n{kind} ")), "{ran:#?}");
    }
    for kind in ["heap", "library data"] {
        assert!(resident(&ran, kind) >= 1, "{kind}: {ran:#?}");
    }
    assert!(!ran.err.contains("must stay near"), "{ran:#?}");
}

#[test]
fn more_than_the_limit_that_must_stay_near_is_said_once() {
    if cannot_run() || program(&["python3"]).is_none() {
        return;
    }
    if muninn_sys::proc::own_uid() != 0 {
        return skip("only root may lock 24 MiB whatever 'ulimit -l' says");
    }
    let place = place();
    // With room enough that nothing is taken over: who is short of memory has much of what is locked unlocked.
    let ran = hold(&place, &["--local", "50MiB"], "locked", |run| {
        run.err().contains('\n')
    });
    assert_eq!(ran.code, 0, "{ran:#?}");
    let said: Vec<&str> = ran.err.lines().collect();
    let [said] = said[..] else {
        panic!("not one line: {ran:#?}");
    };
    assert!(said.contains(" of this job must stay near ("), "{said}");
    assert!(said.contains("shared memory 24.0MiB"), "{said}");
    assert!(said.contains("locked 24.0MiB"), "{said}");
    assert!(
        said.ends_with("), but the limit is 50.0MiB; the program goes on above it"),
        "{said}"
    );
}
