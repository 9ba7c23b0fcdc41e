//! When the library is loaded, and when the program forks.

use muninn_job::VARIABLE;
use muninn_pager::{Runtime, fork};
use muninn_sys::own;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The job's file. Kept in memory that children have, too: the heap they do not.
static JOB: OnceLock<Path> = OnceLock::new();
/// The runtime's first thread has a table of open files of its own.
static SEPARATED: AtomicBool = AtomicBool::new(false);

/// The signal that ends a process whose memory is out of reach.
const SIGBUS: i32 = 7;

#[derive(Debug)]
struct Path {
    bytes: [u8; 4096],
    len: usize,
}

impl Path {
    fn get(&'static self) -> &'static str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    let Some(name) = std::env::var_os(VARIABLE) else {
        return;
    };
    let name = name.as_encoded_bytes();
    let mut path = Path {
        bytes: [0; 4096],
        len: name.len(),
    };
    if name.len() > path.bytes.len() || JOB.get().is_some() {
        return;
    }
    path.bytes[..name.len()].copy_from_slice(name);
    let _ = JOB.set(path);
    own::at_fork(before_fork, in_parent, in_child);
    start(None);
}

extern "C" fn before_fork() {
    fork::prepare();
}

extern "C" fn in_parent() {
    fork::parent();
}

extern "C" fn in_child() {
    let link = fork::child();
    if link.is_some() {
        fork::end_with_parent();
    }
    own::reset_claims();
    muninn_sys::still::reset();
    // SAFETY: the child has one thread, this one, and the heap's memory is not in it; what is kept
    // from before (the path of the job, atomics) is not in the heap.
    unsafe { crate::HEAP.begin_anew() };
    SEPARATED.store(false, Ordering::Relaxed);
    start(link);
    if let Some(link) = link {
        // The program's copy of the link is closed as soon as the runtime has its own.
        while !SEPARATED.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        fork::close(link);
        fork::outlive_parent();
    }
}

/// Starts the runtime of this process.
fn start(link: Option<RawFd>) {
    let Some(job) = JOB.get() else { return };
    let work = move || Runtime::run(&crate::OwnThreads, job.get(), link, &SEPARATED);
    let started =
        muninn_pager::Threads::spawn(&crate::OwnThreads, "muninn-steward", Box::new(work));
    if started.is_err() {
        SEPARATED.store(true, Ordering::Release);
        if link.is_some() {
            // Nobody would answer for the memory that is far.
            own::end_process(SIGBUS);
        }
    }
}
